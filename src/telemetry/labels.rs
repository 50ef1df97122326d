//! A bounded set of event types, for whatever is kept for each of them, and the senders of routes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::observer::DeliveryEnded;
use crate::event::EventKind;
use crate::lock::lock;
use crate::route::{EventType, RouteName};
use crate::sender::Sender;

/// The event types that have been seen: the platform's own, and a limited number of others for each route. The header that
/// names a kind is not signed, so a sender who captured one authentic body could name any number of kinds.
#[derive(Debug, Default)]
pub(super) struct Types {
    /// Routes are configured, so they are few.
    others: Mutex<BTreeMap<RouteName, BTreeSet<EventKind>>>,
}

/// The number of kinds of a route, beside those of the platform.
const MOST: usize = 32;

/// Stands for all kinds beyond that number.
pub(super) const OTHER: EventKind = EventKind::from_static("other");

/// Stands for the kind of a verified delivery whose event header is missing or invalid.
pub(super) const UNKNOWN: EventKind = EventKind::from_static("unknown");

/// Stands for the kind of a request that was not verified.
pub(super) const UNVERIFIED: EventKind = EventKind::from_static("unverified");

impl Types {
    /// Returns the kind of a verified delivery, as [`bounded`](Self::bounded) does, and `None` for others.
    pub(super) fn verified(&self, ended: &DeliveryEnded<'_>) -> Option<EventKind> {
        let bounded = |kind| self.bounded(ended.route, kind).kind;
        let kind = || ended.kind.map_or(UNKNOWN, bounded);
        ended.is_verified.then(kind)
    }

    /// Returns the type itself, or [`OTHER`] if its route has too many already.
    pub(super) fn bounded(&self, route: &RouteName, kind: &EventKind) -> EventType {
        static KNOWN: [EventKind; 7] = EventKind::ALL;
        // The platform's kinds take no room, so forged kinds cannot displace them.
        let known = KNOWN.iter().find(|known| *known == kind);
        if let Some(known) = known
            && *route == RouteName::default()
        {
            return known.clone().into();
        }
        let mut others = lock(&self.others);
        let others = others.entry(route.clone()).or_default();
        if others.contains(kind) {
            return EventType::new(route.clone(), kind.clone());
        }
        // Each series of metrics and each row of counts repeats the kind, so a long one is counted as `other`.
        let has_room = others.len() < MOST && kind.as_str().len() <= LONGEST;
        let kind = if has_room { kind.clone() } else { OTHER };
        // `OTHER` is inserted, too, so that `all` returns it and its gauge falls to 0 again.
        others.insert(kind.clone());
        EventType::new(route.clone(), kind)
    }
}

#[cfg(feature = "metrics")]
impl Types {
    /// Returns the platform's event types, and the others that were seen.
    pub(super) fn all(&self) -> Vec<EventType> {
        let mut all: Vec<_> = EventKind::ALL.into_iter().map(EventType::from).collect();
        for (route, kinds) in &*lock(&self.others) {
            let kinds = kinds.iter().cloned();
            all.extend(kinds.map(|kind| EventType::new(route.clone(), kind)));
        }
        all
    }
}

/// The longest kind that is kept, in bytes.
const LONGEST: usize = 64;

/// The senders of the routes that were seen.
#[derive(Debug, Default)]
pub(super) struct Senders(Mutex<BTreeMap<RouteName, Sender>>);

impl Senders {
    /// Takes note of the sender of a delivery, or of a request that was refused.
    pub(super) fn note(&self, ended: &DeliveryEnded<'_>) {
        let mut senders = lock(&self.0);
        if !senders.contains_key(ended.route) {
            senders.insert(ended.route.clone(), ended.sender.clone());
        }
    }

    pub(super) fn of(&self, route: &RouteName) -> Option<Sender> {
        lock(&self.0).get(route).cloned()
    }

    #[cfg(feature = "metrics")]
    pub(super) fn all(&self) -> BTreeMap<RouteName, Sender> {
        lock(&self.0).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_kinds_do_not_displace_the_platforms() {
        let (types, own) = (Types::default(), RouteName::default());
        for number in 0..MOST {
            let kind: EventKind = format!("forged-{number}").parse().unwrap();
            assert_eq!(types.bounded(&own, &kind).kind, kind);
        }
        let one_more: EventKind = "forged".parse().unwrap();
        assert_eq!(types.bounded(&own, &one_more), OTHER.into());
        for known in EventKind::ALL {
            assert_eq!(types.bounded(&own, &known), known.into());
        }
        let long: EventKind = "x".repeat(LONGEST + 1).parse().unwrap();
        assert_eq!(Types::default().bounded(&own, &long), OTHER.into());
    }

    #[test]
    fn forged_kinds_of_one_route_do_not_displace_those_of_another() {
        let types = Types::default();
        let (github, crm) = ("github".parse().unwrap(), "crm".parse().unwrap());
        for number in 0..=MOST {
            types.bounded(&github, &format!("forged-{number}").parse().unwrap());
        }
        let kind = EventKind::CHAT_RATED;
        assert_eq!(types.bounded(&github, &kind).to_string(), "github/other");
        // The platform's kinds are free only on its own route.
        assert_eq!(types.bounded(&crm, &kind).to_string(), "crm/chat-rated");
        assert_eq!(types.bounded(&RouteName::default(), &kind), kind.into());
        #[cfg(feature = "metrics")]
        assert_eq!(types.all().len(), EventKind::ALL.len() + MOST + 2);
    }
}
