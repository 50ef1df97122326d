//! A queue in front of a queue: events are accepted into a local file while the database cannot be reached.
//!
//! With an inbox in PostgreSQL, an outage of the database is answered with 503, and 50 seconds of that at 10 events a
//! second [disable the webhook](crate::docs::platform#spec-6-rule-4). A spool is a local file in front of the queue: it
//! accepts events while the queue cannot, and forwards them when it can.
//!
//! ```sh
//! receiver run --inbox postgres://app@db.internal/app --spool /var/lib/webhooks/spool.db
//! ```
//!
//! In code, [`Spool`] puts it in front of any queue:
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use sqlx::PgPool;
//! use tower_webhook::inbox::Inbox;
//! use tower_webhook::postgres::PostgresQueue;
//! use tower_webhook::spool::Spool;
//!
//! let pool = PgPool::connect_lazy("postgres://app@db.internal/app")?;
//! let queue = Spool::new("/var/lib/webhooks/spool.db").open(PostgresQueue::new(pool)).await?;
//! let inbox = Inbox::new(queue.clone());
//!
//! // … start a receiver with it, and when its `Running` is drained:
//! let left = queue.flush(Duration::from_secs(30)).await;
//! # let _ = (inbox, left);
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! - While the queue can be reached, events go to the queue.
//! - A delivery with a key whose acceptance fails (but not for damaged data) or takes longer than a second goes to the file
//!   in the same request. While the file has events of a chat, the next ones of that chat go there, too, in their order.
//! - One chat may be locked by somebody else. After failures of three chats without a success between them, or if the queue
//!   does not answer within a second which tables it has, all events go to the file, and the queue is asked again each
//!   second. Events are deleted from the file when the queue has them.
//! - If the file is full, or its disk fails, the response is 503. Its room is reserved at the start, in a file `-reserve`
//!   beside it. The default limit is 1 GiB.
//!
//! # Promises
//!
//! [Those of an inbox](crate::docs::guarantees#with-an-inbox) hold, with these exceptions while the database is away:
//!
//! - **Order** of a chat holds among the events that one process accepts.
//! - **Duplicates** that several processes accept, or of events that the database has, are recognised when they are
//!   forwarded. Until then, the response is 200.
//! - **Changed and replayed bodies** (`reject_changed_bodies`, `replay_guard`) are answered with 200 if only the database
//!   could tell. When they are forwarded, they become dead letters with the reason. A key that is in flight is waited for.
//! - **Without a key**, a delivery whose acceptance failed is not spooled, because nobody could tell whether it was stored:
//!   the response is 503. Later ones are spooled, and stored once.
//! - **Lists, counts and the console** have no events of a file. Its metrics have their number and the age of the oldest.
//! - **`forget`** deletes the chat's events from the file of its process. In the files of other processes, they are
//!   discarded when they are forwarded, and the chat is forgotten again. They are compared by the clocks of the machine and
//!   of the database.
//! - **Handlers** can ask `RawDelivery::was_spooled`. An event that was accepted later by another process may have been
//!   handled before. The acceptance of an event, its retention and its age begin when it is forwarded.
//! - **A dead letter from the start** is reported when it is accepted, with the number 0, if its body is no JSON object, and
//!   otherwise when it is forwarded.
//! - **An event that the queue refuses** ten times, while it accepts others, stays in the file. Its chat goes on, and it is
//!   tried again after 2 s, then after twice as long each time, up to 10 minutes, and after a restart.
//!   `receiver inbox flush FILE --drop-refused` ([`drop_refused`](Spooled::drop_refused)) prints and removes it. One that is
//!   not answered is not refused: its chat waits.
//!
//! # The file
//!
//! It belongs to one process, which locks it, and to one database, whose tables have a number. A file that is in use,
//! damaged, an inbox, in front of another database, or on a disk without room is refused with exit code 1, and nothing in
//! it is lost. If the database comes back with other tables, events stay in the file until the right ones are back. A
//! database that was restored from a backup has the same number, and gets the events of the file. If it lacks the last event that this
//! process had stored in it, an `ERROR` says so with the next event that it stores: what was acknowledged since the backup
//! is lost. A process that was restarted after the last event does not notice.
//!
//! The receiver also starts while the database is away.
//!
//! - **systemd**: use `${STATE_DIRECTORY}/spool.db`, as in the unit in `operations` of tower-webhook-receiver. A restart forwards what is left.
//! - **Containers**: a container's own disk dies with it. Mount a volume; overlayfs and tmpfs are refused without
//!   `--spool-on-any-disk`. An `emptyDir` survives a restart of the container, and not the removal of its pod.
//! - **Rolling deploys**: each replica needs a volume of its own, such as those of a `StatefulSet`. Replicas that start
//!   before their predecessors have ended need different files.
//! - **A drain** forwards what is in the file while the queue can be reached, for `--grace`. The log says what is left.
//! - **A replica that does not come back**: run `receiver inbox flush FILE` with its file and the same `--inbox`. It exits
//!   with 1 if events are left.

