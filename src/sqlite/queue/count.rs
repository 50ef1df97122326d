//! The number of events, and counts of processes.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use rusqlite::{Result, Row, params};

use super::{SqliteQueue, actions, handlers, row, stats};
use crate::inbox::actions::{ActionKind, By};
use crate::inbox::counts::{SPANS, kept_from};
use crate::inbox::handlers::{HandlerNote, NewNote, Retired};
use crate::inbox::queue::CountEvents;
use crate::inbox::records::Stats;
use crate::route::Scope;
use crate::sqlite::engine::{Need, Tx};
use crate::store::StoreError;
use crate::telemetry::{Count, CountsOf, Sample, Series, Sums};

const NOTE: &str = "
    INSERT INTO counts (series, span, minute, process, kind, outcome, number, sample, key)
    VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT DO UPDATE SET number = max(number, excluded.number)";
const LIST: &str = "
    SELECT minute, process, kind, outcome, number, sample FROM counts
    WHERE series = ?1 AND span = ?2 AND minute >= ?3 AND (minute, process, kind, outcome) < (?4, ?5, ?6, ?7)
    ORDER BY minute DESC, process DESC, kind DESC, outcome DESC LIMIT ?8";
const OLD: &str = "
    SELECT minute, process, kind, outcome, number, NULL FROM counts
    WHERE series = ?1 AND span = ?2 AND minute < ?3 LIMIT ?4";
const DELETE: &str = "
    DELETE FROM counts
    WHERE series = ?1 AND span = ?2 AND minute = ?3 AND process = ?4 AND kind = ?5 AND outcome = ?6";
const SUM: &str = "
    INSERT INTO counts (series, span, minute, process, kind, outcome, number)
    VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6)
    ON CONFLICT DO UPDATE SET number = iif(series = 'lag', max(number, excluded.number), number + excluded.number)";
const FORGET: &str = "
    UPDATE counts SET sample = NULL, key = NULL WHERE key = (SELECT key FROM events WHERE seq = ?1)";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[NOTE, LIST, OLD, DELETE, SUM, FORGET];

/// How many counts a step reads.
const AT_ONCE: i64 = 2_000;

/// How many counts of each series a step of a purge puts together or deletes.
const STEP: i64 = 64;

#[async_trait]
impl CountEvents for SqliteQueue {
    async fn stats(&self) -> Result<Stats, StoreError> {
        let mut counts = stats::Counts::default();
        while !counts.is_complete() {
            let before = counts;
            let step = self.read(move |tx| {
                let mut counts = before.clone();
                counts.step(tx)?;
                Ok(counts)
            });
            counts = step.await?;
        }
        self.read(move |tx| counts.stats(tx)).await
    }

    async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>, StoreError> {
        let mut sums = Sums::new(of.clone());
        for first in lists(of) {
            let mut next = Some(first);
            while let Some(from) = next.take_if(|next| !is_enough(&sums, of, next)) {
                let of = of.clone();
                let step = self.read(move |tx| list(tx, &of, &from));
                let (counts, rest) = step.await?;
                counts.into_iter().for_each(|count| sums.add(count));
                next = rest;
            }
        }
        Ok(sums.end())
    }

    async fn note_counts(&self, counts: &[Count]) -> Result<SystemTime, StoreError> {
        let counts = counts.to_vec();
        self.run(Need::Write, move |tx| {
            note(tx, &counts)?;
            Ok(row::time(tx.now))
        })
        .await
    }

    async fn note_handlers(
        &self,
        worker: &str,
        notes: &[NewNote],
    ) -> Result<(Vec<HandlerNote>, SystemTime), StoreError> {
        let read = |tx: &mut Tx<'_>| Ok((handlers::all(tx)?, row::time(tx.now)));
        if notes.is_empty() {
            return self.read(read).await;
        }
        let (worker, notes) = (worker.to_owned(), notes.to_vec());
        self.run(Need::Write, move |tx| {
            handlers::note(tx, &worker, &notes)?;
            read(tx)
        })
        .await
    }

    async fn retire(&self, of: &Scope, unseen: Duration, by: &By) -> Result<Retired, StoreError> {
        let (of, by) = (of.clone(), by.clone());
        self.run(Need::Durable, move |tx| {
            let retired = handlers::retire(tx, &of, unseen)?;
            if retired == Retired::Ended {
                let about = of.to_string();
                actions::note(tx, &by, ActionKind::Retire, None, Some(&about), 0)?;
            }
            Ok(retired)
        })
        .await
    }
}

