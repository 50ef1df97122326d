//! The Redis store: one script for each operation, on a connection that all operations share.

mod call;
mod cluster;
mod connection;
mod error;
mod scripts;
mod sentinel;
mod server;
mod slots;
mod url;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Script};

use self::call::{Call, Request};
use self::cluster::Cluster;
use self::connection::Connection;
use self::error::store_error;
use self::scripts::Scripts;
use crate::config::ConfigError;
use crate::store::{
    Claim, EventKey, Fence, KeyState, Lease, OpenError, SettleError, Store, StoreError,
    StoreErrorKind,
};

/// Remembers keys in Redis or Valkey, on a server, in a cluster, or behind sentinels: for receivers on several machines.
///
/// Among all receivers that use the server with the same prefix, one run at a time has a key, and none after a
/// success, for as long as the server has the record: see its [persistence, requirements and
/// rights](crate::docs::stores#redis) and [size](crate::docs::stores#size). Each operation is one script, and so one atomic
/// step, by the server's clock. A claim that the server lost is noticed by the next renewal, at a third of the lease;
/// until then, a second delivery can be handled beside the first. When the memory is full, new events are answered with
/// 503, and those in flight can still be recorded.
///
/// A failover is answered with 503. Where a server counts as away after 2 seconds, it took 4 in a cluster, and up to 19
/// behind sentinels. Keep the [`lease`](crate::Webhooks::lease) at 30 seconds or more (60 is the default), because a success
/// must be recorded before it ends. A claim that was recorded and not answered is held until its lease ends: until then, the
/// event is answered with 409.
///
/// An attempt to connect takes at most 1 second, and a reply 1.5, after which the connection is replaced: a
/// [`store_timeout`](crate::Webhooks::store_timeout) above that has no effect. With a shorter one, a
/// connection is replaced that was silent for 250 ms when an operation ran out of time. The operations of a runtime
/// share one connection to each server. Leases and retentions end after 30 years.
///
/// # TLS
///
/// `rediss://` needs a feature of the `redis` crate, which you add beside this one:
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
/// use tower_webhook::redis::RedisStore;
/// use tower_webhook::{Secret, Webhooks};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::open("redis://localhost:6379").await?.with_prefix("crm:")?;
/// let webhooks = Webhooks::new(Secret::from_env("WEBHOOK_SECRET")?).store(store);
/// # Ok(())
/// # }
/// ```
///
/// Clones share their connections, of which each runtime has one to each server.
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Connected>,
    prefix: Arc<str>,
}

struct Connected {
    servers: Servers,
    scripts: Scripts,
}

enum Servers {
    /// All keys are on one server at a time.
    One(Box<Connection>),
    Cluster(Arc<Cluster>),
}

impl Servers {
    fn address(&self) -> String {
        match self {
            Self::One(connection) => connection.address(),
            Self::Cluster(cluster) => cluster.address(),
        }
    }

    async fn invoke<T: FromRedisValue>(
        &self,
        call: &Call<'_>,
        repeatable: bool,
    ) -> Result<T, StoreError> {
        let answer = match self {
            Self::One(connection) => connection.ask(&Request::Call(call), repeatable).await,
            Self::Cluster(cluster) => cluster.invoke(call, repeatable).await,
        };
        answer.map_err(store_error)
    }
}

