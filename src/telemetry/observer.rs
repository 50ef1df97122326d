//! The observer, and its observations.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::request::Asked;
use super::tally::{Kept, Sample};
use crate::delivery::RawDelivery;
use crate::event::EventKind;
use crate::outcome::{Failure, Outcome, Settlement};
use crate::route::RouteName;
use crate::sender::Sender;

/// Sees each delivery, attempt, and call of a store or an inbox when it has ended.
///
/// Pass it to [`Webhooks::observer`](crate::Webhooks::observer), or to the setters of the same name of the
/// single layers and of an inbox. Tuples combine several observers, and an [`Arc`] shares one:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tower_webhook::telemetry::{FailureBudget, Observation, Observer};
/// use tower_webhook::{Secret, Webhooks};
///
/// /// Counts the deliveries that the platform counts as failed.
/// #[derive(Default)]
/// struct Failures(AtomicU64);
///
/// impl Observer for Failures {
///     fn observe(&self, observation: &Observation<'_>) {
///         if let Observation::Delivery(delivery) = observation
///             && delivery.is_failure()
///         {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// # fn main() -> Result<(), tower_webhook::ConfigError> {
/// let failures = Arc::new(Failures::default());
/// let budget = FailureBudget::default();
/// let webhooks = Webhooks::new(Secret::new("8c1f…")?).observer((failures.clone(), budget.clone()));
/// # Ok(())
/// # }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Takes note of an observation.
    ///
    /// It is called in the task of the delivery or the attempt, which waits for it, so it should return within
    /// microseconds. A panic is logged and has no other effect.
    fn observe(&self, observation: &Observation<'_>);

    /// Passes on what an inbox keeps of the counts of this observer. Nothing, unless this crate counts.
    #[doc(hidden)]
    fn kept(&self, _keep: &mut dyn FnMut(Kept)) {}
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn observe(&self, observation: &Observation<'_>) {
        (**self).observe(observation);
    }

    fn kept(&self, keep: &mut dyn FnMut(Kept)) {
        (**self).kept(keep);
    }
}

impl<O: Observer> Observer for Option<O> {
    fn observe(&self, observation: &Observation<'_>) {
        if let Some(observer) = self {
            observer.observe(observation);
        }
    }

