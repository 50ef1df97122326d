//! Events, as a person sees them.

use async_trait::async_trait;

use super::{Event, MemoryQueue, Place, State};
use crate::inbox::actions::{Action, Which};
use crate::inbox::event::{EventId, EventState};
use crate::inbox::queue::ListEvents;
use crate::inbox::records::{
    BlockedLane, EventRecord, EventSummary, Filter, Listed, MOST_OTHERS, Page, PastFailure, nearest,
};
use crate::store::StoreError;

#[async_trait]
impl ListEvents for MemoryQueue {
    async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
        Ok(Listed {
            events: self.lock().list(filter, page),
            // `Page::within` has no effect here: a search in memory always reaches the end.
            searched: None,
        })
    }

    async fn get(&self, id: EventId) -> Result<Option<EventRecord>, StoreError> {
        let state = self.lock();
        Ok(state.events.get(&id.0).map(|event| EventRecord {
            summary: state.summary(id.0, event),
            body: event.body.clone(),
            headers: event.headers.clone(),
            item: event.item.as_deref().cloned(),
            others: state.others(id.0, event),
            failures: state.failures(event).collect(),
        }))
    }

    async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
        let state = self.lock();
        Ok(state.keys.get(&key).map(|key| EventId(key.event)))
    }

    async fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Result<Vec<BlockedLane>, StoreError> {
        Ok(self.lock().blocked_lanes(chat, after, limit))
    }

    async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        Ok(self.lock().actions(which, before, limit))
    }
}

impl State {
    pub(super) fn summary(&self, id: i64, event: &Event) -> EventSummary {
        let at = |time| Some(self.time_of_day(time));
        let (state, settled_at, due_at) = match event.place {
            Place::Line { due } | Place::Aside { due } => {
                // A snooze leaves no failure, so a snoozed event is still waiting.
                let state = match event.past.is_empty() && event.crashes == 0 {
                    true => EventState::Waiting,
                    false => EventState::Retrying,
                };
                // A time in the past would say nothing: the event waits for a worker or for its lane.
                (state, None, if due > self.now { at(due) } else { None })
            }
            Place::Taken { .. } => (EventState::InProgress, None, None),
            Place::Ended { state, at: ended } => (state, at(ended), None),
            Place::Holding { at: ended } => (EventState::Dead, at(ended), None),
        };
        EventSummary {
            id: EventId(id),
            route: event.of.route.clone(),
            kind: event.of.kind.clone(),
            key: event.key.clone(),
            chat: event.chat.clone(),
            state,
            accepted_at: self.time_of_day(event.accepted),
            settled_at,
            due_at,
            failures: event.failures,
            is_redriven: event.is_redriven,
            last_failure: self.failures(event).next_back(),
        }
    }

    /// The other events of a batch.
    fn others(&self, id: i64, event: &Event) -> Vec<(u32, EventId)> {
        let Some(item) = &event.item else {
            return Vec::new();
        };
        let of = item.delivery;
        let before = self.batches.range((of, i64::MIN)..(of, id)).rev();
        let after = self.batches.range((of, id + 1)..=(of, i64::MAX));
        let other = |(_, other): &(i64, i64)| {
            let item = self.events.get(other)?.item.as_deref()?;
            Some((item.number(), EventId(*other)))
        };
        nearest(
            before.take(MOST_OTHERS).filter_map(other).collect(),
            after.take(MOST_OTHERS).filter_map(other).collect(),
        )
    }

    /// What attempts failed for, oldest first.
    fn failures(&self, event: &Event) -> impl DoubleEndedIterator<Item = PastFailure> {
        event.past.iter().map(|(at, failure)| PastFailure {
            at: self.time_of_day(*at),
            failure: failure.clone(),
        })
    }

    fn list(&self, filter: &Filter, page: Page) -> Vec<EventSummary> {
        let is_kept = |state: &EventState| state.is_unsettled() || *state == EventState::Dead;
        let only_kept = !filter.states.is_empty() && filter.states.iter().all(is_kept);
        let select = |(id, event): (&i64, &Event)| {
            let is_settled =
                matches!(event.place, Place::Ended { state, .. } if state != EventState::Dead);
            // Most events are settled: they are passed over quickly.
            let may_match = page.is_after(EventId(*id)) && !(only_kept && is_settled);
            let summary = may_match.then(|| self.summary(*id, event))?;
            let failures = event.past.iter();
            let failures = failures.map(|(at, failure)| (self.time_of_day(*at), failure));
            (filter.matches(&summary)
                && filter
                    .changed_by
                    .is_none_or(|action| event.actions.contains(&action))
                && filter.matches_failures(failures)
                && filter.matches_body(event.body.as_deref()))
            .then_some(summary)
        };
        match page.newest_first {
            true => self
                .events
                .iter()
                .rev()
                .filter_map(select)
                .take(page.limit)
                .collect(),
            false => self
                .events
                .iter()
                .filter_map(select)
                .take(page.limit)
                .collect(),
        }
    }
}
