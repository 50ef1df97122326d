//! The first page: each event type, and the newest problems.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use tower_webhook::EventType;
use tower_webhook::inbox::{Action, BlockedLane, Cause, Causes, Inbox, Scope, Stats};
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::{FailureBudget, Silent, Spent};

use super::super::lately::Lately;
use super::super::settings::Console;
use super::actions::running;
use super::causes::{causes, show};
use super::events::waiting;
use super::kinds::{self, first, table};
use super::parts::{cause_of, chat, event_type, head, reason, state};
use super::text::{ago, clip, count, long, name, scope, time};
use super::view::View;

/// The number of problems that are shown.
const PROBLEMS: usize = 10;
const PROBLEMS_BESIDE_CAUSES: usize = 3;

/// The number of outcomes that are shown.
const OUTCOMES: usize = 30;

/// The most routes and handlers that have a button.
const BUTTONS: usize = 10;

/// The age from which on that of the counts is shown.
const SOME_TIME: Duration = Duration::from_secs(5);

/// What the observers know.
pub(super) struct Observed {
    pub(super) spent: Vec<Spent>,
    pub(super) silent: Vec<Silent>,
    pub(super) slowed: BTreeMap<EventType, SystemTime>,
}

impl Observed {
    pub(super) fn by(console: &Console, lately: &Lately) -> Self {
        let spent = console.budget.as_ref().map(FailureBudget::spent);
        let slowed = console.inbox.as_ref().map(Inbox::slowed);
        Self {
            spent: spent.unwrap_or_default(),
            silent: lately.silent.clone(),
            slowed: slowed.unwrap_or_default(),
        }
    }
}

