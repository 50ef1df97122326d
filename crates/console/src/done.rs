//! The list of what persons did, and how it is searched.

use std::time::{Duration, SystemTime};

use axum::Extension;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use maud::Markup;
use serde::Deserialize;
use tokio::time::Instant;
use tower_webhook::inbox::{Action, ActionKind, Which};

use super::page::{self, View};
use super::problem::Problem;
use super::reading::read;
use super::request::{ROWS, inbox, text, time};

/// For how long a page searches. The next one goes on.
const LIMIT: Duration = Duration::from_millis(500);

/// The number of actions that are read at a time.
const STEP: usize = 500;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Which actions a page shows.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Sought {
    /// A part of the name of who did it.
    pub(super) who: String,
    pub(super) what: String,
    pub(super) from: String,
    pub(super) until: String,
    /// The action before which the page begins.
    before: String,
}

impl Sought {
    pub(super) const KINDS: [ActionKind; 7] = [
        ActionKind::Redrive,
        ActionKind::Discard,
        ActionKind::Pause,
        ActionKind::Resume,
        ActionKind::Retire,
        ActionKind::Forget,
        ActionKind::Cancel,
    ];

    /// Today and yesterday: their names, and where they begin and end.
    pub(super) fn days() -> [(&'static str, String, String); 2] {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let today = since.unwrap_or_default().as_secs() / DAY.as_secs();
        let day = |name, day: u64| {
            let at = |day: u64| {
                let at = SystemTime::UNIX_EPOCH + DAY * u32::try_from(day).unwrap_or(u32::MAX);
                humantime::format_rfc3339_seconds(page::clamped(at)).to_string()[..16].to_owned()
            };
            (name, at(day), at(day + 1))
        };
        [
            day("Today", today),
            day("Yesterday", today.saturating_sub(1)),
        ]
    }

    /// The fields that are not empty, as the beginning of a query.
    pub(super) fn query(&self) -> String {
        let fields = [
            ("who", &self.who),
            ("what", &self.what),
            ("from", &self.from),
            ("until", &self.until),
        ];
        let filled = fields.into_iter().filter(|(_, value)| !value.is_empty());
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(filled);
        match query.finish() {
            query if query.is_empty() => query,
            query => format!("{query}&"),
        }
    }
}

pub(super) async fn done(
    Extension(view): Extension<View>,
    sought: Result<Query<Sought>, QueryRejection>,
) -> Result<Markup, Problem> {
    let Query(sought) = sought?;
    let wrong = |_| {
        Problem::bad(format!(
            "`{}` is not the number of an action.",
            sought.before
        ))
    };
    let before = text(&sought.before).map(|before| before.parse().map_err(wrong));
    let mut before = before.transpose()?;
    let (from, until) = (time(&sought.from)?, time(&sought.until)?);
    let who = sought.who.trim().to_lowercase();
    let kind = text(&sought.what);
    let matches = |action: &Action| {
        action.by.who().to_lowercase().contains(&who)
            && kind.as_ref().is_none_or(|kind| action.kind.name() == kind)
            && until.is_none_or(|until| action.at < until)
    };
    let inbox = inbox(&view.console)?;
    let (began, mut found, mut reached) = (Instant::now(), Vec::new(), None);
    let next = loop {
        let step = read(inbox.actions(Which::All, before, STEP)).await?;
        let is_last = step.len() < STEP;
        let last = step.last().map(|action| (action.number, action.at));
        // Those before it are older still.
        let is_over = step
            .last()
            .is_none_or(|last| from.is_some_and(|from| last.at < from));
        let of_time = |action: &Action| from.is_none_or(|from| action.at >= from);
        found.extend(step.into_iter().filter(|it| of_time(it) && matches(it)));
        if found.len() > ROWS {
            found.truncate(ROWS);
            break found.last().map(|last: &Action| last.number);
        }
        if is_last || is_over {
            break None;
        }
        before = last.map(|(number, _)| number);
        if began.elapsed() >= LIMIT {
            reached = last.map(|(_, at)| at);
            break before;
        }
    };
    Ok(page::actions(&view, &sought, &found, next, reached))
}
