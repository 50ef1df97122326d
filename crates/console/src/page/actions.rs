//! What operators and others did, and changes of all that match.

use maud::{Markup, html};
use tower_webhook::inbox::{Action, ActionKind, Bulk, BulkState, Scope, Selection};

use super::super::request::Search;
use super::events::{counted, label};
use super::parts::head;
use super::text::{ago, clip, count, full_time, scope};
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
                    @if action.bulk.is_some() { ", in " (link(view, action.number)) }
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
            ActionKind::Pause | ActionKind::Resume | ActionKind::Retire => @match about.parse::<Scope>() {
                Ok(of) => (scope(&of)),
                Err(_) => (clip(about, 200)),
            },
            ActionKind::Forget => { "the chat with the SHA-256 " (about) "…" },
            ActionKind::Cancel => @match about.parse() {
                Ok(number) => (link(view, number)),
                Err(_) => (clip(about, 20)),
            },
            _ if action.bulk.is_some() => {
                (link(view, action.number))
                @if let Some(bulk) = &action.bulk { " (" (bulk.state.name()) ")" }
                @if let Some(selection) = action.selection() {
                    @let search = Search::of_filter(&selection.filter);
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
    html! { a href=(view.url(format_args!("/actions/{number}"))) { "action " (number) } }
}

/// The fields of a filter, without what is hidden.
fn shown<'a>(view: &View, search: &'a Search) -> impl Iterator<Item = (&'static str, &'a str)> {
    let hides = view.console.hides_payloads;
    search
        .filled()
        .filter(move |(field, _)| !hides || *field != "error")
}

/// The changes of all that match that are running or interrupted.
pub(super) fn running(view: &View, changes: &[Action]) -> Markup {
    html! {
        section {
            h2 { "Changes of all that match" }
            ul {
                @for action in changes {
                    li {
                        (link(view, action.number)) ": " (action.kind) " all that match, by " (who(action)) ", "
                        (count(action.changed)) " changed"
                        @if let Some(bulk) = &action.bulk { ", " (bulk.state.name()) }
                    }
                }
            }
        }
    }
}

/// The page of a change of all that match.
pub(in super::super) fn bulk(view: &View, action: &Action) -> Markup {
    let Some(bulk) = &action.bulk else {
        return html! {};
    };
    let selection = action.selection();
    let past = match action.kind {
        ActionKind::Redrive => "redriven",
        _ => "discarded",
    };
    let url = |what| view.url(format_args!("/actions/{}/{what}", action.number));
    let content = html! {
        div.title { h1 { "Action " (action.number) ": " (action.kind) " all that match" } }
        section {
            div #change data-live {
                p role="status" {
                    @match bulk.state {
                        BulkState::Running => "In progress. It goes on if this page is closed.",
                        BulkState::Interrupted => "Interrupted: its process has ended, or cannot reach the queue.",
                        BulkState::Done => "Done.",
                        BulkState::Cancelled => "Cancelled. Events that were changed before stay changed.",
                        _ => (bulk.state.name()),
                    }
                }
                @if let Some(selection) = &selection { (progress(action, bulk, selection)) }
                dl {
                    dt { "Changed" } dd { (count(action.changed)) " " (past) }
                    @if let (true, Some(selection)) = (bulk.is_open(), &selection) {
                        dt { "Matched" } dd { (counted(selection)) }
                        dt { "Searched" } dd { "up to event " (bulk.reached) " of " (selection.seen.newest) }
                    }
                    dt { "Skipped" } dd { (count(bulk.skipped)) }
                    @if bulk.rate > 0 { dt { "At most" } dd { (count(bulk.rate.into())) " a second" } }
                    dt { "By" } dd { (who(action)) ", " (full_time(action.at)) }
                    @if !action.by.reason().is_empty() { dt { "Reason" } dd { (reason(view, action)) } }
                }
                @if bulk.is_open() && view.can_change() {
                    div.row {
                        @if bulk.state == BulkState::Interrupted {
                            form method="post" action=(url("continue")) { button.main #continue { "Continue" } }
                        }
                        form method="post" action=(url("cancel")) { button.danger #cancel { "Cancel" } }
                    }
                }
                @if let Some(selection) = &selection {
                    @let search = Search::of_filter(&selection.filter);
                    @let query: Vec<_> = shown(view, &search).collect();
                    p { a href=(view.events(&query)) { "Back to the list" } }
                }
            }
        }
    };
    view.page("Action", "/actions", &content)
}

fn progress(action: &Action, bulk: &Bulk, selection: &Selection) -> Markup {
    let done = action.changed + bulk.skipped;
    let Selection {
        seen,
        matched,
        oldest,
        ..
    } = selection;
    html! {
        @match selection.is_more {
            false => progress value=(done.min(*matched)) max=(matched.max(&1)) aria-label="Progress" {},
            // How many there are is not known.
            true => progress value=(percent(oldest.0, bulk.reached.0, seen.newest.0)) max="100" aria-label="Progress" {},
        }
    }
}

/// The share that was searched.
fn percent(oldest: i64, reached: i64, newest: i64) -> i128 {
    // `clamp` panics if its end is before its start, and 100 times a number of 64 bits needs more bits.
    let of = |to: i64| i128::from(to.clamp(oldest, newest.max(oldest))) - i128::from(oldest);
    (100 * of(reached)).checked_div(of(newest)).unwrap_or(100)
}
