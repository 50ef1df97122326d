//! One event, and one chat.

use maud::{Markup, html};
use tower_webhook::inbox::{
    Action, ActionKind, BlockedLane, EventId, EventRecord, EventState, EventSummary, Place, Scope,
    escaped,
};
use tower_webhook::{EventType, Item};

use super::super::reading::More;
use super::actions::of_event;
use super::events::{Columns, rest, table, waiting};
use super::parts::{chat_of_any_length, next_attempt, reason, reason_field, redrive, state};
use super::payload::{MOST, indented, payload};
use super::text::{ago, clip, full_time, name, scope, short};
use super::view::View;

pub(in super::super) fn event(
    view: &View,
    record: &EventRecord,
    lane: &Place,
    done: &[Action],
    wrong: Option<&str>,
) -> Markup {
    let event = &record.summary;
    let content = html! {
        @if let Some(wrong) = wrong {
            div.alert role="alert" {
                p { (wrong) }
                // The address of the page is that of the change. Live updates follow this link.
                a rel="bookmark" href=(view.url(format_args!("/events/{}", event.id))) { "Event " (event.id) }
                " " a href=(view.url("/")) { "Back to the overview" }
            }
        }
        div.title {
            h1 { "Event " (event.id) }
            span #state data-live { (state(event)) }
            @if view.can_change() {
                form.row.middle method="post" {
                    (reason_field(view))
                    div #actions data-live { (actions(view, record, lane.ahead(event))) }
                }
            }
        }
        p #waits data-live {
            (since_redrive(record, done))
            @if event.state.is_unsettled() { (waits(view, event, lane.ahead(event))) }
        }
        div.split.even {
            div {
                section {
                    h2 { "Event" }
                    (summary(view, record))
                }
                section {
                    h2 { "Timeline" }
                    div #timeline data-live { (timeline(view, record)) }
                }
                div #done data-live {
                    @if !done.is_empty() {
                        section {
                            h2 { "Actions" }
                            (of_event(view, done))
                        }
                    }
                }
                div #lane data-live {
                    @if lane.blocked.is_some() || !lane.unsettled.is_empty() {
                        section {
                            h2 { "Lane" }
                            (place(view, event, lane))
                        }
                    }
                }
            }
            div {
                section {
                    h2 { "Payload" }
                    (payload(view, record))
                }
                @if let Some(kept) = record.item.as_ref().and_then(Item::kept)
                    && !view.console.hides_payloads
                {
                    section {
                        h2 { "Kept of its delivery" }
                        pre #kept tabindex="0" aria-label="Kept of its delivery" { (clip(&indented(kept, MOST), MOST)) }
                    }
                }
                @if !record.headers.is_empty() && !view.console.hides_payloads {
                    section {
                        h2 { "Headers" }
                        (headers(record))
                    }
                }
            }
        }
    };
    view.page(&format!("Event {}", event.id), "/events", &content)
}

/// What has become of an event since a person has redriven it last.
fn since_redrive(record: &EventRecord, done: &[Action]) -> Markup {
    let event = &record.summary;
    let redrive = done
        .iter()
        .find(|action| action.kind == ActionKind::Redrive);
    // A change of many is older than its steps.
    let failed = redrive.and_then(|redrive| {
        let mut failures = record.failures.iter();
        failures.rfind(|failure| failure.at >= redrive.at)
    });
    html! {
        @if let Some(redrive) = redrive {
            @let by = match redrive.by.who() { "" => "", who => &format!(" by {}", clip(who, 60)) };
            "It was redriven " (ago(redrive.at)) " ago" (by)
            @match (failed, event.state) {
                (_, EventState::Handled) => ", and was handled. ",
                (Some(failed), _) => {
                    ", and " b.bad { "has failed again" } ", " (ago(failed.at)) " ago"
                    @if event.state == EventState::Dead { ": it is a dead letter" }
                    ". "
                },
                (None, _) => ". ",
            }
        }
    }
}

/// What an event waits for.
fn waits(view: &View, event: &EventSummary, ahead: Option<&EventSummary>) -> Markup {
    let of = event_type(event);
    let mut pauses = view.pauses().iter();
    let pause = pauses.find(|it| match &it.of {
        Scope::Everything => true,
        Scope::Route(route) => *route == of.route,
        it => *it == Scope::Type(of.clone()),
    });
    let inbox = view.console.inbox.as_ref();
    let slowed = inbox.and_then(|inbox| inbox.slowed().remove(&of));
    html! {
        @if let Some(pause) = pause {
            "It is paused since " (full_time(pause.since)) ": it is not tried before somebody resumes "
            (scope(&pause.of)) "."
        } @else if let Some(ahead) = ahead {
            "It waits for " a href=(view.url(format_args!("/events/{}", ahead.id))) { "event " (ahead.id) }
            " of the same chat, which " (ahead.why_unsettled()) ". To redrive this event would change nothing before."
        } @else if let Some(next) = slowed {
            "Attempts of its type are slowed down by this process, as its events fail, and none succeeds. The next one begins "
            (next_attempt(next))
            @if view.can_change() { "; after " b { "Redrive" } ", it is that of this event" }
            "."
        } @else if event.state == EventState::InProgress {
            "An attempt is in progress."
        }
    }
}

