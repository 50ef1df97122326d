//! Observes how a delivery ends, even if its client gives up, and how an attempt ends.

use std::error::Error;
use std::mem;
use std::num::NonZeroU32;
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use tokio::time::Instant;

use super::observer::{AttemptEnded, DeliveryEnded, Observation, Observers};
use super::request::Asked;
use crate::delivery::RawDelivery;
use crate::event::EventKind;
use crate::outcome::{Outcome, Settlement};
use crate::route::RouteName;
use crate::sender::{ItemKinds, Sender};

/// Reports the end of one delivery to an observer. Dropped before that, it reports that the client disconnected.
pub(crate) struct DeliveryWatch(Option<Box<Watched>>);

struct Watched {
    observers: Observers,
    route: RouteName,
    sender: Sender,
    started: Instant,
    delivery: Option<RawDelivery>,
    items: Option<ItemKinds>,
    asked: Asked,
}

/// How a delivery ended, beside what its watch knows.
pub(crate) struct Ending<'a> {
    pub(crate) outcome: &'static str,
    pub(crate) status: Option<StatusCode>,
    pub(crate) kind: Option<&'a EventKind>,
    pub(crate) is_verified: bool,
    pub(crate) reason: Option<&'a (dyn Error + 'static)>,
}

/// The outcome of a delivery whose client gave up before its answer.
const DISCONNECTED: &str = "disconnected";

impl DeliveryWatch {
    #[inline]
    pub(crate) fn new(observers: &Observers, route: &RouteName, sender: &Sender) -> Self {
        // Without an observer, a delivery pays neither for the box nor for the clock.
        if !observers.any() {
            return Self(None);
        }
        // A box, so that the future of a delivery without an observer has a pointer more, and not all of this.
        Self(Some(Box::new(Watched {
            observers: observers.clone(),
            route: route.clone(),
            sender: sender.clone(),
            started: Instant::now(),
            delivery: None,
            items: None,
            asked: Asked::default(),
        })))
    }

    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        self.0.is_some()
    }

    /// Notes that the delivery was verified, and the head of its request.
    #[inline]
    pub(crate) fn verified(&mut self, delivery: &RawDelivery, head: &Parts) {
        if let Some(watched) = &mut self.0 {
            watched.delivery = Some(delivery.clone());
            watched.asked = Asked::of(&head.headers, &head.extensions);
        }
    }

    /// Where whoever takes the delivery apart notes the event types of its items. `None` if nobody observes.
    pub(crate) fn items(&mut self) -> Option<ItemKinds> {
        let watched = self.0.as_mut()?;
        Some(watched.items.insert(ItemKinds::default()).clone())
    }

    /// Notes what is known of a request that is refused.
    pub(crate) fn refused(&mut self, asked: impl FnOnce() -> Asked) {
        if let Some(watched) = &mut self.0 {
            watched.asked = asked();
        }
    }

    pub(crate) fn ended(&mut self, ending: &Ending<'_>) {
        // Taken, so that the drop of this watch does not report a second end.
        if let Some(watched) = mem::take(&mut self.0) {
            watched.report(ending);
        }
    }
}

impl Watched {
    fn report(&self, ending: &Ending<'_>) {
        let Ending {
            outcome,
            status,
            kind,
            is_verified,
            reason,
        } = *ending;
        let delivery = self.delivery.as_ref();
        let ended = DeliveryEnded {
            route: &self.route,
            sender: &self.sender,
            outcome,
            status,
            kind: kind.or(delivery.map(RawDelivery::kind)),
            // A drop does not know how far the delivery came. Only a verified one is noted here.
            is_verified: is_verified || delivery.is_some(),
            delivery,
            items: self.items.as_ref().and_then(ItemKinds::get),
            duration: self.started.elapsed(),
            reason,
            request: &self.asked,
        };
        self.observers.observe(&Observation::Delivery(ended));
    }
}

impl Drop for DeliveryWatch {
    #[inline]
    fn drop(&mut self) {
        if self.is_observed() {
            self.ended(&Ending {
                outcome: DISCONNECTED,
                status: None,
                kind: None,
                is_verified: false,
                reason: None,
            });
        }
    }
}

/// Reports the end of one attempt to an observer.
pub(crate) struct AttemptWatch(Option<Box<Attempt>>);

struct Attempt {
    observers: Observers,
    route: RouteName,
    kind: EventKind,
    event: Option<i64>,
    number: Option<NonZeroU32>,
    since_accepted: Option<Duration>,
    is_redriven: bool,
    started: Instant,
    duration: Option<Duration>,
}

impl AttemptWatch {
    /// Begins to observe the attempt of a delivery, in an inbox that of its event.
    #[inline]
    pub(crate) fn new(observers: &Observers, delivery: &RawDelivery, event: Option<i64>) -> Self {
        if !observers.any() {
            return Self(None);
        }
        let accepted = delivery.accepted_at();
        Self(Some(Box::new(Attempt {
            observers: observers.clone(),
            route: delivery.route().clone(),
            kind: delivery.kind().clone(),
            event,
            number: delivery.attempt(),
            // If the queue's clock is ahead, the time is 0. `None` would say that no inbox has made the attempt.
            since_accepted: accepted.map(|at| at.elapsed().unwrap_or_default()),
            is_redriven: delivery.is_redriven(),
            started: Instant::now(),
            duration: None,
        })))
    }

    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        self.0.is_some()
    }

    /// Ends the duration of the attempt, before it is settled.
    #[inline]
    pub(crate) fn stop(mut self) -> Self {
        if let Some(attempt) = &mut self.0 {
            attempt.duration = Some(attempt.started.elapsed());
        }
        self
    }

    pub(crate) fn ended(self, outcome: &Outcome, settlement: Option<&Settlement>) {
        let Some(attempt) = self.0 else { return };
        let ended = AttemptEnded {
            route: &attempt.route,
            kind: &attempt.kind,
            event: attempt.event,
            outcome,
            settlement,
            duration: attempt
                .duration
                .unwrap_or_else(|| attempt.started.elapsed()),
            number: attempt.number,
            since_accepted: attempt.since_accepted,
            is_redriven: attempt.is_redriven,
        };
        attempt.observers.observe(&Observation::Attempt(ended));
    }
}
