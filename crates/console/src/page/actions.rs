//! What operators and others did, and changes of all that match.

use std::time::SystemTime;

use maud::{Markup, html};
use tower_webhook::inbox::{Action, ActionKind, Bulk, BulkState, EventState, Scope, Selection};

use super::super::done::Sought;
use super::super::request::Search;
use super::super::scan::Found;
use super::events::{counted, label};
use super::parts::{head, who_field};
use super::text::{ago, clip, count, full_time, scope};
use super::view::View;

/// A page of the actions that are sought, newest first, and before which one the next page goes on. A search that took too
/// long has `reached` a time.
pub(in super::super) fn actions(
    view: &View,
    sought: &Sought,
    actions: &[Action],
    next: Option<i64>,
    reached: Option<SystemTime>,
) -> Markup {
    let content = html! {
        div.title { h1 { "Actions" } }
        section {
            p.quiet { "Who changed what, and why, newest first. Actions are kept for 90 days." }
            (form(view, sought))
            div #rows data-live {
                @if actions.is_empty() && reached.is_none() { p { "None." } }
                @else if !actions.is_empty() {
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
            @if let Some(reached) = reached { p #reached { "The search has reached " (full_time(reached)) "." } }
            @if let Some(before) = next {
                @let text = if reached.is_some() { "Search older actions" } else { "Older actions" };
                div.pages { a href=(view.url(format_args!("/actions?{}before={before}", sought.query()))) rel="next" { (text) } }
            }
        }
    };
    view.page("Actions", "/actions", &content)
}

fn form(view: &View, sought: &Sought) -> Markup {
    html! {
        form method="get" action=(view.url("/actions")) {
            div.row {
                div.grow { label for="who" { "Who" } input #who name="who" value=(sought.who); }
                div.grow.narrow {
                    label for="what" { "What" }
                    select #what name="what" {
                        option value="" { "anything" }
                        @for kind in Sought::KINDS { option value=(kind) selected[kind.name() == sought.what] { (kind) } }
                    }
                }
                @for (name, value) in [("from", &sought.from), ("until", &sought.until)] {
                    div.grow.time { label for=(name) { (label(name)) } input #(name) type="datetime-local" name=(name) value=(value); }
                }
            }
            div.row.middle {
                button.main { "Find" }
                @for (name, from, until) in Sought::days() {
                    a href=(view.url(format_args!("/actions?from={from}&until={until}"))) { (name) }
                }
                a href=(view.url("/actions")) { "All" }
            }
        }
    }
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
            "" => span.quiet { "a program" },
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

/// The page of a change of all that match. `found` has the events that it has redriven, as they are now.
pub(in super::super) fn bulk(view: &View, action: &Action, found: Option<&Found>) -> Markup {
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
                        BulkState::Interrupted => "Interrupted: its process has ended, or cannot reach the database. Each receiver of the same database can continue it.",
                        BulkState::Done => "Done.",
                        BulkState::Cancelled => "Cancelled. Events that were changed before stay changed.",
                        _ => (bulk.state.name()),
                    }
                    @if let (BulkState::Cancelled, Some(selection)) = (bulk.state, &selection) { " " (left(action, bulk, selection)) }
                }
                @if let Some(selection) = &selection { (progress(action, bulk, selection)) }
                dl {
                    dt { "Changed" }
                    dd {
                        (count(action.changed))
                        @if let Some(selection) = selection.as_ref().filter(|selection| !selection.is_more) { " of " (count(selection.matched)) }
                        " " (past)
                    }
                    @if let (true, Some(selection)) = (bulk.is_open(), &selection) {
                        dt { "Matched" } dd { (counted(selection)) }
                        dt { "Searched" } dd { "up to event " (bulk.reached) " of " (selection.seen.newest) }
                    }
                    dt { "Skipped" } dd { (count(bulk.skipped)) }
                    @if bulk.rate > 0 { dt { "At most" } dd { (count(bulk.rate.into())) " a second" } }
                    dt { "By" } dd { (who(action)) ", " (full_time(action.at)) }
                    @if !action.by.reason().is_empty() { dt { "Reason" } dd { (reason(view, action)) } }
                    @if let Some(found) = found { dt { "Now" } dd #became { (became(view, action, found)) } }
                }
                @if bulk.is_open() && view.can_change() {
                    div.row {
                        @if bulk.state == BulkState::Interrupted {
                            button.main #continue form="go" formaction=(url("continue")) { "Continue" }
                        }
                        button.danger #cancel form="go" formaction=(url("cancel")) { "Cancel" }
                    }
                }
                @if let Some(selection) = &selection {
                    @let search = Search::of_filter(&selection.filter);
                    @let query: Vec<_> = shown(view, &search).collect();
                    p { a href=(view.events(&query)) { "Back to the list" } }
                }
            }
            // Outside of what is replaced each second, so that a name can be typed.
            @if bulk.is_open() && view.can_change() { form.row #go method="post" { (who_field(view)) } }
        }
    };
    view.page("Action", "/actions", &content)
}

/// What a change that was cancelled has left as it was.
fn left(action: &Action, bulk: &Bulk, selection: &Selection) -> Markup {
    let done = action.changed + bulk.skipped;
    html! {
        @match selection.is_more {
            false => { b { (count(selection.matched.saturating_sub(done))) } " of " (count(selection.matched)) " were left as they were." },
            true => {
                "Those after event " (bulk.reached) " were left as they were: about "
                (100 - percent(selection.oldest.0, bulk.reached.0, selection.seen.newest.0)) " % of the inbox."
            },
        }
    }
}

/// What became of redriven events, by their states.
fn became(view: &View, action: &Action, found: &Found) -> Markup {
    let number = action.number.to_string();
    let states = EventState::ALL.into_iter();
    let states = states.map(|state| (state, found.of(state)));
    html! {
        @for (at, (state, events)) in states.filter(|(_, events)| *events > 0).enumerate() {
            @if at > 0 { ", " }
            a href=(view.events(&[("changed", &number), ("state", state.name())])) { (count(events)) " " (state) }
        }
        @if !found.is_done { " so far (" (found.percent) " % of the inbox was searched)" }
        @if let Some(error) = &found.error { " (" (clip(error, 300)) ")" }
    }
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
