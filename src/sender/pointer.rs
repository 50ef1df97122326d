//! Reads one field of a JSON document without decoding the rest.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// A JSON pointer (RFC 6901) to a field in objects. There is no way into arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pointer(Vec<String>);

impl Pointer {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let form = "is no JSON pointer of at most 16 names, such as `/event/type`";
        let names = text.strip_prefix('/').ok_or(form)?.split('/');
        let name = |name: &str| match name.split('~').skip(1).all(|it| it.starts_with(['0', '1'])) {
            // In this order (RFC 6901, section 4): `~01` is `~1`, and not a slash.
            true => Ok(name.replace("~1", "/").replace("~0", "~")),
            false => Err("has a `~` in a name: write `~0` for it, and `~1` for a slash"),
        };
        let names: Vec<_> = names.map(name).collect::<Result<_, _>>()?;
        // Reading recurses once for each name.
        if names.len() > 16 {
            return Err(form);
        }
        Ok(Self(names))
    }

    /// Returns the string or integer that stands there, if anything does. An error if the document is not JSON, or the
    /// field is of another type or stands twice.
    pub(crate) fn find(&self, json: &[u8]) -> Result<Option<String>, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let found = At(&self.0).deserialize(&mut deserializer)?;
        // Text after the document could be read differently by another parser.
        deserializer.end()?;
        Ok(found)
    }
}

/// A value at the end of these names.
struct At<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self.0.is_empty() {
            true => deserializer.deserialize_any(Scalar).map(Some),
            false => deserializer.deserialize_map(self),
        }
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        let (name, rest) = (&self.0[0], &self.0[1..]);
        while let Some(is_it) = map.next_key_seed(Named(name))? {
            match is_it {
                false => {
                    // It is skipped in a loop, so 100,000 brackets do not overflow the stack.
                    map.next_value::<IgnoredAny>()?;
                }
                // Parsers disagree on which of two counts: the handler's could read another key than this one.
                true if found.is_some() => {
                    return Err(Error::custom(format!("`{name}` stands twice")));
                }
                true => found = Some(map.next_value_seed(At(rest))?),
            }
        }
        Ok(found.flatten())
    }
}

/// Whether a name is this one.
struct Named<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Named<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Named<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        // Names arrive without escapes, so `\u0069d` is `id` here, too.
        Ok(name == self.0)
    }
}

// There is no `visit_f64`: 1.0, 1e0 and 1 could become different keys of one number.
struct Scalar;

impl Visitor<'_> for Scalar {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or an integer")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pointer: &str, json: &str) -> Result<Option<String>, String> {
        let found = Pointer::parse(pointer).unwrap().find(json.as_bytes());
        found.map_err(|error| error.to_string())
    }

    #[test]
    fn strings_and_integers_are_found() {
        let json = r#"{"a":[{"id":1}],"id":"x","b":{"id":-7,"c/d":{"":"ü"}},"\u006e":1e3}"#;
        assert_eq!(find("/id", json), Ok(Some("x".to_owned())));
        assert_eq!(find("/b/id", json), Ok(Some("-7".to_owned())));
        assert_eq!(find("/b/c~1d/", json), Ok(Some("ü".to_owned())));
        assert_eq!(find("/none", json), Ok(None));
        assert_eq!(find("/b/none", json), Ok(None));
        for wrong in ["/n", "/a", "/a/0", "/b", "/id/x"] {
            assert!(find(wrong, json).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_could_mean_two_things_is_refused() {
        for json in [
            r#"{"id":"a","id":"a"}"#,
            r#"{"id":"a","\u0069d":"b"}"#,
            r#"{"id":null}"#,
            r#"{"id":true}"#,
            r#"{"id":1.0}"#,
            r#"{"id":18446744073709551616}"#,
            r#"{"id":["a"]}"#,
            r#"{"id":"a"} x"#,
            r#"{"id":"a""#,
            r#"["id","a"]"#,
            "\u{feff}{\"id\":\"a\"}",
            "",
        ] {
            assert!(find("/id", json).is_err(), "{json}");
        }
        let invalid = Pointer::parse("/id").unwrap();
        assert!(invalid.find(b"{\"id\":\"\xff\"}").is_err());
    }

    #[test]
    fn depth_is_no_danger() {
        let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
        let json = format!(r#"{{"a":{open}{close},"id":"x"}}"#);
        assert_eq!(find("/id", &json), Ok(Some("x".to_owned())));
        let (open, close) = (r#"{"id":"#.repeat(1_000), "}".repeat(1_000));
        assert!(find("/id", &format!("{open}1{close}")).is_err());
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        for (text, names) in [
            ("/~0", "~"),
            ("/~1", "/"),
            ("/~01", "~1"),
            ("/~0~1~0", "~/~"),
        ] {
            assert_eq!(Pointer::parse(text), Ok(Pointer(vec![names.to_owned()])));
        }
        for wrong in ["", "id", "id/a", &"/a".repeat(17)] {
            let reason = Pointer::parse(wrong).unwrap_err();
            assert!(reason.contains("at most 16 names"), "{wrong}: {reason}");
        }
        for wrong in ["/~", "/ty~pe", "/~2", "/a/~~0", "/a~0/b~"] {
            let reason = Pointer::parse(wrong).unwrap_err();
            assert!(reason.contains("write `~0`"), "{wrong}: {reason}");
        }
    }
}
