//! The page. `maud` escapes all texts in it.

use std::time::{Duration, UNIX_EPOCH};

use maud::{DOCTYPE, Markup, html};
use serde_json::Value;
use tower_webhook::event::Timestamp;
use tower_webhook::sandbox::{
    ApiKey, Attempt, AttemptResult, EventReport, EventState, Report, WebhookStatus,
};

use crate::desk::{Desk, MAX_RATE, Notice, STEP};

/// How many waiting events are shown at most.
const MAX_WAITING: usize = 20;

pub(crate) fn index(desk: &Desk, notice: Option<&Notice>) -> Markup {
    let sandbox = desk.sandbox();
    let report = sandbox.report();
    let attempts = desk.attempts();
    let content = html! {
        @if let Some(notice) = notice { (said(notice)) }
        div.columns {
            section aria-labelledby="chats" {
                h2 #chats { "Chats" }
                form method="post" action="/chats" {
                    div.row {
                        div.grow {
                            label for="text" { "First message" }
                            input #text name="text" value="Where is my parcel?" autocomplete="off";
                        }
                        button.main #start-chat { "Start a chat" }
                    }
                }
                form method="post" action="/rate" {
                    div.row {
                        div.grow {
                            label for="rate" { "Events of generated chats per minute" }
                            input #rate name="rate" type="number" min="0" max=(MAX_RATE) required
                                value=(desk.rate()) autocomplete="off";
                        }
                        button #set-rate { "Set" }
                    }
                }
            }
            section aria-labelledby="clock-title" {
                h2 #clock-title { "The platform's clock" }
                p #clock data-live {
                    (time(sandbox.now())) " UTC"
                    @match desk.steps_ahead() {
                        0 => {}
                        steps => { ", " (minutes(steps)) " minutes left to advance" }
                    }
                }
                form.row method="post" action="/forward" aria-label="Advance the clock" {
                    button #forward-10 name="steps" value="1" { "+ 10 minutes" }
                    button #forward-60 name="steps" value="6" { "+ 1 hour" }
                    button #forward-day name="steps" value="144" { "+ 1 day" }
                }
                p.quiet { "The clock advances from one round of retries to the next, every 10 minutes." }
            }
            section aria-labelledby="availability-title" {
                h2 #availability-title { "Availability" }
                @let available = sandbox.is_available();
                p { "The Admin API at " code { "/graphql" } " reports that chat is "
                    strong #availability { @if available { "available" } @else { "unavailable" } } "." }
                form method="post" action="/availability" {
                    button #switch-availability name="available" value=(!available) {
                        @if available { "Make it unavailable" } @else { "Make it available" }
                    }
                }
            }
        }
        (keys(&sandbox.api_keys()))
        section aria-labelledby="webhooks" {
            h2 #webhooks { "Webhooks" }
            p.quiet { "One per kind of event. A secret is never shown; leave it empty to keep it. A test event is sent once, without a key, signed with the test secret, else with the webhook's." }
            @for status in sandbox.webhooks() { (webhook(&status)) }
        }
        section aria-labelledby="waiting-title" {
            h2 #waiting-title { "Waiting for a retry" }
            div #waiting data-live { (waiting(&report)) }
        }
        section aria-labelledby="attempts-title" {
            h2 #attempts-title { "Attempts" }
            p #summary data-live aria-live="polite" { (summary(&report)) }
            label.check hidden { input #pause type="checkbox" autocomplete="off"; "Pause live updates" }
            div #attempts data-live { (attempts_table(desk, &attempts)) }
        }
    };
    document(
        "Developer settings",
        &content,
        true,
        Some(&footer(desk.is_strict())),
    )
}

pub(crate) fn event(event: &EventReport) -> Markup {
    let payload = serde_json::from_slice::<Value>(&event.body)
        .and_then(|json| serde_json::to_string_pretty(&json))
        .unwrap_or_else(|_| String::from_utf8_lossy(&event.body).into_owned());
    let content = html! {
        p { a href="/" { "Back to the settings" } }
        section aria-labelledby="facts" {
            h2 #facts { (event.kind) }
            p { "Created " (time(event.arose_at)) " UTC; " (state(event)) }
            p { "Chat: " @match &event.chat { Some(chat) => { code { (chat) } }, None => "none (test event)" } }
            p { "Idempotency key: " @match &event.key { Some(key) => { code { (key) } }, None => "none" } }
        }
        section aria-labelledby="attempts-title" {
            h2 #attempts-title { "Attempts" }
            table {
                thead { tr { th scope="col" { "Time" } th scope="col" { "Status" } th scope="col" { "Took" } th scope="col" { "Fault" } } }
                tbody {
                    @for attempt in &event.attempts {
                        tr {
                            td data-label="Time" { (time(attempt.at)) }
                            td data-label="Status" { (result(&attempt.result)) }
                            td data-label="Took" { (attempt.took.as_millis()) " ms" }
                            td data-label="Fault" { @if let Some(fault) = attempt.fault { (fault.to_string()) } }
                        }
                    }
                }
            }
        }
        section aria-labelledby="payload" {
            h2 #payload { "Payload" }
            pre { (payload) }
        }
    };
    document(&format!("Event {}", event.id), &content, false, None)
}

