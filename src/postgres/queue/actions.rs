//! What persons did, which the functions record in the statements of the changes; and jobs.

use std::time::Duration;

use sqlx::postgres::PgRow;

use super::batches::Result;
use super::database::Database;
use super::{parameters, rows};
use crate::inbox::actions::{
    Action, ActionKind, By, Job, JobLease, JobState, JobStep, KEPT, MOST, NewJob, Which,
};
use crate::inbox::event::EventId;
use crate::postgres::engine::{Value, column, corrupt, micros};
use crate::store::{Fence, OpenError as Error};

macro_rules! columns {
    () => {
        "a.number, a.at, a.who, a.reason, a.what, a.event, a.about, a.changed, a.state, a.skipped, a.reached, a.rate,
        a.state = 'running' AND a.lease_until > {schema}.micros()"
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
    INSERT INTO {schema}.actions (at, who, reason, what, about, changed, state, chat, skipped, reached, rate, lease_until)
    VALUES ({schema}.micros(), $1, $2, $3, $4, 0, 'running', ($5::bytea[])[1], 0, 0, $6, 0) RETURNING number";

// Of a job that another one takes just now, the lock is left alone.
const TAKE: &str = concat!(
    "UPDATE {schema}.actions a SET fence = $2, lease_until = {schema}.micros() + $1
    WHERE a.number = (
        SELECT f.number FROM {schema}.actions f WHERE f.state = 'running' AND f.lease_until <= {schema}.micros()
        ORDER BY f.number LIMIT 1 FOR UPDATE SKIP LOCKED
    ) RETURNING ",
    columns!()
);

const STEP: &str = "SELECT {schema}.step_job($1, $2, $3, $4, $5, $6, $7, $8)";

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

    pub(super) async fn begin_job(&self, job: &NewJob, by: &By) -> Result<i64> {
        let [who, reason] = self::by(by);
        let chat = job.chat.clone().map(Into::into);
        let values = [
            who,
            reason,
            Value::Text(job.kind.name().to_owned()),
            Value::Text(job.filter.clone()),
            Value::Blobs(vec![chat]),
            Value::Number(job.rate.into()),
        ];
        Ok(column(&self.call_one(BEGIN, values).await?, 0)?)
    }

    pub(super) async fn take_job(&self, lease: Duration) -> Result<Option<(JobLease, Action)>> {
        let fence = fastrand::u128(..);
        let values = [Value::Number(micros(lease)), Value::Id(fence)];
        let taken = self.call(TAKE, values).await?;
        let Some(job) = taken.first().map(action).transpose()? else {
            return Ok(None);
        };
        let lease = JobLease {
            number: job.number,
            fence: Fence(fence),
        };
        Ok(Some((lease, job)))
    }

    pub(super) async fn step_job(&self, lease: &JobLease, step: &JobStep) -> Result<bool> {
        let froms = step.events.iter().map(|(_, from)| from.name().to_owned());
        let values = [
            Value::Number(lease.number),
            Value::Id(lease.fence.0),
            Value::Number(step.redrives.into()),
            Value::numbers(step.events.iter().map(|(id, _)| id.0)),
            Value::Texts(froms.collect()),
            Value::Number(step.reached.0),
            Value::Text(step.state.name().to_owned()),
            Value::Number(micros(step.lease)),
        ];
        Ok(column(&self.call_when_free(STEP, &values).await?, 0)?)
    }

    pub(super) async fn cancel_job(&self, number: i64, by: &By) -> Result<bool> {
        let [who, reason] = self::by(by);
        let values = [Value::Number(number), who, reason];
        Ok(!self.call(CANCEL, values).await?.is_empty())
    }
}

fn action(row: &PgRow) -> Result<Action, Error> {
    let kind = ActionKind::parse(column(row, 4)?);
    let job = match column::<Option<&str>>(row, 8)? {
        None => None,
        Some(state) => Some(Job {
            state: JobState::parse(state).ok_or_else(|| corrupt("an unknown state of a job"))?,
            skipped: column::<i64>(row, 9)?.unsigned_abs(),
            reached: EventId(column(row, 10)?),
            rate: u32::try_from(column::<i64>(row, 11)?).map_err(corrupt)?,
            is_held: column(row, 12)?,
        }),
    };
    Ok(Action {
        number: column(row, 0)?,
        at: rows::time(column(row, 1)?),
        by: By::new(column(row, 2)?).because(column(row, 3)?),
        kind: kind.ok_or_else(|| corrupt("an unknown action"))?,
        event: column::<Option<i64>>(row, 5)?.map(EventId),
        about: column(row, 6)?,
        changed: column::<i64>(row, 7)?.unsigned_abs(),
        job,
    })
}