    fn kept(&self, keep: &mut dyn FnMut(Kept)) {
        if let Some(observer) = self {
            observer.kept(keep);
        }
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {$(
        impl<$($name: Observer),*> Observer for ($($name,)*) {
            fn observe(&self, observation: &Observation<'_>) {
                #[allow(non_snake_case, reason = "named like their types")]
                let ($($name,)*) = self;
                $(tell($name, observation);)*
            }

            fn kept(&self, keep: &mut dyn FnMut(Kept)) {
                #[allow(non_snake_case, reason = "named like their types")]
                let ($($name,)*) = self;
                $($name.kept(keep);)*
            }
        }
    )*};
}

tuples! {
    (A B)
    (A B C)
    (A B C D)
    (A B C D E)
    (A B C D E F)
}

/// Something that has ended. Matches need an arm for other observations, which later versions may add.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Observation<'a> {
    /// A delivery, or a request that was refused.
    Delivery(DeliveryEnded<'a>),
    /// An attempt to handle an event, by an [`IdempotencyLayer`](crate::IdempotencyLayer), a worker of an inbox, or a
    /// transactional handler that has neither.
    Attempt(AttemptEnded<'a>),
    /// An inbox accepted an event that is a dead letter from the start, such as one whose body is not a JSON object.
    AcceptedDead {
        /// The route at which it arrived.
        route: &'a RouteName,
        /// The event's kind.
        kind: &'a EventKind,
        /// The number of the event, or 0 while it is spooled.
        event: i64,
        /// The reason, such as why the body cannot be decoded.
        reason: &'a str,
    },
    /// A call of a store or an inbox.
    Call(CallEnded<'a>),
    /// A client disconnected, and the attempt continues without it.
    Detached,
    /// Events of a type fail, and none succeeds, so a worker [slows down](crate::docs::inbox#types-that-fail) its
    /// attempts.
    Slowed {
        /// The route.
        route: &'a RouteName,
        /// The kind.
        kind: &'a EventKind,
        /// False when the first success has ended it.
        is_slowed: bool,
    },
}

/// A delivery that has ended, or a request that was refused.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeliveryEnded<'a> {
    /// The route at which it arrived.
    pub route: &'a RouteName,
    /// The sender of that route. Only a [verified](Self::is_verified) delivery is certainly from it.
    pub sender: &'a Sender,
    /// The name of the answer in the [table of responses](crate::docs::responses), such as `handled`, or `disconnected` if
    /// the client gave up before the answer.
    pub outcome: &'static str,
    /// The status of the answer. `None` if there was none, because the client gave up or the inner service failed.
    pub status: Option<StatusCode>,
    /// The value of the event header, if there is exactly one, it is valid, and it is short.
    pub kind: Option<&'a EventKind>,
    /// Whether the body was verified. If it was not, anybody may have sent the request and chosen its
    /// [`kind`](Self::kind).
    pub is_verified: bool,
    /// The delivery, if it was verified and has a valid kind and key.
    pub delivery: Option<&'a RawDelivery>,
    /// The event types of its items, if it was taken apart and has any.
    pub(super) items: Option<&'a BTreeSet<EventKind>>,
    /// The time from the request's headers to the answer.
    pub duration: Duration,
    /// The error that led to the outcome.
    pub reason: Option<&'a (dyn Error + 'static)>,
    pub(super) request: &'a Asked,
}

impl DeliveryEnded<'_> {
    /// Where the request came from. Empty if that is not known.
    pub(super) fn address(&self) -> String {
        self.request.address()
    }

    /// What is kept of the request, if it is refused.
    pub(super) fn sample(&self) -> Sample {
        let delivery = self.delivery;
        let key = delivery.and_then(RawDelivery::key);
        let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
        // A request that is refused early has no delivery. Its header then names the key, without proof.
        let key = key.or_else(|| {
            Some(Bytes::copy_from_slice(
                self.request.key.as_ref()?.as_bytes(),
            ))
        });
        self.request
            .sample(delivery.map(|delivery| delivery.body().len()), key)
    }

    /// Returns which secret of another route would have matched a request with a wrong signature, in words: see
    /// [`Neighbours`](crate::signature::Neighbours). `None` if none would, or if it was not tried.
    #[must_use]
    pub fn would_match(&self) -> Option<&str> {
        self.request.would_match.as_deref()
    }

    /// Whether the platform counts the delivery as a failed attempt
    /// ([Spec 6, rule 4](crate::docs::platform#spec-6-rule-4)): the answer's status is not 2xx, or there was none.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.status.is_none_or(|status| !status.is_success())
    }
}

/// An attempt to handle an event that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttemptEnded<'a> {
    /// The route at which the event arrived.
    pub route: &'a RouteName,
    /// The event's kind.
    pub kind: &'a EventKind,
    /// In an inbox, the number of the event.
    pub event: Option<i64>,
    /// The outcome, with its [name](Outcome::name) and its [error](Outcome::reason).
    pub outcome: &'a Outcome,
    /// `None` if the lease was lost, or if that could not be recorded.
    pub(crate) settlement: Option<&'a Settlement>,
    /// The duration of the attempt, without that of its settlement.
    pub duration: Duration,
    /// The number of the attempt, counted from 1, if it is known.
    pub number: Option<NonZeroU32>,
    /// In an inbox, the time from the acceptance of the event to the start of this attempt.
    pub since_accepted: Option<Duration>,
    /// Whether a person has redriven the event after it was settled or dead: its time since the acceptance is not the
    /// receiver's delay.
    pub is_redriven: bool,
}

