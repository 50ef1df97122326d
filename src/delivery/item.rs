//! The place of an event among those of its delivery.

use std::fmt;

use bytes::Bytes;

/// The place of an event in a batch: a delivery that has several events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    number: u32,
    count: u32,
    /// A random number of the delivery, by which its other items are found.
    pub(crate) delivery: i64,
    kept: Option<Bytes>,
}

impl Item {
    /// Describes item `number`, counted from 1, of `count` items.
    #[must_use]
    pub fn new(number: u32, count: u32) -> Self {
        Self {
            number,
            count,
            delivery: 0,
            kept: None,
        }
    }

    /// Sets what is kept of the delivery beside the item: a JSON object, in which each value of
    /// [`keep`](crate::docs::senders#batches) that was found has the last name of its pointer.
    #[must_use]
    pub fn keep(self, kept: impl Into<Bytes>) -> Self {
        Self {
            kept: Some(kept.into()),
            ..self
        }
    }

    /// Returns the number of the item in its delivery, counted from 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the number of items of the delivery.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns what is kept of the delivery beside the item, as a JSON object, in which each value of
    /// [`keep`](crate::docs::senders#batches) that was found has the last name of its pointer. `None` if nothing is kept.
    #[must_use]
    pub fn kept(&self) -> Option<&str> {
        str::from_utf8(self.kept.as_deref()?).ok()
    }

    pub(crate) fn kept_bytes(&self) -> Option<&Bytes> {
        self.kept.as_ref()
    }

    pub(crate) fn in_delivery(self, delivery: i64) -> Self {
        Self { delivery, ..self }
    }

    pub(crate) fn forget_kept(&mut self) {
        self.kept = None;
    }

    /// The item as a queue has stored it. `None` for an event that came alone.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn stored(
        delivery: Option<i64>,
        number: Option<u32>,
        count: Option<u32>,
        kept: Option<Bytes>,
    ) -> Option<Self> {
        Some(Self {
            number: number?,
            count: count?,
            delivery: delivery?,
            kept,
        })
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "item {} of {}", self.number, self.count)
    }
}
