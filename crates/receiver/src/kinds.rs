//! Typing errors in the names of kinds.

use std::collections::BTreeSet;

use tower_webhook::EventKind;

/// The most letters in which a mistyped kind differs from the intended kind.
const TYPING_ERRORS: usize = 3;

/// Returns what is wrong with a kind that is neither the platform's nor among `others`.
pub(crate) fn unknown(kind: &EventKind, others: BTreeSet<EventKind>) -> Option<String> {
    let known: BTreeSet<_> = others.into_iter().chain(EventKind::ALL).collect();
    if known.contains(kind) {
        return None;
    }
    let meant = known
        .iter()
        .map(|known| (distance(kind.as_str(), known.as_str()), known))
        .min()
        .filter(|(distance, _)| *distance <= TYPING_ERRORS);
    let meant = meant.map(|(_, known)| format!(": did you mean `{known}`?"));
    Some(format!(
        "the platform has no event type `{kind}`{}",
        meant.unwrap_or_default()
    ))
}

/// The number of letters to insert, delete or replace (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}
