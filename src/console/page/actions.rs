//! What operators and others did.

use maud::{Markup, html};

use super::parts::head;
use super::text::{ago, clip, count, full_time};
use super::view::View;
use crate::inbox::{Action, ActionKind};

/// A page of the actions, newest first. `is_more` says whether older ones follow.
pub(in super::super) fn actions(view: &View, actions: &[Action], is_more: bool) -> Markup {
    let content = html! {
        div.title { h1 { "Actions" } }
        section {
            p.quiet { "Who changed what, and why, newest first. Actions are kept for 90 days." }
            div #rows data-live {
                @if actions.is_empty() { p { "None." } }
                @else {
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
            @if is_more && let Some(last) = actions.last() {
                div.pages { a href=(view.url(format_args!("/actions?before={}", last.number))) rel="next" { "Older actions" } }
            }
        }
    };
    view.page("Actions", "/actions", &content)
}

/// The actions that changed an event, which are sorted from the newest to the oldest.
pub(super) fn of_event(view: &View, actions: &[Action]) -> Markup {
    html! {
        ol.timeline {
            @for action in actions.iter().rev() {
                li {
                    (full_time(action.at)) " " b { (action.kind) } " by " (who(action)) ", " (ago(action.at)) " ago"
                    @if !action.by.reason().is_empty() { ": " (reason(view, action)) }
                }
            }
        }
    }
}

fn who(action: &Action) -> Markup {
    html! {
        @match action.by.who() {
            "" => span.quiet { "somebody unknown" },
            who => (clip(who, 200)),
        }
    }
}

fn of(view: &View, action: &Action) -> Markup {
    let about = action.about.as_deref().unwrap_or_default();
    html! {
        @match action.kind {
            ActionKind::Pause | ActionKind::Resume if about.is_empty() => "everything",
            ActionKind::Forget => { "the chat with the SHA-256 " (about) "…" },
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
