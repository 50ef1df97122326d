//! The connection to one server that all operations of a runtime share.

use std::collections::HashMap;
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as SyncMutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, RedisError, RedisResult};
use tokio::runtime::{self, Handle};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinError;
use tokio::time::Instant;

use super::call::Request;
use super::error::{is_answer, is_cut_off};
use super::sentinel::Sentinels;
use crate::lock::lock;

/// A server that does not accept a connection in this time is unavailable.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A connection that does not answer in this time is replaced. Below the layer's default for an
/// operation, so that the operation reports why it failed.
const RESPONSE_LIMIT: Duration = Duration::from_millis(1500);

/// A connection that did not answer for this long before a caller gave up is replaced as well. Callers
/// whose clients disconnect give up sooner, which says nothing about the connection.
pub(super) const GIVEN_UP: Duration = Duration::from_millis(250);

/// After an attempt to connect has failed, there is no other one for this long.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// How often a new connection is made to see whether the address leads to another server, while the current
/// one reports that it is cut off.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A connection for each runtime, which its operations share at the same time, and which is replaced when it is
/// lost. A task of the runtime drives it, so another runtime would fail when this one blocks.
///
/// The redis crate's own manager is not used: it keeps a connection that does not answer any more until
/// TCP gives up, which takes a quarter of an hour, and keeps one to a server that is no longer the primary
/// forever; nor does it try again once the server has refused a password.
pub(super) struct Connection {
    target: Target,
    links: SyncMutex<HashMap<runtime::Id, OfRuntime>>,
}

/// Where a connection leads.
#[derive(Clone)]
pub(super) enum Target {
    Server(Client),
    /// To the server that they call the primary when it is made.
    Primary(Arc<Sentinels>),
}

impl Target {
    async fn client(&self) -> RedisResult<Client> {
        match self {
            Self::Server(client) => Ok(client.clone()),
            Self::Primary(sentinels) => sentinels
                .primary()
                .await?
                .ok_or_else(|| io::Error::other("the sentinels are replacing the primary").into()),
        }
    }

    async fn connect(&self) -> RedisResult<Line> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_LIMIT))
            .set_response_timeout(Some(RESPONSE_LIMIT));
        let client = self.client().await?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        Ok(Line::new(connecting.await?, address(&client)))
    }
}

fn address(client: &Client) -> String {
    client.get_connection_info().addr().to_string()
}

struct OfRuntime {
    link: Arc<Mutex<Link>>,
    /// Its receiver is held by a task of the runtime, which ends with the runtime or this.
    alive: oneshot::Sender<()>,
}

impl OfRuntime {
    fn new(runtime: &Handle) -> Self {
        let (alive, ended) = oneshot::channel();
        runtime.spawn(async move {
            let _ = ended.await;
        });
        Self {
            link: Arc::default(),
            alive,
        }
    }
}

#[derive(Default)]
struct Link {
    current: Option<Arc<Line>>,
    failed: Option<(Instant, RedisError)>,
}

impl Link {
    /// The current connection, or why there is none just now.
    fn known(&self) -> Option<RedisResult<Arc<Line>>> {
        if let Some(current) = &self.current
            && !current.is_lost()
        {
            return Some(Ok(Arc::clone(current)));
        }
        match &self.failed {
            // Callers queue for this link: without the pause, each would wait up to 1 s for an unreachable server.
            Some((at, error)) if at.elapsed() < PAUSE => Some(Err(error.clone())),
            _ => None,
        }
    }

