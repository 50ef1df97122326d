//! The table of event types, worst first.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tower_webhook::inbox::{KindStats, Scope, Stats};
use tower_webhook::telemetry::{Silent, Spent};
use tower_webhook::{EventKind, EventType, RouteName};

use super::super::lately::{Hour, Lately};
use super::overview::{Observed, pause};
use super::parts::{gauge, head, next_attempt};
use super::text::{count, encode, long, name};
use super::view::View;

/// The number of event types on the overview.
const KINDS: usize = 10;

/// How many of them may be types that the platform does not have and no worker has named: a sender may have made up their
/// names, and others are shown beside them.
const STRANGERS: usize = KINDS / 2;

/// The number of event types on a page of all of them.
pub(super) const KINDS_OF_PAGE: usize = 25;

/// The longest name of a kind that has several links, in bytes of a URL. A sender could choose longer ones.
const LONGEST_KIND: usize = 64;

/// What is known of an event type.
pub(super) struct Row<'a> {
    pub(super) of: EventType,
    stats: Option<&'a KindStats>,
    /// The age of the oldest unsettled event.
    age: Option<Duration>,
    spent: Option<&'a Spent>,
    hour: Option<&'a Hour>,
    /// When the next event of the type is tried, if its attempts are slowed down.
    slowed: Option<SystemTime>,
    is_silent: bool,
    /// Whether the platform has the type, or a worker has named it.
    is_known: bool,
}

impl Row<'_> {
    /// The number of events that have failed.
    fn failed(&self) -> u64 {
        self.stats.map_or(0, |it| it.retrying + it.dead)
    }

    /// By this number, the worst type is the largest.
    fn badness(&self) -> impl Ord + use<> {
        let spent = self.spent.map_or(0.0, Spent::share);
        (
            self.slowed.is_some(),
            self.failed(),
            self.is_silent,
            // In thousandths, as such a number has an order.
            (spent * 1_000.0) as u64,
            self.hour.map_or(0, |hour| hour.failed_attempts),
            self.age,
            self.hour.map_or(0, Hour::sum),
            self.is_known,
        )
    }
}

/// All event types, worst first.
pub(super) fn rows<'a>(
    stats: Option<&'a Stats>,
    observed: &'a Observed,
    lately: &'a Lately,
) -> Vec<Row<'a>> {
    let Observed {
        spent,
        silent,
        slowed,
    } = observed;
    let mut types = BTreeSet::new();
    let counted = stats.iter().flat_map(|stats| &stats.kinds);
    types.extend(counted.map(KindStats::event_type));
    types.extend(spent.iter().filter_map(of_spent));
    types.extend(silent.iter().map(of_silent));
    types.extend(lately.types.keys().cloned());
    types.extend(slowed.keys().cloned());
    let rows = types.into_iter().map(|of| {
        let of_type = stats.and_then(|stats| {
            let mut all = stats.kinds.iter();
            all.find(|it| (&it.route, &it.kind) == (&of.route, &of.kind))
        });
        Row {
            stats: of_type,
            age: stats
                .zip(of_type)
                .and_then(|(stats, of_type)| stats.age(of_type)),
            spent: spent.iter().find(|it| of_spent(it).as_ref() == Some(&of)),
            hour: lately.types.get(&of),
            slowed: slowed.get(&of).copied(),
            is_silent: silent.iter().any(|it| of_silent(it) == of),
            is_known: is_known(stats, &of),
            of,
        }
    });
    let mut rows: Vec<_> = rows.collect();
    // The sort is stable, so that types as bad as each other are in the order of their names.
    rows.sort_by_key(|row| Reverse(row.badness()));
    rows
}

fn of_spent(spent: &Spent) -> Option<EventType> {
    Some(EventType::new(spent.route.clone(), spent.kind.clone()?))
}

fn of_silent(silent: &Silent) -> EventType {
    EventType::new(silent.route.clone(), silent.kind.clone())
}

fn is_known(stats: Option<&Stats>, of: &EventType) -> bool {
    let mut notes = stats.iter().flat_map(|stats| &stats.handlers);
    of.route == RouteName::default() && EventKind::ALL.contains(&of.kind)
        || notes.any(|note| !note.is_fallback && note.of == Scope::Type(of.clone()))
}

/// The rows that have room on the overview, and the others.
pub(super) fn first(rows: Vec<Row<'_>>) -> (Vec<Row<'_>>, Vec<Row<'_>>) {
    let known = rows.iter().filter(|row| row.is_known).count();
    let most_strangers = STRANGERS.max(KINDS.saturating_sub(known));
    let (mut shown, mut strangers) = (0, 0);
    rows.into_iter().partition(|row| {
        let has_room = shown < KINDS && (row.is_known || strangers < most_strangers);
        let is_shown = has_room && is_short(&row.of.kind);
        shown += usize::from(is_shown);
        strangers += usize::from(is_shown && !row.is_known);
        is_shown
    })
}

