//! A parser of RFC 8259's grammar, and a generator of random JSON.

use arbitrary::{Arbitrary, Result, Unstructured};

/// Returns whether `body` is a JSON object in UTF-8.
pub fn is_object(body: &[u8]) -> bool {
    let mut text = Text(body);
    text.space();
    str::from_utf8(body).is_ok()
        && text.0.starts_with(b"{")
        && text.value().is_some()
        && text.0.is_empty()
}

/// The rest of a text. Each method takes the token of its name from the start.
struct Text<'a>(&'a [u8]);

impl Text<'_> {
    fn value(&mut self) -> Option<()> {
        self.space();
        match self.0.first()? {
            b'{' => self.list(b'}', |text| {
                text.space();
                text.string()?;
                text.space();
                text.exactly(b":")?;
                text.value()
            }),
            b'[' => self.list(b']', Self::value),
            b'"' => self.string(),
            b't' => self.exactly(b"true"),
            b'f' => self.exactly(b"false"),
            b'n' => self.exactly(b"null"),
            _ => self.number(),
        }?;
        self.space();
        Some(())
    }

    fn list(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.skip(1);
        self.space();
        if self.exactly(&[close]).is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            self.space();
            if self.exactly(b",").is_none() {
                return self.exactly(&[close]);
            }
        }
    }

    fn string(&mut self) -> Option<()> {
        self.exactly(b"\"")?;
        loop {
            match *self.0 {
                [b'"', ..] => return self.exactly(b"\""),
                [b'\\', b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(u8::is_ascii_hexdigit) => {
                    self.skip(6);
                }
                [
                    b'\\',
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't',
                    ..,
                ] => self.skip(2),
                [b'\\' | ..0x20, ..] | [] => return None,
                _ => self.skip(1),
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.exactly(b"-");
        if self.exactly(b"0").is_none() {
            self.digits()?;
        }
        if self.exactly(b".").is_some() {
            self.digits()?;
        }
        if self.exactly(b"e").or_else(|| self.exactly(b"E")).is_some() {
            let _ = self.exactly(b"+").or_else(|| self.exactly(b"-"));
            self.digits()?;
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let count = self
            .0
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        self.skip(count);
        (count > 0).then_some(())
    }

    fn space(&mut self) {
        let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        self.skip(self.0.iter().take_while(is_space).count());
    }

    fn exactly(&mut self, text: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    fn skip(&mut self, count: usize) {
        self.0 = &self.0[count..];
    }
}

/// Generates any object, with a preference for the payloads' fields.
pub fn object(u: &mut Unstructured<'_>) -> Result<String> {
    let mut json = String::new();
    write_object(u, &mut json, 0)?;
    Ok(json)
}

const NAMES: [&str; 36] = [
    "id",
    "user",
    "expert",
    "category",
    "chat",
    "attachment",
    "customMeta",
    "requestedExperts",
    "question",
    "languageCode",
    "status",
    "rating",
    "transcriptURL",
    "createdAt",
    "acceptedAt",
    "closedAt",
    "ratedAt",
    "lastOpenedAt",
    "assignedAt",
    "referer",
    "isUser",
    "text",
    "type",
    "hideForUser",
    "hideForExpert",
    "name",
    "email",
    "locale",
    "title",
    "url",
    "filename",
    "mimetype",
    "transcriptUrl",
    "$serde_json::private::Number",
    "",
    "ID",
];

const NUMBERS: [&str; 12] = [
    "0",
    "1",
    "0.5",
    "1.0",
    "-0",
    "-0.0",
    "1.7e12",
    "1718182800123",
    "1E+2",
    "1e999",
    "-1e999",
    "123456789012345678901234567890",
];

const PIECES: [&str; 10] = [
    "a",
    "😀",
    "\u{feff}",
    r"\n",
    r"\\",
    r#"\""#,
    r"\u0000",
    r"\ud83d",
    r"\ude00",
    r"\ud83d\ude00",
];

fn write_object(u: &mut Unstructured<'_>, json: &mut String, depth: u8) -> Result<()> {
    json.push('{');
    for at in 0..u.int_in_range(0..=8)? {
        if at > 0 {
            json.push_str(u.choose(&[",", ", ", "\n\t,"])?);
        }
        if u.ratio(7, 8)? {
            json.push_str(&format!("{:?}", u.choose(&NAMES)?));
        } else {
            write_string(u, json)?;
        }
        json.push_str(u.choose(&[":", " : "])?);
        write_value(u, json, depth + 1)?;
    }
    json.push('}');
    Ok(())
}

fn write_value(u: &mut Unstructured<'_>, json: &mut String, depth: u8) -> Result<()> {
    match u.int_in_range(0..=if depth < 5 { 9 } else { 6 })? {
        0 | 1 => write_string(u, json)?,
        2 => json.push_str(u.choose(&NUMBERS)?),
        3 => json.push_str(&i64::arbitrary(u)?.to_string()),
        4 => match f64::arbitrary(u)? {
            number if number.is_finite() => json.push_str(&format!("{number:e}")),
            _ => json.push_str("0.1"),
        },
        5 => json.push_str(u.choose(&["true", "false"])?),
        6 => json.push_str("null"),
        7 => {
            json.push('[');
            for at in 0..u.int_in_range(0..=3)? {
                if at > 0 {
                    json.push(',');
                }
                write_value(u, json, depth + 1)?;
            }
            json.push(']');
        }
        _ => write_object(u, json, depth)?,
    }
    Ok(())
}

fn write_string(u: &mut Unstructured<'_>, json: &mut String) -> Result<()> {
    json.push('"');
    for _ in 0..u.int_in_range(0..=4)? {
        match char::arbitrary(u)? {
            ..' ' | '"' | '\\' => json.push_str(u.choose(&PIECES)?),
            plain => json.push(plain),
        }
    }
    json.push('"');
    Ok(())
}
