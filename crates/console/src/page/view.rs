//! What all pages know, and what stands around each.

use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use maud::{DOCTYPE, Markup, html};
use tower_webhook::inbox::{Pause, Scope, Stats};
use tower_webhook::store::StoreError;

use super::super::bulk::Action;
use super::super::request::Did;
use super::super::settings::Console;
use super::text::{ago, clip, count, encode, full_time, now, scope};

/// The number of pauses that each page shows.
const PAUSES: usize = 5;

/// What all pages know.
#[derive(Clone)]
pub(in super::super) struct View {
    pub(in super::super) console: Arc<Console>,
    /// The path at which the console is mounted, without a slash at its end.
    pub(in super::super) base: String,
    /// What the last action did.
    pub(in super::super) did: Option<Did>,
    /// What the inbox counts, and how long ago.
    pub(in super::super) counted: Option<(Stats, Duration)>,
    /// The error of a database that does not answer.
    pub(in super::super) failed: Option<Arc<StoreError>>,
    /// Who asks, if that is known.
    pub(in super::super) who: String,
    /// The name that the operator has typed for this change.
    pub(in super::super) named: Arc<OnceLock<String>>,
}

impl View {
    /// The URL of a page. That of the first one has no slash at its end, as `nest` of axum has no route for it.
    pub(in super::super) fn url(&self, path: impl Display) -> String {
        let path = path.to_string();
        let path = match path.strip_prefix('/') {
            Some(query)
                if !self.base.is_empty() && matches!(query.bytes().next(), None | Some(b'?')) =>
            {
                query
            }
            _ => &path,
        };
        format!("{}{path}", self.base)
    }

    /// The URL of the events of a query.
    pub(super) fn events(&self, query: &[(&str, &str)]) -> String {
        let mut text = form_urlencoded::Serializer::new(String::new());
        text.extend_pairs(query);
        self.url(format_args!("/events?{}", text.finish()))
    }

    /// The URL of a chat's page.
    pub(super) fn chat(&self, chat: &str) -> String {
        self.url(format_args!("/chat?id={}", encode(chat)))
    }

    pub(super) fn can_change(&self) -> bool {
        !self.console.is_read_only && self.console.inbox.is_some()
    }

    pub(in super::super) fn stats(&self) -> Option<&Stats> {
        self.counted.as_ref().map(|(stats, _)| stats)
    }

    pub(super) fn pauses(&self) -> &[Pause] {
        self.stats().map_or(&[], |stats| &stats.pauses)
    }

    /// Whether this was paused by itself.
    pub(super) fn is_paused(&self, of: &Scope) -> bool {
        self.pauses().iter().any(|pause| pause.of == *of)
    }

    fn paused(&self) -> Markup {
        let pauses = self.pauses();
        html! {
            @for pause in pauses.iter().take(PAUSES) {
                @let name = scope(&pause.of);
                div.alert.warn {
                    p {
                        b { (name) " is paused" } " since " (full_time(pause.since)) " (" (ago(pause.since)) ")"
                        @if !pause.note.is_empty() { ". " (clip(&pause.note, 300)) }
                    }
                    @if self.can_change() {
                        form method="get" action=(self.url("/resume")) {
                            input type="hidden" name="of" value=(pause.of);
                            button aria-label={ "Resume " (name) } { "Resume…" }
                        }
                    }
                }
            }
            @if pauses.len() > PAUSES { p { "And " (pauses.len() - PAUSES) " more are paused." } }
        }
    }

