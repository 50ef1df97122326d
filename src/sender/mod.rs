//! The side that sends deliveries, as a value: [`Sender`].

mod asked;
mod batch;
mod beyond;
mod challenge;
mod description;
mod error;
mod expected;
mod explain;
mod handshake;
pub(crate) mod key;
mod media;
mod places;
mod pointer;
mod profiles;
mod query;
mod rare;
mod sample;
mod scheme;
mod success;
mod tag;
mod timestamp;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use hmac::digest::CtOutput;
use hmac::{Hmac, KeyInit, Mac};
use http::request;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use sha2::Sha256;

use self::batch::Batch;
pub(crate) use self::batch::{ItemKinds, Part, Parts};
pub use self::challenge::Reply;
use self::challenge::{Challenge, Proof};
pub use self::error::SignatureError;
pub use self::explain::{Finding, Step};
pub(crate) use self::explain::{digest_of, start_of};
pub(crate) use self::handshake::Handshake;
pub(crate) use self::media::Media;
use self::media::NoForm;
use self::pointer::Pointers;
use self::query::Query;
pub(crate) use self::query::decode;
pub(crate) use self::scheme::{
    Algorithm, Claim, Head, Made, Place, Scheme, SecretCoding, TOKEN, Tags,
};
use crate::config::ConfigError;
use crate::delivery::RawDelivery;
use crate::event::{EventKind, SenderPolicy};
use crate::verified::Verified;

/// The side that sends deliveries: how it signs them, where key and event type stand, and when it retries.
///
/// The default is the chat platform. Its brand may stand in the names of its headers:
///
/// ```
/// use tower_webhook::{Secret, Sender, Webhooks};
///
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// let sender = Sender::chat_platform().branded("acme")?; // X-Acme-Hmac-Sha256 and X-Acme-Event
/// let webhooks = Webhooks::new(Secret::new("8c1f…")?).sender(sender);
/// # Ok(())
/// # }
/// ```
///
/// Others are constructors, such as [`github`](Self::github), or a description in [JSON](Self::from_json) or any other
/// format that serde reads: see [senders](crate::docs::senders).
///
/// Clones are cheap.
#[derive(Clone)]
pub struct Sender {
    described: Arc<Described>,
    policy: SenderPolicy,
    clock: Option<Arc<Clock>>,
    token: Option<CtOutput<Hmac<Sha256>>>,
}

type Clock = dyn Fn() -> SystemTime + Send + Sync;

/// What the deliveries of a sender look like.
#[derive(Clone)]
pub(crate) struct Described {
    name: String,
    is_platform: bool,
    /// One for each family of headers. The first whose signature header is there counts, with all its headers.
    schemes: Vec<Scheme>,
    has_equal_bodies: bool,
    order: Pointers,
    /// Boxed, since most have none.
    batch: Option<Box<Batch>>,
    challenges: Vec<Challenge>,
    /// `None` for JSON alone.
    content_types: Option<Box<[Media]>>,
    /// Boxed, since most have none.
    handshake: Option<Box<Handshake>>,
    success: Option<Reply>,
    max_body: Option<u32>,
    is_as_documented: bool,
    judge: Option<Box<str>>,
}

impl Described {
    /// Whether it is the chat platform, whose event types are tokens (Spec 6), and which has a brand.
    pub(crate) fn is_platform(&self) -> bool {
        self.is_platform
    }

    /// The answer if a verified delivery is a challenge: `Some(None)` if there is nothing that may be echoed. `hmac`
    /// returns a tag under the secret that signed it.
    pub(crate) fn challenge(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        hmac: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
    ) -> Option<Option<Reply>> {
        if self.challenges.is_empty() {
            return None;
        }
        // A body that is no form is an event, too: the reading of its type refuses it.
        let body = &*self.readable(body).ok()?;
        let mut challenges = self.challenges.iter();
        let challenge = challenges.find(|challenge| challenge.is_signed(headers, body))?;
        Some(challenge.reply_to_post(headers, body, hmac))
    }

    fn needs_token(&self) -> bool {
        let mut challenges = self.challenges.iter();
        challenges.any(|challenge| matches!(challenge.proof, Proof::Token(_)))
    }

