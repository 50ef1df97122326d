//! The routes, and the pages that they answer.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures_util::future::{try_join, try_join_all, try_join3};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use maud::Markup;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::csrf::CsrfLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_webhook::inbox::{
    EventId, EventState, EventSummary, Failure, Filter, Listed, Page, Which,
};
use tower_webhook::store::StoreError;

use super::actions::{self, Paused};
use super::export::export;
use super::guard::guard;
use super::history::{history, refusals};
use super::operations::{More, Operations, SEARCH};
use super::page::{self, Blocked, Failed, View, Wrong};
use super::problem::Problem;
use super::request::{ROWS, Search, action, find_bulk, id, inbox, key, text};
use super::settings::Console;

impl Console {
    /// Returns the pages.
    pub fn router(self) -> Router {
        let mut pages = Router::new()
            .route("/", get(overview))
            .route("/events", get(events))
            .route("/events/{id}", get(event))
            .route("/export", get(export))
            .route("/chat", get(chat))
            .route("/find", get(find))
            .route("/lanes", get(lanes))
            .route("/gaps", get(gaps))
            .route("/history", get(history))
            .route("/refusals", get(refusals))
            .route("/actions", get(done))
            .route("/actions/{number}", get(bulk))
            .route(
                "/style.css",
                get(([(CONTENT_TYPE, "text/css")], page::style())),
            )
            .route(
                "/icon.svg",
                get(([(CONTENT_TYPE, "image/svg+xml")], page::ICON)),
            )
            .route(
                "/live.js",
                get(([(CONTENT_TYPE, "text/javascript")], page::script())),
            );
        // A read-only console has no routes that change something, so no handler has to remember to refuse.
        if !self.is_read_only {
            pages = pages
                .route("/all", get(confirm).post(actions::change_all))
                .route("/selected", post(actions::change_selected))
                .route("/events/{id}/{action}", post(actions::change))
                .route("/pause", get(confirm_pause).post(actions::pause))
                .route("/resume", post(actions::resume))
                .route("/actions/{number}/continue", post(actions::go_on))
                .route("/actions/{number}/cancel", post(actions::cancel));
        }
        let header = |name: HeaderName, value| {
            SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
        };
        pages
            .fallback(not_found)
            .method_not_allowed_fallback(wrong_method)
            .layer(CsrfLayer::new())
            .layer(CatchPanicLayer::new())
            // Outside of these two layers, since it makes pages of what they refuse.
            .layer(from_fn_with_state(Arc::new(self), guard))
            .layer(CompressionLayer::new())
            // Outermost, so that refusals and panics have these headers, too.
            .layer(header(
                CONTENT_SECURITY_POLICY,
                "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                 img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            ))
            .layer(header(X_CONTENT_TYPE_OPTIONS, "nosniff"))
            // URLs name chats and keys, which other sites do not get.
            .layer(header(REFERRER_POLICY, "same-origin"))
            .layer(header(CACHE_CONTROL, "no-store"))
    }
}

type Answer = Result<Markup, Problem>;

async fn not_found() -> Problem {
    Problem::not_found("There is no such page.")
}

/// A page, since its router adds a header.
async fn wrong_method(Extension(view): Extension<View>) -> Response {
    let reason = "The page cannot be requested with this method.";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, reason).page(&view)
}

async fn overview(Extension(view): Extension<View>) -> Markup {
    let Some(inbox) = &view.console.inbox else {
        return page::overview(&view, None, &[], &[]);
    };
    // What does not come from the queue is shown all the same.
    let counted = inbox.stats().await;
    let running = inbox.actions(Which::Running, None, MANY).await;
    let kinds = counted.iter().flat_map(|(stats, _)| &stats.kinds);
    // The counts tell whether any lane is blocked, so the page seldom has to look for lanes.
    let blocked = match kinds.map(|kind| kind.blocking).sum() {
        0_u64 => Vec::new(),
        _ => worst(&**inbox).await.unwrap_or_default(),
    };
    page::overview(
        &view,
        Some(&counted),
        &blocked,
        &running.unwrap_or_default(),
    )
}

/// How many changes of all that match the overview shows.
const MANY: usize = 100;

/// The number of blocked lanes on the overview.
const WORST: usize = 3;

/// Those of the first blocked lanes in which most events wait, and why.
async fn worst(inbox: &dyn Operations) -> Result<Vec<Blocked>, StoreError> {
    let mut lanes = inbox.blocked_lanes(None, None, LANES).await?;
    // The section is about chats that wait, so a lane without a waiting event is not in it.
    lanes.retain(|lane| lane.waiting > 0);
    lanes.sort_by_key(|lane| (Reverse(lane.waiting), lane.since));
    lanes.truncate(WORST);
    let blocked = lanes.into_iter().map(async |lane| {
        let failure = last_failure(inbox, lane.event.id).await?;
        Ok(Blocked { lane, failure })
    });
    try_join_all(blocked).await
}

async fn last_failure(inbox: &dyn Operations, id: EventId) -> Result<Option<Failure>, StoreError> {
    let record = inbox.get(id).await?;
    let failures = record.map(|record| record.failures).unwrap_or_default();
    Ok(failures.into_iter().next_back().map(|past| past.failure))
}

async fn events(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(search) = search?;
    inbox(&view.console)?;
    Ok(match list(&view, &search, None).await {
        Ok(page) => page.into_response(),
        // The form stays, with what was wrong in it.
        Err(problem) => {
            let wrong = Wrong {
                reason: problem.reason(&view.console),
                checked: &[],
            };
            let page = page::events(&view, &search, &[], More::Nothing, Some(wrong));
            problem.on(page)
        }
    })
}

/// A page of the list of events, with what went wrong with some of them.
pub(super) async fn list(view: &View, search: &Search, wrong: Option<Wrong<'_>>) -> Answer {
    let filter = search.filter(&view.console)?;
    // One event more than a page shows tells whether there is a next page.
    let page = search.page(ROWS + 1)?;
    let inbox = &**inbox(&view.console)?;
    let listed = inbox.list(&filter, page).await?;
    let (events, more) = cut(inbox, &filter, page, listed).await?;
    let rows = with_failures(inbox, events).await?;
    Ok(page::events(view, search, &rows, more, wrong))
}

/// Cuts a list of up to `ROWS + 1` events to a page.
async fn cut(
    inbox: &dyn Operations,
    filter: &Filter,
    page: Page,
    listed: Listed,
) -> Result<(Vec<EventSummary>, More), StoreError> {
    let mut events = listed.events;
    let is_more = events.len() > ROWS;
    events.truncate(ROWS);
    let more = match (is_more, events.last(), listed.searched) {
        (true, Some(last), _) => More::Page(last.id),
        (.., Some(last)) => search_on(inbox, filter, page, last).await?,
        (.., None) => More::Nothing,
    };
    Ok((events, more))
}

/// How a search continues after an event, and how much of it is done.
async fn search_on(
    inbox: &dyn Operations,
    filter: &Filter,
    page: Page,
    last: EventId,
) -> Result<More, StoreError> {
    let of_time = Filter {
        accepted_from: filter.accepted_from,
        accepted_until: filter.accepted_until,
        ..Filter::default()
    };
    let end = async |page: Page| {
        let listed = inbox.list(&of_time, page.within(SEARCH)).await?;
        let id = listed.events.first().map_or(last, |event| event.id);
        Ok::<_, StoreError>(id.0)
    };
    let (oldest, newest) = try_join(end(Page::oldest(1)), end(Page::newest(1))).await?;
    // By the numbers of events, since counting them would take as long as the search.
    let done = match page.newest_first {
        true => newest.saturating_sub(last.0),
        false => last.0.saturating_sub(oldest),
    };
    let percent = done.saturating_mul(100) / newest.saturating_sub(oldest).max(1);
    Ok(More::Search(
        last,
        // 100 % would say that nothing is left to search.
        u8::try_from(percent.clamp(0, 99)).unwrap_or(99),
    ))
}

/// Reads the last failures of events.
async fn with_failures(
    inbox: &dyn Operations,
    events: Vec<EventSummary>,
) -> Result<Vec<Failed>, StoreError> {
    let rows = events.into_iter().map(async |event| {
        let failure = match (event.failures, event.state) {
            // A failure may not have counted.
            (0, state) if state != EventState::Retrying => None,
            _ => last_failure(inbox, event.id).await?,
        };
        Ok(Failed { event, failure })
    });
    try_join_all(rows).await
}

/// The number of events of a lane that are counted.
pub(super) const LANE: usize = 100;

async fn event(
    Extension(view): Extension<View>,
    path: Result<Path<String>, PathRejection>,
) -> Answer {
    let Path(number) = path?;
    let id = id(&number)?;
    let inbox = inbox(&view.console)?;
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
            // One that does not hold the lane waits for nothing.
            let mut blocked = blocked.into_iter();
            lane.blocked = blocked.find(|it| event.state.is_unsettled() || it.event.id == id);
        }
        let holds = lane.blocked.as_ref().is_some_and(|it| it.event.id == id);
        if event.state.is_unsettled() || holds {
            let listed = unsettled_of(&**inbox, chat).await?;
            lane.is_cut = listed.next(LANE).is_some();
            lane.unsettled = listed.events;
        }
    }
    let done = inbox.actions(Which::Of(id), None, DONE).await?;
    Ok(page::event(&view, &record, &lane, &done))
}

