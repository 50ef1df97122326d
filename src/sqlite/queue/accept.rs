//! How an event is stored, or recognised as a duplicate.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Result, params};

use super::claim::Head;
use super::row::{self, Work};
use super::{SqliteQueue, chats, handlers, kinds, lanes};
use crate::delivery::{IdempotencyKey, Item, RawDelivery};
use crate::inbox::event::{EventId, Failure, MOST_WAITING_KINDS, NewEvent, TOO_MANY_KINDS, Take};
use crate::inbox::headers;
use crate::inbox::queue::{AcceptEvents, Accepted};
use crate::route::{EventType, RouteName};
use crate::sqlite::engine::{Need, Tx};
use crate::sqlite::keys::rows::{self as keys, Taken};
use crate::sqlite::schema::{Place, State};
use crate::store::{EventKey, StoreError};

const INSERT: &str = "
    INSERT INTO events
        (seq, kind, state, key, chat, accepted, keep_until, settled, failures, redriven, delivery, item, items)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?6, ?8, 0, ?9, ?10, ?11)";
const INSERT_BODY: &str = "INSERT INTO bodies (seq, headers, body, kept) VALUES (?1, ?2, ?3, ?4)";
const LAST: &str = "SELECT ifnull(max(seq), 0) FROM events";
const LAST_KIND: &str = "SELECT max(id) FROM kinds";
const IS_AT: &str = "SELECT 1 FROM kinds WHERE id = ?1 AND route = ?2";

#[cfg(test)]
pub(super) const STATEMENTS: &[&str] = &[INSERT, INSERT_BODY, LAST, LAST_KIND, IS_AT];

/// Deliveries of as many bytes or items have a transaction of their own: it takes some 10 ms, and others do not wait for several.
const LARGE: usize = 1 << 20;
const MANY: usize = 500;

#[async_trait]
impl AcceptEvents for SqliteQueue {
    async fn accept(
        &self,
        events: Arc<[NewEvent]>,
        take: Option<&Take>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let take = take.cloned();
        self.run_for(need(events.iter()), move |tx, is_awaited| {
            let take = take.as_ref().filter(|_| is_awaited);
            let first = take.and_then(|take| take.first_of(&events));
            if let Some(refused) = refused(tx, events.iter())? {
                return Ok(vec![refused]);
            }
            let accept = |(at, event)| {
                let take = take.filter(|_| first == Some(at));
                accept(tx, event, &[], take)
            };
            events.iter().enumerate().map(accept).collect()
        })
        .await
    }
}

/// What it takes to store the events of a delivery.
pub(super) fn need<'a>(events: impl ExactSizeIterator<Item = &'a NewEvent>) -> Need {
    let is_many = events.len() >= MANY;
    let bytes: usize = events.map(|it| it.delivery.body().len()).sum();
    match is_many || bytes >= LARGE {
        true => Need::Alone,
        false => Need::Durable,
    }
}

/// Why none of the events of a delivery is accepted. That of a single event is found when it is.
pub(super) fn refused<'a>(
    tx: &mut Tx<'_>,
    events: impl IntoIterator<Item = &'a NewEvent, IntoIter: ExactSizeIterator>,
) -> Result<Option<Accepted>> {
    let events = events.into_iter();
    if events.len() < 2 {
        return Ok(None);
    }
    for event in events {
        if let Some(known) = known(tx, event)?.filter(Accepted::refuses_all) {
            return Ok(Some(known));
        }
    }
    Ok(None)
}

/// The number of the event that was accepted last, once a transaction has read it.
#[derive(Default)]
struct Last(Option<i64>);

pub(super) fn last(tx: &mut Tx<'_>) -> Result<i64> {
    if let Last(Some(last)) = *tx.memo() {
        return Ok(last);
    }
    let last = tx.prepare(LAST)?.query_row([], |row| row.get(0))?;
    *tx.memo() = Last(Some(last));
    Ok(last)
}

/// Accepts an event, with a line that a spool adds to its headers, or none.
pub(super) fn accept(
    tx: &mut Tx<'_>,
    event: &NewEvent,
    line: &[u8],
    take: Option<&Take>,
) -> Result<Accepted> {
    let delivery = &event.delivery;
    let seq = last(tx)? + 1;
    let keep_until = row::after(tx.now, event.retain);
    if let Some(refusal) = record_keys(tx, event, seq, keep_until)? {
        return Ok(refusal);
    }

    // After the keys, as a copy of a delivery may have any kind.
    let kind = kinds::find(tx, delivery.route(), delivery.kind())?;
    let id = EventId(seq);
    if let Some(failure) = &event.dead {
        insert(tx, event, line, seq, kind.id, keep_until, State::Dead)?;
        row::fail(tx, seq, failure)?;
        return Ok(Accepted::New { id, taken: None });
    }
    let mut work = Work {
        seq,
        kind: kind.id,
        lane: event.lane.map(|lane| lane.0),
        due: tx.now,
        ..Work::default()
    };
    if let Some(lane) = work.lane
        && lanes::is_busy(tx, lane)?
    {
        work.place = Place::Behind;
    }
    let is_open =
        |take: &&Take| !kind.is_paused && take.kinds.takes(delivery.route(), delivery.kind());
    let take = take.filter(is_open);
    let take = take.filter(|_| work.place == Place::Ready);
    if take.is_none() && !may_wait(tx, delivery, kind.id)? {
        let [outcome, reason] = TOO_MANY_KINDS;
        insert(tx, event, line, seq, kind.id, keep_until, State::Dead)?;
        row::fail(tx, seq, &Failure::new(outcome, reason))?;
        return Ok(Accepted::DeadLetter { id });
    }
    insert(tx, event, line, seq, kind.id, keep_until, State::Unsettled)?;
    let Some(take) = take else {
        work.insert(tx, None)?;
        return Ok(Accepted::New { id, taken: None });
    };
    let fence = tx.token();
    work.place = Place::Taken;
    work.due = row::lease_end(tx.now, take.lease);
    work.insert(tx, Some(fence))?;
    let delivery = delivery.clone().with_acceptance(row::time(tx.now), false);
    Ok(Accepted::New {
        id,
        taken: Some(Box::new(lanes::taken(tx, &work, fence, delivery))),
    })
}

