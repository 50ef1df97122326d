//! The lanes that wait for an event that has failed.

use sqlx::postgres::PgRow;

use super::places::with_last_failures;
use super::{parameters, rows};
use crate::inbox::event::EventId;
use crate::inbox::records::BlockedLane;
use crate::postgres::engine::{Value, column};
use crate::store::OpenError as Error;

/// The number of such lanes by kind, where a statement has a `clock`.
pub(super) const COUNT: &str = "SELECT o_kind, count(*) AS lanes
            FROM {schema}.blocked((SELECT now FROM clock), '{}') GROUP BY o_kind";

/// A statement for a page of such lanes.
pub(super) fn lanes() -> String {
    let page = with_last_failures("{schema}.blocked_lanes($1, $2, $3)");
    format!("{page} ORDER BY seq")
}

pub(super) fn values(lanes: Vec<i64>, after: Option<EventId>, limit: usize) -> [Value; 3] {
    [
        Value::numbers(lanes),
        Value::Number(after.map_or(i64::MIN, |id| id.0)),
        parameters::number(limit),
    ]
}

pub(super) fn lane(row: &PgRow) -> Result<BlockedLane, Error> {
    Ok(BlockedLane {
        event: rows::summary(row)?,
        since: rows::time(column(row, rows::REST)?),
        waiting: column::<i64>(row, rows::REST + 1)?.unsigned_abs(),
    })
}
