//! One chat: its events in order, and buttons for all steps.

use maud::{Markup, html};
use serde_json::Value;
use tower_webhook::event::{ChatLifecycle, EventKind};
use tower_webhook_sandbox::{EventFilter, EventReport, SimulatedChat};

use super::document;
use super::overview::last_result;
use super::parts::{MAX_TEXT, action, clip, state, time};
use crate::desk::{Desk, Notice};

const MAX_EVENTS: usize = 30;

/// The steps that a button has: the name in the URL, and the text.
const STEPS: [(&str, &str); 5] = [
    ("assign", "Assign"),
    ("open", "Open"),
    ("close", "Close"),
    ("transfer", "Transfer"),
    ("reopen", "Reopen"),
];

const RATINGS: [(&str, &str); 3] = [("bad", "Bad"), ("fair", "Fair"), ("good", "Good")];

pub(crate) fn chat(desk: &Desk, notice: Option<&Notice>, chat: &SimulatedChat) -> Markup {
    let id = chat.id();
    let filter = EventFilter {
        chat: Some(id.clone()),
        ..EventFilter::default()
    };
    let all = desk.sandbox().count(&filter);
    let mut events = desk.sandbox().newest(&filter, None, MAX_EVENTS);
    events.reverse();
    let content = html! {
        h1.title { "Chat " (id) }
        div.split {
            div {
                section aria-labelledby="events-title" {
                    div.head {
                        h2 #events-title { "Events" }
                        a.end href={ "/events?chat=" (id) } { "All in the list of events" }
                    }
                    div #events data-live { (table(&events, all)) }
                }
            }
            div {
                section aria-labelledby="about" {
                    h2 #about { "About the chat" }
                    div #facts data-live { (facts(&chat.data())) }
                }
                section aria-labelledby="steps" {
                    h2 #steps { "What happens next" }
                    (steps(&id))
                }
            }
        }
    };
    document(desk, &format!("Chat {id}"), "/events", notice, &content)
}

fn facts(chat: &ChatLifecycle) -> Markup {
    let user = chat.user.as_ref().and_then(|user| user.name.as_deref());
    let expert = chat
        .expert
        .as_ref()
        .and_then(|expert| expert.name.as_deref());
    let fact = |name: &str, value: Option<&str>| {
        html! { @if let Some(value) = value { dt { (name) } dd { (clip(value, 1_000).0) } } }
    };
    html! {
        dl {
            dt { "Status" } dd { span.badge { (chat.status.as_deref().unwrap_or("assigned")) } }
            (fact("Question", chat.question.as_deref()))
            (fact("Customer", user))
            (fact("Expert", expert))
            (fact("Language", chat.language_code.as_deref()))
            @if let Some(rating) = chat.rating { dt { "Rating" } dd { (rating) } }
            @if let Some(at) = chat.created_at { dt { "Created" } dd { (time(at)) } }
        }
    }
}

fn steps(id: &str) -> Markup {
    let url = |step: &str| format!("/chats/{id}/{step}");
    html! {
        form.row method="post" action=(url("message")) {
            div.grow.full {
                label for="message" { "Message" }
                input #message name="text" value="And when will that be?" required autocomplete="off";
            }
            button.main #from-customer name="from" value="customer" { "As the customer" }
            button #from-expert name="from" value="expert" { "As the expert" }
        }
        div.row role="group" aria-label="Steps" {
            @for (step, text) in STEPS {
                form method="post" action=(url(step)) { button id=(step) { (text) } }
            }
        }
        form method="post" action=(url("rate")) {
            div.row.middle role="group" aria-label="Rate the chat" {
                span.quiet { "Rate:" }
                @for (rating, text) in RATINGS {
                    button id={ "rate-" (rating) } name="rating" value=(rating) { (text) }
                }
            }
        }
    }
}

fn table(events: &[EventReport], all: usize) -> Markup {
    if events.is_empty() {
        return html! { p.quiet { "The chat has no events yet." } };
    }
    html! {
        table {
            caption { "The latest " (events.len()) " of " (all) ", in order. Times are UTC." }
            thead { tr {
                th scope="col" { "Created" } th scope="col" { "Event" } th scope="col" { "Content" }
                th scope="col" { "State" } th scope="col" { "Last result" } th scope="col" { "Action" }
            } }
            tbody {
                @for event in events {
                    tr {
                        td { (time(event.arose_at)) }
                        td { a id={ "event-" (event.id) } href={ "/events/" (event.id) } { (event.id) } " " (event.kind) }
                        td.wide { (content(event)) }
                        td { (state(event)) }
                        td.wide { (last_result(event)) }
                        td.end { (action(event)) }
                    }
                }
            }
        }
    }
}

/// The text of a message, or the value of a rating.
fn content(event: &EventReport) -> Markup {
    let Ok(payload) = serde_json::from_slice::<Value>(&event.body) else {
        return html! { span.quiet { "not JSON" } };
    };
    html! {
        @if event.kind == EventKind::MESSAGE_CREATED {
            @let who = match payload["isUser"].as_bool() { Some(false) => "Expert", _ => "Customer" };
            @let (text, is_whole) = clip(payload["text"].as_str().unwrap_or_default(), MAX_TEXT);
            span.quiet { (who) ": " } (text) @if !is_whole { "…" }
        } @else if event.kind == EventKind::CHAT_RATED {
            @if let Some(rating) = payload["rating"].as_f64() { span.quiet { "Rating: " } (rating) }
        }
    }
}
