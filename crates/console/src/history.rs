//! The pages of what was counted, and the ranges that they ask for.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::Extension;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use maud::Markup;
use serde::Deserialize;
use tower_webhook::EventType;
use tower_webhook::RouteName;
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::{Count, CountsOf, Series, minute_of};

use super::page::{self, View, start};
use super::problem::Problem;
use super::reading::read;
use super::request::{ROWS, text, time};
use super::settings::Console;

/// What a page of counts is asked for.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    range: String,
    /// A day of UTC, such as `2026-11-20`, instead of a range.
    day: String,
    route: String,
    kind: String,
    /// Both in one, such as `github/push`.
    #[serde(rename = "type")]
    of: String,
    until: String,
}

/// Of which events a history is: those of a route, of a kind, or of both. Of all of them by default.
#[derive(Default, PartialEq)]
pub(super) struct Chosen {
    route: Option<String>,
    kind: Option<String>,
}

impl Chosen {
    pub(super) fn of(event_type: EventType) -> Self {
        Self {
            route: Some(event_type.route.to_string()),
            kind: Some(event_type.kind.to_string()),
        }
    }

    fn has(&self, count: &Count) -> bool {
        let is_kind = |kind| count.kind.as_ref().is_some_and(|it| it.as_str() == kind);
        let is_route = |route| count.route.as_str() == route;
        self.route.as_deref().is_none_or(is_route) && self.kind.as_deref().is_none_or(is_kind)
    }

    /// Its fields in a query.
    pub(super) fn filled(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let fields = [("route", &self.route), ("kind", &self.kind)];
        let filled = fields.into_iter();
        filled.filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }

    /// Its name, if it is not that of all events.
    pub(super) fn name(&self) -> Option<String> {
        let own = RouteName::default();
        // As an event type is written.
        let has_kind = self.kind.is_some();
        let route = self
            .route
            .as_deref()
            .filter(|it| !has_kind || *it != own.as_str());
        let parts: Vec<_> = route.into_iter().chain(self.kind.as_deref()).collect();
        (!parts.is_empty()).then(|| parts.join("/"))
    }
}

/// The time that a history covers, in minutes since 1970.
pub(super) struct Range {
    pub(super) name: &'static str,
    pub(super) from: i64,
    until: i64,
    /// How many minutes a bar covers.
    pub(super) bucket: i64,
    /// How many minutes before it the time is that it is compared with: as long a time just before, and of a day, the same
    /// weekday a week ago. `None` if counts of that time are not kept.
    pub(super) before: Option<i64>,
    /// The day that was chosen, and the weekday.
    pub(super) day: Option<(String, String)>,
}

const HOUR: i64 = 60;
const DAY: i64 = 24 * HOUR;

/// The most counts that a history is made of.
const MOST: usize = 50_000;

/// The most refusals of a minute that a page shows.
const MOST_OF_A_MINUTE: usize = 400;

impl Range {
    pub(super) const NAMES: [&str; 4] = ["1h", "24h", "7d", "30d"];

    fn parse(name: &str, now: SystemTime, has_inbox: bool) -> Result<Self, Problem> {
        // Queues put old counts together by 30 min and by 12 h, so bars that begin or end between these would be wrong.
        let (name, length, bucket) = match (name.trim(), has_inbox) {
            // Without an inbox, counts are in memory, for an hour.
            ("1h", _) | ("", false) => ("1h", HOUR, 1),
            ("24h" | "", _) => ("24h", DAY, 30),
            ("7d", _) => ("7d", 7 * DAY, 2 * HOUR),
            ("30d", _) => ("30d", 30 * DAY, 12 * HOUR),
            (other, _) => {
                let reason =
                    format!("`{other}` is not a range. The ranges are 1h, 24h, 7d and 30d.");
                return Err(Problem::bad(reason));
            }
        };
        let until = minute_of(now) + 1;
        let from = until - length;
        Ok(Self {
            name,
            // A bucket begins at a multiple of its length since 1970, and the first bar has all of it.
            from: from - from.rem_euclid(bucket),
            until,
            bucket,
            before: (has_inbox && name != "30d")
                .then_some(until - (from - from.rem_euclid(bucket))),
            day: None,
        })
    }

