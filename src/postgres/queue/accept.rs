//! Events are accepted: those of concurrent calls by one statement.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sqlx::postgres::PgRow;

use super::batches::{Batches, Call, Executed, Result, Row};
use super::database::Database;
use super::parameters::{failures, some};
use super::rows::{duration, time};
use crate::delivery::Item;
use crate::inbox::event::{EventId, EventLease, Lane, NewEvent, Take, TakenEvent};
use crate::inbox::headers;
use crate::inbox::queue::{AcceptEvents, Accepted};
use crate::postgres::engine::{Uuid, Value, column, corrupt, micros};
use crate::store::OpenError as Error;
use crate::store::{EventKey, Fence};

/// Many events at once, in their order.
const ACCEPT: &str = "
    SELECT o_answer, o_same, o_remaining, o_seq, o_accepted, o_fence
    FROM (SELECT {schema}.begin_call($23)) AS c (call)
    CROSS JOIN LATERAL {schema}.accept(CASE WHEN c.call IS NOT NULL THEN $1::uuid[] END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
    ORDER BY o_at";

pub(super) struct Accept {
    database: Arc<Database>,
    calls: Arc<Batches<Acceptance>>,
}

impl Accept {
    pub(super) fn new(database: &Arc<Database>) -> Self {
        Self {
            database: Arc::clone(database),
            calls: database.batches(execute),
        }
    }
}

#[async_trait]
impl AcceptEvents for Accept {
    async fn accept(&self, events: Arc<[NewEvent]>, take: Option<&Take>) -> Result<Vec<Accepted>> {
        let lease = take.and_then(|take| Some((take.first_of(&events)?, micros(take.lease))));
        let mut accepted = self.calls.call(Acceptance { events, lease }).await?;
        for accepted in &mut accepted {
            if let Accepted::New {
                taken: Some(taken), ..
            } = accepted
            {
                self.database.lend(taken);
            }
        }
        Ok(accepted)
    }
}

/// The events of a delivery. One of them may be taken: its position, and the time of its lease.
#[derive(Clone)]
struct Acceptance {
    events: Arc<[NewEvent]>,
    lease: Option<(usize, i64)>,
}

impl Acceptance {
    /// Each event, and the time of its lease if it may be taken.
    fn leases(&self) -> impl Iterator<Item = Option<i64>> {
        let lease = |at| {
            self.lease
                .filter(|(of, _)| *of == at)
                .map(|(_, lease)| lease)
        };
        (0..self.events.len()).map(lease)
    }

    /// Items of a batch that have a guard have the same one.
    fn guards(&self) -> impl Iterator<Item = Option<EventKey>> {
        let first = self.events.iter().position(|event| event.guard.is_some());
        let events = self.events.iter().enumerate();
        events.map(move |(at, event)| event.guard.filter(|_| first == Some(at)))
    }
}

/// So many bytes of bodies count as a call.
const BYTES_OF_CALL: usize = 64 << 10;

impl Call for Acceptance {
    type Return = Vec<Accepted>;

    const TAKES: bool = true;

    fn rows(&self) -> impl Iterator<Item = Row> {
        self.events
            .iter()
            .filter_map(|event| Some((event.lane?.0, 0)))
    }

    fn answers(&self) -> usize {
        self.events.len()
    }

    fn size(&self) -> usize {
        let bytes = |event: &NewEvent| {
            let item = event.delivery.item();
            let kept = item.and_then(Item::kept_bytes).map_or(0, Bytes::len);
            event.delivery.body().len() + kept
        };
        let bytes: usize = self.events.iter().map(bytes).sum();
        self.events.len() + bytes / BYTES_OF_CALL
    }

    fn lease(accepted: &Vec<Accepted>) -> Option<EventLease> {
        accepted.iter().find_map(|accepted| match accepted {
            Accepted::New { taken, .. } => taken.as_ref().map(|taken| taken.lease),
            _ => None,
        })
    }
}

async fn execute(database: Arc<Database>, calls: Vec<Acceptance>) -> Executed<Vec<Accepted>> {
    let accepted = database.execute(ACCEPT, &calls, values, |call, rows| {
        let events = call.events.iter().zip(rows);
        let accepted = events.map(|(event, row)| accepted(event, row));
        let mut accepted: Vec<_> = accepted.collect::<Result<_, _>>()?;
        // Then none of them is stored.
        if let Some(refused) = refused(&accepted) {
            accepted = vec![accepted.swap_remove(refused)];
        }
        Ok(accepted)
    });
    accepted.await
}

/// Which of these says why nothing is stored: what is longest in the way.
fn refused(accepted: &[Accepted]) -> Option<usize> {
    let each = accepted.iter().enumerate();
    let refused = each.filter_map(|(at, accepted)| match accepted {
        Accepted::BodyReplayed => Some((Duration::MAX, at)),
        Accepted::InFlight { remaining } => Some((*remaining, at)),
        _ => None,
    });
    refused.max().map(|(_, at)| at)
}

fn values<'a>(calls: &'a [Acceptance]) -> Vec<Value> {
    let events = || calls.iter().flat_map(|call| &call.events[..]);
    let ids = |id: fn(&NewEvent) -> Option<u128>| Value::Ids(events().map(id).collect());
    let guards = |part: fn(EventKey) -> u128| {
        let guards = calls.iter().flat_map(Acceptance::guards);
        Value::Ids(guards.map(|guard| guard.map(part)).collect())
    };
    let bytes = |bytes: fn(&NewEvent) -> Option<Bytes>| Value::Blobs(events().map(bytes).collect());
    let numbers =
        |number: fn(&NewEvent) -> Option<i64>| Value::Numbers(events().map(number).collect());
    let kind = |event: &'a NewEvent| (event.delivery.kind(), event.delivery.route());
    let mut kinds: Vec<_> = events().map(kind).collect();
    kinds.sort();
    kinds.dedup();
    let names = kinds.iter().map(|(name, _)| name.to_string()).collect();
    let routes = kinds.iter().map(|(_, route)| route.to_string()).collect();
    // Positions in an array of SQL begin with 1.
    let kind = events().map(|event| {
        let at = kinds.partition_point(|before| *before <= kind(event));
        i64::try_from(at).ok()
    });
    let headers = events().map(|event| headers::to_bytes(event.delivery.headers()).map(Into::into));
    let items = || events().map(|event| event.delivery.item());
    let [outcomes, reasons, took, shapes] = failures(events().map(|event| event.dead.as_ref()));
    vec![
        ids(|event| event.key.as_ref().map(EventKey::key)),
        ids(|event| event.key.as_ref().map(EventKey::body)),
        guards(|guard| guard.key()),
        guards(|guard| guard.body()),
        Value::Texts(names),
        Value::Texts(routes),
        Value::Numbers(kind.collect()),
        bytes(|event| {
            let key = event.delivery.key()?;
            Some(Bytes::copy_from_slice(key.as_bytes()))
        }),
        bytes(|event| event.chat.clone().map(Into::into)),
        numbers(|event| Some(Lane::of_chat(event.chat.as_ref()?).0)),
        numbers(|event| event.lane.map(|lane| lane.0)),
        bytes(|event| Some(event.delivery.body().clone())),
        some(headers, Value::Blobs),
        numbers(|event| Some(micros(event.retain))),
        Value::Numbers(calls.iter().flat_map(Acceptance::leases).collect()),
        outcomes,
        reasons,
        took,
        shapes,
        some(items().map(|item| Some(item?.delivery)), Value::Numbers),
        some(
            items().map(|item| Some(i64::from(item?.number()) << 32 | i64::from(item?.count()))),
            Value::Numbers,
        ),
        some(
            items().map(|item| item?.kept_bytes().cloned()),
            Value::Blobs,
        ),
    ]
}

fn accepted(event: &NewEvent, row: &PgRow) -> Result<Accepted, Error> {
    match column::<&str>(row, 0)? {
        "new" => {}
        "duplicate" => {
            return Ok(Accepted::Duplicate {
                same_body: column(row, 1)?,
            });
        }
        "in-flight" => {
            let remaining = duration(row, 2)?.unwrap_or_default();
            // It may have ended while the statement was executed.
            return Ok(Accepted::InFlight {
                remaining: remaining.max(Duration::from_micros(1)),
            });
        }
        // For another item of its batch, which may be in another call, as a spool forwards them.
        "refused" => {
            return Ok(Accepted::InFlight {
                remaining: Duration::from_micros(1),
            });
        }
        "body-replayed" => return Ok(Accepted::BodyReplayed),
        "dead-letter" => {
            let id = EventId(column(row, 3)?);
            return Ok(Accepted::DeadLetter { id });
        }
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
        uncounted: 0,
        tried_for: None,
    };
    Ok(Accepted::New {
        id,
        taken: Some(Box::new(taken)),
    })
}
