//! A console: pages that show deliveries and events to operators, with buttons to redrive, discard and pause.
//!
//! [`Console::router`] returns an axum `Router`, to be mounted under any path of your application, behind your own
//! authentication:
//!
//! ```
//! use axum::Router;
//! use tower_webhook::console::Console;
//! use tower_webhook::inbox::Inbox;
//! use tower_webhook::memory::MemoryQueue;
//! use tower_webhook::telemetry::{FailureBudget, Recent, Silence};
//! use tower_webhook::{Secret, SignatureLayer};
//! use tower::Layer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_webhook::ConfigError> {
//! let (budget, silence, recent) = (FailureBudget::default(), Silence::new().learn(), Recent::new());
//! let observer = std::sync::Arc::new((budget.clone(), silence.clone(), recent.clone()));
//! let inbox = Inbox::new(MemoryQueue::new()).observer(observer.clone());
//! let webhooks = SignatureLayer::new(Secret::new("8c1f…")?)
//!     .observer(observer)
//!     .layer(inbox.accept());
//!
//! let console = Console::new()
//!     .inbox(inbox)
//!     .budget(budget)
//!     .silence(silence)
//!     .recent(recent);
//! let app: Router = Router::new()
//!     .route_service("/webhooks", webhooks)
//!     .nest("/console", console.router()); // behind a layer that authenticates operators
//! # Ok(())
//! # }
//! ```
//!
//! The pages are rendered by the server, work without JavaScript, and load nothing from other sites.
//!
//! # Security
//!
//! The console shows payloads, and anybody who reaches it can discard events. It does not authenticate anybody. It refuses
//! changes that a browser sends on behalf of another site, and with [`Console::hosts`] those under another host name.
//! [`Console::read_only`] removes the buttons and their routes, and [`Console::hide_payloads`] the payloads. Each change
//! is logged with the name of the operator, if a proxy sets a header that [`Console::actor_header`] names.

mod actions;
mod bulk;
mod counts;
mod guard;
mod operations;
mod page;
mod routes;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use http::HeaderName;

use self::bulk::Jobs;
use self::operations::{Counted, Operations};
use crate::inbox::{Inbox, Queue};
use crate::telemetry::{FailureBudget, Recent, Silence};

/// A console for operators, over an inbox and observers. Each of them is optional: a page leaves out what is missing.
///
/// See the [module](self) for an example.
#[derive(Default)]
#[must_use]
pub struct Console {
    inbox: Option<Arc<dyn Operations>>,
    budget: Option<FailureBudget>,
    silence: Option<Silence>,
    recent: Option<Recent>,
    is_read_only: bool,
    hides_payloads: bool,
    actor: Option<HeaderName>,
    hosts: Option<Vec<String>>,
    jobs: Jobs,
}

impl Console {
    /// Creates a console that shows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows the events of an inbox, and lets operators redrive, discard, pause and resume them.
    pub fn inbox<Q: Queue>(mut self, inbox: Inbox<Q>) -> Self {
        self.inbox = Some(Arc::new(Counted::new(inbox)));
        self
    }

    /// Shows the failed deliveries of the last hour, against the platform's limit.
    pub fn budget(mut self, budget: FailureBudget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Shows which kinds are silent.
    pub fn silence(mut self, silence: Silence) -> Self {
        self.silence = Some(silence);
        self
    }

    /// Shows the last problems, the events of each minute, the answers of the last hour, and how long attempts took.
    pub fn recent(mut self, recent: Recent) -> Self {
        self.recent = Some(recent);
        self
    }

    /// Removes everything that changes something.
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Hides the payloads of events, and the texts of errors, which may repeat parts of them.
    pub fn hide_payloads(mut self) -> Self {
        self.hides_payloads = true;
        self
    }

    /// Names the header in which a proxy passes on the name of the operator, for the log. Without such a proxy, anybody
    /// can set it.
    pub fn actor_header(mut self, header: HeaderName) -> Self {
        self.actor = Some(header);
        self
    }

    /// Accepts only requests for these host names, without ports, and for IP addresses. Requests for others are answered with 421. This prevents
    /// DNS rebinding: another site cannot read the pages under a name that resolves to the console's address. Set it if the
    /// console has no authentication. By default, all host names are accepted.
    ///
    /// ```
    /// # use tower_webhook::console::Console;
    /// let console = Console::new().hosts(["localhost", "ops.example.com"]);
    /// ```
    pub fn hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.hosts = Some(hosts.into_iter().map(Into::into).collect());
        self
    }

