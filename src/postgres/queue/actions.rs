//! What persons did, which the functions record in the statements of the changes; and changes of all events that
//! match.

use sqlx::postgres::PgRow;

use super::batches::Result;
use super::database::Database;
use super::{parameters, rows};
use crate::inbox::actions::{
    Action, ActionKind, Bulk, BulkState, BulkStep, By, INTERRUPTED_AFTER, KEPT, MOST, NewBulk,
    Which,
};
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

const BEGIN: &str = "
    INSERT INTO {schema}.actions (at, who, reason, what, about, changed, state, chat, skipped, reached, rate, stepped)
    SELECT now, $1, $2, $3, $4, 0, 'running', ($5::bytea[])[1], 0, 0, $6, now FROM {schema}.micros() AS now
    RETURNING number";

const STEP: &str = "SELECT {schema}.step_bulk($1, $2, $3, $4, $5, $6, $7)";

const CANCEL: &str = "
    WITH cancelled AS (
        UPDATE {schema}.actions SET state = 'cancelled' WHERE number = $1 AND state = 'running' RETURNING number
    )
    INSERT INTO {schema}.actions (at, who, reason, what, about, changed)
    SELECT {schema}.micros(), $2, $3, 'cancel', number::text, 0 FROM cancelled RETURNING number";

/// The time and the number of actions for which they are kept.
pub(super) fn limits() -> [Value; 2] {
    [Value::Number(micros(KEPT)), Value::Number(MOST)]
}

/// The parameters that say who does something, and why.
pub(super) fn by(by: &By) -> [Value; 2] {
    [by.who(), by.reason()].map(|text| Value::Text(text.to_owned()))
}

impl Database {
    pub(super) async fn actions(
        &self,
        which: Which,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>> {
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
        let actions = self.read(sql, &values).await?;
        Ok(actions.iter().map(action).collect::<Result<_, Error>>()?)
    }

    pub(super) async fn begin_bulk(&self, bulk: &NewBulk, by: &By) -> Result<i64> {
        let [who, reason] = self::by(by);
        let chat = bulk.chat.clone().map(Into::into);
        let values = [
            who,
            reason,
            Value::Text(bulk.kind.name().to_owned()),
            Value::Text(bulk.about.clone()),
            Value::Blobs(vec![chat]),
            Value::Number(bulk.rate.into()),
        ];
        Ok(column(&self.call_one(BEGIN, values).await?, 0)?)
    }

    pub(super) async fn step_bulk(&self, number: i64, step: &BulkStep) -> Result<bool> {
        let froms = step.events.iter().map(|(_, from)| from.name().to_owned());
        let values = [
            Value::Number(number),
            Value::Number(step.from.0),
            Value::Number(step.redrives.into()),
            Value::numbers(step.events.iter().map(|(id, _)| id.0)),
            Value::Texts(froms.collect()),
            Value::Number(step.reached.0),
            Value::Number(step.is_last.into()),
        ];
        Ok(column(&self.call_when_free(STEP, &values).await?, 0)?)
    }

    pub(super) async fn cancel_bulk(&self, number: i64, by: &By) -> Result<bool> {
        let [who, reason] = self::by(by);
        let values = [Value::Number(number), who, reason];
        Ok(!self.call(CANCEL, values).await?.is_empty())
    }
}

fn action(row: &PgRow) -> Result<Action, Error> {
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
