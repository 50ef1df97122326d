//! What persons did.

use tokio::time::Instant;

use super::State;
use crate::inbox::actions::{Action, ActionKind, By, KEPT};
use crate::inbox::event::EventId;

/// What a person did.
pub(super) struct Done {
    pub(super) number: i64,
    pub(super) at: Instant,
    pub(super) by: By,
    pub(super) kind: ActionKind,
    pub(super) event: Option<i64>,
    pub(super) about: Option<String>,
    pub(super) changed: u64,
}

/// How many actions are kept.
const MOST: usize = 1_000;

impl State {
    /// Records what a person did.
    pub(super) fn note(
        &mut self,
        by: &By,
        kind: ActionKind,
        event: Option<i64>,
        about: Option<String>,
        changed: u64,
    ) {
        self.last_action += 1;
        self.actions.push_back(Done {
            number: self.last_action,
            at: self.now,
            by: by.clone(),
            kind,
            event,
            about,
            changed,
        });
        let now = self.now;
        let is_old = |done: &Done| now.saturating_duration_since(done.at) > KEPT;
        while self.actions.len() > MOST || self.actions.front().is_some_and(is_old) {
            self.actions.pop_front();
        }
    }

    pub(super) fn actions(
        &self,
        of: Option<EventId>,
        before: Option<i64>,
        limit: usize,
    ) -> Vec<Action> {
        let all = self.actions.iter().rev();
        let some = all.filter(|done| {
            of.is_none_or(|of| done.event == Some(of.0))
                && before.is_none_or(|before| done.number < before)
        });
        let some = some.take(limit).map(|done| Action {
            number: done.number,
            at: self.time_of_day(done.at),
            by: done.by.clone(),
            kind: done.kind,
            event: done.event.map(EventId),
            about: done.about.clone(),
            changed: done.changed,
        });
        some.collect()
    }
}