    /// Returns the pages.
    pub fn router(self) -> Router {
        routes::router(Arc::new(self))
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("is_read_only", &self.is_read_only)
            .field("hides_payloads", &self.hides_payloads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
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

    use super::operations::Answer;
    use super::*;
    use crate::event::EventKind;
    use crate::inbox::{
        BlockedLane, Change, EventId, EventRecord, EventState, EventSummary, Filter, Listed, Page,
        Stats,
    };

    /// One dead letter, whose redrive panics. A search for the newest events stops early. A pause waits for a permit.
    struct Faulty {
        permits: Arc<Semaphore>,
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
                failures: 1,
            };
            let listed = Listed {
                events: vec![event],
                searched: page.newest_first.then_some(EventId(7)),
            };
            Box::pin(async { Ok(listed) })
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

        fn redrive(&self, _: EventId, _: Option<EventState>) -> Answer<'_, Change> {
            Box::pin(async { panic!("the queue is faulty") })
        }

        fn discard(&self, _: EventId, _: Option<EventState>) -> Answer<'_, Change> {
            Box::pin(pending())
        }

        fn pause<'a>(&'a self, _: Option<&'a EventKind>) -> Answer<'a, ()> {
            Box::pin(async {
                let _permit = self.permits.acquire().await;
                Ok(())
            })
        }

        fn resume<'a>(&'a self, _: Option<&'a EventKind>) -> Answer<'a, ()> {
            Box::pin(pending())
        }

        fn stats(&self) -> Answer<'_, (Stats, Duration)> {
            Box::pin(pending())
        }
    }

    fn console(permits: &Arc<Semaphore>) -> Router {
        let permits = Arc::clone(permits);
        let console = Console {
            inbox: Some(Arc::new(Faulty { permits })),
            ..Console::new()
        };
        console.router()
    }

    fn post(path: &str) -> Request<Body> {
        let post = Request::post(path)
            .header("sec-fetch-site", "same-origin")
            .header("content-type", "application/x-www-form-urlencoded");
        post.body(Body::from("action=redrive")).unwrap()
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
        assert!(list.contains("stopped after event 7"), "{list}");
        let on = r#"<a href="/events?error=refused&amp;after=7" rel="next">Search on</a>"#;
        assert!(list.contains(on), "{list}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_panics_has_ended() {
        let app = console(&Arc::new(Semaphore::new(0)));
        let started = app.clone().oneshot(post("/all")).await.unwrap();
        assert_eq!(started.headers()["location"], "/jobs/1");
        sleep(Duration::from_secs(1)).await;
        let job = get(app, "/jobs/1").await;
        assert!(job.contains("Stopped, because a change panicked."), "{job}");
        assert!(!job.contains("Cancel"), "{job}");
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
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone());
        let _log = tracing::subscriber::set_default(subscriber.finish());
        let permits = Arc::new(Semaphore::new(0));
        let pausing = console(&permits).oneshot(post("/pause"));
        let pausing = timeout(Duration::from_secs(1), pausing).await;
        assert!(pausing.is_err());
        permits.add_permits(1);
        sleep(Duration::from_secs(1)).await;
        let lines = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(
            lines.contains("the console pauses or resumes is_paused=true"),
            "{lines}"
        );
    }
}
