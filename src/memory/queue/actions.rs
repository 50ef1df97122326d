//! What persons did.

use tokio::time::Instant;

use super::State;
use crate::inbox::actions::{Action, ActionKind, BulkState, By, INTERRUPTED_AFTER, KEPT, Which};
use crate::inbox::event::EventId;

/// What a person did.
pub(super) struct Done {
    pub(super) at: Instant,
    pub(super) action: Action,
    /// The chat that the filter of a bulk change names.
    pub(super) chat: Option<String>,
    /// When its last step was made.
    pub(super) stepped: Instant,
}

/// How many actions are kept.
const MOST: i64 = 1_000;

impl State {
    /// Records what a person did, and returns the number of the action.
    pub(super) fn note(
        &mut self,
        by: &By,
        kind: ActionKind,
        event: Option<i64>,
        about: Option<String>,
        changed: u64,
    ) -> i64 {
        let number = self.last_action + 1;
        self.last_action = number;
        let action = Action {
            number,
            at: self.time_of_day(self.now),
            by: by.clone(),
            kind,
            event: event.map(EventId),
            about,
            changed,
            bulk: None,
        };
        self.actions.insert(
            number,
            Done {
                at: self.now,
                action,
                chat: None,
                stepped: self.now,
            },
        );
        if let Some(event) = event {
            self.event(event).actions.push(number);
        }
        // A change that is running is kept.
        while let Some((&first, done)) = self.actions.iter().find(|(_, done)| !done.is_running())
            && (self.now.saturating_duration_since(done.at) > KEPT || first + MOST <= number)
        {
            self.actions.remove(&first);
        }
        number
    }

    pub(super) fn actions(&self, which: Which, before: Option<i64>, limit: usize) -> Vec<Action> {
        let of: Option<&[i64]> = match which {
            Which::Of(id) => Some(self.events.get(&id.0).map_or(&[], |event| &event.actions)),
            _ => None,
        };
        let all = self.actions.range(..before.unwrap_or(i64::MAX)).rev();
        let some = all.filter(|(number, done)| match (which, of) {
            (_, Some(of)) => of.contains(number),
            (Which::Running, _) => done.is_running(),
            _ => true,
        });
        some.map(|(_, done)| done.action(self.now))
            .take(limit)
            .collect()
    }

    /// Deletes what actions have of an event whose chat is forgotten.
    pub(super) fn forget_actions(&mut self, id: i64) {
        for number in std::mem::take(&mut self.event(id).actions) {
            let done = self.actions.get_mut(&number);
            // A bulk change names no single event, so nothing in it is about this chat only.
            if let Some(done) = done.filter(|done| done.action.event == Some(EventId(id))) {
                done.action.event = None;
                done.action.by = By::new(done.action.by.who());
            }
        }
    }

    /// Deletes what bulk changes have of a chat that is forgotten.
    pub(super) fn forget_bulks(&mut self, chat: &str) {
        for done in self
            .actions
            .values_mut()
            .filter(|done| done.chat.as_deref() == Some(chat))
        {
            done.chat = None;
            done.action.about = None;
            done.action.by = By::new(done.action.by.who());
            // `about` had its filter, without which it cannot go on.
            done.cancel();
        }
    }
}

impl Done {
    pub(super) fn is_running(&self) -> bool {
        let bulk = self.action.bulk.as_ref();
        bulk.is_some_and(|bulk| bulk.state == BulkState::Running)
    }

    pub(super) fn cancel(&mut self) {
        if self.is_running()
            && let Some(bulk) = &mut self.action.bulk
        {
            bulk.state = BulkState::Cancelled;
        }
    }

    fn action(&self, now: Instant) -> Action {
        let mut action = self.action.clone();
        // A process that dies stores nothing, so the state follows from the time without a step.
        if self.is_running()
            && now.saturating_duration_since(self.stepped) > INTERRUPTED_AFTER
            && let Some(bulk) = &mut action.bulk
        {
            bulk.state = BulkState::Interrupted;
        }
        action
    }
}
