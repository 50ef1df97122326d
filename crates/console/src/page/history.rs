//! What was counted: the history of some hours or days, and what was refused.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tower_webhook::EventType;
use tower_webhook::telemetry::{Count, Series};

use super::super::history::{Chosen, Origin, Range, Refused};
use super::kinds::is_short;
use super::parts::{event_type, head};
use super::text::{clip, count, day, minute, short, time};
use super::view::View;

/// A line of the history: its name, whether a count belongs to it, and whether its numbers are milliseconds.
struct Line {
    name: &'static str,
    holds: fn(&Count) -> bool,
    is_time: bool,
}

const LINES: [Line; 6] = [
    Line {
        name: "Accepted",
        // Without an inbox, what was handled was accepted.
        holds: |it| {
            it.series == Series::Acknowledged && ["accepted", "handled"].contains(&&*it.outcome)
        },
        is_time: false,
    },
    Line {
        name: "Handled",
        holds: |it| it.series == Series::Handled,
        is_time: false,
    },
    Line {
        name: "Failed attempts",
        holds: |it| it.series == Series::Failed,
        is_time: false,
    },
    Line {
        name: "Dead letters",
        holds: |it| it.series == Series::Dead,
        is_time: false,
    },
    Line {
        name: "Longest wait for a first attempt",
        holds: |it| it.series == Series::Lag,
        is_time: true,
    },
    Line {
        name: "Refused",
        holds: |it| it.series == Series::Refused,
        is_time: false,
    },
];

/// The most rows of the table: those of a day.
const ROWS: usize = 48;

/// The number of event types with links, and the number of types that the field offers.
const TYPES: usize = 10;
const OFFERED: usize = 100;

/// The number of reasons of refusals that are shown.
const REASONS: usize = 20;

/// The numbers of a line: of each bucket, and of the time before.
struct Numbers {
    buckets: Vec<u64>,
    now: u64,
    before: u64,
}

impl Line {
    fn numbers(&self, range: &Range, counts: &[Count]) -> Numbers {
        let mut numbers = Numbers {
            buckets: vec![0; range.buckets()],
            now: 0,
            before: 0,
        };
        for it in counts.iter().filter(|it| (self.holds)(it)) {
            // A division rounds toward zero, so the minutes just before the range would be in its first bucket.
            let at = usize::try_from((it.minute - range.from) / range.bucket);
            let sum = match at.ok().filter(|_| it.minute >= range.from) {
                None => &mut numbers.before,
                Some(at) => {
                    if let Some(bucket) = numbers.buckets.get_mut(at) {
                        *bucket = it.series.join(*bucket, it.number);
                    }
                    &mut numbers.now
                }
            };
            *sum = it.series.join(*sum, it.number);
        }
        numbers
    }

    fn join(&self, one: u64, other: u64) -> u64 {
        match self.is_time {
            true => one.max(other),
            false => one.saturating_add(other),
        }
    }

    fn show(&self, number: u64) -> String {
        match self.is_time {
            true if number == 0 => "–".to_owned(),
            true => short(Duration::from_millis(number)),
            false => count(number),
        }
    }
}

