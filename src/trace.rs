//! The span of a delivery.

use http::Response;
use tokio::time::Instant;
use tracing::field::{Empty, display};
use tracing::span::Entered;
use tracing::{Span, info_span};

use crate::answer::Outcome;
use crate::delivery::RawDelivery;

/// The span that all of one delivery happens in, and when that began.
#[derive(Clone)]
pub(crate) struct DeliverySpan {
    span: Span,
    /// `None` when nobody listens.
    started: Option<Instant>,
}

impl DeliverySpan {
    pub(crate) fn new() -> Self {
        Self::starting(info_span!(
            "delivery",
            kind = Empty,
            key = Empty,
            attempt = Empty,
            secret = Empty,
            outcome = Empty,
            duration_ms = Empty,
        ))
    }

    /// The span that [`new`](Self::new) made, for what happens in it from now on.
    pub(crate) fn current() -> Self {
        Self::starting(Span::current())
    }

    fn starting(span: Span) -> Self {
        let started = (!span.is_disabled()).then(Instant::now);
        Self { span, started }
    }

    pub(crate) fn enter(&self) -> Entered<'_> {
        self.span.enter()
    }

    /// What is known of the delivery once it is verified. `secret` names the secret by its label,
    /// or by its place in the set.
    pub(crate) fn verified(&self, delivery: &RawDelivery, secret: Option<(usize, Option<&str>)>) {
        if self.span.is_disabled() {
            return;
        }
        self.span.record("kind", delivery.kind().as_str());
        if let Some(key) = delivery.key() {
            self.span
                .record("key", display(key.as_bytes().escape_ascii()));
        }
        match secret {
            Some((_, Some(label))) => self.span.record("secret", label),
            Some((index, None)) => self.span.record("secret", index),
            None => &self.span,
        };
    }

    pub(crate) fn finish<B, E>(&self, result: &Result<Response<B>, E>) {
        let Some(started) = self.started else { return };
        let outcome = result.as_ref().map_or(Outcome::FAILED, Outcome::of);
        self.span.record("outcome", outcome);
        let duration = started.elapsed().as_micros() as f64;
        self.span.record("duration_ms", duration / 1e3);
    }
}
