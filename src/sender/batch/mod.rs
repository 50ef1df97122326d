//! Deliveries of several events: where a description says that its items are, and what is read of each.

mod cursor;
mod describe;
mod paths;
mod read;
mod sample;
mod split;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use serde::de::IgnoredAny;

pub(super) use self::describe::BatchDescription;
pub(super) use self::paths::Batch;
pub(crate) use self::read::Part;
use self::read::Reader;
use self::split::{MOST_ITEMS, Places, Stop, split};
use super::pointer::Pointers;
use crate::delivery::RawDelivery;
use crate::event::EventKind;

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

/// The event types of a delivery's items, once it was taken apart. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemKinds(Arc<OnceLock<BTreeSet<EventKind>>>);

impl ItemKinds {
    /// Notes those of the items. One that cannot be read has that of the delivery.
    pub(super) fn note(&self, parts: &[Part], delivery: &RawDelivery) {
        let mut kinds = BTreeSet::new();
        for part in parts {
            let kind = part.kind.as_ref().unwrap_or(delivery.kind());
            if !kinds.contains(kind) {
                kinds.insert(kind.clone());
            }
        }
        // A delivery is taken apart once.
        let _ = self.0.set(kinds);
    }

    /// None if there is no item.
    pub(crate) fn get(&self) -> Option<&BTreeSet<EventKind>> {
        self.0.get().filter(|kinds| !kinds.is_empty())
    }
}

impl Batch {
    /// Returns the events of a verified delivery. It takes memory for each item and each element around one, however deep
    /// the body is nested. `order` is that of the delivery.
    pub(super) fn parts(&self, order: &Pointers, delivery: &RawDelivery) -> Parts {
        // From here on, nothing about its syntax can be wrong.
        let is_json = |json: &&str| serde_json::from_str::<IgnoredAny>(json).is_ok();
        let json = str::from_utf8(delivery.body()).ok().filter(is_json);
        let places = json.map(|json| (json, split(json, &self.paths)));
        if !self.misses.is_done() {
            self.note(places.as_ref().map(|(_, places)| places));
        }
        let (json, places) = match places {
            Some((json, Ok(places))) => (json, places),
            None | Some((_, Err(Stop::Whole))) => return Parts::Whole,
            Some((_, Err(Stop::TooMany))) => {
                tracing::error!(
                    most = MOST_ITEMS,
                    "the delivery has more items than the most that are split: it is one event that cannot be read"
                );
                return Parts::TooMany;
            }
        };
        let mut reader = Reader::new(self, order, delivery, json, &places.frames);
        let parts = places.items.iter().map(|place| reader.part(place));
        Parts::Items(parts.collect())
    }

    /// Notes whether a path leads to an array. A mistyped one would make an event of each delivery that nobody handles.
    #[cold]
    fn note(&self, places: Option<&Result<Places, Stop>>) {
        let last = match places {
            Some(Ok(Places { has_end: true, .. }) | Err(Stop::TooMany)) => {
                return self.misses.found();
            }
            Some(_) => "no array stands there",
            None => "the body is no JSON",
        };
        self.misses.missed("batch", "an array", &self.paths, last);
    }
}
