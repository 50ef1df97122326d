//! Reads one field of a JSON document without decoding the rest.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A JSON pointer (RFC 6901) to a string or an integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pointer(Vec<String>);

/// What stands where a pointer points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// Nothing, or `null`. Also if a step before is null, absent or of another type.
    Nothing,
    Text(Cow<'a, str>),
    Number(String),
    /// This, which is neither a string nor an integer.
    Other(&'static str),
}

/// The reason why a document has no clear answer. It quotes nothing of the document.
#[derive(Clone, Debug)]
pub(crate) enum Unclear {
    /// It is no JSON, or one of the steps stands twice.
    Json {
        line: usize,
        column: usize,
    },
    Other(Pointer, &'static str),
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json { line, column } => write!(
                f,
                "the body is no JSON, or a name stands twice in it: line {line}, column {column}"
            ),
            Self::Other(pointer, found) => {
                write!(f, "`{pointer}` is {found}, and not a string or an integer")
            }
        }
    }
}

impl std::error::Error for Unclear {}

impl Unclear {
    /// Whether there is a value, which is another one.
    pub(super) fn is_of_value(&self) -> bool {
        matches!(self, Self::Other(..))
    }
}

/// Only where it is: its text may quote the document.
impl From<serde_json::Error> for Unclear {
    fn from(error: serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        Self::Json { line, column }
    }
}

/// As it is written.
impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|name| {
            let name = name.replace('~', "~0").replace('/', "~1");
            write!(f, "/{name}")
        })
    }
}

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

    /// Its names, without escapes.
    pub(super) fn names(&self) -> &[String] {
        &self.0
    }

    /// The texts at this pointer in the elements of the array at `array`, each once. `None` if there is no array, and an
    /// error if an element has no text there, or there are more than `most` texts.
    pub(super) fn find_each(
        &self,
        array: &Self,
        json: &[u8],
        most: usize,
    ) -> Result<Option<Vec<String>>, Unclear> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let (names, each) = (&array.0[..], Each { at: &self.0, most });
        let found = Within { names, each }.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(found)
    }

    /// Puts a value there. `None` if that leads through a text.
    pub(super) fn put(&self, document: &mut Value, value: Value) -> Option<()> {
        put(&self.0, document, value)
    }

    /// What is left of it after its first names. At least one is left.
    pub(super) fn without(&self, first: usize) -> Self {
        Self(self.0[first.min(self.0.len() - 1)..].to_vec())
    }

    pub(super) fn find<'a>(&self, json: &'a [u8]) -> Result<Found<'a>, Unclear> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let found = At(&self.0).deserialize(&mut deserializer)?;
        // Text after the document could be read differently by another parser.
        deserializer.end()?;
        Ok(found)
    }
}

/// Where a field of a description finds its value: at the first of these pointers where a string or an integer stands.
#[derive(Clone, Debug)]
pub(crate) struct Pointers {
    field: &'static str,
    list: Vec<Pointer>,
    misses: Misses,
}

/// Whether a delivery had what a field of a description points to. Clones count together.
#[derive(Clone, Debug, Default)]
pub(super) struct Misses(
    /// The number of deliveries that had nothing, until one had, or [`DONE`].
    Arc<AtomicU8>,
);

/// After so many deliveries without a value, a warning says so.
const MOST_MISSES: u8 = 100;

/// A value was found once, or the warning was written.
const DONE: u8 = u8::MAX;

impl Misses {
    /// Whether there is nothing to note any more.
    pub(super) fn is_done(&self) -> bool {
        self.0.load(Ordering::Relaxed) == DONE
    }

    pub(super) fn found(&self) {
        self.0.store(DONE, Ordering::Relaxed);
    }

    /// Notes that a delivery had nothing. If none of the first 100 had anything, a warning says so: `to` is what should stand
    /// there, and `last` what does.
    pub(super) fn missed<T: fmt::Display>(&self, field: &str, to: &str, at: &[T], last: &str) {
        let next = |misses| match misses {
            DONE => None,
            _ if misses + 1 >= MOST_MISSES => Some(DONE),
            _ => Some(misses + 1),
        };
        let before = (self.0).fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        if before == Ok(MOST_MISSES - 1) {
            let pointers: Vec<_> = at.iter().map(ToString::to_string).collect();
            tracing::warn!(
                field,
                pointers = pointers.join(", "),
                last,
                "the description of the sender points to {to} that none of the first 100 deliveries had: correct the \
                 pointer, or leave the field out"
            );
        }
    }
}

