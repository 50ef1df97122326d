//! The store under test, and the times that rules go by.

use std::future::Future;
use std::time::Duration;

use crate::store::Store;

/// Opens handles on the store under test.
pub trait Harness: Sync {
    /// The store under test.
    type Store: Store;

    /// A handle on the same data as all others from this harness, and as independent of them as
    /// the store allows: another connection, where it has connections.
    fn open(&self) -> impl Future<Output = Self::Store> + Send;
}

/// A lease, or a retention, whose end is waited for.
pub(super) const SHORT: Duration = Duration::from_millis(400);

/// A lease that a handful of operations must fit into, and whose end is waited for.
pub(super) const BRIEF: Duration = Duration::from_secs(2);

/// A lease, or a retention, that must not end while a rule works with it.
pub(super) const HELD: Duration = Duration::from_secs(60);

/// How late a store may notice that something ended, before that counts as never.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// How far the store's clock may run ahead of ours while we wait for `SHORT`, rounding included.
pub(super) const DRIFT: Duration = Duration::from_millis(50);

/// How many claims compete for one key.
pub(super) const RIVALS: usize = 64;
