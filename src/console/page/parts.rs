//! The parts that several pages have in common.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};

use super::View;
use crate::event::EventKind;
use crate::inbox::{EventState, EventSummary};

/// Returns the start of a text that takes at most so many bytes of HTML.
pub(super) fn clip(text: &str, most: usize) -> String {
    let mut size = 0;
    for (at, char) in text.char_indices() {
        size += match char {
            '&' => 5,
            '<' | '>' => 4,
            '"' => 6,
            other => other.len_utf8(),
        };
        if size > most {
            return format!("{}…", &text[..at]);
        }
    }
    text.to_owned()
}

/// Encodes a value of a query.
pub(super) fn encode(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

pub(super) fn kind(kind: &EventKind) -> String {
    clip(kind.as_str(), 60)
}

/// Formats a time such as `20 Nov 20:56:43`.
pub(super) fn time(at: SystemTime) -> Markup {
    let text = date(at);
    html! { time title=(text) { (&text[..6]) (&text[11..]) } }
}

/// Formats a time such as `20:56`.
pub(super) fn minute(at: SystemTime) -> Markup {
    html! { time { (&date(at)[12..17]) } }
}

/// Formats a time such as `20 Nov 2026 20:56:43`.
pub(super) fn full_time(at: SystemTime) -> Markup {
    html! { time { (date(at)) } }
}

pub(super) fn now() -> Markup {
    html! { (date(SystemTime::now())) " UTC" }
}

fn date(at: SystemTime) -> String {
    // The format has a fixed length up to the year 9999, after which it panics.
    let longest = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    let at = at.clamp(SystemTime::UNIX_EPOCH, longest);
    httpdate::fmt_http_date(at)[5..25].to_owned()
}

/// Formats the time since `at`, such as `3 min`.
pub(super) fn ago(at: SystemTime) -> String {
    long(at.elapsed().unwrap_or_default())
}

/// Formats a duration in its largest two units, such as `2 h 5 min`.
pub(super) fn long(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, 0) => format!("{hours} h"),
        (0, ..) => format!("{hours} h {minutes} min"),
        (_, 0, _) => format!("{days} d"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Formats the duration of an attempt, such as `35 ms` or `1.2 s`.
pub(super) fn short(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        _ => long(duration),
    }
}

pub(super) fn state(event: &EventSummary) -> Markup {
    let class = match event.state {
        EventState::Handled => "badge good",
        EventState::Waiting | EventState::InProgress | EventState::Ignored => "badge",
        EventState::Retrying | EventState::Discarded => "badge warn",
        EventState::Dead => "badge bad",
    };
    html! {
        span class=(class) { (event.state) }
        @if event.is_redriven { " " span.badge { "redriven" } }
        @if let Some(due) = event.due_at { " " small { "next attempt " (time(due)) } }
    }
}

/// The longest id of a chat that is a link, in bytes of a URL.
const LONGEST_CHAT: usize = 100;

pub(super) fn chat(view: &View<'_>, chat: Option<&str>) -> Markup {
    html! {
        @match chat {
            // A link has the whole id.
            Some(chat) if encode(chat).len() <= LONGEST_CHAT => a href=(view.chat(chat)) { (clip(chat, 60)) },
            Some(chat) => (clip(chat, 60)),
            None => span.quiet { "unknown" },
        }
    }
}

/// The form of a button that changes an event.
pub(super) fn button(view: &View<'_>, event: &EventSummary, action: &str, text: &str) -> Markup {
    let class = match action {
        "discard" => "danger",
        _ if event.state.is_unsettled() || event.state == EventState::Dead => "main",
        // It was handled, or given up: nothing is to be done.
        _ => "",
    };
    html! {
        form method="post" action=(view.url(format_args!("/events/{}/{action}", event.id))) {
            input type="hidden" name="state" value=(event.state);
            button #{ (action) "-" (event.id) } class=(class) { (text) }
        }
    }
}

pub(super) fn gauge(name: &str, failures: u32, most: u32) -> Markup {
    let share = (100 * u64::from(failures))
        .checked_div(u64::from(most))
        .unwrap_or(100)
        .min(100);
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