fn event_type(event: &EventSummary) -> EventType {
    EventType::new(event.route.clone(), event.kind.clone())
}

fn summary(view: &View, record: &EventRecord) -> Markup {
    let event = &record.summary;
    html! {
        dl {
            dt { "Type" } dd { (clip(&event_type(event).to_string(), 200)) }
            dt { "Chat" } dd { (chat_of_any_length(view, event.chat.as_deref())) }
            dt { "Key" }
            dd {
                @match &event.key {
                    Some(key) => code { (clip(&escaped(&key.to_string()), 200)) },
                    None => span.quiet { "none" },
                }
            }
            @if let Some(item) = &record.item {
                dt { "Batch" }
                dd #item {
                    (item)
                    @match record.others.len() {
                        0 => {}
                        others if others + 1 < item.count() as usize => "; others near it:",
                        _ => "; the others:",
                    }
                    @for (number, id) in &record.others {
                        " " a href=(view.url(format_args!("/events/{id}"))) { (number) }
                    }
                }
            }
        }
    }
}

/// The start of a header's value, which may be as long as all headers of a request.
fn start(value: &[u8], most: usize) -> String {
    let read = &value[..value.len().min(most + 1)];
    clip(&read.escape_ascii().to_string(), most)
}

fn headers(record: &EventRecord) -> Markup {
    html! {
        dl #headers {
            @for (name, value) in record.headers.iter().take(HEADERS) {
                dt { (clip(name.as_str(), 60)) }
                dd { code { (start(value.as_bytes(), 260)) } }
            }
        }
    }
}

fn actions(view: &View, record: &EventRecord, ahead: Option<&EventSummary>) -> Markup {
    let event = &record.summary;
    // No button for what the queue would refuse, nor for what would change nothing.
    let can_redrive =
        event.state != EventState::InProgress && record.body.is_some() && ahead.is_none();
    let can_discard = event.state.is_unsettled() || event.state == EventState::Dead;
    let ahead = ahead.filter(|it| matches!(it.state, EventState::Retrying | EventState::Dead));
    html! {
        input type="hidden" name="state" value=(event.state);
        @if can_redrive { (redrive(view, event)) }
        @if let Some(ahead) = ahead {
            button.main #{ "redrive-" (ahead.id) } name="instead" value={ (ahead.id) ":" (ahead.state) }
                formaction=(view.url(format_args!("/events/{}/redrive", ahead.id))) { "Redrive event " (ahead.id) }
        }
        @if can_discard {
            button.danger #{ "discard-" (event.id) } formmethod="get" formnovalidate
                formaction=(view.url(format_args!("/events/{}/discard", event.id))) { "Discard…" }
        }
    }
}

/// The number of headers that are shown.
const HEADERS: usize = 20;

/// The number of failures that are shown.
const FAILURES: usize = 20;

fn timeline(view: &View, record: &EventRecord) -> Markup {
    let event = &record.summary;
    // Failures have their own. A dead letter is one.
    let is_success = matches!(event.state, EventState::Handled | EventState::Ignored);
    let recent = view.console.recent.as_ref().filter(|_| is_success);
    let took = recent
        .zip(event.settled_at)
        .and_then(|(recent, at)| recent.duration_of(event.id.0, at));
    let earlier = record.failures.len().saturating_sub(FAILURES);
    html! {
        ol.timeline {
            li { (full_time(event.accepted_at)) " accepted, " (ago(event.accepted_at)) " ago" }
            @if earlier > 0 { li { (earlier) " earlier failures" } }
            @for failure in &record.failures[earlier..] {
                li {
                    (full_time(failure.at)) " "
                    b.bad { (failure.failure.outcome) }
                    @if let Some(took) = failure.failure.took { " after " (short(took)) }
                    @if view.console.hides_payloads { " " span.quiet { "(reason hidden)" } }
                    @else { ": " (clip(&failure.failure.reason, 300)) }
                }
            }
            @if let Some(settled) = event.settled_at {
                li {
                    (full_time(settled)) " " b { (event.state) }
                    @if let Some(took) = took { " after " (short(took)) }
                }
            }
            @if let Some(due) = event.due_at {
                li { (full_time(due)) " " span.quiet { "next attempt" } }
            }
        }
    }
}

