//! Handlers of events, and their errors.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::delivery::Delivery;
use crate::event::Event;
use crate::outcome::Outcome;

/// Handles the events of one kind.
///
/// Implement it for a struct, once for each event; or write a closure or a function from
/// [`Delivery<E>`] to a future of [`HandlerResult`]:
///
/// ```
/// use tower_webhook::event::{ChatClosed, ChatRated, MessageCreated};
/// use tower_webhook::{Delivery, EventRouter, Handler, HandlerResult};
///
/// #[derive(Clone)]
/// struct Crm;
///
/// impl Handler<ChatRated> for Crm {
///     async fn handle(&self, delivery: Delivery<ChatRated>) -> HandlerResult {
///         let _rating = delivery.payload.rating;
///         Ok(())
///     }
/// }
///
/// impl Handler<ChatClosed> for Crm {
///     async fn handle(&self, _: Delivery<ChatClosed>) -> HandlerResult {
///         Ok(())
///     }
/// }
///
/// let router = EventRouter::new()
///     .on::<ChatRated>(Crm)
///     .on::<ChatClosed>(Crm)
///     .on::<MessageCreated>(async |message: Delivery<MessageCreated>| {
///         println!("{:?}", message.payload.text);
///         Ok(())
///     });
/// ```
///
/// # When the compiler rejects a handler
///
/// - A closure must clone a captured value before it moves it into its future:
///   `move |delivery| { let db = db.clone(); async move { … } }`.
/// - A closure must name the type of its argument: `|delivery: Delivery<ChatRated>|`.
/// - The future must be [`Send`]: no value that is not, such as an `Rc` or the guard of a
///   `std::sync::Mutex`, may live across an `.await`.
/// - `.on::<E>(..)` names the event, and the handler must take exactly `Delivery<E>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle `{E}`",
    label = "not a `Handler<{E}>`",
    note = "implement `Handler<{E}>`, or pass `async |delivery: Delivery<{E}>| {{ … Ok(()) }}`",
    note = "the documentation of `Handler` explains the compiler's errors"
)]
pub trait Handler<E: Event>: Send + Sync + 'static {
    /// Handles one event. Without an inbox, the delivery is acknowledged after this has returned `Ok`.
    ///
    /// The future may be dropped at any `.await`, when its time limit has passed or its lease is lost. The
    /// event is then handled on the platform's next retry, or in an [inbox](crate::docs::inbox) on that of the
    /// worker.
    ///
    /// # Errors
    ///
    /// Any error retries the event. Return [`HandlerError::discard`] for an event that will never succeed.
    fn handle(&self, delivery: Delivery<E>) -> impl Future<Output = HandlerResult> + Send;
}

