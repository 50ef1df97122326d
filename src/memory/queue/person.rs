//! What a person changes.

use std::ops::RangeInclusive;

use super::{Event, Place, State, size};
use crate::inbox::actions::{ActionKind, By, chat_digest};
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
            // Its attempt may still succeed, and a second one beside it would handle the event twice.
            Place::Taken { .. } => return Change::WrongState,
            Place::Line { .. } => {
                self.unset_ready(id.0);
                let event = self.event(id.0);
                // The process whose lease has expired must not settle what a person has redriven.
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
            // Its chat has gone on without it, so it is handled out of order and nothing waits for it.
            Place::Ended { .. } => event.lane = None,
            Place::Holding { .. } => {}
        }
        event.is_redriven = true;
        // A person has decided, so the rules for retries begin anew.
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
        by: &By,
    ) -> Forgotten {
        let newest = self.events.last_key_value().map_or(0, |(id, _)| *id);
        // Up to the newest event of now: a chat that goes on would otherwise have a next step each time.
        let (first, last) = events.map_or((i64::MIN, newest), |events| {
            (events.start().0, events.end().0)
        });
        let of_chat = |event: &Event| event.chat.as_deref() == Some(chat);
        let mut ids = self
            .events
            // `range` panics if its end is before its start, and the caller chooses both.
            .range(first..=last.max(first))
            .filter(|(_, event)| of_chat(event))
            .map(|(id, _)| *id);
        let step: Vec<i64> = ids.by_ref().take(FORGET_STEP).collect();
        let next = ids.next();
        self.forget_bulks(chat);
        let mut bodies = 0;
        for id in step {
            if self.event(id).is_kept() {
                self.end(id);
            }
            // Their texts may quote the body.
            self.event(id).past.clear();
            bodies += u64::from(self.event(id).body.is_some());
            self.delete_body(id);
            self.forget_actions(id);
            self.forget_sample(id);
        }
        self.note(
            by,
            ActionKind::Forget,
            None,
            Some(chat_digest(chat)),
            bodies,
        );
        Forgotten {
            bodies,
            rest: next.map(|next| EventId(next)..=EventId(last)),
        }
    }

    pub(super) fn delete_body(&mut self, id: i64) {
        if let Some(body) = self.event(id).body.take() {
            let headers = std::mem::take(&mut self.event(id).headers);
            self.bytes -= size(&body, &headers);
        }
    }
}
