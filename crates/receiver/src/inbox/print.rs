//! Tables for people, and lines of JSON for programs.

use std::io::{self, Write};
use std::iter;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;
use tower_webhook::inbox::{
    Action, ActionKind, BlockedLane, EventRecord, EventState, EventSummary, Scope, Stats, escaped,
    expected, in_words,
};
use tower_webhook::{EventKind, EventType};

use crate::json::{Batch, line_with_payload};
use crate::text::{is_control, printable};

/// The longest text in a column.
const WIDEST: usize = 40;

pub(crate) fn table(events: &[EventSummary]) -> io::Result<()> {
    write_table(&mut io::stdout().lock(), events)
}

/// The first events that are about to be changed.
pub(crate) fn preview(events: &[EventSummary], count: usize) -> io::Result<()> {
    let mut out = io::stderr().lock();
    write_table(&mut out, events)?;
    match count.saturating_sub(events.len()) {
        0 => Ok(()),
        more => writeln!(out, "… and {more} more"),
    }
}

fn write_table(out: &mut impl Write, events: &[EventSummary]) -> io::Result<()> {
    let head = ["ID", "STATE", "TYPE", "CHAT", "KEY", "ACCEPTED", "FAILURES"].map(str::to_owned);
    let rows = events.iter().map(|event| {
        [
            event.id.to_string(),
            event.state.to_string(),
            short(&event_type(event, &event.kind)),
            short(&event.chat.as_deref().map_or("-".into(), escaped)),
            short(
                &event
                    .key
                    .as_ref()
                    .map_or("-".into(), |key| escaped(&key.to_string()).into_owned()),
            ),
            ago(event.accepted_at),
            event.failures.to_string(),
        ]
    });
    write_rows(out, iter::once(head).chain(rows).collect())
}

pub(crate) fn write_rows<const N: usize>(
    out: &mut impl Write,
    rows: Vec<[String; N]>,
) -> io::Result<()> {
    let mut widths = [0; N];
    for row in &rows {
        for (width, text) in widths.iter_mut().zip(row) {
            *width = text.chars().count().max(*width);
        }
    }
    for row in rows {
        let cells: Vec<_> = row
            .iter()
            .zip(widths)
            .map(|(text, width)| format!("{text:width$}"))
            .collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

pub(crate) fn lines(events: &[EventSummary]) -> io::Result<()> {
    write_lines(events.iter().map(Summary::of))
}

fn write_lines(values: impl Iterator<Item = impl Serialize>) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for value in values {
        line(&mut out, &value)?;
    }
    out.flush()
}

pub(crate) fn lanes(lanes: &[BlockedLane]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if lanes.is_empty() {
        return writeln!(out, "no chat waits for an event that has failed");
    }
    let head = ["EVENT", "STATE", "TYPE", "CHAT", "SINCE", "WAITING"].map(str::to_owned);
    let rows = lanes.iter().map(|lane| {
        let event = &lane.event;
        [
            event.id.to_string(),
            event.state.to_string(),
            short(&event_type(event, &event.kind)),
            short(&event.chat.as_deref().map_or("-".into(), escaped)),
            ago(lane.since),
            lane.waiting.to_string(),
        ]
    });
    write_rows(&mut out, iter::once(head).chain(rows).collect())
}

pub(crate) fn lane_lines(lanes: &[BlockedLane]) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line {
        event: Summary,
        since: i64,
        waiting: u64,
    }

    write_lines(lanes.iter().map(|lane| Line {
        event: Summary::of(&lane.event),
        since: millis(lane.since),
        waiting: lane.waiting,
    }))
}

pub(crate) fn gaps(gaps: &[EventSummary]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if gaps.is_empty() {
        return writeln!(out, "no chat is incomplete");
    }
    let head = ["EVENT", "CHAT", "HAS", "ACCEPTED", "WITHOUT"].map(str::to_owned);
    let rows = gaps.iter().map(|event| {
        [
            event.id.to_string(),
            short(&event.chat.as_deref().map_or("-".into(), escaped)),
            short(&event_type(event, &event.kind)),
            ago(event.accepted_at),
            missing(event)
                .map(|kind| event_type(event, kind))
                .collect::<Vec<_>>()
                .join(" or "),
        ]
    });
    write_rows(&mut out, iter::once(head).chain(rows).collect())
}

