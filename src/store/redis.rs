//! The store on a Redis or Valkey server.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::num::NonZeroU32;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, IntoConnectionInfo, RedisError,
    RedisResult, Script, ScriptInvocation, ServerErrorKind,
};
use tokio::sync::Mutex;
use tokio::task::JoinError;
use tokio::time::Instant;

use super::{
    Claim, EventKey, Fence, KeyState, Lease, SettleError, Store, StoreError, StoreErrorKind,
};
use crate::config::ConfigError;

/// Remembers keys on a Redis or Valkey server: for receivers on several machines.
///
/// **When to choose it.** There are several receivers, and such a server is there already, whose
/// persistence and memory are yours to set.
///
/// **What it guarantees.** Among all that use the server with the same prefix, one run at a time has a
/// key, and none after a success, for as long as the server has the record. How long that is, is the
/// server's affair:
///
/// | the server persists | a success that was acknowledged is forgotten |
/// |---|---|
/// | nothing (`save ""`, `appendonly no`) | by every restart |
/// | snapshots (`save`), as it does unless set | by a crash, back to the last snapshot: up to an hour in quiet times. A clean stop saves |
/// | a log, `appendfsync everysec` | by a crash of the machine, back by a second or two; by one of the process only while the disk is behind |
/// | a log, `appendfsync always` | never by this server |
/// | whatever, with a failover | back by as much as the replica was behind: replication is asynchronous. `min-replicas-to-write` bounds that. `WAIT` is not used: it would not keep a failover from choosing another replica |
///
/// So the promise "never again after its success was recorded" holds to the letter with `appendonly
/// yes` and `appendfsync always` on a server without failover. With less, an event whose record was
/// forgotten is handled again if the sender delivers it again. It has a reason to only when it did
/// not receive the 200, so this is rare; whether it does harm is for your handlers to say. Claims that
/// are forgotten are found out by the next renewal, at a third of the lease: until then a second
/// delivery can be handled beside the first, which is then cancelled.
///
/// **How it claims.** Every operation is one script, and so one atomic step, that goes by the server's
/// clock: no clock of a receiver matters. A jump of the server's own clock, or of one machine's against
/// its replica's, moves the ends of leases and retentions by as much. A lease's fence is 128 random bits
/// of the receiver's, unique even when the server has lost its data. There is no Redlock: the record of
/// what is done has to be in one place, and the lock is best where the record is.
///
/// **What a crash costs.** A receiver's: its keys stay taken until their leases end, 60 seconds unless
/// set, and the sender's next attempt finds them free. The server's: deliveries are answered with 503
/// until it is back, and the first one after that connects again. Runs that end meanwhile record their
/// success when it is back, if their leases last so long.
///
/// **Sizing.** A key that is done takes about 130 bytes of the server's memory (Redis 7.0, the prefix
/// as it is; `MEMORY USAGE` tells 72 of them), and as many when it failed or nobody wanted it; one in
/// flight takes about 100 more. At 10 events a second, 8 days are 7 million keys or 900 MB. The server's
/// `maxmemory-policy` has to be `noeviction`: any other throws records away before their time, and is
/// refused. When the memory is full, events that are new are answered with 503, while those in flight
/// can still be recorded, and duplicates of those that are done are answered as such.
///
/// **Purge.** The server drops what is out of date by itself.
///
/// **What the server has to be.** Redis 7.0 or later, or Valkey (the tests were run with Redis 7.0 and
/// 8.0, Valkey 8.1 and 9.1); a primary, and none of several that divide the keys among them: other
/// servers are refused. A cluster of one is fine: an event is one key, `webhook:` and 16 bytes, so it is
/// in one slot. Where users have rights, this one needs
/// `~webhook:* +evalsha +script|load +time +get +set +del +info`, besides `+select` where the URL names
/// a database, and `+cluster|info` in a cluster. All of that, and the memory policy, is looked at only
/// when the store connects.
///
/// **Limits.** An attempt to connect takes at most 1 second, and an answer 1.5, after which the
/// connection is replaced: a [`store_timeout`](crate::IdempotencyLayer::store_timeout) above that gains
/// nothing. With a shorter one, a connection is replaced that was silent for 250 ms when an operation
/// ran out of time. All operations share one connection. Leases and retentions end after 30 years.
///
/// # TLS
///
/// `rediss://` takes a feature of the `redis` crate, which you add beside this one:
///
/// ```toml
/// redis = { version = "1.8", default-features = false, features = ["tokio-rustls-comp"] }
/// rustls = { version = "0.23", default-features = false, features = ["ring", "std", "tls12"] }
/// ```
///
/// The second line chooses the cryptography, without which rustls panics. It is left out with
/// `tokio-native-tls-comp`.
///
/// # Example
///
/// ```no_run
/// use tower_webhook::store::RedisStore;
/// use tower_webhook::{Secret, WebhookLayer};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://localhost:6379").await?.with_prefix("crm:")?;
/// let layer = WebhookLayer::with_store(Secret::from_env("WEBHOOK_SECRET")?, store);
/// # Ok(())
/// # }
/// ```
///
/// Clones share their connection.
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
    prefix: Arc<str>,
}