    /// A day up to now, in half hours.
    fn of_day(day: &str, now: SystemTime) -> Result<Self, Problem> {
        let wrong = || Problem::bad(format!("`{day}` is not a day such as `2026-11-20`."));
        let midnight = humantime::parse_rfc3339_weak(&format!("{day} 00:00:00"));
        let midnight = midnight
            .ok()
            .filter(|_| day.len() == 10)
            .ok_or_else(wrong)?;
        let from = minute_of(midnight);
        // `Fri, 20 Nov 2026 00:00:00 GMT`
        let date = httpdate::fmt_http_date(midnight);
        Ok(Self {
            name: "",
            from,
            until: (from + DAY).min(minute_of(now) + 1).max(from + 1),
            bucket: 30,
            before: Some(7 * DAY),
            day: Some((day.to_owned(), date[..16].to_owned())),
        })
    }

    /// The minutes with which it is compared.
    fn compared(&self) -> Option<std::ops::Range<i64>> {
        let before = self.before?;
        Some(self.from - before..self.until - before)
    }

    /// Whether it covers several days.
    pub(super) fn is_of_days(&self) -> bool {
        self.until - self.from > 2 * DAY
    }

    pub(super) fn title(&self) -> String {
        match &self.day {
            Some((_, date)) => date.clone(),
            None => format!("The last {}", self.words()),
        }
    }

    pub(super) fn words(&self) -> &'static str {
        match self.name {
            "1h" => "hour",
            "24h" => "24 hours",
            "7d" => "7 days",
            _ => "30 days",
        }
    }

    pub(super) fn bucket_words(&self) -> &'static str {
        match self.name {
            "1h" => "a minute",
            "24h" | "" => "30 minutes",
            "7d" => "2 hours",
            _ => "12 hours",
        }
    }

    pub(super) fn buckets(&self) -> usize {
        usize::try_from((self.until - self.from + self.bucket - 1) / self.bucket).unwrap_or(0)
    }

    pub(super) fn start(&self, bucket: usize) -> SystemTime {
        let at = i64::try_from(bucket).unwrap_or(0);
        start(self.from + at * self.bucket)
    }
}

/// Requests of one address that were not verified, for one reason, or that one secret of another route would have matched.
pub(super) struct Origin {
    pub(super) route: RouteName,
    /// The reason, or the secret.
    pub(super) outcome: String,
    /// Empty if it is not known.
    pub(super) address: String,
    pub(super) number: u64,
    /// The first and the last minute.
    pub(super) first: i64,
    pub(super) last: i64,
}

impl Origin {
    /// Those with most requests first.
    fn all(counts: Vec<Count>) -> Vec<Self> {
        let mut all = BTreeMap::<(RouteName, String), Self>::new();
        for count in counts {
            let parts = count.outcome.split_once('\n');
            let (outcome, address) = parts.unwrap_or((&count.outcome, ""));
            let new = || Self {
                route: count.route.clone(),
                outcome: outcome.to_owned(),
                address: address.to_owned(),
                number: 0,
                first: count.minute,
                last: count.minute,
            };
            let key = (count.route.clone(), count.outcome.to_string());
            let origin = all.entry(key).or_insert_with(new);
            origin.number = origin.number.saturating_add(count.number);
            origin.first = origin.first.min(count.minute);
            origin.last = origin.last.max(count.minute);
        }
        let mut all: Vec<_> = all.into_values().collect();
        all.sort_by_key(|origin| Reverse(origin.number));
        all
    }
}