pub(crate) fn gap_lines(gaps: &[EventSummary]) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line {
        event: Summary,
        /// One of these kinds.
        without: Vec<&'static str>,
    }

    write_lines(gaps.iter().map(|event| Line {
        event: Summary::of(event),
        without: missing(event).map(EventKind::as_str).collect(),
    }))
}

fn missing(event: &EventSummary) -> impl Iterator<Item = &'static EventKind> {
    expected(&event.kind).iter()
}

/// The type of an event of this kind at the same route.
fn event_type(event: &EventSummary, kind: &EventKind) -> String {
    EventType::new(event.route.clone(), kind.clone()).to_string()
}

pub(crate) fn actions(actions: &[Action]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let head = ["NUMBER", "AT", "BY", "ACTION", "OF", "CHANGED", "REASON"].map(str::to_owned);
    let rows = actions.iter().map(|action| {
        let of = match (action.event, &action.bulk, action.about.as_deref()) {
            (Some(event), ..) => format!("event {event}"),
            (_, Some(bulk), _) => format!("all that match ({})", bulk.state.name()),
            (.., Some("")) => "everything".to_owned(),
            (.., Some(number)) if action.kind == ActionKind::Cancel => format!("action {number}"),
            (.., about) => about.unwrap_or("-").to_owned(),
        };
        [
            action.number.to_string(),
            ago(action.at),
            short(action.by.who()),
            action.kind.to_string(),
            short(&of),
            action.changed.to_string(),
            short(action.by.reason()),
        ]
    });
    write_rows(&mut out, iter::once(head).chain(rows).collect())
}

pub(crate) fn action_lines(actions: &[Action]) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        number: i64,
        at: i64,
        by: &'a str,
        action: &'a str,
        event: Option<i64>,
        about: Option<&'a str>,
        bulk: Option<&'a str>,
        changed: u64,
        reason: &'a str,
    }

    write_lines(actions.iter().map(|action| Line {
        number: action.number,
        at: millis(action.at),
        by: action.by.who(),
        action: action.kind.name(),
        event: action.event.map(|event| event.0),
        about: action.about.as_deref(),
        bulk: action.bulk.as_ref().map(|bulk| bulk.state.name()),
        changed: action.changed,
        reason: action.by.reason(),
    }))
}

fn line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    writeln!(out, "{}", printable_json(&serde_json::to_string(value)?))
}

/// JSON of the same value, in which the characters that control a terminal are escaped. They occur only in strings.
fn printable_json(json: &str) -> String {
    let mut printable = String::new();
    for char in json.chars() {
        match is_control(char) && char != '\n' {
            true => printable += &format!("\\u{:04x}", u32::from(char)),
            false => printable.push(char),
        }
    }
    printable
}

/// Indents JSON of so many bytes, unless it would become 16 times as long: in 127 brackets, a line costs 256 bytes for a
/// comma.
fn indented(value: &Value, length: usize) -> serde_json::Result<String> {
    let mut text = vec![0; 16 * length.max(64)];
    let mut room = &mut text[..];
    match serde_json::to_writer_pretty(&mut room, value) {
        Ok(()) => {
            let left = room.len();
            text.truncate(text.len() - left);
            String::from_utf8(text).map_err(serde::ser::Error::custom)
        }
        Err(_) => serde_json::to_string(value),
    }
}

pub(crate) fn short(text: &str) -> String {
    let text = printable(text);
    if text.chars().count() <= WIDEST {
        return text;
    }
    let start: String = text.chars().take(WIDEST - 1).collect();
    format!("{start}…")
}

pub(crate) fn ago(time: SystemTime) -> String {
    match time.elapsed() {
        Ok(age) => format!("{} ago", in_words(age)),
        Err(_) => "now".to_owned(),
    }
}

fn millis(time: SystemTime) -> i64 {
    let millis = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    i64::try_from(millis).unwrap_or(i64::MAX)
}

