//! Twilio: signs the URL, and of a form its sorted fields.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::time::Duration;

use super::super::checked::{How, signer};
use super::super::secret::Secrets;
use super::{Proof, Verdict, Verifier, VerifierError};
use crate::config::ConfigError;
use crate::delivery::IdempotencyKey;
use crate::event::{EventKind, SenderPolicy};
use crate::sender::{Algorithm, Claim, Reply, SignatureError, decode};

const NAME: &str = "twilio";
const SIGNATURE: &str = "x-twilio-signature";
const KEY: &str = "i-twilio-idempotency-token";

/// The fields of a form, each with its values.
type Fields = BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>;

/// The most values in a form.
const MOST: usize = 1_000;

/// Verifies webhooks of Twilio that are sent with POST: forms, and JSON with `bodySHA256` in the query.
///
/// Handlers get a form as a JSON object, in which a field is a string, or an array of its different values, sorted. The event
/// type is `twilio`, unless [`typed_by`](Self::typed_by) names a field. The key is the header `I-Twilio-Idempotency-Token`, which
/// is not signed. A success is answered with an empty `TwiML` document, `<Response/>`.
///
/// The signature has no time, and no separators: whoever has read a delivery can send it again, and move the boundary between
/// the names and values of a form. Equal bodies under different keys are different events; to refuse them, call
/// [`replay_guard`](crate::Webhooks::replay_guard).
///
/// ```
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// use tower_webhook::signature::Twilio;
/// use tower_webhook::{Secret, Webhooks};
///
/// let token = Secret::new("the primary auth token")?;
/// let twilio = Twilio::new("https://example.com/twilio", token)?.typed_by("EventType");
/// let webhooks = Webhooks::verified_by(twilio)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Twilio {
    /// The URL with a port and without one: Twilio signs either.
    urls: [String; 2],
    secrets: Secrets,
    algorithm: Algorithm,
    kind: Option<String>,
}

impl Twilio {
    /// Verifies with the auth token, by HMAC-SHA1. `url` is the webhook's URL, exactly as it is configured at Twilio, with its query.
    /// A fragment, which has settings of the connection, is not signed.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Sender`] when the URL does not begin with `https://` or `http://` and a host, or has other than visible ASCII
    /// characters.
    pub fn new(url: &str, secrets: impl Into<Secrets>) -> Result<Self, ConfigError> {
        let urls = both(url).ok_or_else(|| ConfigError::Sender {
            name: NAME.to_owned(),
            reason: "its URL is as configured there, such as `https://example.com/twilio`"
                .to_owned(),
        })?;
        Ok(Self {
            urls,
            secrets: secrets.into(),
            algorithm: Algorithm::HmacSha1,
            kind: None,
        })
    }

    /// Verifies by HMAC-SHA256, and the secrets are shared keys: for a URL to which a webhook rule with `HMAC_SHA256` applies.
    ///
    /// The header that names the algorithm is not signed, and not read.
    pub fn sha256(mut self) -> Self {
        self.algorithm = Algorithm::HmacSha256;
        self
    }

    /// Sets the field that has the event type, such as `EventType` or `MessageStatus`. Without it, or with another text than 1 to
    /// 128 visible ASCII characters, the type stays `twilio`.
    pub fn typed_by(mut self, field: impl Into<String>) -> Self {
        self.kind = Some(field.into());
        self
    }

    fn claim(&self, headers: &HeaderMap) -> Result<Claim, SignatureError> {
        let mut values = headers.get_all(SIGNATURE).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Claim::in_base64(value.as_bytes(), self.algorithm),
            (None, _) => Err(SignatureError::Missing),
            _ => Err(SignatureError::Doubled),
        }
    }

    /// Returns the index of the secret that signed one of the URLs with what follows it.
    fn signer(&self, claim: &Claim, urls: [&str; 2], rest: &[u8]) -> Result<usize, SignatureError> {
        let (set, how) = (self.secrets.current(), How::by(self.algorithm));
        let found = urls.map(|url| signer(&set, how, claim, &[url.as_bytes(), rest].concat()));
        let [one, other] = found;
        one.or(other).ok_or(SignatureError::Wrong)
    }

    /// The body as handlers get it, and the secret that signed it.
    fn form(
        &self,
        claim: &Claim,
        body: &[u8],
    ) -> Result<(Map<String, Value>, usize), VerifierError> {
        let fields = fields(body).ok_or(SignatureError::Other(
            "the body is no form of at most 1,000 values",
        ))?;
        let pairs = fields
            .iter()
            .flat_map(|(name, values)| values.iter().map(move |it| [name, it]));
        let signed: Vec<u8> = pairs.flatten().flatten().copied().collect();
        let [one, other] = &self.urls;
        let index = self.signer(claim, [one, other], &signed)?;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(VerifierError::unreadable);
        let mut object = Map::new();
        for (name, values) in fields {
            let values: Result<Vec<_>, VerifierError> = values
                .into_iter()
                .map(|it| text(it).map(Value::String))
                .collect();
            let mut values: Vec<Value> = values?;
            let value = match values.pop() {
                Some(only) if values.is_empty() => only,
                last => Value::Array(values.into_iter().chain(last).collect()),
            };
            object.insert(text(name)?, value);
        }
        Ok((object, index))
    }

    fn json(&self, claim: &Claim, request: &Request<Bytes>) -> Result<usize, SignatureError> {
        // The digest stands in the URL that is signed, so the request's own query is.
        let query = request.uri().query().unwrap_or_default();
        let mut digests = query
            .split('&')
            .filter_map(|pair| pair.strip_prefix("bodySHA256="));
        let own = base16ct::lower::encode_string(&Sha256::digest(request.body()));
        match (digests.next(), digests.next()) {
            (Some(digest), None) if digest.eq_ignore_ascii_case(&own) => {}
            (Some(_), None) => {
                return Err(SignatureError::Other(
                    "`bodySHA256` in the query is that of another body",
                ));
            }
            _ => {
                return Err(SignatureError::Other(
                    "`bodySHA256` is not once in the query of a body that is no form",
                ));
            }
        }
        let [one, other] = self
            .urls
            .each_ref()
            .map(|url| url.split('?').next().unwrap_or(url));
        self.signer(claim, [one, other], format!("?{query}").as_bytes())
    }

    fn kind(&self, fields: Option<&Map<String, Value>>) -> EventKind {
        let named = self
            .kind
            .as_ref()
            .and_then(|name| fields?.get(name)?.as_str());
        let named = named.and_then(|kind| EventKind::from_bytes(kind.as_bytes()).ok());
        named.unwrap_or(const { EventKind::from_static(NAME) })
    }
}

