//! How events are accepted, taken and settled.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

use super::{Due, Event, FOREVER, Key, Kind, OVERHEAD, Place, State, size};
use crate::delivery::RawDelivery;
use crate::inbox::event::{
    EventId, EventLease, EventState, Failure, NewEvent, Settlement, Take, TakenEvent, UNCOUNTED,
    uncounted,
};
use crate::inbox::queue::{Accepted, Claims, Settled};
use crate::store::Fence;

impl State {
    pub(super) fn accept(&mut self, new: NewEvent, take: Option<&Take>) -> Accepted {
        if let Some(known) = self.known(&new) {
            return known;
        }
        self.last_id += 1;
        let id = self.last_id;
        let until = self.now + new.retain.min(FOREVER);
        for digests in [new.key, new.guard].into_iter().flatten() {
            let key = Key {
                body: digests.body(),
                event: id,
                until,
            };
            self.keys.insert(digests.key(), key);
            self.forget.insert((until, digests.key()));
        }
        let is_dead = new.dead.is_some();
        self.bytes += OVERHEAD + size(new.delivery.body(), new.delivery.headers());
        self.events.insert(id, Event::new(new, self.now));
        self.retained.insert((until, id));
        if is_dead {
            return Accepted::New {
                id: EventId(id),
                taken: None,
            };
        }
        let is_first = self.join_line(id);
        let taken = take
            .filter(|take| is_first && self.may_take(take, id))
            .map(|take| Box::new(self.take(id, take)));
        Accepted::New {
            id: EventId(id),
            taken,
        }
    }

    /// The answer to an event that was accepted before.
    fn known(&self, new: &NewEvent) -> Option<Accepted> {
        for digests in [new.key, new.guard].into_iter().flatten() {
            let Some(key) = self.keys.get(&digests.key()) else {
                continue;
            };
            let is_unsettled = || self.events.get(&key.event).is_some_and(Event::is_kept);
            if key.until <= self.now && !is_unsettled() {
                continue;
            }
            let same_body = key.body == digests.body();
            return Some(match new.key == Some(digests) || same_body {
                true => Accepted::Duplicate { same_body },
                false => Accepted::BodyReplayed,
            });
        }
        None
    }

    fn may_take(&self, take: &Take, id: i64) -> bool {
        self.events.get(&id).is_some_and(|event| {
            let is_due = matches!(event.place, Place::Line { due } if due <= self.now);
            is_due && self.is_open(take, &event.kind)
        })
    }

    fn is_open(&self, take: &Take, (namespace, kind): &Kind) -> bool {
        !self.is_paused && !self.paused.contains(kind) && take.kinds.takes(*namespace, kind)
    }