/// As "`/type`, else `/kind`".
impl fmt::Display for Pointers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = self.list.iter();
        list.next().map_or(Ok(()), |first| write!(f, "`{first}`"))?;
        list.try_for_each(|other| write!(f, ", else `{other}`"))
    }
}

/// Whether both find the same.
impl PartialEq for Pointers {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Pointers {
    pub(super) fn new(field: &'static str, list: Vec<Pointer>) -> Self {
        Self {
            field,
            list,
            misses: Misses::default(),
        }
    }

    /// Puts a value where the first of the pointers points to. `None` if that leads through a text.
    pub(super) fn put(&self, document: &mut Value, value: Value) -> Option<()> {
        let names = self.list.first().map_or(&[][..], |it| &it.0);
        put(names, document, value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the value, if there is one. An error if the document is unclear.
    pub(crate) fn find<'a>(&self, json: &'a [u8]) -> Result<Option<Cow<'a, str>>, Unclear> {
        self.first(|_, pointer| pointer.find(json))
    }

    /// As [`find`](Self::find), with what `find` returns for each.
    fn first<'a>(
        &self,
        mut find: impl FnMut(usize, &Pointer) -> Result<Found<'a>, Unclear>,
    ) -> Result<Option<Cow<'a, str>>, Unclear> {
        let mut other = None;
        for (index, pointer) in self.list.iter().enumerate() {
            match find(index, pointer)? {
                Found::Text(text) => return Ok(Some(text)),
                Found::Number(number) => return Ok(Some(number.into())),
                Found::Other(found) => other = other.or(Some((pointer, found))),
                Found::Nothing => {}
            }
        }
        match other {
            Some((pointer, found)) => Err(Unclear::Other(pointer.clone(), found)),
            None => Ok(None),
        }
    }

    /// Returns the integer at the first of the pointers where anything stands, if it is one and no string.
    pub(crate) fn find_number(&self, json: &[u8]) -> Option<String> {
        let mut found = self.list.iter().map(|pointer| pointer.find(json));
        match found.find(|it| !matches!(it, Ok(Found::Nothing)))?.ok()? {
            Found::Number(number) => Some(number),
            _ => None,
        }
    }

    /// As [`find`](Self::find), in a verified delivery: if the first 100 have no value, a warning says so, once.
    pub(crate) fn find_in_delivery<'a>(
        &self,
        body: &'a [u8],
    ) -> Result<Option<Cow<'a, str>>, Unclear> {
        self.first_in_delivery(|_, pointer| pointer.find(body))
    }

    /// As [`find_in_delivery`](Self::find_in_delivery), with what `find` returns for each.
    pub(super) fn first_in_delivery<'a>(
        &self,
        find: impl FnMut(usize, &Pointer) -> Result<Found<'a>, Unclear>,
    ) -> Result<Option<Cow<'a, str>>, Unclear> {
        let found = self.first(find);
        if !self.is_empty() && !self.misses.is_done() {
            self.note(&found);
        }
        found
    }

    #[cold]
    fn note(&self, found: &Result<Option<Cow<'_, str>>, Unclear>) {
        let last = match found {
            Ok(Some(_)) => return self.misses.found(),
            Ok(None) => "nothing stands there".to_owned(),
            Err(unclear) => unclear.to_string(),
        };
        let to = "a string or an integer";
        self.misses.missed(self.field, to, &self.list, &last);
    }
}

fn put(names: &[String], document: &mut Value, value: Value) -> Option<()> {
    let mut place = document;
    for name in names {
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        place = place
            .as_object_mut()?
            .entry(name.as_str())
            .or_insert(Value::Null);
    }
    // A value that is there already is that of another field, which may stand at the same place.
    match place {
        Value::Object(_) => return None,
        Value::Null => *place = value,
        _ => {}
    }
    Some(())
}

/// A value at the end of these names.
struct At<'a>(&'a [String]);

