//! Between rows and events.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use sqlx::postgres::PgRow;

use crate::delivery::{IdempotencyKey, Item, RawDelivery};
use crate::error::Chain;
use crate::event::EventKind;
use crate::inbox::event::{
    EventId, EventLease, EventState, Failure, Lane, Shape, TakenEvent, UNCOUNTED,
};
use crate::inbox::headers;
use crate::inbox::records::{EventSummary, PastFailure};
use crate::postgres::engine::{Uuid, column, corrupt};
use crate::route::RouteName;
use crate::store::Fence;
use crate::store::OpenError as Error;

/// A column of a state's name.
fn state(row: &PgRow, at: usize) -> Result<EventState, Error> {
    let name: &str = column(row, at)?;
    name.parse().map_err(corrupt)
}

/// Microseconds since 1970, rounded up, so that times compare like stored ones.
pub(super) fn micros_of(time: SystemTime) -> i64 {
    let micros = |time: u128| i64::try_from(time).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => micros(since.as_nanos().div_ceil(1000)),
        Err(before) => -micros(before.duration().as_nanos() / 1000),
    }
}

pub(super) fn time(micros: i64) -> SystemTime {
    let since = Duration::from_micros(micros.unsigned_abs());
    let time = match micros >= 0 {
        true => UNIX_EPOCH.checked_add(since),
        false => UNIX_EPOCH.checked_sub(since),
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// A column of a duration in microseconds.
pub(super) fn duration(row: &PgRow, at: usize) -> Result<Option<Duration>, Error> {
    let micros: Option<i64> = column(row, at)?;
    Ok(micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
}

pub(super) fn route(row: &PgRow, at: usize) -> Result<RouteName, Error> {
    let name: &str = column(row, at)?;
    name.parse().map_err(corrupt)
}

pub(super) fn kind(row: &PgRow, at: usize) -> Result<EventKind, Error> {
    let name: &str = column(row, at)?;
    EventKind::from_bytes(name.as_bytes()).map_err(corrupt)
}

fn key(row: &PgRow, at: usize) -> Result<Option<IdempotencyKey>, Error> {
    let key: Option<&[u8]> = column(row, at)?;
    let value = key.map(HeaderValue::from_bytes).transpose();
    Ok(value.map_err(corrupt)?.and_then(IdempotencyKey::new))
}

pub(super) fn text(row: &PgRow, at: usize) -> Result<Option<String>, Error> {
    let text: Option<&[u8]> = column(row, at)?;
    Ok(text.map(|text| String::from_utf8_lossy(text).into_owned()))
}

fn count(row: &PgRow, at: usize) -> Result<u32, Error> {
    u32::try_from(column::<i32>(row, at)?).map_err(corrupt)
}

pub(super) fn headers(row: &PgRow, at: usize) -> Result<HeaderMap, Error> {
    let headers: Option<&[u8]> = column(row, at)?;
    Ok(headers.map(headers::from_bytes).unwrap_or_default())
}

/// The place of an event in a batch, in the columns from `at` on.
pub(super) fn item(row: &PgRow, at: usize) -> Result<Option<Item>, Error> {
    let delivery: Option<i64> = column(row, at)?;
    // As a rule, there is none.
    if delivery.is_none() {
        return Ok(None);
    }
    let number = |at| -> Result<_, Error> {
        let number: Option<i32> = column(row, at)?;
        number.map(u32::try_from).transpose().map_err(corrupt)
    };
    let kept: Option<Vec<u8>> = column(row, at + 3)?;
    Ok(Item::stored(
        delivery,
        number(at + 1)?,
        number(at + 2)?,
        kept.map(Bytes::from),
    ))
}

/// The lease of an event that was taken, in the columns from `at` on. `None` where there is none.
pub(super) fn lease(row: &PgRow, at: usize) -> Result<Option<EventLease>, Error> {
    let Some(id) = column::<Option<i64>>(row, at)? else {
        return Ok(None);
    };
    let Uuid(fence) = column(row, at + 1)?;
    Ok(Some(EventLease {
        id: EventId(id),
        fence: Fence(fence),
        place: column(row, at + 2)?,
    }))
}

/// How many leases of the event have expired in a row, in the columns from `at` on.
pub(super) fn crashes(row: &PgRow, at: usize) -> Result<i32, Error> {
    column(row, at + 12)
}

/// As [`taken`]. One that cannot be read is passed over, and taken again when its lease has expired.
pub(super) fn readable(row: &PgRow, at: usize) -> Result<Option<TakenEvent>, Error> {
    let Some(lease) = lease(row, at)? else {
        return Ok(None);
    };
    let taken = taken(row, at);
    if let Err(error) = &taken {
        tracing::error!(
            event = lease.id.0,
            reason = Chain(error).to_string(),
            "an event cannot be read: it is passed over, and is a dead letter after the third time"
        );
    }
    Ok(taken.unwrap_or_default())
}

/// An event that was taken, in the columns from `at` on. `None` where there is none.
fn taken(row: &PgRow, at: usize) -> Result<Option<TakenEvent>, Error> {
    let Some(lease) = lease(row, at)? else {
        return Ok(None);
    };
    let place = lease.place;
    let is_in_lane: bool = column(row, at + 3)?;
    let body: &[u8] = column(row, at + 7)?;
    let failures = count(row, at + 11)?;
    let crashes = count(row, at + 12)?;
    let attempt = NonZeroU32::MIN.saturating_add(failures.saturating_add(crashes));
    let delivery = RawDelivery::new(kind(row, at + 5)?, Bytes::copy_from_slice(body))
        .with_route(route(row, at + 4)?)
        .with_key(key(row, at + 6)?)
        .with_headers(headers(row, at + 8)?)
        .with_boxed_item(item(row, at + 15)?.map(Box::new))
        .with_attempt(attempt)
        .with_acceptance(time(column(row, at + 9)?), column(row, at + 10)?);
    Ok(Some(TakenEvent {
        lease,
        delivery,
        lane: is_in_lane.then_some(Lane(place)),
        failures,
        crashes,
        tried_for: duration(row, at + 13)?,
        uncounted: count(row, at + 14)? / UNCOUNTED,
    }))
}

/// A failure, in the first columns. `None` where there is none.
pub(super) fn failure(row: &PgRow) -> Result<Option<PastFailure>, Error> {
    let Some(at) = column::<Option<i64>>(row, 0)? else {
        return Ok(None);
    };
    Ok(Some(PastFailure {
        at: time(at),
        failure: Failure {
            outcome: text(row, 1)?.unwrap_or_default(),
            reason: text(row, 2)?.unwrap_or_default(),
            took: duration(row, 3)?,
            shape: Shape(column(row, 4)?),
        },
    }))
}

/// The column of an event's number, behind those of its last failure, and the first one behind its [`summary`].
pub(super) const NUMBER: usize = 5;
pub(super) const REST: usize = 16;

/// An event, in the columns up to [`REST`].
pub(super) fn summary(row: &PgRow) -> Result<EventSummary, Error> {
    let at = |at: usize| -> Result<Option<SystemTime>, Error> {
        Ok(column::<Option<i64>>(row, at)?.map(time))
    };
    Ok(EventSummary {
        last_failure: failure(row)?,
        id: EventId(column(row, NUMBER)?),
        route: route(row, 6)?,
        kind: kind(row, 7)?,
        // One that cannot be read must not hide the others of a list.
        key: key(row, 8).unwrap_or_default(),
        chat: text(row, 9)?,
        state: state(row, 10)?,
        accepted_at: time(column(row, 11)?),
        settled_at: at(12)?,
        due_at: at(13)?,
        failures: count(row, 14)?,
        is_redriven: column(row, 15)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_to_the_database_and_back() {
        for micros in [0, 1, -1, 1_700_000_000_123_456] {
            assert_eq!(micros_of(time(micros)), micros);
        }
        assert_eq!(micros_of(UNIX_EPOCH + Duration::from_nanos(1)), 1);
        assert_eq!(micros_of(UNIX_EPOCH - Duration::from_nanos(1)), 0);
    }
}
