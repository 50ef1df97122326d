//! The first page: each kind, and the newest problems.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tower_webhook::EventKind;
use tower_webhook::inbox::{Action, BlockedLane, Inbox, KindStats, Stats};
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::{FailureBudget, Minute, Recent, Silence, Silent, Spent};

use super::super::settings::Console;
use super::actions::running;
use super::causes::{causes, show};
use super::events::waiting;
use super::parts::{chat, gauge, head, next_attempt, reason, state};
use super::text::{ago, clip, count, encode, kind as name, long, time};
use super::view::View;

/// The number of problems that are shown.
const PROBLEMS: usize = 10;

/// The number of kinds that are shown: those of the platform first.
const KINDS: usize = 10;

/// The longest name of a kind that has a row, in bytes of a URL. A sender could choose longer ones.
const LONGEST_KIND: usize = 64;

/// The age from which on that of the counts is shown.
const SOME_TIME: Duration = Duration::from_secs(10);

/// What is known of a kind.
struct Row<'a> {
    kind: &'a EventKind,
    stats: Option<&'a KindStats>,
    /// The age of the oldest unsettled event.
    age: Option<Duration>,
    spent: Option<&'a Spent>,
    minutes: Option<&'a [Minute; 60]>,
    /// When the next event of the kind is tried, if it is tripped.
    tripped: Option<SystemTime>,
    is_silent: bool,
}

/// What the observers know.
pub(super) struct Observed {
    pub(super) spent: Vec<Spent>,
    pub(super) silent: Vec<Silent>,
    minutes: BTreeMap<EventKind, [Minute; 60]>,
    pub(super) tripped: BTreeMap<EventKind, SystemTime>,
}

impl Observed {
    pub(super) fn by(console: &Console) -> Self {
        let spent = console.budget.as_ref().map(FailureBudget::spent);
        let silent = console.silence.as_ref().map(Silence::silent);
        let minutes = console.recent.as_ref().map(Recent::minutes);
        let tripped = console.inbox.as_ref().map(Inbox::tripped);
        Self {
            spent: spent.unwrap_or_default(),
            silent: silent.unwrap_or_default(),
            minutes: minutes.unwrap_or_default(),
            tripped: tripped.unwrap_or_default(),
        }
    }
}

pub(in super::super) fn overview(
    view: &View,
    error: Option<&StoreError>,
    blocked: &[BlockedLane],
    changes: &[Action],
) -> Markup {
    let stats = view.stats();
    let console = &view.console;
    let observed = Observed::by(console);
    let (rows, others) = rows(stats, &observed);
    let is_paused = stats.is_some_and(Stats::is_paused);
    let causes = causes(view, stats, error, &observed);
    let content = html! {
        div #alerts data-live role="status" { (show(&causes)) }
        div.title {
            h1 { "Overview" }
            @if view.can_change() { (pause(view, None, is_paused)) }
        }
        div.stack {
            section {
                div.head {
                    h2 { "Kinds" }
                    @if console.inbox.is_some() { a.end href=(view.events(&[("state", "failed")])) { "All that have failed" } }
                }
                div #kinds-table data-live {
                    (table(view, &rows, stats, is_paused))
                    @if let Some((_, age)) = view.counted.as_ref().filter(|(_, age)| *age >= SOME_TIME) {
                        p.quiet { "Counted " (long(*age)) " ago." }
                    }
                    @if others > 0 { p.quiet { (others) " other kinds are not shown." } }
                }
            }
            div #changes data-live { @if !changes.is_empty() { (running(view, changes)) } }
            div #blocked data-live { @if !blocked.is_empty() { (worst(view, blocked)) } }
            @if let Some(recent) = &console.recent {
                section {
                    h2 { "Responses, last hour" }
                    div #answers data-live { (answers(&recent.answers())) }
                }
                section {
                    h2 { "Newest problems" }
                    div #problems data-live { (problems(view, &recent.problems())) }
                }
            }
        }
    };
    view.page("Overview", "/", &content)
}