    async fn connect(&mut self, target: &Target) -> RedisResult<Arc<Line>> {
        // Another caller may have connected, or failed, while this one waited for the lock.
        if let Some(known) = self.known() {
            return known;
        }
        self.current = None;
        match target.connect().await {
            Ok(line) => {
                let line = Arc::new(line);
                self.current = Some(Arc::clone(&line));
                Ok(line)
            }
            Err(error) => {
                self.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }
}

/// A connection, and whether it is sound.
struct Line {
    connection: MultiplexedConnection,
    address: String,
    made: Instant,
    /// When the sentinels were last asked whether this is the primary.
    checked: SyncMutex<Instant>,
    lost: AtomicBool,
    /// Since when calls have been given up, without an answer to any.
    silent_since: SyncMutex<Option<Instant>>,
}

impl Line {
    fn new(connection: MultiplexedConnection, address: String) -> Self {
        Self {
            connection,
            address,
            made: Instant::now(),
            checked: SyncMutex::new(Instant::now()),
            lost: AtomicBool::new(false),
            silent_since: SyncMutex::new(None),
        }
    }

    /// Makes the next operation open another connection.
    fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

/// A call that waits for its answer, and may be dropped before that.
struct Waiting<'a> {
    line: &'a Line,
    since: Instant,
    answered: bool,
}

impl<'a> Waiting<'a> {
    fn on(line: &'a Line) -> Self {
        Self {
            line,
            since: Instant::now(),
            answered: false,
        }
    }

    fn end(mut self) {
        self.answered = true;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut silent_since = lock(&self.line.silent_since);
        if self.answered {
            *silent_since = None;
        } else if silent_since.get_or_insert(self.since).elapsed() >= GIVEN_UP {
            // The silence begins with the first call without an answer, so several short calls add up.
            self.line.lose();
        }
    }
}

impl Connection {
    pub(super) fn new(target: Target) -> Self {
        Self {
            target,
            links: SyncMutex::default(),
        }
    }

    /// Where the server is, without its password.
    pub(super) fn address(&self) -> String {
        match &self.target {
            Target::Server(client) => address(client),
            Target::Primary(sentinels) => sentinels.address(),
        }
    }

    /// The connection, to be used without its bookkeeping.
    pub(super) async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        Ok(self.link().await?.connection.clone())
    }

    /// The current connection, or a new one.
    ///
    /// It is opened in a separate task: if it were dropped with its caller, the next caller would begin
    /// anew, with as little time left.
    async fn link(&self) -> RedisResult<Arc<Line>> {
        let link = self.link_of(&Handle::current());
        // Nearly every operation finds a connection here, and needs no task.
        if let Some(known) = link.lock().await.known() {
            return known;
        }
        let target = self.target.clone();
        let connecting = tokio::spawn(async move { link.lock().await.connect(&target).await });
        match connecting.await.map_err(JoinError::try_into_panic) {
            Ok(connected) => connected,
            // The caller sees the panic as if it had connected itself.
            Err(Ok(panic)) => resume_unwind(panic),
            // Nobody aborts the task, so its runtime is shutting down.
            Err(Err(ended)) => Err(io::Error::other(ended).into()),
        }
    }

    fn link_of(&self, runtime: &Handle) -> Arc<Mutex<Link>> {
        let mut links = lock(&self.links);
        if let Some(known) = links.get(&runtime.id()) {
            return Arc::clone(&known.link);
        }
        // A new runtime is rare, so this is the place to drop the links of ended ones.
        links.retain(|_, other| !other.alive.is_closed());
        let new = links.entry(runtime.id());
        Arc::clone(&new.or_insert_with(|| OfRuntime::new(runtime)).link)
    }

    /// Sends a request; once more, if that does no harm, when the server turns out to have closed the
    /// connection, as it does with idle ones.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        request: &Request<'_>,
        repeatable: bool,
    ) -> RedisResult<T> {
        let mut repeatable = repeatable;
        loop {
            let line = self.link().await?;
            if let Target::Primary(sentinels) = &self.target {
                check_again(sentinels, &line);
            }
            let waiting = Waiting::on(&line);
            let answer = request.send(line.connection.clone()).await;
            waiting.end();
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // The server may stay cut off. Without the time limit, each operation would then open a connection.
            let may_have_moved = is_cut_off(&error) && line.made.elapsed() >= LOOK_AGAIN;
            if may_have_moved || !is_answer(&error) {
                line.lose();
            }
            if !repeatable || !error.is_connection_dropped() {
                return Err(error);
            }
            // Once: a server that closes every connection would otherwise be asked in a loop.
            repeatable = false;
        }
    }
}

/// Asks the sentinels now and then, beside the calls, whether the server is still the primary. A former primary that is back
/// calls itself the primary until a sentinel has noticed, and loses what it has recorded until then.
fn check_again(sentinels: &Arc<Sentinels>, line: &Arc<Line>) {
    {
        let mut checked = lock(&line.checked);
        if checked.elapsed() < LOOK_AGAIN {
            return;
        }
        *checked = Instant::now();
    }
    let (sentinels, line) = (Arc::clone(sentinels), Arc::clone(line));
    tokio::spawn(async move {
        if let Ok(primary) = sentinels.primary().await
            && primary.is_none_or(|it| address(&it) != line.address)
        {
            line.lose();
        }
    });
}
