//! The outcome of one attempt to handle an event, with or without HTTP, and what becomes of the event.

mod shape;

use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::delivery::DecodeError;
use crate::error::{BoxError, Chain};

pub use self::shape::{Shape, UnknownShape};

/// The outcome of one attempt to handle an event.
///
/// [`EventRouter`](crate::EventRouter) returns one for each delivery. Over HTTP it is answered as the
/// [table of responses](crate::docs::responses) says, and [`completes`](Self::completes) decides how the
/// claim on the event's key is settled. In an inbox, it decides
/// [what becomes of the event](crate::docs::inbox#when-an-attempt-fails).
///
/// # From a service of your own
///
/// A service behind [`IdempotencyLayer`](crate::IdempotencyLayer) that is not an `EventRouter` settles
/// the claim by the status of its response. To settle it differently, insert an outcome into the
/// response's extensions:
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_webhook::Outcome;
///
/// // Accepted, but not handled: the next delivery of the event runs the service again.
/// let mut response = Response::new(());
/// *response.status_mut() = StatusCode::ACCEPTED;
/// response.extensions_mut().insert(Outcome::Ignored);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub enum Outcome {
    /// The [`Handler`](crate::Handler) returned `Ok`.
    Handled,
    /// An [inbox](crate::docs::inbox) stored the event, and a worker handles it later. No attempt ends with it.
    Accepted,
    /// The event had been handled before; no handler ran. Returned by
    /// [`IdempotencyLayer`](crate::IdempotencyLayer) and by transactional handlers, and by an
    /// [inbox](crate::docs::inbox) for an event that had been accepted before.
    Replayed,
    /// This kind of event has no handler, and the delivery is acknowledged.
    Ignored,
    /// This kind of event is not [kept](crate::Webhooks::keep_only), and the delivery is acknowledged. No attempt ends
    /// with it.
    Filtered,
    /// This kind of event has no handler, and
    /// [`reject_unhandled`](crate::EventRouter::reject_unhandled) was called.
    Unhandled,
    /// The handler gave the event up with
    /// [`HandlerError::discard`](crate::HandlerError::discard).
    Discarded(Arc<dyn Error + Send + Sync>),
    /// The handler gave the event up with
    /// [`HandlerError::dead_letter`](crate::HandlerError::dead_letter). Only an
    /// [inbox](crate::docs::troubleshooting#dead-letters) keeps it.
    DeadLetter(Arc<dyn Error + Send + Sync>),
    /// The body is not the JSON object that the event should carry, and there is no
    /// [`on_undecodable`](crate::EventRouter::on_undecodable).
    Undecodable(DecodeError),
    /// The handler returned an error, as by [`HandlerError::retry`](crate::HandlerError::retry).
    Failed {
        /// The handler's error.
        reason: Arc<dyn Error + Send + Sync>,
        /// The delay that the handler asked for with
        /// [`HandlerError::retry_after`](crate::HandlerError::retry_after).
        retry_after: Option<Duration>,
    },
    /// The handler asked to be called again later, with
    /// [`HandlerError::snooze`](crate::HandlerError::snooze).
    Snoozed {
        /// The delay that it asked for.
        delay: Duration,
    },
    /// The handler panicked. The error is the message and the place of the panic. A panic hook notes the place: the first
    /// attempt installs it, and it calls the hook that was there before.
    Panicked(Arc<dyn Error + Send + Sync>),
    /// The handler exceeded its
    /// [`handler_timeout`](crate::Webhooks::handler_timeout) and was dropped.
    TimedOut {
        /// The time limit.
        limit: Duration,
    },
    /// The [`lease`](crate::Webhooks::lease) on the event's key, or on the event in an inbox, was lost while
    /// the handler ran, and the handler was dropped, or its transaction rolled back.
    LeaseLost,
    /// The process died or the lease expired in each of the last attempts, so a worker of an inbox makes no other one.
    Crashed {
        /// The number of these attempts.
        crashes: u32,
    },
    /// A worker of an inbox was stopped, and the handler was dropped. The attempt does not count.
    Interrupted,
    /// Another attempt holds the event's key, and did not end within
    /// [`in_flight_wait`](crate::Webhooks::in_flight_wait).
    InFlight {
        /// The rest of that attempt's lease, unless it is renewed.
        remaining: Duration,
    },
    /// Some items of a [batch](crate::docs::senders#batches) were not handled. The next delivery handles only these.
    Incomplete {
        /// The number of items that were not handled.
        left: u32,
        /// The number of items of the delivery.
        count: u32,
    },
    /// The [`Store`](crate::store::Store), the queue of an inbox or the database was unavailable, and no handler ran.
    Unavailable {
        /// The error of the store or the database.
        reason: Arc<dyn Error + Send + Sync>,
        /// The delay after which another attempt makes sense.
        retry_after: Duration,
    },
    /// The handler succeeded, but the store did not record the success.
    NotRecorded(Arc<dyn Error + Send + Sync>),
    /// The handler succeeded, but its transaction may not have been committed.
    NotCommitted {
        /// The error of the commit.
        reason: Arc<dyn Error + Send + Sync>,
        /// The delay after which another attempt makes sense.
        retry_after: Duration,
    },
}