pub(in super::super) fn overview(
    view: &View,
    error: Option<&StoreError>,
    blocked: &[BlockedLane],
    changes: &[Action],
    lately: &Lately,
    why: Option<&(Causes, Duration)>,
) -> Markup {
    let stats = view.stats();
    let console = &view.console;
    let observed = Observed::by(console, lately);
    let all = kinds::rows(stats, &observed, lately);
    let routes = stats.filter(|_| view.can_change());
    let routes = routes.map(|stats| kinds::routes(view, stats, &all, BUTTONS));
    let (rows, others) = first(all);
    let is_paused = stats.is_some_and(Stats::is_paused);
    let causes = causes(view, stats, error, &observed, lately);
    let content = html! {
        div #alerts data-live role="status" { (show(view, stats, &causes)) }
        div.title {
            h1 { "Overview" }
            @if view.can_change() { (pause(view, &Scope::Everything, is_paused)) }
        }
        div #age data-live { (ages(view, lately, why)) }
        div.stack {
            section {
                div.head {
                    h2 { "Event types" }
                    @if console.inbox.is_some() { a.end href=(view.url("/kinds")) { "All types" } }
                }
                div #kinds-table data-live {
                    (table(view, &rows, stats, false))
                    (kinds::others(view, &others))
                    @if let Some(routes) = routes { (routes) }
                    @if let Some(stats) = stats.filter(|_| view.can_change()) { (retire(view, stats)) }
                }
            }
            div #causes data-live { @if let Some((why, _)) = why { (failed(view, why)) } }
            div #changes data-live { @if !changes.is_empty() { (running(view, changes)) } }
            div #blocked data-live { @if !blocked.is_empty() { (worst(view, blocked)) } }
            @if console.inbox.is_some() || console.recent.is_some() {
                section {
                    div.head { h2 { "Responses, last hour" } a.end href=(view.url("/refusals")) { "Refusals" } }
                    div #answers data-live { (answers(view, lately)) }
                }
            }
            @if let Some(recent) = &console.recent {
                section {
                    h2 { "Newest problems" @if console.inbox.is_some() { " of deliveries to this process" } }
                    div #problems data-live { (problems(view, &recent.problems())) }
                }
            }
        }
    };
    view.page("Overview", "/", &content)
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
                            td.wide { (reason(view, event.last_failure.as_ref(), 160)) }
                        }
                    }
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
                @for (note, unseen) in away.into_iter().take(BUTTONS) {
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
pub(super) fn pause(view: &View, of: &Scope, is_paused: bool) -> Markup {
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

/// The deliveries and refused requests by their outcome.
fn answers(view: &View, lately: &Lately) -> Markup {
    let mut answers: Vec<_> = lately.responses.iter().collect();
    answers.sort_by_key(|(_, number)| Reverse(**number));
    html! {
        @if answers.is_empty() { p.quiet { "None." } }
        @else {
            ul.tiles {
                @for ((is_refused, outcome), number) in answers.into_iter().take(OUTCOMES) {
                    li { b class=[is_refused.then_some("bad")] { (count(*number)) } " " (clip(outcome, 60)) }
                }
            }
        }
        @if lately.is_own && view.console.inbox.is_some() {
            p.quiet { "Those of this process: those of the others cannot be read." }
        }
    }
}

/// How old the numbers are, if that matters.
fn ages(view: &View, lately: &Lately, why: Option<&(Causes, Duration)>) -> Markup {
    let of_events = view.counted.as_ref().map(|(_, age)| *age);
    let ages = [
        ("events", of_events),
        ("the last hour", Some(lately.age)),
        ("causes", why.map(|(_, age)| *age)),
    ];
    let old = ages
        .into_iter()
        .filter_map(|(of, age)| Some((of, age.filter(|age| *age >= SOME_TIME)?)));
    html! {
        @if view.console.inbox.is_none() { p.quiet { "Without an inbox, all numbers are those of this process." } }
        @for (of, age) in old { p { "The numbers of " (of) " were counted " b { (long(age)) " ago" } "." } }
    }
}

/// Why events have failed, by cause.
fn failed(view: &View, why: &Causes) -> Markup {
    let all = view.events(&[("state", "failed")]);
    html! {
        @if !why.causes.is_empty() {
            section {
                div.head { h2 { "Why events have failed" } a.end href=(all) { "All that have failed" } }
                table {
                    (head(&["#Events", "#Chats", "First", "Last", "Type", "Reason"]))
                    tbody { @for cause in &why.causes { (row(view, cause, why.is_more)) } }
                }
                @if why.others > 0 {
                    p { a href=(all) { @if why.is_more { "At least " } (count(why.others)) " more" } " have failed for other reasons." }
                }
                @if why.is_more { p.quiet { "Of the newest " (count(why.events)) " that have failed." } }
            }
        }
    }
}

/// `is_more` if older events may have the cause, too.
fn row(view: &View, cause: &Cause, is_more: bool) -> Markup {
    let least = if is_more { "at least " } else { "" };
    let shape = cause.shape.map(|shape| shape.to_string());
    let mut query = vec![
        ("state", "failed"),
        ("route", cause.route.as_str()),
        ("kind", cause.kind.as_str()),
    ];
    query.extend(shape.as_deref().map(|shape| ("shape", shape)));
    html! {
        tr {
            td.number data-label="Events" { a href=(view.events(&query)) { (least) (count(cause.events)) } }
            td.number data-label="Chats" { (least) (count(cause.chats)) }
            td data-label="First" { (time(cause.first)) }
            td data-label="Last" { (time(cause.last)) }
            td { (name(&cause.route, &cause.kind)) }
            td.wide {
                @if shape.is_none() { "Various reasons, such as " }
                (cause_of(view, &cause.outcome, &cause.reason, 140))
            }
        }
    }
}

fn problems(view: &View, problems: &[tower_webhook::telemetry::Problem]) -> Markup {
    let has_inbox = view.console.inbox.is_some();
    // Why attempts of an inbox failed is shown for all processes.
    let problems: Vec<_> = problems
        .iter()
        .filter(|it| !(has_inbox && it.is_from_inbox))
        .collect();
    let most = if has_inbox {
        PROBLEMS_BESIDE_CAUSES
    } else {
        PROBLEMS
    };
    html! {
        @if problems.is_empty() { p.quiet { "None." } }
        @else {
            table {
                (head(&["Last", "#Times", "Outcome", "Type", "Reason"]))
                tbody {
                    @for problem in problems.iter().take(most) {
                        tr {
                            td { (time(problem.at)) }
                            td.number data-label="Times" { (count(problem.count)) }
                            td { b.bad { (problem.outcome) } }
                            td { (event_type(&problem.route, problem.kind.as_ref())) }
                            td.wide {
                                @if view.console.hides_payloads { span.quiet { "hidden" } }
                                @else { (clip(&problem.reason, 140)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
