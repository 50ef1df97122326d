//! What persons did. The functions record it in the statements of the changes.

use sqlx::postgres::PgRow;

use super::batches::Result;
use super::database::Database;
use super::{parameters, rows};
use crate::inbox::actions::{Action, ActionKind, By, KEPT, MOST};
use crate::inbox::event::EventId;
use crate::postgres::engine::{Value, column, corrupt, micros};
use crate::store::OpenError as Error;

const ALL: &str = "
    SELECT number, at, who, reason, what, event, about, changed FROM {schema}.actions
    WHERE number < $1 ORDER BY number DESC LIMIT $2";

const OF_EVENT: &str = "
    SELECT a.number, a.at, a.who, a.reason, a.what, a.event, a.about, a.changed
    FROM {schema}.changed c JOIN {schema}.actions a ON a.number = c.action
    WHERE c.event = $3 AND c.action < $1 ORDER BY c.action DESC LIMIT $2";

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
        of: Option<EventId>,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Action>> {
        let mut values = vec![
            Value::Number(before.unwrap_or(i64::MAX)),
            parameters::number(limit),
        ];
        values.extend(of.map(|id| Value::Number(id.0)));
        let sql = if of.is_some() { OF_EVENT } else { ALL };
        let actions = self.read(sql, &values).await?;
        Ok(actions.iter().map(action).collect::<Result<_, Error>>()?)
    }
}

fn action(row: &PgRow) -> Result<Action, Error> {
    let kind = ActionKind::parse(column(row, 4)?);
    Ok(Action {
        number: column(row, 0)?,
        at: rows::time(column(row, 1)?),
        by: By::new(column(row, 2)?).because(column(row, 3)?),
        kind: kind.ok_or_else(|| corrupt("an unknown action"))?,
        event: column::<Option<i64>>(row, 5)?.map(EventId),
        about: column(row, 6)?,
        changed: column::<i64>(row, 7)?.unsigned_abs(),
    })
}
