//! What requests name: the inbox, an event, an action, and the filter of a list.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer};
use tower_webhook::inbox::{
    Action as Recorded, EventId, EventState, Filter, Inbox, Page, Scope, Seen, Shape, escaped,
    unescaped,
};
use tower_webhook::{EventKind, RouteName};

use super::bulk::Action;
use super::lock;
use super::page::clamped;
use super::problem::Problem;
use super::reading::{SEARCH, read};
use super::settings::Console;

/// The inbox, or the reason why a page has nothing to show.
pub(super) fn inbox(console: &Console) -> Result<&Inbox, Problem> {
    let reason = "There is no inbox: each delivery is answered after its event was handled.";
    console
        .inbox
        .as_ref()
        .ok_or_else(|| Problem::not_found(reason))
}

/// Finds a change of all that match.
pub(super) async fn find_bulk(console: &Console, number: i64) -> Result<Recorded, Problem> {
    let found = read(inbox(console)?.action(number)).await?;
    let unknown = "There is no such change of all that match. They are kept for 90 days.";
    found
        .filter(|action| action.bulk.is_some())
        .ok_or_else(|| Problem::not_found(unknown))
}

pub(super) fn id(text: &str) -> Result<EventId, Problem> {
    text.parse()
        .map_err(|_| Problem::bad(format!("`{text}` is not the number of an event.")))
}

pub(super) fn action(name: &str) -> Result<Action, Problem> {
    let unknown = || {
        Problem::bad(format!(
            "`{name}` is not an action. The actions are `redrive` and `discard`."
        ))
    };
    Action::parse(name).ok_or_else(unknown)
}

/// The number of events on a page.
pub(super) const ROWS: usize = 40;

/// The longest text in a payload that is looked for, in characters.
pub(super) const LONGEST_TEXT: usize = 200;

/// The filter of a list, as in a URL. Texts of senders are [escaped], since a field of a form has one line.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Search {
    pub(super) state: String,
    pub(super) route: String,
    pub(super) kind: String,
    #[serde(deserialize_with = "line")]
    pub(super) chat: String,
    #[serde(deserialize_with = "line")]
    pub(super) key: String,
    /// The number of hours within which the event was accepted, or failed last if that is its state.
    pub(super) hours: String,
    /// The times between which it was, such as `2026-11-22T20:15`.
    pub(super) from: String,
    pub(super) until: String,
    /// A text in an error of the event.
    #[serde(deserialize_with = "line")]
    pub(super) error: String,
    /// What the last failure of the event has in common with others: see [`Shape`].
    pub(super) shape: String,
    /// The number of an action that has changed the event.
    pub(super) changed: String,
    /// A text in the payload of the event.
    #[serde(deserialize_with = "line")]
    pub(super) payload: String,
    pub(super) order: String,
    /// The format of an export.
    pub(super) format: String,
    pub(super) after: String,
    pub(super) action: String,
    /// The id of the chat, on its page, or what is looked for.
    pub(super) id: String,
    /// What a preview has seen: see [`Seen`].
    pub(super) newest: String,
    pub(super) at: String,
    pub(super) who: String,
    /// Why all that match are changed.
    pub(super) reason: String,
    /// How many events of all that match are changed in a second.
    pub(super) rate: String,
    /// The action before which a page of actions begins.
    pub(super) before: String,
}

impl Search {
    /// The filter of a change of all that match. Without a state, what was handled would be handled again.
    pub(super) fn filter_for_change(&self, console: &Console) -> Result<Filter, Problem> {
        let filter = self.filter(console)?;
        if filter.body.is_some() {
            let reason = "To change events with a text in the payload, select them in the list.";
            return Err(Problem::bad(reason));
        }
        match filter.states.is_empty() {
            true => Err(Problem::bad("To change all that match, choose a state.")),
            false => Ok(filter),
        }
    }

