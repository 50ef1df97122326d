//! A sender as it is described in a file, and what is wrong with a description.

use std::collections::BTreeMap;
use std::slice;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Deserializer, de};

use super::batch::BatchDescription;
use super::challenge::{Answer, Challenge, Proof, Source};
use super::pointer::{Pointer, Pointers};
use super::scheme::{Algorithm, At, Coding, Piece, Place, Scheme, SecretCoding, Timestamps, Unit};
use super::{Described, MOST_TAGS, Sender};
use crate::config::ConfigError;
use crate::event::SenderPolicy;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Description {
    name: String,
    /// What stands for `*` in the names of headers.
    #[serde(default)]
    families: Vec<String>,
    key: Option<KeyField>,
    kind: Option<First>,
    /// Where an event says which others it must not overtake.
    order: Option<First>,
    /// Where the events of a delivery of several are.
    batch: Option<BatchDescription>,
    /// What `{url}` stands for.
    pub(super) url: Option<String>,
    /// The sender sends equal bodies on purpose, so they are no replay.
    #[serde(default)]
    equal_bodies: bool,
    /// It is the chat platform: its event types are tokens, and it has a brand.
    #[serde(default)]
    platform: bool,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    challenge: Vec<ChallengeDescription>,
    signature: Signature,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "use a header, a JSON pointer, or `{ join = [...] }` with several of them"
)]
enum KeyField {
    One(String),
    Joined(Joined),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Joined {
    join: Vec<String>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "use a header, a JSON pointer, or a list of JSON pointers"
)]
enum First {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Signature {
    headers: Vec<String>,
    split: Option<char>,
    #[serde(default)]
    prefix: String,
    algorithm: Algorithm,
    coding: Option<Coding>,
    content: Option<String>,
    timestamp: Option<Timestamp>,
    #[serde(default)]
    require: BTreeMap<String, String>,
    #[serde(default)]
    secret: SecretCoding,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ChallengeDescription {
    /// What stands where, if it is one.
    #[serde(default)]
    when: BTreeMap<String, String>,
    #[serde(default)]
    proof: Proof,
    answer: AnswerDescription,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
enum AnswerDescription {
    Raw(String),
    Json {
        pointer: String,
        field: String,
    },
    Hmac {
        pointer: String,
        plain: String,
        tag: String,
    },
    Constant {
        status: Option<u16>,
        body: Option<serde_json::Value>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Timestamp {
    at: String,
    unit: Unit,
    past: u32,
    ahead: u32,
}

/// In seconds. Retries that are left out are as for the chat platform, and without a rule, a webhook is not disabled.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Policy {
    retry_every: Option<u32>,
    retry_for: Option<u32>,
    disable_after: Option<u32>,
}

impl<'de> Deserialize<'de> for Sender {
    /// Reads a description: see [senders](crate::docs::senders#another-sender).
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let description = Description::deserialize(deserializer)?;
        description.sender().map_err(de::Error::custom)
    }
}

impl Sender {
    /// Reads a description in JSON: see [senders](crate::docs::senders#another-sender). In another format, serde reads it,
    /// such as `toml::from_str::<Sender>(text)`.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// use tower_webhook::Sender;
    ///
    /// let sender = Sender::from_json(r#"{
    ///     "name": "acme",
    ///     "key": "/id",
    ///     "kind": "x-acme-event",
    ///     "signature": { "headers": ["x-acme-signature"], "algorithm": "hmac-sha256", "coding": "hex" }
    /// }"#)?;
    /// assert!(sender.covers_key());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Description`] with the line of what is no JSON or no field of a description, or with the field whose
    /// value is wrong.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        serde_json::from_str(text).map_err(ConfigError::Description)
    }
}

impl Description {
    /// Returns the sender, or what is wrong, with the name of the field.
    pub(super) fn sender(self) -> Result<Sender, String> {
        let name = self.name.as_str();
        // The name is also that of the route and, without `kind`, the event type. Both have limited characters.
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > 64 || !name.bytes().all(is_word) {
            return Err("name: use 1 to 64 letters, digits, `-`, `_` and `.`".to_owned());
        }
        // Without families, there is one scheme, whose names have no `*`.
        let one = [String::new()];
        let families = match self.families.as_slice() {
            [] => &one,
            families => families,
        };
        let schemes: Result<Vec<_>, _> = families.iter().map(|it| self.scheme(it)).collect();
        let Policy {
            retry_every,
            retry_for,
            disable_after,
        } = self.policy;
        let seconds = |given: Option<u32>, default| {
            given.map_or(default, |seconds| Duration::from_secs(seconds.into()))
        };
        let default = SenderPolicy::default();
        let policy = SenderPolicy {
            retry_every: seconds(retry_every, default.retry_every),
            retry_for: seconds(retry_for, default.retry_for),
            disable_after,
        };
        let is_asymmetric = self.signature.algorithm.is_asymmetric();
        let challenges = self.challenge.iter().enumerate().map(|(index, it)| {
            let challenge = match it.answer {
                // A receiver has only the public key, which makes no tag.
                AnswerDescription::Hmac { .. } if is_asymmetric => {
                    Err("challenge.answer: `hmac` needs a secret, not a public key".to_owned())
                }
                _ => challenge(it),
            };
            let which = format!("challenge[{index}].");
            // Several challenges have the same fields, so the message says which one is meant.
            challenge.map_err(|error| error.replacen("challenge.", &which, 1))
        });
        let described = Described {
            name: self.name.clone(),
            is_platform: self.platform,
            schemes: schemes?,
            has_equal_bodies: self.equal_bodies,
            order: match &self.order {
                None => Pointers::new("order", Vec::new()),
                Some(First::One(text)) => pointers("order", slice::from_ref(text))?,
                Some(First::Several(list)) => pointers("order", list)?,
            },
            batch: self
                .batch
                .as_ref()
                .map(BatchDescription::batch)
                .transpose()?
                .map(Box::new),
            challenges: challenges.collect::<Result<_, _>>()?,
        };
        Ok(Sender::new(described, policy))
    }

