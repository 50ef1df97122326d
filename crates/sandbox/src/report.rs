//! Reports on events and attempts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use derive_more::{Display, FromStr};
use http::{HeaderMap, StatusCode};
use tower_webhook::event::{EventKind, Timestamp};

use super::fault::Injected;

/// The number of an event, counted from 0 in the order of creation.
///
/// The methods of [`SimulatedChat`](super::SimulatedChat) return it, and
/// [`Sandbox::event`](super::Sandbox::event) looks it up.
#[derive(Clone, Copy, Debug, Display, FromStr, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub(super) usize);

/// The number of an [`Attempt`], counted from 0 over all events in the order in which they began.
///
/// A service [in process](super::Sandbox::in_process) finds it in the extensions of its request.
#[derive(Clone, Copy, Debug, Display, FromStr, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub(super) u64);

/// One request to the receiver. See [`Sandbox::attempts`](super::Sandbox::attempts) and
/// [`EventReport::attempts`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The attempt's number.
    pub id: AttemptId,
    /// The event that was sent.
    pub event: EventId,
    /// When the attempt began, by the platform's clock.
    pub at: Timestamp,
    /// How long the attempt took, by `tokio::time`.
    pub took: Duration,
    /// The fault of the attempt. Duplicates have the fault that caused them.
    pub fault: Option<Injected>,
    /// How the attempt ended for the platform.
    pub result: AttemptResult,
    /// Why the service did not handle the event: the name of its [`Decision`](tower_webhook::Decision) and the
    /// error with its causes, such as `failed: the CRM is closed`.
    ///
    /// Only a service [in process](super::Sandbox::in_process) has one, with
    /// [`WebhookLayer`](tower_webhook::WebhookLayer) or [`SignatureLayer`](tower_webhook::SignatureLayer). The sender is
    /// never told it.
    pub reason: Option<String>,
    /// The receiver's response, even if a [`Fault`](super::Fault) kept it from the platform.
    ///
    /// Only attempts [over HTTP](super::Sandbox::over_http) have one, and of them the latest 1,000.
    pub response: Option<Arc<AttemptResponse>>,
}

/// The response to an [`Attempt`]: see [`Attempt::response`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers; none if they have more than 8 KiB together.
    pub headers: HeaderMap,
    /// The body, or the first 4 KiB of it.
    pub body: Bytes,
    /// Whether [`body`](Self::body) is the whole body.
    pub is_whole: bool,
}

/// How an [`Attempt`] ended for the platform.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptResult {
    /// The receiver responded with this status.
    Answered(StatusCode),
    /// The receiver responded with this 2xx status, but in [strict mode](super::Sandbox::strict) only 200
    /// counts.
    NotAccepted(StatusCode),
    /// A [`Fault`](super::Fault) kept the response from the platform; its status, if there was a
    /// response.
    Withheld(Option<StatusCode>),
    /// The receiver did not respond within [`Settings::attempt_timeout`](super::Settings::attempt_timeout).
    TimedOut,
    /// The request failed, for this reason.
    Failed(String),
}

impl AttemptResult {
    /// Returns whether the platform considers the event delivered: the response's status was 2xx, or in
    /// [strict mode](super::Sandbox::strict) 200.
    #[must_use]
    pub fn is_delivered(&self) -> bool {
        matches!(self, Self::Answered(status) if status.is_success())
    }
}

impl fmt::Display for AttemptResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(status) => write!(f, "{}", status.as_u16()),
            Self::NotAccepted(status) => write!(f, "{} instead of 200", status.as_u16()),
            Self::Withheld(Some(status)) => write!(f, "{} withheld", status.as_u16()),
            Self::Withheld(None) => f.write_str("no answer"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

/// The state of an event: see [`EventReport::state`] and [`Report::count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventState {
    /// The event is not delivered yet and is retried.
    Waiting,
    /// The receiver responded with a 2xx status, or in [strict mode](super::Sandbox::strict) with 200.
    Delivered,
    /// The event was given up 7 days after its first attempt
    /// ([Spec 6, rule 3](tower_webhook::docs::platform#spec-6-rule-3)), or, if it is a test event, after its only
    /// attempt, or, in [strict mode](super::Sandbox::strict), when its webhook was disabled.
    Lost,
    /// The webhook was disabled, inactive or without a URL when the event was created.
    NeverSent,
}

impl fmt::Display for EventState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::Lost => "lost",
            Self::NeverSent => "never sent",
        })
    }
}

