//! How events are taken.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use async_trait::async_trait;

use super::{Due, FOREVER, MemoryQueue, Place, Ready, State};
use crate::delivery::RawDelivery;
use crate::inbox::event::{EventId, EventLease, Kinds, Share, Shares, Take, TakenEvent, UNCOUNTED};
use crate::inbox::queue::{BYTES_OF_CLAIM, ClaimEvents, Claims};
use crate::route::EventType;
use crate::store::{Fence, StoreError};

#[async_trait]
impl ClaimEvents for MemoryQueue {
    async fn claim(
        &self,
        of: &[Share],
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        Ok(self.lock().claim(of, limit, suspects))
    }

    async fn take(&self, id: EventId, take: &Take) -> Result<Option<TakenEvent>, StoreError> {
        let mut state = self.lock();
        // The order of a chat comes before what a person wants: an event behind another one is not taken.
        let can_take = state.may_take(take, id.0) && state.is_first(id.0);
        Ok(can_take.then(|| state.take(id.0, take)))
    }
}

/// The types that the shares take, if each share names them.
fn named(of: &[Share]) -> Option<Vec<EventType>> {
    let mut named = Vec::new();
    for share in of {
        let Kinds { route, .. } = &share.take.kinds;
        let included = share.take.kinds.included()?.iter();
        named.extend(included.map(|kind| EventType::new(route.clone(), kind.clone())));
    }
    Some(named)
}

/// The events that are ready, of these types or of all. Types that nobody takes cost nothing.
fn types<'a>(
    ready: &'a Ready,
    named: Option<&'a [EventType]>,
) -> impl Iterator<Item = (&'a EventType, &'a BTreeSet<Due>)> {
    let all = named.is_none().then(|| ready.iter());
    let named = named.unwrap_or_default().iter();
    let named = named.filter_map(|of| ready.get_key_value(of));
    named.chain(all.into_iter().flatten())
}

impl State {
    pub(super) fn may_take(&self, take: &Take, id: i64) -> bool {
        self.events.get(&id).is_some_and(|event| {
            let is_due = matches!(event.place, Place::Line { due } if due <= self.now);
            is_due && self.is_open(take, &event.of)
        })
    }

    fn is_open(&self, take: &Take, EventType { route, kind }: &EventType) -> bool {
        let is_paused = self.paused.keys().any(|paused| paused.has(route, kind));
        !is_paused && take.kinds.takes(route, kind)
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
        let delivery = RawDelivery::new(event.of.kind.clone(), body)
            .with_route(event.of.route.clone())
            .with_key(event.key.clone())
            .with_headers(event.headers.clone())
            .with_boxed_item(event.item.clone())
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

    pub(super) fn claim(&mut self, of: &[Share], limit: usize, suspects: usize) -> Claims {
        let mut claims = Claims::default();
        let mut suspects = suspects;
        let mut shares = Shares::new(of);
        let named = named(of);
        let mut bytes = 0;
        let next = loop {
            let ready = types(&self.ready, named.as_deref()).map(|ready| (false, ready));
            let suspect = types(&self.suspects, named.as_deref()).map(|ready| (true, ready));
            // Types are indexed apart, so a million events of a paused type cost a claim as much as one.
            let firsts = ready.chain(suspect.filter(|_| suspects > 0));
            let firsts = firsts.filter_map(|(is_suspect, (event_type, events))| {
                let share = of
                    .iter()
                    .position(|share| self.is_open(&share.take, event_type))?;
                let (due, id) = *events.first()?;
                let busy = shares.busy(share, &event_type.kind);
                let has_room = shares.has_room(share, &event_type.kind);
                // A suspect was in progress before all that waits.
                has_room.then_some((!is_suspect, busy, due, id, share))
            });
            let firsts: Vec<_> = firsts.collect();
            let due_now = firsts.iter().filter(|(_, _, due, ..)| *due <= self.now);
            let first = due_now
                .min()
                .filter(|_| claims.events.len() < limit && bytes < BYTES_OF_CLAIM);
            let Some((.., id, share)) = first.copied() else {
                break firsts.into_iter().map(|(_, _, due, ..)| due).min();
            };
            let taken = self.take(id, &of[share].take);
            suspects -= usize::from(taken.crashes > 0);
            shares.take(share, taken.delivery.kind());
            bytes += taken.delivery.body().len();
            claims.events.push(taken);
        };
        // These events are in no index of ready ones, but one of them may be the next that is due.
        let is_next = |id| {
            let is_taken = claims.events.iter().any(|taken| taken.lease.id.0 == id);
            let open = self.events.get(&id).filter(|_| !is_taken).map(|it| &it.of);
            open.is_some_and(|it| {
                let share = of.iter().position(|share| self.is_open(&share.take, it));
                share.is_some_and(|share| shares.has_room(share, &it.kind))
            })
        };
        let later = [&self.taken, &self.aside];
        let later = later.map(|events| events.iter().find(|(_, id)| is_next(*id)));
        let later = later.into_iter().flatten().map(|(due, _)| *due);
        let next = later.chain(next).min();
        claims.next_due = next.map(|due| due.saturating_duration_since(self.now));
        claims
    }
}
