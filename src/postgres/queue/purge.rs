//! Bodies, events, actions and counts are deleted after their times.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::batches::Result;
use super::database::Database;
use crate::inbox::actions::{KEPT, MOST};
use crate::inbox::counts::{SPANS, kept_from};
use crate::inbox::queue::PurgeEvents;
use crate::postgres::engine::{Value, column, micros};
use crate::telemetry::Series;

const PURGE: &str = "SELECT {schema}.purge($1, $2, $3, $4)";

/// How many events a step of purging deletes, or deletes the bodies of.
const EVENTS_PER_STEP: i64 = 1000;

const PURGE_COUNTS: &str = "SELECT {schema}.purge_counts($1, $2, $3, $4)";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[PURGE, PURGE_COUNTS];

/// How many counts of each series a step of a purge puts together or deletes.
const COUNTS_PER_STEP: i64 = 500;

#[async_trait]
impl PurgeEvents for Database {
    async fn purge(&self, keep_bodies: Duration) -> Result<bool> {
        let values = [
            Value::Number(micros(keep_bodies)),
            Value::Number(EVENTS_PER_STEP),
            Value::Number(micros(KEPT)),
            Value::Number(MOST),
        ];
        let row = self.call_one(PURGE, values).await?;
        Ok(column(&row, 0)? || self.purge_counts().await?)
    }
}

impl Database {
    /// Puts old counts together, or deletes them, and returns whether there may be more.
    async fn purge_counts(&self) -> Result<bool> {
        let names = Series::ALL.map(|series| series.name().to_owned());
        let kept = Series::ALL.map(|series| kept_from(SystemTime::UNIX_EPOCH, series));
        let values = [
            Value::Texts(names.into()),
            Value::numbers(SPANS),
            Value::numbers(kept.into_iter().flatten()),
            Value::Number(COUNTS_PER_STEP),
        ];
        Ok(column(&self.call_one(PURGE_COUNTS, values).await?, 0)?)
    }
}