/// The history of a range, of one event type or of all `types`, with the sums of as long a time before.
pub(in super::super) fn history(
    view: &View,
    range: &Range,
    chosen: &Chosen,
    types: &BTreeSet<EventType>,
    counts: &[Count],
) -> Markup {
    let lines: Vec<_> = LINES
        .iter()
        .map(|line| (line, line.numbers(range, counts)))
        .collect();
    let content = html! {
        (choices(view, range, chosen, types))
        div.stack {
            section {
                h2 { (range.title()) @if let Some(name) = chosen.name() { ", " (clip(&name, 125)) } }
                table {
                    (head(&["What", "#Number", if range.before.is_some() { "#Before" } else { "" }, "Over time"]))
                    tbody {
                        @for (line, numbers) in &lines {
                            tr {
                                th scope="row" { (line.name) }
                                td.number data-label="Number" { b { (line.show(numbers.now)) } }
                                @if range.before.is_some() { td.number data-label="Before" { (line.show(numbers.before)) } }
                                td.chart { (chart(line, range, &numbers.buckets)) }
                            }
                        }
                    }
                }
                @if range.day.is_some() { p.quiet { "Before: on the same weekday a week before, up to the same time." } }
                @else if range.before.is_some() { p.quiet { "Before: in the " (range.words()) " before." } }
                (about(view))
            }
            section {
                div.head { h2 { "Refused, by reason" } a.end href=(view.url("/refusals")) { "By minute" } }
                (reasons(range, counts))
            }
            section {
                details {
                    summary { h2 { "As a table" } }
                    (table(range, &lines))
                }
            }
        }
    };
    view.page("History", "/history", &content)
}

/// The ranges and event types that a history has.
fn choices(view: &View, range: &Range, chosen: &Chosen, types: &BTreeSet<EventType>) -> Markup {
    let shown = range;
    let link = |range: &str, of: &Chosen, text: &str, is_shown: bool| {
        let mut query = form_urlencoded::Serializer::new(String::new());
        match &shown.day {
            Some((day, _)) if range.is_empty() => query.append_pair("day", day),
            _ => query.append_pair("range", range),
        };
        query.extend_pairs(of.filled());
        let path = format!("/history?{}", query.finish());
        html! {
            li {
                a href=(view.url(path)) aria-current=[is_shown.then_some("true")] {
                    @if is_shown { b { (text) } } @else { (text) }
                }
            }
        }
    };
    let types: Vec<_> = types.iter().filter(|of| is_short(&of.kind)).collect();
    let first = types.iter().take(TYPES).copied().cloned();
    let all = [Chosen::default()].into_iter().chain(first.map(Chosen::of));
    html! {
        div.title {
            h1 { "History" }
            ul.tiles { @for name in Range::NAMES { (link(name, chosen, name, name == range.name)) } }
            @if view.console.inbox.is_some() {
                form.row method="get" action=(view.url("/history")) {
                    @for (name, value) in chosen.filled() { input type="hidden" name=(name) value=(value); }
                    input #day type="date" name="day" required aria-label="Day (UTC)" value=[range.day.as_ref().map(|(day, _)| day)];
                    button { "Show the day" }
                }
            }
            ul.tiles { @for it in all { (link(range.name, &it, it.name().as_deref().unwrap_or("all types"), it == *chosen)) } }
            @if types.len() > TYPES {
                form.row method="get" action=(view.url("/history")) {
                    @match &range.day {
                        Some((day, _)) => input type="hidden" name="day" value=(day);,
                        None => input type="hidden" name="range" value=(range.name);,
                    }
                    input #type name="type" list="types" required aria-label="Event type" autocomplete="off";
                    datalist #types { @for of in types.iter().take(OFFERED) { option value=(of) {} } }
                    button { "Show the type" }
                }
            }
        }
    }
}

/// Whose counts these are.
fn about(view: &View) -> Markup {
    html! {
        p.quiet {
            @if view.console.inbox.is_some() {
                "Counts of all processes. Each writes its own once a second, so a kill loses those of its last second."
            } @else {
                "Counts of this process in the last hour. A restart loses them."
            }
        }
    }
}

