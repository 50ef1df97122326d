//! What workers have noted that they handle.

use super::{FOREVER, State};
use crate::inbox::handlers::{HandlerNote, NewNote};
use crate::route::Scope;

impl State {
    pub(super) fn note_handlers(&mut self, worker: &str, notes: &[NewNote]) {
        for NewNote {
            of,
            is_fallback,
            keep,
        } in notes
        {
            let note = HandlerNote {
                of: of.clone(),
                is_fallback: *is_fallback,
                seen: self.time_of_day(self.now),
                worker: worker.to_owned(),
            };
            let until = self.now + (*keep).min(FOREVER);
            self.handlers
                .insert((of.clone(), *is_fallback), (note, until));
        }
        let now = self.now;
        self.handlers.retain(|_, (_, until)| *until > now);
    }

    pub(super) fn handlers(&self) -> Vec<HandlerNote> {
        let kept = self
            .handlers
            .values()
            .filter(|(_, until)| *until > self.now);
        kept.map(|(note, _)| note.clone()).collect()
    }

    pub(super) fn retire(&mut self, of: &Scope) -> bool {
        let before = self.handlers.len();
        self.handlers.retain(|(noted, _), _| noted != of);
        self.handlers.len() < before
    }
}
