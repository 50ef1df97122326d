//! Whether a delivery would be stored now, for `/readyz`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tower_webhook::store::{Claim, EventKey, Store};

/// How long a store has for an answer, so that the response comes within a second.
const WITHIN: Duration = Duration::from_millis(900);

/// How long an answer counts. Anybody can ask, and each question costs the store a write.
const FRESH: Duration = Duration::from_millis(500);

type Check = Box<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// Asks each store and inbox of a receiver.
#[derive(Default)]
pub(crate) struct Readiness {
    /// With the names of what they ask.
    checks: Vec<(String, Check)>,
    is_stopping: AtomicBool,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    at: Option<Instant>,
    away: Vec<String>,
}

impl Readiness {
    pub(crate) fn add<F>(&mut self, name: String, check: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = bool> + Send + 'static,
    {
        self.checks
            .push((name, Box::new(move || Box::pin(check()))));
    }

    /// The receiver accepts deliveries for a while, and wants no more.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    async fn is_ready(&self) -> bool {
        // Whoever waits for the lock gets the answer of another question.
        let mut last = self.last.lock().await;
        if last.at.is_some_and(|at| at.elapsed() < FRESH) {
            return last.away.is_empty();
        }
        let mut away = Vec::new();
        let asked = self.checks.iter().map(|(_, check)| check());
        let answers = futures_util::future::join_all(asked).await;
        for ((name, _), is_ready) in self.checks.iter().zip(answers) {
            if !is_ready {
                away.push(name.clone());
            }
        }
        if away != last.away {
            match away.as_slice() {
                [] => tracing::info!("deliveries are stored again"),
                away => tracing::warn!(
                    away = away.join(", "),
                    "`/readyz` is answered with 503: no delivery can be stored now"
                ),
            }
        }
        last.at = Some(Instant::now());
        last.away = away;
        last.away.is_empty()
    }

    async fn answer(&self) -> (StatusCode, &'static str) {
        let refused = |why| (StatusCode::SERVICE_UNAVAILABLE, why);
        if self.is_stopping.load(Ordering::Relaxed) {
            return refused("the receiver is stopping\n");
        }
        match self.is_ready().await {
            true => (StatusCode::OK, "ready\n"),
            false => refused("no delivery can be stored now: see the receiver's log\n"),
        }
    }
}

/// Adds `/readyz` to the application of a receiver.
pub(crate) fn mount(app: Router, readiness: &Arc<Readiness>) -> Router {
    let readiness = Arc::clone(readiness);
    let answer = move || {
        let readiness = Arc::clone(&readiness);
        async move { readiness.answer().await }
    };
    app.route("/readyz", get(answer))
}

/// Whether a store claims and releases a key, as for a delivery.
pub(crate) async fn stores<St: Store>(store: St) -> bool {
    // No route has this name. Another receiver that asks at the same time has the key in flight, which is an answer.
    let id = EventKey::new("/readyz", b"", b"");
    let lease = Duration::from_secs(2);
    let asked = async {
        match store.claim(&id, lease, lease).await {
            Ok(Claim::Acquired(lease)) => store.release(&lease).await.is_ok(),
            Ok(_) => true,
            Err(_) => false,
        }
    };
    timeout(WITHIN, asked).await.unwrap_or(false)
}
