//! The overview: attempts, waiting events, and the controls beside them.

use maud::{Markup, html};
use tower_webhook::event::EventKind;
use tower_webhook_sandbox::{
    ApiKey, EventFilter, EventReport, EventState, Sandbox, SimulatedChat, WebhookStatus,
};

use super::event::filter_form;
use super::parts::{
    MAX_TEXT, STATES, action, chat, clip, gauge, outcome, result, slug, state, time, took,
};
use super::{document, minutes};
use crate::desk::{Desk, MAX_RATE, Notice};

const MAX_ATTEMPTS: usize = 20;
const MAX_WAITING: usize = 10;
const MAX_CHATS: usize = 6;
const MAX_KEYS: usize = 5;

/// `open` is the webhook that is not folded.
pub(crate) fn overview(desk: &Desk, notice: Option<&Notice>, open: Option<&str>) -> Markup {
    let sandbox = desk.sandbox();
    let webhooks = sandbox.webhooks();
    let content = html! {
        div.title {
            h1 { "Overview" }
            div #summary data-live { (tiles(sandbox)) }
        }
        nav.jump aria-label="On this page" {
            a href="#attempts-title" { "Attempts" } a href="#waiting-title" { "Waiting" }
            a href="#chats" { "Chats" } a href="#clock-title" { "Clock" }
            a href="#webhooks" { "Webhooks" } a href="#keys" { "API keys" }
        }
        div #alerts data-live { (alerts(desk, &webhooks)) }
        div.split {
            div {
                section aria-labelledby="attempts-title" {
                    h2 #attempts-title { "Attempts" }
                    div #attempts data-live { (attempts(sandbox)) }
                }
                section aria-labelledby="waiting-title" {
                    h2 #waiting-title { "Waiting for a retry" }
                    div #waiting data-live { (waiting(sandbox)) }
                }
                section aria-labelledby="find" {
                    h2 #find { "Find events" }
                    (filter_form(&EventFilter::default()))
                }
            }
            div {
                (chats(desk))
                section aria-labelledby="webhooks" {
                    h2 #webhooks { "Webhooks" }
                    p.small.quiet {
                        "Failed attempts within an hour; more than " (desk.disable_after()) " disable a webhook."
                    }
                    @for status in &webhooks {
                        (webhook(desk, status, open == Some(status.kind.as_str())))
                    }
                }
                (clock())
                (availability(sandbox.is_available()))
                (keys(&sandbox.api_keys()))
            }
        }
    };
    document(desk, "Overview", "/", notice, &content)
}

fn tiles(sandbox: &Sandbox) -> Markup {
    let all = EventFilter::default();
    html! {
        ul.tiles {
            li { a href="/events" { b { (sandbox.count(&all)) } " events" } }
            @for state in STATES {
                @let filter = EventFilter { state: Some(state), ..all.clone() };
                @let count = sandbox.count(&filter);
                @let class = (state == EventState::Lost && count > 0).then_some("bad");
                li { a href={ "/events?state=" (slug(state)) } { b class=[class] { (count) } " " (state) } }
            }
        }
    }
}

fn alerts(desk: &Desk, webhooks: &[WebhookStatus]) -> Markup {
    html! {
        @for status in webhooks.iter().filter(|status| status.disabled) {
            form.alert method="post" action={ "/webhooks/" (status.kind) "/enable" } {
                p { "The webhook " strong { (status.kind) } " was " (disabled(desk, status)) "." }
                button id={ "enable-" (status.kind) } aria-label={ "Enable " (status.kind) } { "Enable" }
            }
        }
    }
}

fn disabled(desk: &Desk, status: &WebhookStatus) -> Markup {
    html! {
        "disabled"
        @if let Some(at) = status.disabled_at { " at " (time(at)) }
        ", after more than " (desk.disable_after()) " failed attempts in an hour"
        @if let Some(last) = &status.last_failure { " (the last one: " (outcome(last)) ")" }
    }
}

