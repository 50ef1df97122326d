//! What an event is recognised by: digests of its key and its body, and for a delivery, which of these are claimed.

use sha2::{Digest, Sha256};
use twox_hash::XxHash3_128;

use crate::delivery::{IdempotencyKey, RawDelivery};

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
        // The length in front keeps (`a`, `bc`) apart from (`ab`, `c`).
        let key = Sha256::new()
            .chain_update(prefix.to_be_bytes())
            .chain_update(namespace)
            .chain_update(key);
        Self {
            key: first_half(&key.finalize().into()),
            body,
        }
    }

    /// Returns the identity with these digests, which a spool has kept.
    #[cfg(feature = "sqlite")]
    pub(crate) fn of_digests(key: u128, body: u128) -> Self {
        Self { key, body }
    }

    /// The digest of namespace and key, which a claim is made on.
    #[must_use]
    pub fn key(&self) -> u128 {
        self.key
    }

    /// The digest of the body, which decides [`same_body`](super::Claim::Done::same_body).
    #[must_use]
    pub fn body(&self) -> u128 {
        self.body
    }
}

/// Separates keys of different origin in one namespace. The numbers are part of what stores persist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(feature = "postgres", feature = "sqlite")),
    allow(
        dead_code,
        reason = "transactions are of Postgres, and spools of SQLite"
    )
)]
pub(crate) enum KeySpace {
    /// The sender's idempotency keys.
    Keys = 0,
    /// Bodies, which a replay guard claims as if they were keys.
    Bodies = 1,
    /// Keys that are inserted by the transaction of their handler.
    Transactions = 2,
    /// Deliveries that a spool forwards under another key than the sender's.
    Spooled = 3,
    /// Bodies, which the transaction of their handler inserts as if they were keys.
    TransactionBodies = 4,
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

/// What is claimed or stored of a delivery, so that a later one of the same event is recognised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// By its key. `None` for a delivery without one, which is not deduplicated.
    pub(crate) key: Option<EventKey>,
    /// By its body, with a replay guard.
    pub(crate) guard: Option<EventKey>,
}

impl Identity {
    pub(crate) fn of(delivery: &RawDelivery, is_guarded: bool) -> Self {
        let namespace = delivery.route().namespace();
        let key = delivery.key().map(IdempotencyKey::as_bytes);
        let guard = is_guarded.then(|| {
            // The body is the key here, so that "another body" means another key.
            let key = BodyDigest::of(key.unwrap_or_default());
            EventKey::in_space(KeySpace::Bodies, namespace, delivery.body(), key)
        });
        let key = key.map(|key| EventKey::new(namespace, key, delivery.body()));
        Self { key, guard }
    }

    /// By what a transaction inserts. It is kept apart, so that an `IdempotencyLayer` can use the same table, and so are
    /// those of several layers and workers.
    #[cfg(feature = "postgres")]
    pub(crate) fn in_transaction(delivery: &RawDelivery, is_guarded: bool) -> Self {
        let route = delivery.route().namespace();
        let namespace = format!("{}:{route}", route.len());
        let key = delivery.key().map(IdempotencyKey::as_bytes);
        let in_space = |space, key: &[u8], body: &[u8]| {
            EventKey::in_space(space, &namespace, key, BodyDigest::of(body))
        };
        let (body, of_key) = (delivery.body(), key.unwrap_or_default());
        Self {
            key: key.map(|key| in_space(KeySpace::Transactions, key, body)),
            // As in `of`.
            guard: is_guarded.then(|| in_space(KeySpace::TransactionBodies, body, of_key)),
        }
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