struct Shared {
    connection: Connection,
    scripts: Scripts,
}

impl RedisStore {
    /// Connects to the server at `url`, and makes sure that it can be relied on.
    ///
    /// A URL is `redis://HOST:PORT/DATABASE`, with `USER:PASSWORD@` before the host where the server
    /// asks for it, or `unix:PATH`; `valkey://` is the same as `redis://`. TLS (`rediss://`) takes a
    /// feature of the `redis` crate: see [above](Self#tls).
    ///
    /// Afterwards the store connects again by itself whenever it has to.
    ///
    /// # Errors
    ///
    /// When the URL is wrong, the server cannot be reached or refuses us, or it would not keep what
    /// it is given: see [`RedisConnectError`].
    pub async fn connect(url: &str) -> Result<Self, RedisConnectError> {
        let connection = Connection::new(client(url)?);
        let scripts = Scripts::new();
        connection.check(&scripts).await?;
        Ok(Self {
            shared: Arc::new(Shared {
                connection,
                scripts,
            }),
            prefix: "webhook:".into(),
        })
    }

    /// Begins the names of all keys with `prefix` instead of `webhook:`.
    ///
    /// Stores of different prefixes do not meet.
    ///
    /// # Errors
    ///
    /// When it is not 1 to 64 printable ASCII characters without spaces and braces. Braces would put
    /// all keys into one slot of a cluster.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Result<Self, ConfigError> {
        let prefix = prefix.into();
        let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        if !(1..=64).contains(&prefix.len()) || !prefix.bytes().all(fits) {
            return Err(ConfigError::RedisPrefix(prefix));
        }
        self.prefix = prefix.into();
        Ok(self)
    }

    /// The script's call on the key of `id`, which is the prefix and 16 bytes.
    fn call<'a>(&self, script: &'a Script, id: &EventKey) -> ScriptInvocation<'a> {
        script.key([self.prefix.as_bytes(), &id.key().to_be_bytes()].concat())
    }

    /// What a settling script says: whether the lease was valid.
    async fn settle(
        &self,
        call: &ScriptInvocation<'_>,
        repeatable: bool,
    ) -> Result<(), SettleError> {
        let connection = &self.shared.connection;
        match connection.invoke(call, repeatable).await? {
            true => Ok(()),
            false => Err(SettleError::LeaseExpired),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.shared.connection.address())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Store for RedisStore {
    const DURABLE_LEASES: bool = true;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        let mut fence = [0; 16];
        getrandom::fill(&mut fence)
            .map_err(|error| StoreError::new(StoreErrorKind::Unavailable, error))?;
        let fence = Fence(u128::from_be_bytes(fence));

        let mut call = self.call(&self.shared.scripts.claim, id);
        call.arg(hex(fence))
            .arg(fingerprint(id))
            .arg(micros(lease))
            .arg(micros(retain));
        let found: Vec<u64> = self.shared.connection.invoke(&call, true).await?;
        match found[..] {
            [FREE, attempt] => Ok(Claim::Acquired(Lease::new(*id, fence, nth(attempt)?))),
            [IN_FLIGHT, remaining, same_body] => Ok(Claim::InFlight {
                remaining: Duration::from_micros(remaining),
                same_body: same_body == 1,
            }),
            [DONE, same_body] => Ok(Claim::Done {
                same_body: same_body == 1,
            }),
            _ => Err(unexpected(&found)),
        }
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        let call = self.call(&self.shared.scripts.peek, id);
        let found: Vec<u64> = self.shared.connection.invoke(&call, true).await?;
        match found[..] {
            [FREE] => Ok(KeyState::Free),
            [IN_FLIGHT, remaining] => Ok(KeyState::InFlight {
                remaining: Duration::from_micros(remaining),
            }),
            [DONE] => Ok(KeyState::Done),
            _ => Err(unexpected(&found)),
        }
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        let mut call = self.call(&self.shared.scripts.renew, lease.id());
        call.arg(hex(lease.fence())).arg(micros(extend));
        self.settle(&call, true).await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        let mut call = self.call(&self.shared.scripts.complete, lease.id());
        call.arg(hex(lease.fence())).arg(micros(retain));
        self.settle(&call, false).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        let mut call = self.call(&self.shared.scripts.release, lease.id());
        call.arg(hex(lease.fence()));
        // The second try may find that the first had released it.
        self.settle(&call, true).await
    }
}

