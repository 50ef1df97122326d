//! How events are accepted, and how duplicates are recognised.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use super::{Event, FOREVER, KnownKey, MemoryQueue, OVERHEAD, Place, State, size};
use crate::inbox::event::{
    EventId, EventState, Failure, MOST_WAITING_KINDS, NewEvent, TOO_MANY_KINDS, Take,
};
use crate::inbox::queue::{AcceptEvents, Accepted};
use crate::route::EventType;
use crate::store::StoreError;

#[async_trait]
impl AcceptEvents for MemoryQueue {
    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        Ok(self.lock().accept_all(&events, take))
    }
}

impl State {
    fn accept_all(&mut self, events: &[NewEvent], take: Option<&Take>) -> Vec<Accepted> {
        if events.len() > 1 {
            let mut known = events.iter().filter_map(|event| self.known(event));
            if let Some(refused) = known.find(Accepted::refuses_all) {
                return vec![refused];
            }
        }
        let first = take.and_then(|take| take.first_of(events));
        let accept = |(at, event)| self.accept(event, take.filter(|_| first == Some(at)));
        events.iter().enumerate().map(accept).collect()
    }

    fn accept(&mut self, new: &NewEvent, take: Option<&Take>) -> Accepted {
        // First, so that a duplicate leaves nothing behind: anybody who has a delivery can repeat it.
        if let Some(known) = self.known(new) {
            return known;
        }
        self.last_id += 1;
        let id = self.last_id;
        let until = self.now + new.retain.min(FOREVER);
        // With a guard, the body has a key of its own: under another key, it is recognised as replayed.
        for digests in [new.key, new.guard].into_iter().flatten() {
            let key = KnownKey {
                body: digests.body(),
                event: id,
                until,
            };
            // The guard of a batch is that of its first item.
            if new.key == Some(digests)
                || !self
                    .keys
                    .get(&digests.key())
                    .is_some_and(|key| self.is_known(key))
            {
                self.keys.insert(digests.key(), key);
                self.forget.insert((until, digests.key()));
            }
        }
        let is_dead = new.dead.is_some();
        let of = EventType::new(new.delivery.route().clone(), new.delivery.kind().clone());
        let may_wait = is_dead || self.may_wait(&of);
        self.bytes += OVERHEAD
            + size(
                new.delivery.body(),
                new.delivery.headers(),
                new.delivery.item(),
            );
        if let Some(item) = new.delivery.item() {
            self.batches.insert((item.delivery, id));
        }
        self.events.insert(id, Event::new(new, self.now));
        self.retained.insert((until, id));
        // A dead letter joins no line, so the later events of its chat do not wait for it.
        if is_dead {
            return Accepted::New {
                id: EventId(id),
                taken: None,
            };
        }
        let is_first = self.join_line(id);
        if !may_wait && take.is_none_or(|take| !is_first || !self.may_take(take, id)) {
            let [outcome, reason] = TOO_MANY_KINDS;
            self.unset_ready(id);
            self.leave_line(id);
            let now = self.now;
            let event = self.event(id);
            event.place = Place::Ended {
                state: EventState::Dead,
                at: now,
            };
            event.failures = 1;
            event.past.push((now, Failure::new(outcome, reason)));
            return Accepted::DeadLetter { id: EventId(id) };
        }
        let taken = take
            .filter(|take| is_first && self.may_take(take, id))
            .map(|take| Box::new(self.take(id, take)));
        Accepted::New {
            id: EventId(id),
            taken,
        }
    }

    /// Whether an event of a type may wait: a worker has noted that it handles the type, one of its type is first in its lane,
    /// or not too many other types of the route are.
    fn may_wait(&self, of: &EventType) -> bool {
        let at_route = |ready: &&EventType| ready.route == of.route;
        let is_noted = |by_fallback| {
            self.handlers
                .contains_key(&(of.clone().into(), by_fallback))
        };
        self.ready.len() < MOST_WAITING_KINDS
            || self.ready.contains_key(of)
            || self.suspects.contains_key(of)
            || self.taken.iter().any(|(_, id)| self.events[id].of == *of)
            || [false, true].into_iter().any(is_noted)
            || self.ready.keys().filter(at_route).count() < MOST_WAITING_KINDS
    }

    /// Whether a key is remembered. It outlasts its retention while its event may still be handled, however late that is.
    fn is_known(&self, key: &KnownKey) -> bool {
        let is_unsettled = || self.events.get(&key.event).is_some_and(Event::is_kept);
        key.until > self.now || is_unsettled()
    }

    /// The answer to an event that was accepted before.
    fn known(&self, new: &NewEvent) -> Option<Accepted> {
        for digests in [new.key, new.guard].into_iter().flatten() {
            let Some(key) = self.keys.get(&digests.key()) else {
                continue;
            };
            if !self.is_known(key) {
                continue;
            }
            let same_body = key.body == digests.body();
            return Some(match new.key == Some(digests) || same_body {
                // The guard of its delivery, which another item has brought.
                true if new.key != Some(digests) && new.delivery.item().is_some() => continue,
                true => Accepted::Duplicate { same_body },
                false => Accepted::BodyReplayed,
            });
        }
        None
    }
}

impl Event {
    fn new(new: &NewEvent, now: Instant) -> Self {
        Self {
            of: EventType::new(new.delivery.route().clone(), new.delivery.kind().clone()),
            key: new.delivery.key().cloned(),
            // A copy of an item, so that it does not keep its batch.
            body: Some(match new.delivery.item() {
                Some(_) => Bytes::copy_from_slice(new.delivery.body()),
                None => new.delivery.body().clone(),
            }),
            headers: new.delivery.headers().clone(),
            item: new.delivery.item().cloned().map(Box::new),
            chat: new.chat.clone(),
            lane: new.lane,
            accepted: now,
            place: match &new.dead {
                Some(_) => Place::Ended {
                    state: EventState::Dead,
                    at: now,
                },
                None => Place::Line { due: now },
            },
            // The record of such an event has one failure, and the count agrees with it.
            failures: new.dead.is_some().into(),
            first_failed: None,
            uncounted: 0,
            crashes: 0,
            expired: None,
            is_redriven: false,
            actions: Vec::new(),
            past: new
                .dead
                .iter()
                .map(|failure| (now, failure.clone()))
                .collect(),
        }
    }
}