/// An event as a line of JSON. Times are milliseconds since 1970.
#[derive(Serialize)]
struct Summary {
    id: i64,
    route: String,
    kind: String,
    key: Option<String>,
    chat: Option<String>,
    state: &'static str,
    accepted_at: i64,
    settled_at: Option<i64>,
    due_at: Option<i64>,
    failed_attempts: u32,
    redriven: bool,
}

impl Summary {
    fn of(event: &EventSummary) -> Self {
        Self {
            id: event.id.0,
            route: event.route.to_string(),
            kind: event.kind.to_string(),
            key: event.key.as_ref().map(ToString::to_string),
            chat: event.chat.clone(),
            state: event.state.name(),
            accepted_at: millis(event.accepted_at),
            settled_at: event.settled_at.map(millis),
            due_at: event.due_at.map(millis),
            failed_attempts: event.failures,
            redriven: event.is_redriven,
        }
    }
}

#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    summary: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<Batch>,
    headers: Vec<(&'a str, String)>,
    failures: Vec<PastFailure<'a>>,
    /// The body in hex, if it is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_hex: Option<String>,
}

#[derive(Serialize)]
struct PastFailure<'a> {
    at: i64,
    took_ms: Option<f64>,
    outcome: &'a str,
    reason: &'a str,
}

pub(crate) fn record_line(record: &EventRecord) -> io::Result<()> {
    let text = |body| {
        let text = str::from_utf8(body).ok()?;
        serde_json::from_str::<Value>(text).ok().map(|_| text)
    };
    let body = record.body.as_deref();
    let payload = body.and_then(text);
    let record = Record {
        summary: Summary::of(&record.summary),
        batch: record.item.as_ref().map(|item| {
            let others = record.others.iter().map(|(_, id)| id.0);
            Batch::of(item, Some(others.collect()))
        }),
        headers: record
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes().escape_ascii().to_string()))
            .collect(),
        failures: record
            .failures
            .iter()
            .map(|past| PastFailure {
                at: millis(past.at),
                took_ms: past.failure.took.map(|took| took.as_secs_f64() * 1e3),
                outcome: &past.failure.outcome,
                reason: &past.failure.reason,
            })
            .collect(),
        payload_hex: match payload {
            Some(_) => None,
            None => body.map(base16ct::lower::encode_string),
        },
    };
    let mut out = io::stdout().lock();
    match payload {
        Some(payload) => {
            out.write_all(printable_json(&line_with_payload(&record, payload)?).as_bytes())
        }
        None => line(&mut out, &record),
    }
}

/// `ahead` is the event for which it waits.
pub(crate) fn record(record: &EventRecord, ahead: Option<&EventSummary>) -> io::Result<()> {
    let event = &record.summary;
    let time = |time: SystemTime| format!("{} ({})", httpdate::fmt_http_date(time), ago(time));
    let mut out = io::stdout().lock();
    writeln!(out, "event     {}", event.id)?;
    writeln!(out, "state     {}", event.state)?;
    writeln!(
        out,
        "kind      {}",
        printable(&event_type(event, &event.kind))
    )?;
    if let Some(chat) = &event.chat {
        writeln!(out, "chat      {}", escaped(chat))?;
    }
    if let Some(key) = &event.key {
        writeln!(out, "key       {}", escaped(&key.to_string()))?;
    }
    writeln!(out, "accepted  {}", time(event.accepted_at))?;
    if let Some(settled) = event.settled_at {
        let label = match event.state {
            EventState::Dead => "dead since",
            _ => "settled",
        };
        writeln!(out, "{label:<9} {}", time(settled))?;
    }
    if let Some(due) = event.due_at {
        writeln!(out, "next try  {}", httpdate::fmt_http_date(due))?;
    }
    if event.is_redriven {
        writeln!(out, "redriven  yes")?;
    }
    if let Some(ahead) = ahead {
        let why = ahead.why_unsettled();
        writeln!(out, "waits for event {} of the chat, which {why}", ahead.id)?;
    }
    if let Some(item) = &record.item {
        write!(out, "batch     {item}")?;
        for (at, (number, id)) in record.others.iter().enumerate() {
            let before = match at {
                0 if record.others.len() + 1 < item.count() as usize => "; near it, event",
                0 => "; event",
                _ => ",",
            };
            write!(out, "{before} {id} is item {number}")?;
        }
        writeln!(out)?;
        if let Some(kept) = item.kept() {
            writeln!(out, "kept      {}", printable_json(kept))?;
        }
    }
    for (name, value) in &record.headers {
        writeln!(out, "header    {name}: {}", value.as_bytes().escape_ascii())?;
    }
    for past in &record.failures {
        let took = past.failure.took.map(|took| format!(" after {took:.1?}"));
        writeln!(
            out,
            "failure   {}{}: {}: {}",
            httpdate::fmt_http_date(past.at),
            took.unwrap_or_default(),
            printable(&past.failure.outcome),
            printable(&past.failure.reason)
        )?;
    }
    writeln!(out)?;
    match &record.body {
        None => writeln!(out, "(the body was deleted)"),
        Some(body) => match serde_json::from_slice(body) {
            Ok(value) => writeln!(out, "{}", printable_json(&indented(&value, body.len())?)),
            Err(_) => writeln!(out, "{}", body.escape_ascii()),
        },
    }
}

