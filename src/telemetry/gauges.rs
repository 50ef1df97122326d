//! Gauges by kind.

use std::collections::BTreeMap;

use metrics::{SharedString, gauge};

use super::labels::Kinds;
use crate::event::EventKind;

pub(super) fn label(kind: &EventKind) -> SharedString {
    static KNOWN: [EventKind; 7] = EventKind::ALL;
    match KNOWN.iter().find(|known| *known == kind) {
        // A label of a known kind is borrowed, so only kinds that the platform does not document allocate.
        Some(known) => SharedString::const_str(known.as_str()),
        None => SharedString::from_owned(kind.as_str().to_owned()),
    }
}

/// Sets gauges by kind. A kind that is missing later is set to zero then. Kinds that share a label have one value, joined.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    kinds: Kinds,
}

impl Gauges {
    pub(crate) fn set<'a>(
        &self,
        name: &'static str,
        values: impl IntoIterator<Item = (&'a EventKind, f64)>,
        join: fn(f64, f64) -> f64,
    ) {
        let mut joined = BTreeMap::<EventKind, f64>::new();
        for (kind, value) in values {
            let of_label = joined.entry(self.kinds.bounded(kind)).or_default();
            *of_label = join(*of_label, value);
        }
        for kind in self.kinds.all() {
            let value = joined.get(&kind).copied().unwrap_or_default();
            gauge!(name, "kind" => label(&kind)).set(value);
        }
    }
}
