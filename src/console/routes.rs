//! The routes, and the pages that they answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use axum::extract::rejection::{BytesRejection, FormRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::csrf::CsrfLayer;
use tower_http::set_header::SetResponseHeaderLayer;

use super::bulk::{Action, Job, preview};
use super::guard::guard;
use super::operations::Operations;
use super::page::{self, Site, View};
use super::{Console, actions};
use crate::delivery::IdempotencyKey;
use crate::error::Chain;
use crate::event::EventKind;
use crate::inbox::{EventId, EventState, Filter, Listed, Page};
use crate::store::StoreError;

pub(super) fn router(console: Arc<Console>) -> Router {
    let mut pages = Router::new()
        .route("/", get(overview))
        .route("/events", get(events))
        .route("/events/{id}", get(event))
        .route("/chat", get(chat))
        .route("/lanes", get(lanes))
        .route(
            "/style.css",
            get(([(CONTENT_TYPE, "text/css")], page::STYLE)),
        )
        .route(
            "/icon.svg",
            get(([(CONTENT_TYPE, "image/svg+xml")], page::ICON)),
        )
        .route(
            "/live.js",
            get(([(CONTENT_TYPE, "text/javascript")], page::SCRIPT)),
        );
    if !console.is_read_only {
        pages = pages
            .route("/all", get(confirm).post(actions::change_all))
            .route("/selected", post(actions::change_selected))
            .route("/events/{id}/{action}", post(actions::change))
            .route("/pause", post(actions::pause))
            .route("/resume", post(actions::resume))
            .route("/jobs/{number}", get(job))
            .route("/jobs/{number}/cancel", post(actions::cancel));
    }
    let header = |name: HeaderName, value| {
        SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
    };
    pages
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::clone(&console))
        .layer(CsrfLayer::new())
        .layer(CatchPanicLayer::new())
        .layer(from_fn_with_state(console, guard))
        .layer(CompressionLayer::new())
        .layer(header(
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ))
        .layer(header(X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(header(REFERRER_POLICY, "same-origin"))
        .layer(header(CACHE_CONTROL, "no-store"))
}

/// Why a request has no page.
pub(super) struct Problem {
    status: StatusCode,
    reason: String,
    /// Whether the reason has the text of an error.
    has_error: bool,
}

impl Problem {
    pub(super) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
            has_error: false,
        }
    }

    pub(super) fn bad(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason)
    }

    pub(super) fn not_found(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, reason)
    }

    /// Adds a sentence to the reason.
    pub(super) fn add(&mut self, sentence: &str) {
        self.reason.push(' ');
        self.reason.push_str(sentence);
    }

    pub(super) fn page(self, view: &View<'_>) -> Response {
        let reason = match self.has_error && view.console.hides_payloads {
            true => "The queue failed. The log has the reason.",
            false => &self.reason,
        };
        let page = page::problem(view, self.status, reason);
        (self.status, Html(page.into_string())).into_response()
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let reason = Chain(&error);
        tracing::warn!(%reason, "the console could not ask the queue");
        Self {
            has_error: true,
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("The queue failed: {reason}."),
            )
        }
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad(rejection.body_text())
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::bad(rejection.body_text())
    }
}

impl From<FormRejection> for Problem {
    fn from(rejection: FormRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

type Answer = Result<maud::Markup, Problem>;

fn answer(view: &View<'_>, answer: Answer) -> Response {
    match answer {
        Ok(page) => Html(page.into_string()).into_response(),
        Err(problem) => problem.page(view),
    }
}

/// The inbox, or the reason why a page has nothing to show.
pub(super) fn inbox(console: &Console) -> Result<&Arc<dyn Operations>, Problem> {
    let reason = "There is no inbox: each delivery is answered after its event was handled.";
    console
        .inbox
        .as_ref()
        .ok_or_else(|| Problem::not_found(reason))
}

pub(super) fn find_job(console: &Console, number: u64) -> Result<Arc<Job>, Problem> {
    let reason = "There is no such job. The console keeps the last 50 jobs of this process.";
    let job = console.jobs.get(number);
    job.ok_or_else(|| Problem::not_found(reason))
}

pub(super) fn id(text: &str) -> Result<EventId, Problem> {
    text.parse()
        .map_err(|_| Problem::bad(format!("`{text}` is not the number of an event.")))
}

async fn not_found(State(console): State<Arc<Console>>, site: Extension<Site>) -> Response {
    Problem::not_found("There is no such page.").page(&View::new(&console, &site))
}

async fn wrong_method(State(console): State<Arc<Console>>, site: Extension<Site>) -> Response {
    let reason = "The page cannot be requested with this method.";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, reason).page(&View::new(&console, &site))
}

async fn overview(State(console): State<Arc<Console>>, site: Extension<Site>) -> Response {
    let view = View::new(&console, &site);
    let stats = match &console.inbox {
        Some(inbox) => Some(inbox.stats().await),
        None => None,
    };
    answer(
        &view,
        match stats.transpose() {
            Ok(stats) => Ok(page::overview(&view, stats.as_ref(), None)),
            // What does not come from the queue is shown all the same.
            Err(error) => Ok(page::overview(
                &view,
                None,
                Some(&Chain(&error).to_string()),
            )),
        },
    )
}

/// The filter of a list, as in a URL.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Search {
    #[serde(default)]
    pub(super) state: String,
    #[serde(default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) chat: String,
    #[serde(default)]
    pub(super) key: String,
    /// The number of hours within which the event was accepted.
    #[serde(default)]
    pub(super) hours: String,
    /// The times between which the event was accepted, such as `2026-11-22T20:15`.
    #[serde(default)]
    pub(super) from: String,
    #[serde(default)]
    pub(super) until: String,
    /// A text in an error of the event.
    #[serde(default)]
    pub(super) error: String,
    #[serde(default)]
    pub(super) order: String,
    #[serde(default)]
    pub(super) after: String,
    #[serde(default)]
    pub(super) action: String,
    /// The id of the chat, on its page.
    #[serde(default)]
    id: String,
}

