//! What is deleted of a chat that is forgotten.

use std::ops::RangeInclusive;

use async_trait::async_trait;
use rusqlite::Result;

use super::change::{discard_row, event};
use super::purge::delete_body;
use super::row::DELETE_FAILURES;
use super::{SqliteQueue, actions, chats, count, search};
use crate::inbox::actions::{ActionKind, By, chat_digest};
use crate::inbox::event::EventId;
use crate::inbox::queue::ForgetChats;
use crate::inbox::records::{FORGET_STEP, Forgotten};
use crate::sqlite::engine::{Need, Tx};
use crate::sqlite::schema::State;
use crate::store::StoreError;

#[async_trait]
impl ForgetChats for SqliteQueue {
    async fn forget(
        &self,
        chat: &str,
        events: Option<RangeInclusive<EventId>>,
        by: &By,
    ) -> Result<Forgotten, StoreError> {
        let (digest, chat, by) = (chat_digest(chat), chat.to_owned(), by.clone());
        let name = chat.clone();
        let found = self.read(move |tx| to_forget(tx, &chat, events.as_ref()));
        let ToForget { events, rest } = found.await?;
        let step = self.run(Need::Durable, move |tx| {
            actions::forget_bulks(tx, &name)?;
            let bodies = forget(tx, &events)?;
            actions::note(tx, &by, ActionKind::Forget, None, Some(&digest), bodies)?;
            Ok(bodies)
        });
        let bodies = step.await?;
        Ok(Forgotten { bodies, rest })
    }
}

/// What a step of [`forget`](ForgetChats::forget) begins with.
struct ToForget {
    events: Vec<i64>,
    rest: Option<RangeInclusive<EventId>>,
}

/// Finds the events of a step. In no transaction with what follows: the events of a chat up to the newest one become
/// fewer only.
fn to_forget(
    tx: &Tx<'_>,
    chat: &str,
    events: Option<&RangeInclusive<EventId>>,
) -> Result<ToForget> {
    let newest = search::last(tx)?.unwrap_or(0);
    let (first, last) = events.map_or((i64::MIN, newest), |events| {
        (events.start().0, events.end().0)
    });
    let range = first..=last;
    let mut events = chats::find(tx, chat, &range, newest, false, FORGET_STEP + 1)?;
    let next = match events.len() > FORGET_STEP {
        true => events.pop(),
        false => None,
    };
    Ok(ToForget {
        events,
        rest: next.map(|next| EventId(next)..=EventId(last)),
    })
}

/// Deletes the bodies of these events, and returns their number. Those that are unsettled or dead are discarded.
fn forget(tx: &mut Tx<'_>, events: &[i64]) -> Result<u64> {
    let mut bodies = 0;
    for seq in events {
        let Some(event) = event(tx, *seq)? else {
            continue;
        };
        if matches!(event.state, State::Unsettled | State::Dead) {
            discard_row(tx, *seq, &event)?;
        }
        actions::forget(tx, *seq)?;
        count::forget(tx, *seq)?;
        // Their texts may quote the body.
        tx.prepare(DELETE_FAILURES)?.execute([seq])?;
        bodies += u64::from(delete_body(tx, *seq)?);
    }
    Ok(bodies)
}
