//! What transactional handlers share.

use super::turns::Turns;
use crate::postgres::PostgresStore;

/// Gives each handler a transaction that also holds its event's key.
///
/// See the [module](super) for what that promises. Clones share the pool.
///
/// The settings are those of the handlers' route: [`retention`](crate::Webhooks::retention),
/// [`in_flight_wait`](crate::Webhooks::in_flight_wait), [`store_timeout`](crate::Webhooks::store_timeout),
/// [`handler_timeout`](crate::Webhooks::handler_timeout) and [`observer`](crate::Webhooks::observer). A
/// [`SignatureLayer::new`](crate::SignatureLayer::new) and a delivery of a test have the defaults.
///
/// - The store's limit is for each step of the database besides the handler's own: a connection from the pool, the key,
///   the commit. Its default is 10 seconds here.
/// - When the handler's limit has passed, its transaction is rolled back. The server ends a statement, or an idle
///   transaction, of a handler after the same time. Shorter limits that are set on the connection remain.
/// - The observer also sees the calls of the database, each a [`Call`](crate::telemetry::Observation::Call) with the
///   operation `acquire`, `begin`, `insert`, `commit`, `roll-back` or `can-end`. `insert` includes the time for which
///   another delivery of the event is waited for. An attempt ends without a report if its client disconnects, which drops
///   the handler.
#[derive(Clone, Debug)]
#[must_use]
pub struct Transactions {
    pub(super) store: PostgresStore,
    pub(super) turns: Turns,
}

impl Transactions {
    /// Keeps the keys in the table of `store`, and takes connections from its pool: one for each
    /// event that is being handled.
    ///
    /// In a worker of an [inbox](crate::docs::inbox#transactional-handlers), these are at most its `concurrency`. If
    /// the queue shares the pool, it needs five more.
    pub fn new(store: PostgresStore) -> Self {
        let turns = Turns::default();
        Self { store, turns }
    }
}