impl Search {
    pub(super) fn filter(&self, console: &Console) -> Result<Filter, Problem> {
        let mut filter = Filter::default();
        // A search would tell which texts they have.
        if console.hides_payloads && text(&self.error).is_some() {
            return Err(Problem::bad("The texts of errors are hidden."));
        }
        match self.state.as_str() {
            "" => {}
            "unsettled" => {
                let all = EventState::ALL.into_iter();
                filter.states = all.filter(|state| state.is_unsettled()).collect();
            }
            state => {
                let unknown = |error| Problem::bad(format!("`{state}`: {error}."));
                filter.states = vec![state.parse().map_err(unknown)?];
            }
        }
        let kind = self.kind.trim();
        if !kind.is_empty() {
            let wrong = |_| Problem::bad(format!("`{kind}` is not a kind of event."));
            filter.kinds = vec![kind.parse::<EventKind>().map_err(wrong)?];
        }
        filter.chat = text(&self.chat);
        filter.error = text(&self.error);
        if let Some(key) = text(&self.key) {
            let value = HeaderValue::from_str(&key).ok();
            let wrong = || Problem::bad("The key contains characters that no header can have.");
            filter.key = Some(value.and_then(IdempotencyKey::new).ok_or_else(wrong)?);
        }
        if let Some(hours) = text(&self.hours) {
            let wrong = || Problem::bad(format!("`{hours}` is not a number of hours."));
            let hours: u32 = hours.parse().map_err(|_| wrong())?;
            let ago = Duration::from_secs(u64::from(hours) * 60 * 60);
            filter.accepted_from = SystemTime::now().checked_sub(ago);
        }
        // With both, the later one.
        filter.accepted_from = filter.accepted_from.max(time(&self.from)?);
        filter.accepted_until = time(&self.until)?;
        Ok(filter)
    }

    pub(super) fn newest_first(&self) -> bool {
        self.order != "oldest"
    }

    fn page(&self, limit: usize) -> Result<Page, Problem> {
        Ok(Page {
            after: text(&self.after).map(|after| id(&after)).transpose()?,
            limit,
            newest_first: self.newest_first(),
            within: Some(SEARCH),
        })
    }

    /// The query of a URL with the same filter.
    pub(super) fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in [
            ("state", &self.state),
            ("kind", &self.kind),
            ("chat", &self.chat),
            ("key", &self.key),
            ("hours", &self.hours),
            ("from", &self.from),
            ("until", &self.until),
            ("error", &self.error),
            ("order", &self.order),
        ] {
            if !value.trim().is_empty() {
                query.append_pair(name, value.trim());
            }
        }
        query.finish()
    }
}