// What a key is found to be, as in `record.lua`.
const FREE: u64 = 0;
const IN_FLIGHT: u64 = 1;
const DONE: u64 = 2;

fn hex(Fence(fence): Fence) -> String {
    format!("{fence:032x}")
}

/// What tells bodies apart: 63 bits, which Redis keeps as an integer.
fn fingerprint(id: &EventKey) -> u64 {
    (id.body() >> 65) as u64
}

/// At least one, and no more than Lua's numbers can add to the time.
fn micros(duration: Duration) -> u64 {
    const YEARS_30: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    let duration = duration.min(YEARS_30);
    duration.as_nanos().div_ceil(1_000).max(1) as u64
}

fn nth(attempt: u64) -> Result<NonZeroU32, StoreError> {
    u32::try_from(attempt)
        .ok()
        .and_then(NonZeroU32::new)
        .ok_or_else(|| unexpected(&[FREE, attempt]))
}

fn unexpected(found: &[u64]) -> StoreError {
    let what = format!("a script answered {found:?}");
    StoreError::new(StoreErrorKind::Corrupt, what)
}

/// The operations, each of them one script and so one atomic step.
struct Scripts {
    claim: Script,
    peek: Script,
    renew: Script,
    complete: Script,
    release: Script,
}

impl Scripts {
    fn new() -> Self {
        macro_rules! script {
            ($flags:literal, $file:literal) => {
                Script::new(concat!(
                    $flags,
                    include_str!("redis/record.lua"),
                    include_str!($file)
                ))
            };
        }
        Self {
            // Without flags, only its write is refused where the server cannot write: duplicates are
            // still answered.
            claim: script!("", "redis/claim.lua"),
            peek: script!("#!lua flags=no-writes\n", "redis/peek.lua"),
            // A server whose memory is full claims nothing more, but what is in flight can end:
            // that takes no more room than it has.
            renew: script!("#!lua flags=allow-oom\n", "redis/renew.lua"),
            complete: script!("#!lua flags=allow-oom\n", "redis/complete.lua"),
            release: script!("#!lua flags=allow-oom\n", "redis/release.lua"),
        }
    }

    fn all(&self) -> [&Script; 5] {
        [
            &self.claim,
            &self.peek,
            &self.renew,
            &self.complete,
            &self.release,
        ]
    }
}

/// A server that does not take a connection in this time is away.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A connection that does not answer in this time is replaced. Below the time that the layer gives
/// an operation unless set, so that the operation says why it failed.
const RESPONSE_LIMIT: Duration = Duration::from_millis(1500);

/// A connection that did not answer for so long before a caller gave up is replaced as well. Callers
/// whose clients left give up sooner, and say nothing about the connection.
const GIVEN_UP: Duration = Duration::from_millis(250);

/// For so long after an attempt to connect has failed, there is no other one.
const PAUSE: Duration = Duration::from_millis(100);

