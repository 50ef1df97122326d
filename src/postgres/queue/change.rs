//! Persons change events, one by one or all that match, and pause some of them. Concurrent changes of one share a statement.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::actions;
use super::batches::{Batches, Call, Result};
use super::database::Database;
use crate::inbox::actions::{ActionKind, BulkStep, By, NewBulk, paused};
use crate::inbox::event::{EventId, EventState};
use crate::inbox::queue::ChangeEvents;
use crate::inbox::records::Change;
use crate::postgres::engine::{Value, column, corrupt};
use crate::route::Scope;
use crate::store::OpenError as Error;

/// Many events at once, in their order.
const CHANGE: &str = "SELECT o_answer FROM {schema}.change($1, $2, $3, $4, $5) ORDER BY o_at";

const PAUSE: &str = "
    WITH paused AS (
        INSERT INTO {schema}.kinds (name, route, is_seen, paused, note)
        VALUES ($1, $2, false, CASE WHEN $3 > 0 THEN {schema}.micros() ELSE 0 END, CASE WHEN $3 > 0 THEN $4 END)
        ON CONFLICT (name, route) DO UPDATE SET paused = excluded.paused, note = excluded.note
    )
    INSERT INTO {schema}.actions (at, who, reason, what, about, changed) VALUES ({schema}.micros(), $5, $6, $7, $8, 0)";

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

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[CHANGE, PAUSE, BEGIN, STEP, CANCEL];

pub(super) struct Changes {
    database: Arc<Database>,
    calls: Arc<Batches<Changing>>,
}

impl Changes {
    pub(super) fn new(database: &Arc<Database>) -> Self {
        let execute = |database: Arc<Database>, calls: Vec<Changing>| async move {
            database
                .execute(CHANGE, &calls, changed, |call, rows| change(call, &rows[0]))
                .await
        };
        Self {
            database: Arc::clone(database),
            calls: database.batches(execute),
        }
    }
}

#[async_trait]
impl ChangeEvents for Changes {
    async fn change(
        &self,
        kind: ActionKind,
        id: EventId,
        from: Option<EventState>,
        by: &By,
    ) -> Result<Change> {
        let change = Changing {
            id,
            from,
            redrives: kind == ActionKind::Redrive,
            by: by.clone(),
        };
        self.calls.call(change).await
    }

    async fn pause(&self, of: &Scope, note: Option<&str>, by: &By) -> Result<()> {
        let (kind, route) = match of {
            Scope::Everything => ("", ""),
            Scope::Route(route) => ("", route.as_str()),
            Scope::Type(of) => (of.kind.as_str(), of.route.as_str()),
        };
        let [who, reason] = actions::by(by);
        let is_paused = Value::Number(note.is_some().into());
        let done = paused(note).name();
        let note = note.unwrap_or_default().replace('\0', " ");
        let values = [
            Value::Text(kind.to_owned()),
            Value::Text(route.to_owned()),
            is_paused,
            Value::Text(note),
            who,
            reason,
            Value::Text(done.to_owned()),
            Value::Text(of.to_string()),
        ];
        self.database.call(PAUSE, values).await?;
        Ok(())
    }

    async fn begin(&self, bulk: &NewBulk, by: &By) -> Result<i64> {
        let [who, reason] = actions::by(by);
        let chat = bulk.chat.clone().map(Into::into);
        let values = [
            who,
            reason,
            Value::Text(bulk.kind.name().to_owned()),
            Value::Text(bulk.about.clone()),
            Value::Blobs(vec![chat]),
            Value::Number(bulk.rate.into()),
        ];
        Ok(column(&self.database.call_one(BEGIN, values).await?, 0)?)
    }

    async fn step(&self, number: i64, step: &BulkStep) -> Result<bool> {
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
        let row = self.database.step(STEP, &values).await?;
        Ok(column(&row, 0)?)
    }

    async fn cancel(&self, number: i64, by: &By) -> Result<bool> {
        let [who, reason] = actions::by(by);
        let values = [Value::Number(number), who, reason];
        Ok(!self.database.call(CANCEL, values).await?.is_empty())
    }
}

/// A call for a change.
#[derive(Clone)]
struct Changing {
    id: EventId,
    from: Option<EventState>,
    redrives: bool,
    by: By,
}

impl Call for Changing {
    type Return = Change;
}

fn changed(calls: &[Changing]) -> Vec<Value> {
    let froms = calls
        .iter()
        .map(|call| call.from.map_or("", EventState::name));
    let texts = |text: fn(&By) -> &str| {
        Value::Texts(calls.iter().map(|call| text(&call.by).to_owned()).collect())
    };
    vec![
        Value::numbers(calls.iter().map(|call| call.id.0)),
        Value::Texts(froms.map(str::to_owned).collect()),
        Value::Flags(calls.iter().map(|call| call.redrives).collect()),
        texts(By::who),
        texts(By::reason),
    ]
}

fn change(_: &Changing, row: &PgRow) -> Result<Change, Error> {
    match column::<&str>(row, 0)? {
        "made" => Ok(Change::Made),
        "not-found" => Ok(Change::NotFound),
        "wrong-state" => Ok(Change::WrongState),
        "without-body" => Ok(Change::WithoutBody),
        _ => Err(corrupt("an unknown answer to a change")),
    }
}