    pub(super) fn filter(&self, console: &Console) -> Result<Filter, Problem> {
        // A search would tell which texts they have.
        if console.hides_payloads && text(&self.error).is_some() {
            return Err(Problem::bad("The texts of errors are hidden."));
        }
        if console.hides_payloads && text(&self.payload).is_some() {
            return Err(Problem::bad("Payloads are hidden."));
        }
        let payload = read_line(&self.payload);
        let is_long = |text: &String| text.chars().count() > LONGEST_TEXT;
        if payload.as_ref().is_some_and(is_long) {
            let reason = format!("A text in the payload has at most {LONGEST_TEXT} characters.");
            return Err(Problem::bad(reason));
        }
        let (from, until) = (self.since()?, time(&self.until)?);
        // With `failed`, the times are those of the last failure, and otherwise those of acceptance.
        let mut filter = match self.state.as_str() {
            "failed" => Filter::failed(from, until),
            state => {
                let states = states(state)?;
                Filter::default().states(states).accepted(from, until)
            }
        };
        for route in self.route.split_whitespace() {
            let wrong = |_| Problem::bad(format!("`{route}` is not the name of a route."));
            filter
                .routes
                .push(route.parse::<RouteName>().map_err(wrong)?);
        }
        for kind in self.kind.split_whitespace() {
            let wrong = |_| Problem::bad(format!("`{}` is not an event type.", self.kind.trim()));
            filter.kinds.push(kind.parse::<EventKind>().map_err(wrong)?);
        }
        filter.chat = read_line(&self.chat);
        filter.error = read_line(&self.error);
        if let Some(shape) = text(&self.shape) {
            let wrong = |error| Problem::bad(format!("`{shape}` is no cause: {error}."));
            filter.shape = Some(shape.parse::<Shape>().map_err(wrong)?);
        }
        filter.body = payload;
        if let Some(number) = text(&self.changed) {
            let wrong = |_| Problem::bad(format!("`{number}` is not the number of an action."));
            filter.changed_by = Some(number.parse().map_err(wrong)?);
        }
        if let Some(key) = read_line(&self.key) {
            let wrong = |error| Problem::bad(format!("The key cannot be read: {error}."));
            filter.key = Some(key.parse().map_err(wrong)?);
        }
        Ok(filter)
    }

    /// The part of the filter that is about the time of acceptance.
    pub(super) fn of_time(&self) -> Result<Filter, Problem> {
        Ok(Filter::default().accepted(self.since()?, time(&self.until)?))
    }

    /// The later one of the two times from which on events match.
    fn since(&self) -> Result<Option<SystemTime>, Problem> {
        let from = time(&self.from)?;
        let Some(hours) = text(&self.hours) else {
            return Ok(from);
        };
        let wrong = |_| Problem::bad(format!("`{hours}` is not a number of hours."));
        let hours: u32 = hours.parse().map_err(wrong)?;
        let ago = Duration::from_secs(u64::from(hours) * 60 * 60);
        // `None` is less than any time.
        Ok(from.max(SystemTime::now().checked_sub(ago)))
    }

    /// What the preview has seen that the operator confirms.
    pub(super) fn seen(&self) -> Result<Seen, Problem> {
        let unseen =
            || Problem::bad("Confirm on the page that asks, which has counted the events.");
        let nanos = self.at.parse().map_err(|_| unseen())?;
        let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(nanos));
        let newest = self.newest.parse().map_err(|_| unseen())?;
        Ok(Seen::new(newest, at.ok_or_else(unseen)?))
    }

    /// How many events are changed in a second. 0 without a limit.
    pub(super) fn rate(&self) -> Result<u32, Problem> {
        let wrong = |_| {
            Problem::bad(format!(
                "`{}` is not a number of events a second.",
                self.rate
            ))
        };
        text(&self.rate).map_or(Ok(0), |rate| rate.parse().map_err(wrong))
    }

    /// The filter of a list with the events that a change selects.
    pub(super) fn of_filter(filter: &Filter) -> Self {
        let state = match &filter.states {
            states if *states == Filter::failed(None, None).states => "failed".to_owned(),
            states if self::states("unsettled").is_ok_and(|all| all == *states) => {
                "unsettled".to_owned()
            }
            states => joined(states),
        };
        let time = |at: Option<SystemTime>| {
            let at = at.map(|at| humantime::format_rfc3339_millis(clamped(at)).to_string());
            // The field of the form takes no time with a zone.
            at.unwrap_or_default().trim_end_matches('Z').to_owned()
        };
        Self {
            state,
            route: joined(&filter.routes),
            kind: joined(&filter.kinds),
            chat: line_of(filter.chat.as_deref()),
            key: line_of(filter.key.as_ref().map(ToString::to_string).as_deref()),
            from: time(filter.accepted_from.or(filter.failed_from)),
            until: time(filter.accepted_until.or(filter.failed_until)),
            error: line_of(filter.error.as_deref()),
            shape: filter
                .shape
                .map(|shape| shape.to_string())
                .unwrap_or_default(),
            changed: filter
                .changed_by
                .map(|it| it.to_string())
                .unwrap_or_default(),
            ..Self::default()
        }
    }

    pub(super) fn newest_first(&self) -> bool {
        self.order != "oldest"
    }

    pub(super) fn page(&self, limit: usize) -> Result<Page, Problem> {
        let mut page = Page::oldest(limit).within(SEARCH);
        page.newest_first = self.newest_first();
        page.after = text(&self.after).map(|after| id(&after)).transpose()?;
        Ok(page)
    }

    /// The fields of the filter that are not empty.
    pub(super) fn filled(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let fields = [
            ("state", &self.state),
            ("route", &self.route),
            ("kind", &self.kind),
            ("chat", &self.chat),
            ("key", &self.key),
            ("hours", &self.hours),
            ("from", &self.from),
            ("until", &self.until),
            ("error", &self.error),
            ("shape", &self.shape),
            ("payload", &self.payload),
            ("changed", &self.changed),
            ("order", &self.order),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name, value.trim()));
        fields.filter(|(_, value)| !value.is_empty())
    }

    /// The query of a URL with the same filter.
    pub(super) fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.filled());
        query.finish()
    }

    /// The query for the log, which has no part of a payload.
    pub(super) fn logged(&self) -> String {
        let hidden = self.filled().map(|(name, value)| match name {
            "payload" => (name, "hidden"),
            _ => (name, value),
        });
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(hidden);
        query.finish()
    }
}