fn attempts(sandbox: &Sandbox) -> Markup {
    let attempts = sandbox.latest_attempts(MAX_ATTEMPTS);
    if attempts.is_empty() {
        return html! { p.quiet { "There are no attempts yet." } };
    }
    html! {
        table {
            caption { "The latest " (attempts.len()) ", newest first. Times are UTC." }
            thead { tr {
                th scope="col" { "Time" } th scope="col" { "Event" } th scope="col" { "Chat" }
                th scope="col" { "Result" } th.number scope="col" { "Took" } th scope="col" { "State" }
            } }
            tbody {
                @for attempt in attempts {
                    @if let Some(event) = sandbox.event(attempt.event) {
                        tr {
                            td { (time(attempt.at)) }
                            td { a id={ "attempt-" (attempt.id) } href={ "/events/" (event.id) } { (event.id) } " " (event.kind) }
                            td { (chat(&event)) }
                            td.wide { (result(&attempt)) }
                            td.number { (took(&attempt)) }
                            td { (state(&event)) }
                        }
                    }
                }
            }
        }
    }
}

fn waiting(sandbox: &Sandbox) -> Markup {
    let filter = EventFilter {
        state: Some(EventState::Waiting),
        ..EventFilter::default()
    };
    let events = sandbox.oldest(&filter, None, MAX_WAITING);
    if events.is_empty() {
        return html! { p.quiet { "No event is waiting." } };
    }
    let all = sandbox.count(&filter);
    html! {
        table {
            caption { "The oldest " (events.len()) " of " (all) ", oldest first" }
            thead { tr {
                th scope="col" { "Event" } th scope="col" { "Chat" } th scope="col" { "Since" }
                th.number scope="col" { "Attempts" } th scope="col" { "Last result" } th scope="col" { "Next retry" }
                th scope="col" { "Action" }
            } }
            tbody {
                @for event in &events {
                    tr {
                        td { a id={ "waiting-" (event.id) } href={ "/events/" (event.id) } { (event.id) } " " (event.kind) }
                        td { (chat(event)) }
                        td { (time(event.arose_at)) }
                        td.number data-label="Attempts" { (event.attempts.len()) }
                        td.wide { (last_result(event)) }
                        td data-label="Next retry" { @if let Some(at) = event.next_retry { (time(at)) } @else { "now" } }
                        td.end { (action(event)) }
                    }
                }
            }
        }
        @if all > events.len() {
            p.pages { a href="/events?state=waiting" { "All waiting events" } }
        }
    }
}

pub(super) fn last_result(event: &EventReport) -> Markup {
    html! { @if let Some(attempt) = event.attempts.last() { (result(attempt)) } }
}

fn chats(desk: &Desk) -> Markup {
    html! {
        section aria-labelledby="chats" {
            h2 #chats { "Chats" }
            form.row method="post" action="/chats" {
                div.grow {
                    label for="text" { "First message" }
                    input #text name="text" value="Where is my parcel?" autocomplete="off";
                }
                button.main #start-chat { "Start a chat" }
            }
            form.row method="post" action="/rate" {
                div.grow {
                    label for="rate" { "Generated events per minute" }
                    input #rate name="rate" type="number" min="0" max=(MAX_RATE) required
                        value=(desk.rate()) autocomplete="off";
                }
                button #set-rate { "Set" }
            }
            div #latest-chats data-live { (latest_chats(desk.sandbox())) }
        }
    }
}

fn latest_chats(sandbox: &Sandbox) -> Markup {
    let chats = sandbox.latest_chats(MAX_CHATS);
    html! {
        @if !chats.is_empty() {
            p.small {
                span.quiet { "Latest: " }
                @for (at, chat) in chats.iter().map(SimulatedChat::id).enumerate() {
                    @if at > 0 { ", " }
                    a id={ "chat-" (chat) } href={ "/chats/" (chat) } { (chat) }
                }
            }
        }
    }
}

