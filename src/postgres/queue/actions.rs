//! What persons did. It is noted in the statements of the changes.

use sqlx::postgres::PgRow;

use super::{parameters, rows};
use crate::inbox::actions::{Action, ActionKind, Bulk, BulkState, By, INTERRUPTED_AFTER, Which};
use crate::inbox::event::EventId;
use crate::postgres::engine::{Value, column, corrupt, micros};
use crate::store::OpenError as Error;

macro_rules! columns {
    () => {
        "a.number, a.at, a.who, a.reason, a.what, a.event, a.about, a.changed, a.state, a.skipped, a.reached, a.rate,
        {schema}.micros() - a.stepped"
    };
}

const ALL: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM {schema}.actions a WHERE number < $1 ORDER BY number DESC LIMIT $2"
);

const OF_EVENT: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM {schema}.changed c JOIN {schema}.actions a ON a.number = c.action
    WHERE c.event = $3 AND c.action < $1 ORDER BY c.action DESC LIMIT $2"
);

const RUNNING: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM {schema}.actions a WHERE state = 'running' AND number < $1 ORDER BY number DESC LIMIT $2"
);

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[ALL, OF_EVENT, RUNNING];

/// The parameters that say who does something, and why.
pub(super) fn by(by: &By) -> [Value; 2] {
    [by.who(), by.reason()].map(|text| Value::Text(text.to_owned()))
}

/// A statement for some actions, and its parameters.
pub(super) fn select(
    which: Which,
    before: Option<i64>,
    limit: usize,
) -> (&'static str, Vec<Value>) {
    let mut values = vec![
        Value::Number(before.unwrap_or(i64::MAX)),
        parameters::number(limit),
    ];
    let sql = match which {
        Which::All => ALL,
        Which::Running => RUNNING,
        Which::Of(id) => {
            values.push(Value::Number(id.0));
            OF_EVENT
        }
    };
    (sql, values)
}

pub(super) fn action(row: &PgRow) -> Result<Action, Error> {
    let kind = ActionKind::parse(column(row, 4)?);
    let bulk = match column::<Option<&str>>(row, 8)? {
        None => None,
        Some(state) => {
            let is_late = column::<i64>(row, 12)? > micros(INTERRUPTED_AFTER);
            let state = BulkState::parse(state, is_late);
            Some(Bulk {
                state: state.ok_or_else(|| corrupt("an unknown state of a bulk change"))?,
                skipped: column::<i64>(row, 9)?.unsigned_abs(),
                reached: EventId(column(row, 10)?),
                rate: u32::try_from(column::<i64>(row, 11)?).map_err(corrupt)?,
            })
        }
    };
    Ok(Action {
        number: column(row, 0)?,
        at: rows::time(column(row, 1)?),
        by: By::new(column(row, 2)?).because(column(row, 3)?),
        kind: kind.ok_or_else(|| corrupt("an unknown action"))?,
        event: column::<Option<i64>>(row, 5)?.map(EventId),
        about: column(row, 6)?,
        changed: column::<i64>(row, 7)?.unsigned_abs(),
        bulk,
    })
}