impl At<'_> {
    /// A value that has no names in it.
    fn scalar<'de>(&self, found: Found<'de>) -> Found<'de> {
        match self.0 {
            [] => found,
            _ => Found::Nothing,
        }
    }
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Found<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Found::Nothing)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(self.scalar(Found::Other("a boolean")))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(self.scalar(Found::Number(number.to_string())))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(self.scalar(Found::Number(number.to_string())))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        // 1.0, 1e0 and 1 could become different keys of one number.
        Ok(self.scalar(Found::Other("no integer of 64 bits")))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(self.scalar(Found::Text(text.into())))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(match self.0 {
            [] => Found::Text(text.to_owned().into()),
            _ => Found::Nothing,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let Some((name, rest)) = self.0.split_first() else {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Found::Other("an array"));
        };
        let (index, mut found) = (index(name), Found::Nothing);
        for at in 0_usize.. {
            if index != Some(at) {
                // It is skipped in a loop, so 100,000 brackets do not overflow the stack.
                if seq.next_element::<IgnoredAny>()?.is_none() {
                    break;
                }
            } else if let Some(it) = seq.next_element_seed(At(rest))? {
                found = it;
            } else {
                break;
            }
        }
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((name, rest)) = self.0.split_first() else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Found::Other("an object"));
        };
        let mut found = None;
        while let Some(is_it) = map.next_key_seed(Named(name))? {
            match is_it {
                false => {
                    map.next_value::<IgnoredAny>()?;
                }
                // Parsers disagree on which of two counts: the handler's could read another key than this one.
                true if found.is_some() => {
                    return Err(Error::custom(format!("`{name}` stands twice")));
                }
                true => found = Some(map.next_value_seed(At(rest))?),
            }
        }
        Ok(found.unwrap_or(Found::Nothing))
    }
}

/// The texts of an array's elements, each once. One that has none is an error.
#[derive(Clone, Copy)]
struct Each<'a> {
    at: &'a [String],
    most: usize,
}

/// An array at the end of these names, all of them in objects.
struct Within<'a> {
    names: &'a [String],
    each: Each<'a>,
}

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = Option<Vec<String>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self.names {
            [] => deserializer.deserialize_seq(self),
            _ => deserializer.deserialize_map(self),
        }
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = Option<Vec<String>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.names.is_empty() {
            "an array"
        } else {
            "an object"
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut texts: Vec<String> = Vec::new();
        while let Some(found) = seq.next_element_seed(At(self.each.at))? {
            let Found::Text(text) = found else {
                return Err(Error::custom("an element has no text there"));
            };
            if !texts.iter().any(|it| **it == *text) {
                texts.push(text.into_owned());
            }
            if texts.len() > self.each.most {
                return Err(Error::custom("the elements have too many texts there"));
            }
        }
        Ok(Some(texts))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((name, names)) = self.names.split_first() else {
            return Err(Error::custom("there is an object"));
        };
        let mut found = None;
        while let Some(is_it) = map.next_key_seed(Named(name))? {
            match is_it {
                false => {
                    map.next_value::<IgnoredAny>()?;
                }
                true if found.is_some() => {
                    return Err(Error::custom(format!("`{name}` stands twice")));
                }
                true => {
                    let each = self.each;
                    found = Some(map.next_value_seed(Within { names, each })?);
                }
            }
        }
        Ok(found.flatten())
    }
}

