//! Where keys are remembered: the [`Store`] contract and the stores that keep it.
//!
//! | store | feature | survives a restart | shared by machines | how it claims |
//! |---|---|---|---|---|
//! | [`MokaStore`] | `moka` (default) | no | no | a lock on one of many parts of a map |
//! | `SqliteStore` | `sqlite` | yes | no | a transaction, which many claims share |
//! | `RedisStore` | `redis` | as the server does | yes | one script, by the server's clock |
//! | `PostgresStore` | `postgres` | yes | yes | one `INSERT … ON CONFLICT DO UPDATE` |
//!
//! They keep handlers from being run again after a success. What a handler had half done when its process
//! died is done once more: where that must not be, see the module `transactional` (feature `postgres`).
//!
//! # The life of a key
//!
//! ```text
//!            claim                    complete
//!   free ────────────▶ in flight ────────────────▶ done ──(retention)──▶ free
//!    ▲                  │  │  ▲
//!    └──────────────────┘  └──┘ renew
//!     release, or the lease ends
//! ```
//!
//! # A store of your own
//!
//! Implement [`Store`], and let the `conformance` module (feature `conformance`) prove it. What
//! matters most: `claim` is **one** atomic step, never a look-up followed by an insertion; every
//! other call compares the [`Fence`] and changes nothing when another one holds the key. Derive `Clone`,
//! or wrap it in an [`Arc`]: a layer clones its store for each service that it makes.

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "moka")]
mod moka;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::fmt;
use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

#[cfg(feature = "moka")]
pub use self::moka::MokaStore;
#[cfg(feature = "postgres")]
pub use self::postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use self::redis::{RedisConnectError, RedisStore};
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteStore;

/// Remembers which keys are in flight and which are done.
///
/// All times are the store's own: shared stores go by their server's clock, so that a machine
/// whose clock jumps does no harm.
///
/// A future that is dropped before it is ready may or may not have taken effect; a claim that took
/// effect this way must end with its lease at the latest.
///
/// No method has a default, so that no store inherits a race.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    note = "use one of `tower_webhook::store`, or implement `Store` and run its conformance suite"
)]
pub trait Store: Send + Sync + 'static {
    /// Whether a claim stays when the process that holds it dies.
    ///
    /// Where it does, leases are kept short and renewed while the run lasts. Where it does not, as
    /// in memory, a lease is taken once for as long as it may ever be needed. So there a claim whose
    /// future was dropped must not have taken effect: nobody would wait for its lease to end.
    const DURABLE_LEASES: bool;

    /// Takes the key, in one atomic step, if it is neither in flight nor done.
    ///
    /// The claim ends by itself after `lease`, unless it is renewed. How often the key was claimed
    /// stays known for `retain`, unless the key is completed: its record then takes the place.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached or does not work. The caller may assume nothing then.
    fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// What is known of the key, without changing anything.
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim).
    fn peek(&self, id: &EventKey) -> impl Future<Output = Result<KeyState, StoreError>> + Send;

    /// Lets the claim last for `extend` from now on.
    ///
    /// # Errors
    ///
    /// [`SettleError::LeaseExpired`] when the lease has ended, even if nobody has claimed the key since.
    fn renew(
        &self,
        lease: &Lease,
        extend: Duration,
    ) -> impl Future<Output = Result<(), SettleError>> + Send;

    /// Marks the key as done for `retain`. When this returns, the record is as durable as the store
    /// is.
    ///
    /// # Errors
    ///
    /// [`SettleError::LeaseExpired`] when the lease has ended, even if nobody has claimed the key since.
    fn complete(
        &self,
        lease: &Lease,
        retain: Duration,
    ) -> impl Future<Output = Result<(), SettleError>> + Send;

    /// Gives the key back.
    ///
    /// # Errors
    ///
    /// [`SettleError::LeaseExpired`] when the lease has ended, even if nobody has claimed the key since.
    fn release(&self, lease: &Lease) -> impl Future<Output = Result<(), SettleError>> + Send;
}

impl<T: Store> Store for Arc<T> {
    const DURABLE_LEASES: bool = T::DURABLE_LEASES;

    fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send {
        T::claim(self, id, lease, retain)
    }

    fn peek(&self, id: &EventKey) -> impl Future<Output = Result<KeyState, StoreError>> + Send {
        T::peek(self, id)
    }

    fn renew(
        &self,
        lease: &Lease,
        extend: Duration,
    ) -> impl Future<Output = Result<(), SettleError>> + Send {
        T::renew(self, lease, extend)
    }

    fn complete(
        &self,
        lease: &Lease,
        retain: Duration,
    ) -> impl Future<Output = Result<(), SettleError>> + Send {
        T::complete(self, lease, retain)
    }

    fn release(&self, lease: &Lease) -> impl Future<Output = Result<(), SettleError>> + Send {
        T::release(self, lease)
    }
}