fn document(title: &str, content: &Markup, live: bool, footer: Option<&Markup>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · Sandbox" }
                link rel="stylesheet" href="/page.css";
                @if live { script src="/page.js" defer {} }
            }
            body {
                header {
                    h1 { (title) }
                    p.quiet { "A simulated chat platform. All data is lost when it stops." }
                    @if live {
                        nav aria-label="On this page" {
                            a href="#keys" { "API keys" } " "
                            a href="#webhooks" { "Webhooks" } " "
                            a href="#waiting-title" { "Waiting" } " "
                            a href="#attempts-title" { "Attempts" }
                        }
                    }
                }
                main { (content) }
                @if let Some(footer) = footer { (footer) }
            }
        }
    }
}

fn footer(is_strict: bool) -> Markup {
    html! {
        footer.quiet {
            p #invented {
                "Invented, because the platform's interface says nothing about it: the names of the GraphQL \
                 types, introspection and errors of the Admin API, the words of " code { "status" } " and "
                code { "type" } ", the button \"Send test\", that deliveries resume after a webhook was \
                 enabled again, and one secret per webhook."
            }
            @if is_strict {
                p #strict {
                    "Strict mode: only the status 200 counts as delivered, events that wait when a webhook is \
                     disabled are lost, failures of test events count, payloads have unknown words and nulls, \
                     and the Admin API answers about half of the queries with errors, with nulls or slowly."
                }
            }
        }
    }
}

fn said(notice: &Notice) -> Markup {
    html! {
        @match notice {
            Notice::Done(text) => p.notice #notice role="status" { (text) },
            Notice::Refused(text) => p.notice.refused #notice role="alert" { (text) },
            Notice::NewKey(key) => p.notice #notice role="status" {
                "Copy the new API key now. It is not shown again: " code #new-key { (key) }
            },
        }
    }
}

