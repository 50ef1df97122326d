//! The first page: each event type, and the newest problems.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tower_webhook::inbox::{Action, BlockedLane, Inbox, KindStats, Scope, Stats};
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::{FailureBudget, Minute, Recent, Silence, Silent, Spent};
use tower_webhook::{EventKind, EventType, RouteName};

use super::super::settings::Console;
use super::actions::running;
use super::causes::{causes, show};
use super::events::waiting;
use super::parts::{chat, event_type, gauge, head, next_attempt, reason, state};
use super::text::{ago, clip, count, encode, long, name, scope, time};
use super::view::View;

/// The number of problems that are shown.
const PROBLEMS: usize = 10;

/// The number of event types that are shown: those of the platform first.
const KINDS: usize = 10;

/// The longest name of a kind that has a row, in bytes of a URL. A sender could choose longer ones.
const LONGEST_KIND: usize = 64;

/// The age from which on that of the counts is shown.
const SOME_TIME: Duration = Duration::from_secs(10);

/// What is known of an event type.
struct Row<'a> {
    of: EventType,
    stats: Option<&'a KindStats>,
    /// The age of the oldest unsettled event.
    age: Option<Duration>,
    spent: Option<&'a Spent>,
    minutes: Option<&'a [Minute; 60]>,
    /// When the next event of the type is tried, if its attempts are slowed down.
    slowed: Option<SystemTime>,
    is_silent: bool,
}

/// What the observers know.
pub(super) struct Observed {
    pub(super) spent: Vec<Spent>,
    pub(super) silent: Vec<Silent>,
    minutes: BTreeMap<EventType, [Minute; 60]>,
    pub(super) slowed: BTreeMap<EventType, SystemTime>,
}

impl Observed {
    pub(super) fn by(console: &Console) -> Self {
        let spent = console.budget.as_ref().map(FailureBudget::spent);
        let silent = console.silence.as_ref().map(Silence::silent);
        let minutes = console.recent.as_ref().map(Recent::minutes);
        let slowed = console.inbox.as_ref().map(Inbox::slowed);
        Self {
            spent: spent.unwrap_or_default(),
            silent: silent.unwrap_or_default(),
            minutes: minutes.unwrap_or_default(),
            slowed: slowed.unwrap_or_default(),
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
            @if view.can_change() { (pause(view, &Scope::Everything, is_paused)) }
        }
        div.stack {
            section {
                div.head {
                    h2 { "Kinds" }
                    @if console.inbox.is_some() { a.end href=(view.events(&[("state", "failed")])) { "All that have failed" } }
                }
                div #kinds-table data-live {
                    (table(view, &rows, stats, is_paused))
                    @if let Some(stats) = stats.filter(|_| view.can_change()) { (routes(view, stats)) (retire(view, stats)) }
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

/// The event types that have a row, and how many more there are.
fn rows<'a>(stats: Option<&'a Stats>, observed: &'a Observed) -> (Vec<Row<'a>>, usize) {
    let Observed {
        spent,
        silent,
        minutes,
        slowed,
    } = observed;
    let mut types = BTreeSet::new();
    types.extend(
        stats
            .iter()
            .flat_map(|stats| stats.kinds.iter().map(KindStats::event_type)),
    );
    types.extend(spent.iter().filter_map(of_spent));
    types.extend(silent.iter().map(of_silent));
    types.extend(minutes.keys().cloned());
    types.extend(slowed.keys().cloned());
    let all = types.len();
    let types = first(types);
    let others = all - types.len();
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
            minutes: minutes.get(&of),
            slowed: slowed.get(&of).copied(),
            is_silent: silent.iter().any(|it| of_silent(it) == of),
            of,
        }
    });
    (rows.collect(), others)
}

fn of_spent(spent: &Spent) -> Option<EventType> {
    Some(EventType::new(spent.route.clone(), spent.kind.clone()?))
}

fn of_silent(silent: &Silent) -> EventType {
    EventType::new(silent.route.clone(), silent.kind.clone())
}

/// The event types that have room on a page.
pub(super) fn first(types: impl IntoIterator<Item = EventType>) -> Vec<EventType> {
    let types = types.into_iter();
    let mut types: Vec<_> = types.filter(|of| is_short(&of.kind)).collect();
    // Those of the platform come first: forged kinds must not take their rows.
    types.sort_by_key(|of| of.route != RouteName::default() || !EventKind::ALL.contains(&of.kind));
    types.truncate(KINDS);
    types
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
                                ", " (name(&event.route, &event.kind)) " " (state(event))
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
    let name = name(&row.of.route, &row.of.kind);
    let is_paused = is_paused || stats.is_some_and(|stats| stats.is_paused);
    let own = Scope::Type(row.of.clone());
    html! {
        tr {
            th scope="row" {
                (name)
                @if let Some(next) = row.slowed { " " span.badge.bad { "slowed down, next " (next_attempt(next)) } }
                @if is_paused && stats.is_some() { " " span.badge.warn { "paused" } }
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
                    @if let Some(limit) = spent.limit { (gauge(&name, spent.failures, limit)) }
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
                td { @if stats.is_some() || row.minutes.is_some() { (pause(view, &own, view.is_paused(&own))) } }
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

/// The cells of the states, by event type or for all of them.
fn states(view: &View, of: Option<&EventType>, counts: [u64; STATES.len()]) -> Markup {
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
        (states(view, Some(&row.of), counts))
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
            th scope="row" { "All kinds" }
            (states(view, None, STATES.map(|(_, _, of)| kinds.iter().map(of).sum())))
        }
    }
}

/// The buttons that pause or resume a route, if there are several.
fn routes(view: &View, stats: &Stats) -> Markup {
    let routes: BTreeSet<_> = stats.kinds.iter().map(|it| &it.route).collect();
    html! {
        @if routes.len() > 1 {
            div.row.middle {
                @for route in routes.into_iter().take(KINDS) {
                    @let of = Scope::Route(route.clone());
                    (pause(view, &of, view.is_paused(&of)))
                }
            }
        }
    }
}

/// The buttons that end the notes on handlers whose workers are away.
fn retire(view: &View, stats: &Stats) -> Markup {
    let away = stats.away();
    html! {
        @if !away.is_empty() {
            div.row.middle {
                @for (note, unseen) in away.into_iter().take(KINDS) {
                    form method="get" action=(view.url("/retire")) {
                        input type="hidden" name="of" value=(note.of);
                        button title={ (clip(&note.worker, 200)) ", last seen " (long(unseen)) " ago" } {
                            "Retire the handler of " (scope(&note.of)) "…"
                        }
                    }
                }
            }
        }
    }
}

/// The button that pauses or resumes an event type, a route, or all events.
fn pause(view: &View, of: &Scope, is_paused: bool) -> Markup {
    // The next page asks, and for the reason.
    let (action, text) = match is_paused {
        true => ("resume", "Resume"),
        false => ("pause", "Pause"),
    };
    let (id, name) = match of {
        Scope::Everything => ("all".to_owned(), "all".to_owned()),
        of => (of.to_string(), scope(of)),
    };
    // That of an event type is in its row.
    let is_named = matches!(of, Scope::Type(_));
    html! {
        form method="get" action=(view.url(format_args!("/{action}"))) {
            input type="hidden" name="of" value=(of);
            button #{ "pause-" (id) } aria-label={ (text) " " (name) } {
                (text)
                @if !is_named { " " (name) }
                "…"
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
                            td { (event_type(&problem.route, problem.kind.as_ref())) }
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
