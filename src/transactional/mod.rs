//! Effects in Postgres that happen exactly once.
//!
//! A [`TransactionalHandler`] gets its delivery together with an open transaction. The event's key is
//! inserted by the same transaction that the handler writes in, and both are committed or neither is:
//!
//! ```text
//!   BEGIN ─▶ insert the key ─┬─ inserted ────▶ handler ─┬─ Ok ──────▶ COMMIT, then 200
//!                            │                          ├─ discard ─▶ ROLLBACK, key alone, then 200
//!                            │                          └─ else ────▶ ROLLBACK, then 500 or 503
//!                            ├─ was there ───▶ 200, replayed
//!                            └─ in progress ─▶ wait for its outcome, up to 5 s, then 409
//! ```
//!
//! It needs no [`IdempotencyLayer`](crate::IdempotencyLayer), no lease and no clean-up after a crash:
//!
//! ```no_run
//! use axum::Router;
//! use sqlx::PgConnection;
//! use sqlx::postgres::PgPool;
//! use tokio::net::TcpListener;
//! use tower::Layer;
//! use tower_webhook::event::{ChatRated, MessageCreated};
//! use tower_webhook::store::PostgresStore;
//! use tower_webhook::transactional::{TransactionalHandler, Transactions};
//! use tower_webhook::{Delivery, EventRouter, HandlerError, HandlerResult, Secret, SignatureLayer};
//!
//! struct Crm {
//!     tenant: i32,
//! }
//!
//! impl TransactionalHandler<ChatRated> for Crm {
//!     async fn handle(&self, chat: Delivery<ChatRated>, db: &mut PgConnection) -> HandlerResult {
//!         let Some(rating) = chat.payload.rating else {
//!             return Err(HandlerError::discard("a rating without a rating"));
//!         };
//!         sqlx::query("INSERT INTO ratings (tenant, chat, rating) VALUES ($1, $2, $3)")
//!             .bind(self.tenant)
//!             .bind(&chat.payload.id)
//!             .bind(rating)
//!             .execute(&mut *db)
//!             .await?;
//!         sqlx::query("UPDATE tenants SET ratings = ratings + 1 WHERE id = $1")
//!             .bind(self.tenant)
//!             .execute(&mut *db)
//!             .await?;
//!         Ok(())
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> anyhow::Result<()> {
//!     tracing_subscriber::fmt::init(); // says why an event failed
//!     let store = PostgresStore::new(PgPool::connect("postgres://localhost/crm").await?);
//!     store.migrate().await?;
//!
//!     let transactions = Transactions::new(store);
//!     let events = EventRouter::new()
//!         .on::<ChatRated>(transactions.handler(Crm { tenant: 7 }))
//!         .on::<MessageCreated>(transactions.handler(
//!             async |message: Delivery<MessageCreated>, db: &mut PgConnection| {
//!                 sqlx::query("INSERT INTO messages (text) VALUES ($1)")
//!                     .bind(message.payload.text)
//!                     .execute(db)
//!                     .await?;
//!                 Ok(())
//!             },
//!         ));
//!     let secret = Secret::from_env("WEBHOOK_SECRET")?;
//!     let webhooks = SignatureLayer::new(secret).layer(events);
//!
//!     let app = Router::new().route_service("/webhooks", webhooks);
//!     axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await?;
//!     Ok(())
//! }
//! ```
//!
//! It needs `sqlx` 0.9 with its features `postgres` and `runtime-tokio`. In the repository,
//! `examples/postgres.rs` is a whole program.
//!
//! # What is guaranteed
//!
//! **For each event, what its handler writes through the connection that it is given is in the
//! database exactly once after a delivery of it was answered with 200, and at most once before.** That
//! holds through crashes of the receiver, of the server and of the connection between them, and for
//! any number of receivers on one database. An event that is delivered once more is answered with 200
//! and `Idempotent-Replayed: true`; its handler does not run.
//!
//! - **Only these writes.** An e-mail, a request to another service, a write through another connection
//!   or to another database is not part of the transaction, and happens again when the event is handled
//!   again. Write what is to be sent into a table, in the same transaction, and let a worker send it.
//! - **As durable as the database.** With `synchronous_commit = off` a crash of the server forgets writes
//!   and key of the last moments together, and so does a failover to a standby that is behind. The sender
//!   was told 200 by then, and does not come back: leave it `on`, its default.
//! - **For as long as keys are remembered**: 8 days unless set, a day longer than the sender retries.
//! - **Events with a key.** A delivery without one, such as the test request by hand (Spec 6, rule 5),
//!   is handled in a transaction too, but each time anew. Refuse them with
//!   [`SignatureLayer::require_key`](crate::SignatureLayer::require_key).
//! - **One event has one kind**, and one handler. Two `Transactions` on one table tell their events
//!   apart by [`Transactions::namespace`] alone.
//!
//! # How a run ends
//!
//! | the handler | its writes | the key | answer |
//! |---|---|---|---|
//! | returned `Ok` | committed | committed | 200 |
//! | returned [`HandlerError::discard`](crate::HandlerError::discard) | rolled back | committed alone | 200 |
//! | returned another error | rolled back | rolled back | 500 |
//! | panicked | rolled back | rolled back | 500 |
//! | exceeded its time limit, which is 30 s | rolled back | rolled back | 503 |
//! | was dropped, because the client left | rolled back; both or neither, if it was being committed | as the writes | none |
//! | returned `Ok`, but one of its statements had failed | rolled back | rolled back | 500 |
//! | returned `Ok`, but the commit failed or was not confirmed | both or neither | both or neither | 503 |
//!
//! No `Err` ever leaves a write behind: to give an event up and write that down, return `Ok`. In the last
//! row nobody knows; the sender's next attempt either finds the key, or does all of it again.
//!
//! What is answered when the database cannot be reached, or has no connection to give in time, is 503
//! with `Retry-After`: see [`answers`](crate::docs::answers). It recovers by itself.
//!
//! **A client that leaves cancels its run**, unlike behind an `IdempotencyLayer`: half a transaction is
//! worth nothing, and the sender comes back. If your handlers take longer than the sender or a proxy
//! waits, use both, as described below: the layer lets a run go on without its client.
//!
//! # Writing handlers
//!
//! - The handler commits nothing and rolls nothing back. To try a statement that may fail, use a
//!   savepoint: `let mut savepoint = db.begin().await?`, by `sqlx::Connection`. In Postgres a failed
//!   statement fails all of its transaction. Put no time limit around `begin` itself and then go on with
//!   `db`: when it is dropped, sqlx rolls back everything, and what follows is committed on its own.
//!   Return an error instead.
//! - Functions and closures have to capture nothing: `async |delivery: Delivery<E>, db: &mut
//!   PgConnection| { … }`. A handler with a state is a struct.
//! - The isolation level is the connection's default, `READ COMMITTED` unless you changed it. At
//!   `REPEATABLE READ` or `SERIALIZABLE` a serialization failure is an error like any other: the sender
//!   tries again. A duplicate that waited for the first delivery is then answered with 409 instead of 200.
//! - There is no number of attempts: what failed has left no trace.
//!
//! # What it costs
//!
//! - **A connection for each running handler**, from before its first statement until after the commit.
//!   The pool has to be as large as the number of handlers that are to run at once; a delivery that finds
//!   none free within 10 s is answered with 503. So keep slow work that needs no database out of these
//!   handlers, and do not take a second connection from the same pool in one. Duplicates of a running
//!   event wait in memory, and take one connection for each process and event.
//! - **Four round trips** besides the handler's own statements: begin, key, a check that the transaction
//!   is still sound, commit. sqlx's own before each use of a connection can be switched off
//!   (`PgPoolOptions::test_before_acquire`), which costs a 503 per connection after the server restarted.
//! - **A row in the table of [`PostgresStore`](crate::store::PostgresStore)** for each key: its page tells
//!   the size, the rights that are needed, and how rows are purged.
//!
//! # Beside an `IdempotencyLayer`
//!
//! | | transactional handlers | [`IdempotencyLayer`](crate::IdempotencyLayer) with [`PostgresStore`](crate::store::PostgresStore) |
//! |---|---|---|
//! | effects | exactly once, in this database | at least once, anywhere |
//! | a crash in mid-run costs | nothing: rolled back | the event is handled again after its lease, with what was half done |
//! | connections | one for each running handler | one for each short statement |
//! | a client that leaves | cancels the run | does not |
//! | attempts are counted | no | yes |
//! | inner service | `EventRouter` | any |
//!
//! Both at once are fine, be it because other kinds have other handlers, or to move from one to the
//! other: their keys are kept apart, in one table. Use both for as long as keys are remembered before you
//! drop the old one, so that nothing is handled again that only the old one knows.

mod run;
mod transactions;
mod turns;

use std::future::Future;

use sqlx::PgConnection;

use crate::delivery::Delivery;
use crate::event::Event;
use crate::handler::HandlerResult;

pub use self::run::Transactional;
pub use self::transactions::Transactions;

/// Handles the events of one kind in a transaction that also holds their key.
///
/// Implement it for a struct, once for each event; or write a function or a closure that captures
/// nothing. [`Transactions::handler`] makes a [`Handler`](crate::Handler) of it. See the
/// [module](self) for an example.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle `{E}` in a transaction",
    label = "not a `TransactionalHandler<{E}>`",
    note = "implement `TransactionalHandler<{E}>`, or pass `async |delivery: Delivery<{E}>, db: &mut PgConnection| {{ … Ok(()) }}`, which may capture nothing"
)]
pub trait TransactionalHandler<E: Event>: Send + Sync + 'static {
    /// Handles one event. What is written through `db` is committed after this returned `Ok`, and
    /// rolled back otherwise.
    ///
    /// It may be dropped at any `.await` when its time limit ends or the client leaves.
    ///
    /// # Errors
    ///
    /// Any error means "try again": the sender delivers the event once more. Use
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
    /// What it returns.
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