    fn scheme(&self, family: &str) -> Result<Scheme, String> {
        let it = &self.signature;
        // With more headers than tags are accepted, a request that has all of them would be refused.
        if it.headers.is_empty() || it.headers.len() > MOST_TAGS {
            return Err(format!("signature.headers: name 1 to {MOST_TAGS} headers"));
        }
        let named = |name: &String| header("signature.headers", name, family);
        let headers: Result<Vec<_>, _> = it.headers.iter().map(named).collect();
        let split = match it.split {
            // None of the three occurs in hex or base64, and each is one byte.
            Some(split) if !matches!(split, ' ' | ',' | ';') => {
                return Err("signature.split: use a space, `,` or `;`".to_owned());
            }
            Some(split) if it.prefix.contains(split) => {
                let field = "signature.prefix";
                return Err(format!(
                    "{field}: it contains the `split`, so that no tag begins with it"
                ));
            }
            split => split.map(|split| split as u8),
        };
        let content = self.content(family)?;
        let timestamp = it.timestamp.as_ref().map(|it| timestamp(it, family));
        let require = it.require.iter().map(|(name, value)| {
            let field = "signature.require";
            let value = HeaderValue::from_str(value)
                .map_err(|_| format!("{field}: {value:?} cannot be the value of a header"));
            Ok::<_, String>((header(field, name, family)?, value?))
        });
        let scheme = Scheme {
            headers: headers?,
            split,
            prefix: it.prefix.clone(),
            algorithm: it.algorithm,
            coding: it.coding,
            before: content.0,
            after: content.1,
            timestamp: timestamp.transpose()?,
            require: require.collect::<Result<_, _>>()?,
            secret: it.secret,
            key: self.keys(family)?,
            kind: match &self.kind {
                None => Place::None,
                Some(First::One(text)) => place("kind", text, family)?,
                Some(First::Several(list)) => Place::Body(pointers("kind", list)?),
            },
        };
        // A header that is not a list is the tag alone, so each request would be refused.
        if scheme.elements().next().is_some() && split.is_none() {
            return Err("signature.split: without it, there is no `element`".to_owned());
        }
        for name in scheme.elements() {
            check_element(&scheme, name)?;
        }
        // Whoever captured a delivery could renew a time that is not signed.
        if !scheme.signs_time() {
            let field = "signature.timestamp";
            return Err(format!("{field}: it is not signed: name it in `content`"));
        }
        check_key(&scheme)?;
        Ok(scheme)
    }

    fn keys(&self, family: &str) -> Result<Vec<Place>, String> {
        let (field, parts) = match &self.key {
            None => return Ok(Vec::new()),
            Some(KeyField::One(text)) => ("key", slice::from_ref(text)),
            Some(KeyField::Joined(it)) if !(2..=8).contains(&it.join.len()) => {
                return Err("key.join: name 2 to 8 headers or JSON pointers".to_owned());
            }
            Some(KeyField::Joined(it)) => ("key.join", &it.join[..]),
        };
        parts
            .iter()
            .map(|text| place(field, text, family))
            .collect()
    }

