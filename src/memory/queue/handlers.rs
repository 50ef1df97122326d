//! What workers have noted that they handle.

use std::time::Duration;

use super::{FOREVER, State};
use crate::inbox::handlers::{HandlerNote, NewNote, Retired};
use crate::route::Scope;

impl State {
    pub(super) fn note_handlers(&mut self, worker: &str, notes: &[NewNote]) {
        let now = self.now;
        self.handlers.retain(|_, (_, until)| *until > now);
        let seen = self.time_of_day(now);
        for NewNote {
            of,
            is_fallback,
            keep,
        } in notes
        {
            let key = (of.clone(), *is_fallback);
            let before = self.handlers.get(&key);
            let note = HandlerNote {
                of: of.clone(),
                is_fallback: *is_fallback,
                seen,
                missed_since: before.map_or(Some(seen), |(note, _)| note.missed_since),
                worker: worker.to_owned(),
            };
            let until = now + (*keep).min(FOREVER);
            self.handlers.insert(key, (note, until));
        }
    }

    pub(super) fn handlers(&self) -> Vec<HandlerNote> {
        let kept = self
            .handlers
            .values()
            .filter(|(_, until)| *until > self.now);
        HandlerNote::with_missed(kept.map(|(note, _)| note.clone()).collect())
    }

    pub(super) fn retire(&mut self, of: &Scope, unseen: Duration) -> Retired {
        let now = self.time_of_day(self.now);
        let before = self.handlers.len();
        let is_kept = |note: &HandlerNote| note.of != *of || note.seen + unseen > now;
        self.handlers.retain(|_, (note, _)| is_kept(note));
        let mut notes = self.handlers();
        notes.retain(|note| note.of == *of);
        match notes.iter().map(|note| note.seen + unseen).max() {
            _ if self.handlers.len() < before => Retired::Ended,
            Some(until) => Retired::Kept { until },
            None => Retired::NotNoted,
        }
    }
}
