//! An event in the file of a spool, with all that its queue needs to accept it later.
//!
//! Its key, body, headers, chat, lane and place in a batch are those of the event in the file. The rest is one more line
//! among its headers, since the file of a spool has the tables of an inbox.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::delivery::{RawDelivery, SPOOLED};
use crate::event::EventKind;
use crate::inbox::event::{Failure, NewEvent, TakenEvent};
use crate::inbox::headers;
use crate::inbox::records::EventRecord;
use crate::store::{BodyDigest, EventKey, KeySpace};

/// What the tables have no column for, or what their columns do not keep for another queue.
#[derive(Serialize, Deserialize)]
struct Rest {
    route: String,
    kind: String,
    key: Digests,
    guard: Option<Digests>,
    rejects_changed_body: bool,
    chat: Option<String>,
    retain_seconds: u64,
    dead: Option<Dead>,
}

impl Rest {
    fn of(headers: &HeaderMap) -> Option<Self> {
        // The file has added the last one.
        let rest = headers.get_all(&SPOOLED).iter().next_back()?;
        serde_json::from_slice(rest.as_bytes()).ok()
    }
}

/// The digests of a key and its body.
#[derive(Serialize, Deserialize)]
struct Digests {
    key: u128,
    body: u128,
}

impl Digests {
    fn of(key: &EventKey) -> Self {
        Self {
            key: key.key(),
            body: key.body(),
        }
    }

    fn event_key(&self) -> EventKey {
        EventKey::of_digests(self.key, self.body)
    }
}

/// Why it is a dead letter from the start.
#[derive(Serialize, Deserialize)]
struct Dead {
    outcome: String,
    reason: String,
}

fn random() -> u128 {
    let mut bytes = fastrand::u128(..).to_ne_bytes();
    // On an error, which no system of today returns, they stay as they are.
    let _ = getrandom::fill(&mut bytes);
    u128::from_ne_bytes(bytes)
}

/// The event as the file gets it, and the line that the file adds to its headers. Its key is known there until the event is
/// forwarded.
pub(super) fn pack(mut event: NewEvent) -> Result<(NewEvent, Vec<u8>), serde_json::Error> {
    // A delivery without a key is stored once, too, if its acceptance is tried again.
    let key = *event
        .key
        .get_or_insert_with(|| EventKey::of_digests(random(), 0));
    let rest = Rest {
        route: event.delivery.route().to_string(),
        kind: event.delivery.kind().to_string(),
        key: Digests::of(&key),
        guard: event.guard.as_ref().map(Digests::of),
        rejects_changed_body: event.rejects_changed_body,
        chat: event.chat.clone(),
        retain_seconds: event.retain.as_secs(),
        dead: event.dead.take().map(|dead| Dead {
            outcome: dead.outcome,
            reason: dead.reason,
        }),
    };
    let mut rest = serde_json::to_string(&rest)?;
    // JSON escapes all other characters that no header may have.
    if rest.contains('\x7f') {
        rest = rest.replace('\x7f', "\\u007f");
    }
    // One route and kind in the file: a claim takes the events of all, and costs the same however many kinds there are.
    let delivery = &event.delivery;
    let one = RawDelivery::received(
        EventKind::MESSAGE_CREATED,
        delivery.key().cloned(),
        delivery.body().clone(),
    );
    event.delivery = one
        .with_headers(delivery.headers().clone())
        .with_boxed_item(delivery.item().cloned().map(Box::new));
    event.retain = Duration::ZERO;
    Ok((event, headers::line(&SPOOLED, rest.as_bytes())))
}

/// The event as its queue gets it. `None` if the file has it in another form.
pub(super) fn unpack(taken: &TakenEvent) -> Option<NewEvent> {
    let delivery = &taken.delivery;
    let mut headers = delivery.headers().clone();
    let rest = Rest::of(&headers)?;
    let spooled_at = delivery.accepted_at()?.duration_since(UNIX_EPOCH).ok()?;
    let spooled_at = u64::try_from(spooled_at.as_millis()).ok()?;
    headers.insert(SPOOLED, HeaderValue::from(spooled_at));
    Some(NewEvent {
        delivery: RawDelivery::received(
            rest.kind.parse().ok()?,
            delivery.key().cloned(),
            delivery.body().clone(),
        )
        .with_route(rest.route.parse().ok()?)
        .with_headers(headers)
        .with_boxed_item(delivery.item().cloned().map(Box::new)),
        key: Some(rest.key.event_key()),
        guard: rest.guard.map(|guard| guard.event_key()),
        rejects_changed_body: rest.rejects_changed_body,
        chat: rest.chat,
        lane: taken.lane,
        // At least: it begins when the event is forwarded.
        retain: Duration::from_secs(rest.retain_seconds),
        dead: rest
            .dead
            .map(|dead| Failure::new(dead.outcome, dead.reason)),
    })
}