/// The index of an element. `None` for `-`, which is after the last one, and for digits after a zero (RFC 6901, section 4).
pub(super) fn index(name: &str) -> Option<usize> {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    let is_index = is_number && (name == "0" || !name.starts_with('0'));
    name.parse().ok().filter(|_| is_index)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pointer: &str, json: &str) -> Result<Option<String>, String> {
        let pointers = Pointers::new("key", vec![Pointer::parse(pointer).unwrap()]);
        let found = pointers.find(json.as_bytes());
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.map(Cow::into_owned))
    }

    #[test]
    fn strings_and_integers_are_found() {
        let json = r#"{"a":[{"id":1}],"id":"x","b":{"id":-7,"c/d":{"":"ü"}},"\u006e":1e3}"#;
        assert_eq!(find("/id", json), Ok(Some("x".to_owned())));
        assert_eq!(find("/b/id", json), Ok(Some("-7".to_owned())));
        assert_eq!(find("/b/c~1d/", json), Ok(Some("ü".to_owned())));
        assert_eq!(find("/none", json), Ok(None));
        assert_eq!(find("/b/none", json), Ok(None));
        assert_eq!(find("/a/0/id", json), Ok(Some("1".to_owned())));
        for (wrong, found) in [
            ("/n", "`/n` is no integer"),
            ("/a", "`/a` is an array"),
            ("/a/0", "`/a/0` is an object"),
            ("/b", "`/b` is an object"),
            ("/b/c~1d", "`/b/c~1d` is an object"),
        ] {
            let error = find(wrong, json).unwrap_err();
            assert!(error.starts_with(found), "{error}");
        }
    }

    /// RFC 6901, section 5, for what is a string or an integer.
    #[test]
    fn pointers_are_those_of_rfc_6901() {
        let json = r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}"#;
        for (pointer, found) in [
            ("/foo/0", Some("bar")),
            ("/foo/1", Some("baz")),
            ("/", Some("0")),
            ("/a~1b", Some("1")),
            ("/c%d", Some("2")),
            ("/e^f", Some("3")),
            ("/g|h", Some("4")),
            ("/i\\j", Some("5")),
            ("/k\"l", Some("6")),
            ("/ ", Some("7")),
            ("/m~0n", Some("8")),
            ("/foo/2", None),
            ("/foo/-", None),
            ("/foo/01", None),
            ("/foo/+1", None),
            ("/foo/", None),
            ("/foo/18446744073709551616", None),
        ] {
            assert_eq!(
                find(pointer, json),
                Ok(found.map(str::to_owned)),
                "{pointer}"
            );
            let again = Pointer::parse(pointer).unwrap().to_string();
            assert_eq!(again, pointer);
        }
        let json = r#"[{"id":[[],["x"]]},7]"#;
        assert_eq!(find("/0/id/1/0", json), Ok(Some("x".to_owned())));
        assert_eq!(find("/1", json), Ok(Some("7".to_owned())));
        assert_eq!(find("/00", json), Ok(None));
        assert_eq!(find("/id", json), Ok(None));
        // A number is a name in an object.
        assert_eq!(find("/0/-", r#"{"0":{"-":1}}"#), Ok(Some("1".to_owned())));
    }

    #[test]
    fn a_step_that_leads_nowhere_leads_to_the_next_pointer() {
        let pointers = ["/a/id", "/b/0/id", "/c"].map(|it| Pointer::parse(it).unwrap());
        let pointers = Pointers::new("order", pointers.into());
        for json in [
            r#"{"c":"x"}"#,
            r#"{"a":null,"b":null,"c":"x"}"#,
            r#"{"a":{"id":null},"b":[],"c":"x"}"#,
            r#"{"a":"id","b":[null],"c":"x"}"#,
            r#"{"a":["id"],"b":{"0":{}},"c":"x"}"#,
            r#"{"a":true,"b":1.5,"c":"x"}"#,
            r#"{"a":{"id":{"id":"y"}},"b":[{"id":[]}],"c":"x"}"#,
            r#"{"b":[{"id":"x"}],"c":"y"}"#,
            r#"{"a":{"id":"x"},"b":[{"id":"y"}],"c":"z"}"#,
        ] {
            let found = pointers.find(json.as_bytes()).unwrap();
            assert_eq!(found.as_deref(), Some("x"), "{json}");
        }
        let found = pointers.find(br#"{"a":{"id":{}},"c":null}"#);
        assert!(matches!(found, Err(Unclear::Other(..))), "{found:?}");
        for json in ["7", "null", "[]", "{}", r#""c""#] {
            assert!(pointers.find(json.as_bytes()).unwrap().is_none(), "{json}");
        }
    }

    /// What is read of a body is borrowed, however much stands around it.
    #[test]
    fn one_field_costs_what_it_is() {
        let half = 1 << 19;
        let long = "x".repeat(2 * half);
        for body in [
            format!(
                r#"{{"a":{}{},"id":"x"}}"#,
                "[".repeat(half),
                "]".repeat(half)
            ),
            format!(r#"{{"{long}":1,"id":"x"}}"#),
            format!(r#"{{"a":"{}","id":"x"}}"#, r"\u00eb".repeat(half / 3)),
            format!(r#"{{"a":[1{}],"id":"x"}}"#, ",1".repeat(500_000)),
        ] {
            let pointers = Pointers::new("key", vec![Pointer::parse("/id").unwrap()]);
            let found = pointers.find(body.as_bytes()).unwrap();
            assert!(matches!(found, Some(Cow::Borrowed("x"))));
        }
    }

    #[test]
    fn what_could_mean_two_things_is_refused() {
        for json in [
            r#"{"id":"a","id":"a"}"#,
            r#"{"id":"a","\u0069d":"b"}"#,
            r#"{"id":true}"#,
            r#"{"id":1.0}"#,
            r#"{"id":18446744073709551616}"#,
            r#"{"id":["a"]}"#,
            r#"{"id":"a"} x"#,
            r#"{"id":"a""#,
            "\u{feff}{\"id\":\"a\"}",
            "",
        ] {
            assert!(find("/id", json).is_err(), "{json}");
        }
        let pointer = Pointer::parse("/id").unwrap();
        assert!(pointer.find(b"{\"id\":\"\xff\"}").is_err());
        // Null counts as absent.
        assert_eq!(find("/id", r#"{"id":null}"#), Ok(None));
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
