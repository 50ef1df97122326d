//! Chats whose events are incomplete.

use maud::{Markup, html};
use tower_webhook::inbox::{EventSummary, expected};

use super::super::reading::More;
use super::super::request::Search;
use super::events::{label, rest};
use super::parts::{chat, head};
use super::text::{name, time};
use super::view::View;

pub(in super::super) fn gaps(
    view: &View,
    search: &Search,
    rows: &[EventSummary],
    more: More,
) -> Markup {
    let content = html! {
        div.title { h1 { "Incomplete chats" } }
        section {
            p.quiet {
                "These chats have an event, but not the one that is expected with it: the sender has given it up, or it is still to come. "
                "A chat without any event is not found, as the platform's API does not list chats. What was deleted after its retention is missing, too."
            }
            form method="get" action=(view.url("/gaps")) {
                div.row {
                    @for (name, value) in [("from", &search.from), ("until", &search.until)] {
                        div.grow.time { label for=(name) { (label(name)) } input #(name) type="datetime-local" name=(name) value=(value); }
                    }
                }
                div.row.middle { button.main { "Find" } }
            }
            // Without the form, which a search that goes on would replace.
            div #found {
                @if rows.is_empty() && !matches!(more, More::Search(..)) { p { "No chat is incomplete." } }
                div #rows data-live[!matches!(more, More::Search(..))] { @if !rows.is_empty() { (table(view, rows)) } }
                (rest(&view.url(format_args!("/gaps?{}", search.query())), more, !search.after.is_empty()))
            }
        }
    };
    view.page("Incomplete chats", "/gaps", &content)
}

fn table(view: &View, rows: &[EventSummary]) -> Markup {
    html! {
        table {
            (head(&["Chat", "Has", "Accepted", "Event", "Without"]))
            tbody {
                @for event in rows {
                    tr {
                        td.wide { (chat(view, event.chat.as_deref())) }
                        td { (name(&event.route, &event.kind)) }
                        td { (time(event.accepted_at)) }
                        td { a href=(view.url(format_args!("/events/{}", event.id))) { (event.id) } }
                        td data-label="Without" {
                            @for (at, missing) in expected(&event.kind).iter().enumerate() {
                                @if at > 0 { " or " }
                                b { (name(&event.route, missing)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