mod event;
mod forward;
mod front;
mod gate;
mod lost;
mod reserve;
mod status;

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::RwLock;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use self::forward::Failures;
use self::gate::{Gate, Lanes, Storing};
use self::lost::Newest;
use self::reserve::{Reserve, log_room};
use self::status::Measured;
pub use self::status::Status;
use crate::error::Chain;
use crate::execution::time_for;
use crate::inbox::Queue;
use crate::inbox::actions::{ActionKind, By};
use crate::inbox::event::{EventId, Lane, NewEvent};
use crate::inbox::queue::{Accepted, ChangeEvents, CountEvents, ListEvents, PurgeEvents, Tables};
use crate::inbox::records::EventRecord;
use crate::lock::lock;
use crate::sqlite::SqliteQueue;
use crate::sqlite::queue::spool::is_full;
use crate::store::{EventKey, OpenError, OpenErrorKind, StoreError, StoreErrorKind};
use crate::task::AbortOnDrop;

/// The settings of a spool, which [`open`](Self::open) puts in front of a queue.
#[derive(Clone, Debug)]
#[must_use = "a spool does nothing until it is opened"]
pub struct Spool {
    path: PathBuf,
    limit: u64,
    on_any_disk: bool,
    accept_within: Duration,
}

impl Spool {
    /// Sets the path of the file. Each process needs one of its own, on a disk that outlives the process.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().into(),
            limit: 1 << 30,
            on_any_disk: false,
            accept_within: Duration::from_secs(1),
        }
    }

    /// Sets the size of the file, in bytes, at which deliveries are answered with 503: 1 GiB by default, and at least
    /// 1 MiB. As much room is reserved on the disk at the start, and up to 256 MiB for the log.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes.max(1 << 20);
        self
    }

    /// Allows a file on overlayfs or tmpfs, which end with their container or machine and take accepted events with
    /// them. By default, it is refused.
    pub fn on_any_disk(mut self) -> Self {
        self.on_any_disk = true;
        self
    }

    /// Sets the time limit of an acceptance by the queue, after which the event goes to the file: 1 second by default. It
    /// should be well below [`Webhooks::store_timeout`](crate::Webhooks::store_timeout), within which the sender gets its answer.
    pub fn accept_within(mut self, limit: Duration) -> Self {
        self.accept_within = limit;
        self
    }

    /// Opens the file, creates it if it does not exist, and starts to forward its events to the queue. The queue need not
    /// be reachable.
    ///
    /// # Errors
    ///
    /// When the file is used by another process, has no room, is in front of another database, is damaged, is no spool, was
    /// changed by a later release, or is on overlayfs or tmpfs. The error says what to do. Nothing in the file is lost.
    ///
    /// # Panics
    ///
    /// When it is called outside of a tokio runtime.
    pub async fn open(self, queue: impl Into<Queue>) -> Result<Spooled, OpenError> {
        self.open_before(queue.into()).await
    }

    async fn open_before(self, queue: Queue) -> Result<Spooled, OpenError> {
        let Self {
            path,
            limit,
            on_any_disk,
            ..
        } = self.clone();
        let opening = spawn_blocking(move || {
            let mut reserve = Reserve::lock(&path, limit, on_any_disk)?;
            let file = SqliteQueue::open_spool(&path, log_room(limit))?;
            reserve.hold()?;
            Ok::<_, OpenError>((reserve, file))
        });
        let opened = opening.await;
        let (reserve, file) =
            opened.map_err(|error| OpenError::new(OpenErrorKind::Unavailable, error))??;
        let shared = Shared {
            queue,
            file,
            spool: self,
            gate: Gate::default(),
            reserve: Mutex::new(reserve),
            measured: Mutex::default(),
            identity: AtomicI64::new(0),
            holds_leases: AtomicBool::new(true),
            failures: Mutex::default(),
            accepted: AtomicU64::new(0),
            forwarding: Arc::default(),
            reason: Mutex::default(),
            newest: Mutex::default(),
        };
        shared.begin().await?;
        let shared = Arc::new(shared);
        let task = tokio::spawn(forward::run(Arc::clone(&shared)));
        Ok(Spooled {
            shared,
            _task: Arc::new(AbortOnDrop(task.abort_handle())),
        })
    }
}