    /// The pieces before and after the body.
    fn content(&self, family: &str) -> Result<(Vec<Piece>, Vec<Piece>), String> {
        let it = &self.signature;
        let (content, coding) = (it.content.as_deref(), it.coding);
        if it.algorithm == Algorithm::Token {
            return match (content, coding) {
                (None, None) => Ok((Vec::new(), Vec::new())),
                // Accepting them would promise a signature that nobody checks.
                _ => Err("signature: a token has no `content` and no `coding`".to_owned()),
            };
        }
        if coding.is_none() {
            return Err("signature.coding: use `hex`, `hex-any-case` or `base64`".to_owned());
        }
        let content = content.unwrap_or("{body}");
        let Some((before, after)) = content.split_once("{body}") else {
            return Err("signature.content: without `{body}`, it signs nothing".to_owned());
        };
        // The body is hashed once, as it arrives: it could not be repeated without being kept first.
        if after.contains("{body}") {
            return Err("signature.content: `{body}` must stand exactly once".to_owned());
        }
        Ok((self.pieces(before, family)?, self.pieces(after, family)?))
    }

    fn pieces(&self, mut text: &str, family: &str) -> Result<Vec<Piece>, String> {
        let field = "signature.content";
        let mut pieces = Vec::new();
        while let Some((literal, rest)) = text.split_once('{') {
            if !literal.is_empty() {
                pieces.push(Piece::Text(literal.to_owned()));
            }
            let (source, rest) = rest
                .split_once('}')
                .ok_or(format!("{field}: a `{{` is not closed"))?;
            text = rest;
            pieces.push(match (source, source.strip_prefix("element ")) {
                ("method", _) => Piece::Method,
                ("url", _) => match &self.url {
                    // The configured URL, not the request's: a proxy may change that (senders.md, "URL").
                    Some(url) => Piece::Text(url.clone()),
                    None => return Err("url: it is needed, because `{url}` is signed".to_owned()),
                },
                (_, Some(element)) => Piece::Element(element.to_owned()),
                (name, None) => Piece::Header(header(field, name, family)?),
            });
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text.to_owned()));
        }
        Ok(pieces)
    }
}

/// Refuses an element that the signature header cannot have beside its tags: each request would be refused.
fn check_element(scheme: &Scheme, name: &str) -> Result<(), String> {
    if name
        .bytes()
        .any(|byte| byte == b'=' || Some(byte) == scheme.split)
    {
        return Err(format!(
            "signature: the element {name:?} contains `=` or the `split`, which end a name"
        ));
    }
    let (start, prefix) = (format!("{name}="), &scheme.prefix);
    if start.starts_with(prefix.as_str()) || prefix.starts_with(&start) {
        return Err(format!(
            "signature.prefix: a tag after {prefix:?} cannot be told from the element {name:?}"
        ));
    }
    Ok(())
}

fn check_key(scheme: &Scheme) -> Result<(), String> {
    let is_text = scheme.secret == SecretCoding::Text;
    let wrong = match scheme.algorithm {
        Algorithm::Ed25519 | Algorithm::EcdsaP256 if cfg!(not(feature = "public-keys")) => {
            "signature.algorithm: it needs the feature `public-keys` of tower-webhook"
        }
        Algorithm::Ed25519 | Algorithm::EcdsaP256 if !is_text => {
            "signature.secret: a public key has none, since it says how it is written"
        }
        // `Secret` keeps the state for SHA-1 only of the text.
        Algorithm::HmacSha1 if !is_text => {
            "signature.secret: with hmac-sha1, only `text` is allowed"
        }
        _ => return Ok(()),
    };
    Err(wrong.to_owned())
}

fn challenge(it: &ChallengeDescription) -> Result<Challenge, String> {
    let is_signed = matches!(it.proof, Proof::Signature);
    let field = "challenge.when";
    if it.when.is_empty() && is_signed {
        return Err(format!(
            "{field}: without a condition, every delivery is a challenge"
        ));
    }
    let when = it
        .when
        .iter()
        .map(|(at, value)| Ok((source(field, at, is_signed)?, value.clone())));
    Ok(Challenge {
        when: when.collect::<Result<_, String>>()?,
        proof: match &it.proof {
            Proof::Token(at) => match at.strip_prefix('?') {
                // A token is in the query of a GET. A POST is proved by its signature.
                Some(name) => Proof::Token(name.to_owned()),
                None => return Err(unsigned("challenge.proof", at)),
            },
            other => other.clone(),
        },
        answer: answer(it, is_signed)?,
    })
}

