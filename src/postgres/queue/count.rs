//! Events are counted, and what processes count is kept.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::batches::Result;
use super::database::Database;
use super::{actions, parameters, rows, stats};
use crate::inbox::actions::By;
use crate::inbox::counts::SPANS;
use crate::inbox::handlers::{HandlerNote, NewNote, Retired};
use crate::inbox::queue::CountEvents;
use crate::inbox::records::Stats;
use crate::postgres::engine::{Value, column, corrupt, micros};
use crate::route::Scope;
use crate::store::OpenError as Error;
use crate::telemetry::{Count, CountsOf, Sample, Series};

const NOTE: &str = "SELECT {schema}.note_counts($1, $2, $3, $4, $5, $6, $7, $8)";

const NOTE_HANDLERS: &str = "SELECT {schema}.note_handlers($1, $2, $3, $4)";

const RETIRE: &str = "
    WITH retired AS (
        DELETE FROM {schema}.handlers WHERE handled = $1 AND seen <= {schema}.micros() - $4 RETURNING handled
    ), noted AS (
        INSERT INTO {schema}.actions (at, who, reason, what, about, changed)
        SELECT {schema}.micros(), $2, $3, 'retire', $1, 0 WHERE EXISTS (SELECT FROM retired) RETURNING number
    )
    SELECT EXISTS (SELECT FROM noted), max(seen) + $4 FROM {schema}.handlers
    WHERE handled = $1 AND keep_until >= {schema}.micros()";

const LIST: &str = "
    SELECT series, minute - minute % $4, CASE WHEN $5 > 0 THEN process ELSE 0 END, kind, outcome,
        CASE WHEN series = 'lag' THEN max(number) ELSE sum(number)::bigint END,
        max(CASE WHEN $4 = 1 THEN sample END)
    FROM {schema}.counts
    WHERE series = ANY ($1) AND span = ANY ($7) AND minute >= $2 AND minute < $3
    GROUP BY 1, 2, 3, 4, 5 ORDER BY 2 DESC, 1, 3, 4, 5 LIMIT $6";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[NOTE, LIST, NOTE_HANDLERS, RETIRE, stats::HANDLERS];

#[async_trait]
impl CountEvents for Database {
    async fn stats(&self) -> Result<Stats> {
        let mut stats = stats::stats(&self.read(&stats::count(), &[]).await?)?;
        (stats.handlers, _) = stats::handlers(&self.read(stats::HANDLERS, &[]).await?)?;
        Ok(stats)
    }

    async fn counts(&self, of: &CountsOf) -> Result<Vec<Count>> {
        let series = of.series.iter().map(|series| series.name().to_owned());
        let values = [
            Value::Texts(series.collect()),
            Value::Number(of.from),
            Value::Number(of.until),
            Value::Number(of.bucket.max(1)),
            Value::Number(of.by_process.into()),
            parameters::number(of.limit),
            Value::numbers(SPANS),
        ];
        let counts = self.read(LIST, &values).await?;
        Ok(counts.iter().map(count).collect::<Result<_, Error>>()?)
    }

    async fn note_counts(&self, counts: &[Count]) -> Result<SystemTime> {
        let texts = |text: fn(&Count) -> &str| {
            Value::Texts(counts.iter().map(|count| text(count).to_owned()).collect())
        };
        let kinds = counts.iter().map(|count| count.of().to_string());
        let key = |count: &Count| count.sample.as_ref()?.key.clone();
        let values = [
            texts(|count| count.series.name()),
            Value::numbers(counts.iter().map(|count| count.minute)),
            Value::numbers(counts.iter().map(|count| count.process)),
            Value::Texts(kinds.collect()),
            texts(|count| &count.outcome),
            Value::numbers(counts.iter().map(number)),
            texts(|count| count.sample.as_ref().map_or("", |sample| &sample.lines)),
            Value::Blobs(counts.iter().map(key).collect()),
        ];
        let row = self.call_one(NOTE, values).await?;
        Ok(rows::time(column(&row, 0)?))
    }

    async fn note_handlers(
        &self,
        worker: &str,
        notes: &[NewNote],
    ) -> Result<(Vec<HandlerNote>, SystemTime)> {
        if !notes.is_empty() {
            let keep = |note: &NewNote| micros(note.keep);
            let values = [
                Value::Text(worker.to_owned()),
                Value::Texts(notes.iter().map(|note| note.of.to_string()).collect()),
                Value::Flags(notes.iter().map(|note| note.is_fallback).collect()),
                Value::numbers(notes.iter().map(keep)),
            ];
            self.call(NOTE_HANDLERS, values).await?;
        }
        // Not as people read, who may have taken all of their connections: events wait for this.
        Ok(stats::handlers(&self.call(stats::HANDLERS, []).await?)?)
    }

    async fn retire(&self, of: &Scope, unseen: Duration, by: &By) -> Result<Retired> {
        let [who, reason] = actions::by(by);
        let values = [
            Value::Text(of.to_string()),
            who,
            reason,
            Value::Number(micros(unseen)),
        ];
        let row = self.call_one(RETIRE, values).await?;
        let until: Option<i64> = column(&row, 1)?;
        Ok(match (column(&row, 0)?, until) {
            (true, _) => Retired::Ended,
            (false, None) => Retired::NotNoted,
            (false, Some(until)) => Retired::Kept {
                until: rows::time(until),
            },
        })
    }
}

fn number(count: &Count) -> i64 {
    i64::try_from(count.number).unwrap_or(i64::MAX)
}

fn count(row: &PgRow) -> Result<Count, Error> {
    let series: &str = column(row, 0)?;
    let series = Series::ALL.into_iter().find(|it| it.name() == series);
    let series = series.ok_or_else(|| corrupt("an unknown series of counts"))?;
    let number = column::<i64>(row, 5)?.unsigned_abs();
    let sample: Option<String> = column(row, 6)?;
    let mut count = Count {
        process: column(row, 2)?,
        outcome: Cow::Owned(column(row, 4)?),
        sample: sample.map(|lines| Sample { lines, key: None }),
        ..Count::new(series, column(row, 1)?, number)
    };
    count.set_of(column::<&str>(row, 3)?.parse().map_err(corrupt)?);
    Ok(count)
}