/// The names of outcomes that are also reported without one.
pub(crate) mod name {
    pub(crate) const HANDLED: &str = "handled";
    pub(crate) const DISCARDED: &str = "discarded";
    pub(crate) const DEAD_LETTER: &str = "dead-letter";
    pub(crate) const UNDECODABLE: &str = "undecodable";
    pub(crate) const FAILED: &str = "failed";
    pub(crate) const SNOOZED: &str = "snoozed";
}

impl Outcome {
    /// Whether the claim on the event's key is completed. Otherwise it is released or expires, so that a
    /// later delivery of the event is handled.
    ///
    /// ```
    /// use tower_webhook::Outcome;
    ///
    /// assert!(Outcome::Handled.completes());
    /// assert!(!Outcome::Ignored.completes());
    /// assert!(!Outcome::LeaseLost.completes());
    /// ```
    #[must_use]
    pub fn completes(&self) -> bool {
        match self {
            Self::Handled
            | Self::Accepted
            | Self::Replayed
            | Self::Discarded(_)
            | Self::DeadLetter(_) => true,
            Self::Ignored
            | Self::Filtered
            | Self::Unhandled
            | Self::Undecodable(_)
            | Self::Failed { .. }
            | Self::Snoozed { .. }
            | Self::Panicked(_)
            | Self::TimedOut { .. }
            | Self::LeaseLost
            | Self::Crashed { .. }
            | Self::Interrupted
            | Self::InFlight { .. }
            | Self::Incomplete { .. }
            | Self::Unavailable { .. }
            | Self::NotRecorded(_)
            | Self::NotCommitted { .. } => false,
        }
    }

    /// The name of the outcome, in the log and in the [table of responses](crate::docs::responses).
    ///
    /// ```
    /// use tower_webhook::Outcome;
    ///
    /// assert_eq!(Outcome::Handled.name(), "handled");
    /// assert_eq!(Outcome::LeaseLost.name(), "lease-lost");
    /// ```
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Handled => name::HANDLED,
            Self::Accepted => "accepted",
            Self::Replayed => "replayed",
            Self::Ignored => "ignored",
            Self::Filtered => "filtered",
            Self::Unhandled => "unhandled",
            Self::Discarded(_) => name::DISCARDED,
            Self::DeadLetter(_) => name::DEAD_LETTER,
            Self::Undecodable(_) => name::UNDECODABLE,
            Self::Failed { .. } => name::FAILED,
            Self::Snoozed { .. } => name::SNOOZED,
            Self::Panicked(_) => "panicked",
            Self::TimedOut { .. } => "handler-timeout",
            Self::LeaseLost => "lease-lost",
            Self::Crashed { .. } => "crashed",
            Self::Interrupted => "interrupted",
            Self::InFlight { .. } => "in-flight",
            Self::Incomplete { .. } => "incomplete",
            Self::Unavailable { .. } => "database-unavailable",
            Self::NotRecorded(_) => "not-recorded",
            Self::NotCommitted { .. } => "not-committed",
        }
    }

    /// The error that led to this outcome.
    #[must_use]
    pub fn reason(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Discarded(reason)
            | Self::DeadLetter(reason)
            | Self::Panicked(reason)
            | Self::Failed { reason, .. }
            | Self::Unavailable { reason, .. }
            | Self::NotRecorded(reason)
            | Self::NotCommitted { reason, .. } => Some(reason.as_ref()),
            Self::Undecodable(error) => Some(error),
            Self::Handled
            | Self::Accepted
            | Self::Replayed
            | Self::Ignored
            | Self::Filtered
            | Self::Unhandled
            | Self::Snoozed { .. }
            | Self::TimedOut { .. }
            | Self::LeaseLost
            | Self::Crashed { .. }
            | Self::Interrupted
            | Self::InFlight { .. }
            | Self::Incomplete { .. } => None,
        }
    }

    /// What became of the event without an inbox, where the claim on its key was completed or released.
    pub(crate) fn settlement_of_claim(&self, is_completed: bool) -> Settlement {
        match (self, is_completed) {
            (Self::Discarded(_) | Self::DeadLetter(_), true) => {
                Settlement::Discarded(self.failure(None))
            }
            (_, true) => Settlement::Handled,
            (Self::Ignored | Self::Filtered, false) => Settlement::Ignored,
            (_, false) => Settlement::Released,
        }
    }

    /// Describes the outcome in one line: by its error, if it has one.
    pub(crate) fn describe(&self) -> String {
        /// How much of an error is stored and logged, in bytes.
        const LONGEST: usize = 1024;

        let Some(error) = self.reason() else {
            return match self {
                Self::TimedOut { limit } => {
                    format!("the handler exceeded its time limit of {limit:?}")
                }
                Self::InFlight { .. } => "another attempt is in progress".to_owned(),
                Self::Incomplete { left, count } => {
                    format!("{left} of {count} items were not handled")
                }
                Self::Unhandled => "this kind of event has no handler".to_owned(),
                Self::Crashed { crashes } => {
                    format!("the process died or the lease expired in {crashes} attempts in a row")
                }
                other => other.name().to_owned(),
            };
        };
        // The error is the handler's, whose text may be long, and whose `Display` may panic.
        let text = catch_unwind(AssertUnwindSafe(|| Chain(error).to_string()));
        let mut text =
            text.unwrap_or_else(|_| "the error panicked when it was displayed".to_owned());
        let end = (0..=LONGEST.min(text.len())).rfind(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
        text
    }

    /// Describes an attempt that did not succeed.
    pub(crate) fn failure(&self, took: Option<Duration>) -> Failure {
        Failure {
            took,
            ..Failure::new(self.name(), self.describe())
        }
    }

    pub(crate) fn failed(reason: impl Into<BoxError>) -> Self {
        Self::Failed {
            reason: reason.into().into(),
            retry_after: None,
        }
    }

    pub(crate) fn unavailable(reason: impl Into<BoxError>, retry_after: Duration) -> Self {
        Self::Unavailable {
            reason: reason.into().into(),
            retry_after,
        }
    }
}