fn text(value: &str) -> Option<String> {
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Parses a time in UTC, with or without seconds, as browsers send it.
fn time(text: &str) -> Result<Option<SystemTime>, Problem> {
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

/// The time limit of a search. After it, the page shows the events that were found.
pub(super) const SEARCH: Duration = Duration::from_millis(40);

/// The event after which the search for more events begins, if there may be more. `limit` is that of the page.
pub(super) fn next(listed: &Listed, limit: usize) -> Option<EventId> {
    let last = listed
        .events
        .last()
        .filter(|_| listed.events.len() >= limit);
    listed.searched.or(last.map(|event| event.id))
}

/// The number of events on a page.
const ROWS: usize = 40;

/// How a list continues.
#[derive(Clone, Copy, Debug)]
pub(super) enum More {
    Nothing,
    /// Another page, after this event.
    Page(EventId),
    /// Events that were not searched, after this one.
    Search(EventId),
}

async fn events(
    State(console): State<Arc<Console>>,
    site: Extension<Site>,
    search: Result<Query<Search>, QueryRejection>,
) -> Response {
    let view = View::new(&console, &site);
    let list = async {
        let Query(search) = search?;
        let filter = search.filter(&console)?;
        let mut listed = inbox(&console)?
            .list(&filter, search.page(ROWS + 1)?)
            .await?;
        let is_more = listed.events.len() > ROWS;
        listed.events.truncate(ROWS);
        let more = match (is_more, listed.events.last()) {
            (true, Some(last)) => More::Page(last.id),
            _ => listed.searched.map_or(More::Nothing, More::Search),
        };
        Ok(page::events(&view, &search, &listed.events, more))
    };
    answer(&view, list.await)
}

/// The number of events of a lane that are counted.
pub(super) const LANE: usize = 100;

async fn event(
    State(console): State<Arc<Console>>,
    site: Extension<Site>,
    path: Result<Path<String>, PathRejection>,
) -> Response {
    let view = View::new(&console, &site);
    let event = async {
        let Path(number) = path?;
        let id = id(&number)?;
        let inbox = inbox(&console)?;
        let record = inbox.get(id).await?;
        let gone = || {
            Problem::not_found(format!(
                "There is no event {id}. Perhaps its retention has expired."
            ))
        };
        let record = record.ok_or_else(gone)?;
        let event = &record.summary;
        let mut lane = page::Place::default();
        if let Some(chat) = &event.chat {
            // A dead letter may hold its lane.
            if event.state.is_unsettled() || event.state == EventState::Dead {
                let blocked = inbox.blocked_lanes(Some(chat), None, 1).await?;
                lane.blocked = blocked.into_iter().next();
            }
            let holds = lane.blocked.as_ref().is_some_and(|it| it.event.id == id);
            if event.state.is_unsettled() || holds {
                let listed = unsettled_of(&**inbox, chat).await?;
                lane.is_cut = next(&listed, LANE).is_some();
                lane.unsettled = listed.events;
            }
        }
        Ok(page::event(&view, &record, &lane))
    };
    answer(&view, event.await)
}

/// The first unsettled events of a chat, in the order of their lane.
async fn unsettled_of(inbox: &dyn Operations, chat: &str) -> Result<Listed, StoreError> {
    let all = EventState::ALL.into_iter();
    let filter = Filter {
        states: all.filter(|state| state.is_unsettled()).collect(),
        chat: Some(chat.to_owned()),
        ..Filter::default()
    };
    let page = Page::oldest(LANE).within(SEARCH);
    inbox.list(&filter, page).await
}

async fn chat(
    State(console): State<Arc<Console>>,
    site: Extension<Site>,
    search: Result<Query<Search>, QueryRejection>,
) -> Response {
    let view = View::new(&console, &site);
    let chat = async {
        let Query(search) = search?;
        let chat = search.id.clone();
        let filter = Filter {
            chat: Some(chat.clone()),
            ..Filter::default()
        };
        let page = Page {
            newest_first: false,
            ..search.page(ROWS)?
        };
        let listed = inbox(&console)?.list(&filter, page).await?;
        let more = match (next(&listed, ROWS), listed.searched) {
            (Some(last), None) => More::Page(last),
            (_, searched) => searched.map_or(More::Nothing, More::Search),
        };
        let events = listed.events;
        if matches!(more, More::Nothing) && events.is_empty() && page.after.is_none() {
            return Err(Problem::not_found(format!(
                "There is no event of the chat `{chat}`."
            )));
        }
        Ok(page::chat(&view, &chat, &events, more))
    };
    answer(&view, chat.await)
}

/// The number of blocked lanes that are shown.
const LANES: usize = 50;

async fn lanes(
    State(console): State<Arc<Console>>,
    site: Extension<Site>,
    search: Result<Query<Search>, QueryRejection>,
) -> Response {
    let view = View::new(&console, &site);
    let lanes = async {
        let Query(search) = search?;
        let after = text(&search.after).map(|after| id(&after)).transpose()?;
        let inbox = inbox(&console)?;
        let mut lanes = inbox.blocked_lanes(None, after, LANES + 1).await?;
        let is_more = lanes.len() > LANES;
        lanes.truncate(LANES);
        Ok(page::lanes(&view, &lanes, is_more))
    };
    answer(&view, lanes.await)
}

/// Asks before all events that match are changed.
async fn confirm(
    State(console): State<Arc<Console>>,
    site: Extension<Site>,
    search: Result<Query<Search>, QueryRejection>,
) -> Response {
    let view = View::new(&console, &site);
    let confirm = async {
        let Query(search) = search?;
        let action = actions::action(&search.action)?;
        let matched = preview(&**inbox(&console)?, &search.filter(&console)?).await?;
        Ok(page::confirm(&view, action, &search, matched))
    };
    answer(&view, confirm.await)
}

async fn job(
    State(console): State<Arc<Console>>,
    site: Extension<Site>,
    path: Result<Path<u64>, PathRejection>,
) -> Response {
    let view = View::new(&console, &site);
    let job = async {
        let Path(number) = path?;
        let job = find_job(&console, number)?;
        let changed = job.changed.load(Ordering::Relaxed);
        let skipped = job.skipped.load(Ordering::Relaxed);
        Ok(page::job(&view, &job, changed, skipped))
    };
    answer(&view, job.await)
}

/// For the past tense of an action in a notice.
pub(super) fn past(action: Action) -> &'static str {
    match action {
        Action::Redrive => "redriven",
        Action::Discard => "discarded",
    }
}