/// How often it is looked whether the address leads to another server, while one says that it is cut off.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The one connection that all operations share at the same time, made anew when it is lost.
///
/// The redis crate's own manager is not used: it keeps a connection that does not answer any more until
/// TCP gives up, which takes a quarter of an hour, and one to a server that is no longer the primary
/// for good; nor does it try again once the server has refused a password.
struct Connection {
    client: Client,
    link: Arc<Mutex<Link>>,
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
            Some((at, error)) if at.elapsed() < PAUSE => Some(Err(error.clone())),
            _ => None,
        }
    }

    async fn connect(&mut self, client: &Client) -> RedisResult<Arc<Line>> {
        if let Some(known) = self.known() {
            return known;
        }
        self.current = None;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_LIMIT))
            .set_response_timeout(Some(RESPONSE_LIMIT));
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        match connecting.await {
            Ok(connection) => {
                let line = Arc::new(Line::new(connection));
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

/// A connection, and what tells whether it is sound.
struct Line {
    connection: MultiplexedConnection,
    made: Instant,
    lost: AtomicBool,
    /// Since when calls have been given up, without an answer to any.
    silent_since: SyncMutex<Option<Instant>>,
}

impl Line {
    fn new(connection: MultiplexedConnection) -> Self {
        Self {
            connection,
            made: Instant::now(),
            lost: AtomicBool::new(false),
            silent_since: SyncMutex::new(None),
        }
    }

    /// Lets the next operation make another connection.
    fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

/// A call that waits for its answer, which it may be dropped without.
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
        let silent_since = self.line.silent_since.lock();
        let mut silent_since = silent_since.unwrap_or_else(PoisonError::into_inner);
        if self.answered {
            *silent_since = None;
        } else if silent_since.get_or_insert(self.since).elapsed() >= GIVEN_UP {
            self.line.lose();
        }
    }
}

impl Connection {
    fn new(client: Client) -> Self {
        Self {
            client,
            link: Arc::default(),
        }
    }

    /// Where the server is, without its password.
    fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// The current connection, or a new one.
    ///
    /// It is made in a task of its own: were it dropped with its caller, the next caller would begin anew,
    /// with as little time left.
    async fn link(&self) -> RedisResult<Arc<Line>> {
        if let Some(known) = self.link.lock().await.known() {
            return known;
        }
        let (client, link) = (self.client.clone(), Arc::clone(&self.link));
        let connecting = tokio::spawn(async move { link.lock().await.connect(&client).await });
        match connecting.await.map_err(JoinError::try_into_panic) {
            Ok(connected) => connected,
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(ended)) => Err(io::Error::other(ended).into()),
        }
    }

    /// Calls a script; once more, if that does no harm, when the connection turns out to be closed,
    /// as a server does to those that were idle.
    async fn invoke<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
        repeatable: bool,
    ) -> Result<T, StoreError> {
        let mut repeatable = repeatable;
        loop {
            let line = self.link().await.map_err(store_error)?;
            let waiting = Waiting::on(&line);
            let answer = call.invoke_async(&mut line.connection.clone()).await;
            waiting.end();
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let may_have_moved = is_cut_off(&error) && line.made.elapsed() >= LOOK_AGAIN;
            if may_have_moved || !is_answer(&error) {
                line.lose();
            }
            if !repeatable || !error.is_connection_dropped() {
                return Err(store_error(error));
            }
            repeatable = false;
        }
    }

    /// Whether the server will keep what it is given, as far as it says.
    async fn check(&self, scripts: &Scripts) -> Result<(), RedisConnectError> {
        let refused = |error: RedisError| RedisConnectError::from_redis(self.address(), error);

        let mut connection = self.link().await.map_err(refused)?.connection.clone();
        let info: RedisResult<String> = redis::cmd("INFO").query_async(&mut connection).await;
        let info = match info {
            Ok(info) => info,
            // What it would have told is then warned of as missing.
            Err(error) if is_forbidden(&error) => String::new(),
            Err(error) => return Err(refused(error)),
        };
        let info = Info::parse(&info);
        info.check()?;
        if info.is_cluster() {
            let cluster: RedisResult<String> = redis::cmd("CLUSTER")
                .arg("INFO")
                .query_async(&mut connection)
                .await;
            match cluster {
                Ok(cluster) => Info::parse(&cluster).check_cluster()?,
                Err(error) if is_forbidden(&error) => tracing::warn!(
                    "the Redis server does not tell how many servers its cluster has: see to it \
                     that this one has all keys, because events whose keys are elsewhere are \
                     answered with 503"
                ),
                Err(error) => return Err(refused(error)),
            }
        }
        for script in scripts.all() {
            script.load_async(&mut connection).await.map_err(refused)?;
        }
        Ok(())
    }
}

