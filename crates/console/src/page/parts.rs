//! The parts that several pages have in common.

use std::time::SystemTime;

use maud::{Markup, html};
use tower_webhook::inbox::{By, EventState, EventSummary, PastFailure};
use tower_webhook::{EventKind, RouteName};

use super::text::{clip, encode, long, name, time};
use super::view::View;

pub(super) fn state(event: &EventSummary) -> Markup {
    let class = match event.state {
        EventState::Handled => "badge good",
        EventState::Retrying | EventState::Discarded => "badge warn",
        EventState::Dead => "badge bad",
        _ => "badge",
    };
    html! {
        span class=(class) { (event.state) }
        @if event.is_redriven { " " span.badge { "redriven" } }
        @if let Some(due) = event.due_at { " " small { "next attempt " (time(due)) } }
    }
}

/// The longest id of a chat that is a link in a list, in bytes of a URL.
const LONGEST_CHAT: usize = 100;

/// The chat of an event in a list. The page of the event has the link if the id is long.
pub(super) fn chat(view: &View, chat: Option<&str>) -> Markup {
    match chat {
        // A link has the whole id.
        Some(chat) if encode(chat).len() > LONGEST_CHAT => html! { (clip(chat, 50)) },
        _ => chat_of_any_length(view, chat),
    }
}

pub(super) fn chat_of_any_length(view: &View, chat: Option<&str>) -> Markup {
    html! {
        @match chat {
            Some(chat) => a href=(view.chat(chat)) { (clip(chat, 50)) },
            None => span.quiet { "unknown" },
        }
    }
}

/// The event type of a request, or if that is not known, its route.
pub(super) fn event_type(route: &RouteName, kind: Option<&EventKind>) -> Markup {
    html! {
        @match kind {
            Some(kind) => (name(route, kind)),
            None => span.quiet {
                @if *route != RouteName::default() { (route) ", " }
                "not verified"
            },
        }
    }
}

/// The last failure of an event, whose reason takes at most so many bytes of HTML.
pub(super) fn reason(view: &View, failure: Option<&PastFailure>, most: usize) -> Markup {
    html! {
        @if let Some(PastFailure { failure, .. }) = failure { (cause_of(view, &failure.outcome, &failure.reason, most)) }
    }
}

/// An outcome, and a reason that takes at most so many bytes of HTML.
pub(super) fn cause_of(view: &View, outcome: &str, reason: &str, most: usize) -> Markup {
    html! {
        b.bad { (clip(outcome, 60)) }
        @if view.console.hides_payloads { " " span.quiet { "(reason hidden)" } }
        @else { ": " (clip(reason, most)) }
    }
}

/// The names of a table's columns: after a `#`, that of a column of numbers. An empty one is left out.
pub(super) fn head(columns: &[&str]) -> Markup {
    html! {
        thead {
            tr {
                @for column in columns.iter().filter(|column| !column.is_empty()) {
                    @match column.strip_prefix('#') {
                        Some(numbers) => th.number scope="col" { (numbers) },
                        None => th scope="col" { (column) },
                    }
                }
            }
        }
    }
}

/// When the next event of a type that is slowed down is tried.
pub(super) fn next_attempt(at: SystemTime) -> String {
    match at.duration_since(SystemTime::now()) {
        Ok(left) => format!("in {}", long(left)),
        Err(_) => "now".to_owned(),
    }
}

/// A button that redrives an event, in a form. `main`: something is to be done.
pub(super) fn redrive(view: &View, event: &EventSummary) -> Markup {
    let is_open = event.state.is_unsettled() || event.state == EventState::Dead;
    let class = is_open.then_some("main");
    let url = view.url(format_args!("/events/{}/redrive", event.id));
    html! { button #{ "redrive-" (event.id) } class=[class] formaction=(url) { "Redrive" } }
}

/// The field of a form for the reason of an action.
pub(super) fn reason_field(view: &View) -> Markup {
    html! {
        // The first button is that of the enter key, which is to change nothing here.
        button type="submit" disabled hidden {}
        @if view.console.actor.is_none() { (who_input(view)) }
        input #reason name="reason" maxlength=(By::LONGEST) placeholder="reason (optional)" aria-label="Reason" autocomplete="off";
    }
}

/// The field of a form for the name of the operator, unless a proxy passes it on.
pub(super) fn who_field(view: &View) -> Markup {
    html! {
        @if view.console.actor.is_none() {
            div { label for="who" { "Your name" } (who_input(view)) }
        }
    }
}

fn who_input(view: &View) -> Markup {
    html! {
        input #who name="who" required value=(view.who) maxlength=(By::LONGEST) placeholder="your name" aria-label="Your name" autocomplete="name";
    }
}

pub(super) fn gauge(name: &str, failures: u32, most: u32) -> Markup {
    let share = (100 * u64::from(failures))
        .checked_div(u64::from(most))
        .unwrap_or(100)
        .min(100);
    // The shares at which `FailureBudget` logs at `ERROR` and at `WARN`.
    let class = match share {
        50.. => "gauge bad",
        20.. => "gauge warn",
        _ => "gauge",
    };
    html! {
        span class=(class) role="meter" aria-label={ "Failed deliveries in the last hour, " (name) }
            aria-valuemin="0" aria-valuemax=(most) aria-valuenow=(failures.min(most)) {
            svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true" {
                rect width=(share) height="1" {}
            }
        }
    }
}

/// The names of kinds, as suggestions of an input.
pub(super) fn kinds() -> Markup {
    html! {
        datalist #kinds {
            @for kind in EventKind::ALL { option value=(kind) {} }
        }
    }
}