impl RedisStore {
    /// Connects to the servers at `url`, and checks that they can keep the store's promises.
    ///
    /// A URL is `redis://HOST:PORT/DATABASE`, with `USER:PASSWORD@` before the host where the server
    /// asks for it, or `unix:PATH`; `valkey://` is the same as `redis://`. TLS (`rediss://`) needs a
    /// feature of the `redis` crate: see [above](Self#tls).
    ///
    /// For a cluster, name one of its servers, its configuration endpoint, or several servers
    /// (`redis://HOST:PORT,HOST:PORT`): the store finds the others. For a primary behind sentinels, name these, and what
    /// they call the primary: `redis+sentinel://HOST:PORT,HOST:PORT/NAME/DATABASE`. User, password and TLS
    /// (`rediss+sentinel://`) are for all; a sentinel that asks for no password gets none.
    ///
    /// Afterwards the store reconnects whenever it has to.
    ///
    /// # Errors
    ///
    /// When the URL is wrong, the server cannot be reached or denies access, or it cannot keep the store's
    /// promises. [`OpenError::kind`] distinguishes these, and the error says what to do.
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        let scripts = Scripts::new();
        let servers = server::open(url, &scripts).await?;
        Ok(Self {
            shared: Arc::new(Connected { servers, scripts }),
            prefix: "webhook:".into(),
        })
    }

    /// Begins the names of all keys with `prefix` instead of `webhook:`.
    ///
    /// Stores with different prefixes share nothing.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_webhook::redis::RedisStore;
    ///
    /// let store = RedisStore::open("redis://localhost:6379").await?.with_prefix("crm:")?;
    /// # Ok(())
    /// # }
    /// ```
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
    fn call<'a>(&self, script: &'a Script, id: &EventKey) -> Call<'a> {
        let key = [self.prefix.as_bytes(), &id.key().to_be_bytes()].concat();
        Call::new(script, key)
    }

    /// Calls a script that settles or renews a lease, and reports whether the lease was valid.
    async fn settle(&self, call: &Call<'_>, repeatable: bool) -> Result<(), SettleError> {
        match self.shared.servers.invoke(call, repeatable).await? {
            true => Ok(()),
            false => Err(SettleError::LeaseExpired),
        }
    }
}

partial_debug!(
    RedisStore,
    |it| address = it.shared.servers.address(),
    prefix = it.prefix
);

impl Store for RedisStore {
    const DURABLE_LEASES: bool = true;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        // Random, since a counter on the server would begin again after the server has lost its data.
        let mut fence = [0; 16];
        getrandom::fill(&mut fence)
            .map_err(|error| StoreError::new(StoreErrorKind::Unavailable, error))?;
        let fence = Fence(u128::from_be_bytes(fence));

        let call = self.call(&self.shared.scripts.claim, id);
        let call = call.arg(hex(fence)).arg(fingerprint(id));
        let call = call.arg(micros(lease)).arg(micros(retain));
        // Repeatable: by the fence, the script recognises a claim that the first try has made.
        let found: Vec<u64> = self.shared.servers.invoke(&call, true).await?;
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
        let found: Vec<u64> = self.shared.servers.invoke(&call, true).await?;
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
        let call = self.call(&self.shared.scripts.renew, lease.id());
        let call = call.arg(hex(lease.fence())).arg(micros(extend));
        self.settle(&call, true).await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        let call = self.call(&self.shared.scripts.complete, lease.id());
        let call = call.arg(hex(lease.fence())).arg(micros(retain));
        // Not repeatable: if the first try has completed the key, the second one would report a lost lease.
        self.settle(&call, false).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        let call = self.call(&self.shared.scripts.release, lease.id());
        let call = call.arg(hex(lease.fence()));
        // The second try may find that the first had released it.
        self.settle(&call, true).await
    }
}

// The states of a key, as in `record.lua`.
const FREE: u64 = 0;
const IN_FLIGHT: u64 = 1;
const DONE: u64 = 2;

fn hex(Fence(fence): Fence) -> String {
    format!("{fence:032x}")
}

/// The part of a body's digest that is stored: 63 bits, which Redis keeps as an integer.
fn fingerprint(id: &EventKey) -> u64 {
    (id.body() >> 65) as u64
}

/// At least one, and no more than Lua's numbers can add to the time.
fn micros(duration: Duration) -> u64 {
    const YEARS_30: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    let duration = duration.min(YEARS_30);
    // Rounded up, so that no lease ends early. Redis refuses an expiry of 0.
    duration.as_nanos().div_ceil(1_000).max(1) as u64
}

fn nth(attempt: u64) -> Result<NonZeroU32, StoreError> {
    u32::try_from(attempt)
        .ok()
        .and_then(NonZeroU32::new)
        .ok_or_else(|| unexpected(&[FREE, attempt]))
}

fn unexpected(found: &[u64]) -> StoreError {
    let what = format!("a script returned {found:?}");
    StoreError::new(StoreErrorKind::Corrupt, what)
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
    fn invalid_answers_are_corrupt() {
        for attempt in [0, 1 << 32, u64::MAX] {
            assert_eq!(nth(attempt).unwrap_err().kind(), StoreErrorKind::Corrupt);
        }
        assert_eq!(nth(1).unwrap(), NonZeroU32::MIN);
    }
}