/// A queue with a spool in front of it: a file that accepts events while the queue cannot.
///
/// All that is not about accepting goes to the queue: its lists and counts do not have the events in the file, of which
/// [`status`](Self::status) has the number. Clones share the file. Dropping the last one stops forwarding; what is in the
/// file then stays there.
#[derive(Clone)]
pub struct Spooled {
    shared: Arc<Shared>,
    /// Forwards for as long as somebody has the queue.
    _task: Arc<AbortOnDrop>,
}

struct Shared {
    queue: Queue,
    file: SqliteQueue,
    spool: Spool,
    gate: Gate,
    reserve: Mutex<Reserve>,
    measured: Mutex<Measured>,
    /// The number of the database, or 0 while it is unknown.
    identity: AtomicI64,
    /// Whether events in the file may be taken, and nobody forwards them any more.
    holds_leases: AtomicBool,
    /// Of events in the file.
    failures: Mutex<HashMap<EventId, Failures>>,
    /// How many events the queue has accepted.
    accepted: AtomicU64,
    /// Read-locked while events are forwarded, so that nobody forgets a chat at that time.
    forwarding: Arc<RwLock<()>>,
    /// Why the breaker is open.
    reason: Mutex<String>,
    newest: Mutex<Newest>,
}

impl Spooled {
    /// Waits until all events in the file are forwarded, except events that the queue [refuses](Status::refused), or
    /// until `within` has passed. Returns the number of all events that are left. Some of them may have been accepted
    /// during the wait.
    pub async fn flush(&self, within: Duration) -> u64 {
        const ASK: Duration = Duration::from_millis(20);
        let shared = &*self.shared;
        let forwarded = async {
            while shared.gate.is_busy() {
                let refused = shared.refused();
                if refused > 0 && shared.gate.events() <= refused {
                    break;
                }
                tokio::time::sleep(ASK).await;
            }
        };
        if timeout(within, forwarded).await.is_ok() && !shared.gate.is_busy() {
            return 0;
        }
        let stats = shared.file.stats().await;
        stats.map_or_else(|_| self.status().events, |stats| stats.unsettled())
    }

    /// Removes the events that the queue [refuses](Status::refused) from the file, after `keep` has written each of them
    /// somewhere else. Returns their number. The events are as their inbox would have them, with the reason as a failure.
    ///
    /// # Errors
    ///
    /// When the file fails, or `keep`: this event and the next ones then stay.
    pub async fn drop_refused<E: From<StoreError>>(
        &self,
        mut keep: impl FnMut(&EventRecord) -> Result<(), E>,
    ) -> Result<u64, E> {
        let shared = &*self.shared;
        let _forwarding = shared.forwarding.write().await;
        let mut refused: Vec<_> = lock(&shared.failures)
            .iter()
            .filter_map(|(id, it)| it.is_refused().then_some(*id))
            .collect();
        refused.sort_unstable();
        let mut dropped = 0;
        for id in refused {
            if let Some(record) = shared.file.get(id).await? {
                keep(&event::as_accepted(record))?;
                let by = By::new("spool");
                let discard = || shared.file.change(ActionKind::Discard, id, None, &by);
                shared.with_room(discard).await?;
                dropped += 1;
            }
            shared.forget_failures(Some(id));
        }
        while shared
            .with_room(|| shared.file.purge(Duration::ZERO))
            .await?
        {}
        Ok(dropped)
    }

