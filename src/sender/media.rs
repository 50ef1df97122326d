//! The forms of bodies other than JSON: a form becomes an object that pointers reach, and its signed bytes stay.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::query::decode;

/// A content type that is accepted.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) enum Media {
    #[serde(rename = "application/json")]
    Json,
    /// Such as `application/cloudevents+json`.
    #[serde(rename = "application/*+json")]
    AnyJson,
    /// A body that begins with `{` or `[` is nevertheless JSON, and any other a form.
    #[serde(rename = "application/x-www-form-urlencoded")]
    Form,
    /// JSON that is called text.
    #[serde(rename = "text/plain")]
    Text,
}

/// The most fields of a form.
const MOST_FIELDS: usize = 1000;

/// The reason why a body is no form. It quotes nothing of the body.
#[derive(Debug)]
pub(crate) struct NoForm(&'static str);

impl fmt::Display for NoForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NoForm {}

impl Media {
    /// `None` for JSON alone.
    pub(super) fn read(list: &[Self]) -> Result<Option<Box<[Self]>>, String> {
        let twice = |index: usize| list[..index].contains(&list[index]);
        if (0..list.len()).any(twice) {
            return Err("content-types: one of them stands twice".to_owned());
        }
        Ok(match list {
            [] | [Self::Json] => None,
            list => Some(list.into()),
        })
    }

    /// Whether it is this type, without its parameters.
    pub(crate) fn is(self, essence: &[u8]) -> bool {
        match self {
            Self::Json => essence.eq_ignore_ascii_case(b"application/json"),
            Self::Text => essence.eq_ignore_ascii_case(b"text/plain"),
            Self::Form => essence.eq_ignore_ascii_case(b"application/x-www-form-urlencoded"),
            Self::AnyJson => {
                let essence = essence.to_ascii_lowercase();
                let name = essence.strip_prefix(b"application/");
                let name = name.and_then(|it| it.strip_suffix(b"+json"));
                name.is_some_and(|it| !it.is_empty())
            }
        }
    }
}

/// The content type of a delivery that is made here: JSON, if that is accepted.
pub(super) fn written(types: Option<&[Media]>) -> &'static str {
    match types {
        None => "application/json",
        Some(types) if types.contains(&Media::Json) => "application/json",
        Some([Media::Form, ..]) => "application/x-www-form-urlencoded",
        Some([Media::Text, ..]) => "text/plain",
        Some(_) => "application/cloudevents+json",
    }
}

/// A body as JSON, in which pointers find their values.
pub(super) fn readable<'a>(
    types: Option<&[Media]>,
    body: &'a [u8],
) -> Result<Cow<'a, [u8]>, NoForm> {
    let is_form = types.is_some_and(|it| it.contains(&Media::Form));
    match body.trim_ascii_start() {
        [b'{' | b'[', ..] => Ok(body.into()),
        _ if is_form => Ok(object(body)?.into()),
        _ => Ok(body.into()),
    }
}

/// The object of a form's fields. A field that holds a JSON object or array is that, as Slack's `payload`. One that stands
/// twice stands twice in it, too, and is refused if a pointer needs it.
fn object(form: &[u8]) -> Result<Vec<u8>, NoForm> {
    let form = std::str::from_utf8(form).map_err(|_| NoForm("the form is no UTF-8"))?;
    let mut json = Vec::with_capacity(form.len() + 16);
    json.push(b'{');
    let fields = form.split('&').filter(|it| !it.is_empty());
    for (index, field) in fields.enumerate() {
        if index == MOST_FIELDS {
            return Err(NoForm("the form has more than 1,000 fields"));
        }
        if index > 0 {
            json.push(b',');
        }
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        let text = |text| {
            let bytes = decode(text).ok_or(NoForm("the percent-encoding of a form is broken"))?;
            String::from_utf8(bytes).map_err(|_| NoForm("a field of the form is no UTF-8"))
        };
        let (name, value) = (text(name)?, text(value)?);
        write(&mut json, &name)?;
        json.push(b':');
        let is_nested = value.starts_with(['{', '[']);
        match is_nested && serde_json::from_str::<IgnoredAny>(&value).is_ok() {
            true => json.extend_from_slice(value.as_bytes()),
            false => write(&mut json, &value)?,
        }
    }
    json.push(b'}');
    Ok(json)
}

fn write(json: &mut Vec<u8>, text: &str) -> Result<(), NoForm> {
    serde_json::to_writer(json, text).map_err(|_| NoForm("a field of the form cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: &[u8]) -> Result<String, String> {
        let types = [Media::Form];
        let json = readable(Some(&types), form).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(json.into_owned()).unwrap())
    }

    #[test]
    fn a_form_is_an_object_of_its_fields() {
        for (form, json) in [
            (&b"a=1&b=x+y%2B"[..], r#"{"a":"1","b":"x y+"}"#),
            (b"", "{}"),
            (b"a", r#"{"a":""}"#),
            (b"&&a=&=1&", r#"{"a":"","":"1"}"#),
            // A pointer to it refuses the second.
            (b"a=1&%61=2", r#"{"a":"1","a":"2"}"#),
            (b"a=%00", r#"{"a":"\u0000"}"#),
            (b"a=%22%5C", r#"{"a":"\"\\"}"#),
            (
                b"payload=%7B%22type%22%3A%22x%22%7D",
                r#"{"payload":{"type":"x"}}"#,
            ),
            (b"text=%7Bno+JSON", r#"{"text":"{no JSON"}"#),
            (b"a=1=2", r#"{"a":"1=2"}"#),
            (br#"{"a":1}"#, r#"{"a":1}"#),
            (b" [1]", " [1]"),
        ] {
            assert_eq!(read(form).as_deref(), Ok(json));
        }
        let most: Vec<_> = (0..1000).map(|number| format!("f{number}=1")).collect();
        assert!(read(most.join("&").as_bytes()).is_ok());
    }

    #[test]
    fn what_is_no_form_is_refused() {
        let many = "a=1&".repeat(5_000);
        for (form, reason) in [
            (&b"a=%"[..], "percent-encoding"),
            (b"a=%1", "percent-encoding"),
            (b"a=%zz", "percent-encoding"),
            (b"%=1", "percent-encoding"),
            (b"a=%ff", "no UTF-8"),
            (b"a=\xff", "no UTF-8"),
            (many.as_bytes(), "more than 1,000 fields"),
        ] {
            let error = read(form).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