impl<E, F, Fut> Handler<E> for F
where
    E: Event,
    F: Fn(Delivery<E>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send,
{
    fn handle(&self, delivery: Delivery<E>) -> impl Future<Output = HandlerResult> + Send {
        self(delivery)
    }
}

impl<E: Event, H: Handler<E>> Handler<E> for Arc<H> {
    fn handle(&self, delivery: Delivery<E>) -> impl Future<Output = HandlerResult> + Send {
        H::handle(self, delivery)
    }
}

/// The result of a [`Handler`].
pub type HandlerResult = Result<(), HandlerError>;

/// The error of a [`Handler`], which decides whether the event is retried or given up.
///
/// Every error converts into one with `?`, which retries the event. The text of the error is logged and
/// never sent to the platform.
///
/// Inline, it determines the [response](crate::docs::responses#event-router), after which the platform retries or not.
/// In an inbox, it determines [what becomes of the event](crate::docs::inbox#when-an-attempt-fails).
///
/// ```
/// use std::time::Duration;
///
/// use tower_webhook::event::ChatRated;
/// use tower_webhook::{Delivery, HandlerError, HandlerResult};
///
/// # fn is_maintenance() -> bool { true }
/// async fn rated(delivery: Delivery<ChatRated>) -> HandlerResult {
///     let Some(id) = delivery.payload.id else {
///         return Err(HandlerError::discard("a rating without a chat"));
///     };
///     if is_maintenance() {
///         return Err(HandlerError::retry_after(Duration::from_secs(60), "the CRM is read-only"));
///     }
///     let chat: u64 = id.parse()?; // is retried
///     println!("{chat}");
///     Ok(())
/// }
/// ```
pub struct HandlerError(Outcome);

impl HandlerError {
    /// Retries the event, as `?` does.
    ///
    /// Inline, the platform delivers it again after
    /// [`SenderPolicy::retry_every`](crate::SenderPolicy::retry_every), 10 minutes, for up to
    /// [`retry_for`](crate::SenderPolicy::retry_for), 7 days
    /// ([Spec 6, rule 3](crate::docs::platform#spec-6-rule-3)). In an [inbox](crate::docs::inbox), the worker tries it
    /// again after 5 seconds to 1 hour, also for up to 7 days.
    ///
    /// ```
    /// # use tower_webhook::HandlerError;
    /// assert!(!HandlerError::retry("the CRM is down").is_discard());
    /// ```
    pub fn retry(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Outcome::failed(reason))
    }

    /// Retries the event, not earlier than after `delay`. See [`Outcome::Failed`].
    ///
    /// Inline, the delay becomes the answer's `Retry-After`, rounded up to a second. The platform does not
    /// promise to respect it. In an [inbox](crate::docs::inbox), the event is tried again after this delay or the
    /// usual one, whichever is longer.
    pub fn retry_after(
        delay: Duration,
        reason: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self(Outcome::Failed {
            reason: reason.into().into(),
            retry_after: Some(delay),
        })
    }

    /// Asks to be called again later, for an event that came too early. See [`Outcome::Snoozed`].
    ///
    /// In an [inbox](crate::docs::inbox), the event is tried again after `delay`, and the attempt does not count.
    /// Inline, the answer is 503 with `Retry-After`, which the platform counts as a failed attempt.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_webhook::HandlerError;
    /// let error = HandlerError::snooze(Duration::from_secs(600));
    /// assert!(!error.is_discard());
    /// ```
    #[must_use]
    pub fn snooze(delay: Duration) -> Self {
        Self(Outcome::Snoozed { delay })
    }

    /// Gives the event up: it is not handled again. The reason is logged as a warning. See
    /// [`Outcome::Discarded`].
    ///
    /// Inline, the platform gets a 200.
    ///
    /// ```
    /// # use tower_webhook::HandlerError;
    /// assert!(HandlerError::discard("a rating without a chat").is_discard());
    /// ```
    pub fn discard(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Outcome::Discarded(reason.into().into()))
    }

    /// Gives the event up until a person has looked at it. See [`Outcome::DeadLetter`].
    ///
    /// In an [inbox](crate::docs::inbox), it is kept as a dead letter, until a person redrives or discards it. Inline,
    /// it is discarded, with a warning that says so.
    ///
    /// ```
    /// # use tower_webhook::HandlerError;
    /// assert!(HandlerError::dead_letter("not a chat of this account").is_discard());
    /// ```
    pub fn dead_letter(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Outcome::DeadLetter(reason.into().into()))
    }

    /// Whether the event is given up, by [`discard`](Self::discard) or
    /// [`dead_letter`](Self::dead_letter).
    #[must_use]
    pub fn is_discard(&self) -> bool {
        matches!(self.0, Outcome::Discarded(_) | Outcome::DeadLetter(_))
    }

    /// Returns the error that this one was created from: `None` if it was [snoozed](Self::snooze).
    #[must_use]
    pub fn into_source(self) -> Option<Arc<dyn std::error::Error + Send + Sync>> {
        match self.0 {
            Outcome::Failed { reason, .. }
            | Outcome::Discarded(reason)
            | Outcome::DeadLetter(reason) => Some(reason),
            _ => None,
        }
    }

    /// The error of a handler of this crate that ended the attempt with `outcome`.
    #[cfg(feature = "postgres")]
    pub(crate) fn ended(outcome: Outcome) -> Self {
        Self(outcome)
    }
}

impl From<HandlerResult> for Outcome {
    fn from(result: HandlerResult) -> Self {
        result.map_or_else(|error| error.0, |()| Self::Handled)
    }
}

impl<T: Into<Box<dyn std::error::Error + Send + Sync>>> From<T> for HandlerError {
    fn from(error: T) -> Self {
        Self::retry(error)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0, self.0.reason()) {
            (_, Some(reason)) => fmt::Display::fmt(reason, f),
            (Outcome::Snoozed { delay }, _) => {
                write!(f, "the handler snoozed the event for {delay:?}")
            }
            (other, None) => other.fmt(f),
        }
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