    /// Returns what is in the file, as it was at most a second ago. Its events are counted less often where that takes longer
    /// than 20 ms, but twice a minute.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Records the metrics of the spool: see the [table of metrics](crate::docs::metrics#spool). It can do so while the queue
    /// cannot be reached.
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        self.shared.record_metrics();
    }
}

partial_debug!(
    Spooled,
    |it| queue = it.shared.queue,
    spool = it.shared.spool
);

impl Shared {
    /// Looks at what a former process has left, and at the queue, if it can be reached.
    async fn begin(&self) -> Result<(), OpenError> {
        let unusable = |error: StoreError| OpenError::new(OpenErrorKind::Unavailable, error);
        let room = log_room(self.spool.limit);
        let bounded = self.with_room(|| self.file.bound_log(room));
        bounded.await.map_err(unusable)?;
        let identity = self.file.spool_of().await.map_err(unusable)?;
        self.identity.store(identity, Ordering::Relaxed);
        let lanes = self.file.lanes().await.map_err(unusable)?;
        self.gate.set_events(lanes);
        match self.ask().await {
            Ok(()) => Ok(()),
            Err(error) if is_foreign(&error) => Err(OpenError::new(
                OpenErrorKind::Foreign,
                Strange(self.spool.path.clone()),
            )),
            Err(error) => {
                self.open_breaker(&error);
                Ok(())
            }
        }
    }

    /// Asks whether the queue can be reached, and the file is in front of it.
    async fn ask(&self) -> Result<(), StoreError> {
        let tables = within(self.spool.accept_within, self.queue.measure.tables()).await?;
        let Tables {
            identity,
            is_writable,
        } = tables;
        match self.identity.load(Ordering::Relaxed) {
            0 => {
                self.with_room(|| self.file.set_spool_of(identity)).await?;
                self.identity.store(identity, Ordering::Relaxed);
            }
            known if known == identity => {}
            _ => {
                let path = self.spool.path.clone();
                return Err(StoreError::new(StoreErrorKind::Unavailable, Strange(path)));
            }
        }
        match is_writable {
            true => Ok(()),
            false => Err(StoreError::new(StoreErrorKind::Unavailable, READ_ONLY)),
        }
    }

    /// Notes that the queue has accepted a delivery, or has answered why it does not.
    async fn accepted(&self, it: &Asked, accepted: &[Accepted]) {
        self.gate.accepted(&it.lanes);
        self.accepted.fetch_add(1, Ordering::Relaxed);
        if let Some(accepted) = accepted.first() {
            self.note_accepted(it.key, it.retain, accepted).await;
        }
    }

    /// Notes that the queue did not accept a delivery. One lane says little about the database.
    fn did_not_accept(&self, it: &Asked, error: &StoreError) {
        if is_of_event(error) {
            return;
        }
        self.doubt_newest();
        let (is_new, opens) = self.gate.failed(&it.lanes, it.number());
        if opens {
            self.open_breaker(error);
        } else if is_new {
            tracing::warn!(
                reason = Chain(error).to_string(),
                "the database did not accept an event: those of its chat go through the spool until it does"
            );
        }
    }

    /// Notes that the queue did not answer a question. No lane that is locked makes one wait.
    fn did_not_answer(&self, error: &StoreError) {
        self.doubt_newest();
        self.open_breaker(error);
    }

    fn open_breaker(&self, error: &StoreError) {
        let is_new = self.gate.set_open(true);
        let reason = Chain(error).to_string();
        let before = std::mem::replace(&mut *lock(&self.reason), reason.clone());
        if is_new {
            tracing::warn!(
                reason,
                "the database cannot accept events: they are accepted into the spool, and it is asked again each second"
            );
        } else if before != reason {
            tracing::warn!(reason, "the database still cannot accept events");
        }
    }

    fn close_breaker(&self) {
        if self.gate.set_open(false) {
            tracing::info!("the database accepts events again");
        }
    }

