//! The events of a filter as a file, which is sent while they are read.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::SystemTime;

use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::response::IntoResponse;
use axum::{BoxError, Extension};
use futures_util::future::try_join_all;
use futures_util::stream::try_unfold;
use http::HeaderMap;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};
use tower_webhook::Item;
use tower_webhook::inbox::{EventId, EventRecord, Filter, Inbox, Page};

use super::guard::actor;
use super::page::{View, clamped};
use super::problem::Problem;
use super::reading::{SEARCH, read};
use super::request::{Search, inbox};

/// The number of events that are listed at a time.
const STEP: usize = 512;

/// The number of events that are in memory at a time, with their payloads: fewer while these are large.
const AT_ONCE: RangeInclusive<usize> = 8..=64;

/// The size of the payloads after which fewer events are read at a time, in bytes.
const LARGE: usize = 256 << 10;

/// About the size of what is written of an event beside its payload, in bytes.
const OTHERS: usize = 1 << 10;

#[derive(Clone, Copy)]
enum Format {
    JsonLines,
    Csv,
}

pub(super) async fn export(
    Extension(view): Extension<View>,
    headers: HeaderMap,
    search: Result<Query<Search>, QueryRejection>,
) -> Result<impl IntoResponse, Problem> {
    let (console, Query(search)) = (view.console, search?);
    let format = match search.format.as_str() {
        "jsonl" => Format::JsonLines,
        "csv" => Format::Csv,
        other => {
            let reason = format!("`{other}` is not a format. The formats are `jsonl` and `csv`.");
            return Err(Problem::bad(reason));
        }
    };
    let filter = search.filter(&console)?;
    let inbox = inbox(&console)?.clone();
    let turn = console.turns.of_export().await;
    // Events that are accepted meanwhile are not in it, so that it ends.
    let newest = Page::newest(1).within(SEARCH);
    let listed = read(inbox.list(&Filter::default(), newest)).await?;
    let newest = listed.events.first().map(|event| event.id);
    tracing::info!(
        actor = actor(&console, &headers),
        filter = search.logged(),
        format = search.format,
        "the console exports events"
    );
    let hides_payloads = console.hides_payloads;
    let mut page = Page::oldest(STEP).within(SEARCH);
    page.newest_first = search.newest_first();
    let export = Export {
        newest: newest.or(listed.searched).unwrap_or(EventId(0)),
        page: Some(page),
        head: matches!(format, Format::Csv).then(|| head(hides_payloads)),
        inbox,
        filter,
        format,
        hides_payloads,
        listed: VecDeque::new(),
        at_once: *AT_ONCE.start(),
        _turn: turn,
    };
    let (kind, name) = match format {
        Format::JsonLines => ("application/x-ndjson", "events.jsonl"),
        Format::Csv => ("text/csv; charset=utf-8", "events.csv"),
    };
    let name = format!("attachment; filename=\"{name}\"");
    let headers = [(CONTENT_TYPE, kind.to_owned()), (CONTENT_DISPOSITION, name)];
    Ok((headers, Body::from_stream(try_unfold(export, Export::step))))
}

struct Export {
    inbox: Inbox,
    filter: Filter,
    format: Format,
    hides_payloads: bool,
    /// The first line of a table, until it is written.
    head: Option<Vec<u8>>,
    newest: EventId,
    /// The next page. `None` after the last one.
    page: Option<Page>,
    /// Events that are not written yet.
    listed: VecDeque<EventId>,
    /// How many of them are read next.
    at_once: usize,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Export {
    /// The next part of the file. An error closes the connection, so that nobody takes a part for the whole.
    async fn step(mut self) -> Result<Option<(Bytes, Self)>, BoxError> {
        if let Some(head) = self.head.take() {
            return Ok(Some((head.into(), self)));
        }
        // A search that has ended by its time may have found nothing, and still goes on.
        while self.listed.is_empty() {
            let Some(page) = self.page.take() else {
                return Ok(None);
            };
            let listed = read(self.inbox.list(&self.filter, page)).await?;
            let after = listed.next(page.limit);
            // From the newest, the list ends by itself. From the oldest, it would follow new events as they arrive.
            let goes_on = after.filter(|after| page.newest_first || *after < self.newest);
            self.page = goes_on.map(|after| page.after(after));
            let ids = listed.events.iter().map(|event| event.id);
            self.listed.extend(ids.filter(|id| *id <= self.newest));
        }
        let some = self.listed.drain(..self.at_once.min(self.listed.len()));
        let (inbox, began) = (&self.inbox, Instant::now());
        // At once, since PostgreSQL answers concurrent look-ups with one statement.
        let records = try_join_all(some.map(|id| read(inbox.get(id)))).await?;
        // Deliveries have their turn.
        sleep(began.elapsed() / 2).await;
        let records = records.into_iter().flatten();
        // They may have changed meanwhile.
        let records: Vec<_> = (records.filter(|it| self.filter.matches(&it.summary))).collect();
        let bodies = records.iter().filter_map(|record| record.body.as_ref());
        let bytes = bodies.map(Bytes::len).sum();
        // Most payloads have few characters that are escaped.
        let expected = if self.hides_payloads { 0 } else { bytes };
        let mut text = Vec::with_capacity(expected + records.len() * OTHERS);
        for record in &records {
            match self.format {
                Format::JsonLines => write_line(&mut text, record, self.hides_payloads)?,
                Format::Csv => write_row(&mut text, record, self.hides_payloads),
            }
        }
        let (fewest, most) = AT_ONCE.into_inner();
        self.at_once = match bytes {
            ..LARGE => most.min(2 * self.at_once),
            _ => fewest,
        };
        Ok(Some((text.into(), self)))
    }
}

fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(clamped(at)).to_string()
}

