//! The parameters of statements.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::batches::Call;
use super::calls::{Acceptance, End};
use crate::event::EventKind;
use crate::inbox::event::{EventLease, Failure, Kinds, NewEvent, Settlement};
use crate::inbox::headers;
use crate::postgres::pool::{List, Value, micros};
use crate::store::EventKey;

pub(super) fn number(count: usize) -> Value {
    Value::Number(i64::try_from(count).unwrap_or(i64::MAX))
}

/// The parameters that select kinds.
pub(super) fn kinds(kinds: Option<&Kinds>) -> [Value; 2] {
    let names = |kinds: &BTreeSet<EventKind>| kinds.iter().map(ToString::to_string).collect();
    let (only, except) = kinds.map_or((None, Vec::new()), |kinds| {
        let (only, except) = (kinds.included(), kinds.excluded());
        (only.map(names), names(except))
    });
    [only, Some(except)].map(|names| Value::List(List::Texts(names)))
}

/// The parameters by which events in progress are found.
pub(super) fn handles<'a>(leases: impl Iterator<Item = &'a EventLease> + Clone) -> [Value; 3] {
    [
        List::Numbers(leases.clone().map(|lease| Some(lease.id.0)).collect()),
        List::Ids(leases.clone().map(|lease| Some(lease.fence.0)).collect()),
        List::Numbers(leases.map(|lease| Some(lease.place)).collect()),
    ]
    .map(Value::List)
}

/// The parameters of outcomes and reasons.
fn failures<'a>(failures: impl Iterator<Item = Option<&'a Failure>> + Clone) -> [Value; 2] {
    let texts = |text: fn(&Failure) -> &String| {
        let texts = failures.clone();
        List::Bytes(
            texts
                .map(|failure| failure.map(|failure| text(failure).clone().into()))
                .collect(),
        )
    };
    [
        texts(|failure| &failure.outcome),
        texts(|failure| &failure.reason),
    ]
    .map(Value::List)
}

/// The durations of attempts that failed.
fn durations<'a>(
    failures: impl Iterator<Item = Option<&'a Failure>>,
) -> impl Iterator<Item = Option<i64>> {
    failures.map(|failure| failure?.took.map(micros))
}

/// The parameter of what few calls have: an array without elements if none has it.
fn some<T>(each: impl Iterator<Item = Option<T>>, list: fn(Vec<Option<T>>) -> List) -> Value {
    let each: Vec<_> = each.collect();
    let has_any = each.iter().any(Option::is_some);
    Value::List(list(if has_any { each } else { Vec::new() }))
}

/// The parameters of events that are accepted.
pub(super) fn accept(calls: &[Acceptance]) -> Vec<Value> {
    fn ids(calls: &[Acceptance], id: impl Fn(&NewEvent) -> Option<u128>) -> Value {
        Value::List(List::Ids(
            calls.iter().map(|call| id(&call.event)).collect(),
        ))
    }
    let all = || calls.iter().map(|call| &call.event);
    let [outcomes, reasons] = failures(all().map(|event| event.dead.as_ref()));
    let mut kinds: Vec<&EventKind> = all().map(|event| event.delivery.kind()).collect();
    kinds.sort();
    kinds.dedup();
    // Places in an array of SQL begin with 1.
    let kind = all().map(|event| {
        let at = kinds.partition_point(|kind| *kind <= event.delivery.kind());
        i64::try_from(at).ok()
    });
    let keys = all().map(|event| {
        let key = event.delivery.key();
        key.map(|key| Bytes::copy_from_slice(key.as_bytes()))
    });
    let chats = all().map(|event| event.chat.clone().map(Into::into));
    let lanes = all().map(|event| event.lane.map(|lane| lane.0));
    let headers = all().map(|event| {
        let headers = headers::to_bytes(event.delivery.headers());
        headers.map(Into::into)
    });
    let bodies = all().map(|event| Some(event.delivery.body().clone()));
    vec![
        ids(calls, |event| event.key.as_ref().map(EventKey::key)),
        ids(calls, |event| event.key.as_ref().map(EventKey::body)),
        ids(calls, |event| event.guard.as_ref().map(EventKey::key)),
        ids(calls, |event| event.guard.as_ref().map(EventKey::body)),
        Value::List(List::Texts(Some(
            kinds.iter().map(ToString::to_string).collect(),
        ))),
        Value::List(List::Numbers(kind.collect())),
        Value::List(List::Bytes(keys.collect())),
        Value::List(List::Bytes(chats.collect())),
        Value::List(List::Numbers(lanes.collect())),
        Value::List(List::Bytes(bodies.collect())),
        Value::List(List::Numbers(
            all().map(|event| Some(micros(event.retain))).collect(),
        )),
        outcomes,
        reasons,
        Value::List(List::Numbers(calls.iter().map(|call| call.lease).collect())),
        some(headers, List::Bytes),
        some(
            durations(all().map(|event| event.dead.as_ref())),
            List::Numbers,
        ),
    ]
}

/// The parameters of attempts that end.
pub(super) fn settle(ends: &[End]) -> Vec<Value> {
    let settlements = || ends.iter().map(|end| &end.settlement);
    let flags =
        |flag: fn(&Settlement) -> bool| Value::List(List::Flags(settlements().map(flag).collect()));
    let numbers = |number: fn(&Settlement) -> i64| {
        Value::List(List::Numbers(
            settlements().map(|end| Some(number(end))).collect(),
        ))
    };
    let [ids, fences, places] = handles(ends.iter().map(|end| &end.lease));
    let failed = settlements().map(|settlement| match settlement {
        Settlement::Discarded(failure) | Settlement::Dead { failure, .. } => Some(failure),
        Settlement::Retry { failure, .. } => failure.as_ref(),
        Settlement::Handled | Settlement::Ignored | Settlement::Released => None,
    });
    let [outcomes, reasons] = failures(failed.clone());
    let leases = ends
        .iter()
        .map(|end| end.next.as_ref().map(|next| micros(next.lease)));
    // All that have them have the same ones.
    let [only, except] = kinds(ends.iter().find_map(End::kinds));
    vec![
        ids,
        fences,
        places,
        // The state that follows, in the numbers of `rows::code`.
        numbers(|settlement| match settlement {
            Settlement::Released => 0,
            Settlement::Retry { .. } => 2,
            Settlement::Handled => 3,
            Settlement::Ignored => 4,
            Settlement::Discarded(_) => 5,
            Settlement::Dead { .. } => 6,
        }),
        numbers(|settlement| match settlement {
            Settlement::Retry { after, .. } => micros(*after),
            _ => 0,
        }),
        outcomes,
        reasons,
        flags(|settlement| matches!(settlement, Settlement::Retry { counts: true, .. })),
        flags(|settlement| {
            matches!(
                settlement,
                Settlement::Retry {
                    blocks_lane: true,
                    ..
                }
            )
        }),
        flags(|settlement| {
            matches!(
                settlement,
                Settlement::Dead {
                    hold_lane: true,
                    ..
                }
            )
        }),
        Value::List(List::Numbers(leases.collect())),
        only,
        except,
        some(durations(failed), List::Numbers),
    ]
}
