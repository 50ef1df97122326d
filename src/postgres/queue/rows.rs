//! Between rows and events.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use sqlx::postgres::PgRow;

use super::calls::Acceptance;
use crate::delivery::{IdempotencyKey, RawDelivery};
use crate::event::EventKind;
use crate::inbox::event::{EventId, EventLease, EventState, Failure, Lane, TakenEvent};
use crate::inbox::headers;
use crate::inbox::queue::{Accepted, Settled};
use crate::inbox::records::{BlockedLane, EventSummary, KindStats, PastFailure};
use crate::postgres::pool::{List, Uuid, Value, column, corrupt};
use crate::store::Fence;
use crate::store::engine::Error;

/// The number of a state in the database.
pub(super) fn code(state: EventState) -> i64 {
    let at = EventState::ALL.iter().position(|known| *known == state);
    at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1)
}

fn state(code: i64) -> Result<EventState, Error> {
    let known = usize::try_from(code).ok();
    let known = known.and_then(|at| EventState::ALL.get(at).copied());
    known.ok_or_else(|| corrupt("an event in an unknown state"))
}

/// A parameter of bytes, as an array of one.
pub(super) fn bytes(bytes: &[u8]) -> Value {
    Value::List(List::Bytes(vec![Some(Bytes::copy_from_slice(bytes))]))
}

/// Microseconds since 1970, rounded up, so that times compare as those that are stored.
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

fn kind(row: &PgRow, at: usize) -> Result<EventKind, Error> {
    let name: &str = column(row, at)?;
    EventKind::from_bytes(name.as_bytes()).map_err(corrupt)
}

fn key(row: &PgRow, at: usize) -> Result<Option<IdempotencyKey>, Error> {
    let key: Option<&[u8]> = column(row, at)?;
    let value = key.map(HeaderValue::from_bytes).transpose();
    Ok(value.map_err(corrupt)?.and_then(IdempotencyKey::new))
}