fn client(url: &str) -> Result<Client, RedisConnectError> {
    let bad_url = |source: RedisError| {
        // The crate tells this only by its text.
        if source.to_string().contains("TLS") {
            RedisConnectError::NoTls { source }
        } else {
            RedisConnectError::BadUrl { source }
        }
    };
    let info = url.into_connection_info().map_err(bad_url)?;
    // Each operation is a small write that is waited for.
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    Client::open(info).map_err(bad_url)
}

/// What the server tells of itself.
struct Info<'a>(HashMap<&'a str, &'a str>);

impl<'a> Info<'a> {
    fn parse(info: &'a str) -> Self {
        Self(
            info.lines()
                .filter_map(|line| line.trim_end().split_once(':'))
                .collect(),
        )
    }

    fn check(&self) -> Result<(), RedisConnectError> {
        // Valkey tells here which Redis it is like.
        if let Some(&version) = self.0.get("redis_version") {
            let major = version.split('.').next().and_then(|part| part.parse().ok());
            if major.is_some_and(|major: u32| major < 7) {
                return Err(RedisConnectError::TooOld {
                    version: version.to_owned(),
                });
            }
        }
        if self.0.get("role").is_some_and(|&role| role != "master") {
            return Err(RedisConnectError::Replica);
        }
        match self.0.get("maxmemory_policy") {
            Some(&"noeviction") => Ok(()),
            Some(&policy) => Err(RedisConnectError::Evicts {
                policy: policy.to_owned(),
            }),
            None => {
                tracing::warn!(
                    "the Redis server does not tell whether it evicts keys: see to it that its \
                     `maxmemory-policy` is `noeviction`, because an event whose key was evicted is \
                     handled again"
                );
                Ok(())
            }
        }
    }

    fn is_cluster(&self) -> bool {
        self.0.get("cluster_enabled") == Some(&"1")
    }