/// The kinds that have a row, and the number of those that have none.
fn rows<'a>(stats: Option<&'a Stats>, observed: &'a Observed) -> (Vec<Row<'a>>, usize) {
    let Observed {
        spent,
        silent,
        minutes,
        tripped,
    } = observed;
    let mut kinds = BTreeSet::new();
    kinds.extend(
        stats
            .iter()
            .flat_map(|stats| stats.kinds.iter().map(|it| &it.kind)),
    );
    kinds.extend(spent.iter().filter_map(|spent| spent.kind.as_ref()));
    kinds.extend(silent.iter().map(|silent| &silent.kind));
    kinds.extend(minutes.keys());
    kinds.extend(tripped.keys());
    let all = kinds.len();
    let kinds = first(kinds);
    let others = all - kinds.len();
    let rows = kinds.into_iter().map(|kind| {
        let of_kind = stats.and_then(|stats| stats.kinds.iter().find(|it| it.kind == *kind));
        Row {
            kind,
            stats: of_kind,
            age: stats
                .zip(of_kind)
                .and_then(|(stats, of_kind)| stats.age(of_kind)),
            spent: spent.iter().find(|it| it.kind.as_ref() == Some(kind)),
            minutes: minutes.get(kind),
            tripped: tripped.get(kind).copied(),
            is_silent: silent.iter().any(|it| it.kind == *kind),
        }
    });
    (rows.collect(), others)
}

/// The kinds that have room on a page.
pub(super) fn first<'a>(kinds: impl IntoIterator<Item = &'a EventKind>) -> Vec<&'a EventKind> {
    let mut kinds: Vec<_> = kinds.into_iter().filter(|kind| is_short(kind)).collect();
    // The platform's kinds come first: forged ones must not take their rows.
    kinds.sort_by_key(|kind| !EventKind::ALL.contains(kind));
    kinds.truncate(KINDS);
    kinds
}

pub(super) fn is_short(kind: &EventKind) -> bool {
    encode(kind.as_str()).len() <= LONGEST_KIND
}

/// The chats in which most events wait, and why.
fn worst(view: &View, blocked: &[BlockedLane]) -> Markup {
    html! {
        section {
            div.head {
                h2 { "Chats that wait most" }
                a.end href=(view.url("/lanes")) { "All blocked lanes" }
            }
            table {
                (head(&["Chat", "#Waiting", "For", "Blocked by", "Reason"]))
                tbody {
                    @for lane in blocked {
                        @let event = &lane.event;
                        tr {
                            td.wide { (chat(view, event.chat.as_deref())) }
                            td.number data-label="Waiting" { (waiting(lane)) }
                            td data-label="For" { (ago(lane.since)) }
                            td {
                                a href=(view.url(format_args!("/events/{}", event.id))) { "event " (event.id) }
                                ", " (name(&event.kind)) " " (state(event))
                            }
                            td.wide { (reason(view, event.last_failure.as_ref(), 200)) }
                        }
                    }
                }
            }
        }
    }
}

fn table(view: &View, rows: &[Row<'_>], stats: Option<&Stats>, is_paused: bool) -> Markup {
    let has_inbox = view.console.inbox.is_some();
    let of_inbox = |column| if has_inbox { column } else { "" };
    let columns = [
        "Kind",
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
                    @for row in rows { (kind(view, row, is_paused)) }
                }
                // The totals of a single kind would repeat its row.
                @if let Some(stats) = stats.filter(|stats| stats.kinds.len() > 1) { tfoot { (totals(view, &stats.kinds)) } }
            }
        }
    }
}

