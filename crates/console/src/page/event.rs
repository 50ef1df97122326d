//! One event, and one chat.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use maud::{Markup, html};
use serde::de::IgnoredAny;
use tower_webhook::inbox::{
    Action, ActionKind, BlockedLane, EventId, EventRecord, EventState, EventSummary, Scope, escaped,
};
use tower_webhook::{EventType, Item};

use super::super::reading::More;
use super::actions::of_event;
use super::events::{Columns, rest, table, waiting};
use super::parts::{chat_of_any_length, next_attempt, reason, reason_field, redrive, state};
use super::text::{ago, clip, full_time, labelled_time, name, scope, short};
use super::view::View;

/// What is known of the lane of an event.
#[derive(Default)]
pub(in super::super) struct Place {
    /// The first unsettled events of its chat, if the event is unsettled.
    pub(in super::super) unsettled: Vec<EventSummary>,
    /// Whether there may be more of them.
    pub(in super::super) is_cut: bool,
    /// The event for which the lane waits.
    pub(in super::super) blocked: Option<BlockedLane>,
}

impl Place {
    /// The event for which another one waits.
    fn ahead(&self, event: &EventSummary) -> Option<&EventSummary> {
        let blocked = self.blocked.as_ref().map(|blocked| &blocked.event);
        let is_in_line = |it: &&EventSummary| it.id == event.id || is_in_line(it);
        let first = match (blocked, event.state) {
            _ if event.is_redriven || !event.state.is_unsettled() => None,
            (Some(blocked), _) => Some(blocked),
            (None, EventState::Waiting) => self.unsettled.iter().find(is_in_line),
            (None, _) => None,
        };
        first.filter(|first| first.id < event.id)
    }
}

/// A line has the order of the numbers. Others that are retried or redriven stand in none.
fn is_in_line(event: &EventSummary) -> bool {
    !event.is_redriven && event.state != EventState::Retrying
}

pub(in super::super) fn event(
    view: &View,
    record: &EventRecord,
    lane: &Place,
    done: &[Action],
) -> Markup {
    let event = &record.summary;
    let content = html! {
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
            " of the same chat, which " (why(ahead)) ". To redrive this event would change nothing before."
        } @else if let Some(next) = slowed {
            "Attempts of its type are slowed down, as its events fail, and none succeeds. The next one begins "
            (next_attempt(next))
            @if view.can_change() { "; after " b { "Redrive" } ", it is that of this event" }
            "."
        } @else if event.state == EventState::InProgress {
            "An attempt is in progress."
        }
    }
}

/// Why an event is not done, after "which".
fn why(event: &EventSummary) -> Markup {
    html! {
        @match (event.state, event.due_at) {
            (EventState::Dead, _) => "is a dead letter that holds the chat: redrive or discard it",
            (EventState::InProgress, _) => "is handled now",
            (EventState::Retrying, Some(due)) => { "has failed, and is tried again " (next_attempt(due)) },
            (EventState::Retrying, None) => "has failed, and is tried again as soon as a worker is free",
            _ => "is first",
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
                    @if !record.others.is_empty() { "; the others:" }
                    @for (number, id) in record.others.iter().take(OTHERS) {
                        " " a href=(view.url(format_args!("/events/{id}"))) { (number) }
                    }
                    @if record.others.len() > OTHERS { " …" }
                }
            }
        }
    }
}

/// The number of other items of a batch that are linked.
const OTHERS: usize = 20;

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
        |it: &&EventSummary| it.id == event.id || place.blocked.is_some() || is_in_line(it);
    let lane: Vec<_> = place.unsettled.iter().filter(stands).collect();
    let before = lane.iter().take_while(|it| it.id != event.id).count();
    let blocked = place.blocked.as_ref();
    let holds = blocked.is_some_and(|blocked| blocked.event.id == event.id);
    let behind = lane.iter().filter(|it| it.id > event.id && is_in_line(it));
    let behind: Vec<_> = behind.filter(|_| holds || is_in_line(event)).collect();
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

/// The longest payload that is shown, in bytes of HTML.
const MOST: usize = 14_500;

