//! Stores of keys: the [`Store`] contract and its implementations.
//!
//! | store | feature | survives a restart | shared by machines | how it claims |
//! |---|---|---|---|---|
//! | [`MokaStore`](crate::memory::MokaStore) | `moka` (default) | no | no | a lock on one of many parts of a map |
//! | `SqliteStore` | `sqlite` | yes | no | a transaction, which many claims share |
//! | `RedisStore` | `redis` | as the server does | yes | one script, by the server's clock |
//! | `PostgresStore` | `postgres` | yes | yes | one `INSERT … ON CONFLICT DO UPDATE` |
//!
//! They prevent a handler from running again after a success. A handler whose process died half-way is run
//! again from the start: where that must not happen, see the module `transactional` (feature
//! `postgres`).
//!
//! # The life of a key
//!
//! ```text
//!            claim                    complete
//!   free ────────────▶ in flight ────────────────▶ done ──(retention)──▶ free
//!    ▲                  │  │  ▲
//!    └──────────────────┘  └──┘ renew
//!     release, or the lease expires
//! ```
//!
//! # A store of your own
//!
//! Implement [`Store`], and test it with the `conformance` module (feature `conformance`). Two rules matter
//! most: `claim` is **one** atomic step, never a look-up followed by an insertion; and every other call
//! compares the [`Fence`] and changes nothing when another one holds the key. Derive `Clone`, or wrap the
//! store in an [`Arc`](std::sync::Arc): a layer clones its store for each service that it makes.

#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod identity;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod open_error;

use std::num::NonZeroU32;
use std::time::Duration;

pub use self::error::{SettleError, StoreError, StoreErrorKind};
pub use self::identity::EventKey;
pub(crate) use self::identity::Identity;
#[cfg(feature = "sqlite")]
pub(crate) use self::identity::{BodyDigest, KeySpace};
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub use self::open_error::{OpenError, OpenErrorKind};

also_for_arc! {
    /// Remembers which keys are in flight and which are done.
    ///
    /// All times are the store's own: shared stores use their server's clock, so that a machine
    /// whose clock jumps does no harm.
    ///
    /// A future that is dropped before it is ready may or may not have taken effect; a claim that took
    /// effect this way must expire with its lease at the latest.
    ///
    /// No method has a default, so that no store inherits a race.
    #[diagnostic::on_unimplemented(
        message = "`{Self}` is not a store",
        note = "use `MokaStore`, `SqliteStore`, `RedisStore` or `PostgresStore`, or implement `Store` and run its conformance suite"
    )]
    pub trait Store: Send + Sync + 'static {
        /// Whether a claim stays when the process that holds it dies.
        ///
        /// Where it does, leases are kept short and renewed while the run lasts. Where it does not, as
        /// in memory, a lease is taken once for the longest time that a run may need. There, a claim whose
        /// future was dropped must not have taken effect: its key would be taken until that lease expires.
        const DURABLE_LEASES: bool;

        /// Claims the key, in one atomic step, if it is neither in flight nor done.
        ///
        /// The claim expires after `lease`, unless it is renewed. The number of claims is remembered for `retain`,
        /// unless the key is completed: then the record of the success replaces it.
        ///
        /// # Errors
        ///
        /// When the store cannot be reached or does not work. The claim may or may not have been made then.
        async fn claim(&self, id: &EventKey, lease: Duration, retain: Duration) -> Result<Claim, StoreError>;

        /// Returns the state of the key, without changing anything.
        ///
        /// # Errors
        ///
        /// As for [`claim`](Self::claim).
        async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError>;

        /// Extends the lease: it expires `extend` from now.
        ///
        /// # Errors
        ///
        /// [`SettleError::LeaseExpired`] when the lease has expired, even if no other run has claimed the key
        /// since.
        async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError>;

        /// Marks the key as done for `retain`. When this returns, the record is as durable as the store.
        ///
        /// # Errors
        ///
        /// As for [`renew`](Self::renew).
        async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError>;

        /// Releases the key, which is free from then on.
        ///
        /// # Errors
        ///
        /// As for [`renew`](Self::renew).
        async fn release(&self, lease: &Lease) -> Result<(), SettleError>;
    }
}

/// The result of an attempt to claim a key.
#[derive(Debug)]
pub enum Claim {
    /// The key is the caller's until the lease expires.
    Acquired(Lease),
    /// Another run holds the key.
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

/// The state of a key in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// Neither in flight nor done: never seen, released, expired or forgotten.
    Free,
    /// A run holds the key.
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
    /// Creates a lease, for a store to return.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use tower_webhook::store::{EventKey, Fence, Lease};
    ///
    /// let id = EventKey::new("", b"event-1", b"{}");
    /// let lease = Lease::new(id, Fence(7), NonZeroU32::MIN);
    /// assert_eq!(lease.fence(), Fence(7));
    /// ```
    #[must_use]
    pub fn new(id: EventKey, fence: Fence, attempt: NonZeroU32) -> Self {
        Self { id, fence, attempt }
    }

    /// The event that was claimed.
    #[must_use]
    pub fn id(&self) -> &EventKey {
        &self.id
    }

    /// The number that identifies this claim.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The number of claims of this key, including this one, for as long as the store remembers.
    #[must_use]
    pub fn attempt(&self) -> NonZeroU32 {
        self.attempt
    }
}

/// A number that identifies a claim. A store never uses it twice, not even after it forgot the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence(pub u128);
