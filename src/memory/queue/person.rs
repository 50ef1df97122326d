//! What a person changes, and what expires.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Event, OVERHEAD, Place, State, size};
use crate::inbox::event::{EventId, EventState};
use crate::inbox::records::{Change, FORGET_STEP, Forgotten};

impl State {
    /// Whether an event is in a state that a person has seen.
    fn is_in(&self, id: EventId, state: EventState) -> bool {
        let event = self.events.get(&id.0);
        event.is_some_and(|event| self.summary(id.0, event).state == state)
    }

    pub(super) fn redrive(&mut self, id: EventId, from: Option<EventState>) -> Change {
        let now = self.now;
        let is_as_seen = from.is_none_or(|state| self.is_in(id, state));
        let Some(event) = self.events.get_mut(&id.0) else {
            return Change::NotFound;
        };
        if !is_as_seen {
            return Change::WrongState;
        }
        if event.body.is_none() {
            return Change::WithoutBody;
        }
        match event.place {
            Place::Taken { .. } => return Change::WrongState,
            Place::Line { .. } => {
                self.unset_ready(id.0);
                let event = self.event(id.0);
                event.expired = None;
                event.place = Place::Line { due: now };
                self.set_first_ready(id.0);
                return Change::Made;
            }
            Place::Aside { due } => {
                self.aside.remove(&(due, id.0));
                self.event(id.0).place = Place::Line { due: now };
                self.join_line(id.0);
                return Change::Made;
            }
            Place::Ended { .. } => event.lane = None,
            Place::Holding { .. } => {}
        }
        event.is_redriven = true;
        event.failures = 0;
        event.first_failed = None;
        event.uncounted = 0;
        event.crashes = 0;
        event.place = Place::Line { due: now };
        self.set_free(id.0);
        self.set_first_ready(id.0);
        Change::Made
    }

    pub(super) fn discard(&mut self, id: EventId, from: Option<EventState>) -> Change {
        let Some(event) = self.events.get(&id.0) else {
            return Change::NotFound;
        };
        let is_settled = matches!(
            event.place,
            Place::Ended { state, .. } if state != EventState::Dead
        );
        if is_settled || from.is_some_and(|state| !self.is_in(id, state)) {
            return Change::WrongState;
        }
        self.end(id.0);
        Change::Made
    }

    /// Discards an event that is unsettled or dead.
    fn end(&mut self, id: i64) {
        self.remove(id);
        let at = self.now;
        let event = self.event(id);
        event.expired = None;
        event.place = Place::Ended {
            state: EventState::Discarded,
            at,
        };
    }

    pub(super) fn forget(
        &mut self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
    ) -> Forgotten {
        let newest = self.events.last_key_value().map_or(0, |(id, _)| *id);
        let (first, last) = events.map_or((i64::MIN, newest), |events| {
            (events.start().0, events.end().0)
        });
        let of_chat = |event: &Event| event.chat.as_deref() == Some(chat);
        let mut ids = self
            .events
            .range(first..=last.max(first))
            .filter(|(_, event)| of_chat(event))
            .map(|(id, _)| *id);
        let step: Vec<i64> = ids.by_ref().take(FORGET_STEP).collect();
        let next = ids.next();
        let mut bodies = 0;
        for id in step {
            if self.event(id).is_kept() {
                self.end(id);
            }
            // Their texts may quote the body.
            self.event(id).past.clear();
            bodies += u64::from(self.event(id).body.is_some());
            self.delete_body(id);
        }
        Forgotten {
            bodies,
            rest: next.map(|next| EventId(next)..=EventId(last)),
        }
    }

    fn delete_body(&mut self, id: i64) {
        if let Some(body) = self.event(id).body.take() {
            let headers = std::mem::take(&mut self.event(id).headers);
            self.bytes -= size(&body, &headers);
        }
    }

    pub(super) fn purge(&mut self, keep_bodies: Duration) -> bool {
        let keys = self.purge_keys();
        let bodies = self.purge_bodies(keep_bodies);
        let events = self.purge_events();
        keys == STEP || bodies == STEP || events == STEP
    }

    fn purge_keys(&mut self) -> usize {
        let mut keys = 0;
        while let Some((until, key)) = self.forget.first().copied()
            && until <= self.now
            && keys < STEP
        {
            self.forget.pop_first();
            keys += 1;
            match self.keys.get(&key) {
                Some(known) if self.events.get(&known.event).is_some_and(Event::is_kept) => {
                    // Looked at again, when it may be settled.
                    let again = self.now + Duration::from_secs(60);
                    self.forget.insert((again, key));
                }
                Some(known) if known.until <= self.now => {
                    self.keys.remove(&key);
                }
                _ => {}
            }
        }
        keys
    }

    fn purge_bodies(&mut self, keep: Duration) -> usize {
        let mut bodies = 0;
        while let Some(&(settled, id)) = self.with_body.first()
            && self.now.saturating_duration_since(settled) >= keep
            && bodies < STEP
        {
            self.with_body.pop_first();
            bodies += 1;
            let is_settled = |event: &Event| {
                matches!(event.place, Place::Ended { state, at }
                    if at == settled && matches!(state, EventState::Handled | EventState::Ignored))
            };
            // One that was redriven since is settled at another time.
            if self.events.get(&id).is_some_and(is_settled) {
                self.delete_body(id);
            }
        }
        bodies
    }

    fn purge_events(&mut self) -> usize {
        let expired: Vec<_> = self
            .retained
            .range(..=(self.now, i64::MAX))
            .filter(|(_, id)| self.events.get(id).is_none_or(Event::is_over))
            .take(STEP)
            .copied()
            .collect();
        let events = expired.len();
        for (until, id) in expired {
            self.retained.remove(&(until, id));
            self.delete_body(id);
            self.events.remove(&id);
            self.bytes -= OVERHEAD;
        }
        events
    }
}

/// How many keys, bodies and events one call purges at most.
const STEP: usize = 1000;