/// What identifies an event to a store: a digest of its key, and one of its body.
///
/// Keys of any length and content become 16 bytes, so a store never meets what a sender wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventKey {
    key: u128,
    body: u128,
}

impl EventKey {
    /// The identity of `key` in `namespace`, carried by `body`.
    ///
    /// Keys of different namespaces never meet. Each part is reduced to the first 128 bits of a
    /// SHA-256 digest, which is the same in every process and release.
    #[must_use]
    pub fn new(namespace: &str, key: &[u8], body: &[u8]) -> Self {
        Self::with_body_digest(namespace, key, &Sha256::digest(body).into())
    }

    /// The same, for a body of which only a digest is known.
    pub(crate) fn with_body_digest(namespace: &str, key: &[u8], body: &[u8; 32]) -> Self {
        let key = Sha256::new()
            .chain_update((namespace.len() as u64).to_be_bytes())
            .chain_update(namespace)
            .chain_update(key);
        Self {
            key: first_half(&key.finalize().into()),
            body: first_half(body),
        }
    }

    /// The digest of namespace and key: what a claim is made on.
    #[must_use]
    pub fn key(&self) -> u128 {
        self.key
    }

    /// The digest of the body: what tells [`same_body`](Claim::Done::same_body).
    #[must_use]
    pub fn body(&self) -> u128 {
        self.body
    }
}

fn first_half(digest: &[u8; 32]) -> u128 {
    u128::from_be_bytes(std::array::from_fn(|at| digest[at]))
}

/// What became of an attempt to claim a key.
#[derive(Debug)]
pub enum Claim {
    /// The key is the caller's until the lease ends.
    Acquired(Lease),
    /// Somebody else's run has it.
    InFlight {
        /// How long that run's lease lasts unless it is renewed.
        remaining: Duration,
        /// Whether that run's delivery had the same body.
        same_body: bool,
    },
    /// The event was handled.
    Done {
        /// Whether the delivery that was handled had the same body.
        same_body: bool,
    },
}

/// What a store knows of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Neither in flight nor done: never seen, released, expired or forgotten.
    Free,
    /// A run has it.
    InFlight {
        /// How long that run's lease lasts unless it is renewed.
        remaining: Duration,
    },
    /// The event was handled.
    Done,
}

/// A claim with a deadline and a [`Fence`].
#[derive(Clone, Debug)]
pub struct Lease {
    id: EventKey,
    fence: Fence,
    attempt: NonZeroU32,
}

impl Lease {
    /// A lease as a store hands it out.
    #[must_use]
    pub fn new(id: EventKey, fence: Fence, attempt: NonZeroU32) -> Self {
        Self { id, fence, attempt }
    }

    /// What was claimed.
    #[must_use]
    pub fn id(&self) -> &EventKey {
        &self.id
    }

    /// What tells this claim from every other one.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Which claim of this key it is, counted from 1 for as long as the store remembers.
    #[must_use]
    pub fn attempt(&self) -> NonZeroU32 {
        self.attempt
    }
}

/// A number that a store never uses twice, not even after it forgot the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence(pub u128);

/// A store did not do what it was asked to.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What kind of trouble a [`StoreError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// It cannot be reached, or refuses to work for now: no connection, a full disk.
    Unavailable,
    /// It did not answer within the time limit.
    TimedOut,
    /// It answered something that cannot be.
    Corrupt,
}

impl StoreError {
    /// An error of the given kind with its cause.
    pub fn new(
        kind: StoreErrorKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            kind,
            source: Some(source.into()),
        }
    }

    pub(crate) fn timed_out() -> Self {
        Self {
            kind: StoreErrorKind::TimedOut,
            source: None,
        }
    }

    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            StoreErrorKind::Unavailable => "the store is unavailable",
            StoreErrorKind::TimedOut => "the store did not answer in time",
            StoreErrorKind::Corrupt => "the store answered something that cannot be",
        })
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// A lease could not be settled or renewed.
#[derive(Debug)]
#[non_exhaustive]
pub enum SettleError {
    /// The lease has ended: the key belongs to somebody else or to nobody. Nothing was changed.
    LeaseExpired,
    /// The store did not do it; the lease may still be valid.
    Store(StoreError),
}

impl fmt::Display for SettleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseExpired => {
                f.write_str("the lease has ended, and the key is free or somebody else's")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SettleError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::LeaseExpired => None,
            Self::Store(error) => error.source(),
        }
    }
}

impl From<StoreError> for SettleError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_parted_by_their_namespace() {
        let key = |namespace, key: &[u8]| EventKey::new(namespace, key, b"").key();
        assert_ne!(key("a", b"bc"), key("ab", b"c"));
        assert_ne!(key("", b"abc"), key("abc", b""));
        assert_ne!(key("a", b"bc"), key("", b"abc"));
        assert_eq!(key("a", b"bc"), key("a", b"bc"));
    }
}
