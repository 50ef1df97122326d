//! An event in the file of a spool, with all that its queue needs to accept it later.
//!
//! Its kind, key, body, headers, chat and lane are those of the event in the file. The rest is a header of its own there.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use serde::{Deserialize, Serialize};

use crate::delivery::{RawDelivery, SPOOLED};
use crate::inbox::event::{Failure, Namespace, NewEvent, TakenEvent};
use crate::store::{BodyDigest, EventKey, KeySpace};

/// What the file has no column for.
#[derive(Serialize, Deserialize)]
struct Rest {
    namespace: i64,
    key: Digests,
    guard: Option<Digests>,
    chat: Option<String>,
    retain: u64,
    dead: Option<[String; 2]>,
}

/// In hexadecimal, as JSON has no numbers of this size.
#[derive(Serialize, Deserialize)]
struct Digests(String, String);

impl Digests {
    fn of(key: &EventKey) -> Self {
        Self(format!("{:x}", key.key()), format!("{:x}", key.body()))
    }

    fn key(&self) -> Option<EventKey> {
        let number = |text| u128::from_str_radix(text, 16).ok();
        Some(EventKey::of_digests(number(&self.0)?, number(&self.1)?))
    }
}

/// The event as the file gets it. Its key is known there until the event is forwarded.
pub(super) fn pack(mut event: NewEvent) -> Option<NewEvent> {
    // A delivery without a key is stored once, too, if its acceptance is tried again.
    let key = *event
        .key
        .get_or_insert_with(|| EventKey::of_digests(fastrand::u128(..), 0));
    let rest = Rest {
        namespace: event.namespace.0,
        key: Digests::of(&key),
        guard: event.guard.as_ref().map(Digests::of),
        chat: event.chat.clone(),
        retain: event.retain.as_secs(),
        dead: event.dead.take().map(|dead| [dead.outcome, dead.reason]),
    };
    // JSON escapes all characters that no header may have, but this one.
    let rest = serde_json::to_string(&rest)
        .ok()?
        .replace('\x7f', "\\u007f");
    let mut headers = event.delivery.headers().clone();
    headers.insert(SPOOLED, HeaderValue::from_bytes(rest.as_bytes()).ok()?);
    Some(NewEvent {
        namespace: Namespace::default(),
        retain: Duration::ZERO,
        delivery: event.delivery.with_headers(headers),
        ..event
    })
}

/// The event as its queue gets it. `None` if the file has it in another form.
pub(super) fn unpack(taken: &TakenEvent) -> Option<NewEvent> {
    let delivery = &taken.delivery;
    let mut headers = delivery.headers().clone();
    let rest = headers.remove(&SPOOLED)?;
    let rest: Rest = serde_json::from_slice(rest.as_bytes()).ok()?;
    let spooled_at = delivery.accepted_at()?.duration_since(UNIX_EPOCH).ok()?;
    let spooled_at = u64::try_from(spooled_at.as_millis()).ok()?;
    headers.insert(SPOOLED, HeaderValue::from(spooled_at));
    let dead = rest.dead.map(|[outcome, reason]| failure(outcome, reason));
    Some(NewEvent {
        namespace: Namespace(rest.namespace),
        delivery: RawDelivery::received(
            delivery.kind().clone(),
            delivery.key().cloned(),
            delivery.body().clone(),
        )
        .with_headers(headers),
        key: Some(rest.key.key()?),
        guard: rest.guard.as_ref().map(Digests::key).unwrap_or_default(),
        chat: rest.chat,
        lane: taken.lane,
        // At least: it begins when the event is forwarded.
        retain: Duration::from_secs(rest.retain),
        dead,
    })
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
