//! The list of events, and one event with its attempts, responses and payload.

use axum::http::HeaderMap;
use maud::{Markup, html};
use serde_json::Value;
use tower_webhook::event::EventKind;
use tower_webhook_sandbox::{
    Attempt, AttemptId, AttemptResponse, EventFilter, EventId, EventReport, EventState,
};

use super::document;
use super::overview::last_result;
use super::parts::{STATES, action, chat, clip, full_time, result, slug, state, time, took};
use crate::desk::{Desk, Notice};

const MAX_EVENTS: usize = 30;
const MAX_ATTEMPTS: usize = 25;
/// The longest payload, headers and body, in bytes of HTML.
const MAX_PAYLOAD: usize = 8_000;
const MAX_RESPONSE: usize = 5_000;

/// A page of the list of events.
pub(crate) struct List {
    pub(crate) filter: EventFilter,
    /// The last event of the page before.
    pub(crate) after: Option<EventId>,
}

impl List {
    /// Events that wait are listed oldest first: the oldest one is lost next.
    fn is_oldest_first(&self) -> bool {
        self.filter.state == Some(EventState::Waiting)
    }

    fn url(&self, after: Option<EventId>) -> String {
        let mut query = Vec::new();
        if let Some(kind) = &self.filter.kind {
            query.push(format!("kind={kind}"));
        }
        if let Some(chat) = &self.filter.chat {
            let chat: String = form_urlencoded(chat);
            query.push(format!("chat={chat}"));
        }
        if let Some(state) = self.filter.state {
            query.push(format!("state={}", slug(state)));
        }
        query.extend(after.map(|after| format!("after={after}")));
        format!("/events?{}", query.join("&"))
    }
}

fn form_urlencoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

pub(crate) fn events(desk: &Desk, notice: Option<&Notice>, list: &List) -> Markup {
    let sandbox = desk.sandbox();
    let all = sandbox.count(&list.filter);
    let (mut events, order) = match list.is_oldest_first() {
        true => (
            sandbox.oldest(&list.filter, list.after, MAX_EVENTS + 1),
            "oldest first",
        ),
        false => (
            sandbox.newest(&list.filter, list.after, MAX_EVENTS + 1),
            "newest first",
        ),
    };
    let has_more = events.len() > MAX_EVENTS;
    events.truncate(MAX_EVENTS);
    let content = html! {
        h1.title { "Events" }
        div.stack {
            section aria-label="Filter" { (filter_form(&list.filter)) }
            section aria-label="Events" {
                div #events data-live {
                    @if events.is_empty() {
                        p.quiet { "No event matches." }
                    } @else {
                        (event_table(&events, &format!("{} of {all}, {order}. Times are UTC.", events.len())))
                    }
                    @if list.after.is_some() || has_more {
                        nav.pages aria-label="Pages of events" {
                            @if list.after.is_some() { a #first href=(list.url(None)) { "First page" } }
                            @if has_more {
                                a #next href=(list.url(events.last().map(|event| event.id))) { "Next page" }
                            }
                        }
                    }
                }
            }
        }
    };
    document(desk, "Events", "/events", notice, &content)
}

fn event_table(events: &[EventReport], caption: &str) -> Markup {
    html! {
        table {
            caption { (caption) }
            thead { tr {
                th scope="col" { "Event" } th scope="col" { "Chat" } th scope="col" { "Created" }
                th scope="col" { "State" } th.number scope="col" { "Attempts" } th scope="col" { "Last result" }
                th scope="col" { "Action" }
            } }
            tbody {
                @for event in events {
                    tr {
                        td { a id={ "event-" (event.id) } href={ "/events/" (event.id) } { (event.id) } " " (event.kind) }
                        td { (chat(event)) }
                        td { (time(event.arose_at)) }
                        td { (state(event)) }
                        td.number data-label="Attempts" { (event.attempts.len()) }
                        td.wide { (last_result(event)) }
                        td.end { (action(event)) }
                    }
                }
            }
        }
    }
}

pub(super) fn filter_form(filter: &EventFilter) -> Markup {
    html! {
        form.row method="get" action="/events" role="search" aria-label="Find events" {
            div.grow.narrow {
                label for="kind" { "Kind" }
                select #kind name="kind" autocomplete="off" {
                    option value="" { "All kinds" }
                    @for kind in EventKind::ALL {
                        option value=(kind) selected[filter.kind.as_ref() == Some(&kind)] { (kind) }
                    }
                }
            }
            div.grow.narrow {
                label for="state" { "State" }
                select #state name="state" autocomplete="off" {
                    option value="" { "All states" }
                    @for state in STATES {
                        option value=(slug(state)) selected[filter.state == Some(state)] { (state) }
                    }
                }
            }
            div.grow.narrow {
                label for="chat" { "Chat" }
                input #chat name="chat" value=[&filter.chat] maxlength="200" autocomplete="off" spellcheck="false";
            }
            button #show-events { "Show events" }
        }
    }
}

/// Which part of an event's page is shown.
#[derive(Default)]
pub(crate) struct EventView {
    /// The attempt whose response is shown; by default the latest one.
    pub(crate) attempt: Option<AttemptId>,
    /// Only older attempts than this one are listed.
    pub(crate) before: Option<AttemptId>,
}