fn clock() -> Markup {
    html! {
        section aria-labelledby="clock-title" {
            h2 #clock-title { "The platform's clock" }
            form.row method="post" action="/forward" aria-label="Advance the clock" {
                @for (id, steps, text) in [("10", 1, "+ 10 min"), ("60", 6, "+ 1 hour"), ("day", 144, "+ 1 day")] {
                    button id={ "forward-" (id) } name="steps" value=(steps) { (text) }
                }
            }
            p.small.quiet { "It advances from one round of retries to the next, every " (minutes(1)) " minutes." }
        }
    }
}

fn availability(available: bool) -> Markup {
    let (is, becomes) = match available {
        true => ("available", "Make it unavailable"),
        false => ("unavailable", "Make it available"),
    };
    html! {
        section aria-labelledby="availability-title" {
            h2 #availability-title { "Availability" }
            p { "The Admin API at " code { "/graphql" } " reports that chat is " strong #availability { (is) } "." }
            form method="post" action="/availability" {
                button #switch-availability name="available" value=(!available) { (becomes) }
            }
        }
    }
}

fn keys(keys: &[ApiKey]) -> Markup {
    html! {
        section aria-labelledby="keys" {
            h2 #keys { "API keys" }
            form.row method="post" action="/keys" {
                div.grow {
                    label for="description" { "Description" }
                    input #description name="description" required maxlength="200" autocomplete="off";
                }
                button #create-key { "Create" }
            }
            @if keys.is_empty() {
                p.quiet { "There are no API keys yet." }
            } @else {
                table {
                    caption { "The latest " (keys.len().min(MAX_KEYS)) " of " (keys.len()) }
                    thead { tr { th scope="col" { "Description" } th scope="col" { "Created" } } }
                    tbody {
                        @for key in keys.iter().rev().take(MAX_KEYS) {
                            tr {
                                td.wide { (clip(&key.description, MAX_TEXT).0) }
                                td { (time(key.created_at)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn webhook(desk: &Desk, status: &WebhookStatus, is_open: bool) -> Markup {
    let kind: &EventKind = &status.kind;
    let id = |part: &str| format!("{part}-{kind}");
    let webhook = &status.webhook;
    html! {
        details.hook id=(id("webhook")) open[is_open] {
            summary {
                span.line {
                    span { (kind) }
                    span.state id=(id("state")) data-live { (webhook_state(desk, status)) }
                }
            }
            form method="post" action={ "/webhooks/" (kind) } aria-label={ "Webhook " (kind) } {
                div {
                    label for=(id("url")) { "URL" }
                    input id=(id("url")) name="url" inputmode="url" value=(webhook.url) autocomplete="off" spellcheck="false";
                }
                div {
                    label for=(id("secret")) {
                        "Secret "
                        @if webhook.secret.is_some() { "(set)" } @else { "(none)" }
                        ", left empty to keep it"
                    }
                    input id=(id("secret")) name="secret" type="password" autocomplete="new-password";
                    @if webhook.secret.is_some() {
                        label.check { input id=(id("remove")) name="remove_secret" type="checkbox" autocomplete="off"; "Remove the secret" }
                    }
                }
                div.row {
                    label.check.grow { input id=(id("active")) name="active" type="checkbox" checked[webhook.active] autocomplete="off"; "Active" }
                    button.main id=(id("save")) { "Save" }
                }
                div.row {
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

fn webhook_state(desk: &Desk, status: &WebhookStatus) -> Markup {
    let most = desk.disable_after();
    let (class, text) = if status.disabled {
        ("badge bad", "disabled")
    } else if !status.webhook.active || status.webhook.url.is_empty() {
        ("badge", "not delivering")
    } else {
        ("badge good", "delivering")
    };
    let failures = match status.disabled {
        true => most,
        false => status.recent_failures,
    };
    html! {
        span class=(class) { (text) }
        span.full.row.middle.talk {
            (gauge(&status.kind, failures, most))
            small.quiet { (status.recent_failures) " of " (most) }
        }
        @if status.disabled { small.full { (disabled(desk, status)) } }
    }
}
