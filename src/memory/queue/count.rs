//! The number of events, and counts of processes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::{MemoryQueue, Place, State};
use crate::event::EventKind;
use crate::inbox::actions::{ActionKind, By};
use crate::inbox::counts::{SPANS, kept_from};
use crate::inbox::event::EventState;
use crate::inbox::handlers::{HandlerNote, NewNote, Retired};
use crate::inbox::queue::CountEvents;
use crate::inbox::records::{KindStats, Pause, Stats};
use crate::route::{EventType, RouteName, Scope};
use crate::store::StoreError;
use crate::telemetry::{Count, CountsOf, Sample, Series, Sums};

/// By the number of minutes that were put together, and the first of them.
pub(super) type Counts = BTreeMap<Row, (u64, Option<Sample>)>;

type Row = (i64, i64, Series, i64, Of, Cow<'static, str>);

/// What was counted.
type Of = (RouteName, Option<EventKind>);

#[async_trait]
impl CountEvents for MemoryQueue {
    async fn stats(&self) -> Result<Stats, StoreError> {
        Ok(self.lock().stats())
    }

    async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>, StoreError> {
        Ok(self.lock().counts(of))
    }

    async fn note_counts(&self, counts: &[Count]) -> Result<SystemTime, StoreError> {
        Ok(self.lock().note_counts(counts))
    }

    async fn note_handlers(
        &self,
        worker: &str,
        notes: &[NewNote],
    ) -> Result<(Vec<HandlerNote>, SystemTime), StoreError> {
        let mut state = self.lock();
        state.note_handlers(worker, notes);
        Ok((state.handlers(), state.time_of_day(state.now)))
    }

    async fn retire(&self, of: &Scope, unseen: Duration, by: &By) -> Result<Retired, StoreError> {
        let mut state = self.lock();
        let retired = state.retire(of, unseen);
        if retired == Retired::Ended {
            state.note(by, ActionKind::Retire, None, Some(of.to_string()), 0);
        }
        Ok(retired)
    }
}

impl State {
    fn pauses(&self) -> Vec<Pause> {
        let pauses = self.paused.iter().map(|(of, pause)| Pause {
            of: of.clone(),
            since: self.time_of_day(pause.since),
            note: pause.note.clone(),
        });
        pauses.collect()
    }

    /// Whether a type is paused, or its route.
    fn is_paused(&self, EventType { route, kind }: &EventType) -> bool {
        let mut paused = self.paused.keys();
        paused.any(|paused| *paused != Scope::Everything && paused.has(route, kind))
    }

    fn stats(&self) -> Stats {
        let mut kinds: BTreeMap<&EventType, KindStats> = BTreeMap::new();
        let begin = |of: &EventType| KindStats {
            route: of.route.clone(),
            kind: of.kind.clone(),
            waiting: 0,
            ready: 0,
            in_progress: 0,
            retrying: 0,
            dead: 0,
            blocking: 0,
            oldest: None,
            is_paused: self.is_paused(of),
        };
        for paused in self.paused.keys() {
            // A paused type is shown before its first event, so that somebody can resume it.
            if let Scope::Type(of) = paused {
                kinds.insert(of, begin(of));
            }
        }
        for (id, event) in &self.events {
            // Settled events make an entry, too: their type can be paused.
            let stats = kinds.entry(&event.of).or_insert_with(|| begin(&event.of));
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
            if summary.state == EventState::Waiting {
                let is_aside = matches!(event.place, Place::Aside { .. });
                stats.ready += u64::from(is_aside || self.is_first(*id));
            }
            if summary.state.is_unsettled() {
                // The first one in the order of numbers is the oldest.
                stats.oldest.get_or_insert(summary.accepted_at);
            }
        }
        for (id, _) in self.blocking() {
            if let Some(event) = self.events.get(&id)
                && let Some(stats) = kinds.get_mut(&event.of)
            {
                stats.blocking += 1;
            }
        }
        Stats {
            at: self.time_of_day(self.now),
            kinds: kinds.into_values().collect(),
            pauses: self.pauses(),
            handlers: self.handlers(),
        }
    }

    fn note_counts(&mut self, counts: &[Count]) -> SystemTime {
        for count in counts.iter().cloned() {
            let row = (
                1,
                count.minute,
                count.series,
                count.process,
                (count.route, count.kind),
                count.outcome,
            );
            let new = (count.number, count.sample);
            let (number, _) = self.counts.entry(row).or_insert(new);
            // The count of a minute only grows, so the larger number is the later one.
            *number = count.number.max(*number);
        }
        self.time_of_day(self.now)
    }

    fn counts(&self, of: &CountsOf) -> Vec<Count> {
        let mut sums = Sums::new(of.clone());
        for ((_, minute, series, process, (route, kind), outcome), (number, sample)) in &self.counts
        {
            if of.series.contains(series) && (of.from..of.until).contains(minute) {
                sums.add(Count {
                    minute: *minute,
                    process: *process,
                    series: *series,
                    route: route.clone(),
                    kind: kind.clone(),
                    outcome: outcome.clone(),
                    number: *number,
                    sample: sample.clone(),
                });
            }
        }
        sums.end()
    }

    pub(super) fn purge_counts(&mut self) {
        let now = self.time_of_day(self.now);
        for (at, from) in SPANS.into_iter().enumerate() {
            let is_old = |(span, minute, series, ..): &Row| {
                *span == from && *minute < kept_from(now, *series)[at]
            };
            let old = self.counts.keys().filter(|row| is_old(row));
            for row in old.cloned().collect::<Vec<_>>() {
                let Some((number, _)) = self.counts.remove(&row) else {
                    continue;
                };
                let (_, minute, series, _, of, outcome) = row;
                if let Some(span) = SPANS.get(at + 1)
                    // A budget reads the last hour alone, so its old rows are deleted.
                    && series != Series::Budget
                {
                    // For all processes together, since each restart makes a new number of a process.
                    let first = (*span, minute - minute % span, series, 0, of, outcome);
                    let (sum, _) = self.counts.entry(first).or_default();
                    *sum = series.join(*sum, number);
                }
            }
        }
    }

    /// Deletes what is kept of refused requests with the key of an event whose chat is forgotten.
    pub(super) fn forget_sample(&mut self, id: i64) {
        let Some(key) = self.event(id).key.clone() else {
            return;
        };
        for (_, sample) in self.counts.values_mut() {
            sample.take_if(|sample| sample.key.as_deref() == Some(key.as_bytes()));
        }
    }
}