/// The bars of a line, with an axis of numbers and one of times.
fn chart(line: &Line, range: &Range, buckets: &[u64]) -> Markup {
    let most = buckets.iter().copied().max().unwrap_or(0);
    let highest = buckets
        .iter()
        .position(|number| *number == most && most > 0);
    // Even, so that its half is a number, too.
    let top = most.div_ceil(2).max(1).saturating_mul(2);
    let mut path = String::new();
    for (at, number) in buckets
        .iter()
        .enumerate()
        .filter(|(_, number)| **number > 0)
    {
        // A number may be any `u64`, so 40 times it needs more bits. The smallest bar is still seen.
        let height = (u128::from(*number) * 40 / u128::from(top)).max(1);
        let _ = write!(path, "M{at} 40v-{height}h.8v{height}z");
    }
    html! {
        @if let Some(at) = highest {
            small { span { "at most " b { (line.show(most)) } " in " (range.bucket_words()) ", " (time(range.start(at))) } }
        }
        div.plot {
            small {
                @for at in [top, top / 2] { span { @if most > 0 { (line.show(at)) } } }
                span { "0" }
            }
            svg viewBox={ "0 0 " (buckets.len()) " 40" } preserveAspectRatio="none" width="100%" height="54" role="img"
                aria-label={ (line.name) ": at most " (line.show(most)) " in " (range.bucket_words()) } {
                path d=(path) fill="currentColor" {}
            }
        }
        small.axis {
            @for at in [0, range.buckets() / 2, range.buckets()] {
                @if range.is_of_days() { (day(range.start(at))) } @else { (minute(range.start(at))) }
            }
        }
    }
}

fn reasons(range: &Range, counts: &[Count]) -> Markup {
    let mut reasons = BTreeMap::<&str, (u64, u64)>::new();
    for it in counts.iter().filter(|it| it.series == Series::Refused) {
        let (now, before) = reasons.entry(&it.outcome).or_default();
        let sum = if it.minute >= range.from { now } else { before };
        *sum = sum.saturating_add(it.number);
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, numbers)| std::cmp::Reverse(*numbers));
    html! {
        @if reasons.is_empty() { p.quiet { "None." } }
        @else {
            table {
                (head(&["Reason", "#Number", if range.before.is_some() { "#Before" } else { "" }]))
                tbody {
                    @for (reason, (now, before)) in reasons.iter().take(REASONS) {
                        tr {
                            th scope="row" { (clip(reason, 60)) }
                            td.number data-label="Number" { (count(*now)) }
                            @if range.before.is_some() { td.number data-label="Before" { (count(*before)) } }
                        }
                    }
                }
            }
        }
    }
}

/// The numbers of the charts, from the newest to the oldest.
fn table(range: &Range, lines: &[(&Line, Numbers)]) -> Markup {
    let of_row = range.buckets().div_ceil(ROWS).max(1);
    let columns = LINES.map(|line| format!("#{}", line.name));
    let columns: Vec<&str> = ["From"]
        .into_iter()
        .chain(columns.iter().map(String::as_str))
        .collect();
    html! {
        table {
            (head(&columns))
            tbody {
                @for at in (0..range.buckets()).step_by(of_row).rev() {
                    tr {
                        th scope="row" { (time(range.start(at))) }
                        @for (line, numbers) in lines {
                            @let of_row = numbers.buckets[at..].iter().take(of_row).copied();
                            td.number data-label=(line.name) { (line.show(of_row.reduce(|a, b| line.join(a, b)).unwrap_or(0))) }
                        }
                    }
                }
            }
        }
    }
}

/// What was refused in each minute, and why.
pub(in super::super) fn refusals(view: &View, refused: &Refused) -> Markup {
    let content = html! {
        div.title { h1 { "Refusals" } }
        section {
            p.quiet {
                "Deliveries without a 2xx response, and requests that were refused, by minute and reason, newest first. Each row "
                "has one of them as a sample. "
                @if view.console.inbox.is_some() { "They are kept for 7 days." }
            }
            form.row method="get" action=(view.url("/refusals")) {
                label.grow.time {
                    "Up to (UTC)"
                    input #until type="datetime-local" name="until" value=(refused.until);
                }
                button.main #show { "Show" }
                @if !refused.until.is_empty() { a href=(view.url("/refusals")) { "Newest" } }
            }
            div #swapped data-live { (swapped(&refused.swapped)) }
            div #origins data-live { (origins(&refused.origins)) }
            h2 { "By minute" }
            div #rows data-live { (rows(refused)) }
            @if let Some(older) = &refused.older {
                div.pages { a href=(view.url(format_args!("/refusals?until={older}"))) rel="next" { "Older refusals" } }
            }
            (about(view))
        }
    };
    view.page("Refusals", "/refusals", &content)
}