    fn check_cluster(&self) -> Result<(), RedisConnectError> {
        match self.0.get("cluster_size") {
            Some(&size) if size != "1" => Err(RedisConnectError::Sharded {
                size: size.to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// Whether it comes from a server that can go on answering.
fn is_answer(error: &RedisError) -> bool {
    match error.kind() {
        // It was the primary; where it is now, a new connection may find out.
        ErrorKind::Server(ServerErrorKind::ReadOnly) => false,
        ErrorKind::Server(_) => true,
        ErrorKind::Extension => !is_unauthenticated(error),
        _ => false,
    }
}

/// Whether it comes from a server that may not be the primary any more.
fn is_cut_off(error: &RedisError) -> bool {
    let code = error.code();
    matches!(
        code,
        Some("NOREPLICAS" | "MASTERDOWN" | "MOVED" | "CLUSTERDOWN")
    )
}

fn is_unauthenticated(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

fn is_forbidden(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || error
            .detail()
            .is_some_and(|detail| detail.starts_with("unknown command"))
}

fn store_error(error: RedisError) -> StoreError {
    let corrupt = matches!(
        error.kind(),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType
    ) || matches!(error.code(), Some("CORRUPT" | "WRONGTYPE"));
    let kind = if corrupt {
        StoreErrorKind::Corrupt
    } else if error.is_timeout() {
        StoreErrorKind::TimedOut
    } else {
        StoreErrorKind::Unavailable
    };
    StoreError::new(kind, error)
}

/// Why [`RedisStore::connect`] did not.
///
/// No message holds the password.
#[derive(Debug)]
#[non_exhaustive]
pub enum RedisConnectError {
    /// The URL is not one of a Redis server.
    BadUrl {
        /// What is wrong with it.
        source: RedisError,
    },
    /// The URL asks for TLS, which the `redis` crate was compiled without.
    NoTls {
        /// What that crate says.
        source: RedisError,
    },
    /// Nothing answers there.
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// What happened instead.
        source: RedisError,
    },
    /// The server wants another user or password than the URL has.
    Unauthenticated {
        /// Where the server is.
        address: String,
        /// What it says.
        source: RedisError,
    },
    /// The server answers that it cannot or will not work for us.
    Refused {
        /// Where the server is.
        address: String,
        /// What it says.
        source: RedisError,
    },
    /// The server is older than what the scripts need.
    TooOld {
        /// Its version of Redis.
        version: String,
    },
    /// The server is a replica, and its primary is the one to ask.
    Replica,
    /// The server may throw keys away before their time.
    Evicts {
        /// Its `maxmemory-policy`.
        policy: String,
    },
    /// The server is one of several among which a cluster divides its keys.
    Sharded {
        /// How many there are.
        size: String,
    },
}

impl RedisConnectError {
    fn from_redis(address: String, source: RedisError) -> Self {
        if is_unauthenticated(&source) {
            Self::Unauthenticated { address, source }
        } else if source.is_io_error() {
            Self::Unreachable { address, source }
        } else {
            Self::Refused { address, source }
        }
    }
}

impl fmt::Display for RedisConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadUrl { .. } => f.write_str(
                "the URL is not one of a Redis server: write it as \
                 `redis://USER:PASSWORD@HOST:PORT/DATABASE`",
            ),
            Self::NoTls { .. } => f.write_str(
                "the URL asks for TLS, which is not compiled in: add the `redis` crate with its \
                 feature `tokio-rustls-comp` or `tokio-native-tls-comp` to your dependencies, as the \
                 documentation of `RedisStore` shows",
            ),
            Self::Unreachable { address, .. } => {
                write!(
                    f,
                    "cannot connect to the Redis server at {address}: is it running, and can it be \
                     reached from here?"
                )
            }
            Self::Unauthenticated { address, .. } => write!(
                f,
                "the Redis server at {address} wants another user or password than the URL has"
            ),
            Self::Refused { address, .. } => {
                write!(f, "the Redis server at {address} refuses to work for us")
            }
            Self::TooOld { version } => write!(
                f,
                "the server is Redis {version}: at least Redis 7.0, or Valkey, is needed"
            ),
            Self::Replica => f.write_str(
                "the Redis server is a replica, which cannot record anything: give the URL of its \
                 primary",
            ),
            Self::Evicts { policy } => write!(
                f,
                "the Redis server's `maxmemory-policy` is `{policy}`, so it may forget an event \
                 before its time, which is then handled again: set it to `noeviction`, or use a \
                 server of its own"
            ),
            Self::Sharded { size } => write!(
                f,
                "the Redis server is one of {size} among which a cluster divides its keys, and the \
                 store talks to one only: use a server that has all keys"
            ),
        }
    }
}

impl std::error::Error for RedisConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::BadUrl { source }
            | Self::NoTls { source }
            | Self::Unreachable { source, .. }
            | Self::Unauthenticated { source, .. }
            | Self::Refused { source, .. } => Some(source),
            Self::TooOld { .. } | Self::Replica | Self::Evicts { .. } | Self::Sharded { .. } => {
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_microseconds_of_which_there_is_one_at_least() {
        assert_eq!(micros(Duration::ZERO), 1);
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::from_nanos(1_001)), 2);
        assert_eq!(micros(Duration::from_millis(2)), 2_000);
        // With the time of this century it stays below what Lua's numbers tell apart.
        assert!(micros(Duration::MAX) + 4_102_444_800_000_000 < 1 << 53);
    }

    #[test]
    fn servers_are_judged_by_what_they_tell() {
        let check = |info: &str| Info::parse(info).check();
        let redis = "# Server\r\nredis_version:7.0.15\r\n# Replication\r\nrole:master\r\n\
                     # Memory\r\nmaxmemory_policy:noeviction\r\n";
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.3\r\n\
                      role:master\r\nmaxmemory_policy:noeviction\r\n";
        let little = "redis_version:255.255.255\r\n";
        for info in [redis, valkey, little, ""] {
            assert!(check(info).is_ok(), "{info}");
        }

        for version in ["6.2.14", "5.0.14", "2.8"] {
            let error = check(&redis.replace("7.0.15", version)).unwrap_err();
            assert!(matches!(error, RedisConnectError::TooOld { .. }));
            assert!(error.to_string().contains(version), "{error}");
        }
        let error = check(&redis.replace("master", "slave")).unwrap_err();
        assert!(matches!(error, RedisConnectError::Replica));
        let error = check(&valkey.replace("noeviction", "allkeys-lru")).unwrap_err();
        assert!(matches!(error, RedisConnectError::Evicts { .. }));
    }

    #[test]
    fn answers_that_cannot_be_are_corrupt() {
        for attempt in [0, 1 << 32, u64::MAX] {
            assert_eq!(nth(attempt).unwrap_err().kind(), StoreErrorKind::Corrupt);
        }
        assert_eq!(nth(1).unwrap(), NonZeroU32::MIN);
    }
}