pub(crate) fn stats(stats: &Stats) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match stats.to_string().as_str() {
        "" => writeln!(out, "every event is settled")?,
        text => out.write_all(text.as_bytes())?,
    }
    for pause in &stats.pauses {
        let of = match &pause.of {
            Scope::Everything => "everything".to_owned(),
            of => printable(&of.to_string()),
        };
        writeln!(
            out,
            "{of} was paused {}: {}",
            ago(pause.since),
            printable(&pause.note)
        )?;
    }
    for (note, _) in stats.away() {
        writeln!(
            out,
            "nobody handles {}: {} was last seen {}",
            printable(&note.of.to_string()),
            printable(&note.worker),
            ago(note.seen)
        )?;
    }
    Ok(())
}

pub(crate) fn stats_line(stats: &Stats) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line {
        paused: bool,
        kinds: Vec<Kind>,
        handlers: Vec<Handler>,
    }

    #[derive(Serialize)]
    struct Handler {
        of: String,
        is_fallback: bool,
        worker: String,
        seen: i64,
    }

    #[derive(Serialize)]
    struct Kind {
        route: String,
        kind: String,
        waiting: u64,
        in_progress: u64,
        retrying: u64,
        dead: u64,
        blocked_lanes: u64,
        oldest: Option<i64>,
        paused: bool,
    }

    let kinds = stats.kinds.iter().map(|kind| Kind {
        route: kind.route.to_string(),
        kind: kind.kind.to_string(),
        waiting: kind.waiting,
        in_progress: kind.in_progress,
        retrying: kind.retrying,
        dead: kind.dead,
        blocked_lanes: kind.blocking,
        oldest: kind.oldest.map(millis),
        paused: kind.is_paused,
    });
    let handlers = stats.handlers.iter().map(|note| Handler {
        of: note.of.to_string(),
        is_fallback: note.is_fallback,
        worker: note.worker.clone(),
        seen: millis(note.seen),
    });
    let mut out = io::stdout().lock();
    line(
        &mut out,
        &Line {
            paused: stats.is_paused(),
            kinds: kinds.collect(),
            handlers: handlers.collect(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_indented_body_is_at_most_16_times_as_long() {
        let (open, close) = ("[".repeat(126), "]".repeat(126));
        let ones = format!("{open}1{}{close}", ",1".repeat(500_000));
        let nested = format!("{}{}", "[".repeat(127), "]".repeat(127));
        for (json, is_indented) in [
            (ones.as_str(), false),
            (&nested, false),
            (r#"{"a":[1,{"b":"c"}],"d":{}}"#, true),
            (&format!("[1{}]", ",1".repeat(500_000)), true),
            (&format!(r#"{{"{}":1}}"#, "x".repeat(1 << 20)), true),
        ] {
            let text = indented(&serde_json::from_str(json).unwrap(), json.len()).unwrap();
            assert_eq!(text.contains('\n'), is_indented, "{}", text.len());
            assert!(text.len() <= 16 * json.len(), "{}", text.len());
        }
    }
}
