//! The routes, and the pages that they answer.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures_util::future::{try_join, try_join4};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use maud::Markup;
use serde::Deserialize;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::csrf::CsrfLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_webhook::IdempotencyKey;
use tower_webhook::inbox::{
    BlockedLane, EventId, EventSummary, Filter, Inbox, Listed, Page, Which,
};
use tower_webhook::store::StoreError;

use super::actions;
use super::ask;
use super::done;
use super::export::export;
use super::forget;
use super::guard::guard;
use super::history::{history, refusals};
use super::lately::Lately;
use super::page::{self, View, Wrong};
use super::problem::Problem;
use super::reading::{More, SEARCH, read};
use super::request::{LONGEST_TEXT, ROWS, Search, id, inbox, read_line, text};
use super::settings::Console;

impl Console {
    /// Returns the pages. Mount them with [`Router::nest_service`]: with `nest`, a path such as `/console/` is answered with 404.
    pub fn router(self) -> Router {
        let mut pages = Router::new()
            .route("/", get(overview))
            .route("/kinds", get(kinds))
            .route("/events", get(events))
            .route("/events/{id}", get(event))
            .route("/export", get(export))
            .route("/chat", get(chat))
            .route("/find", get(find))
            .route("/lanes", get(lanes))
            .route("/gaps", get(gaps))
            .route("/history", get(history))
            .route("/refusals", get(refusals))
            .route("/actions", get(done::done))
            .route("/actions/{number}", get(ask::bulk))
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
                .route("/all", get(ask::confirm).post(actions::change_all))
                .route("/selected", post(actions::change_selected))
                .route(
                    "/events/{id}/{action}",
                    get(ask::confirm_discard).post(actions::change),
                )
                .route("/forget", get(forget::search).post(forget::forget))
                .route("/pause", get(ask::confirm_pause).post(actions::pause))
                .route("/resume", get(ask::confirm_resume).post(actions::resume))
                .route("/retire", get(ask::confirm_retire).post(actions::retire))
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

pub(super) type Answer = Result<Markup, Problem>;

async fn not_found() -> Problem {
    Problem::not_found("There is no such page.")
}

/// A page, since its router adds a header.
async fn wrong_method(Extension(view): Extension<View>) -> Response {
    let reason = "The page cannot be requested with this method.";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, reason).page(&view)
}

async fn overview(Extension(mut view): Extension<View>) -> Markup {
    let Some(inbox) = view.console.inbox.clone() else {
        let lately = Lately::of(&view.console).await;
        return page::overview(&view, None, &[], &[], &lately, None);
    };
    // What does not come from the database is shown nevertheless.
    if let Some(error) = view.failed.clone() {
        let own = Lately::own(&view.console).await;
        return page::overview(&view, Some(&error), &[], &[], &own, None);
    }
    let mut error = None;
    if view.counted.is_none() {
        match view.console.counts.of(&inbox).await {
            Ok(counted) => view.counted = Some(counted),
            Err(failed) => error = Some(failed),
        }
    }
    let running = read(inbox.actions(Which::Running, None, MANY)).await;
    let kinds = view.stats().into_iter().flat_map(|stats| &stats.kinds);
    // The counts tell whether any lane is blocked, so the page seldom has to look for lanes.
    let blocked = match kinds.map(|kind| kind.blocking).sum() {
        0_u64 => Vec::new(),
        _ => worst(&inbox).await.unwrap_or_default(),
    };
    let running = running.unwrap_or_default();
    let lately = Lately::of(&view.console).await;
    // As for lanes.
    let kinds = view.stats().into_iter().flat_map(|stats| &stats.kinds);
    let why = match kinds.map(|kind| kind.retrying + kind.dead).sum() {
        0_u64 => None,
        _ => {
            let causes = async move { inbox.causes(CAUSES).await };
            view.console.causes.by(causes).await.ok()
        }
    };
    page::overview(
        &view,
        error.as_ref(),
        &blocked,
        &running,
        &lately,
        why.as_ref(),
    )
}

/// Which page of all event types is asked for.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Part {
    page: usize,
}

