//! A challenge as it is described in a file, and what is wrong with it.

use std::collections::BTreeMap;

use http::Method;
use serde::Deserialize;

use super::challenge::{Answer, Challenge, Condition, Proof, Source};
use super::places::{header, place};
use super::scheme::Place;
use super::success::reply;
use super::tag::Coding;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ChallengeDescription {
    /// The method of an unsigned challenge: GET by default.
    method: Option<Asks>,
    /// What stands where, if it is one.
    #[serde(default)]
    when: BTreeMap<String, When>,
    #[serde(default)]
    proof: Proof,
    answer: AnswerDescription,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Asks {
    Get,
    Head,
    Options,
    /// Without a body.
    Post,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "use a text, or `true` for any")]
enum When {
    Is(String),
    Present(bool),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
enum AnswerDescription {
    Raw(String),
    Json {
        pointer: String,
        field: String,
    },
    Header {
        pointer: String,
        name: String,
    },
    Hmac {
        pointer: String,
        plain: Option<String>,
        tag: String,
        coding: Option<Coding>,
        #[serde(default)]
        prefix: String,
    },
    Constant {
        status: Option<u16>,
        body: Option<serde_json::Value>,
    },
}

/// Returns the challenges, or what is wrong with the first that is.
pub(super) fn read(
    list: &[ChallengeDescription],
    is_asymmetric: bool,
) -> Result<Vec<Challenge>, String> {
    let mut challenges: Vec<Challenge> = Vec::new();
    for (index, it) in list.iter().enumerate() {
        let read = || {
            // A receiver has only the public key, which makes no tag.
            if is_asymmetric && matches!(it.answer, AnswerDescription::Hmac { .. }) {
                return Err("challenge.answer: `hmac` needs a secret, not a public key".to_owned());
            }
            let read = challenge(it)?;
            let mut before = challenges.iter();
            match before.position(|it| it.hides(&read)) {
                Some(first) => Err(format!(
                    "challenge.when: it is never asked, since challenge[{first}] answers all that has this"
                )),
                None => Ok(read),
            }
        };
        let which = format!("challenge[{index}].");
        // Several challenges have the same fields, so the message says which one is meant.
        let read = read().map_err(|error| error.replacen("challenge.", &which, 1))?;
        challenges.push(read);
    }
    Ok(challenges)
}

fn challenge(it: &ChallengeDescription) -> Result<Challenge, String> {
    let is_signed = matches!(it.proof, Proof::Signature);
    let field = "challenge.when";
    if it.when.is_empty() && is_signed {
        return Err(format!(
            "{field}: without a condition, every delivery is a challenge"
        ));
    }
    let method = match it.method {
        Some(_) if is_signed => {
            return Err("challenge.method: a challenge that is signed is a POST".to_owned());
        }
        Some(Asks::Head) => Method::HEAD,
        Some(Asks::Options) => Method::OPTIONS,
        Some(Asks::Post) => Method::POST,
        None if is_signed => Method::POST,
        Some(Asks::Get) | None => Method::GET,
    };
    // Else it would be the answer to every POST without a signature.
    if method == Method::POST && it.when.is_empty() {
        return Err(format!(
            "{field}: without a condition, every empty POST is a challenge"
        ));
    }
    let when = it.when.iter().map(|(at, value)| {
        let source = source(field, at, is_signed)?;
        let condition = match value {
            When::Present(true) => Condition::Present,
            When::Present(false) => {
                return Err(format!("{field}: use a text, or `true` for any"));
            }
            // A header without a value counts as absent.
            When::Is(text) if text.is_empty() && source.is_header() => {
                return Err(format!(
                    "{field}: {at:?} is never empty: use `true` for any value"
                ));
            }
            When::Is(text) => Condition::Is(text.clone()),
        };
        Ok((source, condition))
    });
    let when = when.collect::<Result<_, String>>()?;
    let proof = match &it.proof {
        Proof::Token(at) => match at.strip_prefix('?') {
            // A token is in the query. A POST is proved by its signature.
            Some(name) => Proof::Token(name.to_owned()),
            None => return Err(unsigned("challenge.proof", at)),
        },
        other => other.clone(),
    };
    let answer = answer(it, &method, is_signed)?;
    Ok(Challenge {
        method,
        when,
        proof,
        answer,
    })
}

fn answer(it: &ChallengeDescription, method: &Method, is_signed: bool) -> Result<Answer, String> {
    let field = "challenge.answer";
    let source = |at: &str| source(field, at, is_signed);
    Ok(match &it.answer {
        AnswerDescription::Raw(pointer) => Answer::Raw(source(pointer)?),
        AnswerDescription::Json { pointer, field } => Answer::Json {
            source: source(pointer)?,
            field: field.clone(),
        },
        AnswerDescription::Header { pointer, name } => Answer::Header {
            source: source(pointer)?,
            name: header(field, name, "")?,
        },
        AnswerDescription::Hmac { .. } if !is_signed && *method != Method::GET => {
            return Err(format!(
                "{field}: without a signature, only a GET has an `hmac`"
            ));
        }
        AnswerDescription::Hmac {
            coding: Some(Coding::HexAnyCase),
            ..
        } => {
            return Err(format!(
                "{field}: write the `hmac` in `hex`, `base64` or `base64url`"
            ));
        }
        AnswerDescription::Hmac {
            pointer,
            plain,
            tag,
            coding,
            prefix,
        } => Answer::Hmac {
            source: source(pointer)?,
            plain: plain.clone(),
            tag: tag.clone(),
            coding: coding.unwrap_or(Coding::Hex),
            prefix: prefix.clone(),
        },
        // Nobody sends events with HEAD or OPTIONS.
        AnswerDescription::Constant { .. } if *method == Method::GET && it.when.is_empty() => {
            return Err("challenge.when: without a condition, every GET is a challenge".to_owned());
        }
        AnswerDescription::Constant { status, body } => {
            let (status, content_type, body) = reply(*status, body.as_ref(), field)?;
            Answer::Constant {
                status,
                content_type,
                body,
            }
        }
    })
}

/// Where a challenge has something: in a signed POST, or in a query parameter or a header of an unsigned request.
fn source(field: &'static str, at: &str, is_signed: bool) -> Result<Source, String> {
    match (at.strip_prefix('?'), is_signed) {
        (Some(name), false) => Ok(Source::Query(name.to_owned())),
        // A challenge has no family: a `*` in it is refused.
        (None, true) => Ok(Source::Place(place(field, at, "")?)),
        (Some(_), true) => Err(format!(
            "{field}: {at:?} is not signed: use the `proof` `none`, or a `token`"
        )),
        (None, false) if at.starts_with('/') => Err(unsigned(field, at)),
        (None, false) => Ok(Source::Place(Place::Header(header(field, at, "")?))),
    }
}

fn unsigned(field: &str, at: &str) -> String {
    format!(
        "{field}: {at:?} is no query parameter, such as `?challenge`, and no signature is asked for"
    )
}