    /// Makes a change of the file, again with a part of the reserve while the disk is full.
    async fn with_room<T, F>(&self, change: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            let had = lock(&self.reserve).bytes();
            match change().await {
                Err(error) if is_full(&error) && lock(&self.reserve).give_up(had) => {}
                changed => return changed,
            }
        }
    }

    /// Stores a delivery in the file.
    async fn store(
        &self,
        events: Arc<[NewEvent]>,
        storing: Storing<'_>,
    ) -> Result<Vec<Accepted>, StoreError> {
        let bodies = events.iter().map(|event| event.delivery.body().len());
        let has_room = self.check_room(bodies.sum()).await;
        let packed = has_room.and_then(|()| {
            let packed = events.iter().cloned().map(event::pack);
            let packed = packed.collect::<Result<_, _>>();
            packed.map_err(|error| StoreError::new(StoreErrorKind::Corrupt, error))
        });
        let packed = match packed {
            Ok(packed) => packed,
            Err(error) => {
                storing.failed(false);
                return Err(error);
            }
        };
        match self.with_room(|| self.file.store(&packed)).await {
            Ok(mut accepted) => {
                let mut is_stored = false;
                for accepted in &mut accepted {
                    if matches!(accepted, Accepted::New { .. }) {
                        *accepted = Accepted::Spooled;
                        is_stored = true;
                    }
                }
                if !is_stored {
                    storing.cancel();
                }
                Ok(accepted)
            }
            Err(error) => {
                storing.failed(true);
                Err(error)
            }
        }
    }

    /// The number of events in the file that the queue refuses.
    fn refused(&self) -> u64 {
        let failures = lock(&self.failures);
        failures.values().filter(|it| it.is_refused()).count() as u64
    }

    /// Forgets how often an event in the file has failed, or each of them.
    fn forget_failures(&self, of: Option<EventId>) {
        let mut failures = lock(&self.failures);
        let had_refused = match of {
            Some(id) => failures.remove(&id).is_some_and(|it| it.is_refused()),
            None => failures.drain().any(|(_, it)| it.is_refused()),
        };
        if had_refused {
            self.note_refused(&failures);
        }
    }

    fn note_refused(&self, failures: &HashMap<EventId, Failures>) {
        let refused = failures.values().filter(|it| it.is_refused());
        self.gate
            .set_refused(&refused.filter_map(|it| it.lane).collect());
    }
}

/// A delivery that the queue is asked to accept: all lanes, and what is known of its first event.
struct Asked {
    lanes: Lanes,
    key: Option<EventKey>,
    retain: Duration,
    /// How much longer it may take than one of no size.
    time: Duration,
}

impl Asked {
    fn of(events: &[NewEvent]) -> Self {
        let first = events.first();
        Self {
            lanes: Lanes::of(events),
            key: first.and_then(|event| event.key),
            retain: first.map_or(Duration::ZERO, |event| event.retain),
            time: time_for(events.iter().map(|event| event.delivery.body().len()).sum()),
        }
    }

    /// That of its lane, or its own.
    fn number(&self) -> u128 {
        match (self.lanes.first(), self.key) {
            (Some(Lane(lane)), _) => u128::from(lane.cast_unsigned()),
            (None, Some(key)) => key.key(),
            (None, None) => fastrand::u128(..),
        }
    }
}

/// Why a database is not asked to accept events.
const READ_ONLY: &str =
    "the database can only be read: it is a standby, or `default_transaction_read_only` is on";

/// Whether another event may be accepted.
fn is_of_event(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::Corrupt | StoreErrorKind::Invalid
    )
}

/// Calls the queue within a time limit.
// Not an `async fn`, which would make room for the call twice.
fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> impl Future<Output = Result<T, StoreError>> {
    timeout(limit, call).map(|result| result.unwrap_or_else(|_| Err(StoreError::timed_out())))
}

/// The file is in front of another database.
#[derive(Debug)]
struct Strange(PathBuf);

errors! {
    Strange {
        Self(path) => "the spool `{}` has events for another database: the tables of this one are others, such as new and \
            empty ones; restore the database, or choose another spool and flush this one into its own database",
            path.display();
    }
}

fn is_foreign(error: &StoreError) -> bool {
    error.source().is_some_and(<dyn Error>::is::<Strange>)
}
