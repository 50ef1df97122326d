//! The chat and the lane of an event.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use twox_hash::XxHash3_64;

use super::event::Lane;
use crate::delivery::RawDelivery;
use crate::event::{EventKind, chat_id};

/// Finds the chat of an event.
#[derive(Clone, Default)]
pub(super) struct LaneOf {
    /// For kinds that this crate does not know.
    other: Option<Arc<ChatOf>>,
}

type ChatOf = dyn Fn(&RawDelivery) -> Option<String> + Send + Sync;

impl LaneOf {
    pub(super) fn with(
        chat: impl Fn(&RawDelivery) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            other: Some(Arc::new(chat)),
        }
    }

    /// Returns the id of the event's chat, if there is one.
    pub(super) fn chat(&self, delivery: &RawDelivery) -> Option<String> {
        match &self.other {
            Some(other) if !EventKind::ALL.contains(delivery.kind()) => {
                let chat = catch_unwind(AssertUnwindSafe(|| other(delivery)));
                chat.unwrap_or_else(|_| {
                    tracing::error!(
                        kind = %delivery.kind(),
                        "the function of `chat_by` panicked: the event is stored as one without a chat"
                    );
                    None
                })
            }
            _ => chat_id(delivery.kind(), delivery.body()),
        }
    }
}

impl Lane {
    /// Returns the lane of a chat. It is the same in every process and release.
    ///
    /// ```
    /// use tower_webhook::inbox::Lane;
    ///
    /// assert_eq!(Lane::of_chat("chat-1"), Lane::of_chat("chat-1"));
    /// assert_ne!(Lane::of_chat("chat-1"), Lane::of_chat("chat-2"));
    /// ```
    #[must_use]
    pub fn of_chat(id: &str) -> Self {
        Self(XxHash3_64::oneshot(id.as_bytes()).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Literals, because queues persist these numbers: they must be the same in every release.
    #[test]
    fn lanes_never_change() {
        assert_eq!(Lane::of_chat(""), Lane(3_244_421_341_483_603_138));
        assert_eq!(Lane::of_chat("chat-1"), Lane(970_978_518_613_644_027));
    }
}