impl<'a> AttemptEnded<'a> {
    /// Whether a worker of an inbox made the attempt.
    #[must_use]
    pub fn is_from_inbox(&self) -> bool {
        self.since_accepted.is_some()
    }

    /// Returns what becomes of the event. `None` if the lease was lost, or if the end could not be recorded: another
    /// attempt follows, or may be in progress.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        Some(match self.settlement? {
            Settlement::Handled => End::Handled,
            Settlement::Ignored => End::Ignored,
            Settlement::Discarded(_) => End::Discarded,
            Settlement::Dead { .. } => End::Dead,
            Settlement::Retry { after, .. } => End::Retried { after: *after },
            Settlement::Released => End::Released,
        })
    }

    /// Returns the failure that is kept with an event that is discarded, retried or dead.
    #[must_use]
    pub fn failure(&self) -> Option<&'a Failure> {
        match self.settlement? {
            Settlement::Discarded(failure) | Settlement::Dead { failure, .. } => Some(failure),
            Settlement::Retry { failure, .. } => failure.as_ref(),
            _ => None,
        }
    }
}

/// What becomes of an event after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The event was handled.
    Handled,
    /// The event has no handler.
    Ignored,
    /// The handler discarded the event.
    Discarded,
    /// A worker tries the event again.
    #[non_exhaustive]
    Retried {
        /// The delay before the next attempt.
        after: Duration,
    },
    /// The event is a dead letter.
    Dead,
    /// The attempt does not count: it was interrupted, or it was answered with a failure and the sender repeats the
    /// delivery.
    Released,
}

/// A call of a store or an inbox that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallEnded<'a> {
    /// The component that was called.
    pub target: CallTarget,
    /// The name of the method, such as `claim`.
    pub operation: &'static str,
    /// The duration of the call.
    pub duration: Duration,
    /// The error, if the call failed. A lease that has expired is not one.
    pub error: Option<&'a (dyn Error + 'static)>,
}

/// The component that a call went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallTarget {
    /// A [`Store`](crate::store::Store).
    Store,
    /// The [`Queue`](crate::inbox::Queue) of an inbox.
    Inbox,
}

impl CallTarget {
    /// Returns `store` or `inbox`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Inbox => "inbox",
        }
    }
}

/// The observer of a layer, if it has one.
#[derive(Clone, Default)]
pub(crate) struct Observers(Option<Arc<dyn Observer>>);

impl Observers {
    pub(crate) fn new(observer: impl Observer) -> Self {
        Self(Some(Arc::new(observer)))
    }

    /// Whether anybody observes. Nothing should be prepared for nobody.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.0.is_some()
    }

    /// Returns what an inbox keeps of the observer's counts.
    pub(crate) fn kept(&self) -> Vec<Kept> {
        let mut all = Vec::new();
        if let Some(observer) = &self.0 {
            observer.kept(&mut |kept| all.push(kept));
        }
        all
    }

    pub(crate) fn observe(&self, observation: &Observation<'_>) {
        if let Some(observer) = &self.0 {
            tell(&**observer, observation);
        }
    }

    /// Reports an event that was accepted as a dead letter.
    pub(crate) fn accepted_dead(
        &self,
        route: &RouteName,
        kind: &EventKind,
        event: i64,
        reason: &str,
    ) {
        tracing::error!(
            event,
            %route,
            %kind,
            reason,
            "the event is a dead letter from the start, which waits for a person"
        );
        self.observe(&Observation::AcceptedDead {
            route,
            kind,
            event,
            reason,
        });
    }
}

/// Tells an observer. The caller is in the middle of a delivery or an attempt, which a broken observer must not end, and
/// other observers are told, too.
fn tell(observer: &(impl Observer + ?Sized), observation: &Observation<'_>) {
    let observed = catch_unwind(AssertUnwindSafe(|| observer.observe(observation)));
    if observed.is_err() {
        tracing::error!("an observer panicked");
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.any() { "Some(..)" } else { "None" })
    }
}
