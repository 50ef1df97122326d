//! Handlers that get a transaction.

use std::future::Future;

use sqlx::PgConnection;

use crate::delivery::Delivery;
use crate::event::Event;
use crate::handler::HandlerResult;

/// Handles the events of one kind in a transaction that also holds their key.
///
/// Implement it for a struct, once for each event; or write a function or a closure that captures
/// nothing. [`Transactions::handler`](super::Transactions::handler) makes a [`Handler`](crate::Handler) of it. See the
/// [module](super) for an example.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle `{E}` in a transaction",
    label = "not a `TransactionalHandler<{E}>`",
    note = "implement `TransactionalHandler<{E}>`, or pass `async |delivery: Delivery<{E}>, db: &mut PgConnection| {{ … Ok(()) }}`, which may capture nothing"
)]
pub trait TransactionalHandler<E: Event>: Send + Sync + 'static {
    /// Handles one event. Its writes through `db` are committed after this has returned `Ok`, and rolled back
    /// otherwise.
    ///
    /// The future may be dropped at any `.await`, when its time limit has passed or the client disconnects.
    ///
    /// # Errors
    ///
    /// Any error retries the event: the platform delivers it again. Return
    /// [`HandlerError::discard`](crate::HandlerError::discard) for an event that will never succeed.
    fn handle(
        &self,
        delivery: Delivery<E>,
        db: &mut PgConnection,
    ) -> impl Future<Output = HandlerResult> + Send;
}

impl<E, F> TransactionalHandler<E> for F
where
    E: Event,
    F: for<'db> Function<'db, E> + Send + Sync + 'static,
{
    fn handle(
        &self,
        delivery: Delivery<E>,
        db: &mut PgConnection,
    ) -> impl Future<Output = HandlerResult> + Send {
        self.call(delivery, db)
    }
}

/// A function whose future borrows the connection. A bound on `Fn` cannot name that future, and one on
/// `AsyncFn` cannot ask it to be `Send`.
#[doc(hidden)]
pub trait Function<'db, E: Event> {
    /// The future that it returns.
    type Future: Future<Output = HandlerResult> + Send + 'db;

    /// Calls it.
    fn call(&self, delivery: Delivery<E>, db: &'db mut PgConnection) -> Self::Future;
}

impl<'db, E, F, Fut> Function<'db, E> for F
where
    E: Event,
    F: Fn(Delivery<E>, &'db mut PgConnection) -> Fut,
    Fut: Future<Output = HandlerResult> + Send + 'db,
{
    type Future = Fut;

    fn call(&self, delivery: Delivery<E>, db: &'db mut PgConnection) -> Fut {
        self(delivery, db)
    }
}
