use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use tower_service::Service;

use super::buffer::Receive;
use super::config::Config;
use super::future::ResponseFuture;
use super::handshake;
use super::headers::declared_length;
use super::refusal::Refusal;
use super::secret::Secrets;
use super::sign::check;
use super::verifier::{admits, greeted};
use super::verify::{Authentication, Hashing};
use crate::answer::ResponseBody;
use crate::config::ConfigError;
use crate::error::BoxError;
use crate::sender::{Head, Reply, Sender, SignatureError};
use crate::verified::Verified;

/// The service of [`SignatureLayer`](super::SignatureLayer).
#[derive(Clone, Debug)]
pub struct Signature<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> Signature<S> {
    pub(super) fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
    }
}

impl<S: Clone> Signature<S> {
    /// Returns a service that verifies with another description of the same sender, and with other secrets, as after their
    /// files were changed. The inner service and all settings stay.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// use tower_webhook::{EventRouter, Secret, Sender, Webhooks};
    ///
    /// let (webhooks, running) = Webhooks::new(Secret::new("old")?)
    ///     .sender(Sender::github())
    ///     .start(EventRouter::new())?;
    /// let webhooks = webhooks.with_sender(Sender::github(), Secret::new("new")?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Sender`] when a secret is not written as this sender writes its secrets, or something has changed that
    /// other settings were derived from: its name, its [policy](Sender::policy), `order`, `max-body`, whether it needs
    /// the [replay guard](crate::Webhooks::sender), `platform`, or whether a public key verifies it.
    pub fn with_sender(
        &self,
        sender: Sender,
        secrets: impl Into<Secrets>,
    ) -> Result<Self, ConfigError> {
        let (old, secrets) = (&self.config.sender, secrets.into());
        let changed = [
            ("name", old.name() != sender.name()),
            ("policy", old.policy() != sender.policy()),
            (
                "need of a replay guard",
                old.needs_replay_guard() != sender.needs_replay_guard(),
            ),
            ("order", old.order() != sender.order()),
            ("max-body", old.max_body() != sender.max_body()),
            (
                "platform",
                old.is_chat_platform() != sender.is_chat_platform(),
            ),
            // A public key must not become a secret.
            ("sort of key", old.is_asymmetric() != sender.is_asymmetric()),
            ("verifier", self.config.authentication.verifier().is_some()),
        ];
        if let Some((what, _)) = changed.into_iter().find(|(_, has_changed)| *has_changed) {
            return Err(old.is_wrong(&format!("its {what} has changed: this needs a restart")));
        }
        sender.check()?;
        check(&sender, &secrets)?;
        let mut config = Config::clone(&self.config);
        // Limits, throttle and observers are shared with the old service, which still answers what it has begun.
        if let Some(neighbour) = &mut config.neighbour {
            neighbour.learn(&config.route, &sender, &secrets);
        }
        config.authentication = Authentication::Signed(secrets);
        config.success = sender.described().success().cloned().map(Arc::new);
        config.sender = sender;
        Ok(Self::new(self.inner.clone(), Arc::new(config)))
    }
}

impl<S, B, ResBody> Service<Request<B>> for Signature<S>
where
    S: Service<Request<Verified>, Response = Response<ResBody>> + Clone,
    B: Body<Error: Into<BoxError>>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    /// Always ready: only a verified delivery waits for the inner service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B> {
        let (parts, body) = request.into_parts();
        let config = &self.config;
        let begun = begin(&parts, config);
        let (refusal, body) = match begun {
            Ok((hashing, declared)) => {
                match Receive::new(body, declared, &config.bounds, hashing) {
                    Ok(receive) => {
                        // The clone waits until it is ready, after the verification. So `self.inner` needs no `poll_ready`.
                        let inner = self.inner.clone();
                        return ResponseFuture::receive(receive, parts, inner, Arc::clone(config));
                    }
                    Err(refusal) => (refusal, None),
                }
            }
            Err(refusal) => (refusal, Some(body)),
        };
        let decided = challenge(refusal, &parts, config);
        if let (Err(Refusal::InvalidSignature(error)), Some(body)) = (&decided, body)
            && let Some(receive) = config.tried(*error, &parts, body)
        {
            return ResponseFuture::refused(receive, *error, parts, Arc::clone(config));
        }
        ResponseFuture::decided(decided, parts, Arc::clone(config))
    }
}

/// Begins the verification, unless the request's head is reason enough to refuse it. Returns the length that it declares, too.
#[inline]
fn begin(parts: &Parts, config: &Config) -> Result<(Hashing, Option<u64>), Refusal> {
    // Whatever the head alone can refuse is refused before the body is read.
    if parts.method != Method::POST {
        return Err(Refusal::MethodNotAllowed);
    }
    let (uri, headers) = (Some(&parts.uri), &parts.headers);
    let head = Head::of_post(uri, headers);
    let hashing = match Hashing::new(&config.authentication, &config.sender, head) {
        Err(SignatureError::Missing) if handshake::may_be_in_body(parts, config) => {
            Hashing::Handshake
        }
        hashing => hashing.map_err(Refusal::InvalidSignature)?,
    };
    if let (Hashing::Later, Some(verifier)) = (&hashing, config.authentication.verifier()) {
        admits(verifier, parts, config)?;
    }
    Ok((hashing, declared_length(headers)?))
}

/// The answer to a refused request after all, if it is a challenge that is not signed, or for a verifier with any
/// method but POST.
fn challenge(refusal: Refusal, parts: &Parts, config: &Config) -> Result<Reply, Refusal> {
    if let Some(verifier) = config.authentication.verifier() {
        return match refusal {
            Refusal::MethodNotAllowed => greeted(verifier, parts, config).unwrap_or(Err(refusal)),
            _ => Err(refusal),
        };
    }
    if let Refusal::InvalidSignature(SignatureError::Missing) = refusal
        && let Some(decided) = handshake::in_head(parts, config)
    {
        return decided;
    }
    // Only after a refusal: a delivery never pays for the look-up.
    let sender = &config.sender;
    let hmac = |text: &[u8]| {
        let coding = sender.described().scheme(&parts.headers).secret;
        config.authentication.first()?.sign_as(coding, text)
    };
    match sender.greeted(parts, hmac) {
        None => Err(refusal),
        Some(reply) => reply.map_err(Refusal::InvalidChallenge),
    }
}
