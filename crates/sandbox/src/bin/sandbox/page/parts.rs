//! The parts that several pages have in common.

use std::time::{Duration, UNIX_EPOCH};

use maud::{Markup, html};
use tower_webhook::event::{EventKind, Timestamp};
use tower_webhook_sandbox::{Attempt, AttemptResult, EventReport, EventState};

/// The longest text that is shown in a table, in bytes of HTML.
pub(crate) const MAX_TEXT: usize = 250;

/// The name of a state in URLs.
pub(crate) fn slug(state: EventState) -> &'static str {
    match state {
        EventState::Waiting => "waiting",
        EventState::Delivered => "delivered",
        EventState::Lost => "lost",
        EventState::NeverSent => "never-sent",
    }
}

pub(crate) const STATES: [EventState; 4] = [
    EventState::Delivered,
    EventState::Waiting,
    EventState::Lost,
    EventState::NeverSent,
];

pub(crate) fn state(event: &EventReport) -> Markup {
    let class = match event.state {
        EventState::Delivered => "badge good",
        EventState::Waiting => "badge warn",
        EventState::Lost => "badge bad",
        EventState::NeverSent => "badge",
    };
    html! {
        span class=(class) { (event.state) }
        @if let Some(at) = event.next_retry { " " small { "next retry " (time(at)) } }
    }
}

/// How an attempt ended, and its fault.
pub(crate) fn result(attempt: &Attempt) -> Markup {
    html! {
        (outcome(&attempt.result))
        @if let Some(fault) = attempt.fault { " " small { (fault) } }
    }
}

pub(crate) fn outcome(result: &AttemptResult) -> Markup {
    let class = if result.is_delivered() { "good" } else { "bad" };
    let text = result.to_string();
    let (text, is_whole) = clip(&text, MAX_TEXT);
    html! { b class=(class) { (text) @if !is_whole { "…" } } }
}

pub(crate) fn chat(event: &EventReport) -> Markup {
    html! {
        @match &event.chat {
            Some(chat) => a href={ "/chats/" (chat) } { (chat) },
            None => span.quiet { "none (test event)" },
        }
    }
}

pub(crate) fn gauge(kind: &EventKind, failures: usize, most: usize) -> Markup {
    let share = (100 * failures).checked_div(most).unwrap_or(100).min(100);
    let class = match share {
        50.. => "gauge bad",
        20.. => "gauge warn",
        _ => "gauge",
    };
    html! {
        span class=(class) role="meter" aria-label={ "Failed attempts within an hour, " (kind) }
            aria-valuemin="0" aria-valuemax=(most) aria-valuenow=(failures.min(most)) {
            svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true" {
                rect width=(share) height="1" {}
            }
        }
    }
}

/// The button that an event in its state has.
pub(crate) fn action(event: &EventReport) -> Markup {
    let (what, id) = match event.state {
        EventState::Waiting => ("retry", "Retry now"),
        EventState::Delivered => ("resend", "Resend"),
        EventState::Lost | EventState::NeverSent => return html! {},
    };
    html! {
        form method="post" action={ "/events/" (event.id) "/" (what) } {
            button id={ (what) "-" (event.id) } aria-label={ (id) ", event " (event.id) } { (id) }
        }
    }
}

/// Formats a time such as `20 Nov 20:56:43`.
pub(crate) fn time(at: Timestamp) -> Markup {
    let text = date(at);
    html! { time { (&text[..6]) (&text[11..]) } }
}

/// Formats a time such as `20 Nov 2026 20:56:43 UTC`.
pub(crate) fn full_time(at: Timestamp) -> Markup {
    html! { time { (date(at)) " UTC" } }
}

fn date(at: Timestamp) -> String {
    let millis = u64::try_from(at.as_millis()).unwrap_or_default();
    // The format has a fixed length up to the year 9999, after which it panics.
    let at = Duration::from_millis(millis.min(253_402_300_799_000));
    httpdate::fmt_http_date(UNIX_EPOCH + at)[5..25].to_owned()
}

pub(crate) fn took(attempt: &Attempt) -> Markup {
    html! { span.number { (attempt.took.as_millis()) " ms" } }
}

/// Returns the longest start of a text that has at most `most` bytes in HTML, and whether it is the whole text.
pub(crate) fn clip(text: &str, most: usize) -> (&str, bool) {
    let mut size = 0;
    for (at, char) in text.char_indices() {
        size += match char {
            '&' => 5,
            '<' | '>' => 4,
            '"' => 6,
            other => other.len_utf8(),
        };
        if size > most {
            return (&text[..at], false);
        }
    }
    (text, true)
}