fn payload(view: &View, record: &EventRecord) -> Markup {
    if view.console.hides_payloads {
        return html! { p.quiet { "Payloads are hidden." } };
    }
    let Some(body) = &record.body else {
        return html! { p.quiet { "The body was deleted." } };
    };
    let (shown, is_cut) = beginning(body);
    let mut times = 0;
    html! {
        pre tabindex="0" aria-label="Payload" {
            @for line in shown.split_inclusive('\n') {
                @match in_millis(line).filter(|_| times < TIMES) {
                    Some((before, at, after)) => {
                        @let () = times += 1;
                        (before) (labelled_time(at)) (after)
                    },
                    None => (line),
                }
            }
        }
        @if is_cut { p.quiet { "This is the beginning of " (body.len()) " bytes." } }
    }
}

/// Returns what is shown of a body, and whether that is only its beginning. The page asks again each second, so nothing
/// reads more of the body than can be shown: [`MOST`] characters of an escape each.
fn beginning(body: &[u8]) -> (String, bool) {
    let read = &body[..body.len().min(6 * MOST)];
    let text = String::from_utf8_lossy(read);
    // Only whether it is JSON: parsed values would lose the order of keys and digits of large numbers.
    let is_json = match serde_json::from_slice::<IgnoredAny>(read) {
        Ok(_) => true,
        Err(error) => error.is_eof() && read.len() < body.len(),
    };
    let text = match is_json {
        true => Cow::Owned(indented(&text, MOST)),
        false => text,
    };
    let shown = clip(&text, MOST);
    let is_cut = shown != text || read.len() < body.len();
    (shown, is_cut)
}

/// Indents JSON, keeps the order of its keys, and decodes its strings. Ends after `most` bytes: a line costs its depth, so
/// a body of n brackets would become n² bytes.
fn indented(json: &str, most: usize) -> String {
    let (mut text, mut depth, mut is_empty) = (String::new(), 0_usize, false);
    let mut chars = json.char_indices();
    while text.len() <= most
        && let Some((start, char)) = chars.next()
    {
        if matches!(char, '}' | ']') {
            depth = depth.saturating_sub(1);
        }
        let is_first = std::mem::take(&mut is_empty);
        match char {
            ' ' | '\t' | '\r' | '\n' => is_empty = is_first,
            '}' | ']' if is_first => text.push(char),
            '}' | ']' => push_line(&mut text, depth.min(most), char),
            _ if is_first => push_line(&mut text, depth.min(most), char),
            _ => text.push(char),
        }
        match char {
            '{' | '[' => (depth, is_empty) = (depth + 1, true),
            ',' => is_empty = true,
            ':' => text.push(' '),
            '"' => {
                let mut is_escaped = false;
                let end = chars.find(|(_, char)| {
                    let is_end = *char == '"' && !is_escaped;
                    is_escaped = *char == '\\' && !is_escaped;
                    is_end
                });
                let string = &json[start..end.map_or(json.len(), |(end, _)| end + 1)];
                // The quote was pushed above, and `decoded` has its own.
                text.pop();
                text += &decoded(string, most).unwrap_or_else(|| string.to_owned());
            }
            _ => {}
        }
    }
    text
}

/// Writes a string of JSON without needless escapes. `None` if even without its escapes, of six bytes for a byte, it is
/// longer than `most`.
fn decoded(string: &str, most: usize) -> Option<String> {
    let string = Some(string).filter(|string| string.len() / 6 <= most)?;
    let decoded = serde_json::from_str(string).map(serde_json::Value::String);
    Some(decoded.ok()?.to_string())
}

fn push_line(text: &mut String, depth: usize, char: char) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth));
    text.push(char);
}

/// The number of times in a payload that are readable.
const TIMES: usize = 50;