    /// Returns what the events have in common that are handled in order, if this one has it.
    pub(crate) fn order_of<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        if self.order.is_empty() {
            return None;
        }
        match self.readable(body).ok()? {
            Cow::Borrowed(body) => self.order.find_in_delivery(body).ok()?,
            Cow::Owned(body) => {
                let found = self.order.find_in_delivery(&body).ok()??;
                Some(Cow::Owned(found.into_owned()))
            }
        }
    }

    /// The content types that are accepted. `None` for JSON alone.
    pub(crate) fn content_types(&self) -> Option<&[Media]> {
        self.content_types.as_deref()
    }

    /// How it brings the secret, if it does.
    pub(crate) fn handshake(&self) -> Option<&Handshake> {
        self.handshake.as_deref()
    }

    /// Whether anybody may have it sign a text, with a request that needs no proof.
    pub(crate) fn signs_for_anybody(&self) -> bool {
        self.challenges.iter().any(Challenge::signs_for_anybody)
    }

    /// A body as JSON, in which pointers find their values: that of a form is an object.
    pub(crate) fn readable<'a>(&self, body: &'a [u8]) -> Result<Cow<'a, [u8]>, NoForm> {
        match &self.content_types {
            None => Ok(body.into()),
            types => media::readable(types.as_deref(), body),
        }
    }

    /// What it wants to hear when a delivery was taken, if the answer of this crate is not enough.
    pub(crate) fn success(&self) -> Option<&Reply> {
        self.success.as_ref()
    }

    pub(crate) fn schemes(&self) -> &[Scheme] {
        &self.schemes
    }

    /// Reads the head of a request as [`Scheme::claim`], by the scheme that [`scheme`](Self::scheme) would return.
    #[inline]
    pub(crate) fn claim(
        &self,
        head: Head<'_>,
        now: impl Fn() -> SystemTime,
    ) -> Result<(&Scheme, Claim), SignatureError> {
        for scheme in &self.schemes {
            match scheme.claim(head, &now) {
                // Only an absent signature header leads on: after other errors, an attacker could choose the family.
                Err(SignatureError::Missing) => {}
                claim => return Ok((scheme, claim?)),
            }
        }
        Err(SignatureError::Missing)
    }

    pub(crate) fn scheme(&self, headers: &HeaderMap) -> &Scheme {
        let found = match &self.schemes[..] {
            [only] => Some(only),
            several => several.iter().find(|scheme| scheme.is_in(headers)),
        };
        found.unwrap_or(&self.schemes[0]) // There is always one.
    }
}

impl Sender {
    fn new(described: Described, policy: SenderPolicy) -> Self {
        Self {
            described: Arc::new(described),
            policy,
            clock: None,
            token: None,
        }
    }

    /// The sender whose deliveries a verifier of the application proves: it has no headers of its own. Its name must be
    /// that of a description.
    pub(crate) fn of_verifier(
        name: &str,
        policy: SenderPolicy,
        needs_replay_guard: bool,
    ) -> Result<Self, ConfigError> {
        let description = serde_json::json!({
            "name": name,
            "equal-bodies": !needs_replay_guard,
            "signature": { "headers": ["none"], "algorithm": "hmac-sha256", "coding": "hex" },
        });
        let sender = Self::from_json(&description.to_string())?;
        let mut sender = sender.with_policy(policy);
        for scheme in &mut Arc::make_mut(&mut sender.described).schemes {
            scheme.headers.clear();
        }
        Ok(sender)
    }

    /// Whether a verifier of the application proves its deliveries.
    pub(crate) fn is_of_verifier(&self) -> bool {
        let scheme = &self.described.schemes[0];
        scheme.headers.is_empty() && scheme.parameter().is_none() && !scheme.has_token_in_body()
    }

    /// Puts a brand in place of `Service` in the names of the chat platform's headers: `X-Acme-Hmac-Sha256` and
    /// `X-Acme-Event`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::HeaderPrefix`] when the brand is empty or cannot be part of a header's name.
    pub fn branded(mut self, brand: &str) -> Result<Self, ConfigError> {
        let name = |rest| {
            HeaderName::try_from(format!("x-{brand}-{rest}"))
                .ok()
                .filter(|_| !brand.is_empty())
                .ok_or_else(|| ConfigError::HeaderPrefix(brand.to_owned()))
        };
        let (signature, event) = (name("hmac-sha256")?, name("event")?);
        if !self.described.is_platform {
            // Others spell their headers out.
            return Err(self.is_wrong("only the chat platform has a brand"));
        }
        for scheme in &mut Arc::make_mut(&mut self.described).schemes {
            scheme.headers = vec![signature.clone()];
            scheme.kind = Place::Header(event.clone());
        }
        Ok(self)
    }

