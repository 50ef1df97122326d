//! Verification by code of the application: [`Verifier`], and those of Twilio and Mailgun.
//!
//! A [`Sender`](crate::Sender) that can be described by data needs none of this. A verifier is for the others: whose
//! signature stands beside others in the body, covers fields in an order of its own, or needs a certificate or a key that has
//! to be fetched. [`Webhooks::verified_by`](crate::Webhooks::verified_by) puts it in the place of the secrets.

mod mailgun;
mod run;
mod twilio;

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::Request;
use http::request::Parts;

pub use self::mailgun::Mailgun;
pub(super) use self::run::{Verifying, admits, greeted};
pub use self::twilio::Twilio;
use super::secret::Secrets;
use crate::delivery::IdempotencyKey;
use crate::error::BoxError;
use crate::event::{EventKind, SenderPolicy};
use crate::sender::{Reply, SignatureError};

/// Decides by code whether a request is authentic, for a sender that no description fits.
///
/// It stands where the signature is compared otherwise: after the method, the size and the time of the body were checked, and
/// before anything else reads the request. So a handler still gets verified deliveries only, **if this verifier is right**:
///
/// - Compare tags in constant time, as [`Secrets::verify`] and
///   [`Sender::verify`](crate::Sender::verify) do, and read nothing that decides from what is not signed, such as the name of an
///   algorithm.
/// - The request can be anything that HTTP can carry, with a body of up to [`max_body`](crate::Webhooks::max_body) bytes.
///
/// # Fetching
///
/// [`verify`](Self::verify) is async, so it can fetch a certificate or a set of keys. Anybody can send a request, so:
///
/// - Fetch only what can help: after all that the request itself can be refused for, from a host that *you* configured, never
///   from a URL in the request, and without following redirects.
/// - Keep what was fetched, failures too, for a time: one request must not cost one fetch. Limit how much is kept, and the bytes
///   that are read of a response: they do not count as those of bodies.
/// - All of it must end within [`body_timeout`](crate::Webhooks::body_timeout), 10 seconds by default, counted from the body's
///   last byte. Then, and when the client disconnects, the future is dropped. Spawn a task for work that must outlive it,
///   such as a shared fetch.
///
/// While it runs, the body counts as still being received: beyond [`max_buffered`](crate::Webhooks::max_buffered), it
/// is given up, and the slowest goes first.
///
/// A panic is caught, and answered like [`VerifierError::Unavailable`].
///
/// # Example
///
/// A sender that signs its `id` and `sum`, and sends the tag in the body:
///
/// ```
/// use http::Request;
/// use std::time::Duration;
/// use tower_webhook::signature::{Proof, SignatureError, Verdict, Verifier, VerifierError};
/// use tower_webhook::{EventKind, IdempotencyKey, Secret, Secrets, SenderPolicy, Webhooks};
///
/// struct Acme(Secrets);
///
/// #[derive(serde::Deserialize)]
/// struct Paid {
///     id: String,
///     sum: String,
///     tag: String,
/// }
///
/// #[async_trait::async_trait]
/// impl Verifier for Acme {
///     fn name(&self) -> &str {
///         "acme"
///     }
///
///     fn policy(&self) -> SenderPolicy {
///         SenderPolicy::new(Duration::from_secs(60), Duration::from_secs(3600))
///     }
///
///     fn needs_replay_guard(&self) -> bool {
///         false // The key is signed.
///     }
///
///     async fn verify(&self, request: &Request<bytes::Bytes>) -> Result<Verdict, VerifierError> {
///         let Ok(paid) = serde_json::from_slice::<Paid>(request.body()) else {
///             return Err(SignatureError::Malformed.into());
///         };
///         // The length keeps (`a`, `bc`) apart from (`ab`, `c`).
///         let signed = format!("{}:{}:{}", paid.id.len(), paid.id, paid.sum);
///         let index = self.0.verify(signed.as_bytes(), paid.tag.as_bytes())?;
///         let key = paid.id.parse::<IdempotencyKey>().map_err(VerifierError::unreadable)?;
///         let proof = Proof::new(EventKind::from_static("paid")).key(key);
///         Ok(proof.signed_by(&self.0, index).into())
///     }
/// }
///
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// let webhooks = Webhooks::verified_by(Acme(Secret::new("8c1f…")?.into()))?;
/// # Ok(())
/// # }
/// ```
///
/// The example `verifier` fetches public keys.
#[async_trait]
pub trait Verifier: Send + Sync + 'static {
    /// Returns the sender's name: 1 to 64 letters, digits, `-`, `_` and `.`. It is that of the route, unless
    /// [another](crate::Webhooks::name) is set.
    fn name(&self) -> &str;

    /// Returns when the sender retries and disables a webhook, from which all defaults are derived.
    fn policy(&self) -> SenderPolicy;

    /// Whether equal bodies under different keys are one event.
    ///
    /// A key that is not signed lets whoever captured a delivery send it again under another key. But a guard also takes two
    /// events for one whose bodies are equal, so it is right only where the signed content has a time or an id. See
    /// [`Webhooks::replay_guard`](crate::Webhooks::replay_guard).
    fn needs_replay_guard(&self) -> bool;

    /// Refuses a POST by its head, before any of its body is received: all, by default, are received.
    ///
    /// # Errors
    ///
    /// Why it proves nothing, such as a header that is [missing](SignatureError::Missing).
    fn admit(&self, _head: &Parts) -> Result<(), SignatureError> {
        Ok(())
    }

    /// Returns the answer to a request that is no POST if it is a challenge: by default, none is.
    ///
    /// Anybody can send one. Never return a tag of a text that the request chose, or anybody can have bodies signed.
    fn greet(&self, _head: &Parts) -> Option<Reply> {
        None
    }

    /// Decides about a POST whose body is complete: its bytes are as they came.
    ///
    /// # Errors
    ///
    /// Why it is refused, or cannot be decided now.
    async fn verify(&self, request: &Request<Bytes>) -> Result<Verdict, VerifierError>;

    /// Returns what a delivery is answered with that an [`EventRouter`](crate::EventRouter), an inbox or the recognition of
    /// duplicates answers with 200: by default, with an empty body. The answer of a service of your own stays as it is. It is
    /// called once, at the start.
    fn success(&self) -> Option<Reply> {
        None
    }
}

