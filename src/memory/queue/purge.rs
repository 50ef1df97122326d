//! What expires.

use std::time::Duration;

use async_trait::async_trait;

use super::{Event, MemoryQueue, OVERHEAD, Place, State, size};
use crate::inbox::event::EventState;
use crate::inbox::queue::PurgeEvents;
use crate::store::StoreError;

#[async_trait]
impl PurgeEvents for MemoryQueue {
    async fn purge(&self, keep_bodies: Duration) -> Result<bool, StoreError> {
        Ok(self.lock().purge(keep_bodies))
    }
}

impl State {
    fn purge(&mut self, keep_bodies: Duration) -> bool {
        let keys = self.purge_keys();
        let bodies = self.purge_bodies(keep_bodies);
        let events = self.purge_events();
        self.purge_counts();
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
            // Events that are unsettled or dead, or have a body, outlast their retention.
            .filter(|(_, id)| self.events.get(id).is_none_or(Event::is_over))
            .take(STEP)
            .copied()
            .collect();
        let events = expired.len();
        for (until, id) in expired {
            self.retained.remove(&(until, id));
            self.delete_body(id);
            if let Some(item) = self.events.remove(&id).and_then(|event| event.item) {
                self.batches.remove(&(item.delivery, id));
            }
            self.bytes -= OVERHEAD;
        }
        events
    }

    pub(super) fn delete_body(&mut self, id: i64) {
        if let Some(body) = self.event(id).body.take() {
            let event = self.event(id);
            let headers = std::mem::take(&mut event.headers);
            let bytes = size(&body, &headers, event.item.as_deref());
            if let Some(item) = &mut event.item {
                item.forget_kept();
            }
            self.bytes -= bytes;
        }
    }
}

/// How many keys, bodies and events one call purges at most.
const STEP: usize = 1000;
