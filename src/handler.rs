//! What a user writes: a [`Handler`] for each event of interest.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::answer::Answer;
use crate::delivery::Delivery;
use crate::event::Event;

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
/// # When the compiler refuses a handler
///
/// - A closure that uses what it captured does so in a future of its own, so it clones that first:
///   `move |delivery| { let db = db.clone(); async move { … } }`.
/// - A closure names the type of its argument: `|delivery: Delivery<ChatRated>|`.
/// - The future must be [`Send`]: nothing that is not, such as an `Rc` or the guard of a
///   `std::sync::Mutex`, may live across an `.await`.
/// - `.on::<E>(..)` names the event, and the handler must take exactly `Delivery<E>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle `{E}`",
    label = "not a `Handler<{E}>`",
    note = "implement `Handler<{E}>`, or pass `async |delivery: Delivery<{E}>| {{ … Ok(()) }}`",
    note = "the documentation of `Handler` says what the compiler may object to"
)]
pub trait Handler<E: Event>: Send + Sync + 'static {
    /// Handles one event. The sender is told of the success after this returned `Ok`.
    ///
    /// It may be dropped at any `.await` when its time limit ends or its lease is lost, and the
    /// event is then handled again.
    ///
    /// # Errors
    ///
    /// Any error means "try again": the sender delivers the event once more. Use
    /// [`HandlerError::discard`] for an event that will never succeed.
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

/// What a handler returns.
pub type HandlerResult = Result<(), HandlerError>;

/// Why a handler did not handle an event.
///
/// Every error converts into one with `?`, and means "try again". Its text is written to the log,
/// never to the sender.
pub struct HandlerError(Answer);

impl HandlerError {
    /// Gives the event up for good: the sender is told 200 and never delivers it again.
    ///
    /// ```
    /// use tower_webhook::event::ChatRated;
    /// use tower_webhook::{Delivery, HandlerError, HandlerResult};
    ///
    /// async fn rated(delivery: Delivery<ChatRated>) -> HandlerResult {
    ///     let Some(id) = delivery.payload.id else {
    ///         return Err(HandlerError::discard("a rating without a chat"));
    ///     };
    ///     println!("{id}");
    ///     Ok(())
    /// }
    /// ```
    pub fn discard(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Answer::Discarded(reason.into()))
    }

    /// Lets the sender try again. What `?` does.
    pub fn retry(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Answer::Failed(reason.into()))
    }

    /// Whether the event was given up for good.
    #[must_use]
    pub fn is_discard(&self) -> bool {
        matches!(self.0, Answer::Discarded(_))
    }

    /// What went wrong.
    #[must_use]
    pub fn into_source(self) -> Box<dyn std::error::Error + Send + Sync> {
        match self.0 {
            Answer::Failed(error)
            | Answer::Discarded(error)
            | Answer::NotCommitted { error, .. } => error,
            Answer::StoreUnavailable { error, .. } => error.into(),
            answer => answer.detail().into(),
        }
    }
}

impl From<HandlerResult> for Answer {
    fn from(result: HandlerResult) -> Self {
        result.map_or_else(|error| error.0, |()| Self::Handled)
    }
}

/// For what a handler of this crate may answer besides.
impl From<Answer> for HandlerError {
    fn from(answer: Answer) -> Self {
        Self(answer)
    }
}

impl<T: Into<Box<dyn std::error::Error + Send + Sync>>> From<T> for HandlerError {
    fn from(error: T) -> Self {
        Self::retry(error)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandlerError").field(&self.0).finish()
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Answer::Failed(error)
            | Answer::Discarded(error)
            | Answer::NotCommitted { error, .. } => error.fmt(f),
            Answer::StoreUnavailable { error, .. } => error.fmt(f),
            answer => f.write_str(answer.detail()),
        }
    }
}