/// What was refused, and how the list goes on.
pub(super) struct Refused {
    pub(super) counts: Vec<Count>,
    pub(super) origins: Vec<Origin>,
    pub(super) swapped: Vec<Origin>,
    /// The latest minute, as it was asked for.
    pub(super) until: String,
    /// The latest minute of the next page.
    pub(super) older: Option<String>,
}

pub(super) async fn history(
    Extension(view): Extension<View>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Markup, Problem> {
    let Query(asked) = asked?;
    let (now, has_inbox) = (view.console.now(), view.console.inbox.is_some());
    let range = match text(&asked.day) {
        Some(day) if has_inbox => Range::of_day(&day, now)?,
        _ => Range::parse(&asked.range, now, has_inbox)?,
    };
    // `Refused` has the same failures.
    let series: Vec<_> = Series::ALL
        .into_iter()
        .filter(|it| !matches!(it, Series::Budget | Series::Origin | Series::Swapped))
        .collect();
    let read = async |minutes| {
        let of = CountsOf::new(series.clone(), minutes);
        counts(&view.console, of.bucket(range.bucket).limit(MOST)).await
    };
    let mut counts = read(range.from..range.until).await?;
    if let Some(minutes) = range.compared() {
        counts.extend(read(minutes).await?);
    }
    let event_type = |count: &Count| Some(EventType::new(count.route.clone(), count.kind.clone()?));
    let types = counts.iter().filter_map(event_type).collect();
    let chosen = match text(&asked.of) {
        Some(of) => {
            let wrong = |_| {
                Problem::bad(format!(
                    "`{of}` is not an event type such as `chat-rated` or `github/push`."
                ))
            };
            Chosen::of(of.parse().map_err(wrong)?)
        }
        None => Chosen {
            route: text(&asked.route),
            kind: text(&asked.kind),
        },
    };
    // After the types were collected, so that the page offers the others, too.
    counts.retain(|count| chosen.has(count));
    Ok(page::history(&view, &range, &chosen, &types, &counts))
}

pub(super) async fn refusals(
    Extension(view): Extension<View>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Markup, Problem> {
    let Query(asked) = asked?;
    let now = minute_of(view.console.now());
    let until = time(&asked.until)?.map_or(now, minute_of);
    let of = CountsOf::new([Series::Refused], now - 7 * DAY..until.saturating_add(1))
        .limit(ROWS + MOST_OF_A_MINUTE);
    let mut counts = counts(&view.console, of).await?;
    // A page ends with the last row of a minute.
    let last = counts.get(ROWS - 1).map(|count| count.minute);
    let shown = last.map_or(counts.len(), |last| {
        counts.partition_point(|count| count.minute >= last)
    });
    let older = counts.get(shown).map(|next| {
        let start = humantime::format_rfc3339_seconds(start(next.minute)).to_string();
        // A field of a time has no seconds, and counts are by the minute.
        start[..16].to_owned()
    });
    counts.truncate(shown);
    // They are of all minutes, so that the first page alone has them.
    let (mut origins, mut swapped) = (Vec::new(), Vec::new());
    if asked.until.is_empty() {
        let all = async |series| {
            let of = CountsOf::new([series], now - 7 * DAY..now + 1).limit(MOST);
            let counts = self::counts(&view.console, of).await;
            counts.map(Origin::all)
        };
        (origins, swapped) = (all(Series::Origin).await?, all(Series::Swapped).await?);
    }
    Ok(page::refusals(
        &view,
        &Refused {
            counts,
            origins,
            swapped,
            until: asked.until.trim().to_owned(),
            older,
        },
    ))
}

/// Those of all processes, or without an inbox of this one.
async fn counts(console: &Console, of: CountsOf) -> Result<Vec<Count>, StoreError> {
    if let Some(inbox) = &console.inbox {
        return read(inbox.counts(&of)).await;
    }
    let recent = console.recent.as_ref();
    Ok(recent.map(|recent| recent.counts(&of)).unwrap_or_default())
}