pub(crate) fn event(
    desk: &Desk,
    notice: Option<&Notice>,
    event: &EventReport,
    view: &EventView,
) -> Markup {
    let shown = match view.attempt {
        Some(id) => event.attempts.iter().find(|attempt| attempt.id == id),
        None => event.attempts.last(),
    };
    let content = html! {
        h1.title { "Event " (event.id) ": " (event.kind) }
        div.split.even {
            div {
                section aria-labelledby="facts" {
                    div.head {
                        h2 #facts { "State" }
                        div.end #action data-live { (action(event)) }
                    }
                    div #state data-live { p { (state(event)) } }
                    dl {
                        dt { "Chat" } dd { (chat(event)) }
                        dt { "Created" } dd { (full_time(event.arose_at)) }
                        dt { "Key" } dd { @match &event.key { Some(key) => code { (key) }, None => "none" } }
                    }
                }
                section aria-labelledby="attempts-title" {
                    h2 #attempts-title { "Attempts" }
                    div #attempts data-live { (attempts(event, view, shown)) }
                }
                section aria-labelledby="response-title" {
                    h2 #response-title { "Response" }
                    div #response data-live { (response_to(shown)) }
                }
            }
            div {
                section aria-labelledby="payload" {
                    h2 #payload { "Payload" }
                    (payload(event))
                }
            }
        }
    };
    document(
        desk,
        &format!("Event {}", event.id),
        "/events",
        notice,
        &content,
    )
}

fn attempts(event: &EventReport, view: &EventView, shown: Option<&Attempt>) -> Markup {
    let is_listed = |attempt: &&Attempt| view.before.is_none_or(|before| attempt.id < before);
    let listed: Vec<_> = event.attempts.iter().rev().filter(is_listed).collect();
    let (page, rest) = listed.split_at(listed.len().min(MAX_ATTEMPTS));
    let url = format!("/events/{}", event.id);
    if event.attempts.is_empty() {
        return html! { p.quiet { "There are no attempts yet." } };
    }
    html! {
        table {
            caption { (page.len()) " of " (event.attempts.len()) ", newest first. Times are UTC." }
            thead { tr {
                th scope="col" { "Time" } th scope="col" { "Result" } th.number scope="col" { "Took" } th scope="col" { "Response" }
            } }
            tbody {
                @for attempt in page {
                    @let is_shown = shown.is_some_and(|shown| shown.id == attempt.id);
                    tr.current[is_shown] {
                        td { (time(attempt.at)) }
                        td.wide { (result(attempt)) }
                        td.number { (took(attempt)) }
                        td {
                            @if is_shown { "below" } @else if attempt.response.is_some() {
                                a id={ "show-" (attempt.id) } href={ (url) "?attempt=" (attempt.id) "#response-title" }
                                    aria-label={ "Show the response of attempt " (attempt.id) } { "show" }
                            }
                        }
                    }
                }
            }
        }
        @if view.before.is_some() || !rest.is_empty() {
            nav.pages aria-label="Pages of attempts" {
                @if view.before.is_some() { a #newest href=(url) { "Newest attempts" } }
                @if let (Some(last), false) = (page.last(), rest.is_empty()) {
                    a #older href={ (url) "?before=" (last.id) } { "Older attempts" }
                }
            }
        }
    }
}

fn response_to(attempt: Option<&Attempt>) -> Markup {
    html! {
        @match attempt.map(|attempt| (attempt, &attempt.response)) {
            None => p.quiet { "There is no attempt yet." },
            Some((attempt, None)) => p.quiet {
                "The attempt at " (time(attempt.at)) " has no response, or it is not kept any more: "
                (result(attempt))
            },
            Some((attempt, Some(response))) => {
                p { "To the attempt at " (time(attempt.at)) ": " (result(attempt)) }
                (response_parts(response))
            }
        }
    }
}

fn response_parts(response: &AttemptResponse) -> Markup {
    let headers = lines(&response.headers);
    let (headers, has_all) = clip(&headers, MAX_RESPONSE);
    let body = String::from_utf8_lossy(&response.body);
    let (body, is_whole) = clip(&body, MAX_RESPONSE);
    html! {
        pre #response-headers tabindex="0" aria-label="Response headers" {
            (response.status) "\n" (headers) @if !has_all { "…" }
        }
        @if body.is_empty() {
            p.quiet { "The body is empty." }
        } @else {
            p.quiet.small {
                @if is_whole && response.is_whole { "Body" } @else { "The first " (body.len()) " bytes of the body" }
            }
            pre #response-body { (body) }
        }
    }
}

fn lines(headers: &HeaderMap) -> String {
    headers
        .iter()
        .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())))
        .collect()
}

fn payload(event: &EventReport) -> Markup {
    // Indented, a body of brackets and commas takes up to 128 times its bytes, so only what may be shown is read.
    let read = &event.body[..event.body.len().min(6 * MAX_PAYLOAD)];
    let text = serde_json::from_slice::<Value>(read)
        .and_then(|json| serde_json::to_string_pretty(&json))
        .unwrap_or_else(|_| String::from_utf8_lossy(read).into_owned());
    let (start, is_whole) = clip(&text, MAX_PAYLOAD);
    let is_whole = is_whole && read.len() == event.body.len();
    html! {
        @if !is_whole {
            p.small {
                span.quiet { "This is the beginning of " (event.body.len()) " bytes. " }
                a href={ "/events/" (event.id) "/payload" } { "The whole payload" }
            }
        }
        pre #payload-text { (start) @if !is_whole { "…" } }
    }
}
