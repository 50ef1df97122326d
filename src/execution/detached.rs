//! Runs that continue after their client disconnected.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::Instrument;

/// The runs of a layer that continue after their client disconnected. They are bounded in number, and can be waited for
/// at shutdown. Clones are handles to the same runs.
///
/// ```no_run
/// # async fn serve() -> std::io::Result<()> { Ok(()) }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_webhook::IdempotencyLayer;
/// use tower_webhook::memory::MokaStore;
///
/// let layer = IdempotencyLayer::new(MokaStore::new());
/// let runs = layer.runs();
///
/// serve().await?; // with graceful shutdown, which does not wait for detached runs
/// if let Err(timeout) = runs.drain(Duration::from_secs(30)).await {
///     eprintln!("{timeout}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Runs {
    count: Arc<watch::Sender<Count>>,
    limit: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Runs whose client disconnected.
    detached: usize,
    /// Claims of dropped runs that are being released.
    releases: usize,
}

impl Count {
    fn all(self) -> usize {
        self.detached + self.releases
    }
}

impl Runs {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            count: Arc::default(),
            limit: Arc::new(AtomicUsize::new(limit)),
        }
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns the number of detached runs.
    #[must_use]
    pub fn detached(&self) -> usize {
        self.count.borrow().detached
    }

    /// Waits until all detached runs have finished and the claims of dropped runs are released, or until
    /// the deadline has passed.
    ///
    /// # Errors
    ///
    /// When the deadline has passed. The remaining runs end with the process, and their events are
    /// handled on the platform's next retry.
    pub async fn drain(&self, deadline: Duration) -> Result<(), DrainTimeout> {
        self.drain_until(sleep(deadline)).await
    }

    /// Like [`drain`](Self::drain), until `cut` is ready: a deadline, or a second signal.
    ///
    /// # Errors
    ///
    /// When `cut` was ready first.
    pub async fn drain_until(&self, cut: impl Future<Output = ()>) -> Result<(), DrainTimeout> {
        let mut count = self.count.subscribe();
        tokio::select! {
            biased;
            _ = count.wait_for(|count| count.all() == 0) => Ok(()),
            () = cut => DrainTimeout::check(self.count.borrow().all(), 0),
        }
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn record_metrics(&self) {
        metrics::gauge!(crate::telemetry::DETACHED_NOW).set(self.detached() as f64);
    }

    /// Continues a run whose client disconnected, in the current span. Above the limit the run is dropped,
    /// which releases its claim.
    pub(crate) fn adopt(&self, run: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let Some(place) = Slot::to_run(self) else {
            tracing::error!(
                limit = self.limit.load(Ordering::Relaxed),
                "the client disconnected, and too many runs are detached already: this one was \
                 dropped; the event is handled on the platform's next retry"
            );
            return;
        };
        tracing::debug!("the client disconnected; the run continues");
        let run = async move {
            run.await;
            drop(place);
        };
        runtime.spawn(run.in_current_span());
    }
}

/// A place in the count, given back when it is dropped.
pub(crate) struct Slot {
    count: Arc<watch::Sender<Count>>,
    of: fn(&mut Count) -> &mut usize,
}

impl Slot {
    /// For a detached run, if the limit allows one more.
    fn to_run(runs: &Runs) -> Option<Self> {
        let limit = runs.limit.load(Ordering::Relaxed);
        let taken = runs.count.send_if_modified(|count| {
            let is_free = count.detached < limit;
            count.detached += usize::from(is_free);
            is_free
        });
        taken.then(|| Self {
            count: Arc::clone(&runs.count),
            of: |count| &mut count.detached,
        })
    }

    /// For the release of the claim of a dropped run.
    pub(crate) fn to_release(runs: &Runs) -> Self {
        runs.count.send_modify(|count| count.releases += 1);
        Self {
            count: Arc::clone(&runs.count),
            of: |count| &mut count.releases,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.count.send_modify(|count| *(self.of)(count) -= 1);
    }
}

/// The error of a drain, as of [`Runs::drain`]: runs were still in progress when the deadline passed, or background tasks
/// of a worker have panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainTimeout {
    runs: usize,
    panics: usize,
}

impl DrainTimeout {
    /// Returns an error if there is something to report.
    pub(crate) fn check(runs: usize, panics: usize) -> Result<(), Self> {
        match (runs, panics) {
            (0, 0) => Ok(()),
            _ => Err(Self { runs, panics }),
        }
    }

    /// Returns the number of these runs, and of claims that were still to be released.
    #[must_use]
    pub fn count(&self) -> usize {
        self.runs
    }

    /// Returns how often background tasks of the worker have panicked, which were started again.
    #[must_use]
    pub fn panics(&self) -> usize {
        self.panics
    }
}

impl fmt::Display for DrainTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, panics } = self;
        if *runs > 0 || *panics == 0 {
            return write!(
                f,
                "{runs} runs were still in progress when the deadline passed"
            );
        }
        write!(f, "background tasks of the worker panicked {panics} times")
    }
}

impl std::error::Error for DrainTimeout {}
