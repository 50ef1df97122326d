//! Lists of events, blocked lanes, and changes of all that match.

use maud::{Markup, html};
use tower_webhook::inbox::{BlockedLane, EventId, EventState, EventSummary, Selection};

use super::super::reading::More;
use super::super::request::Search;
use super::parts::{chat, head, kinds, reason, reason_field, state};
use super::text::{ago, clip, count, encode, name, size, time};
use super::view::View;

/// What was wrong with the events that were selected in a list, or with its filter.
#[derive(Clone, Copy)]
pub(in super::super) struct Wrong<'a> {
    pub(in super::super) reason: &'a str,
    pub(in super::super) checked: &'a [EventId],
}

pub(in super::super) fn events(
    view: &View,
    search: &Search,
    rows: &[EventSummary],
    more: More,
    wrong: Option<Wrong<'_>>,
) -> Markup {
    let query = search.query();
    let checked = wrong.map_or(&[][..], |wrong| wrong.checked);
    let content = html! {
        @if let Some(wrong) = wrong {
            div.alert role="alert" {
                p { (clip(wrong.reason, 1_000)) }
                a href=(view.url("/")) { "Back to the overview" }
            }
        }
        div.title { h1 { "Events" } }
        div.stack {
            section { (form(view, search)) }
            section #found {
                // A search that has found nothing yet goes on, so it does not say that no event matches.
                @if rows.is_empty() && !matches!(more, More::Search(..)) { p { @if wrong.is_none() { "No event matches." } @else { "No list." } } }
                @else if !rows.is_empty() {
                    @if view.can_change() {
                        form #selected method="post" action=(view.url("/selected")) {
                            input type="hidden" name="query" value=(query);
                            div #rows { (table(view, rows, Columns::WithBoxes(checked))) }
                            div.row.middle {
                                span { "Selected:" }
                                (reason_field(view))
                                button name="action" value="redrive" { "Redrive" }
                                button.danger.apart name="action" value="discard" formnovalidate { "Discard…" }
                            }
                        }
                    } @else {
                        // A search adds rows.
                        div #rows data-live[!matches!(more, More::Search(..))] { (table(view, rows, Columns::All)) }
                    }
                }
                (rest(&view.url(format_args!("/events?{query}")), more, !search.after.is_empty()))
            }
        }
    };
    view.page("Events", "/events", &content)
}

/// The links below a list, whose URL has a query.
pub(super) fn rest(list: &str, more: More, has_first: bool) -> Markup {
    html! {
        div #rest {
            @if let More::Search(last, percent) = more {
                p { (percent) " % were searched, and event " (last) " was reached." }
            } @else if has_first && matches!(more, More::Nothing) {
                p.quiet { "This is the end: all was searched." }
            }
            div.pages {
                @if has_first { a href=(list) { "First page" } }
                @match more {
                    More::Nothing => "",
                    More::Page(last) => a href={ (list) "&after=" (last) } rel="next" { "Next page" },
                    More::Search(last, _) => a href={ (list) "&after=" (last) } rel="next" data-search { "Continue search" },
                }
            }
        }
    }
}

