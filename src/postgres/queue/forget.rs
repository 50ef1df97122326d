//! Chats are forgotten.

use std::ops::RangeInclusive;

use async_trait::async_trait;
use bytes::Bytes;

use super::batches::Result;
use super::database::Database;
use super::{actions, parameters};
use crate::inbox::actions::{By, chat_digest};
use crate::inbox::event::{EventId, Lane};
use crate::inbox::queue::ForgetChats;
use crate::inbox::records::{FORGET_STEP, Forgotten};
use crate::postgres::engine::{Value, column};

const FORGET: &str =
    "SELECT o_bodies, o_next, o_last FROM {schema}.forget($1, $2, $3, $4, $5, $6, $7, $8)";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[FORGET];

#[async_trait]
impl ForgetChats for Database {
    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten> {
        let (first, last) = events.map_or((i64::MIN, None), |events| {
            (events.start().0, Some(events.end().0))
        });
        let [who, reason] = actions::by(by);
        let values = [
            Value::Number(Lane::of_chat(chat).0),
            Value::Bytes(Bytes::copy_from_slice(chat.as_bytes())),
            Value::Number(first),
            Value::Optional(last),
            parameters::number(FORGET_STEP),
            who,
            reason,
            Value::Text(chat_digest(chat)),
        ];
        let row = self.step(FORGET, &values).await?;
        let (next, last): (Option<i64>, Option<i64>) = (column(&row, 1)?, column(&row, 2)?);
        Ok(Forgotten {
            bodies: column::<i64>(&row, 0)?.unsigned_abs(),
            rest: next
                .zip(last)
                .map(|(next, last)| EventId(next)..=EventId(last)),
        })
    }
}
