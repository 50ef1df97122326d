//! The fields of a description that say where something stands.

use http::uri::Scheme as UriScheme;
use http::{HeaderName, Uri};
use serde::Deserialize;

use super::pointer::{Pointer, Pointers};
use super::rare::Elsewhere;
use super::scheme::Place;

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "use a header, a JSON pointer, or `{ join = [...] }` with several of them"
)]
pub(super) enum KeyField {
    One(String),
    Joined(Joined),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Joined {
    pub(super) join: Vec<String>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "use a header, a JSON pointer, or a list of JSON pointers"
)]
pub(super) enum First {
    One(String),
    Several(Vec<String>),
}

/// The most headers that a tag may stand in, such as the keys of `DocuSign`.
pub(super) const MOST_HEADERS: usize = 100;

/// A place of a token in the body, or one in each element of an array: `/value/*/token`.
pub(super) fn in_body(field: &'static str, text: &str) -> Result<Elsewhere, String> {
    let pointer =
        |text: &str| Pointer::parse(text).map_err(|reason| format!("{field}: {text:?} {reason}"));
    Ok(match text.split_once("/*/") {
        None => Elsewhere::Body(pointers(field, &[text])?),
        Some((_, token)) if token.split('/').any(|it| it == "*") => {
            return Err(format!("{field}: {text:?} has a second `*`"));
        }
        Some((array, token)) => Elsewhere::Each {
            array: pointer(array)?,
            token: pointer(&format!("/{token}"))?,
        },
    })
}

/// A header, or those of a range of numbers: `x-signature-{1..100}`.
pub(super) fn numbered(name: &str, family: &str) -> Result<Vec<HeaderName>, String> {
    let field = "signature.headers";
    let Some((before, rest)) = name.split_once('{') else {
        return Ok(vec![header(field, name, family)?]);
    };
    let range = rest.split_once('}').and_then(|(range, after)| {
        let (first, last) = range.split_once("..")?;
        let range = first.parse::<usize>().ok()?..=last.parse().ok()?;
        let is_short = (1..=MOST_HEADERS).contains(range.end()) && !range.is_empty();
        is_short.then_some((range, after))
    });
    let (range, after) = range.ok_or_else(|| {
        format!(
            "{field}: {name:?} has no range of numbers up to {MOST_HEADERS}, such as `{{1..8}}`"
        )
    })?;
    let names = range.map(|number| header(field, &format!("{before}{number}{after}"), family));
    names.collect()
}

/// Refuses a URL that a sender cannot have been given: each request would be refused.
pub(super) fn check_url(url: &str) -> Result<(), String> {
    let parsed = url.parse::<Uri>().ok().filter(|it| {
        let scheme = it.scheme();
        scheme == Some(&UriScheme::HTTPS) || scheme == Some(&UriScheme::HTTP)
    });
    // The parser drops a fragment.
    match parsed.is_some() && !url.contains('#') {
        true => Ok(()),
        false => Err(format!(
            "url: {url:?} is no URL as it is configured at the sender, such as `https://example.com/hooks`"
        )),
    }
}

pub(super) fn place(field: &'static str, text: &str, family: &str) -> Result<Place, String> {
    Ok(match text.starts_with('/') {
        true => Place::Body(pointers(field, &[text])?),
        false => Place::Header(header(field, text, family)?),
    })
}

pub(super) fn pointers(field: &'static str, list: &[impl AsRef<str>]) -> Result<Pointers, String> {
    let pointer =
        |text: &str| Pointer::parse(text).map_err(|reason| format!("{field}: {text:?} {reason}"));
    let list: Result<_, _> = list.iter().map(|text| pointer(text.as_ref())).collect();
    Ok(Pointers::new(field, list?))
}

pub(super) fn header(field: &str, name: &str, family: &str) -> Result<HeaderName, String> {
    if name.contains('*') && family.is_empty() {
        return Err(format!(
            "{field}: {name:?} has a `*`, so `families` are needed"
        ));
    }
    HeaderName::try_from(name.replace('*', family))
        .map_err(|_| format!("{field}: {name:?} cannot be the name of a header"))
}
