//! Events and counts, as a person sees them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Event, Place, State};
use crate::event::EventKind;
use crate::inbox::event::{EventId, EventState, Lane};
use crate::inbox::records::{BlockedLane, EventSummary, Filter, KindStats, Page, Pause, Stats};

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
            kind: event.kind.1.clone(),
            key: event.key.clone(),
            chat: event.chat.clone(),
            state,
            accepted_at: self.time_of_day(event.accepted),
            settled_at,
            due_at,
            failures: event.failures,
            is_redriven: event.is_redriven,
        }
    }

    pub(super) fn list(&self, filter: &Filter, page: Page) -> Vec<EventSummary> {
        let select = |(id, event): (&i64, &Event)| {
            let is_after = page.is_after(EventId(*id));
            let summary = is_after.then(|| self.summary(*id, event))?;
            let failures = event.past.iter();
            let failures = failures.map(|(at, failure)| (self.time_of_day(*at), failure));
            (filter.matches(&summary)
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

    /// The events for which their lanes wait since they failed, and these lanes.
    fn blocking(&self) -> impl Iterator<Item = (i64, Lane)> {
        self.lanes.iter().filter_map(|(lane, line)| {
            // The busy event first: an event that returned to the line before it waits for it, too.
            let id = self.busy.get(lane).or_else(|| line.first())?;
            let event = self.events.get(id)?;
            let has_failed = !event.past.is_empty() || event.crashes > 0;
            has_failed.then_some((*id, *lane))
        })
    }

    pub(super) fn blocked_lanes(
        &self,
        chat: Option<&str>,
        after: Option<EventId>,
        limit: usize,
    ) -> Vec<BlockedLane> {
        let of = chat.map(Lane::of_chat);
        let mut blocking: Vec<_> = self
            .blocking()
            .filter(|(id, lane)| {
                let namespace = self.events.get(id).map(|event| event.kind.0);
                // A chat has a lane in each namespace.
                of.is_none_or(|of| namespace.is_some_and(|namespace| of.within(namespace) == *lane))
            })
            .filter(|(id, _)| after.is_none_or(|after| EventId(*id) > after))
            .collect();
        // By number, since `after` continues a list by number, and the lanes are in a hash map.
        blocking.sort_unstable();
        let blocked = |(id, lane): (i64, Lane)| {
            let event = self.events.get(&id)?;
            let since = match event.place {
                Place::Holding { at } => at,
                _ => event.first_failed.unwrap_or(event.accepted),
            };
            let line = self.lanes.get(&lane).map_or(0, BTreeSet::len);
            Some(BlockedLane {
                event: self.summary(id, event),
                since: self.time_of_day(since),
                waiting: (line.saturating_sub(1) as u64).min(BlockedLane::MOST_WAITING),
            })
        };
        blocking
            .into_iter()
            .filter_map(blocked)
            .take(limit)
            .collect()
    }

    pub(super) fn pauses(&self) -> Vec<Pause> {
        let kinds = self.paused.iter().map(|(kind, pause)| (Some(kind), pause));
        let all = self.all_paused.iter().map(|pause| (None, pause));
        all.chain(kinds)
            .map(|(kind, pause)| Pause {
                kind: kind.cloned(),
                since: self.time_of_day(pause.since),
                note: pause.note.clone(),
            })
            .collect()
    }

    pub(super) fn stats(&self) -> Stats {
        let mut kinds: BTreeMap<&EventKind, KindStats> = BTreeMap::new();
        let of = |kind: &EventKind| KindStats {
            kind: kind.clone(),
            waiting: 0,
            in_progress: 0,
            retrying: 0,
            dead: 0,
            blocking: 0,
            oldest: None,
            is_paused: self.paused.contains_key(kind),
        };
        for kind in self.paused.keys() {
            // A paused kind is shown before its first event, so that somebody can resume it.
            kinds.insert(kind, of(kind));
        }
        for (id, event) in &self.events {
            let (_, kind) = &event.kind;
            // Settled events make an entry, too: their kind can be paused.
            let stats = kinds.entry(kind).or_insert_with(|| of(kind));
            // Most events are settled: they are passed over quickly.
            if let Place::Ended { state, .. } = event.place
                && state != EventState::Dead
            {
                continue;
            }
            let summary = self.summary(*id, event);
            *match summary.state {
                EventState::Waiting => &mut stats.waiting,
                EventState::InProgress => &mut stats.in_progress,
                EventState::Retrying => &mut stats.retrying,
                EventState::Dead => &mut stats.dead,
                EventState::Handled | EventState::Ignored | EventState::Discarded => continue,
            } += 1;
            if summary.state.is_unsettled() {
                // The first one in the order of numbers is the oldest.
                stats.oldest.get_or_insert(summary.accepted_at);
            }
        }
        for (id, _) in self.blocking() {
            if let Some(event) = self.events.get(&id)
                && let Some(stats) = kinds.get_mut(&event.kind.1)
            {
                stats.blocking += 1;
            }
        }
        Stats {
            at: self.time_of_day(self.now),
            kinds: kinds.into_values().collect(),
            is_paused: self.all_paused.is_some(),
        }
    }
}