pub(super) fn is_short(kind: &EventKind) -> bool {
    encode(kind.as_str()).len() <= LONGEST_KIND
}

/// What has no room on the overview, with a link to it.
pub(super) fn others(view: &View, others: &[Row<'_>]) -> Markup {
    let failed: u64 = others.iter().map(Row::failed).sum();
    html! {
        @if !others.is_empty() {
            p {
                a href=(view.url("/kinds")) { (others.len()) @if others.len() == 1 { " other type" } @else { " other types" } }
                @if failed > 0 {
                    ", with " b.bad { (count(failed)) @if failed == 1 { " event" } @else { " events" } } " that failed"
                }
            }
        }
    }
}

/// All event types, from the page with this number on.
pub(in super::super) fn kinds(view: &View, lately: &Lately, page: usize) -> Markup {
    let stats = view.stats();
    let observed = Observed::by(&view.console, lately);
    let rows = rows(stats, &observed, lately);
    let first = page.saturating_mul(KINDS_OF_PAGE).min(rows.len());
    let last = (first + KINDS_OF_PAGE).min(rows.len());
    let content = html! {
        div.title { h1 { "Event types" } }
        section {
            p.quiet { (count(rows.len() as u64)) " types, worst first." }
            div #kinds-table data-live { (table(view, &rows[first..last], stats, true)) }
            @if let Some(stats) = stats.filter(|_| view.can_change()) { (routes(view, stats, &rows, usize::MAX)) }
            div.pages {
                @if page > 0 { a href=(view.url("/kinds")) { "First page" } }
                @if last < rows.len() { a href=(view.url(format_args!("/kinds?page={}", page + 1))) rel="next" { "Next page" } }
            }
        }
    };
    view.page("Event types", "/", &content)
}

/// The rows in a table. A plain one has no charts, and two links in each row.
pub(super) fn table(
    view: &View,
    rows: &[Row<'_>],
    stats: Option<&Stats>,
    is_plain: bool,
) -> Markup {
    let has_inbox = view.console.inbox.is_some();
    let of_inbox = |column| if has_inbox { column } else { "" };
    let columns = [
        "Type",
        of_inbox("#Waiting"),
        of_inbox("#In progress"),
        of_inbox("#Retrying"),
        of_inbox("#Dead"),
        of_inbox("Oldest"),
        "Handled, last hour",
        "Failure budget",
        if view.can_change() { "Pause" } else { "" },
    ];
    html! {
        @if rows.is_empty() { p.quiet { "No event yet." } }
        @else {
            table {
                (head(&columns))
                tbody {
                    @for row in rows { (kind(view, row, stats, is_plain)) }
                }
                // The totals of a single kind would repeat its row.
                @if let Some(stats) = stats.filter(|stats| stats.kinds.len() > 1) { tfoot { (totals(view, &stats.kinds)) } }
            }
        }
    }
}

fn kind(view: &View, row: &Row<'_>, stats: Option<&Stats>, is_plain: bool) -> Markup {
    let name = name(&row.of.route, &row.of.kind);
    let is_paused = stats.is_some_and(Stats::is_paused) || row.stats.is_some_and(|it| it.is_paused);
    let own = Scope::Type(row.of.clone());
    html! {
        tr {
            th scope="row" {
                @if row.stats.is_some() {
                    a href=(view.events(&[("route", row.of.route.as_str()), ("kind", row.of.kind.as_str())])) { (name) }
                } @else { (name) }
                @if let Some(next) = row.slowed { " " span.badge.bad { "slowed down here, next " (next_attempt(next)) } }
                @if is_paused && row.stats.is_some() { " " span.badge.warn { "paused" } }
                @if row.is_silent { " " span.badge.bad { "silent" } }
            }
            @if view.console.inbox.is_some() { (counts(view, row, is_plain)) }
            td data-label="Handled" {
                @if let Some(hour) = row.hour {
                    @if is_plain { (count(hour.sum())) " " (history(view, &row.of)) " " } @else { (sparkline(hour)) }
                    @let failed = hour.failed_attempts;
                    @if failed > 0 { small.bad { (count(failed)) @if failed == 1 { " attempt" } @else { " attempts" } " failed" } }
                }
            }
            td data-label="Budget" {
                @if let Some(spent) = row.spent {
                    @if let Some(limit) = spent.limit.filter(|_| !is_plain) { (gauge(&name, spent.failures, limit)) }
                    small {
                        (spent.failures)
                        @if let Some(limit) = spent.limit { " of " (limit) }
                        @if let Some(left) = spent.disabled_in.filter(|left| !left.is_zero()) {
                            "; in " (long(left)) " the sender disables it, if this goes on"
                        }
                    }
                }
            }
            @if view.can_change() {
                td { @if row.stats.is_some() || row.hour.is_some() { (pause(view, &own, view.is_paused(&own))) } }
            }
        }
    }
}

/// The link to the history of a type.
fn history(view: &View, of: &EventType) -> Markup {
    let (route, kind) = (encode(of.route.as_str()), encode(of.kind.as_str()));
    html! {
        @if is_short(&of.kind) {
            a href=(view.url(format_args!("/history?route={route}&kind={kind}"))) aria-label={ "History of " (name(&of.route, &of.kind)) } { "History" }
        }
    }
}

/// The name of a column, the state, and the number of its events.
type Column = (&'static str, &'static str, fn(&KindStats) -> u64);

const STATES: [Column; 4] = [
    ("Waiting", "waiting", |it| it.waiting),
    ("In progress", "in-progress", |it| it.in_progress),
    ("Retrying", "retrying", |it| it.retrying),
    ("Dead", "dead", |it| it.dead),
];

/// The cells of the states, by event type or for all of them.
fn states(
    view: &View,
    of: Option<&EventType>,
    counts: [u64; STATES.len()],
    has_links: bool,
) -> Markup {
    html! {
        @for ((label, state, _), number) in STATES.into_iter().zip(counts) {
            td.number data-label=(label) {
                @let link = |class| html! {
                    @let of_type = of.map(|of| [("route", of.route.as_str()), ("kind", of.kind.as_str())]);
                    @let query: Vec<_> = [("state", state)].into_iter().chain(of_type.into_iter().flatten()).collect();
                    a class=[class] href=(view.events(&query)) { (count(number)) }
                };
                @match (number, state) {
                    (0, _) => span.quiet { "0" },
                    _ if !has_links => (count(number)),
                    (_, "dead") => (link(Some("bad"))),
                    _ => (link(None)),
                }
            }
        }
    }
}

/// The cells of a row that an inbox fills.
fn counts(view: &View, row: &Row<'_>, is_plain: bool) -> Markup {
    let counts = STATES.map(|(_, _, of)| row.stats.map_or(0, of));
    html! {
        (states(view, Some(&row.of), counts, !is_plain))
        td data-label="Oldest" {
            @if let Some(age) = row.age { (long(age)) }
            @if let Some(lanes) = row.stats.map(|it| it.blocking).filter(|lanes| *lanes > 0) {
                small { a href=(view.url("/lanes")) { (count(lanes)) @if lanes == 1 { " blocked chat" } @else { " blocked chats" } } }
            }
        }
    }
}

/// The sums of all event types, with and without a row.
fn totals(view: &View, kinds: &[KindStats]) -> Markup {
    html! {
        tr {
            th scope="row" { "All types" }
            (states(view, None, STATES.map(|(_, _, of)| kinds.iter().map(of).sum()), true))
        }
    }
}

/// The buttons that pause or resume a route, if there are several: those of the worst types first.
pub(super) fn routes(view: &View, stats: &Stats, rows: &[Row<'_>], most: usize) -> Markup {
    let counted: BTreeSet<_> = stats.kinds.iter().map(|it| &it.route).collect();
    let mut routes: Vec<&RouteName> = Vec::new();
    for route in rows.iter().map(|row| &row.of.route) {
        if counted.contains(route) && !routes.contains(&route) {
            routes.push(route);
        }
    }
    html! {
        @if routes.len() > 1 {
            div.row.middle {
                @for route in routes.into_iter().take(most) {
                    @let of = Scope::Route(route.clone());
                    (pause(view, &of, view.is_paused(&of)))
                }
            }
        }
    }
}

/// The events that were handled in the last hour, as bars of two minutes.
fn sparkline(hour: &Hour) -> Markup {
    let in_a_minute = hour.handled.iter().copied().max().unwrap_or(0);
    let bars = hour.handled.chunks(2).map(|minutes| minutes.iter().sum());
    let bars: Vec<u64> = bars.collect();
    let (sum, most) = (hour.sum(), bars.iter().copied().max().unwrap_or(0));
    let mut path = "M0 20".to_owned();
    let (mut top, mut right) = (20, 0);
    for handled in bars {
        // A single event beside thousands is still a bar. A number may be any `u64`, so 20 times it needs more bits.
        let height = match handled {
            0 => 0,
            _ => (u128::from(handled) * 20 / u128::from(most)).max(1),
        };
        // Bars of one height are one.
        if top != 20 - height {
            top = 20 - height;
            let _ = write!(path, "h{right}V{top}");
            right = 0;
        }
        right += 1;
    }
    let _ = write!(path, "h{right}V20z");
    html! {
        span.number { (count(sum)) }
        " "
        svg.spark viewBox="0 0 30 20" preserveAspectRatio="none" role="img"
            aria-label={ (sum) " handled in the last hour" } {
            path d=(path) {}
        }
        small { "at most " (in_a_minute) " in a minute" }
    }
}