/// An event and all attempts to deliver it. See [`Sandbox::event`](super::Sandbox::event).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventReport {
    /// The event's number.
    pub id: EventId,
    /// The event's kind.
    pub kind: EventKind,
    /// The identifier of the event's chat; `None` for a test event.
    pub chat: Option<String>,
    /// The event's idempotency key ([Spec 6, rule 2](tower_webhook::docs::platform#spec-6-rule-2)); `None` for a
    /// test event.
    pub key: Option<String>,
    /// When the event was created, by the platform's clock.
    pub arose_at: Timestamp,
    /// The event's payload, which is the body of every attempt unless a fault changed it.
    pub body: Bytes,
    /// The event's state.
    pub state: EventState,
    /// When the event is retried, while it is [`Waiting`](EventState::Waiting).
    pub next_retry: Option<Timestamp>,
    /// The attempts that have ended.
    pub attempts: Vec<Attempt>,
}

impl EventReport {
    /// Returns the reason of the first attempt that has one. An attempt without a fault comes first: a
    /// tampered body is refused, however good the receiver is.
    fn reason(&self) -> Option<&str> {
        let (with, without): (Vec<_>, Vec<_>) = self
            .attempts
            .iter()
            .filter(|attempt| attempt.reason.is_some())
            .partition(|attempt| attempt.fault.is_some());
        without.into_iter().chain(with).next()?.reason.as_deref()
    }
}

impl fmt::Debug for EventReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not derived: a body of a megabyte would hide the rest of a failed assertion.
        f.debug_struct("EventReport")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("chat", &self.chat)
            .field("key", &self.key)
            .field("arose_at", &self.arose_at)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .field("state", &self.state)
            .field("next_retry", &self.next_retry)
            .field("attempts", &self.attempts)
            .finish()
    }
}

impl fmt::Display for EventReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, chat) = (self.kind.as_str(), self.chat.as_deref().unwrap_or("-"));
        write!(
            f,
            "{:>6}  {kind:<16}  {chat:<10}  {:<10} ",
            self.id.0, self.state
        )?;
        let is_same = |one: &Attempt, other: &Attempt| {
            (&one.result, one.fault) == (&other.result, other.fault)
        };
        for same in self.attempts.chunk_by(is_same) {
            write!(f, " {}", same[0].result)?;
            if let Some(fault) = same[0].fault {
                write!(f, " [{fault}]")?;
            }
            if same.len() > 1 {
                write!(f, " ×{}", same.len())?;
            }
            f.write_str(";")?;
        }
        match self.reason() {
            Some(reason) => write!(f, "\n        {reason}"),
            None => Ok(()),
        }
    }
}

/// All events of a [`Sandbox`](super::Sandbox) and their attempts.
///
/// `Display` shows them as a table, with equal attempts as one (`500 ×1009`) and the first
/// [reason](Attempt::reason) of each event below it.
///
/// [`Sandbox::finish`](super::Sandbox::finish) and [`Sandbox::report`](super::Sandbox::report) return it.
///
/// ```
/// # use tower_webhook_sandbox::{Body, Fault, Sandbox, Webhook};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
/// # });
/// # let sandbox = Sandbox::in_process(receiver);
/// # sandbox.configure_all(&Webhook::new("/webhooks"));
/// sandbox.inject(Fault::DropResponse);
/// sandbox.chat().assign();
/// let report = sandbox.finish().await;
///
/// let results: Vec<_> = report.attempts().iter().map(|attempt| attempt.result.to_string()).collect();
/// assert_eq!(results, ["200 withheld", "200"]);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The events in the order of creation.
    pub events: Vec<EventReport>,
}

impl Report {
    /// Returns the number of events in this state.
    #[must_use]
    pub fn count(&self, state: EventState) -> usize {
        self.events
            .iter()
            .filter(|event| event.state == state)
            .count()
    }

    /// Returns whether every event was [`Delivered`](EventState::Delivered).
    #[must_use]
    pub fn is_all_delivered(&self) -> bool {
        self.count(EventState::Delivered) == self.events.len()
    }

    /// Returns all attempts in the order in which they began.
    #[must_use]
    pub fn attempts(&self) -> Vec<&Attempt> {
        let mut attempts: Vec<_> = self
            .events
            .iter()
            .flat_map(|event| &event.attempts)
            .collect();
        attempts.sort_by_key(|attempt| attempt.id);
        attempts
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            " event  kind              chat        state       attempts"
        )?;
        for event in &self.events {
            writeln!(f, "{event}")?;
        }
        write!(f, "{} events", self.events.len())?;
        for state in [
            EventState::Delivered,
            EventState::Waiting,
            EventState::Lost,
            EventState::NeverSent,
        ] {
            write!(f, ", {} {state}", self.count(state))?;
        }
        Ok(())
    }
}