    /// Sets when it retries and disables a webhook, from which all defaults are derived.
    #[must_use]
    pub fn with_policy(mut self, policy: SenderPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Returns when it retries and disables a webhook.
    #[must_use]
    pub fn policy(&self) -> SenderPolicy {
        self.policy
    }

    /// Sets the clock that timestamps are compared with, for tests. By default, it is the system's.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Sets the token by which the sender proves that a challenge is from it: for [`meta`](Self::meta), the verify
    /// token that is set there with the URL. It is not the secret, and `Debug` does not show it.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// use tower_webhook::Sender;
    ///
    /// let sender = Sender::meta().with_challenge_token("b3d1…")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Sender`] when the token is empty, or its challenges need none.
    pub fn with_challenge_token(mut self, token: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        if !self.described.needs_token() {
            return Err(self.is_wrong("its challenges have no token"));
        }
        if token.as_ref().is_empty() {
            return Err(self.is_wrong(
                "the token of its challenges is empty: set the token that is configured there",
            ));
        }
        self.token = token_tag(token.as_ref());
        Ok(self)
    }

    pub(crate) fn is_asymmetric(&self) -> bool {
        // Families differ only in the names of their headers.
        self.described.schemes[0].algorithm.is_asymmetric()
    }

    /// Whether all is set that it needs.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.described.needs_token() && self.token.is_none() {
            return Err(self.is_wrong(
                "set the token of its challenges with `with_challenge_token`, or --sender-token-file",
            ));
        }
        Ok(())
    }

    pub(crate) fn is_wrong(&self, reason: &str) -> ConfigError {
        ConfigError::Sender {
            name: self.name().to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// The answer to a request that proved nothing if it is a challenge, or why it is refused. `hmac` returns a tag under the
    /// first secret.
    pub(crate) fn greeted(
        &self,
        head: &request::Parts,
        hmac: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
    ) -> Option<Result<Reply, &'static str>> {
        let mut challenges = self.described.challenges.iter();
        let challenge = challenges.find(|it| it.is_in(head))?;
        if let Proof::Token(name) = &challenge.proof {
            let query = Query(head.uri.query().unwrap_or_default());
            // A token that is given twice counts as none.
            let given = query.only(name).and_then(|token| token_tag(&token));
            // In constant time.
            // The first condition is needed, too: without a configured token, a missing one would be equal to it.
            if given.is_none() || given != self.token {
                return Some(Err("the challenge carries another token, or none"));
            }
        }
        let nothing = "there is nothing in the challenge that may be echoed";
        Some(challenge.reply_to_head(head, hmac).ok_or(nothing))
    }

    /// Returns its name: that of the profile, or of the description.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.described.name
    }

    /// Returns the size limit of a body in bytes that suits this sender, if it sends more than 1 MiB:
    /// [`max_body`](crate::Webhooks::max_body) sets another.
    #[must_use]
    pub fn max_body(&self) -> Option<usize> {
        let bytes = self.described.max_body?;
        usize::try_from(bytes).ok()
    }

    /// Whether its description was written from the sender's documentation alone: no library of its maker and no published
    /// vector has judged it.
    #[must_use]
    pub fn is_as_documented(&self) -> bool {
        self.described.is_as_documented
    }

    /// Returns what has judged its description with deliveries, such as `stripe@23.1.0`: a library that verifies or signs
    /// them, or `published vectors`. The version is that of npm or `PyPI`, or of the program that sent them.
    #[must_use]
    pub fn judge(&self) -> Option<&str> {
        self.described.judge.as_deref()
    }

    /// Whether it brings the secret itself, in a handshake: see [`on_secret`](crate::Webhooks::on_secret).
    #[must_use]
    pub fn brings_secret(&self) -> bool {
        self.described.handshake.is_some()
    }

    /// Whether the signature covers the key, so that a captured delivery cannot be sent again under another key.
    #[must_use]
    pub fn covers_key(&self) -> bool {
        self.described.schemes.iter().all(|scheme| {
            let mut parts = scheme.key.iter();
            // `covers` counts every body as signed, but a token signs nothing.
            scheme.algorithm != Algorithm::Token
                && !scheme.key.is_empty()
                && parts.all(|part| scheme.covers(part))
        })
    }

    /// Whether equal bodies under other keys, or without any, are different events. Otherwise, they are one event: the
    /// [replay guard](crate::Webhooks::replay_guard) refuses the second one, or their keys are equal, too.
    #[must_use]
    pub fn has_equal_bodies(&self) -> bool {
        let is_free = |scheme: &Scheme| {
            let mut keys = scheme.key.iter();
            scheme.key.is_empty() || keys.any(|it| it.header().is_some() && !scheme.covers(it))
        };
        // The keys of items are made of the body.
        !self.has_batches()
            && !self.needs_replay_guard()
            && self.described.schemes.iter().any(is_free)
    }

    /// Whether equal bodies under other keys are a replay.
    pub(crate) fn needs_replay_guard(&self) -> bool {
        let it = &self.described;
        // Whoever has the token can send any body.
        let is_signed = |scheme: &Scheme| scheme.algorithm != Algorithm::Token;
        !it.has_equal_bodies && !self.covers_key() && it.schemes.iter().any(is_signed)
    }

    /// Whether it is the chat platform, whose events this crate knows.
    pub(crate) fn is_chat_platform(&self) -> bool {
        self.described.is_platform
    }

    /// Whether its bodies may be forms, whose fields are read with their event type.
    pub(crate) fn sends_forms(&self) -> bool {
        let types = self.described.content_types();
        types.is_some_and(|it| it.contains(&Media::Form))
    }

    /// Returns the JSON object of a form's fields, in which the pointers of a description find their values; a field that
    /// holds a JSON object or array is that. `None` for other bodies, and other senders.
    ///
    /// ```
    /// use tower_webhook::Sender;
    ///
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let slack = Sender::named("slack-commands", None)?;
    /// let object = slack.form_as_json(b"command=%2Fweather&text=94070");
    /// assert_eq!(object.as_deref(), Some(r#"{"command":"/weather","text":"94070"}"#));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn form_as_json(&self, body: &[u8]) -> Option<String> {
        match self.described.readable(body).ok()? {
            Cow::Owned(object) => String::from_utf8(object).ok(),
            Cow::Borrowed(_) => None,
        }
    }

    /// What the events have in common that are handled in order, if this one has it.
    pub(crate) fn order_of<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        self.described.order_of(body)
    }

    /// Where an event says which others it must not overtake: empty if it does not.
    pub(crate) fn order(&self) -> &Pointers {
        &self.described.order
    }

    /// Whether a delivery may have several events.
    pub(crate) fn has_batches(&self) -> bool {
        self.described.batch.is_some()
    }

    /// Returns the events of a verified delivery.
    pub(crate) fn parts(&self, delivery: &RawDelivery) -> Parts {
        let batch = self.described.batch.as_deref();
        batch.map_or(Parts::Whole, |it| it.parts(&self.described.order, delivery))
    }

    pub(crate) fn described(&self) -> &Described {
        &self.described
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.clock
            .as_ref()
            .map_or_else(SystemTime::now, |clock| clock())
    }

    /// Returns the headers of a delivery that is not signed, as [`Webhooks::dangerously_unsigned`] takes it: those of
    /// `delivery`, the content type, and the event type and key where this sender has them in headers.
    ///
    /// [`Webhooks::dangerously_unsigned`]: crate::Webhooks::dangerously_unsigned
    ///
    /// ```
    /// use tower_webhook::{EventKind, RawDelivery, Sender};
    ///
    /// let delivery = RawDelivery::new(EventKind::CHAT_RATED, r#"{"id":"chat-1"}"#);
    /// let headers = Sender::chat_platform().unsigned(&delivery);
    /// assert_eq!(headers["x-service-event"], "chat-rated");
    /// ```
    #[must_use]
    pub fn unsigned(&self, delivery: &RawDelivery) -> HeaderMap {
        let mut headers = delivery.headers().clone();
        let content_type = HeaderValue::from_static(media::written(self.described.content_types()));
        headers.insert(http::header::CONTENT_TYPE, content_type);
        let Scheme { kind, key, .. } = &self.described.schemes[0];
        let value = HeaderValue::from_str(delivery.kind().as_str());
        if let (Some(name), Ok(value)) = (kind.header(), value) {
            headers.insert(name, value);
        }
        // A joined key cannot be taken apart again, so the caller adds its headers.
        if let ([Place::Header(name)], Some(key)) = (&key[..], delivery.key()) {
            headers.insert(name, key.value().clone());
        }
        headers
    }
}

