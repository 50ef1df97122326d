//! The spans `delivery` and `attempt`. `signature/future.rs`, `idempotency/future.rs` (a detached run) and
//! `inbox/worker/attempt.rs` own one each: they record the outcome, and the span closes with its last handle.

use http::{HeaderMap, HeaderName};
use tokio::time::Instant;
use tracing::field::{Empty, display};
use tracing::span::Entered;
use tracing::{Level, Span, enabled, info_span};

use crate::delivery::RawDelivery;
use crate::event::{EventKind, chat_id};
use crate::route::RouteName;
use crate::telemetry::Short;

/// The span of a delivery, and the time at which it began.
#[derive(Clone)]
pub(crate) struct DeliverySpan {
    span: Span,
    /// `None` when no subscriber is interested.
    started: Option<Instant>,
}

/// The value of `messaging.system`.
const SYSTEM: &str = "webhook";

/// The outcomes that are no errors.
const SUCCESSES: [&str; 5] = ["handled", "accepted", "replayed", "ignored", "filtered"];

/// Set by a proxy or by another layer. It is not signed.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is recorded, in characters after escaping, since anybody can send one.
const LONGEST_REQUEST_ID: usize = 64;

/// Whether a subscriber asks for OpenTelemetry's attributes, which repeat other fields: a log shows both.
fn has_attributes() -> bool {
    enabled!(target: "tower_webhook::opentelemetry", Level::TRACE)
}

/// The span of an item of a delivery, in that of the delivery.
pub(crate) fn item_span(item: &RawDelivery) -> Span {
    let span = info_span!(
        "item",
        item = Empty,
        kind = Empty,
        key = Empty,
        attempt = Empty
    );
    if !span.is_disabled() {
        if let Some(place) = item.item() {
            span.record("item", display(place));
        }
        span.record("kind", Short(item.kind()).to_string());
        if let Some(key) = item.key() {
            span.record(
                "key",
                display(Short(key.as_bytes().escape_ascii()).to_string()),
            );
        }
    }
    span
}

impl DeliverySpan {
    /// Creates the span of a request with these headers at a route.
    pub(crate) fn new(headers: &HeaderMap, route: &RouteName) -> Self {
        // All fields are declared here, since a span ignores a field that is recorded later under a new name.
        let this = Self::starting(info_span!(
            "delivery",
            route = route.as_str(),
            kind = Empty,
            chat = Empty,
            key = Empty,
            attempt = Empty,
            secret = Empty,
            request_id = Empty,
            outcome = Empty,
            duration_ms = Empty,
            otel.kind = Empty,
            messaging.system = Empty,
            messaging.operation.name = Empty,
            messaging.message.id = Empty,
            messaging.message.conversation_id = Empty,
            "error.type" = Empty,
        ));
        // Nothing is escaped and formatted that no subscriber reads.
        if !this.span.is_disabled() {
            this.request_id(headers);
            this.attributes("receive");
        }
        this
    }

    /// Creates the span of an attempt to handle an event of an inbox. It has no parent: the delivery has been answered,
    /// perhaps days ago.
    pub(crate) fn attempt(delivery: &RawDelivery, event: i64) -> Self {
        let this = Self::starting(info_span!(
            parent: None,
            "attempt",
            event,
            route = delivery.route().as_str(),
            kind = Empty,
            chat = Empty,
            key = Empty,
            attempt = Empty,
            outcome = Empty,
            duration_ms = Empty,
            otel.kind = Empty,
            messaging.system = Empty,
            messaging.operation.name = Empty,
            messaging.message.id = Empty,
            messaging.message.conversation_id = Empty,
            "error.type" = Empty,
        ));
        this.attributes("process");
        this.delivery(delivery);
        if let Some(attempt) = delivery.attempt() {
            this.span.record("attempt", attempt.get());
        }
        this
    }

    fn attributes(&self, operation: &'static str) {
        if has_attributes() {
            self.span.record("otel.kind", "consumer");
            self.span.record("messaging.system", SYSTEM);
            self.span.record("messaging.operation.name", operation);
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Records the request id, if there is exactly one.
    fn request_id(&self, headers: &HeaderMap) {
        let mut values = headers.get_all(REQUEST_ID).iter();
        // With two values, nobody can tell which one the proxy has set.
        let (Some(value), None) = (values.next(), values.next()) else {
            return;
        };
        let escaped = value.as_bytes().escape_ascii();
        // The count stops early, since anybody can send a header of hundreds of kilobytes.
        let length = escaped.clone().take(LONGEST_REQUEST_ID + 1).count();
        if (1..=LONGEST_REQUEST_ID).contains(&length) {
            self.span.record("request_id", display(escaped));
        }
    }

    /// The current span, which [`new`](Self::new) made, for a task that continues in it.
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

    /// Records kind, chat, key and secret of a verified delivery. `secret` is the index of the secret in the set, and
    /// its label.
    pub(crate) fn verified(&self, delivery: &RawDelivery, secret: Option<(usize, Option<&str>)>) {
        if self.span.is_disabled() {
            return;
        }
        self.delivery(delivery);
        match secret {
            // During a rotation, it shows which secret has signed the delivery, and nothing of the secret itself.
            Some((_, Some(label))) => self.span.record("secret", label),
            Some((index, None)) => self.span.record("secret", index),
            None => &self.span,
        };
    }

    /// Records kind, chat and key.
    fn delivery(&self, delivery: &RawDelivery) {
        if self.span.is_disabled() {
            return;
        }
        let kind = Short(delivery.kind()).to_string();
        self.span.record("kind", kind.as_str());
        if let Some(chat) = chat_id(delivery.kind(), delivery.body()) {
            // The id is a text of the body and may have control characters, which a terminal would obey.
            let chat = Short(chat.escape_debug()).to_string();
            self.span.record("chat", display(&chat));
            if has_attributes() {
                let name = "messaging.message.conversation_id";
                self.span.record(name, chat.as_str());
            }
        }
        if let Some(key) = delivery.key() {
            let key = Short(key.as_bytes().escape_ascii()).to_string();
            self.span.record("key", display(&key));
            if has_attributes() {
                self.span.record("messaging.message.id", key.as_str());
            }
        }
    }

    /// Records the kind that the event header of a refused request names. It was not verified.
    pub(crate) fn unverified(&self, kind: &EventKind) {
        if !self.span.is_disabled() {
            self.span.record("kind", kind.as_str());
        }
    }

    /// Records the outcome, by its name in the table of responses.
    pub(crate) fn finish(&self, outcome: &'static str) {
        let Some(started) = self.started else { return };
        self.span.record("outcome", outcome);
        let duration = started.elapsed().as_micros() as f64;
        self.span.record("duration_ms", duration / 1e3);
        if has_attributes() && !SUCCESSES.contains(&outcome) {
            self.span.record("error.type", outcome);
        }
    }
}
