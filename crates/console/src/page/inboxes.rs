//! The consoles of several inboxes, on the first page of the one around them.

use std::time::Duration;

use maud::{Markup, html};
use tower_webhook::inbox::Stats;

use super::causes::{Cause, causes};
use super::overview::{Observed, sums};
use super::parts::head;
use super::text::{clip, long};
use super::view::View;

/// A console, and what its inbox counts.
pub(in super::super) struct Part {
    pub(in super::super) view: View,
    /// The counts, and how long ago they were made.
    pub(in super::super) counted: Option<(Stats, Duration)>,
    /// Why there are none.
    pub(in super::super) error: Option<String>,
}

impl Part {
    pub(super) fn stats(&self) -> Option<&Stats> {
        self.counted.as_ref().map(|(stats, _)| stats)
    }

    fn name(&self) -> &str {
        let name = self.view.console.name.as_ref();
        name.map_or("", |name| &name.text)
    }

    pub(super) fn causes(&self) -> Vec<Cause> {
        causes(self, &Observed::by(&self.view.console))
    }

    /// The worst of its causes, as a cause of all.
    pub(super) fn worst(&self, causes: &[Cause]) -> Option<Cause> {
        let (worst, others) = causes.split_first()?;
        let text = html! {
            b { (clip(self.name(), 60)) } ": " (worst.text)
            @if !others.is_empty() { " And " (others.len()) " more." }
        };
        Some(Cause::new(worst.level, text).link(self.view.url("/"), "Its overview"))
    }
}

pub(super) fn inboxes(parts: &[(&Part, Vec<Cause>)]) -> Markup {
    html! {
        section {
            h2 { "Inboxes" }
            div #inboxes data-live {
                table {
                    (head(&["Inbox", "#Waiting", "#In progress", "#Retrying", "#Dead", "Oldest", "State"]))
                    tbody { @for (part, causes) in parts { (row(part, causes)) } }
                }
            }
        }
    }
}

fn row(part: &Part, causes: &[Cause]) -> Markup {
    let stats = part.stats();
    let ages = stats
        .iter()
        .flat_map(|stats| stats.kinds.iter().filter_map(|kind| stats.age(kind)));
    html! {
        tr {
            th scope="row" { a href=(part.view.url("/")) { (clip(part.name(), 60)) } }
            (sums(&part.view, stats.map_or(&[], |stats| &stats.kinds)))
            td data-label="Oldest" { @if let Some(age) = ages.max() { (long(age)) } }
            td data-label="State" {
                @match causes.first() {
                    Some(worst) => (worst.badge()),
                    None => span.badge.good { "Well" },
                }
            }
        }
    }
}