fn keys(keys: &[ApiKey]) -> Markup {
    html! {
        section aria-labelledby="keys" {
            h2 #keys { "API keys" }
            form method="post" action="/keys" {
                div.row {
                    div.grow {
                        label for="description" { "Description" }
                        input #description name="description" required maxlength="200" autocomplete="off";
                    }
                    button.main #create-key { "Create an API key" }
                }
            }
            @if keys.is_empty() {
                p.quiet { "There are no API keys yet." }
            } @else {
                table {
                    thead { tr { th scope="col" { "Description" } th scope="col" { "Created" } } }
                    tbody {
                        @for key in keys {
                            tr {
                                td data-label="Description" { (key.description) }
                                td data-label="Created" { (time(key.created_at)) " UTC" }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn webhook(status: &WebhookStatus) -> Markup {
    let kind = &status.kind;
    let id = |part: &str| format!("{part}-{kind}");
    let webhook = &status.webhook;
    html! {
        div.webhook role="group" aria-labelledby=(id("webhook")) {
            div {
                h3 id=(id("webhook")) { (kind) }
                div.state id=(id("state")) data-live {
                    @if status.disabled {
                        form method="post" action={ "/webhooks/" (kind) "/enable" } {
                            span.bad { "disabled" } " "
                            button id=(id("enable")) { "Enable" }
                        }
                    } @else if !webhook.active || webhook.url.is_empty() {
                        span.quiet { "not delivering" }
                    } @else {
                        span.good { "delivering" }
                    }
                    div.quiet { (status.recent_failures) " failed within the last hour" }
                }
            }
            form method="post" action={ "/webhooks/" (kind) } {
                div {
                    label for=(id("url")) { "URL" }
                    input id=(id("url")) name="url" inputmode="url" value=(webhook.url) autocomplete="off" spellcheck="false";
                }
                div {
                    label for=(id("secret")) { "Secret " @if webhook.secret.is_some() { "(set)" } @else { "(none)" } }
                    input id=(id("secret")) name="secret" type="password" autocomplete="new-password";
                    @if webhook.secret.is_some() {
                        label.check { input id=(id("remove")) name="remove_secret" type="checkbox" autocomplete="off"; "Remove the secret" }
                    }
                }
                label.check.active { input id=(id("active")) name="active" type="checkbox" checked[webhook.active] autocomplete="off"; "Active" }
                button.main id=(id("save")) { "Save" }
                div.test {
                    div.grow {
                        label for=(id("test-secret")) { "Test secret (optional)" }
                        input id=(id("test-secret")) name="test_secret" type="password" autocomplete="new-password";
                    }
                    button id=(id("test")) formaction={ "/webhooks/" (kind) "/test" } { "Send test" }
                }
            }
        }
    }
}

fn waiting(report: &Report) -> Markup {
    let waits = |event: &&EventReport| event.state == EventState::Waiting;
    let events: Vec<_> = report
        .events
        .iter()
        .rev()
        .filter(waits)
        .take(MAX_WAITING)
        .collect();
    if events.is_empty() {
        return html! { p.quiet { "No event is waiting." } };
    }
    html! {
        table {
            caption { "The latest " (events.len()) " of " (report.count(EventState::Waiting)) }
            thead { tr {
                th scope="col" { "Event" } th scope="col" { "Kind" } th scope="col" { "Chat" }
                th scope="col" { "Attempts" } th scope="col" { "Next retry (UTC)" } th scope="col" { "Action" }
            } }
            tbody {
                @for event in events {
                    tr {
                        td data-label="Event" { a id={ "waiting-" (event.id) } href={ "/events/" (event.id) } { (event.id) } }
                        td data-label="Kind" { (event.kind) }
                        td data-label="Chat" { @if let Some(chat) = &event.chat { (chat) } }
                        td data-label="Attempts" { (event.attempts.len()) }
                        td data-label="Next retry" { @if let Some(at) = event.next_retry { (time(at)) } }
                        td data-label="Action" {
                            form method="post" action={ "/events/" (event.id) "/retry" } {
                                button id={ "retry-" (event.id) } aria-label={ "Retry event " (event.id) " now" } { "Retry now" }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn summary(report: &Report) -> Markup {
    let states = [
        EventState::Delivered,
        EventState::Waiting,
        EventState::Lost,
        EventState::NeverSent,
    ];
    html! {
        (report.events.len()) " events"
        @for state in states { ", " (report.count(state)) " " (state) }
    }
}

fn attempts_table(desk: &Desk, attempts: &[Attempt]) -> Markup {
    if attempts.is_empty() {
        return html! { p.quiet { "There are no attempts yet." } };
    }
    html! {
        table {
            caption { "The latest " (attempts.len()) ", newest first" }
            thead { tr {
                th scope="col" { "Time (UTC)" } th scope="col" { "Event" } th scope="col" { "Kind" }
                th scope="col" { "Key" } th scope="col" { "Status" } th scope="col" { "Took" }
                th scope="col" { "Fault" } th scope="col" { "State" }
            } }
            tbody {
                @for attempt in attempts {
                    @if let Some(event) = desk.sandbox().event(attempt.event) { (row(attempt, &event)) }
                }
            }
        }
    }
}

fn row(attempt: &Attempt, event: &EventReport) -> Markup {
    html! {
        tr {
            td data-label="Time" { (time(attempt.at)) }
            td data-label="Event" { a id={ "attempt-" (attempt.id) } href={ "/events/" (event.id) } { (event.id) } }
            td data-label="Kind" { (event.kind) }
            td data-label="Key" {
                @match &event.key {
                    Some(key) => code title=(key) { (&key[..8]) "…" },
                    None => span.quiet { "none (test event)" },
                }
            }
            td data-label="Status" { (result(&attempt.result)) }
            td data-label="Took" { (attempt.took.as_millis()) " ms" }
            td data-label="Fault" { @if let Some(fault) = attempt.fault { (fault.to_string()) } }
            td data-label="State" { (state(event)) }
        }
    }
}

fn state(event: &EventReport) -> Markup {
    html! {
        span {
            (event.state)
            @if let Some(at) = event.next_retry { ", next retry " (time(at)) }
        }
    }
}

fn result(result: &AttemptResult) -> Markup {
    let class = if result.is_delivered() { "good" } else { "bad" };
    html! { span class=(class) { (result) } }
}

/// Formats a time such as `20 Nov 2026 20:56:43`.
fn time(at: Timestamp) -> Markup {
    let millis = u64::try_from(at.as_millis()).unwrap_or_default();
    let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(millis));
    html! { time { (text.get(5..25).unwrap_or(&text)) } }
}

fn minutes(steps: u32) -> u64 {
    u64::from(steps) * STEP.as_secs() / 60
}