/// The [name](Outcome::name) of the outcome.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What becomes of an event when an attempt to handle it has ended.
///
/// Without an inbox, an event is `Handled`, `Ignored` or `Discarded`, or `Released`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settlement {
    /// The event was handled.
    Handled,
    /// The event has no handler. It can be redriven after a handler was added.
    Ignored,
    /// The handler discarded the event.
    Discarded(Failure),
    /// The event is a dead letter.
    Dead {
        /// The reason.
        failure: Failure,
        /// Whether the lane waits for the dead letter.
        hold_lane: bool,
    },
    /// The event is tried again.
    Retry {
        /// The delay before the next attempt.
        after: Duration,
        /// The reason. `None` for a snoozed event.
        failure: Option<Failure>,
        /// Whether the failure counts.
        counts: bool,
        /// Whether attempts of its type are slowed down, as the whole type fails: it says little of the event.
        is_slowed: bool,
        /// Whether the lane waits for the next attempt. Otherwise, the event is tried again out of order.
        blocks_lane: bool,
    },
    /// The attempt was interrupted, and does not count: the event can be taken again at once. Without an inbox, the
    /// attempt failed, and the platform delivers the event again.
    Released,
}

/// The reason why an attempt did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The [name](Outcome::name) of the outcome.
    pub outcome: String,
    /// The error with its causes, in one line.
    pub reason: String,
    /// The duration of the attempt. `None` if it is not known, as for a crash.
    pub took: Option<Duration>,
    /// What it has in common with others of the same cause.
    pub shape: Shape,
}

impl Failure {
    /// Returns the failure of an attempt, without its duration: for tests.
    ///
    /// ```
    /// use tower_webhook::inbox::Failure;
    ///
    /// assert_eq!(Failure::new("failed", "the CRM is down").took, None);
    /// ```
    #[must_use]
    pub fn new(outcome: impl Into<String>, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self {
            outcome: outcome.into(),
            shape: Shape::of(&reason),
            reason,
            took: None,
        }
    }

    /// Sets the duration of the attempt.
    #[must_use]
    pub fn took(mut self, duration: Duration) -> Self {
        self.took = Some(duration);
        self
    }

    /// Whether the outcome or the reason contains a text. ASCII letters match in either case.
    pub(crate) fn contains(&self, text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        let mut texts = [&self.outcome, &self.reason].into_iter();
        texts.any(|of| of.to_ascii_lowercase().contains(&text))
    }
}