/// A sender of deliveries of several events, and which event types its route keeps. Requests carry it.
#[derive(Clone)]
pub(crate) struct Batches {
    sender: Sender,
    kept: Option<Arc<BTreeSet<EventKind>>>,
    /// For whoever watches the delivery.
    kinds: Option<ItemKinds>,
}

impl Batches {
    pub(crate) fn new(
        sender: Sender,
        kept: Option<Arc<BTreeSet<EventKind>>>,
        kinds: Option<ItemKinds>,
    ) -> Self {
        Self {
            sender,
            kept,
            kinds,
        }
    }

    /// That of a request whose delivery is not yet split.
    #[inline]
    pub(crate) fn of(request: &Request<Verified>) -> Option<Self> {
        if !request.body().may_have_items() {
            return None;
        }
        request.extensions().get().cloned()
    }

    pub(crate) fn parts(&self, delivery: &RawDelivery) -> Parts {
        let parts = self.sender.parts(delivery);
        if let (Some(kinds), Parts::Items(parts)) = (&self.kinds, &parts) {
            kinds.note(parts, delivery);
        }
        parts
    }

    pub(crate) fn keeps(&self, kind: &EventKind) -> bool {
        self.kept.as_ref().is_none_or(|kept| kept.contains(kind))
    }

    /// Whether an item is kept. Each is whose event type cannot be read.
    pub(crate) fn keeps_part(&self, part: &Part) -> bool {
        part.kind.as_ref().map_or(true, |kind| self.keeps(kind))
    }
}

