//! The pages. `maud` escapes all texts in them.
//!
//! A page has at most 50 KB with its style and script: tables have a fixed number of rows, and long texts are
//! cut.

mod chat;
mod event;
mod overview;
mod parts;

use maud::{DOCTYPE, Markup, html};

pub(crate) use self::chat::chat;
pub(crate) use self::event::{EventView, List, event, events};
pub(crate) use self::overview::overview;
pub(crate) use self::parts::{STATES, slug};
use self::parts::{clip, full_time};
use crate::desk::{Desk, Notice, STEP};

/// The style that all pages have, and what this program adds.
pub(crate) const STYLE: &str = concat!(include_str!("../style.css"), include_str!("../page.css"),);
pub(crate) const SCRIPT: &str = include_str!("../live.js");

/// A page around its contents. `link` is that of the site's navigation which is this page, or its parent.
fn document(
    desk: &Desk,
    title: &str,
    link: &str,
    notice: Option<&Notice>,
    content: &Markup,
) -> Markup {
    let current = |other: &str| (other == link).then_some("page");
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · Sandbox" }
                link rel="stylesheet" href="/page.css";
                script src="/page.js" defer {}
            }
            body data-stopped="The sandbox has stopped." {
                a.skip href="#main" { "Skip to the content" }
                header.top {
                    a.brand href="/" { "Sandbox" }
                    nav.site aria-label="Pages" {
                        a href="/" aria-current=[current("/")] { "Overview" }
                        a href="/events" aria-current=[current("/events")] { "Events" }
                    }
                    div.end {
                        span #clock data-live { (clock(desk)) }
                        noscript { a href="" { "Refresh" } }
                        label.check hidden { input #pause type="checkbox" autocomplete="off"; "Pause live updates" }
                    }
                }
                main #main tabindex="-1" {
                    @if let Some(notice) = notice { (said(notice)) }
                    (content)
                }
                (footer(desk.is_strict()))
            }
        }
    }
}

fn clock(desk: &Desk) -> Markup {
    html! {
        (full_time(desk.sandbox().now()))
        @match desk.steps_ahead() {
            0 => {}
            steps => { ", " (minutes(steps)) " minutes left to advance" }
        }
    }
}

fn minutes(steps: u32) -> u64 {
    u64::from(steps) * STEP.as_secs() / 60
}

/// A page that says why a request has no other answer.
pub(crate) fn problem(desk: &Desk, title: &str, reason: &str) -> Markup {
    let (reason, _) = clip(reason, 1_000);
    let content = html! {
        section {
            h1 { (title) }
            p { (reason) }
            p { a href="/" { "Back to the overview" } }
        }
    };
    document(desk, title, "", None, &content)
}

fn said(notice: &Notice) -> Markup {
    html! {
        @match notice {
            Notice::Done(text) => p.notice #notice role="status" { (text) },
            Notice::Chat(chat) => p.notice #notice role="status" {
                "Chat " a href={ "/chats/" (chat) } { (chat) } " is started."
            },
            Notice::Refused(text) => p.notice.refused #notice role="alert" { (text) },
            Notice::NewKey(key) => p.notice #notice role="status" {
                "Copy the new API key now. It is not shown again: " code #new-key { (key) }
            },
        }
    }
}

fn footer(is_strict: bool) -> Markup {
    html! {
        footer {
            p { "A simulated chat platform. All data is lost when it stops." }
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
