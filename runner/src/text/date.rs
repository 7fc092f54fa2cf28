//! The calendar, as far as chat templates ask for it.

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// 1 to 31.
    pub day: u64,
}

/// A format that names something else than a day's parts.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("strftime_now does not know the directive `%{0}`")]
pub struct UnknownDirective(String);

impl Date {
    /// The day in UTC, `seconds` after 1970 began.
    pub fn from_unix_seconds(seconds: u64) -> Self {
        // Howard Hinnant's `civil_from_days`. Years begin in March, so that the leap day is the last one.
        let days = seconds / 86_400 + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = (month_from_march + 2) % 12 + 1;
        Self { year: year_of_era + era * 400 + u64::from(month <= 2), month, day }
    }

    /// `strftime` with the directives that chat templates use: `%Y %m %d %B %b %%`.
    pub fn format(self, format: &str) -> Result<String, UnknownDirective> {
        let mut text = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            match chars.next() {
                Some('Y') => text += &self.year.to_string(),
                Some('m') => text += &two_digits(self.month),
                Some('d') => text += &two_digits(self.day),
                Some('B') => text += self.month_name(),
                Some('b') => text.extend(self.month_name().chars().take(3)),
                Some('%') => text.push('%'),
                other => return Err(UnknownDirective(other.into_iter().collect())),
            }
        }
        Ok(text)
    }

    fn month_name(self) -> &'static str {
        const NAMES: [&str; 12] = [
            "January",
            "February",
            "March",
            "April",
            "May",
            "June",
            "July",
            "August",
            "September",
            "October",
            "November",
            "December",
        ];
        (1..).zip(NAMES).find(|(month, _)| *month == self.month).map_or("", |(_, name)| name)
    }
}

fn two_digits(number: u64) -> String {
    format!("{number:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_from_1970() {
        let day = |seconds| {
            let Date { year, month, day } = Date::from_unix_seconds(seconds);
            (year, month, day)
        };
        assert_eq!(day(0), (1970, 1, 1));
        assert_eq!(day(951_782_400), (2000, 2, 29));
        assert_eq!(day(951_868_800), (2000, 3, 1));
        assert_eq!(day(4_102_444_799), (2099, 12, 31));
    }

    #[test]
    fn dates_are_formatted_as_strftime_does() {
        let date = Date { year: 2026, month: 3, day: 4 };
        assert_eq!(
            date.format("%Y-%m-%d, %d %b %Y, %B%%").unwrap(),
            "2026-03-04, 04 Mar 2026, March%"
        );
        assert_eq!(date.format("%Q"), Err(UnknownDirective("Q".to_owned())));
        assert!(date.format("%").is_err());
    }
}
