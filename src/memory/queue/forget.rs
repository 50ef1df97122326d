//! What is deleted of a chat that is forgotten.

use std::ops::RangeInclusive;

use async_trait::async_trait;

use super::{Event, MemoryQueue, State};
use crate::inbox::actions::{ActionKind, By, chat_digest};
use crate::inbox::event::EventId;
use crate::inbox::queue::ForgetChats;
use crate::inbox::records::{FORGET_STEP, Forgotten};
use crate::store::StoreError;

#[async_trait]
impl ForgetChats for MemoryQueue {
    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten, StoreError> {
        Ok(self.lock().forget(chat, events, by))
    }
}

impl State {
    fn forget(
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
}