fn kind(view: &View, row: &Row<'_>, is_paused: bool) -> Markup {
    let stats = row.stats;
    let own_pause = stats.is_some_and(|stats| stats.is_paused);
    html! {
        tr {
            th scope="row" {
                (name(row.kind))
                @if let Some(next) = row.tripped { " " span.badge.bad { "tripped, next " (next_attempt(next)) } }
                @if own_pause || (is_paused && stats.is_some()) { " " span.badge.warn { "paused" } }
                @if row.is_silent { " " span.badge.bad { "silent" } }
            }
            @if view.console.inbox.is_some() { (counts(view, row)) }
            td data-label="Handled" {
                @if let Some(minutes) = row.minutes {
                    (sparkline(minutes))
                    @let failed: u64 = minutes.iter().map(|minute| u64::from(minute.failed_attempts)).sum();
                    @if failed > 0 { small.bad { (failed) @if failed == 1 { " attempt" } @else { " attempts" } " failed" } }
                }
            }
            td data-label="Budget" {
                @if let Some(spent) = row.spent {
                    @if let Some(limit) = spent.limit { (gauge(row.kind.as_str(), spent.failures, limit)) }
                    small {
                        (spent.failures)
                        @if let Some(limit) = spent.limit { " of " (limit) }
                        @if let Some(left) = spent.disabled_in.filter(|left| !left.is_zero()) {
                            ", disabled in " (long(left))
                        }
                    }
                }
            }
            @if view.can_change() {
                td { @if stats.is_some() || row.minutes.is_some() { (pause(view, Some(row.kind), own_pause)) } }
            }
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

/// The cells of the states, by kind or for all of them.
fn states(view: &View, kind: Option<&str>, counts: [u64; STATES.len()]) -> Markup {
    html! {
        @for ((label, state, _), number) in STATES.into_iter().zip(counts) {
            td.number data-label=(label) {
                @let link = |class| html! {
                    @let query = [("state", state), ("kind", kind.unwrap_or_default())];
                    a class=[class] href=(view.events(&query[..1 + usize::from(kind.is_some())])) { (count(number)) }
                };
                @match (number, state) {
                    (0, _) => span.quiet { "0" },
                    (_, "dead") => (link(Some("bad"))),
                    _ => (link(None)),
                }
            }
        }
    }
}

/// The cells of a row that an inbox fills.
fn counts(view: &View, row: &Row<'_>) -> Markup {
    let counts = STATES.map(|(_, _, of)| row.stats.map_or(0, of));
    html! {
        (states(view, Some(row.kind.as_str()), counts))
        td data-label="Oldest" {
            @if let Some(age) = row.age { (long(age)) }
            @if let Some(lanes) = row.stats.map(|it| it.blocking).filter(|lanes| *lanes > 0) {
                small { a href=(view.url("/lanes")) { (count(lanes)) @if lanes == 1 { " blocked chat" } @else { " blocked chats" } } }
            }
        }
    }
}

/// The sums of all kinds, also of those that are not shown.
fn totals(view: &View, kinds: &[KindStats]) -> Markup {
    html! {
        tr {
            th scope="row" { "All kinds" }
            (states(view, None, STATES.map(|(_, _, of)| kinds.iter().map(of).sum())))
        }
    }
}

/// The button that pauses or resumes a kind, or all events.
fn pause(view: &View, kind: Option<&EventKind>, is_paused: bool) -> Markup {
    // A pause has a reason, for which the next page asks.
    let (method, action, text) = match is_paused {
        true => ("post", "resume", "Resume"),
        false => ("get", "pause", "Pause"),
    };
    let name = kind.map_or("all", EventKind::as_str);
    html! {
        form method=(method) action=(view.url(format_args!("/{action}"))) {
            @if let Some(kind) = kind { input type="hidden" name="kind" value=(kind); }
            button #{ "pause-" (name) } aria-label={ (text) " " (name) } {
                (text)
                @if kind.is_none() { " all" }
                @if !is_paused { "…" }
            }
        }
    }
}

/// The events that were handled in each minute of the last hour, as bars.
fn sparkline(minutes: &[Minute; 60]) -> Markup {
    let most = minutes
        .iter()
        .map(|minute| minute.handled)
        .max()
        .unwrap_or(0);
    let sum: u64 = minutes.iter().map(|minute| u64::from(minute.handled)).sum();
    let mut path = "M-.5 20".to_owned();
    let (mut right, mut down) = (0, 0);
    for minute in minutes {
        right += 1;
        if minute.handled > 0 {
            // A single event beside thousands is still a bar.
            let height = (u64::from(minute.handled) * 20 / u64::from(most)).max(1);
            let _ = write!(path, "m{right} {down}v-{height}");
            (right, down) = (0, height);
        }
    }
    html! {
        span.number { (count(sum)) }
        " "
        svg.spark viewBox="0 0 60 20" width="120" height="20" role="img"
            aria-label={ (sum) " handled in the last hour, at most " (most) " in a minute" } {
            path d=(path) {}
        }
    }
}

/// The deliveries and refused requests by their outcome.
fn answers(answers: &BTreeMap<&'static str, u64>) -> Markup {
    let mut answers: Vec<_> = answers.iter().collect();
    answers.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    html! {
        @if answers.is_empty() { p.quiet { "None." } }
        @else {
            ul.tiles { @for (outcome, number) in answers { li { b { (count(*number)) } " " (outcome) } } }
        }
    }
}

fn problems(view: &View, problems: &[tower_webhook::telemetry::Problem]) -> Markup {
    html! {
        @if problems.is_empty() { p.quiet { "None." } }
        @else {
            table {
                (head(&["Last", "#Times", "Outcome", "Kind", "Reason"]))
                tbody {
                    @for problem in problems.iter().take(PROBLEMS) {
                        tr {
                            td {
                                @match problem.event.filter(|_| view.console.inbox.is_some()) {
                                    Some(event) => a href=(view.url(format_args!("/events/{event}"))) { (time(problem.at)) },
                                    None => (time(problem.at)),
                                }
                            }
                            td.number data-label="Times" { (count(problem.count)) }
                            td { b.bad { (problem.outcome) } }
                            td {
                                @match &problem.kind {
                                    Some(kind) => (name(kind)),
                                    None => span.quiet { "not verified" },
                                }
                            }
                            td.wide {
                                @if view.console.hides_payloads { span.quiet { "hidden" } }
                                @else { (clip(&problem.reason, 160)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