/// The number of actions on the page of an event.
const DONE: usize = 20;

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
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Answer {
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
    let listed = inbox(&view.console)?.list(&filter, page).await?;
    let more = match (listed.next(ROWS), listed.searched) {
        (Some(last), None) => More::Page(last),
        (_, Some(last)) => search_on(&**inbox(&view.console)?, &filter, page, last).await?,
        (None, None) => More::Nothing,
    };
    let events = with_failures(&**inbox(&view.console)?, listed.events).await?;
    // A later page can be empty although the chat has events.
    if matches!(more, More::Nothing) && events.is_empty() && page.after.is_none() {
        return Err(Problem::not_found(format!(
            "There is no event of the chat `{chat}`."
        )));
    }
    Ok(page::chat(&view, &chat, &events, more))
}

/// Shows the event with a number, and those of a key and a chat.
async fn find(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Answer {
    let Query(search) = search?;
    let nothing = || Problem::bad("Which chat, key or number of an event?");
    let wanted = text(&search.id).ok_or_else(nothing)?;
    let inbox = &**inbox(&view.console)?;
    let number = async {
        match wanted.parse() {
            Ok(id) => inbox.get(id).await,
            Err(_) => Ok(None),
        }
    };
    let of_key = key(&wanted).map(|key| Filter {
        key: Some(key),
        ..Filter::default()
    });
    let of_chat = Filter {
        chat: Some(wanted.clone()),
        ..Filter::default()
    };
    let (number, of_key, of_chat) =
        // The same text can be a number, a key and a chat, so nobody has to say which.
        try_join3(number, newest(inbox, of_key), newest(inbox, Some(of_chat))).await?;
    let number = number.map(|record| record.summary).into_iter().collect();
    let number = with_failures(inbox, number).await?;
    Ok(page::found(&view, &wanted, &number, &of_key, &of_chat))
}

/// The newest events that match.
async fn newest(inbox: &dyn Operations, filter: Option<Filter>) -> Result<Vec<Failed>, StoreError> {
    match filter {
        Some(filter) => {
            let listed = inbox.list(&filter, Page::newest(ROWS)).await?;
            with_failures(inbox, listed.events).await
        }
        None => Ok(Vec::new()),
    }
}

/// The number of blocked lanes that are shown.
const LANES: usize = 50;

async fn lanes(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Answer {
    let Query(search) = search?;
    let after = text(&search.after).map(|after| id(&after)).transpose()?;
    let inbox = inbox(&view.console)?;
    let mut lanes = inbox.blocked_lanes(None, after, LANES + 1).await?;
    let is_more = lanes.len() > LANES;
    lanes.truncate(LANES);
    Ok(page::lanes(&view, &lanes, is_more))
}

async fn gaps(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Answer {
    let Query(search) = search?;
    let inbox = &**inbox(&view.console)?;
    let filter = search.of_time()?;
    let page = search.page(ROWS + 1)?;
    let listed = inbox.gaps(&filter, page).await?;
    let (events, more) = cut(inbox, &filter, page, listed).await?;
    Ok(page::gaps(&view, &search, &events, more))
}

async fn done(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Answer {
    let Query(search) = search?;
    let wrong = |_| {
        Problem::bad(format!(
            "`{}` is not the number of an action.",
            search.before
        ))
    };
    let before = text(&search.before).map(|before| before.parse().map_err(wrong));
    let inbox = inbox(&view.console)?;
    let mut actions = inbox
        .actions(Which::All, before.transpose()?, ROWS + 1)
        .await?;
    let is_more = actions.len() > ROWS;
    actions.truncate(ROWS);
    Ok(page::actions(&view, &actions, is_more))
}

/// Asks before a kind or everything is paused.
async fn confirm_pause(
    Extension(view): Extension<View>,
    paused: Result<Query<Paused>, QueryRejection>,
) -> Answer {
    let Query(paused) = paused?;
    inbox(&view.console)?;
    Ok(page::confirm_pause(&view, paused.kind()?.as_ref()))
}

/// Asks before all events that match are changed.
async fn confirm(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Answer {
    let Query(search) = search?;
    let action = action(&search.action)?;
    let inbox = &**inbox(&view.console)?;
    let filter = search.filter_for_change(&view.console)?;
    // Before it counts, so that it has seen what is changed.
    let selection = match inbox.seen().await? {
        Some(seen) => Some(view.console.turns.select(inbox, &filter, seen).await?),
        None => None,
    };
    // A change begins with the oldest event, so these are the first that it changes.
    let page = Page::oldest(SAMPLE).within(SEARCH);
    let sample = with_failures(inbox, inbox.list(&filter, page).await?.events).await?;
    Ok(page::confirm(
        &view,
        action,
        &search,
        selection.as_ref(),
        &sample,
    ))
}

/// The number of events that a question shows.
const SAMPLE: usize = 5;

async fn bulk(Extension(view): Extension<View>, path: Result<Path<i64>, PathRejection>) -> Answer {
    let Path(number) = path?;
    let action = find_bulk(&view.console, number).await?;
    Ok(page::bulk(&view, &action))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::future::pending;
    use std::io;
    use std::sync::Mutex;
    use std::time::{Duration, SystemTime};

    use axum::body::Body;
    use http::{Request, StatusCode};
    use http_body_util::BodyExt;
    use tokio::sync::Semaphore;
    use tokio::time::{sleep, timeout};
    use tower::ServiceExt;
    use tracing::subscriber::DefaultGuard;

    use super::super::operations::{Answer, Counted};
    use super::*;
    use tower_webhook::EventKind;
    use tower_webhook::inbox::{
        Action, ActionKind, BlockedLane, By, Change, EventId, EventRecord, EventState,
        EventSummary, Filter, Inbox, Listed, Page, Pause, Seen, Selection, Stats,
    };
    use tower_webhook::memory::MemoryQueue;
    use tower_webhook::telemetry::{Count, CountsOf};

    /// One dead letter, whose redrive panics. A search for the newest events stops early. A pause waits for a permit, and so
    /// does a discard of all that match; a redrive panics.
    struct Faulty {
        permits: Arc<Semaphore>,
        changes: Counted<MemoryQueue>,
    }

    impl Operations for Faulty {
        fn list<'a>(&'a self, _: &'a Filter, page: Page) -> Answer<'a, Listed> {
            let event = EventSummary {
                id: EventId(1),
                kind: EventKind::CHAT_RATED,
                key: None,
                chat: None,
                state: EventState::Dead,
                is_redriven: false,
                accepted_at: SystemTime::UNIX_EPOCH,
                due_at: None,
                settled_at: None,
                failures: 0,
            };
            let listed = Listed {
                events: vec![event],
                searched: page.newest_first.then_some(EventId(7)),
            };
            Box::pin(async { Ok(listed) })
        }

        fn gaps<'a>(&'a self, _: &'a Filter, _: Page) -> Answer<'a, Listed> {
            Box::pin(pending())
        }

        fn blocked_lanes<'a>(
            &'a self,
            _: Option<&'a str>,
            _: Option<EventId>,
            _: usize,
        ) -> Answer<'a, Vec<BlockedLane>> {
            Box::pin(pending())
        }

        fn get(&self, _: EventId) -> Answer<'_, Option<EventRecord>> {
            panic!("the record is faulty")
        }

        fn redrive(&self, _: EventId, _: Option<EventState>, _: By) -> Answer<'_, Change> {
            Box::pin(async { panic!("the queue is faulty") })
        }

        fn discard(&self, _: EventId, _: Option<EventState>, _: By) -> Answer<'_, Change> {
            Box::pin(pending())
        }

        fn pauses(&self) -> Answer<'_, Vec<Pause>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn actions(
            &self,
            which: Which,
            before: Option<i64>,
            limit: usize,
        ) -> Answer<'_, Vec<Action>> {
            self.changes.actions(which, before, limit)
        }

        fn action(&self, number: i64) -> Answer<'_, Option<Action>> {
            self.changes.action(number)
        }

        fn seen(&self) -> Answer<'_, Option<Seen>> {
            Box::pin(pending())
        }

        fn select<'a>(&'a self, filter: &'a Filter, seen: Seen) -> Answer<'a, Selection> {
            self.changes.select(filter, seen)
        }

        fn begin_all<'a>(
            &'a self,
            kind: ActionKind,
            selection: &'a Selection,
            rate: u32,
            by: By,
        ) -> Answer<'a, i64> {
            self.changes.begin_all(kind, selection, rate, by)
        }

        fn continue_all(&self, number: i64) -> Answer<'_, Action> {
            Box::pin(async move {
                let action = self.changes.action(number).await?.unwrap();
                assert_eq!(action.kind, ActionKind::Discard, "the queue is faulty");
                let _permit = self.permits.acquire().await;
                Ok(action)
            })
        }

        fn cancel(&self, number: i64, by: By) -> Answer<'_, bool> {
            self.changes.cancel(number, by)
        }

        fn pause<'a>(
            &'a self,
            _: Option<&'a EventKind>,
            _: Option<&'a str>,
            _: By,
        ) -> Answer<'a, ()> {
            Box::pin(async {
                let _permit = self.permits.acquire().await;
                Ok(())
            })
        }

        fn tripped(&self) -> BTreeMap<EventKind, SystemTime> {
            BTreeMap::new()
        }

        fn counts(&self, of: CountsOf) -> Answer<'_, Vec<Count>> {
            self.changes.counts(of)
        }

        fn stats(&self) -> Answer<'_, (Stats, Duration)> {
            Box::pin(pending())
        }
    }

    fn console(permits: &Arc<Semaphore>) -> Router {
        let permits = Arc::clone(permits);
        let console = Console {
            inbox: Some(Arc::new(Faulty {
                permits,
                changes: Counted::new(Inbox::new(MemoryQueue::new())),
            })),
            ..Console::new()
        };
        console.router()
    }

    fn post(path: &str) -> Request<Body> {
        post_form(path, "action=redrive&state=dead&newest=1&at=0")
    }

    fn post_form(path: &str, form: &'static str) -> Request<Body> {
        let post = Request::post(path)
            .header("sec-fetch-site", "same-origin")
            .header("content-type", "application/x-www-form-urlencoded");
        post.body(Body::from(form)).unwrap()
    }

    async fn get(app: Router, path: &str) -> String {
        let get = Request::get(path).body(Body::empty()).unwrap();
        let page = app.oneshot(get).await.unwrap().into_body();
        let page = page.collect().await.unwrap().to_bytes();
        String::from_utf8(page.to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_was_not_searched_to_its_end_says_so() {
        let app = console(&Arc::new(Semaphore::new(0)));
        let list = get(app, "/events?error=refused").await;
        assert!(list.contains("event 7 was reached"), "{list}");
        let on = r#"<a href="/events?error=refused&amp;after=7" rel="next" data-search>Continue search</a>"#;
        assert!(list.contains(on), "{list}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_panics_is_interrupted_after_a_minute() {
        let (app, lines) = (console(&Arc::new(Semaphore::new(0))), Lines::default());
        let _log = lines.capture();
        let begun = app.clone().oneshot(post("/all")).await.unwrap();
        assert_eq!(begun.headers()["location"], "/actions/1");
        sleep(Duration::from_secs(59)).await;
        let text = lines.text();
        assert!(text.contains("that match has panicked number=1"), "{text}");
        let page = get(app.clone(), "/actions/1").await;
        assert!(page.contains("In progress."), "{page}");
        sleep(Duration::from_secs(2)).await;
        let page = get(app, "/actions/1").await;
        assert!(page.contains("Interrupted: "), "{page}");
        assert!(page.contains(r#"action="/actions/1/continue""#), "{page}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fifth_change_is_refused_and_not_stored() {
        let permits = Arc::new(Semaphore::new(0));
        let app = console(&permits);
        let begin = || {
            let post = post_form("/all", "action=discard&state=dead&newest=1&at=0");
            app.clone().oneshot(post)
        };
        for number in 1..=4 {
            let begun = begin().await.unwrap();
            assert_eq!(begun.headers()["location"], format!("/actions/{number}"));
        }
        let refused = begin().await.unwrap();
        assert_eq!(refused.status(), StatusCode::CONFLICT);
        let page = refused.into_body().collect().await.unwrap().to_bytes();
        let page = String::from_utf8_lossy(&page);
        let why = "A console makes 4 changes of all that match at a time.";
        assert!(page.contains(why), "{page}");
        let page = get(app.clone(), "/actions/5").await;
        assert!(page.contains("There is no such change"), "{page}");
        // Neither is one continued, which has not ended.
        let continued = app.clone().oneshot(post("/actions/1/continue"));
        assert_eq!(continued.await.unwrap().status(), StatusCode::CONFLICT);

        permits.add_permits(1);
        sleep(Duration::from_secs(1)).await;
        let begun = begin().await.unwrap();
        assert_eq!(begun.headers()["location"], "/actions/5");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_page_with_the_headers_of_all_pages() {
        let app = console(&Arc::new(Semaphore::new(0)));
        let get = Request::get("/events/1").body(Body::empty()).unwrap();
        let page = app.oneshot(get).await.unwrap();
        assert_eq!(page.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(page.headers()["x-content-type-options"], "nosniff");
        let page = page.into_body().collect().await.unwrap().to_bytes();
        let page = String::from_utf8_lossy(&page);
        assert!(
            page.contains("The console panicked. The log has the reason."),
            "{page}"
        );
        assert!(!page.contains("faulty"), "{page}");
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn capture(&self) -> DefaultGuard {
            let writer = self.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(move || writer.clone());
            tracing::subscriber::set_default(subscriber.finish())
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl io::Write for Lines {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_logged_though_the_operator_has_disconnected() {
        let lines = Lines::default();
        let _log = lines.capture();
        let permits = Arc::new(Semaphore::new(0));
        let pausing = console(&permits).oneshot(post_form("/pause", "reason=maintenance"));
        let pausing = timeout(Duration::from_secs(1), pausing).await;
        assert!(pausing.is_err());
        permits.add_permits(1);
        sleep(Duration::from_secs(1)).await;
        let text = lines.text();
        let paused = "the console pauses or resumes is_paused=true";
        assert!(text.contains(paused), "{text}");
    }
}