/// An event as a line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    id: i64,
    route: &'a str,
    kind: &'a str,
    chat: Option<&'a str>,
    key: Option<String>,
    state: &'a str,
    accepted_at: String,
    settled_at: Option<String>,
    failed_attempts: u32,
    redriven: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<u32>,
    failures: Vec<Past<'a>>,
    /// The text that was received.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    /// What was received, if it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_escaped: Option<String>,
    /// What is kept of the delivery of an item.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<&'a str>,
}

#[derive(Serialize)]
struct Past<'a> {
    at: String,
    outcome: &'a str,
    reason: Option<&'a str>,
}

fn write_line(
    to: &mut Vec<u8>,
    record: &EventRecord,
    hides_payloads: bool,
) -> serde_json::Result<()> {
    let event = &record.summary;
    let body = record.body.as_ref().filter(|_| !hides_payloads);
    let text = body.map(|body| str::from_utf8(body));
    let item = record.item.as_ref();
    let line = Line {
        id: event.id.0,
        route: event.route.as_str(),
        kind: event.kind.as_str(),
        chat: event.chat.as_deref(),
        key: event.key.as_ref().map(ToString::to_string),
        state: event.state.name(),
        accepted_at: time(event.accepted_at),
        settled_at: event.settled_at.map(time),
        failed_attempts: event.failures,
        redriven: event.is_redriven,
        item: item.map(Item::number),
        items: item.map(Item::count),
        failures: (record.failures.iter())
            .map(|past| Past {
                at: time(past.at),
                outcome: &past.failure.outcome,
                reason: (!hides_payloads).then_some(&past.failure.reason),
            })
            .collect(),
        payload: text.and_then(Result::ok),
        payload_escaped: match text {
            Some(Err(_)) => body.map(|body| body.escape_ascii().to_string()),
            _ => None,
        },
        kept: item.and_then(Item::kept).filter(|_| !hides_payloads),
    };
    serde_json::to_writer(&mut *to, &line)?;
    to.push(b'\n');
    Ok(())
}

const COLUMNS: &[&str] = &[
    "id",
    "route",
    "kind",
    "chat",
    "key",
    "state",
    "accepted_at",
    "settled_at",
    "failed_attempts",
    "redriven",
    "item",
    "items",
    "last_failure",
    "outcome",
];

/// Those that are hidden with the payloads.
const HIDDEN: &[&str] = &["reason", "payload", "kept"];

fn head(hides_payloads: bool) -> Vec<u8> {
    let mut head = Vec::new();
    let hidden = HIDDEN.iter().filter(|_| !hides_payloads);
    let names = COLUMNS.iter().chain(hidden);
    write_cells(&mut head, names.map(|name| Cow::Borrowed(*name)));
    head
}

/// Writes an event as a row of a table.
fn write_row(to: &mut Vec<u8>, record: &EventRecord, hides_payloads: bool) {
    let event = &record.summary;
    let last = record.failures.last();
    let key = event.key.as_ref().map(ToString::to_string);
    let item = record.item.as_ref();
    let number = |number: fn(&Item) -> u32| {
        let number = item.map(|item| number(item).to_string());
        number.unwrap_or_default().into()
    };
    let known: [Cow<'_, str>; COLUMNS.len()] = [
        event.id.to_string().into(),
        event.route.as_str().into(),
        event.kind.as_str().into(),
        event.chat.as_deref().unwrap_or_default().into(),
        key.unwrap_or_default().into(),
        event.state.name().into(),
        time(event.accepted_at).into(),
        event.settled_at.map(time).unwrap_or_default().into(),
        event.failures.to_string().into(),
        event.is_redriven.to_string().into(),
        number(Item::number),
        number(Item::count),
        last.map(|past| time(past.at)).unwrap_or_default().into(),
        last.map_or("", |past| &past.failure.outcome).into(),
    ];
    let body = record.body.as_deref().unwrap_or_default();
    let hidden: [Cow<'_, str>; HIDDEN.len()] = [
        last.map_or("", |past| &past.failure.reason).into(),
        String::from_utf8_lossy(body),
        item.and_then(Item::kept).unwrap_or_default().into(),
    ];
    let hidden = hidden.into_iter().filter(|_| !hides_payloads);
    write_cells(to, known.into_iter().chain(hidden));
}

/// Writes cells. One that a spreadsheet would take for a formula begins with an apostrophe.
fn write_cells<'a>(to: &mut Vec<u8>, cells: impl Iterator<Item = Cow<'a, str>>) {
    for (column, cell) in cells.enumerate() {
        // Every cell is quoted, so a payload may have commas and line ends.
        to.extend_from_slice(if column > 0 { b",\"" } else { b"\"" });
        if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) {
            to.push(b'\'');
        }
        for (number, part) in cell.split('"').enumerate() {
            to.extend_from_slice(if number > 0 { b"\"\"" } else { b"" });
            to.extend_from_slice(part.as_bytes());
        }
        to.push(b'"');
    }
    to.extend_from_slice(b"\r\n");
}
