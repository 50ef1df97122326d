//! Deliveries of several events: where a description says that its items are, and what is read of each.

mod cursor;
mod describe;
mod read;
mod split;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use serde::de::IgnoredAny;

pub(super) use self::describe::BatchDescription;
use self::read::Reader;
use self::split::{MOST_ITEMS, Stop, split};
use super::Sender;
use super::pointer::{Pointer, Pointers};
use crate::delivery::{IdempotencyKey, Item, RawDelivery};
use crate::event::EventKind;

/// Where the items of a delivery are, and what is read of them.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// At most [`MOST_PATHS`].
    paths: Vec<Path>,
    /// The number of pointers into what is around an item, each of which has a place in the reader's memory.
    around: usize,
}

/// The most paths: a set of them is one byte.
const MOST_PATHS: usize = 8;

#[derive(Clone, Debug)]
struct Path {
    /// The last one is [`Step::Each`].
    steps: Vec<Step>,
    key: Key,
    kind: Kind,
    /// `None` for that of the delivery.
    order: Option<Reaches>,
    keep: Vec<Keep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// The value of this name in an object.
    Name(String),
    /// Each element of an array.
    Each,
}

#[derive(Clone, Debug)]
enum Key {
    /// One is made of the delivery's key and the item.
    None,
    /// The item's digest.
    Digest,
    /// Several are one key together.
    Parts(Vec<Reaches>),
}

#[derive(Clone, Debug)]
enum Kind {
    /// That of the delivery.
    Delivery,
    Constant(EventKind),
    Read(Reaches),
}

/// Pointers of a field: each into the item, or into what is around it.
#[derive(Clone, Debug)]
struct Reaches {
    pointers: Pointers,
    /// For each of the pointers. `None` for one into the item.
    around: Vec<Option<Around>>,
}

/// What a pointer after `^` is read in.
#[derive(Clone, Copy, Debug)]
struct Around {
    /// How many arrays of the path are around it: 0 is the body.
    level: usize,
    /// Its place in the reader's memory.
    memory: usize,
}

/// What is kept of the envelope.
#[derive(Clone, Debug)]
struct Keep {
    /// The pointer's last name, as JSON.
    name: String,
    around: Around,
    pointer: Pointer,
}

/// What the events of a delivery are.
#[derive(Debug)]
pub(crate) enum Parts {
    /// The delivery is one event: its body is no JSON, or there is no array where the items should be.
    Whole,
    /// It has more than 10,000 items.
    TooMany,
    /// In the body's order. None if each array is empty.
    Items(Vec<Part>),
}

/// An item of a delivery.
#[derive(Debug)]
pub(crate) struct Part {
    /// A slice of the body that was signed.
    pub(crate) body: Bytes,
    /// Or why the item cannot be read: it is no object, its event type is missing, or its key is none. The reason quotes
    /// nothing of the item.
    pub(crate) kind: Result<EventKind, String>,
    /// Its own. If it has none: the digest of the delivery's key (else of the body), of the item, and of its number among
    /// equal items. Items of one delivery may have equal keys, of which the first counts.
    pub(crate) key: IdempotencyKey,
    /// Whether it is the item's own, which is signed.
    pub(crate) has_own_key: bool,
    /// What it has in common with events that it must not overtake: if its path does not say it, that of the delivery.
    pub(crate) order: Option<String>,
    /// A JSON object of at most 4,096 bytes: what its description keeps of what is around it. Items share it.
    pub(crate) kept: Option<Bytes>,
}

impl Part {
    /// Returns the item as a delivery of its own, with its place in this one. An item that cannot be read has the event type of
    /// the delivery.
    pub(crate) fn delivery(&self, of: &RawDelivery, item: Item) -> RawDelivery {
        let kind = self.kind.as_ref().unwrap_or(of.kind()).clone();
        let item = match &self.kept {
            Some(kept) => item.keep(kept.clone()),
            None => item,
        };
        RawDelivery::received(kind, Some(self.key.clone()), self.body.clone())
            .with_route(of.route().clone())
            .with_headers(of.headers().clone())
            .with_item(item)
    }
}

impl Sender {
    /// Whether a delivery may have several events.
    pub(crate) fn has_batches(&self) -> bool {
        self.described.batch.is_some()
    }

    /// Returns the events of a verified delivery. It takes memory for each item and each element around one, however deep
    /// the body is nested.
    pub(crate) fn parts(&self, delivery: &RawDelivery) -> Parts {
        let Some(batch) = self.described.batch.as_deref() else {
            return Parts::Whole;
        };
        let Ok(json) = str::from_utf8(delivery.body()) else {
            return Parts::Whole;
        };
        // From here on, nothing about its syntax can be wrong.
        if serde_json::from_str::<IgnoredAny>(json).is_err() {
            return Parts::Whole;
        }
        let places = match split(json, &batch.paths) {
            Ok(places) => places,
            Err(Stop::Whole) => return Parts::Whole,
            Err(Stop::TooMany) => {
                tracing::error!(
                    most = MOST_ITEMS,
                    "the delivery has more items than the most that are split: it is one event that cannot be read"
                );
                return Parts::TooMany;
            }
        };
        let mut reader = Reader::new(self, batch, delivery, json, &places.frames);
        let parts = places.items.iter().map(|place| reader.part(place));
        Parts::Items(parts.collect())
    }
}