    /// What was done, with a link to it.
    fn did(&self, did: &Did) -> Markup {
        // The start of a sentence.
        let of = |paused: &Scope| match (paused, scope(paused)) {
            (Scope::Type(_), name) => name,
            (_, name) => format!("{}{}", name[..1].to_uppercase(), &name[1..]),
        };
        html! {
            @match did {
                Did::Changed(action, ids) => {
                    @if ids.len() == 1 { "Event" } @else { (ids.len()) " events were " (action.past()) ":" }
                    @for id in ids { " " a href=(self.url(format_args!("/events/{id}"))) { (id) } }
                    @if ids.len() == 1 { " was " (action.past()) }
                    "."
                    @if let (2.., Action::Redrive) = (ids.len(), action) {
                        " Those that wait behind another event of their chat are tried after it."
                    }
                },
                Did::Paused(it) => { (of(it)) " was paused. " a href=(self.url("/")) { "Overview" } },
                Did::Retired(it) => { "The handler of " (scope(it)) " was retired. " a href=(self.url("/")) { "Overview" } },
                Did::Forgotten(chats, bodies) => {
                    "The payloads of " (chats) @if *chats == 1 { " chat" } @else { " chats" } " were deleted: " (count(*bodies)) ". "
                    a href=(self.url("/actions?what=forget")) { "Actions" }
                },
                Did::Resumed(it) => { (of(it)) " was resumed. " a href=(self.url("/")) { "Overview" } },
            }
        }
    }

    /// A page around its contents. `link` is the one of the navigation that is this page.
    pub(super) fn page(&self, title: &str, link: &str, content: &Markup) -> Markup {
        let current = |it: &str| (it == link).then_some("page");
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (title) " · Webhooks" }
                    link rel="icon" href=(self.url("/icon.svg"));
                    link rel="stylesheet" href=(self.url("/style.css"));
                    script src=(self.url("/live.js")) defer {}
                }
                body data-stopped="The receiver does not answer." {
                    a.skip href="#main" { "Skip to the content" }
                    header.top {
                        a.brand href=(self.url("/")) { "Webhooks" }
                        nav.site aria-label="Pages" {
                            a href=(self.url("/")) aria-current=[current("/")] { "Overview" }
                            @if self.console.inbox.is_some() {
                                a href=(self.url("/events")) aria-current=[current("/events")] { "Events" }
                                a href=(self.url("/lanes")) aria-current=[current("/lanes")] { "Lanes" }
                                a href=(self.url("/actions")) aria-current=[current("/actions")] { "Actions" }
                            }
                            @if self.console.inbox.is_some() || self.console.recent.is_some() {
                                a href=(self.url("/history")) aria-current=[current("/history")] { "History" }
                                a href=(self.url("/refusals")) aria-current=[current("/refusals")] { "Refusals" }
                            }
                            @if self.console.inbox.is_some() {
                                a href=(self.url("/gaps")) aria-current=[current("/gaps")] { "Incomplete chats" }
                            }
                            @if self.can_change() {
                                a href=(self.url("/events?state=failed")) { "Change many" }
                                a href=(self.url("/forget")) aria-current=[current("/forget")] { "Forget" }
                            }
                        }
                        @if self.console.inbox.is_some() {
                            form.find role="search" method="get" action=(self.url("/find")) {
                                input type="search" name="id" required placeholder="chat, key, number or text" aria-label="Chat, key, number of an event, or text in a payload";
                                button { "Find" }
                            }
                        }
                        div.end {
                            span #clock data-live { (now()) }
                            noscript { a href="" { "Refresh" } }
                            // The script shows it. Without the script there are no updates to pause.
                            label.check hidden { input #pause type="checkbox" autocomplete="off"; "Pause live updates" }
                        }
                    }
                    aside.bar #paused data-live aria-label="Pauses" { (self.paused()) }
                    main #main tabindex="-1" {
                        @if let Some(did) = &self.did { p.notice #notice role="status" { (self.did(did)) } }
                        (content)
                    }
                    footer {
                        @if self.console.is_read_only { p { "This console is read-only." } }
                        p #zone { "All times are in UTC." }
                    }
                }
            }
        }
    }
}

/// A page that says why a request has no other answer.
pub(in super::super) fn problem(view: &View, status: StatusCode, reason: &str) -> Markup {
    let title = status.canonical_reason().unwrap_or("Error");
    let reason = clip(reason, 1_000);
    let content = html! {
        section {
            h1 { (title) }
            p role="alert" { (reason) }
            p { a href=(view.url("/")) { "Back to the overview" } }
        }
    };
    view.page(title, "", &content)
}