/// What an authentic request is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// An event.
    Event(Proof),
    /// The question whether somebody is there, which is answered and reaches no handler.
    Challenge(Reply),
}

impl From<Proof> for Verdict {
    fn from(proof: Proof) -> Self {
        Self::Event(proof)
    }
}

/// What a [`Verifier`] says of an event that it found to be authentic.
#[derive(Clone, Debug)]
#[must_use]
pub struct Proof {
    pub(super) kind: EventKind,
    pub(super) key: Option<IdempotencyKey>,
    pub(super) order: Option<String>,
    pub(super) body: Option<Bytes>,
    pub(super) secret: Option<(usize, Option<Arc<str>>)>,
}

impl Proof {
    /// An event of this type, without a key.
    pub fn new(kind: EventKind) -> Self {
        Self {
            kind,
            key: None,
            order: None,
            body: None,
            secret: None,
        }
    }

    /// Sets the key: the same for all deliveries of the event, and unique to it. Whoever can choose it without the secret can
    /// have an event handled again.
    pub fn key(mut self, key: impl Into<Option<IdempotencyKey>>) -> Self {
        self.key = key.into();
        self
    }

    /// Sets what events that must not overtake each other have in common, such as the id of a customer: an inbox
    /// handles them in order. [`lane_by`](crate::Webhooks::lane_by) overrides it.
    pub fn order(mut self, id: impl Into<String>) -> Self {
        self.order = Some(id.into());
        self
    }

    /// Sets the body to handle instead of the received bytes, such as a form's fields as a JSON object, or the claims
    /// of a token: an [`EventRouter`](crate::EventRouter) and an inbox need a JSON object. It must follow from the
    /// signed bytes alone.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Sets which secret of a set it was, for the log: the index that [`Secrets::verify`] returned.
    pub fn signed_by(mut self, secrets: &Secrets, index: usize) -> Self {
        let label = secrets
            .current()
            .get(index)
            .and_then(|it| it.label().cloned());
        self.secret = Some((index, label));
        self
    }
}

/// The reason why a [`Verifier`] accepts no request.
#[derive(Debug)]
#[non_exhaustive]
pub enum VerifierError {
    /// It is not authentic: 401, [`invalid-signature`](crate::docs::responses#invalid-signature).
    Refused(SignatureError),
    /// It is authentic, and has no event type or key that can be read: 400,
    /// [`unreadable-event`](crate::docs::responses#unreadable-event).
    Unreadable(BoxError),
    /// Nobody can say now, such as when a certificate cannot be fetched: 503 with `Retry-After`,
    /// [`verifier-failed`](crate::docs::responses#verifier-failed). The sender should try again.
    Unavailable(BoxError),
}

impl VerifierError {
    /// The error of a request that is authentic, and has no event type or key that can be read.
    pub fn unreadable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unreadable(error.into())
    }

    /// The error when nobody can say now whether a request is authentic.
    pub fn unavailable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(error.into())
    }
}

impl From<SignatureError> for VerifierError {
    fn from(error: SignatureError) -> Self {
        Self::Refused(error)
    }
}

errors! {
    VerifierError {
        Self::Refused(error) => "the request is not authentic" => error;
        Self::Unreadable(error) => "the event cannot be read" => error.as_ref();
        Self::Unavailable(error) => "the request cannot be verified now" => error.as_ref();
    }
}

/// A verifier, as a layer and its services hold it.
#[derive(Clone)]
pub(super) struct Shared(pub(super) Arc<dyn Verifier>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verifier").finish_non_exhaustive()
    }
}