/// Splits a line of JSON whose value is a time in milliseconds since 1970, from 2001 to 2100.
fn in_millis(line: &str) -> Option<(&str, SystemTime, &str)> {
    let end = line.trim_end().trim_end_matches(',').len();
    let start = line[..end]
        .trim_end_matches(|char: char| char.is_ascii_digit())
        .len();
    let (before, digits, after) = (&line[..start], &line[start..end], &line[end..]);
    // Digits after anything else end a text, a fraction or a negative number.
    let is_value = before.ends_with(": ") || before.trim().is_empty();
    let millis = digits.parse().ok().filter(|_| is_value)?;
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
    (1_000_000_000_000..4_102_444_800_000)
        .contains(&millis)
        .then_some((before, at, after))
}

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
                    " (" (name(&event.route, &event.kind)) ", since " (full_time(lane.since)) "), which " (why(event)) ". "
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IgnoredAny;
    use serde_json::Value;

    use super::{MOST, beginning, in_millis, indented};

    #[test]
    fn payloads_keep_the_order_of_their_keys() {
        let json = r#"{"z":[],"a":{ "\u00eb\"\\":[1,{"b":null}]},"n":12345678901234567890123}"#;
        let lines = [
            "{",
            r#"  "z": [],"#,
            r#"  "a": {"#,
            r#"    "ë\"\\": ["#,
            "      1,",
            "      {",
            r#"        "b": null"#,
            "      }",
            "    ]",
            "  },",
            r#"  "n": 12345678901234567890123"#,
            "}",
        ];
        assert_eq!(indented(json, MOST).lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn indented_json_costs_what_is_shown() {
        let depth = 500_000;
        let (nested, string) = (
            "[".repeat(depth) + &"]".repeat(depth),
            "\\u00eb".repeat(depth),
        );
        for json in [
            nested,
            format!("[\"{string}\"]"),
            format!("{{\"{string}\":1}}"),
        ] {
            assert!(serde_json::from_str::<IgnoredAny>(&json).is_ok());
            let text = indented(&json, MOST);
            assert!(
                text.len() > MOST && text.capacity() < 4 * json.len(),
                "{}",
                text.len()
            );
        }
        let nested = indented(&"[".repeat(depth), MOST);
        assert!(nested.len() < 4 * MOST, "{}", nested.len());
    }

    #[test]
    fn a_body_is_read_as_far_as_it_is_shown() {
        let half = 1 << 19;
        for json in [
            "[".repeat(half) + &"]".repeat(half),
            format!("{{\"{}\":1}}", "x".repeat(2 * half)),
            format!("[\"{}\"]", "\\u00eb".repeat(half / 3)),
            format!("[1{}]", ",1".repeat(500_000)),
            format!("{{{}\"a\":1}}", " ".repeat(2 * half)),
        ] {
            let (shown, is_cut) = beginning(json.as_bytes());
            assert!(is_cut && shown.len() <= MOST + "…".len(), "{}", shown.len());
            // What is behind can say anything.
            let (mut other, read) = (json.clone().into_bytes(), 6 * MOST);
            other[read..].fill(b'!');
            assert_eq!(beginning(&other), (shown, true));
        }
        let (shown, is_cut) = beginning(br#"{"a":[1]}"#);
        assert_eq!(
            (shown.as_str(), is_cut),
            ("{\n  \"a\": [\n    1\n  ]\n}", false)
        );
        // What is cut, and what is no JSON.
        for text in ["[1,", "plain", "{\"a\":}"] {
            assert_eq!(beginning(text.as_bytes()), (text.to_owned(), false));
        }
        let text = "plain ".repeat(50_000);
        assert_eq!(beginning(text.as_bytes()).0, format!("{}…", &text[..MOST]));
    }

    #[test]
    fn milliseconds_are_times_where_they_are_values() {
        for line in [
            r#"  "at": 1732567890123,"#,
            "1732567890123",
            "    1732567890123\n",
        ] {
            let (before, _, after) = in_millis(line).unwrap();
            assert_eq!(format!("{before}1732567890123{after}"), line);
        }
        for line in [
            r#"  "at": "1732567890123","#,
            r#"  "at": 17.1732567890123"#,
            r#"  "at": -1732567890123"#,
            r#"  "id": 17325678901234,"#,
            r#"  "n": 999999999999,"#,
            "",
        ] {
            assert!(in_millis(line).is_none(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn indented_json_is_the_same_value(texts: Vec<String>, number: i64) {
            let value = serde_json::json!({ "a": texts, "b": [[], {}, number, { "c": texts }] });
            let same: Value = serde_json::from_str(&indented(&value.to_string(), usize::MAX)).unwrap();
            prop_assert_eq!(same, value);
        }

        #[test]
        fn any_text_is_indented(text: String) {
            indented(&text, MOST);
            in_millis(&text);
        }
    }
}