/// What is kept of a token, and compared.
fn token_tag(token: &[u8]) -> Option<CtOutput<Hmac<Sha256>>> {
    // Hashes have one length, so the comparison does not tell how long the token is. The token itself is not kept.
    let hash = Hmac::<Sha256>::new_from_slice(b"tower-webhook: a token").ok()?;
    Some(hash.chain_update(token).finalize())
}

/// The chat platform.
impl Default for Sender {
    fn default() -> Self {
        Self::chat_platform()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("name", &self.name())
            .field("schemes", &self.described.schemes)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its description has no value that the rest of the crate has otherwise.
    #[test]
    fn the_chat_platform_is_described_as_it_is_documented() {
        let platform = Sender::chat_platform();
        assert_eq!(platform.name(), "chat-platform");
        assert!(platform.is_chat_platform());
        assert_eq!(platform.policy(), SenderPolicy::default());
        assert!(!platform.covers_key() && !platform.needs_replay_guard());
        assert!(!platform.is_asymmetric() && platform.order().is_empty());
        assert!(platform.check().is_ok() && platform.described.challenges.is_empty());
        let text = Sender::profile("chat-platform").unwrap();
        let copy = text
            .replace("chat-platform", "copy")
            .replace("true", "false");
        let copy = Sender::from_json(&copy).unwrap();
        assert!(!copy.is_chat_platform());
        assert!(copy.branded("acme").is_err());
    }

    #[test]
    fn a_mistake_in_a_description_is_named() {
        let text = Sender::profile("github").unwrap();
        for (from, to, reason) in [
            (
                "\"github\",",
                "\"github\"",
                "expected `,` or `}` at line 3 column 3",
            ),
            (
                "\"kind\"",
                "\"type\"",
                "unknown field `type`, expected one of",
            ),
            (
                "\"hex\"",
                "\"hexa\"",
                "unknown variant `hexa`, expected one of",
            ),
            (
                "sha256=",
                "sha256,",
                "signature.prefix: it contains the `split`",
            ),
        ] {
            let text = text.replace(from, to);
            let text = text.replace("\"prefix\"", "\"split\": \",\", \"prefix\"");
            let error = Sender::from_json(&text).unwrap_err();
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(source.contains(reason), "{source}");
        }
    }

    #[test]
    fn a_brand_stands_in_the_names() {
        let branded = |brand| Sender::chat_platform().branded(brand);
        let sender = branded("Acme-Chat").unwrap();
        let names = |sender: &Sender| {
            let scheme = &sender.described().schemes[0];
            let (signature, event, key) = (&scheme.headers, &scheme.kind, &scheme.key);
            format!("{signature:?} {event:?} {key:?}")
        };
        let acme = r#"["x-acme-chat-hmac-sha256"] Header("x-acme-chat-event") [Header("idempotency-key")]"#;
        assert_eq!(names(&sender), acme);
        let other = sender.branded("other").unwrap();
        assert_eq!(names(&other), acme.replace("acme-chat", "other"));
        assert!(Sender::github().branded("acme").is_err());
        for wrong in ["", "a b", "a:b", "ä", "a\n", &"x".repeat(70_000)] {
            let error = branded(wrong).unwrap_err();
            assert!(matches!(error, ConfigError::HeaderPrefix(brand) if brand == wrong));
        }
    }
}
