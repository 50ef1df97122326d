//! Counts of processes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use super::State;
use crate::event::EventKind;
use crate::inbox::counts::{SPANS, kept_from};
use crate::telemetry::{Count, CountsOf, Sample, Series, Sums};

/// By the number of minutes that were put together, and the first of them.
pub(super) type Counts = BTreeMap<Row, (u64, Option<Sample>)>;

type Row = (i64, i64, Series, i64, Option<EventKind>, Cow<'static, str>);

impl State {
    pub(super) fn note_counts(&mut self, counts: &[Count]) -> SystemTime {
        for count in counts.iter().cloned() {
            let row = (
                1,
                count.minute,
                count.series,
                count.process,
                count.kind,
                count.outcome,
            );
            let new = (count.number, count.sample);
            let (number, _) = self.counts.entry(row).or_insert(new);
            // The count of a minute only grows, so the larger number is the later one.
            *number = count.number.max(*number);
        }
        self.time_of_day(self.now)
    }

    pub(super) fn counts(&self, of: &CountsOf) -> Vec<Count> {
        let mut sums = Sums::new(of.clone());
        for ((_, minute, series, process, kind, outcome), (number, sample)) in &self.counts {
            if of.series.contains(series) && (of.from..of.until).contains(minute) {
                sums.add(Count {
                    minute: *minute,
                    process: *process,
                    series: *series,
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
                let (_, minute, series, _, kind, outcome) = row;
                if let Some(span) = SPANS.get(at + 1)
                    // A budget reads the last hour alone, so its old rows are deleted.
                    && series != Series::Budget
                {
                    // For all processes together, since each restart makes a new number of a process.
                    let first = (*span, minute - minute % span, series, 0, kind, outcome);
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