/// Records the key and the guard of an event, or returns why it is not accepted.
fn record_keys(
    tx: &mut Tx<'_>,
    event: &NewEvent,
    seq: i64,
    keep_until: i64,
) -> Result<Option<Accepted>> {
    let guard = event
        .guard
        .filter(|guard| event.key.is_none_or(|key| key.key() != guard.key()));
    if guard.is_some() {
        // Neither is recorded unless both can be.
        if let Some(known) = known(tx, event)? {
            return Ok(Some(known));
        }
    }
    for digests in [event.key, guard].into_iter().flatten() {
        if let Some(taken) = keys::record(tx, digests, seq, keep_until)? {
            let refusal = refusal(event, digests, &taken);
            if refusal.is_some() {
                return Ok(refusal);
            }
        }
    }
    Ok(None)
}

/// The answer to an event whose key or guard is taken.
fn known(tx: &mut Tx<'_>, event: &NewEvent) -> Result<Option<Accepted>> {
    for digests in [event.key, event.guard].into_iter().flatten() {
        if let Some(taken) = keys::taken(tx, digests)?
            && let Some(refusal) = refusal(event, digests, &taken)
        {
            return Ok(Some(refusal));
        }
    }
    Ok(None)
}

/// How many types of a route wait, as a transaction has counted them. A type that leaves during the transaction counts
/// until its end.
type Waiting = Vec<(RouteName, usize)>;

/// Whether an event of a type may wait: a worker has noted that it handles the type, one of its type is first in its lane, or
/// not too many other types of the route are.
fn may_wait(tx: &mut Tx<'_>, delivery: &RawDelivery, id: i64) -> Result<bool> {
    const MOST: i64 = MOST_WAITING_KINDS.cast_signed() as i64;
    // There are no more types than numbers.
    let last: i64 = tx.prepare(LAST_KIND)?.query_row([], |row| row.get(0))?;
    if last < MOST {
        return Ok(true);
    }
    for place in [Place::Ready, Place::Suspect, Place::Taken] {
        if Head::first(tx, place, id)?.is_some() {
            return Ok(true);
        }
    }
    let route = delivery.route();
    let of = EventType::new(route.clone(), delivery.kind().clone());
    if handlers::is_noted(tx, &of)? {
        return Ok(true);
    }
    let known = tx.memo::<Waiting>().iter().position(|(of, _)| of == route);
    let at = match known {
        Some(at) => at,
        None => {
            let mut is_at = tx.prepare(IS_AT)?;
            let mut waiting = 0;
            for head in Head::all(tx, Place::Ready)? {
                waiting += usize::from(is_at.exists(params![head.kind, route.as_str()])?);
            }
            drop(is_at);
            let memo = tx.memo::<Waiting>();
            memo.push((route.clone(), waiting));
            memo.len() - 1
        }
    };
    let (_, waiting) = &mut tx.memo::<Waiting>()[at];
    let may_wait = *waiting < MOST_WAITING_KINDS;
    *waiting += usize::from(may_wait);
    Ok(may_wait)
}

/// Writes an event and its body.
fn insert(
    tx: &mut Tx<'_>,
    event: &NewEvent,
    line: &[u8],
    seq: i64,
    kind: i64,
    keep_until: i64,
    state: State,
) -> Result<()> {
    let delivery = &event.delivery;
    let item = delivery.item();
    let mut headers = headers::to_bytes(delivery.headers()).unwrap_or_default();
    headers.extend_from_slice(line);
    tx.prepare(INSERT)?.execute(params![
        seq,
        kind,
        state,
        delivery.key().map(IdempotencyKey::as_bytes),
        event.chat,
        tx.now,
        keep_until,
        state == State::Dead,
        item.map(|item| item.delivery),
        item.map(Item::number),
        item.map(Item::count),
    ])?;
    tx.prepare(INSERT_BODY)?.execute(params![
        seq,
        (!headers.is_empty()).then_some(headers),
        &delivery.body()[..],
        item.and_then(Item::kept_bytes).map(|kept| &kept[..]),
    ])?;
    *tx.memo() = Last(Some(seq));
    chats::accepted(tx, seq)?;
    Ok(())
}

/// Why an event is not accepted whose key, or guard, is taken. `None` for the guard of a batch that another item has brought.
fn refusal(event: &NewEvent, digests: EventKey, taken: &Taken) -> Option<Accepted> {
    let same_body = taken.same_body;
    let is_key = event.key == Some(digests);
    match taken.in_flight {
        Some(remaining) => Some(Accepted::InFlight { remaining }),
        None if !is_key && same_body && event.delivery.item().is_some() => None,
        None if is_key || same_body => Some(Accepted::Duplicate { same_body }),
        None => Some(Accepted::BodyReplayed),
    }
}