async fn kinds(
    Extension(view): Extension<View>,
    part: Result<Query<Part>, QueryRejection>,
) -> Answer {
    let Query(part) = part?;
    let lately = Lately::of(&view.console).await;
    Ok(page::kinds(&view, &lately, part.page))
}

/// The number of causes of failures on the overview.
const CAUSES: usize = 8;

/// How many changes of all that match the overview shows.
const MANY: usize = 100;

/// The number of blocked lanes on the overview.
const WORST: usize = 3;

/// Those of the first blocked lanes in which most events wait.
async fn worst(inbox: &Inbox) -> Result<Vec<BlockedLane>, StoreError> {
    let mut lanes = read(inbox.blocked_lanes(None, None, LANES)).await?;
    // The section is about chats that wait, so a lane without a waiting event is not in it.
    lanes.retain(|lane| lane.waiting > 0);
    lanes.sort_by_key(|lane| (Reverse(lane.waiting), lane.since));
    lanes.truncate(WORST);
    Ok(lanes)
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
    let inbox = inbox(&view.console)?;
    let listed = read(inbox.list(&filter, page)).await?;
    let (events, more) = cut(inbox, &filter, page, listed).await?;
    Ok(page::events(view, search, &events, more, wrong))
}

/// Cuts a list of up to `ROWS + 1` events to a page.
async fn cut(
    inbox: &Inbox,
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
    inbox: &Inbox,
    filter: &Filter,
    page: Page,
    last: EventId,
) -> Result<More, StoreError> {
    let of_time = Filter::default().accepted(filter.accepted_from, filter.accepted_until);
    let end = async |page: Page| {
        let listed = read(inbox.list(&of_time, page.within(SEARCH))).await?;
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

async fn event(
    Extension(view): Extension<View>,
    path: Result<Path<String>, PathRejection>,
) -> Answer {
    let Path(number) = path?;
    record(&view, id(&number)?, None).await
}

/// The page of an event, with why it was not changed.
pub(super) async fn record(view: &View, id: EventId, wrong: Option<&str>) -> Answer {
    let inbox = inbox(&view.console)?;
    let record = read(inbox.get(id)).await?;
    let record = record.ok_or_else(|| gone(id))?;
    let lane = read(inbox.place_of(&record.summary)).await?;
    let done = read(inbox.actions(Which::Of(id), None, DONE)).await?;
    Ok(page::event(view, &record, &lane, &done, wrong))
}

pub(super) fn gone(id: EventId) -> Problem {
    Problem::not_found(format!(
        "There is no event {id}. Perhaps its retention has expired."
    ))
}

/// The number of actions on the page of an event.
const DONE: usize = 20;

async fn chat(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Answer {
    let Query(search) = search?;
    let chat = &search.id;
    let filter = Filter::default().chat(chat);
    let mut page = search.page(ROWS)?;
    page.newest_first = false;
    let inbox = inbox(&view.console)?;
    let listed = read(inbox.list(&filter, page)).await?;
    let more = match (listed.next(ROWS), listed.searched) {
        (Some(last), None) => More::Page(last),
        (_, Some(last)) => search_on(inbox, &filter, page, last).await?,
        (None, None) => More::Nothing,
    };
    // A later page can be empty although the chat has events.
    if matches!(more, More::Nothing) && listed.events.is_empty() && page.after.is_none() {
        return Err(Problem::not_found(format!(
            "There is no event of the chat `{chat}`."
        )));
    }
    let has_first = page.after.is_some();
    // A chat has a lane at each route.
    let blocked = read(inbox.blocked_lanes(Some(chat), None, LANES)).await?;
    let events = &listed.events;
    Ok(page::chat(&view, chat, &blocked, events, more, has_first))
}

/// Shows the event with a number, those of a key and a chat, and the newest ones with a text.
async fn find(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Answer {
    let Query(search) = search?;
    let nothing = || Problem::bad("Which chat, key or number of an event?");
    let wanted = read_line(&search.id).ok_or_else(nothing)?;
    let inbox = inbox(&view.console)?;
    let number = async {
        match wanted.parse() {
            Ok(id) => read(inbox.get(id)).await,
            Err(_) => Ok(None),
        }
    };
    let of_key = wanted.parse().ok();
    // At the routes of all processes, of which that of the console may have none.
    let counted = view.stats().into_iter().flat_map(|stats| &stats.kinds);
    let routes: BTreeSet<_> = counted.map(|kind| kind.route.clone()).collect();
    let of_key = of_key.map(|key: IdempotencyKey| Filter::default().key(key).routes(routes));
    let of_chat = Filter::default().chat(&wanted);
    let reads_payloads = !view.console.hides_payloads && wanted.chars().count() <= LONGEST_TEXT;
    let of_text = reads_payloads.then(|| Filter::default().body(&wanted));
    // The same text can be a number, a key, a chat and in a payload, so nobody has to say which.
    let (number, of_key, of_chat, of_text) = try_join4(
        number,
        newest(inbox, of_key),
        newest(inbox, Some(of_chat)),
        newest(inbox, of_text),
    )
    .await?;
    let number = number.map(|record| record.summary);
    let number = number.as_slice();
    let of_text = reads_payloads.then_some(&*of_text);
    Ok(page::found(
        &view, &wanted, number, &of_key, &of_chat, of_text,
    ))
}

/// The newest events that match.
async fn newest(inbox: &Inbox, filter: Option<Filter>) -> Result<Vec<EventSummary>, StoreError> {
    let Some(filter) = filter else {
        return Ok(Vec::new());
    };
    // A text is looked for in the newest payloads alone. The page has a link to a search of all of them.
    let page = match filter.body.is_some() {
        true => Page::newest(TEXTS).within(SEARCH),
        false => Page::newest(ROWS),
    };
    Ok(read(inbox.list(&filter, page)).await?.events)
}

/// The number of events with a text that are shown.
const TEXTS: usize = 10;

/// The number of blocked lanes that are shown.
const LANES: usize = 50;

async fn lanes(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Answer {
    let Query(search) = search?;
    let after = text(&search.after).map(|after| id(&after)).transpose()?;
    let inbox = inbox(&view.console)?;
    let mut lanes = read(inbox.blocked_lanes(None, after, LANES + 1)).await?;
    let is_more = lanes.len() > LANES;
    lanes.truncate(LANES);
    Ok(page::lanes(&view, &lanes, is_more))
}

async fn gaps(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Answer {
    let Query(search) = search?;
    let inbox = inbox(&view.console)?;
    let filter = search.of_time()?;
    let page = search.page(ROWS + 1)?;
    let listed = read(inbox.gaps(&filter, page)).await?;
    let (events, more) = cut(inbox, &filter, page, listed).await?;
    Ok(page::gaps(&view, &search, &events, more))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;
    use std::time::Duration;

    use async_trait::async_trait;
    use axum::body::Body;
    use http::{Request, StatusCode};
    use http_body_util::BodyExt;
    use tokio::sync::Semaphore;
    use tokio::time::{sleep, timeout};
    use tower::ServiceExt;
    use tracing::subscriber::DefaultGuard;

    use super::*;
    use tower_webhook::inbox::internal::{BulkStep, ChangeEvents, ListEvents, NewBulk};
    use tower_webhook::inbox::{
        Action, ActionKind, By, Change, EventRecord, EventState, Queue, Scope,
    };
    use tower_webhook::memory::MemoryQueue;

    /// A search for the newest events stops early, and records panic. A pause waits for a permit, and so does a step of a
    /// discard of all that match; one of a redrive panics.
    struct Faulty {
        permits: Arc<Semaphore>,
        queue: Queue,
    }

    #[async_trait]
    impl ListEvents for Faulty {
        async fn list(&self, filter: &Filter, page: Page) -> Result<Listed, StoreError> {
            let mut listed = self.queue.list.list(filter, page).await?;
            listed.searched = page.newest_first.then_some(EventId(7));
            Ok(listed)
        }

        async fn get(&self, _: EventId) -> Result<Option<EventRecord>, StoreError> {
            panic!("the record is faulty")
        }

        async fn find(&self, key: u128) -> Result<Option<EventId>, StoreError> {
            self.queue.list.find(key).await
        }

        async fn blocked_lanes(
            &self,
            chat: Option<&str>,
            after: Option<EventId>,
            limit: usize,
        ) -> Result<Vec<BlockedLane>, StoreError> {
            self.queue.list.blocked_lanes(chat, after, limit).await
        }

        async fn actions(
            &self,
            which: Which,
            before: Option<i64>,
            limit: usize,
        ) -> Result<Vec<Action>, StoreError> {
            self.queue.list.actions(which, before, limit).await
        }
    }

    #[async_trait]
    impl ChangeEvents for Faulty {
        async fn change(
            &self,
            kind: ActionKind,
            id: EventId,
            from: Option<EventState>,
            by: &By,
        ) -> Result<Change, StoreError> {
            self.queue.change.change(kind, id, from, by).await
        }

        async fn pause(&self, of: &Scope, note: Option<&str>, by: &By) -> Result<(), StoreError> {
            let _permit = self.permits.acquire().await;
            self.queue.change.pause(of, note, by).await
        }

        async fn begin(&self, bulk: &NewBulk, by: &By) -> Result<i64, StoreError> {
            self.queue.change.begin(bulk, by).await
        }

        async fn step(&self, number: i64, step: &BulkStep) -> Result<bool, StoreError> {
            assert!(!step.redrives, "the queue is faulty");
            let _permit = self.permits.acquire().await;
            self.queue.change.step(number, step).await
        }

        async fn cancel(&self, number: i64, by: &By) -> Result<bool, StoreError> {
            self.queue.change.cancel(number, by).await
        }
    }

    fn console(permits: &Arc<Semaphore>) -> Router {
        let queue = Queue::from(MemoryQueue::new());
        let faulty = Arc::new(Faulty {
            permits: Arc::clone(permits),
            queue: queue.clone(),
        });
        let queue = Queue {
            list: faulty.clone(),
            change: faulty,
            ..queue
        };
        Console::new().inbox(Inbox::new(queue)).router()
    }

    fn post(path: &str) -> Request<Body> {
        post_form(path, "who=ada&action=redrive&state=dead&newest=1&at=0")
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

    /// Not in paused time, in which a search for gaps has no end.
    #[tokio::test]
    async fn each_search_can_go_on_by_itself() {
        let app = console(&Arc::new(Semaphore::new(0)));
        for path in ["/events?error=refused", "/gaps"] {
            let page = get(app.clone(), path).await;
            let (_, found) = page.split_once("id=\"found\"").expect(path);
            assert!(found.contains("event 7 was reached"), "{path}: {page}");
            assert!(found.contains("data-search"), "{path}: {page}");
            // Its rows would be replaced by those of the first step.
            assert!(!found.contains("data-live"), "{path}: {page}");
        }
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
            let post = post_form("/all", "who=ada&action=discard&state=dead&newest=1&at=0");
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
        let pausing = console(&permits).oneshot(post_form("/pause", "who=ada&reason=maintenance"));
        let pausing = timeout(Duration::from_secs(1), pausing).await;
        assert!(pausing.is_err());
        permits.add_permits(1);
        sleep(Duration::from_secs(1)).await;
        let text = lines.text();
        let paused = r#"the console pauses or resumes actor="ada" is_paused=true"#;
        assert!(text.contains(paused), "{text}");
    }
}