    /// Takes the first event of a line.
    pub(super) fn take(&mut self, id: i64, take: &Take) -> TakenEvent {
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
            tried_for: event.first_failed.map(|first| now - first),
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
        let mut next = [&self.taken, &self.aside]
            .into_iter()
            .filter_map(|events| events.iter().find(|(_, id)| is_open(*id)))
            .map(|(due, _)| *due)
            .min();
        loop {
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

    pub(super) fn extend(&mut self, lease: &EventLease, by: Duration) -> bool {
        let Some((id, until)) = self.held(lease) else {
            return false;
        };
        self.taken.remove(&(until, id));
        let until = self.now + by.min(FOREVER);
        self.taken.insert((until, id));
        self.event(id).place = Place::Taken {
            until,
            fence: lease.fence.0,
        };
        true
    }

    /// The event of a lease that is held, and the end of that lease. One that expired is held again, unless another
    /// event of the lane comes first now.
    fn held(&mut self, lease: &EventLease) -> Option<(i64, Instant)> {
        let (id, fence) = (lease.id.0, lease.fence.0);
        let event = self.events.get(&id)?;
        match event.place {
            Place::Taken { until, fence: held } if held == fence => Some((id, until)),
            Place::Line { .. } if event.expired == Some(fence) && self.is_first(id) => {
                let until = self.now;
                self.unset_ready(id);
                let event = self.event(id);
                event.expired = None;
                event.crashes -= 1;
                event.place = Place::Taken { until, fence };
                let lane = event.lane;
                self.busy.extend(lane.map(|lane| (lane, id)));
                Some((id, until))
            }
            _ => None,
        }
    }

    pub(super) fn settle(
        &mut self,
        lease: &EventLease,
        settlement: &Settlement,
        take: Option<&Take>,
    ) -> Settled {
        let Some((id, until)) = self.held(lease) else {
            return Settled::Lost;
        };
        self.taken.remove(&(until, id));
        let holds = matches!(
            settlement,
            Settlement::Dead {
                hold_lane: true,
                ..
            }
        );
        if !holds {
            self.set_free(id);
        }
        let now = self.now;
        let event = self.event(id);
        let leaves = event.settle(settlement, now);
        if let Place::Aside { due } = event.place {
            self.aside.insert((due, id));
        }
        if matches!(settlement, Settlement::Handled | Settlement::Ignored) {
            self.with_body.insert((now, id));
        }
        if !leaves {
            self.set_first_ready(id);
            return Settled::Ended(None);
        }
        let next = self.leave_line(id);
        let next = next.zip(take).filter(|(id, take)| self.may_take(take, *id));
        Settled::Ended(next.map(|(id, take)| Box::new(self.take(id, take))))
    }
}

impl Event {
    fn new(new: NewEvent, now: Instant) -> Self {
        Self {
            kind: (new.namespace, new.delivery.kind().clone()),
            key: new.delivery.key().cloned(),
            body: Some(new.delivery.body().clone()),
            headers: new.delivery.headers().clone(),
            chat: new.chat,
            lane: new.lane,
            accepted: now,
            place: match new.dead {
                Some(_) => Place::Ended {
                    state: EventState::Dead,
                    at: now,
                },
                None => Place::Line { due: now },
            },
            failures: new.dead.is_some().into(),
            first_failed: None,
            uncounted: 0,
            crashes: 0,
            expired: None,
            is_redriven: false,
            past: new.dead.map(|failure| (now, failure)).into_iter().collect(),
        }
    }

    /// Moves to the place of a settlement, and returns whether it leaves its line.
    fn settle(&mut self, settlement: &Settlement, now: Instant) -> bool {
        if !matches!(settlement, Settlement::Released) {
            self.crashes = 0;
        }
        let ended = |state| Place::Ended { state, at: now };
        self.place = match settlement {
            Settlement::Handled => ended(EventState::Handled),
            Settlement::Ignored => ended(EventState::Ignored),
            Settlement::Discarded(failure) => {
                self.fail(failure, now);
                ended(EventState::Discarded)
            }
            Settlement::Dead { failure, hold_lane } => {
                self.fail(failure, now);
                self.failures = self.failures.saturating_add(1);
                match *hold_lane && self.lane.is_some() {
                    true => Place::Holding { at: now },
                    false => ended(EventState::Dead),
                }
            }
            Settlement::Retry {
                after,
                failure,
                counts,
                is_probe,
                blocks_lane,
            } => {
                if let Some(failure) = failure {
                    self.fail(failure, now);
                }
                if *counts {
                    self.first_failed = self.first_failed.filter(|_| self.failures > 0);
                    self.failures = self.failures.saturating_add(1);
                } else if failure.is_some() {
                    self.uncounted = self.uncounted.saturating_add(uncounted(*is_probe));
                }
                if *counts || failure.is_some() && !is_probe {
                    self.first_failed.get_or_insert(now);
                }
                let due = now + (*after).min(FOREVER);
                match !blocks_lane && self.lane.is_some() {
                    true => Place::Aside { due },
                    false => Place::Line { due },
                }
            }
            Settlement::Released => Place::Line { due: now },
        };
        matches!(self.place, Place::Ended { .. } | Place::Aside { .. })
    }

    fn fail(&mut self, failure: &Failure, now: Instant) {
        if self.past.len() == PAST {
            self.past.remove(0);
        }
        self.past.push((now, failure.clone()));
    }
}

/// How many failures of an event are kept.
const PAST: usize = 100;