fn answer(it: &ChallengeDescription, is_signed: bool) -> Result<Answer, String> {
    let field = "challenge.answer";
    let source = |at: &str| source(field, at, is_signed);
    Ok(match &it.answer {
        AnswerDescription::Raw(pointer) => Answer::Raw(source(pointer)?),
        AnswerDescription::Json { .. } if matches!(it.proof, Proof::None) => {
            return Err(format!("{field}: without a proof, use `raw` or `constant`"));
        }
        AnswerDescription::Json { pointer, field } => Answer::Json {
            source: source(pointer)?,
            field: field.clone(),
        },
        AnswerDescription::Hmac { .. } if !is_signed => {
            return Err(format!(
                "{field}: without a signature, anybody could have bodies signed by `hmac`"
            ));
        }
        AnswerDescription::Hmac {
            pointer,
            plain,
            tag,
        } => Answer::Hmac {
            source: source(pointer)?,
            plain: plain.clone(),
            tag: tag.clone(),
        },
        AnswerDescription::Constant { .. } if !is_signed && it.when.is_empty() => {
            return Err("challenge.when: without a condition, every GET is a challenge".to_owned());
        }
        AnswerDescription::Constant { status, body } => {
            let default = if body.is_some() { 200 } else { 204 };
            let status = StatusCode::from_u16(status.unwrap_or(default)).ok();
            let is_possible = |it: &StatusCode| {
                it.is_success() && (body.is_none() || *it != StatusCode::NO_CONTENT)
            };
            let status = status.filter(is_possible);
            Answer::Constant {
                status: status.ok_or(format!(
                    "{field}: use a status of 200 to 299, and 204 without a body"
                ))?,
                body: body.clone(),
            }
        }
    })
}

/// Where a challenge has something: in a POST that is signed, or in the query of a GET that is not.
fn source(field: &'static str, at: &str, is_signed: bool) -> Result<Source, String> {
    match (at.strip_prefix('?'), is_signed) {
        (Some(name), false) => Ok(Source::Query(name.to_owned())),
        // A challenge has no family: a `*` in it is refused.
        (None, true) => Ok(Source::Place(place(field, at, "")?)),
        (Some(_), true) => Err(format!(
            "{field}: {at:?} is not signed: use the `proof` `none`, or a `token`"
        )),
        (None, false) => Err(unsigned(field, at)),
    }
}

fn unsigned(field: &str, at: &str) -> String {
    format!(
        "{field}: {at:?} is no query parameter, such as `?challenge`, and no signature is asked for"
    )
}

fn timestamp(it: &Timestamp, family: &str) -> Result<Timestamps, String> {
    let field = "signature.timestamp.at";
    let at = match (it.at.strip_prefix("element "), it.at.starts_with('/')) {
        (Some(element), _) => At::Element(element.to_owned()),
        (None, true) => At::Body(pointers(field, slice::from_ref(&it.at))?),
        (None, false) => At::Header(header(field, &it.at, family)?),
    };
    if it.past == 0 {
        let field = "signature.timestamp.past";
        return Err(format!(
            "{field}: use at least 1, since a delivery takes time"
        ));
    }
    Ok(Timestamps {
        at,
        unit: it.unit,
        past: Duration::from_secs(it.past.into()),
        ahead: Duration::from_secs(it.ahead.into()),
    })
}

fn place(field: &'static str, text: &str, family: &str) -> Result<Place, String> {
    Ok(match text.starts_with('/') {
        true => Place::Body(pointers(field, &[text])?),
        false => Place::Header(header(field, text, family)?),
    })
}

fn pointers(field: &'static str, list: &[impl AsRef<str>]) -> Result<Pointers, String> {
    let pointer =
        |text: &str| Pointer::parse(text).map_err(|reason| format!("{field}: {text:?} {reason}"));
    let list: Result<_, _> = list.iter().map(|text| pointer(text.as_ref())).collect();
    Ok(Pointers::new(field, list?))
}

fn header(field: &str, name: &str, family: &str) -> Result<HeaderName, String> {
    if name.contains('*') && family.is_empty() {
        return Err(format!(
            "{field}: {name:?} has a `*`, so `families` are needed"
        ));
    }
    HeaderName::try_from(name.replace('*', family))
        .map_err(|_| format!("{field}: {name:?} cannot be the name of a header"))
}
