//! Gauges by event type.

use std::collections::BTreeMap;
use std::sync::Arc;

use metrics::{Label, SharedString, gauge};

use super::labels::Types;
use crate::event::EventKind;
use crate::route::{CHAT_PLATFORM, EventType, RouteName};

pub(super) fn labels(of: &EventType) -> Vec<Label> {
    labels_of(&of.route, kind_label(&of.kind))
}

pub(super) fn labels_of(route: &RouteName, kind: SharedString) -> Vec<Label> {
    let route = name_label(route.as_str());
    vec![Label::new("route", route), Label::new("kind", kind)]
}

pub(super) fn kind_label(kind: &EventKind) -> SharedString {
    static KNOWN: [EventKind; 7] = EventKind::ALL;
    match KNOWN.iter().find(|known| *known == kind) {
        // A label of a known kind is borrowed, so only kinds that the platform does not document allocate.
        Some(known) => SharedString::const_str(known.as_str()),
        None => shared(kind.as_str()),
    }
}

/// The label of a route or a sender.
pub(super) fn name_label(name: &str) -> SharedString {
    match name {
        CHAT_PLATFORM => SharedString::const_str(CHAT_PLATFORM),
        _ => shared(name),
    }
}

/// A label whose clones, one for each metric, are cheap.
fn shared(text: &str) -> SharedString {
    SharedString::from_shared(Arc::from(text))
}

/// Sets gauges by event type. A type that is missing later is set to zero then. Types that share a label have one value,
/// joined.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    types: Types,
}

impl Gauges {
    pub(crate) fn set(
        &self,
        name: &'static str,
        values: impl IntoIterator<Item = (EventType, f64)>,
        join: fn(f64, f64) -> f64,
    ) {
        let mut joined = BTreeMap::<EventType, f64>::new();
        for (of, value) in values {
            let of_label = joined.entry(self.types.bounded(&of.route, &of.kind));
            let of_label = of_label.or_default();
            *of_label = join(*of_label, value);
        }
        for of in self.types.all() {
            let value = joined.get(&of).copied().unwrap_or_default();
            gauge!(name, labels(&of)).set(value);
        }
    }
}