#[async_trait]
impl Verifier for Twilio {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Twilio retries at once, if at all, for 15 seconds.
    fn policy(&self) -> SenderPolicy {
        SenderPolicy::new(Duration::from_secs(600), Duration::from_secs(24 * 60 * 60))
    }

    fn needs_replay_guard(&self) -> bool {
        // Two answers of one caller to one question have equal bodies.
        false
    }

    fn admit(&self, head: &Parts) -> Result<(), SignatureError> {
        self.claim(&head.headers).map(drop)
    }

    async fn verify(&self, request: &Request<Bytes>) -> Result<Verdict, VerifierError> {
        let (claim, body) = (self.claim(request.headers())?, request.body());
        let proof = match is_form(request.headers()) {
            true => {
                let (fields, index) = self.form(&claim, body)?;
                let proof = Proof::new(self.kind(Some(&fields))).signed_by(&self.secrets, index);
                proof.body(Value::Object(fields).to_string())
            }
            false => {
                let index = self.json(&claim, request)?;
                let fields = self
                    .kind
                    .as_ref()
                    .and_then(|_| serde_json::from_slice(body).ok());
                Proof::new(self.kind(fields.as_ref())).signed_by(&self.secrets, index)
            }
        };
        Ok(proof.key(key(request.headers())?).into())
    }

    fn success(&self) -> Option<Reply> {
        Some(Reply::new(200, Some("text/xml"), "<Response/>"))
    }
}

fn key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, VerifierError> {
    let mut values = headers.get_all(KEY).iter();
    let first = values.next();
    match values.any(|other| Some(other) != first) {
        true => Err(VerifierError::unreadable(
            "there are several keys, and they differ",
        )),
        false => Ok(first.cloned().and_then(IdempotencyKey::new)),
    }
}

fn is_form(headers: &HeaderMap) -> bool {
    let essence = |it: &HeaderValue| {
        let essence = it
            .as_bytes()
            .split(|&byte| byte == b';')
            .next()
            .unwrap_or_default();
        essence
            .trim_ascii()
            .eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
    };
    headers.get_all(CONTENT_TYPE).iter().any(essence)
}

/// The fields of a form. `None` if it has too many, or one whose percent-encoding is broken.
fn fields(body: &[u8]) -> Option<Fields> {
    let mut fields = Fields::new();
    let pairs = str::from_utf8(body)
        .ok()?
        .split('&')
        .filter(|it| !it.is_empty());
    for (number, pair) in pairs.enumerate() {
        if number == MOST {
            return None;
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        fields
            .entry(decode(name)?)
            .or_default()
            .insert(decode(value)?);
    }
    Some(fields)
}

/// The URL without a port, and with one: its own, or else that of its scheme.
fn both(url: &str) -> Option<[String; 2]> {
    let url = url.split('#').next().unwrap_or(url);
    let (scheme, rest) = url.split_once("://")?;
    let default = match scheme {
        "https" => "443",
        "http" => "80",
        _ => return None,
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    // A colon in brackets is one of IPv6.
    let port = authority
        .rfind(':')
        .filter(|at| !authority[*at..].contains(']'));
    let (host, port) = match port {
        Some(at) => (&authority[..at], &authority[at + 1..]),
        None => (authority, default),
    };
    let is_one = !host.is_empty() && !port.is_empty() && port.bytes().all(|it| it.is_ascii_digit());
    let is_plain = is_one && url.bytes().all(|it| it.is_ascii_graphic());
    is_plain.then(|| {
        [
            format!("{scheme}://{host}{path}"),
            format!("{scheme}://{host}:{port}{path}"),
        ]
    })
}
