//! What operators and others did, and jobs.

use maud::{Markup, html};
use tower_webhook::inbox::internal::Scope;
use tower_webhook::inbox::{Action, ActionKind, Job, JobState};

use super::super::bulk::Counted;
use super::super::request::Search;
use super::events::{counted, label};
use super::parts::head;
use super::text::{ago, clip, count, full_time};
use super::view::View;

/// A page of the actions, newest first. `is_more` says whether older ones follow.
pub(in super::super) fn actions(view: &View, actions: &[Action], is_more: bool) -> Markup {
    let content = html! {
        div.title { h1 { "Actions" } }
        section {
            p.quiet { "Who changed what, and why, newest first. Actions are kept for 90 days." }
            div #rows data-live {
                @if actions.is_empty() { p { "None." } }
                @else {
                    table {
                        (head(&["When", "Who", "What", "Of what", "#Changed", "Reason"]))
                        tbody {
                            @for action in actions {
                                tr {
                                    td { (full_time(action.at)) }
                                    td.wide { (who(action)) }
                                    td { (action.kind) }
                                    td.wide { (of(view, action)) }
                                    td.number data-label="Changed" { (count(action.changed)) }
                                    td.wide { (reason(view, action)) }
                                }
                            }
                        }
                    }
                }
            }
            @if is_more && let Some(last) = actions.last() {
                div.pages { a href=(view.url(format_args!("/actions?before={}", last.number))) rel="next" { "Older actions" } }
            }
        }
    };
    view.page("Actions", "/actions", &content)
}

/// The actions that changed an event, which are sorted from the newest to the oldest.
pub(super) fn of_event(view: &View, actions: &[Action]) -> Markup {
    html! {
        ol.timeline {
            @for action in actions.iter().rev() {
                li {
                    (full_time(action.at)) " " b { (action.kind) } " by " (who(action)) ", " (ago(action.at)) " ago"
                    @if action.job.is_some() { ", in " (link(view, action.number)) }
                    @if !action.by.reason().is_empty() { ": " (reason(view, action)) }
                }
            }
        }
    }
}

fn who(action: &Action) -> Markup {
    html! {
        @match action.by.who() {
            "" => span.quiet { "somebody unknown" },
            who => (clip(who, 200)),
        }
    }
}

fn of(view: &View, action: &Action) -> Markup {
    let about = action.about.as_deref().unwrap_or_default();
    html! {
        @match action.kind {
            ActionKind::Pause | ActionKind::Resume if about.is_empty() => "everything",
            ActionKind::Forget => { "the chat with the SHA-256 " (about) "…" },
            ActionKind::Cancel => @match about.parse() {
                Ok(job) => (link(view, job)),
                Err(_) => (clip(about, 20)),
            },
            _ if action.job.is_some() => {
                (link(view, action.number))
                @if let Some(job) = &action.job { " (" (state(job)) ")" }
                @if let Some(scope) = Scope::of(action) {
                    @let search = Search::of_job(&scope.filter);
                    @for (field, value) in shown(view, &search) { ", " (label(field).to_lowercase()) " " (clip(value, 60)) }
                }
            },
            _ => @match action.event {
                Some(event) => a href=(view.url(format_args!("/events/{event}"))) { "event " (event) },
                None if action.about.is_some() => (clip(about, 200)),
                None => span.quiet { "an event of a chat that was forgotten" },
            },
        }
    }
}

/// It may repeat parts of a payload.
fn reason(view: &View, action: &Action) -> Markup {
    html! {
        @match (action.by.reason(), view.console.hides_payloads) {
            ("", _) => "",
            (_, true) => span.quiet { "(reason hidden)" },
            (reason, false) => (clip(reason, 300)),
        }
    }
}

fn link(view: &View, number: i64) -> Markup {
    html! { a href=(view.url(format_args!("/jobs/{number}"))) { "job " (number) } }
}

fn state(job: &Job) -> &'static str {
    match job.state {
        JobState::Running if job.is_held => "in progress",
        JobState::Running => "waits",
        state => state.name(),
    }
}