fn form(view: &View, search: &Search) -> Markup {
    let states = EventState::ALL.into_iter().map(EventState::name);
    let option = |value: &str, chosen: &str, text: &str| {
        html! { option value=(value) selected[value == chosen] { (text) } }
    };
    html! {
        form method="get" action=(view.url("/events")) {
            div.row {
                div.grow.narrow {
                    label for="state" { "State" }
                    select #state name="state" {
                        (option("", &search.state, "any"))
                        (option("failed", &search.state, "failed: retrying or dead"))
                        (option("unsettled", &search.state, "unsettled: to be handled"))
                        @for name in states { (option(name, &search.state, name)) }
                    }
                }
                div.grow {
                    label for="route" { "Route" }
                    input #route name="route" value=(search.route);
                }
                div.grow {
                    label for="kind" { "Type" }
                    input #kind name="kind" list="kinds" value=(search.kind);
                    (kinds())
                }
                div.grow { label for="chat" { "Chat" } input #chat name="chat" value=(search.chat); }
                @if !view.console.hides_payloads {
                    div.grow { label for="error" { "Error contains" } input #error name="error" value=(search.error); }
                    div.grow { label for="payload" { "Payload contains" } input #payload name="payload" value=(search.payload); }
                }
                @if !search.shape.is_empty() {
                    div.grow { label for="shape" { "Cause" } input #shape name="shape" value=(search.shape); }
                }
                div.grow { label for="key" { "Key" } input #key name="key" value=(search.key); }
                @if !search.changed.is_empty() {
                    div.grow.narrow { label for="changed" { (label("changed")) } input #changed name="changed" value=(search.changed); }
                }
                div.grow.narrow {
                    label for="hours" { "Within" }
                    select #hours name="hours" {
                        (option("", &search.hours, "any time"))
                        (option("1", &search.hours, "1 hour"))
                        (option("24", &search.hours, "24 hours"))
                        (option("168", &search.hours, "7 days"))
                    }
                }
                @for (name, text, value) in [("from", "Since (UTC)", &search.from), ("until", "Until (UTC)", &search.until)] {
                    div.grow.time { label for=(name) { (text) } input #(name) type="datetime-local" name=(name) value=(value); }
                }
                div.grow.narrow {
                    label for="order" { "Order" }
                    select #order name="order" {
                        (option("", &search.order, "newest first"))
                        (option("oldest", &search.order, "oldest first"))
                    }
                }
            }
            p.quiet.small { "Times are those of acceptance, and with the state " i { "failed" } ", of the last failure." }
            div.row.middle {
                button.main { "Find" }
                @for (format, text) in [("csv", "Export CSV"), ("jsonl", "Export JSON Lines")] {
                    button formaction=(view.url("/export")) name="format" value=(format) { (text) }
                }
                @if view.can_change() {
                    @if !search.payload.is_empty() {
                        span.quiet { "To change all that match, leave out the text in the payload." }
                    } @else {
                        @let all = |action, text, class| html! {
                            button class=(class) formaction=(view.url("/all")) name="action" value=(action) { (text) }
                        };
                        (all("redrive", "Redrive all…", ""))
                        (all("discard", "Discard all…", "danger apart"))
                    }
                }
            }
        }
    }
}

/// The columns of a table of events.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Columns<'a> {
    All,
    /// With boxes to select events, of which these are checked.
    WithBoxes(&'a [EventId]),
    /// Without the chat, which the page is about.
    OfChat,
}

pub(super) fn table(view: &View, rows: &[EventSummary], columns: Columns<'_>) -> Markup {
    let checked = match columns {
        Columns::WithBoxes(checked) => Some(checked),
        _ => None,
    };
    let has_chat = columns != Columns::OfChat;
    let select = if checked.is_some() { "Select" } else { "" };
    let chats = if has_chat { "Chat" } else { "" };
    html! {
        table {
            (head(&[select, "Event", "Accepted", "Type", chats, "State", "Failures"]))
            tbody {
                @for event in rows {
                    tr {
                        @if let Some(checked) = checked {
                            // With the state that the operator sees: an event that has changed since is left alone.
                            td { input type="checkbox" name="id" checked[checked.contains(&event.id)] value={ (event.id) ":" (event.state) } aria-label={ "Select " (event.id) }; }
                        }
                        td { a href=(view.url(format_args!("/events/{}", event.id))) { (event.id) } }
                        td { (time(event.accepted_at)) }
                        td { (name(&event.route, &event.kind)) }
                        @if has_chat { td.wide { (chat(view, event.chat.as_deref())) } }
                        td { (state(event)) }
                        td.wide {
                            @if event.failures > 0 { (event.failures) " × " }
                            // A failure may not have counted. Those before a redrive are on the event's own page.
                            @if event.failures > 0 || event.state == EventState::Retrying { (reason(view, event.last_failure.as_ref(), room(event))) }
                        }
                    }
                }
            }
        }
    }
}

/// How many bytes of HTML the reason of a failure may take in a row: what its chat and its kind leave.
fn room(event: &EventSummary) -> usize {
    let chat = event.chat.as_deref().unwrap_or_default();
    let [chat_size, kind_size] = [chat, event.kind.as_str()].map(|text| size(&clip(text, 60)));
    let used = encode(chat).len() + chat_size + kind_size;
    240_usize.saturating_sub(used).max(40)
}

pub(in super::super) fn lanes(view: &View, lanes: &[BlockedLane], is_more: bool) -> Markup {
    let content = html! {
        div.title { h1 { "Blocked lanes" } }
        section {
            p.quiet { "A lane is the line of a chat's events. These are blocked by an event that has failed: it is tried again, or is a dead letter that holds its lane. Later events wait for it." }
            div #lanes data-live {
                @if lanes.is_empty() { p { "None." } }
                @else {
                    table {
                        (head(&["Chat", "Blocked by", "Type", "For", "State", "#Waiting behind it"]))
                        tbody {
                            @for lane in lanes {
                                @let head = &lane.event;
                                tr {
                                    td.wide { (chat(view, head.chat.as_deref())) }
                                    td data-label="Blocked by" { a href=(view.url(format_args!("/events/{}", head.id))) { "event " (head.id) } }
                                    td { (name(&head.route, &head.kind)) }
                                    td data-label="For" { (ago(lane.since)) }
                                    td { (state(head)) }
                                    td.number data-label="Waiting" { (waiting(lane)) }
                                }
                            }
                        }
                    }
                }
            }
            @if is_more && let Some(last) = lanes.last() {
                div.pages { a href=(view.url(format_args!("/lanes?after={}", last.event.id))) rel="next" { "Next page" } }
            }
            p { a href=(view.url("/gaps")) { "Incomplete chats" } " have an event, but not the one that is expected with it." }
        }
    };
    view.page("Lanes", "/lanes", &content)
}

/// The events that wait behind the one that blocks a lane.
pub(super) fn waiting(lane: &BlockedLane) -> String {
    match lane.waiting {
        0 => "no event".to_owned(),
        1 => "1 event".to_owned(),
        BlockedLane::MOST_WAITING.. => {
            format!("at least {} events", count(BlockedLane::MOST_WAITING))
        }
        other => format!("{other} events"),
    }
}

pub(super) fn counted(selection: &Selection) -> String {
    let number = count(selection.matched);
    match selection.is_more {
        true => format!("at least {number} events"),
        false if selection.matched == 1 => "1 event".to_owned(),
        false => format!("{number} events"),
    }
}

/// What a field of the filter is called.
pub(super) fn label(field: &str) -> &str {
    match field {
        "state" => "State",
        "route" => "Route",
        "kind" => "Type",
        "chat" => "Chat",
        "key" => "Key",
        "hours" => "Within hours",
        "from" => "Since (UTC)",
        "until" => "Until (UTC)",
        "error" => "Error contains",
        "shape" => "Cause",
        "payload" => "Payload contains",
        "changed" => "Changed by action",
        other => other,
    }
}
