//! The chats of a person whose data is to be deleted.

use std::collections::BTreeSet;

use maud::{Markup, html};
use tower_webhook::inbox::{By, escaped};

use super::super::scan::{Found, MOST_CHATS};
use super::parts::{head, who_field};
use super::text::{clip, count};
use super::view::View;

/// `found` has the chats with the text in a payload.
pub(in super::super) fn forget(
    view: &View,
    wanted: &str,
    is_chat: bool,
    found: Option<&Found>,
) -> Markup {
    let hides = view.console.hides_payloads;
    let mut chats: BTreeSet<&str> = found
        .into_iter()
        .flat_map(|it| it.chats.keys().map(String::as_str))
        .collect();
    chats.extend(is_chat.then_some(wanted));
    let is_searched = found.is_some_and(|found| !found.is_done);
    let content = html! {
        div.title { h1 { "Forget a person" } }
        section {
            p.quiet {
                "Deletes the payloads, headers and errors of all events of a person's chats, and discards the events that are not handled yet. "
                "The types, keys and times of the events stay for the retention, and so do the ids of the chats."
            }
            form method="get" action=(view.url("/forget")) {
                div.row {
                    div.grow {
                        label for="person" { @if hides { "The id of a chat" } @else { "The id of a chat, or a text that only this person's payloads have, such as an e-mail address" } }
                        input #person name="id" required value=(escaped(wanted));
                    }
                }
                div.row.middle { button.main #search { "Find" } }
            }
        }
        @if !wanted.is_empty() {
            // A form that is replaced would lose the choice of chats, and one before the end delete only some. `data-last` has
            // the script leave it alone.
            section #result data-live[is_searched] data-last[!is_searched] {
                div #progress {
                    @if let Some(found) = found {
                        p role="status" {
                            (count(found.events)) @if found.events == 1 { " event has" } @else { " events have" } " the text"
                            @if !found.is_done { " so far: " (found.percent) " % of the inbox was searched" }
                            "."
                        }
                        @if let Some(error) = &found.error { p role="alert" { (clip(error, 300)) } }
                        @if found.without_chat > 0 {
                            p {
                                (count(found.without_chat)) " of them are of no known chat, and stay until their retention ends: "
                                a href=(view.events(&[("payload", &escaped(wanted))])) { "these events" }
                            }
                        }
                        @if found.chats.len() >= MOST_CHATS { p { "More chats may have it: forget these first, and search again." } }
                    }
                }
                @if is_searched {
                    @if !chats.is_empty() { div #chats { (table(view, &chats, found, false)) } }
                    p { "The chats can be selected once the search has ended." }
                } @else if chats.is_empty() { p #chats { "No chat was found." } }
                @else {
                    form method="post" action=(view.url("/forget")) {
                        div #chats { (table(view, &chats, found, true)) }
                        @if view.can_change() {
                            div.row {
                                (who_field(view))
                                div.grow {
                                    label for="reason" { "Reason, for the list of actions (optional)" }
                                    input #reason name="reason" maxlength=(By::LONGEST) autocomplete="off";
                                }
                            }
                            p { b { "This cannot be undone." } " Deselect the chats of other persons first." }
                            div.row.middle {
                                button.danger #forget { "Yes, delete the data" }
                                a href=(view.url("/")) { "No, back to the overview" }
                            }
                        }
                    }
                }
            }
        }
    };
    view.page("Forget a person", "/forget", &content)
}

/// The chats, with a box for each if they can be selected.
fn table(view: &View, chats: &BTreeSet<&str>, found: Option<&Found>, has_boxes: bool) -> Markup {
    let events = |chat: &str| found.and_then(|found| found.chats.get(chat));
    let columns = ["Forget", "Chat", "#Events with the text"];
    html! {
        table {
            (head(if has_boxes { &columns } else { &columns[1..] }))
            tbody {
                @for chat in chats {
                    tr {
                        @if has_boxes {
                            td { input type="checkbox" name="chat" checked value=(escaped(chat)) aria-label={ "Forget chat " (clip(chat, 60)) }; }
                        }
                        td.wide { a href=(view.chat(chat)) { (clip(chat, 60)) } }
                        td.number data-label="Events" { @if let Some(events) = events(chat) { (count(*events)) } }
                    }
                }
            }
        }
    }
}
