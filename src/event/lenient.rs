//! Decoding that refuses no delivery for a detail.
//!
//! Each refused delivery counts towards the 500 that disable a webhook (Spec 6), so a field of an
//! unexpected shape reads as omitted and a warning names it, by its path and never by its value.
//! `null` is another way to omit a field, unknown fields are skipped, and of equal keys the last
//! one counts. Values are decoded while they are read; nothing is buffered.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Declares structs that decode leniently and encode without their omitted fields.
///
/// A field is written `name: Type = "nameOnTheWire"`, and its type is a [`Field`].
macro_rules! payload {
    ($(
        $(#[$meta:meta])*
        pub struct $Payload:ident {
            $($(#[$field_meta:meta])* pub $field:ident: $Type:ty = $name:literal,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
        pub struct $Payload {
            $(
                $(#[$field_meta])*
                #[serde(rename = $name, skip_serializing_if = "lenient::is_omitted")]
                pub $field: $Type,
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
                #[allow(non_camel_case_types)]
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

/// The type of a payload's field: its default says that the field is omitted.
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

/// What a present field is decoded from. A method answers `None` when the value it was given is
/// of another shape, and it must read that value to its end all the same.
pub(super) trait Shape: Sized {
    /// The shape in the words of a warning.
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
        Ok(number
            .filter(|number: &f64| number.is_finite())
            .and_then(|number| Self::from_scalar(Scalar::Float(number))))
    }
}

/// With serde_json's feature `arbitrary_precision`, which any crate of a program can turn on for
/// all, a fraction arrives as an object of this one entry.
#[derive(serde::Deserialize)]
#[serde(field_identifier)]
enum NumberKey {
    #[serde(rename = "$serde_json::private::Number")]
    Number,
    #[serde(other)]
    Other,
}

/// A JSON value that is neither null, an array nor an object.
pub(super) enum Scalar<'a> {
    Bool(bool),
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

/// Drops the elements that are no strings.
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

/// Drops the entries whose value is no string.
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
                None => strings.remove(&key),
            };
        }
        warn_of_dropped(path, &dropped);
        Ok(Some(strings))
    }
}

/// One warning for a whole collection, however much of it was dropped.
fn warn_of_dropped(path: &Path<'_>, dropped: &Cell<usize>) {
    if dropped.get() > 0 {
        tracing::warn!(
            field = %path,
            expected = String::EXPECTED,
            dropped = dropped.get(),
            "parts of a field that are of an unexpected shape were dropped"
        );
    }
}

/// Where a field stands in its payload, as in `user.locale`.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'static str),
    /// A part of a collection, which counts those that are dropped.
    Part(&'a Cell<usize>),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root | Path::Part(_) => Ok(()),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
        }
    }
}

/// Decodes a whole payload. Only a JSON object is one.
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
        Ok(T::from_map(&mut map, &Path::Root)?.unwrap_or_default())
    }
}

/// Decodes the value of a field whose key was just read.
pub(super) fn read<'de, F: Field, A: MapAccess<'de>>(
    map: &mut A,
    path: Path<'_>,
) -> Result<F, A::Error> {
    let value = map.next_value_seed(Reader::new(path))?;
    Ok(value.map_or_else(F::default, F::from))
}

/// Reads any JSON value, as `None` when it is null or not of the shape `T`.
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
        } else {
            tracing::warn!(
                field = %self.path,
                expected = T::EXPECTED,
                found,
                "a field of an unexpected shape reads as omitted"
            );
        }
    }
}

impl<'de, T: Shape> DeserializeSeed<'de> for Reader<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Option<T>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Shape> Visitor<'de> for Reader<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

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
