//! How events are taken.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use async_trait::async_trait;

use super::{Due, FOREVER, Kind, MemoryQueue, Place, State};
use crate::delivery::RawDelivery;
use crate::inbox::event::{EventId, EventLease, Take, TakenEvent, UNCOUNTED};
use crate::inbox::queue::{ClaimEvents, Claims};
use crate::store::{Fence, StoreError};

#[async_trait]
impl ClaimEvents for MemoryQueue {
    async fn claim(
        &self,
        take: &Take,
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        Ok(self.lock().claim(take, limit, suspects))
    }

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError> {
        let mut state = self.lock();
        // The order of a chat comes before a probe: an event behind another one is not taken.
        let can_take = state.may_take(take, id.0) && state.is_first(id.0);
        Ok(can_take.then(|| state.take(id.0, take)))
    }
}

impl State {
    pub(super) fn may_take(&self, take: &Take, id: i64) -> bool {
        self.events.get(&id).is_some_and(|event| {
            let is_due = matches!(event.place, Place::Line { due } if due <= self.now);
            is_due && self.is_open(take, &event.kind)
        })
    }

    fn is_open(&self, take: &Take, (namespace, kind): &Kind) -> bool {
        self.all_paused.is_none()
            && !self.paused.contains_key(kind)
            && take.kinds.takes(*namespace, kind)
    }

    /// Takes the first event of a line.
    pub(super) fn take(&mut self, id: i64, take: &Take) -> TakenEvent {
        // Before the place changes, since the index has the event under the time of that place.
        self.unset_ready(id);
        self.last_fence += 1;
        let fence = self.last_fence;
        let until = self.now + take.lease.min(FOREVER);
        self.taken.insert((until, id));
        let now = self.now;
        let accepted = self.event(id).accepted;
        let accepted_at = self.time_of_day(accepted);
        let event = self.event(id);
        event.place = Place::Taken { until, fence };
        // From now on, the process whose lease has expired can neither extend nor settle it.
        event.expired = None;
        let lane = event.lane;
        self.busy.extend(lane.map(|lane| (lane, id)));
        let event = self.event(id);
        let body = event.body.clone().unwrap_or_default();
        let attempt = event.failures.saturating_add(event.crashes);
        let delivery = RawDelivery::new(event.kind.1.clone(), body)
            .with_key(event.key.clone())
            .with_headers(event.headers.clone())
            .with_attempt(NonZeroU32::MIN.saturating_add(attempt))
            .with_acceptance(accepted_at, event.is_redriven);
        TakenEvent {
            lease: EventLease {
                id: EventId(id),
                fence: Fence(fence),
                place: 0,
            },
            delivery,
            lane: event.lane,
            failures: event.failures,
            crashes: event.crashes,
            tried_for: event
                .first_failed
                // A snooze does not count as a failure, so its time does not lead to a dead letter.
                .filter(|_| !event.is_snoozed())
                .map(|first| now - first),
            uncounted: event.uncounted / UNCOUNTED,
        }
    }

    pub(super) fn claim(&mut self, take: &Take, limit: usize, suspects: usize) -> Claims {
        let mut claims = Claims::default();
        let mut suspects = suspects;
        let is_open = |id: i64| {
            let event = self.events.get(&id);
            event.is_some_and(|event| self.is_open(take, &event.kind))
        };
        // These events are in no index of ready ones, but one of them may be the next that is due.
        let mut next = [&self.taken, &self.aside]
            .into_iter()
            .filter_map(|events| events.iter().find(|(_, id)| is_open(*id)))
            .map(|(due, _)| *due)
            .min();
        loop {
            // Kinds are indexed apart, so a million events of a paused kind cost a claim as much as one.
            let open = |ready: &BTreeMap<Kind, BTreeSet<Due>>| {
                ready
                    .iter()
                    .filter(|(kind, _)| self.is_open(take, kind))
                    .filter_map(|(_, events)| events.first().copied())
                    .min()
            };
            let suspect = (suspects > 0).then(|| open(&self.suspects)).flatten();
            // It was in progress before all that waits.
            let first = suspect
                .filter(|(due, _)| *due <= self.now)
                .or_else(|| [open(&self.ready), suspect].into_iter().flatten().min());
            let Some((due, id)) = first else { break };
            if due > self.now || claims.events.len() == limit {
                next = next.into_iter().chain([due]).min();
                break;
            }
            let taken = self.take(id, take);
            suspects -= usize::from(taken.crashes > 0);
            claims.events.push(taken);
        }
        claims.next_due = next.map(|due| due.saturating_duration_since(self.now));
        claims
    }
}
