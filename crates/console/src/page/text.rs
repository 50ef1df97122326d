//! Texts, times and durations, as pages show them.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tower_webhook::inbox::Scope;
pub(super) use tower_webhook::inbox::in_words as long;
use tower_webhook::{EventKind, RouteName};

/// Returns the start of a text that takes at most so many bytes of HTML.
pub(super) fn clip(text: &str, most: usize) -> String {
    let mut size = 0;
    for (at, char) in text.char_indices() {
        size += size_of(char);
        if size > most {
            return format!("{}…", &text[..at]);
        }
    }
    text.to_owned()
}

/// The number of bytes of HTML that a text takes.
pub(super) fn size(text: &str) -> usize {
    text.chars().map(size_of).sum()
}

fn size_of(char: char) -> usize {
    // The lengths of `&amp;`, `&lt;` and `&quot;`, which `maud` writes.
    match char {
        '&' => 5,
        '<' | '>' => 4,
        '"' => 6,
        other => other.len_utf8(),
    }
}

/// Encodes a value of a query.
pub(super) fn encode(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// The name of an event type, such as `chat-rated` or `github/push`. Senders may choose kinds, and only operators routes.
pub(super) fn name(route: &RouteName, kind: &EventKind) -> String {
    let kind = clip(kind.as_str(), 60);
    match *route == RouteName::default() {
        true => kind,
        false => format!("{route}/{kind}"),
    }
}

/// What is paused, in a sentence.
pub(super) fn scope(of: &Scope) -> String {
    match of {
        Scope::Everything => "everything".to_owned(),
        Scope::Route(route) => format!("all of {route}"),
        Scope::Type(of) => name(&of.route, &of.kind),
        other => clip(&other.to_string(), 60),
    }
}

/// Formats a number such as `36,532`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time such as `20 Nov 20:56:43`.
pub(super) fn time(at: SystemTime) -> Markup {
    let text = date(at);
    html! { time datetime=(datetime(at)) { (&text[..6]) (&text[11..]) } }
}

/// Formats a time such as `20:56`.
pub(super) fn minute(at: SystemTime) -> Markup {
    html! { time { (&date(at)[12..17]) } }
}

/// The same, which is shown in the zone of the browser, too. A forecast would change with each second.
pub(super) fn clock(at: SystemTime) -> Markup {
    html! { time datetime={ (&datetime(at)[..16]) "Z" } { (&date(at)[12..17]) } }
}

/// Formats a day such as `20 Nov`.
pub(super) fn day(at: SystemTime) -> Markup {
    html! { time { (&date(at)[..6]) } }
}

/// Formats a time such as `20 Nov 2026 20:56:43`.
pub(super) fn full_time(at: SystemTime) -> Markup {
    html! { time datetime=(datetime(at)) { (date(at)) } }
}

/// A number of milliseconds, with the time as a label.
pub(super) fn labelled_time(at: SystemTime) -> Markup {
    let millis = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    html! { time datetime=(datetime(at)) data-label=(date(at)) { (millis.as_millis()) } }
}

/// Formats a time for programs, such as `2026-11-20T20:56:43Z`.
fn datetime(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(clamped(at)).to_string()
}

pub(super) fn now() -> Markup {
    html! { (date(SystemTime::now())) " UTC" }
}

fn date(at: SystemTime) -> String {
    // `Fri, 20 Nov 2026 20:56:43 GMT` without the day of the week and the zone.
    httpdate::fmt_http_date(clamped(at))[5..25].to_owned()
}

/// The formats have a fixed length up to the year 9999, after which they panic.
pub(in super::super) fn clamped(at: SystemTime) -> SystemTime {
    let longest = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    at.clamp(SystemTime::UNIX_EPOCH, longest)
}

/// Formats the time since `at`, such as `3 min`.
pub(super) fn ago(at: SystemTime) -> String {
    long(at.elapsed().unwrap_or_default())
}

/// Formats the duration of an attempt, such as `35 ms` or `1.2 s`.
pub(super) fn short(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        _ => long(duration),
    }
}
