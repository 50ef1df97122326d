//! An event in the file of a spool, with all that its queue needs to accept it later.
//!
//! Its kind, key, body, headers, chat and lane are those of the event in the file. The rest is a header of its own there.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use serde::{Deserialize, Serialize};

use crate::delivery::{RawDelivery, SPOOLED};
use crate::inbox::event::{Failure, Namespace, NewEvent, TakenEvent};
use crate::inbox::headers;
use crate::store::{BodyDigest, EventKey, KeySpace};

/// What the file has no column for: namespace, key, guard, chat, retention in seconds, and outcome and reason of a dead
/// letter. As a list, which is short.
#[derive(Serialize, Deserialize)]
struct Rest(
    i64,
    Digests,
    Option<Digests>,
    Option<String>,
    u64,
    Option<(String, String)>,
);

/// Those of a key, as numbers.
type Digests = (u128, u128);

fn digests(key: &EventKey) -> Digests {
    (key.key(), key.body())
}

fn key((key, body): Digests) -> EventKey {
    EventKey::of_digests(key, body)
}

/// The event as the file gets it, and the line that the file adds to its headers. Its key is known there until the event is
/// forwarded.
pub(super) fn pack(mut event: NewEvent) -> Result<(NewEvent, Vec<u8>), serde_json::Error> {
    // A delivery without a key is stored once, too, if its acceptance is tried again.
    let key = *event
        .key
        .get_or_insert_with(|| EventKey::of_digests(fastrand::u128(..), 0));
    let rest = Rest(
        event.namespace.0,
        digests(&key),
        event.guard.as_ref().map(digests),
        event.chat.clone(),
        event.retain.as_secs(),
        event.dead.take().map(|dead| (dead.outcome, dead.reason)),
    );
    let mut rest = serde_json::to_string(&rest)?;
    // JSON escapes all other characters that no header may have.
    if rest.contains('\x7f') {
        rest = rest.replace('\x7f', "\\u007f");
    }
    event.namespace = Namespace::default();
    event.retain = Duration::ZERO;
    Ok((event, headers::line(&SPOOLED, rest.as_bytes())))
}

/// The event as its queue gets it. `None` if the file has it in another form.
pub(super) fn unpack(taken: &TakenEvent) -> Option<NewEvent> {
    let delivery = &taken.delivery;
    let mut headers = delivery.headers().clone();
    // The file has added the last one.
    let rest = headers.get_all(&SPOOLED).iter().next_back()?.clone();
    let Rest(namespace, digests, guard, chat, retain, dead) =
        serde_json::from_slice(rest.as_bytes()).ok()?;
    let spooled_at = delivery.accepted_at()?.duration_since(UNIX_EPOCH).ok()?;
    let spooled_at = u64::try_from(spooled_at.as_millis()).ok()?;
    headers.insert(SPOOLED, HeaderValue::from(spooled_at));
    let dead = dead.map(|(outcome, reason)| failure(outcome, reason));
    Some(NewEvent {
        namespace: Namespace(namespace),
        delivery: RawDelivery::received(
            delivery.kind().clone(),
            delivery.key().cloned(),
            delivery.body().clone(),
        )
        .with_headers(headers),
        key: Some(key(digests)),
        guard: guard.map(key),
        chat,
        lane: taken.lane,
        // At least: it begins when the event is forwarded.
        retain: Duration::from_secs(retain),
        dead,
    })
}

/// The digests of the keys under which the file knows the event.
pub(super) fn keys(event: &NewEvent) -> Vec<u128> {
    let keys = [event.key, event.guard].into_iter().flatten();
    keys.map(|key| key.key()).collect()
}

/// When the event was stored in the file.
pub(super) fn spooled_at(taken: &TakenEvent) -> SystemTime {
    taken.delivery.accepted_at().unwrap_or(UNIX_EPOCH)
}

pub(super) fn failure(outcome: impl Into<String>, reason: impl Into<String>) -> Failure {
    Failure {
        outcome: outcome.into(),
        reason: reason.into(),
        took: None,
    }
}

/// The event as a dead letter, which counts as another event than the one whose key or body it has.
pub(super) fn dead_letter(event: NewEvent, outcome: &str, reason: &str) -> NewEvent {
    let (key, body) = event.key.map_or((0, 0), |key| (key.key(), key.body()));
    let both = [key.to_be_bytes(), body.to_be_bytes()].concat();
    let key = EventKey::in_space(KeySpace::Spooled, "", &both, BodyDigest::of(b""));
    NewEvent {
        key: Some(key),
        guard: None,
        dead: Some(failure(outcome, reason)),
        ..event
    }
}