fn note(tx: &Tx<'_>, counts: &[Count]) -> Result<()> {
    let mut note = tx.prepare(NOTE)?;
    for count in counts {
        let sample = count.sample.as_ref();
        note.execute(params![
            count.series.name(),
            count.minute,
            count.process,
            count.of().to_string(),
            count.outcome,
            number(count),
            sample.map(|sample| &sample.lines),
            sample.and_then(|sample| sample.key.as_deref()),
        ])?;
    }
    Ok(())
}

/// Where a list continues: below this minute, process, kind and outcome of a span and a series.
#[derive(Clone)]
struct Next {
    series: Series,
    span: i64,
    below: (i64, i64, String, String),
}

/// All lists of series that are read one after another.
fn lists(of: &CountsOf) -> Vec<Next> {
    let spans = of.series.iter().flat_map(|series| {
        SPANS.map(|span| Next {
            series: *series,
            span,
            below: (of.until, i64::MIN, String::new(), String::new()),
        })
    });
    spans.collect()
}

/// Reads some counts, and returns where the list continues.
fn list(tx: &Tx<'_>, of: &CountsOf, next: &Next) -> Result<(Vec<Count>, Option<Next>)> {
    let (minute, process, kind, outcome) = &next.below;
    let mut list = tx.prepare(LIST)?;
    let values = params![
        next.series.name(),
        next.span,
        of.from,
        minute,
        process,
        kind,
        outcome,
        AT_ONCE
    ];
    let counts = list.query_map(values, |row| count(row, next.series))?;
    let counts: Vec<Count> = counts.collect::<Result<_>>()?;
    let last = counts.last().filter(|_| counts.len() as i64 == AT_ONCE);
    let next = last.map(|last| Next {
        below: (
            last.minute,
            last.process,
            last.of().to_string(),
            last.outcome.clone().into_owned(),
        ),
        ..next.clone()
    });
    Ok((counts, next))
}

/// Whether all counts are read that the newest of a limited number need.
fn is_enough(sums: &Sums, of: &CountsOf, next: &Next) -> bool {
    of.series.len() == 1 && sums.are_complete(next.below.0)
}

/// Puts some old counts together, or deletes them, and returns whether there may be more.
pub(super) fn purge(tx: &Tx<'_>) -> Result<bool> {
    let mut has_more = false;
    for series in Series::ALL {
        let kept = kept_from(row::time(tx.now), series);
        for (at, (span, before)) in SPANS.into_iter().zip(kept).enumerate() {
            let mut old = tx.prepare(OLD)?;
            let values = params![series.name(), span, before, STEP];
            let old = old.query_map(values, |row| count(row, series))?;
            let old: Vec<Count> = old.collect::<Result<_>>()?;
            has_more |= old.len() as i64 == STEP;
            for count in &old {
                let (name, minute, kind) = (series.name(), count.minute, count.of().to_string());
                if let Some(span) = SPANS.get(at + 1)
                    && series != Series::Budget
                {
                    let first = minute - minute % span;
                    let values = params![name, span, first, kind, count.outcome, number(count)];
                    tx.prepare(SUM)?.execute(values)?;
                }
                let values = params![name, span, minute, count.process, kind, count.outcome];
                tx.prepare(DELETE)?.execute(values)?;
            }
        }
    }
    Ok(has_more)
}

/// Deletes what is kept of refused requests with the key of an event whose chat is forgotten.
pub(super) fn forget(tx: &Tx<'_>, seq: i64) -> Result<()> {
    tx.prepare(FORGET)?.execute([seq])?;
    Ok(())
}

fn number(count: &Count) -> i64 {
    i64::try_from(count.number).unwrap_or(i64::MAX)
}

fn count(row: &Row<'_>, series: Series) -> Result<Count> {
    let number = row.get::<_, i64>(4)?.unsigned_abs();
    let sample: Option<String> = row.get(5)?;
    let mut count = Count {
        process: row.get(1)?,
        outcome: Cow::Owned(row.get(3)?),
        sample: sample.map(|lines| Sample { lines, key: None }),
        ..Count::new(series, row.get(0)?, number)
    };
    count.set_of(row::parse(row, 2)?);
    Ok(count)
}
