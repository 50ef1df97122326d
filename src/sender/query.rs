//! Reads and writes the query of a URL, as forms do.

/// A query that anybody can send.
pub(super) struct Query<'a>(pub(super) &'a str);

impl Query<'_> {
    /// The values of a parameter. `None` for one whose percent-encoding is broken.
    fn all(&self, name: &str) -> impl Iterator<Item = Option<Vec<u8>>> {
        let pairs = self.0.split('&');
        pairs.filter_map(move |pair| {
            let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
            // Names are decoded, too: in `a=1&%61=2`, `a` occurs twice.
            let is_it = decode(found).is_some_and(|found| found == name.as_bytes());
            is_it.then(|| decode(value))
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// The value of a parameter that stands there once. Its bytes may be anything.
    pub(super) fn only(&self, name: &str) -> Option<Vec<u8>> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            // Which of two counts depends on the parser, so neither does.
            (Some(value), None) => value,
            _ => None,
        }
    }
}

/// Undoes percent-encoding, and takes a plus sign for a space.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                let mut byte = [0];
                // `u8::from_str_radix` would take the sign in `%+1` for a part of the number.
                base16ct::mixed::decode(digits, &mut byte).ok()?;
                byte[0]
            }
            byte => byte,
        });
    }
    Some(decoded)
}

/// Writes a text as forms do.
pub(super) fn encode(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b' ' => "+".to_owned(),
        byte if byte.is_ascii_alphanumeric() || b"-_.*".contains(&byte) => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_stands_once_is_decoded() {
        for (query, found) in [
            ("a=1", Some(&b"1"[..])),
            ("b=2&a=1&c", Some(b"1")),
            ("a=1&%62=2", Some(b"1")),
            ("%61=%31", Some(b"1")),
            ("a=1%2b1+%C3%bc=", Some("1+1 ü=".as_bytes())),
            ("a=%ff%00", Some(b"\xff\0")),
            ("a", Some(b"")),
            ("a=", Some(b"")),
            ("", None),
            ("A=1", None),
            ("aa=1", None),
            ("a=1&a=1", None),
            ("a=1&%61", None),
            ("a=%", None),
            ("a=%3", None),
            ("a=%zz", None),
            ("a=%+1", None),
            ("%=1&=&&", None),
        ] {
            assert_eq!(Query(query).only("a").as_deref(), found, "{query}");
        }
        assert!(Query("a=%&b").has("a"));
        assert!(!Query("b=a").has("a"));
    }
}
