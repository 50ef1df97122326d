//! What a person changes: one event, all events that match, and what is paused.

use async_trait::async_trait;

use super::actions::Done;
use super::{MemoryQueue, Paused, Place, State};
use crate::inbox::actions::{ActionKind, Bulk, BulkState, BulkStep, By, NewBulk, paused};
use crate::inbox::event::{EventId, EventState};
use crate::inbox::queue::ChangeEvents;
use crate::inbox::records::Change;
use crate::route::Scope;
use crate::store::StoreError;

#[async_trait]
impl ChangeEvents for MemoryQueue {
    async fn change(
        &self,
        kind: ActionKind,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change, StoreError> {
        let mut state = self.lock();
        let change = state.change(kind == ActionKind::Redrive, id, from);
        if change == Change::Made {
            state.note(by, kind, Some(id.0), None, 1);
        }
        Ok(change)
    }

    async fn pause(&self, of: &Scope, note: Option<&str>, by: &By) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.note(by, paused(note), None, Some(of.to_string()), 0);
        let pause = note.map(|note| Paused {
            since: state.now,
            note: note.to_owned(),
        });
        match pause {
            Some(pause) => drop(state.paused.insert(of.clone(), pause)),
            None => drop(state.paused.remove(of)),
        }
        Ok(())
    }

    async fn begin(&self, bulk: &NewBulk, by: &By) -> Result<i64, StoreError> {
        Ok(self.lock().begin(bulk, by))
    }

    async fn step(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError> {
        Ok(self.lock().step(number, step))
    }

    async fn cancel(&self, number: i64, by: &By) -> Result<bool, StoreError> {
        Ok(self.lock().cancel(number, by))
    }
}

impl State {
    fn change(&mut self, redrives: bool, id: EventId, from: Option<EventState>) -> Change {
        match redrives {
            true => self.redrive(id, from),
            false => self.discard(id, from),
        }
    }

    /// Whether an event is in a state that a person has seen.
    fn is_in(&self, id: EventId, state: EventState) -> bool {
        let event = self.events.get(&id.0);
        event.is_some_and(|event| self.summary(id.0, event).state == state)
    }

    fn redrive(&mut self, id: EventId, from: Option<EventState>) -> Change {
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

    fn discard(&mut self, id: EventId, from: Option<EventState>) -> Change {
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
    pub(super) fn end(&mut self, id: i64) {
        self.remove(id);
        let at = self.now;
        let event = self.event(id);
        event.expired = None;
        event.place = Place::Ended {
            state: EventState::Discarded,
            at,
        };
    }

    fn begin(&mut self, bulk: &NewBulk, by: &By) -> i64 {
        let number = self.note(by, bulk.kind, None, Some(bulk.about.clone()), 0);
        if let Some(done) = self.actions.get_mut(&number) {
            done.chat.clone_from(&bulk.chat);
            done.action.bulk = Some(Bulk {
                state: BulkState::Running,
                skipped: 0,
                reached: EventId(0),
                rate: bulk.rate,
            });
        }
        number
    }

    fn step(&mut self, number: i64, step: &BulkStep) -> bool {
        // The position is the fence: a second process that continues the change cannot repeat a step.
        let is_there = |done: &Done| {
            let bulk = done.action.bulk.as_ref();
            done.is_running() && bulk.is_some_and(|bulk| bulk.reached == step.from)
        };
        if !self.actions.get(&number).is_some_and(is_there) {
            return false;
        }
        let (mut changed, mut skipped) = (0, 0);
        for (id, from) in &step.events {
            if self.change(step.redrives, *id, Some(*from)) == Change::Made {
                self.event(id.0).actions.push(number);
                changed += 1;
            } else {
                skipped += 1;
            }
        }
        if let Some(done) = self.actions.get_mut(&number) {
            done.stepped = self.now;
            done.action.changed += changed;
            if let Some(bulk) = &mut done.action.bulk {
                bulk.skipped += skipped;
                bulk.reached = step.reached;
                if step.is_last {
                    bulk.state = BulkState::Done;
                }
            }
        }
        true
    }

    fn cancel(&mut self, number: i64, by: &By) -> bool {
        let is_running = self.actions.get(&number).is_some_and(Done::is_running);
        if is_running {
            self.note(by, ActionKind::Cancel, None, Some(number.to_string()), 0);
            if let Some(done) = self.actions.get_mut(&number) {
                done.cancel();
            }
        }
        is_running
    }
}
