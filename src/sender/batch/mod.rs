//! Deliveries of several events: where a description says that its items are, and what is read of each.

mod cursor;
mod describe;
mod paths;
mod read;
mod sample;
mod split;
#[cfg(test)]
mod tests;

use serde::de::IgnoredAny;

pub(super) use self::describe::BatchDescription;
pub(super) use self::paths::Batch;
pub(crate) use self::read::Part;
use self::read::Reader;
use self::split::{MOST_ITEMS, Stop, split};
use super::pointer::Pointers;
use crate::delivery::RawDelivery;

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

impl Batch {
    /// Returns the events of a verified delivery. It takes memory for each item and each element around one, however deep
    /// the body is nested. `order` is that of the delivery.
    pub(super) fn parts(&self, order: &Pointers, delivery: &RawDelivery) -> Parts {
        let Ok(json) = str::from_utf8(delivery.body()) else {
            return Parts::Whole;
        };
        // From here on, nothing about its syntax can be wrong.
        if serde_json::from_str::<IgnoredAny>(json).is_err() {
            return Parts::Whole;
        }
        let places = match split(json, &self.paths) {
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
        let mut reader = Reader::new(self, order, delivery, json, &places.frames);
        let parts = places.items.iter().map(|place| reader.part(place));
        Parts::Items(parts.collect())
    }
}
