//! Lenient decoding: no detail of a payload makes a delivery fail.
//!
//! Each failed delivery counts towards the 500 that disable a webhook (Spec 6, rule 4), so a field of
//! an unexpected shape is read as omitted and logged as a warning, with its path and without its
//! value, up to 16 times in a payload. A `null` is read as omitted too, unknown fields are skipped, and of repeated keys
//! the last one wins. Values are decoded while they are read; nothing is buffered.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Declares structs that decode leniently and are encoded without their omitted fields.
///
/// A field is written `name: Type = "nameOnTheWire"`, and its type is a [`Field`].
//
// serde's derive cannot do this: it refuses repeated keys, and the `deserialize_with` of a field does
// not know the path that the warning shows.
macro_rules! payload {
    ($(
        $(#[$meta:meta])*
        pub struct $Payload:ident {
            $($(#[$field_meta:meta])* pub $field:ident: $Type:ty = $name:literal,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
        #[non_exhaustive]
        pub struct $Payload {
            $(
                $(#[$field_meta])*
                #[serde(rename = $name, skip_serializing_if = "lenient::is_omitted")]
                pub $field: $Type,
            )*
        }

        /// Setters, for events of your own in tests.
        impl $Payload {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, value: impl Into<$Type>) -> Self {
                    self.$field = value.into();
                    self
                }
            )*
        }

        impl lenient::Shape for $Payload {
            const EXPECTED: &'static str = "object";

            fn from_map<'de, A: serde::de::MapAccess<'de>>(
                map: &mut A,
                path: &lenient::Path<'_>,
            ) -> Result<Option<Self>, A::Error> {
                #[derive(serde::Deserialize)]
                #[serde(field_identifier)]
                #[allow(non_camel_case_types, reason = "variants are named as fields")]
                enum Key {
                    $(#[serde(rename = $name)] $field,)*
                    #[serde(other)]
                    Unknown,
                }

                let mut payload = Self::default();
                while let Some(key) = map.next_key()? {
                    match key {
                        $(Key::$field => {
                            payload.$field = lenient::read(map, lenient::Path::Field(path, $name))?;
                        })*
                        // The platform may add fields at any time (Spec 9 shows no versions).
                        Key::Unknown => {
                            map.next_value::<serde::de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(Some(payload))
            }
        }

        impl<'de> serde::Deserialize<'de> for $Payload {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                lenient::deserialize(from)
            }
        }
    )*};
}

pub(super) use payload;

/// The type of a payload's field. Its default value means that the field is omitted.
pub(super) trait Field: Default + From<Self::Shape> {
    type Shape: Shape;
}

impl<T: Shape> Field for Option<T> {
    type Shape = T;
}

impl Field for Vec<String> {
    type Shape = Self;
}

impl Field for BTreeMap<String, String> {
    type Shape = Self;
}

pub(super) fn is_omitted<T: Default + PartialEq>(field: &T) -> bool {
    *field == T::default()
}

/// A type that a present field is decoded into.
///
/// Each method returns `None` if the value has another shape. It must read the value to its end even
/// then: the parser is in the middle of the document, and the next field would start at the wrong place.
pub(super) trait Shape: Sized {
    /// The name of the shape in a warning.
    const EXPECTED: &'static str;

    #[inline]
    fn from_scalar(_: Scalar<'_>) -> Option<Self> {
        None
    }

    fn from_seq<'de, A: SeqAccess<'de>>(
        seq: &mut A,
        _: &Path<'_>,
    ) -> Result<Option<Self>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn from_map<'de, A: MapAccess<'de>>(
        map: &mut A,
        path: &Path<'_>,
    ) -> Result<Option<Self>, A::Error> {
        // An object is not of this shape, unless it is serde_json's spelling of a number: see
        // `NumberKey`.
        let mut number: Option<String> = None;
        while let Some(key) = map.next_key()? {
            match key {
                NumberKey::Number => number = read(map, *path)?,
                NumberKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let number = number.and_then(|number| number.parse().ok());
        // `1e999` parses as infinity, which JSON cannot encode again.
        Ok(number
            .filter(|number: &f64| number.is_finite())
            .and_then(|number| Self::from_scalar(Scalar::Float(number))))
    }
}

/// The key of a fraction that `serde_json` passes as an object with one entry.
///
/// It does so with its feature `arbitrary_precision`, which any crate of a program can enable for all
/// of them. Without this key, every rating of 0.5 would then be read as omitted.
#[derive(serde::Deserialize)]
#[serde(field_identifier)]
enum NumberKey {
    #[serde(rename = "$serde_json::private::Number")]
    Number,
    #[serde(other)]
    Other,
}

/// A JSON boolean, number or string.
pub(super) enum Scalar<'a> {
    Bool(bool),
    /// Wide enough for both `i64` and `u64`.
    Integer(i128),
    Float(f64),
    Text(Cow<'a, str>),
}

impl Shape for String {
    const EXPECTED: &'static str = "string";

    #[inline]
    fn from_scalar(scalar: Scalar<'_>) -> Option<Self> {
        match scalar {
            Scalar::Text(text) => Some(text.into_owned()),
            _ => None,
        }
    }
}

impl Shape for bool {
    const EXPECTED: &'static str = "boolean";

    #[inline]
    fn from_scalar(scalar: Scalar<'_>) -> Option<Self> {
        match scalar {
            Scalar::Bool(value) => Some(value),
            _ => None,
        }
    }
}

impl Shape for f64 {
    const EXPECTED: &'static str = "number";

    #[inline]
    fn from_scalar(scalar: Scalar<'_>) -> Option<Self> {
        match scalar {
            Scalar::Integer(number) => Some(number as f64),
            Scalar::Float(number) => Some(number),
            _ => None,
        }
    }
}

/// Drops the elements that are not strings.
impl Shape for Vec<String> {
    const EXPECTED: &'static str = "array";

    fn from_seq<'de, A: SeqAccess<'de>>(
        seq: &mut A,
        path: &Path<'_>,
    ) -> Result<Option<Self>, A::Error> {
        let dropped = Cell::new(0);
        let mut strings = Self::new();
        while let Some(element) = seq.next_element_seed(Reader::new(Path::Part(&dropped)))? {
            strings.extend::<Option<String>>(element);
        }
        warn_of_dropped(path, &dropped);
        Ok(Some(strings))
    }
}

/// Drops the entries whose value is not a string.
impl Shape for BTreeMap<String, String> {
    const EXPECTED: &'static str = "object";

    fn from_map<'de, A: MapAccess<'de>>(
        map: &mut A,
        path: &Path<'_>,
    ) -> Result<Option<Self>, A::Error> {
        let dropped = Cell::new(0);
        let mut strings = Self::new();
        while let Some(key) = map.next_key()? {
            match read(map, Path::Part(&dropped))? {
                Some(value) => strings.insert(key, value),
                // The last of repeated keys wins, even if its value is dropped.
                None => strings.remove(&key),
            };
        }
        warn_of_dropped(path, &dropped);
        Ok(Some(strings))
    }
}

/// Logs one warning for a whole collection, so that a sender cannot flood the log with a long array.
fn warn_of_dropped(path: &Path<'_>, dropped: &Cell<usize>) {
    if dropped.get() > 0 && path.may_warn() {
        tracing::warn!(
            field = %path,
            expected = String::EXPECTED,
            dropped = dropped.get(),
            "parts of a field have an unexpected shape and were dropped"
        );
    }
}

/// The most warnings of one payload: a field may stand in it 80,000 times.
const MOST_WARNINGS: u8 = 16;

/// The path of a field in its payload, such as `user.locale`.
///
/// It is a linked list on the stack: only a warning needs the text, and most payloads cause none.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    /// The payload, and how many warnings are left.
    Root(&'a Cell<u8>),
    Field(&'a Path<'a>, &'static str),
    /// An element or entry of a collection, and how many were dropped from it.
    Part(&'a Cell<usize>),
}

impl Path<'_> {
    /// Whether a warning of this field is written.
    fn may_warn(&self) -> bool {
        match self {
            Path::Field(parent, _) => parent.may_warn(),
            Path::Part(_) => false,
            Path::Root(left) => {
                let next = left.get().checked_sub(1);
                left.set(next.unwrap_or_default());
                next.is_some()
            }
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root(_) | Path::Part(_) => Ok(()),
            Path::Field(Path::Root(_), name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
        }
    }
}

/// Decodes a whole payload, which must be a JSON object.
pub(super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Shape + Default,
    D: Deserializer<'de>,
{
    from.deserialize_map(Root(PhantomData))
}

struct Root<T>(PhantomData<T>);

impl<'de, T: Shape + Default> Visitor<'de> for Root<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let warnings = Cell::new(MOST_WARNINGS);
        Ok(T::from_map(&mut map, &Path::Root(&warnings))?.unwrap_or_default())
    }
}

/// Decodes the value of the field whose key was read last.
pub(super) fn read<'de, F: Field, A: MapAccess<'de>>(
    map: &mut A,
    path: Path<'_>,
) -> Result<F, A::Error> {
    let value = map.next_value_seed(Reader::new(path))?;
    Ok(value.map_or_else(F::default, F::from))
}

/// Reads any JSON value; the result is `None` if it is null or does not have the shape `T`.
struct Reader<'a, T> {
    path: Path<'a>,
    shape: PhantomData<T>,
}

impl<'a, T: Shape> Reader<'a, T> {
    fn new(path: Path<'a>) -> Self {
        Self {
            path,
            shape: PhantomData,
        }
    }

    #[inline]
    fn scalar(&self, scalar: Scalar<'_>, found: &str) -> Option<T> {
        self.warn_if_none(T::from_scalar(scalar), found)
    }

    #[inline]
    fn warn_if_none(&self, value: Option<T>, found: &str) -> Option<T> {
        if value.is_none() {
            self.warn(found);
        }
        value
    }

    #[cold]
    fn warn(&self, found: &str) {
        if let Path::Part(dropped) = self.path {
            dropped.set(dropped.get() + 1);
        } else if self.path.may_warn() {
            tracing::warn!(
                field = %self.path,
                expected = T::EXPECTED,
                found,
                "a field has an unexpected shape and is read as omitted"
            );
        }
    }
}

impl<'de, T: Shape> DeserializeSeed<'de> for Reader<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Option<T>, D::Error> {
        // A typed `deserialize_*` fails on another type, and serde_json cannot resume after an error.
        from.deserialize_any(self)
    }
}

impl<'de, T: Shape> Visitor<'de> for Reader<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    /// `null`: omitted, and not worth a warning.
    fn visit_unit<E: Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<T>, E> {
        Ok(self.scalar(Scalar::Bool(value), "boolean"))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Option<T>, E> {
        Ok(self.scalar(Scalar::Integer(number.into()), "number"))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Option<T>, E> {
        Ok(self.scalar(Scalar::Integer(number.into()), "number"))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Option<T>, E> {
        Ok(self.scalar(Scalar::Float(number), "number"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<T>, E> {
        Ok(self.scalar(Scalar::Text(text.into()), "string"))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Option<T>, E> {
        Ok(self.scalar(Scalar::Text(text.into()), "string"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<T>, A::Error> {
        let value = T::from_seq(&mut seq, &self.path)?;
        Ok(self.warn_if_none(value, "array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<T>, A::Error> {
        let value = T::from_map(&mut map, &self.path)?;
        Ok(self.warn_if_none(value, "object"))
    }
}
