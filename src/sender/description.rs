//! A sender as it is described in a file, and what is wrong with a description.

use std::collections::BTreeMap;
use std::slice;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Deserializer, de};

use super::asked::{self, ChallengeDescription};
use super::batch::BatchDescription;
use super::challenge::Challenge;
use super::handshake::Handshake;
use super::media::Media;
use super::places::{
    First, KeyField, MOST_HEADERS, check_url, header, in_body, numbered, place, pointers,
};
use super::pointer::Pointers;
use super::rare::{Elsewhere, Rare};
use super::scheme::{
    Algorithm, At, Coding, Made, Piece, Place, Scheme, SecretCoding, Timestamps, Unit,
};
use super::success::SuccessDescription;
use super::{Described, Sender};
use crate::config::ConfigError;
use crate::event::{EventKind, SenderPolicy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Description {
    name: String,
    /// What stands for `*` in the names of headers.
    #[serde(default)]
    families: Vec<String>,
    key: Option<KeyField>,
    kind: Option<KindField>,
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
    /// The forms of its bodies, if that is not JSON alone.
    #[serde(default)]
    content_types: Vec<Media>,
    success: Option<SuccessDescription>,
    /// Where an unsigned POST has the secret.
    handshake: Option<String>,
    /// In bytes.
    max_body: Option<u32>,
    /// For the table of senders: its name, what it does with failures, and whether only its documentation says all this.
    title: Option<String>,
    about: Option<String>,
    #[serde(default)]
    as_documented: bool,
    /// What has judged it, such as a library and its version.
    judge: Option<String>,
    signature: Signature,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "use a header, a JSON pointer, a list of JSON pointers, or `{ join = [...], with = \".\", default = \"…\" }` \
        with `at` for one alone"
)]
enum KindField {
    At(First),
    Made(MadeKind),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MadeKind {
    at: Option<First>,
    #[serde(default)]
    join: Vec<String>,
    with: Option<String>,
    default: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Signature {
    headers: Vec<String>,
    split: Option<char>,
    /// Blanks around elements are no part of them, and several lines of a header are one list.
    #[serde(default)]
    lenient: bool,
    /// What stands between lists of elements.
    lists: Option<char>,
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
    /// How long it waits for an answer.
    deadline: Option<u32>,
    /// How long its retries may repeat the same bytes, with the same timestamp.
    repeats_for: Option<u32>,
}

impl Policy {
    fn read(&self) -> SenderPolicy {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let default = SenderPolicy::default();
        SenderPolicy {
            retry_every: self.retry_every.map_or(default.retry_every, seconds),
            retry_for: self.retry_for.map_or(default.retry_for, seconds),
            disable_after: self.disable_after,
            deadline: self.deadline.map(seconds),
        }
    }
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
        let schemes = schemes?;
        let policy = self.policy.read();
        self.check_window(&schemes, &policy)?;
        if let Some(url) = &self.url {
            check_url(url)?;
        }
        if self.about.as_ref().is_some_and(|it| it.len() > 300) || self.title.as_deref() == Some("")
        {
            return Err("title, about: use at least 1 and at most 300 bytes".to_owned());
        }
        if let Some(judge) = &self.judge
            && (judge.is_empty() || judge.len() > 300 || self.as_documented)
        {
            return Err("judge: use 1 to 300 bytes, and no `as-documented` beside it".to_owned());
        }
        let content_types = Media::read(&self.content_types)?;
        if self.batch.is_some() && self.content_types.contains(&Media::Form) {
            return Err("batch: a form has no array of events".to_owned());
        }
        let is_asymmetric = self.signature.algorithm.is_asymmetric();
        let challenges = asked::read(&self.challenge, is_asymmetric)?;
        let mut of_forms = challenges
            .iter()
            .filter(|_| self.content_types.contains(&Media::Form));
        if of_forms.any(Challenge::signs_for_anybody) {
            return Err("challenge: an HMAC without a proof signs texts for anybody, and a form is such a text".to_owned());
        }
        let described = Described {
            name: self.name.clone(),
            is_platform: self.platform,
            schemes,
            has_equal_bodies: self.equal_bodies,
            order: match &self.order {
                None => Pointers::new("order", Vec::new()),
                Some(First::One(text)) => pointers("order", slice::from_ref(text))?,
                Some(First::Several(list)) => pointers("order", list)?,
            },
            challenges,
            content_types,
            success: self
                .success
                .as_ref()
                .map(SuccessDescription::read)
                .transpose()?,
            max_body: self.max_body,
            handshake: self
                .handshake
                .as_ref()
                .map(|it| Handshake::read(it, self.signature.algorithm))
                .transpose()?
                .map(Box::new),
            is_as_documented: self.as_documented,
            judge: self.judge.as_deref().map(Into::into),
            batch: self
                .batch
                .as_ref()
                .map(BatchDescription::batch)
                .transpose()?
                .map(Box::new),
        };
        Ok(Sender::new(described, policy))
    }

    fn scheme(&self, family: &str) -> Result<Scheme, String> {
        let it = &self.signature;
        let (headers, elsewhere) = self.places(family)?;
        // None of the three occurs in hex or base64, and each is one byte.
        let is_separator = |it: char| matches!(it, ' ' | ',' | ';');
        let lists = match it.lists {
            Some(between) if !is_separator(between) || it.split.is_none_or(|it| it == between) => {
                let field = "signature.lists";
                return Err(format!(
                    "{field}: use a space, `,` or `;`, beside another one as the `split`"
                ));
            }
            Some(_) if headers.len() != 1 || !elsewhere.is_empty() => {
                return Err("signature.lists: they stand in one header".to_owned());
            }
            lists => lists.map(|it| it as u8),
        };
        let split = match it.split {
            Some(split) if !is_separator(split) => {
                return Err("signature.split: use a space, `,` or `;`".to_owned());
            }
            Some(_) if !elsewhere.is_empty() => {
                return Err("signature.split: only headers have a list of elements".to_owned());
            }
            None if it.lenient => {
                return Err("signature.lenient: without a `split`, there is no list".to_owned());
            }
            Some(split) if it.prefix.contains(split) => {
                let field = "signature.prefix";
                return Err(format!(
                    "{field}: it contains the `split`, so that no tag begins with it"
                ));
            }
            split => split.map(|split| split as u8),
        };
        let (before, after, signs_digest) = self.content(family)?;
        let rare = Rare {
            elsewhere,
            is_lenient: it.lenient,
            lists,
            signs_digest,
        };
        let timestamp = it.timestamp.as_ref().map(|it| timestamp(it, family));
        let require = it.require.iter().map(|(name, value)| {
            let field = "signature.require";
            let value = HeaderValue::from_str(value)
                .map_err(|_| format!("{field}: {value:?} cannot be the value of a header"));
            Ok::<_, String>((header(field, name, family)?, value?))
        });
        let scheme = Scheme {
            headers,
            split,
            prefix: it.prefix.clone(),
            algorithm: it.algorithm,
            coding: it.coding,
            before,
            after,
            timestamp: timestamp.transpose()?,
            require: require.collect::<Result<_, _>>()?,
            secret: it.secret,
            key: self.keys(family)?,
            kind: self.kind(family)?,
            rare: rare.boxed(),
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

    fn kind(&self, family: &str) -> Result<Place, String> {
        let at = |field, at: &First| match at {
            First::One(text) => place(field, text, family),
            First::Several(list) => Ok(Place::Body(pointers(field, list)?)),
        };
        let made = match &self.kind {
            None => return Ok(Place::None),
            Some(KindField::At(it)) => return at("kind", it),
            Some(KindField::Made(made)) => made,
        };
        let parts = match (&made.at, &made.join[..], &made.default) {
            (Some(one), [], Some(_)) if made.with.is_none() => vec![at("kind.at", one)?],
            (None, several, _) if (2..=8).contains(&several.len()) => {
                let parts = several.iter().map(|text| place("kind.join", text, family));
                parts.collect::<Result<_, _>>()?
            }
            _ => {
                return Err(
                    "kind: use `join` with 2 to 8 headers or JSON pointers, or `at` with a `default`"
                        .to_owned(),
                );
            }
        };
        let default = made
            .default
            .as_deref()
            .map(|it| EventKind::from_bytes(it.as_bytes()));
        let default = default.transpose();
        Ok(Place::Made(Box::new(Made {
            parts,
            with: made.with.clone().unwrap_or_else(|| ".".to_owned()),
            default: default.map_err(|_| "kind.default: use 1 to 128 visible ASCII characters")?,
        })))
    }

    /// Where tags stand: in headers and elsewhere.
    fn places(&self, family: &str) -> Result<(Vec<HeaderName>, Vec<Elsewhere>), String> {
        let field = "signature.headers";
        let (mut headers, mut elsewhere) = (Vec::new(), Vec::new());
        for name in &self.signature.headers {
            match name.strip_prefix('?') {
                Some("") => return Err(format!("{field}: `?` needs the name of a parameter")),
                Some(name) if self.query_is_taken(&elsewhere) => {
                    return Err(format!("{field}: `?{name}` is the second query parameter"));
                }
                Some(name) => elsewhere.push(Elsewhere::Query(name.to_owned())),
                None if name.starts_with('/') => {
                    if self.signature.algorithm != Algorithm::Token {
                        return Err(format!(
                            "{field}: {name:?} is in the body, which would sign itself: only a token may stand there"
                        ));
                    }
                    elsewhere.push(in_body(field, name)?);
                }
                None => headers.extend(numbered(name, family)?),
            }
        }
        match headers.len() + elsewhere.len() {
            1..=MOST_HEADERS => Ok((headers, elsewhere)),
            _ => Err(format!("{field}: name 1 to {MOST_HEADERS} headers")),
        }
    }

    fn query_is_taken(&self, elsewhere: &[Elsewhere]) -> bool {
        let is_query = |it: &Elsewhere| matches!(it, Elsewhere::Query(_));
        elsewhere.iter().any(is_query)
    }

    /// A window that ends before the retries do refuses them. A window that outlasts the memory of keys lets a captured
    /// delivery be sent again.
    fn check_window(&self, schemes: &[Scheme], policy: &SenderPolicy) -> Result<(), String> {
        let field = "signature.timestamp.past";
        let Some(time) = schemes.first().and_then(|it| it.timestamp.as_ref()) else {
            return Ok(());
        };
        let repeats_for = Duration::from_secs(self.policy.repeats_for.unwrap_or_default().into());
        if time.past < repeats_for {
            let seconds = repeats_for.as_secs();
            return Err(format!(
                "{field}: use at least {seconds}, the time of `policy.repeats-for`"
            ));
        }
        if time.past > policy.retention() {
            let seconds = policy.retention().as_secs();
            return Err(format!(
                "{field}: use at most {seconds}, a day more than `policy.retry-for`: keys are forgotten then"
            ));
        }
        Ok(())
    }

    /// The pieces before and after the body, and whether its digest stands in its place.
    fn content(&self, family: &str) -> Result<(Vec<Piece>, Vec<Piece>, bool), String> {
        let it = &self.signature;
        let (content, coding) = (it.content.as_deref(), it.coding);
        if it.algorithm == Algorithm::Token {
            return match content {
                None => Ok((Vec::new(), Vec::new(), false)),
                // Accepting it would promise a signature that nobody checks.
                Some(_) => Err("signature: a token has no `content`".to_owned()),
            };
        }
        if coding.is_none() {
            return Err(
                "signature.coding: use `hex`, `hex-any-case`, `base64` or `base64url`".to_owned(),
            );
        }
        let content = content.unwrap_or("{body}");
        let digest = content.split_once("{body sha256}");
        let Some((before, after)) = content.split_once("{body}").or(digest) else {
            return Err("signature.content: without `{body}`, it signs nothing".to_owned());
        };
        // The body is hashed once, as it arrives: it could not be repeated without being kept first.
        if [before, after].iter().any(|it| it.contains("{body")) {
            return Err("signature.content: `{body}` must stand exactly once".to_owned());
        }
        let signs_digest = !content.contains("{body}");
        let (before, after) = (self.pieces(before, family)?, self.pieces(after, family)?);
        Ok((before, after, signs_digest))
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
    let is_asymmetric = scheme.algorithm.is_asymmetric();
    let wrong = match scheme.algorithm {
        _ if is_asymmetric && cfg!(not(feature = "public-keys")) => {
            "signature.algorithm: it needs the feature `public-keys` of tower-webhook"
        }
        _ if is_asymmetric && !is_text => {
            "signature.secret: a public key has none, since it says how it is written"
        }
        // `Secret` keeps the states for these only of the text.
        Algorithm::HmacSha1 | Algorithm::HmacSha512 if !is_text => {
            "signature.secret: with hmac-sha1 and hmac-sha512, only `text` is allowed"
        }
        _ => return Ok(()),
    };
    Err(wrong.to_owned())
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