fn place(view: &View, event: &EventSummary, place: &Place) -> Markup {
    let is_cut = place.is_cut;
    // Others stand in no line: nothing waits for them.
    let stands =
        |it: &&EventSummary| it.id == event.id || place.blocked.is_some() || it.is_in_line();
    let lane: Vec<_> = place.unsettled.iter().filter(stands).collect();
    let before = lane.iter().take_while(|it| it.id != event.id).count();
    let holds = place.is_held_by(event.id);
    let behind = lane.iter().filter(|it| it.id > event.id && it.is_in_line());
    let behind: Vec<_> = behind.filter(|_| holds || event.is_in_line()).collect();
    let link =
        |id: EventId| html! { a href=(view.url(format_args!("/events/{id}"))) { "event " (id) } };
    let first = lane.first().filter(|first| first.id != event.id);
    html! {
        @match &place.blocked {
            Some(blocked) if blocked.event.id == event.id => p {
                "Its lane has waited for it for " (ago(blocked.since)) ", with " (waiting(blocked)) " behind it."
            },
            _ if event.is_redriven => p { "It was redriven, and waits for no other event." },
            Some(blocked) => p {
                "Waits behind " (link(blocked.event.id)) " (" (blocked.event.state) "), which has blocked the lane for "
                (ago(blocked.since)) ", with " (waiting(blocked)) " behind it."
            },
            _ if event.state == EventState::InProgress => p { "An attempt is in progress." },
            _ if event.state == EventState::Retrying => p { "It is retried, and its lane does not wait for it." },
            None => @match first {
                Some(first) => p {
                    "Waits behind " (link(first.id)) " (" (first.state) ", accepted " (ago(first.accepted_at)) " ago)"
                    @if before > 1 { " and " @if is_cut { "at least " } (before - 1) " more" }
                    "."
                },
                None if lane.is_empty() => p { "Which events wait before it was not found in time." },
                None => p { "It is the first event of its lane." },
            },
        }
        @if !behind.is_empty() {
            p { "Behind it:" }
            ol {
                @for next in &behind[..behind.len().min(BEHIND)] {
                    li { (link(next.id)) ", " (name(&next.route, &next.kind)) ", accepted " (ago(next.accepted_at)) " ago" }
                }
            }
            @if behind.len() > BEHIND { p { "And " @if is_cut { "at least " } (behind.len() - BEHIND) " more." } }
        }
    }
}

/// The number of events behind one that are listed.
const BEHIND: usize = 10;

/// What was looked for, as a number, a key and a chat.
pub(in super::super) fn found(
    view: &View,
    wanted: &str,
    number: &[EventSummary],
    of_key: &[EventSummary],
    of_chat: &[EventSummary],
    of_text: Option<&[EventSummary]>,
) -> Markup {
    let known = |it: &EventSummary| {
        let mut known = number.iter().chain(of_key).chain(of_chat);
        known.any(|known| known.id == it.id)
    };
    let others: Vec<_> = of_text
        .unwrap_or_default()
        .iter()
        .filter(|it| !known(it))
        .cloned()
        .collect();
    let all = [
        ("The event with this number", number),
        ("Events with this key", of_key),
        ("Newest events of this chat", of_chat),
        ("Newest events with this text in the payload", &others),
    ];
    let text = view.events(&[("payload", &escaped(wanted))]);
    let content = html! {
        div.title { h1 { "Find " (clip(wanted, 200)) } }
        div.stack {
            @for (title, events) in all {
                @if !events.is_empty() {
                    section {
                        h2 { (title) }
                        (table(view, events, Columns::All))
                    }
                }
            }
            @if !of_chat.is_empty() { p { a href=(view.chat(wanted)) { "All events of the chat, in their order" } } }
            @if of_text.is_some() { p { a #text href=(text) { "Search all payloads for this text" } } }
            @if all.iter().all(|(_, events)| events.is_empty()) {
                section {
                    p {
                        "No event has this number or key, or is of this chat. Perhaps its retention has expired, or its delivery was "
                        "refused: " a href=(view.url("/refusals")) { "Refusals" }
                    }
                }
            }
        }
    };
    view.page(&format!("Find {}", clip(wanted, 60)), "/events", &content)
}

/// Which event blocks a chat, and since when.
fn blocks(view: &View, blocked: &[BlockedLane]) -> Markup {
    html! {
        @for lane in blocked {
            @let event = &lane.event;
            div.alert.warn {
                p {
                    b {
                        "Blocked by " a href=(view.url(format_args!("/events/{}", event.id))) { "event " (event.id) }
                        " for " (ago(lane.since))
                    }
                    " (" (name(&event.route, &event.kind)) ", since " (full_time(lane.since)) "), which " (event.why_unsettled()) ". "
                    (waiting(lane)) @if lane.waiting == 1 { " waits" } @else { " wait" } " behind it. "
                    (reason(view, event.last_failure.as_ref(), 300))
                }
            }
        }
    }
}

pub(in super::super) fn chat(
    view: &View,
    chat: &str,
    blocked: &[BlockedLane],
    events: &[EventSummary],
    more: More,
    has_first: bool,
) -> Markup {
    let content = html! {
        div.title { h1 { "Chat " (clip(chat, 200)) } }
        div #blocked data-live { (blocks(view, blocked)) }
        section {
            p.quiet { "Its events, in the order in which they were accepted." }
            div #found {
                // A search adds rows.
                div #rows data-live[!matches!(more, More::Search(..))] { (table(view, events, Columns::OfChat)) }
                (rest(&view.chat(chat), more, has_first))
            }
        }
    };
    view.page(&format!("Chat {}", clip(chat, 60)), "/events", &content)
}