fn text(row: &PgRow, at: usize) -> Result<Option<String>, Error> {
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

/// An event that was taken, in the columns from `at` on. `None` where there is none.
pub(super) fn taken(row: &PgRow, at: usize) -> Result<Option<TakenEvent>, Error> {
    let Some(id) = column::<Option<i64>>(row, at)? else {
        return Ok(None);
    };
    let Uuid(fence) = column(row, at + 1)?;
    let place = column(row, at + 2)?;
    let is_in_lane: bool = column(row, at + 3)?;
    let body: &[u8] = column(row, at + 6)?;
    let failures = count(row, at + 9)?;
    let crashes = count(row, at + 10)?;
    let attempt = NonZeroU32::MIN.saturating_add(failures.saturating_add(crashes));
    let delivery = RawDelivery::new(kind(row, at + 4)?, Bytes::copy_from_slice(body))
        .with_key(key(row, at + 5)?)
        .with_headers(headers(row, at + 12)?)
        .with_attempt(attempt)
        .with_acceptance(time(column(row, at + 7)?), column(row, at + 8)?);
    Ok(Some(TakenEvent {
        lease: EventLease {
            id: EventId(id),
            fence: Fence(fence),
            place,
        },
        delivery,
        lane: is_in_lane.then_some(Lane(place)),
        failures,
        crashes,
        tried_for: duration(row, at + 11)?,
    }))
}

pub(super) fn accepted(call: &Acceptance, row: &PgRow) -> Result<Accepted, Error> {
    let event = &call.event;
    match column::<i16>(row, 0)? {
        0 => {}
        1 => {
            return Ok(Accepted::Duplicate {
                same_body: column(row, 1)?,
            });
        }
        2 => {
            let remaining = duration(row, 2)?.unwrap_or_default();
            // It may have ended while the statement was executed.
            return Ok(Accepted::InFlight {
                remaining: remaining.max(Duration::from_micros(1)),
            });
        }
        3 => return Ok(Accepted::BodyReplayed),
        _ => return Err(corrupt("an unknown answer to an acceptance")),
    }
    let id = EventId(column(row, 3)?);
    let fence: Option<Uuid> = column(row, 5)?;
    let Some(Uuid(fence)) = fence else {
        return Ok(Accepted::New { id, taken: None });
    };
    let delivery = event
        .delivery
        .clone()
        .with_attempt(NonZeroU32::MIN)
        .with_acceptance(time(column(row, 4)?), false);
    let taken = TakenEvent {
        lease: EventLease {
            id,
            fence: Fence(fence),
            place: event.lane.map_or(0, |lane| lane.0),
        },
        delivery,
        lane: event.lane,
        failures: 0,
        crashes: 0,
        tried_for: None,
    };
    Ok(Accepted::New {
        id,
        taken: Some(Box::new(taken)),
    })
}

pub(super) fn settled(row: &PgRow) -> Result<Settled, Error> {
    Ok(match column(row, 0)? {
        true => Settled::Ended(taken(row, 1)?.map(Box::new)),
        false => Settled::Lost,
    })
}

pub(super) fn summary(row: &PgRow) -> Result<EventSummary, Error> {
    let at = |at: usize| -> Result<Option<SystemTime>, Error> {
        Ok(column::<Option<i64>>(row, at)?.map(time))
    };
    Ok(EventSummary {
        id: EventId(column(row, 0)?),
        kind: kind(row, 1)?,
        key: key(row, 2)?,
        chat: text(row, 3)?,
        state: state(column(row, 4)?)?,
        accepted_at: time(column(row, 5)?),
        settled_at: at(6)?,
        due_at: at(7)?,
        failures: count(row, 8)?,
        is_redriven: column(row, 9)?,
    })
}

pub(super) fn blocked_lane(row: &PgRow) -> Result<BlockedLane, Error> {
    Ok(BlockedLane {
        event: summary(row)?,
        since: time(column(row, 10)?),
        waiting: column::<i64>(row, 11)?.unsigned_abs(),
    })
}

/// The counts of a kind.
pub(super) fn kind_stats(row: &PgRow) -> Result<KindStats, Error> {
    let count = |at| column::<i64>(row, at).map(i64::unsigned_abs);
    Ok(KindStats {
        kind: kind(row, 0)?,
        waiting: count(1)?,
        in_progress: count(2)?,
        retrying: count(3)?,
        dead: count(4)?,
        blocking: count(7)?,
        oldest: column::<Option<i64>>(row, 5)?.map(time),
        is_paused: column(row, 6)?,
    })
}

pub(super) fn failure(row: &PgRow) -> Result<PastFailure, Error> {
    Ok(PastFailure {
        at: time(column(row, 0)?),
        failure: Failure {
            outcome: text(row, 1)?.unwrap_or_default(),
            reason: text(row, 2)?.unwrap_or_default(),
            took: duration(row, 3)?,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_numbers_of_the_schema() {
        assert_eq!(code(EventState::Waiting), 0);
        assert_eq!(code(EventState::InProgress), 1);
        assert_eq!(code(EventState::Retrying), 2);
        assert_eq!(code(EventState::Handled), 3);
        assert_eq!(code(EventState::Ignored), 4);
        assert_eq!(code(EventState::Discarded), 5);
        assert_eq!(code(EventState::Dead), 6);
        for known in EventState::ALL {
            assert_eq!(state(code(known)).unwrap(), known);
        }
        assert!(state(7).is_err());
        assert!(state(-1).is_err());
    }

    #[test]
    fn times_survive_the_way_to_the_database_and_back() {
        for micros in [0, 1, -1, 1_700_000_000_123_456] {
            assert_eq!(micros_of(time(micros)), micros);
        }
        assert_eq!(micros_of(UNIX_EPOCH + Duration::from_nanos(1)), 1);
        assert_eq!(micros_of(UNIX_EPOCH - Duration::from_nanos(1)), 0);
    }
}
