//! White space of JSON files, taken out where a file would not fit a host and put back where it would: tokenizers save
//! theirs indented, which makes up half of a large `tokenizer.json`.

/// The file without white space between its tokens, if [`indent`] makes from that exactly the file again.
pub(crate) fn compact(json: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(json.len());
    tokens(json, |byte, quoted| {
        if quoted || !byte.is_ascii_whitespace() {
            out.push(byte);
        }
    });
    (out.len() < json.len() && indent(&out) == json).then_some(out)
}

/// Two spaces a level and one after each colon, as `serde_json` and Python's `indent=2` write it.
pub(crate) fn indent(compact: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(compact.len() * 2);
    let (mut level, mut before) = (0, b' ');
    let new_line = |out: &mut Vec<u8>, level: usize| {
        out.push(b'\n');
        out.resize(out.len() + 2 * level, b' ');
    };
    tokens(compact, |byte, quoted| {
        if quoted {
            if matches!(before, b'[' | b'{') {
                new_line(&mut out, level);
            }
            out.push(byte);
            before = b'"';
            return;
        }
        let closes = matches!(byte, b']' | b'}');
        if closes {
            level = usize::saturating_sub(level, 1);
        }
        // An empty container stays on its line.
        if closes != matches!(before, b'[' | b'{') {
            new_line(&mut out, level);
        }
        out.push(byte);
        match byte {
            b'[' | b'{' => level += 1,
            b',' => new_line(&mut out, level),
            b':' => out.push(b' '),
            _ => {}
        }
        before = byte;
    });
    out
}

/// Calls `each` with every byte, and whether it belongs to a string.
fn tokens(json: &[u8], mut each: impl FnMut(u8, bool)) {
    let (mut quoted, mut escaped) = (false, false);
    for &byte in json {
        let quote = byte == b'"' && !escaped;
        each(byte, quoted || quote);
        escaped = quoted && byte == b'\\' && !escaped;
        quoted ^= quote;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn values() -> [Value; 6] {
        [
            json!({}),
            json!([[], {}, [[]], "", 1.5, null]),
            json!({"a b": {"c": [1, -2.5e-7, true], "d": "x\"\\ [ {\n", "": []}, "e": "\\"}),
            json!("a string"),
            json!([["Ġa", "b"], ["\u{2581}", ","]]),
            json!({"model": {"vocab": {"<s>": 0, ":": 1, "}": 2, "  ": 3}, "merges": []}}),
        ]
    }

    #[test]
    fn what_serde_json_indents_is_compacted_and_comes_back() {
        for value in values() {
            let pretty = serde_json::to_vec_pretty(&value).unwrap();
            let short = serde_json::to_vec(&value).unwrap();
            assert_eq!(String::from_utf8(indent(&short)).unwrap().as_bytes(), pretty);
            if pretty != short {
                assert_eq!(compact(&pretty).unwrap(), short);
            }
        }
    }

    #[test]
    fn what_would_not_come_back_is_left_alone() {
        let wide = serde_json::to_string_pretty(&values()[2]).unwrap().replace("  ", "    ");
        for json in [r#"{"a":1}"#, "{\n  \"a\": 1\n}\n", "{ \"a\": 1 }", &wide, "[1,2"] {
            assert_eq!(compact(json.as_bytes()), None, "{json}");
        }
    }
}
