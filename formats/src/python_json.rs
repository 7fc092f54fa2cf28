//! JSON as Python's `json.dump` writes it, byte for byte: MLC's two manifests are made by it.
//!
//! The rules are those of CPython's `Lib/json/encoder.py` and of `float.__repr__`.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;

/// The arguments of `json.dump` that packlight needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// `indent`: spaces per level. `None` writes one line with a space after each comma and colon.
    pub indent: Option<usize>,
    /// `ensure_ascii`: write everything outside `' '..='~'` as `\uXXXX`.
    pub ensure_ascii: bool,
}

impl Style {
    /// `indent=4`: `tensor-cache.json`.
    pub const TENSOR_CACHE: Self = Self { indent: Some(4), ensure_ascii: true };
    /// `indent=2`: `mlc-chat-config.json`.
    pub const CHAT_CONFIG: Self = Self { indent: Some(2), ensure_ascii: true };
}

/// The text of `value`, without a trailing newline.
///
/// serde_json turns a float that is not finite into `null` before any formatter sees it; a field that could hold one
/// must say `#[serde(serialize_with = "python_json::finite")]`, which makes it an error.
///
/// # Errors
/// What `value`'s own `Serialize` reports, and map keys that are no strings.
pub fn to_string<T: Serialize + ?Sized>(value: &T, style: Style) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    let formatter = PythonFormatter { style, level: 0, has_value: false };
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter))?;
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

/// Serialises a float that must be finite: JSON has no other.
///
/// # Errors
/// A NaN or an infinity.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serialize_with asks for")]
pub fn finite<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if !value.is_finite() {
        return Err(serde::ser::Error::custom(format!("JSON has no number {value}")));
    }
    serializer.serialize_f64(*value)
}

struct PythonFormatter {
    style: Style,
    level: usize,
    has_value: bool,
}

impl PythonFormatter {
    fn begin<W: Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.has_value = false;
        writer.write_all(bracket)
    }

    fn item<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(if self.style.indent.is_some() { b"," } else { b", " })?;
        }
        self.new_line(writer)
    }

    fn end<W: Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if self.has_value {
            self.new_line(writer)?;
        }
        // The container is itself a value of the one around it.
        self.has_value = true;
        writer.write_all(bracket)
    }

    fn new_line<W: Write + ?Sized>(&self, writer: &mut W) -> io::Result<()> {
        match self.style.indent {
            Some(width) => write!(writer, "\n{:1$}", "", width * self.level),
            None => Ok(()),
        }
    }
}

impl Formatter for PythonFormatter {
    fn write_f32<W: Write + ?Sized>(&mut self, writer: &mut W, value: f32) -> io::Result<()> {
        self.write_f64(writer, f64::from(value))
    }

    fn write_f64<W: Write + ?Sized>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float_repr(value).as_bytes())
    }

    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.style.ensure_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        // A fragment has no quote, backslash or control character below 0x20: serde_json escapes those as Python does.
        for c in fragment.chars() {
            if matches!(c, ' '..='~') {
                writer.write_all(&[c as u8])?;
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }

    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.item(writer, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }
}

/// `float.__repr__` of a finite float: the shortest digits that read back, in plain notation for exponents -4 to 15.
fn float_repr(value: f64) -> String {
    // Rust's `{:e}` has the same shortest digits: "-1.25e-7", "5e0".
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let digits = mantissa.replace('.', "");
    let shift = exponent.unsigned_abs() as usize;
    if exponent < 0 {
        return format!("{sign}0.{:0<1$}{digits}", "", shift - 1);
    }
    let digits = format!("{digits:0<0$}", shift + 2);
    let (whole, fraction) = digits.split_at(shift + 1);
    format!("{sign}{whole}.{fraction}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Pairs printed by `print(f"({v!r}, \"{v!r}\")")` of CPython 3.11.
    #[expect(clippy::excessive_precision, reason = "the literals are Python's own")]
    const REPRS: &[(f64, &str)] = &[
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (-1.5, "-1.5"),
        (0.1, "0.1"),
        (0.0001, "0.0001"),
        (0.00012345, "0.00012345"),
        (1e-05, "1e-05"),
        (3.0000000000000004e-05, "3.0000000000000004e-05"),
        (1000000000000000.0, "1000000000000000.0"),
        (1e+16, "1e+16"),
        (1.2345678901234568e+17, "1.2345678901234568e+17"),
        (9999999999999998.0, "9999999999999998.0"),
        (1e+22, "1e+22"),
        (1.7976931348623157e+308, "1.7976931348623157e+308"),
        (5e-324, "5e-324"),
        (2.2250738585072014e-308, "2.2250738585072014e-308"),
        (240896.0, "240896.0"),
        (4.5172517251725175, "4.5172517251725175"),
        (0.3333333333333333, "0.3333333333333333"),
        (1e-06, "1e-06"),
        (0.6, "0.6"),
        (65504.0, "65504.0"),
        (-2.5e-10, "-2.5e-10"),
    ];

    #[test]
    fn floats_are_written_as_python_does() {
        for (value, repr) in REPRS {
            assert_eq!(float_repr(*value), *repr);
        }
    }

    #[test]
    fn indented_text_is_escaped_to_ascii() {
        let value = json!({
            "a": [], "b": {}, "c": [1, [2.5, null, true], {"d": "x\"\\/\u{8}\u{c}\n\r\t\u{1}\u{7f} é€😀"}], "": -3
        });
        let expected = concat!(
            "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    [\n      2.5,\n      null,\n      true\n    ],\n",
            "    {\n      \"d\": \"x\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u007f \\u00e9\\u20ac\\ud83d\\ude00\"\n    }\n",
            "  ],\n  \"\": -3\n}"
        );
        assert_eq!(to_string(&value, Style::CHAT_CONFIG).unwrap(), expected);
    }

    #[test]
    fn one_line_has_spaces_after_separators() {
        let value = json!({"a": [], "b": {}, "c": [1, [2.5, null, true], {"d": "é"}]});
        let style = Style { indent: None, ensure_ascii: false };
        assert_eq!(
            to_string(&value, style).unwrap(),
            r#"{"a": [], "b": {}, "c": [1, [2.5, null, true], {"d": "é"}]}"#
        );
    }

    #[test]
    fn a_float_that_is_not_finite_is_refused() {
        #[derive(Serialize)]
        struct Metadata {
            #[serde(serialize_with = "finite")]
            bits: f64,
        }
        let text = |bits| to_string(&Metadata { bits }, Style::TENSOR_CACHE);
        assert_eq!(text(4.5).unwrap(), "{\n    \"bits\": 4.5\n}");
        assert!(text(f64::NAN).unwrap_err().to_string().contains("NaN"));
        assert!(text(f64::INFINITY).is_err());
    }
}