/// The fields of a filter, without what is hidden.
fn shown<'a>(view: &View, search: &'a Search) -> impl Iterator<Item = (&'static str, &'a str)> {
    let hides = view.console.hides_payloads;
    search
        .filled()
        .filter(move |(field, _)| !hides || *field != "error")
}

/// The jobs that are running.
pub(super) fn running(view: &View, jobs: &[Action]) -> Markup {
    html! {
        section {
            h2 { "Jobs" }
            ul {
                @for action in jobs {
                    li {
                        (link(view, action.number)) ": " (action.kind) " all that match, by " (who(action)) ", "
                        (count(action.changed)) " changed"
                        @if let Some(job) = &action.job { ", " (state(job)) }
                    }
                }
            }
        }
    }
}

/// The page of a job.
pub(in super::super) fn job(view: &View, action: &Action) -> Markup {
    let Some(job) = &action.job else {
        return html! {};
    };
    let scope = Scope::of(action);
    let is_running = job.state == JobState::Running;
    let past = match action.kind {
        ActionKind::Redrive => "redriven",
        _ => "discarded",
    };
    let content = html! {
        div.title { h1 { "Job " (action.number) ": " (action.kind) " all that match" } }
        section {
            div #job data-live {
                p role="status" {
                    @match job.state {
                        JobState::Running if job.is_held => "In progress. It continues if this page is closed, and after a restart.",
                        JobState::Running => "Waiting for other jobs to end, or for a console to continue it.",
                        JobState::Done => "Done.",
                        JobState::Cancelled => "Cancelled. Events that were changed before stay changed.",
                        JobState::Failed => "Stopped by a fault. The log has the reason.",
                        _ => (job.state.name()),
                    }
                }
                @if let Some(scope) = &scope { (progress(action, job, scope)) }
                dl {
                    dt { "Changed" } dd { (count(action.changed)) " " (past) }
                    @if let (true, Some(scope)) = (is_running, &scope) {
                        dt { "Matched" } dd { (counted(matched(scope))) }
                        dt { "Searched" } dd { "up to event " (job.reached) " of " (scope.seen.newest) }
                    }
                    dt { "Skipped" } dd { (count(job.skipped)) }
                    @if job.rate > 0 { dt { "At most" } dd { (count(job.rate.into())) " a second" } }
                    dt { "By" } dd { (who(action)) ", " (full_time(action.at)) }
                    @if !action.by.reason().is_empty() { dt { "Reason" } dd { (reason(view, action)) } }
                }
                @if is_running && view.can_change() {
                    form method="post" action=(view.url(format_args!("/jobs/{}/cancel", action.number))) {
                        button.danger #cancel { "Cancel" }
                    }
                }
                @if let Some(scope) = &scope {
                    @let search = Search::of_job(&scope.filter);
                    @let query: Vec<_> = shown(view, &search).collect();
                    p { a href=(view.events(&query)) { "Back to the list" } }
                }
            }
        }
    };
    view.page("Job", "/actions", &content)
}

fn matched(scope: &Scope) -> Counted {
    Counted {
        events: usize::try_from(scope.matched).unwrap_or(usize::MAX),
        is_more: scope.is_more,
    }
}

fn progress(action: &Action, job: &Job, scope: &Scope) -> Markup {
    let done = action.changed + job.skipped;
    html! {
        @match scope.is_more {
            false => progress value=(done.min(scope.matched)) max=(scope.matched.max(1)) aria-label="Progress" {},
            // How many there are is not known.
            true => progress value=(percent(scope.oldest.0, job.reached.0, scope.seen.newest.0)) max="100" aria-label="Progress" {},
        }
    }
}

/// The share that was searched.
fn percent(oldest: i64, reached: i64, newest: i64) -> i128 {
    let of = |to: i64| i128::from(to.clamp(oldest, newest.max(oldest))) - i128::from(oldest);
    (100 * of(reached)).checked_div(of(newest)).unwrap_or(100)
}
