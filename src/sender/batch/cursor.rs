//! A place in a text that is known to be JSON.

use std::borrow::Cow;
use std::ops::Range;

/// Moves through JSON that was checked: it never fails, and of other text, it would find ranges that mean nothing.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    json: &'a str,
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(json: &'a str) -> Self {
        Self { json, at: 0 }
    }

    fn byte(&self) -> Option<u8> {
        self.json.as_bytes().get(self.at).copied()
    }

    /// Moves to the next byte that is no white space, and returns it.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.byte() {
            self.at += 1;
        }
        self.byte()
    }

    /// Moves into the container that begins here.
    pub(super) fn open(&mut self) {
        self.at += 1;
    }

    /// Whether the container has another element or member, to which it moves; otherwise it moves behind its `end`.
    pub(super) fn has_next(&mut self, end: u8) -> bool {
        if self.peek() == Some(b',') {
            self.at += 1;
        }
        match self.peek() {
            Some(byte) if byte != end => true,
            _ => {
                self.at += 1;
                false
            }
        }
    }

    /// Returns the name of the member that begins here, and moves to its value.
    pub(super) fn name(&mut self) -> Cow<'a, str> {
        let quoted = self.json.get(self.skip()).unwrap_or_default();
        if self.peek() == Some(b':') {
            self.at += 1;
        }
        self.peek();
        match quoted.contains('\\') {
            false => quoted.trim_matches('"').into(),
            // One with half a surrogate is no name that a description has.
            true => serde_json::from_str::<String>(quoted).map_or("".into(), Cow::Owned),
        }
    }

    /// Moves behind the value that begins here, and returns where it stands.
    pub(super) fn skip(&mut self) -> Range<usize> {
        self.peek();
        let (from, mut depth) = (self.at, 0_usize);
        while let Some(byte) = self.byte() {
            match byte {
                b'"' => self.string(),
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth > 0 => depth -= 1,
                // A scalar alone ends before these.
                b'}' | b']' | b',' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => break,
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            self.at += 1;
            if depth == 0 {
                break;
            }
        }
        from..self.at
    }

    /// Moves to the quote that ends the string which begins here.
    fn string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.byte().filter(|byte| *byte != b'"') {
            self.at += if byte == b'\\' { 2 } else { 1 };
        }
    }

    /// Returns where the value is that these names lead to. `None` if there is none, if it is `null`, or if one of the
    /// names stands twice.
    pub(super) fn find(mut self, names: &[String]) -> Option<Range<usize>> {
        for name in names {
            let mut found = None;
            match self.peek()? {
                b'{' => {
                    self.open();
                    while self.has_next(b'}') {
                        let is_it = self.name() == name.as_str();
                        let value = self.skip();
                        if is_it && found.replace(value).is_some() {
                            return None;
                        }
                    }
                }
                b'[' => {
                    let mut left = super::super::pointer::index(name)?;
                    self.open();
                    while found.is_none() && self.has_next(b']') {
                        let value = self.skip();
                        match left.checked_sub(1) {
                            Some(less) => left = less,
                            None => found = Some(value),
                        }
                    }
                }
                _ => {}
            }
            self.at = found?.start;
        }
        let range = self.skip();
        (self.json.get(range.clone()) != Some("null")).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_they_end() {
        for json in [
            "1",
            "-1.5e+3",
            "true",
            "null",
            r#""""#,
            r#""a\"]}\\""#,
            "[]",
            "[ [ ] ]",
            "{}",
            r#"{"a":[1,{"b":"}"}],"c":"]"}"#,
        ] {
            for (before, after) in [
                ("", ""),
                (" \n", "\t"),
                ("\r", " , 7]"),
                ("", "}"),
                ("", "]"),
            ] {
                let text = format!("{before}{json}{after}");
                let mut cursor = Cursor::new(&text);
                assert_eq!(&text[cursor.skip()], json, "{text}");
            }
        }
    }

    #[test]
    fn what_is_kept_is_found_by_its_names() {
        let json = r#" { "a" : [ 1 , { "b/c" : [ ] } ] , "\u0064" : { "e" : "x" } , "n" : null, "t": 1, "t": 2 } "#;
        let find = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            Cursor::new(json).find(&names).map(|range| &json[range])
        };
        assert_eq!(find(&["a"]), Some(r#"[ 1 , { "b/c" : [ ] } ]"#));
        assert_eq!(find(&["a", "0"]), Some("1"));
        assert_eq!(find(&["a", "1", "b/c"]), Some("[ ]"));
        assert_eq!(find(&["d", "e"]), Some(r#""x""#));
        for nothing in [
            &["a", "2"][..],
            &["a", "b"],
            &["a", "0", "0"],
            &["n"],
            &["t"],
            &["x"],
            &["d", "e", "f"],
        ] {
            assert_eq!(find(nothing), None, "{nothing:?}");
        }
    }
}
