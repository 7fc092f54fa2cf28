//! How patient a client is.

use std::time::Duration;

/// Timeouts and retries.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How often a request is tried before it has failed. Progress starts the count anew.
    pub attempts: u32,
    /// Pause after the first failure; each further one doubles it.
    pub first_pause: Duration,
    /// The longest pause, and the longest that a host may ask for (`Retry-After`).
    pub longest_pause: Duration,
    /// For names, TCP and TLS.
    pub connect: Duration,
    /// For the next bytes: a stalled connection is given up after this.
    pub silence: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            attempts: 5,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_mins(1),
            connect: Duration::from_secs(15),
            silence: Duration::from_secs(30),
        }
    }
}

impl Policy {
    /// The pause after so many failures: what the host asks for, if it asks, else twice as long each time.
    ///
    /// `None` where the host asks for more than anybody would wait.
    pub(crate) fn pause(&self, failures: u32, asked: Option<Duration>) -> Option<Duration> {
        if let Some(asked) = asked {
            return (asked <= self.longest_pause).then_some(asked);
        }
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        Some(self.first_pause.saturating_mul(doubled).min(self.longest_pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let policy = Policy::default();
        let pauses = [1, 2, 3, 9, 40].map(|failures| policy.pause(failures, None).unwrap());
        assert_eq!(pauses.map(|pause| pause.as_millis()), [500, 1000, 2000, 60_000, 60_000]);
    }

    #[test]
    fn a_host_is_obeyed_within_reason() {
        let policy = Policy::default();
        let seconds = Duration::from_secs;
        assert_eq!(policy.pause(1, Some(seconds(7))), Some(seconds(7)));
        assert_eq!(policy.pause(1, Some(seconds(3600))), None);
    }
}