/// The number of addresses that are shown.
const ORIGINS: usize = 20;

/// Refused requests that a secret of another route would have matched.
fn swapped(swapped: &[Origin]) -> Markup {
    html! {
        @if !swapped.is_empty() {
            h2 { "Signed with the secret of another route" }
            p.quiet {
                "The sender has the URL or the secret of the other route: correct its webhook. At most one refused request a second "
                "is tried with the other routes' secrets."
            }
            table {
                (head(&["Would match", "Refused at", "#Times", "First", "Last"]))
                tbody {
                    @for it in swapped.iter().take(ORIGINS) {
                        tr {
                            td.wide { b { (clip(&it.outcome, 200)) } }
                            td data-label="Refused at" { (it.route) }
                            td.number data-label="Times" { (count(it.number)) }
                            td data-label="First" { (time(start(it.first))) }
                            td data-label="Last" { (time(start(it.last))) }
                        }
                    }
                }
            }
        }
    }
}

/// Where requests came from that were not verified, and since when.
fn origins(origins: &[Origin]) -> Markup {
    html! {
        @if !origins.is_empty() {
            h2 { "Not verified, by address" }
            table {
                (head(&["Address", "Reason", "Route", "#Times", "First", "Last"]))
                tbody {
                    @for it in origins.iter().take(ORIGINS) {
                        tr {
                            td.wide { @if it.address.is_empty() { span.quiet { "unknown" } } @else { (clip(&it.address, 120)) } }
                            td { b.bad { (clip(&it.outcome, 60)) } }
                            td data-label="Route" { (it.route) }
                            td.number data-label="Times" { (count(it.number)) }
                            td data-label="First" { (time(start(it.first))) }
                            td data-label="Last" { (time(start(it.last))) }
                        }
                    }
                }
            }
            @if origins.len() > ORIGINS { p.quiet { "And " (origins.len() - ORIGINS) " more." } }
        }
    }
}

fn rows(refused: &Refused) -> Markup {
    html! {
        @if refused.counts.is_empty() { p { "None." } }
        @else {
            table {
                (head(&["Minute", "Reason", "Type", "#Times", "Address", "#Bytes", "Request", "Key"]))
                tbody {
                    @for it in &refused.counts {
                        @let [address, size, request, key] = sample(it);
                        tr {
                            td { (time(start(it.minute))) }
                            td { b.bad { (clip(&it.outcome, 60)) } }
                            td { (event_type(&it.route, it.kind.as_ref())) }
                            td.number data-label="Times" { (count(it.number)) }
                            td.wide data-label="Address" { (address) }
                            td.number data-label="Bytes" { (size) }
                            td.wide data-label="Request" { (request) }
                            td.wide data-label="Key" { (key) }
                        }
                    }
                }
            }
        }
    }
}

/// The address, size, request and key of a sample.
fn sample(count: &Count) -> [Cow<'_, str>; 4] {
    let lines = count.sample.as_ref().map_or("", |sample| &sample.lines);
    let mut lines = lines.split('\n');
    std::array::from_fn(|_| Cow::Owned(clip(lines.next().unwrap_or_default(), 120)))
}

/// The time at which a minute since 1970 begins.
pub(in super::super) fn start(minute: i64) -> SystemTime {
    let minutes = u64::try_from(minute).unwrap_or(0);
    let since = Duration::from_secs(minutes.saturating_mul(60));
    let start = SystemTime::UNIX_EPOCH.checked_add(since);
    super::clamped(start.unwrap_or(SystemTime::UNIX_EPOCH))
}