/// A text that was typed, as a field of a form can have it.
fn line<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let typed = String::deserialize(from)?;
    Ok(escaped(&unescaped(typed.trim())).into_owned())
}

fn line_of(text: Option<&str>) -> String {
    text.map(escaped).unwrap_or_default().into_owned()
}

/// What a field stands for, if it is not empty.
pub(super) fn read_line(line: &str) -> Option<String> {
    text(line).map(|line| unescaped(&line).into_owned())
}

fn states(name: &str) -> Result<Vec<EventState>, Problem> {
    match name {
        "unsettled" => {
            let all = EventState::ALL.into_iter();
            Ok(all.filter(|state| state.is_unsettled()).collect())
        }
        names => {
            let state = |name: &str| {
                let unknown = |error| Problem::bad(format!("`{names}`: {error}."));
                name.parse().map_err(unknown)
            };
            names.split_whitespace().map(state).collect()
        }
    }
}

/// Several, as a filter has them.
fn joined(names: &[impl ToString]) -> String {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    names.join(" ")
}

/// What an action did, for the page after it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Did {
    Changed(Action, Vec<EventId>),
    Paused(Scope),
    Resumed(Scope),
    Retired(Scope),
    /// The number of chats, and of their payloads.
    Forgotten(usize, u64),
}

/// What the last actions of this process did.
#[derive(Default)]
pub(super) struct Done(Mutex<VecDeque<Did>>);

/// How many actions are remembered: more than operators see the page after at the same time.
const MOST_DONE: usize = 64;

impl Done {
    pub(super) fn note(&self, did: &Did) {
        let mut done = lock(&self.0);
        done.push_back(did.clone());
        if done.len() > MOST_DONE {
            done.pop_front();
        }
    }

    pub(super) fn has(&self, did: &Did) -> bool {
        lock(&self.0).contains(did)
    }
}

impl Did {
    /// Adds it to the path of a page, which may have a query.
    pub(super) fn at(&self, path: &str) -> String {
        let (name, of) = match self {
            Self::Changed(action, ids) => {
                let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
                (action.name(), ids.join("."))
            }
            Self::Paused(of) => ("pause", of.to_string()),
            Self::Resumed(of) => ("resume", of.to_string()),
            Self::Retired(of) => ("retire", of.to_string()),
            Self::Forgotten(chats, bodies) => ("forget", format!("{chats}.{bodies}")),
        };
        let mut did = form_urlencoded::Serializer::new(String::new());
        did.append_pair("did", &format!("{name}:{of}"));
        let and = if path.contains('?') { '&' } else { '?' };
        format!("{path}{and}{}", did.finish())
    }

    pub(super) fn of_query(query: &str) -> Option<Self> {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        let (_, did) = pairs.find(|(name, _)| name == "did")?;
        let (name, of) = did.split_once(':')?;
        match name {
            "pause" => of.parse().ok().map(Self::Paused),
            "resume" => of.parse().ok().map(Self::Resumed),
            "retire" => of.parse().ok().map(Self::Retired),
            "forget" => {
                let (chats, bodies) = of.split_once('.')?;
                Some(Self::Forgotten(chats.parse().ok()?, bodies.parse().ok()?))
            }
            name => {
                // Anybody can write a URL, so it names no more events than a list has.
                let ids: Result<_, _> = of.split('.').take(ROWS).map(str::parse).collect();
                Some(Self::Changed(Action::parse(name)?, ids.ok()?))
            }
        }
    }
}

pub(super) fn text(value: &str) -> Option<String> {
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Parses a time in UTC, with or without seconds, as browsers send it.
pub(super) fn time(text: &str) -> Result<Option<SystemTime>, Problem> {
    let Some(text) = self::text(text) else {
        return Ok(None);
    };
    let with_seconds = match text.len() {
        16 => format!("{text}:00"),
        _ => text.clone(),
    };
    let wrong = |_| {
        Problem::bad(format!(
            "`{text}` is not a time such as `2026-11-22T20:15`, in UTC."
        ))
    };
    let time = humantime::parse_rfc3339_weak(&with_seconds);
    time.map(Some).map_err(wrong)
}
