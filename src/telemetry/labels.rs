//! A bounded set of kinds, for whatever is kept for each of them.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::observer::DeliveryEnded;
use crate::event::EventKind;
use crate::lock::lock;

/// The kinds that have been seen: the platform's own, and a limited number of others. The header that names a kind is
/// not signed, so a sender who captured one authentic body could name any number of kinds.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    others: Mutex<BTreeSet<EventKind>>,
}

/// The number of kinds beside those of the platform.
const MOST: usize = 32;

/// Stands for all kinds beyond that number.
pub(super) const OTHER: EventKind = EventKind::from_static("other");

/// Stands for the kind of a verified delivery whose event header is missing or invalid.
pub(super) const UNKNOWN: EventKind = EventKind::from_static("unknown");

impl Kinds {
    /// Returns the kind of a verified delivery, as [`bounded`](Self::bounded) does, and `None` for others.
    pub(super) fn verified(&self, ended: &DeliveryEnded<'_>) -> Option<EventKind> {
        let kind = || ended.kind.map_or(UNKNOWN, |kind| self.bounded(kind));
        ended.is_verified.then(kind)
    }

    /// Returns the kind itself, or [`OTHER`] if there are too many already.
    pub(super) fn bounded(&self, kind: &EventKind) -> EventKind {
        static KNOWN: [EventKind; 7] = EventKind::ALL;
        // The platform's kinds take no room, so forged kinds cannot displace them.
        if let Some(known) = KNOWN.iter().find(|known| *known == kind) {
            return known.clone();
        }
        let mut others = lock(&self.others);
        if others.contains(kind) {
            return kind.clone();
        }
        // Each series of metrics and each row of counts repeats the kind, so a long one is counted as `other`.
        let has_room = others.len() < MOST && kind.as_str().len() <= LONGEST;
        let kind = if has_room { kind.clone() } else { OTHER };
        // `OTHER` is inserted, too, so that `all` returns it and its gauge falls to 0 again.
        others.insert(kind.clone());
        kind
    }
}

#[cfg(feature = "metrics")]
impl Kinds {
    /// Returns the platform's kinds, and the others that were seen.
    pub(super) fn all(&self) -> Vec<EventKind> {
        let others = lock(&self.others);
        let known = EventKind::ALL.into_iter();
        known.chain(others.iter().cloned()).collect()
    }
}

/// The longest kind that is kept, in bytes.
const LONGEST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_kinds_do_not_displace_the_platforms() {
        let kinds = Kinds::default();
        for number in 0..MOST {
            let kind: EventKind = format!("forged-{number}").parse().unwrap();
            assert_eq!(kinds.bounded(&kind), kind);
        }
        let one_more: EventKind = "forged".parse().unwrap();
        assert_eq!(kinds.bounded(&one_more), OTHER);
        for known in EventKind::ALL {
            assert_eq!(kinds.bounded(&known), known);
        }
        let long: EventKind = "x".repeat(LONGEST + 1).parse().unwrap();
        assert_eq!(Kinds::default().bounded(&long), OTHER);
    }
}