/// The event of the file as its inbox would show it. One in another form stays as it is.
pub(super) fn as_accepted(mut record: EventRecord) -> EventRecord {
    if let Some(rest) = Rest::of(&record.headers)
        && let (Ok(route), Ok(kind)) = (rest.route.parse(), rest.kind.parse())
    {
        let of = &mut record.summary;
        (of.route, of.kind, of.chat) = (route, kind, rest.chat);
        record.headers.remove(&SPOOLED);
    }
    record
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

/// The event as a dead letter, which counts as another event than the one whose key or body it has.
pub(super) fn dead_letter(event: NewEvent, outcome: &str, reason: &str) -> NewEvent {
    let (key, body) = event.key.map_or((0, 0), |key| (key.key(), key.body()));
    let both = [key.to_be_bytes(), body.to_be_bytes()].concat();
    let key = EventKey::in_space(KeySpace::Spooled, "", &both, BodyDigest::of(b""));
    NewEvent {
        key: Some(key),
        guard: None,
        dead: Some(Failure::new(outcome, reason)),
        ..event
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::inbox::event::{EventId, EventLease};
    use crate::route::RouteName;
    use crate::store::Fence;

    /// An event as the file hands it out: with one line more, and without the route.
    fn taken(packed: &NewEvent, line: &[u8]) -> TakenEvent {
        let mut lines = headers::to_bytes(packed.delivery.headers()).unwrap_or_default();
        lines.extend_from_slice(line);
        TakenEvent {
            lease: EventLease {
                id: EventId(1),
                fence: Fence(1),
                place: 0,
            },
            delivery: packed
                .delivery
                .clone()
                .with_headers(headers::from_bytes(&lines))
                .with_attempt(NonZeroU32::MIN)
                .with_acceptance(SystemTime::now(), false),
            lane: packed.lane,
            failures: 0,
            crashes: 0,
            tried_for: None,
            uncounted: 0,
        }
    }

    #[test]
    fn an_event_keeps_its_route_and_kind() {
        for name in ["chat-platform", "github-europe"] {
            let route: RouteName = name.parse().unwrap();
            let event = NewEvent {
                delivery: RawDelivery::new(EventKind::CHAT_RATED, "{}").with_route(route.clone()),
                key: None,
                guard: None,
                rejects_changed_body: true,
                chat: None,
                lane: None,
                retain: Duration::from_secs(60),
                dead: None,
            };
            let (packed, line) = pack(event).unwrap();
            assert_eq!(packed.delivery.route(), &RouteName::default());
            assert_eq!(packed.delivery.kind(), &EventKind::MESSAGE_CREATED);
            assert!(String::from_utf8_lossy(&line).contains(name));
            let event = unpack(&taken(&packed, &line)).unwrap();
            assert_eq!(event.delivery.route(), &route);
            assert_eq!(event.delivery.kind(), &EventKind::CHAT_RATED);
            assert!(event.rejects_changed_body);
        }
    }

    /// A sender that knows the name of the header can change neither what is forwarded nor when it was stored.
    #[test]
    fn the_line_of_the_file_wins_over_headers_of_that_name() {
        let forged = r#"{"route":"other","kind":"chat-closed","key":{"key":1,"body":1},"rejects_changed_body":false,"retain_seconds":0}"#;
        let mut headers = http::HeaderMap::new();
        for value in ["0", forged] {
            headers.append(SPOOLED, HeaderValue::from_static(value));
        }
        let event = NewEvent {
            delivery: RawDelivery::new(EventKind::CHAT_RATED, "{}").with_headers(headers),
            key: None,
            guard: None,
            rejects_changed_body: true,
            chat: Some("a".to_owned()),
            lane: None,
            retain: Duration::from_secs(60),
            dead: None,
        };
        let (packed, line) = pack(event).unwrap();
        let key = packed.key.map(|key| key.key());
        let event = unpack(&taken(&packed, &line)).unwrap();
        assert_eq!(event.delivery.route(), &RouteName::default());
        assert_eq!(event.delivery.kind(), &EventKind::CHAT_RATED);
        assert_eq!(
            (event.key.map(|key| key.key()), event.chat),
            (key, Some("a".to_owned()))
        );
        assert!(event.rejects_changed_body);
        let kept: Vec<_> = event.delivery.headers().get_all(SPOOLED).iter().collect();
        assert_eq!(kept.len(), 1);
        assert!(kept[0].to_str().unwrap().parse::<u64>().unwrap() > 1 << 40);
    }
}
