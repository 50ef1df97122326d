//! Stores of keys: the [`Store`] contract and its implementations.
//!
//! | store | feature | survives a restart | shared by machines | how it claims |
//! |---|---|---|---|---|
//! | [`MokaStore`] | `moka` (default) | no | no | a lock on one of many parts of a map |
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
//! store in an [`Arc`]: a layer clones its store for each service that it makes.

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) mod engine;
mod error;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod open_error;

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use twox_hash::XxHash3_128;

pub use self::error::{SettleError, StoreError, StoreErrorKind};
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub use self::open_error::{OpenError, OpenErrorKind};

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
    note = "use one of `tower_webhook::store`, or implement `Store` and run its conformance suite"
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
    fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// Returns the state of the key, without changing anything.
    ///
    /// # Errors
    ///
    /// As for [`claim`](Self::claim).
    fn peek(&self, id: &EventKey) -> impl Future<Output = Result<KeyState, StoreError>> + Send;

    /// Extends the lease: it expires `extend` from now.
    ///
    /// # Errors
    ///
    /// [`SettleError::LeaseExpired`] when the lease has expired, even if no other run has claimed the key
    /// since.
    fn renew(
        &self,
        lease: &Lease,
        extend: Duration,
    ) -> impl Future<Output = Result<(), SettleError>> + Send;

    /// Marks the key as done for `retain`. When this returns, the record is as durable as the store.
    ///
    /// # Errors
    ///
    /// As for [`renew`](Self::renew).
    fn complete(
        &self,
        lease: &Lease,
        retain: Duration,
    ) -> impl Future<Output = Result<(), SettleError>> + Send;

    /// Releases the key, which is free from then on.
    ///
    /// # Errors
    ///
    /// As for [`renew`](Self::renew).
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

/// Identifies an event to a store, by a digest of its key and one of its body.
///
/// Keys of any length and content become 16 bytes, so a store never receives a sender's own text.
///
/// ```
/// use tower_webhook::store::EventKey;
///
/// let first = EventKey::new("crm", b"event-1", b"{}");
/// let changed = EventKey::new("crm", b"event-1", b"{ }");
/// assert_eq!(first.key(), changed.key());
/// assert_ne!(first.body(), changed.body());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventKey {
    key: u128,
    body: u128,
}

impl EventKey {
    /// Returns the identity of `key` in `namespace`, delivered with `body`.
    ///
    /// The same key in two namespaces is two events. Both digests are the same in every process and
    /// release: the key's is the first 128 bits of a SHA-256 digest, the body's is its 128-bit XXH3.
    #[must_use]
    pub fn new(namespace: &str, key: &[u8], body: &[u8]) -> Self {
        Self::in_space(KeySpace::Keys, namespace, key, BodyDigest::of(body))
    }

    /// Returns the identity of `key` in one of the spaces of `namespace`.
    pub(crate) fn in_space(
        space: KeySpace,
        namespace: &str,
        key: &[u8],
        BodyDigest(body): BodyDigest,
    ) -> Self {
        // No namespace is 2^56 bytes long, so the first byte of its length is free for the space.
        let prefix = (space as u64) << 56 | namespace.len() as u64;
        let key = Sha256::new()
            .chain_update(prefix.to_be_bytes())
            .chain_update(namespace)
            .chain_update(key);
        Self {
            key: first_half(&key.finalize().into()),
            body,
        }
    }

    /// The digest of namespace and key, which a claim is made on.
    #[must_use]
    pub fn key(&self) -> u128 {
        self.key
    }

    /// The digest of the body, which decides [`same_body`](Claim::Done::same_body).
    #[must_use]
    pub fn body(&self) -> u128 {
        self.body
    }
}

/// Separates keys of different origin in one namespace. The numbers are part of what stores persist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "postgres"),
    allow(dead_code, reason = "transactions are of Postgres")
)]
pub(crate) enum KeySpace {
    /// The sender's idempotency keys.
    Keys = 0,
    /// Bodies, which a replay guard claims as if they were keys.
    Bodies = 1,
    /// Keys that are inserted by the transaction of their handler.
    Transactions = 2,
    /// Digests of the secrets that verified deliveries.
    Secrets = 3,
}

/// The digest of a body, the same in every process and release.
///
/// It only compares bodies that are verified already, and is no protection against forgery: so it is 128-bit
/// XXH3, which is fast and fixed by its specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyDigest(u128);

impl BodyDigest {
    pub(crate) fn of(body: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(body))
    }
}

fn first_half(digest: &[u8; 32]) -> u128 {
    u128::from_be_bytes(std::array::from_fn(|at| digest[at]))
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
    // Literals, because stores persist these numbers: they must be the same in every release.
    #[test]
    fn digests_of_keys_never_change() {
        let key = |namespace, key: &[u8]| EventKey::new(namespace, key, b"").key();
        assert_eq!(key("", b""), 0xaf55_70f5_a181_0b7a_f78c_af4b_c70a_660f);
        assert_eq!(
            key("", b"event-1"),
            0x3312_705d_b61a_2a56_6b92_f5f4_8290_5291
        );
        assert_eq!(
            key("crm", b"event-1"),
            0x17a9_1825_369a_bfd7_a938_076a_e875_b604
        );
    }

    #[test]
    fn each_space_has_keys_of_its_own() {
        let key = |space| EventKey::in_space(space, "crm", b"event-1", BodyDigest::of(b"")).key();
        assert_eq!(
            key(KeySpace::Keys),
            EventKey::new("crm", b"event-1", b"").key()
        );
        assert_eq!(
            key(KeySpace::Bodies),
            0x0509_c31d_3cdd_2967_97c9_612f_c648_f05c
        );
        assert_eq!(
            key(KeySpace::Transactions),
            0x49f0_da39_a632_57c8_1942_6ed9_37c3_25aa
        );
    }

    #[test]
    fn digests_of_bodies_never_change() {
        let long: Vec<_> = (0..1000).map(|at| (at % 251) as u8).collect();
        for (body, digest) in [
            (&b""[..], 0x99aa_06d3_0147_98d8_6001_c324_468d_497f),
            (b"{}", 0xdc70_48f8_f874_7f56_1349_cde1_2770_5c16),
            (
                br#"{"id":"chat-1"}"#,
                0x1419_41f9_5380_8397_a963_8385_3960_64b7,
            ),
            (&long, 0x18bf_41bc_8229_e277_33ef_703f_b2b2_0ed1),
        ] {
            assert_eq!(BodyDigest::of(body), BodyDigest(digest));
            assert_eq!(EventKey::new("crm", b"event-1", body).body(), digest);
        }
    }
}
