//! Handlers whose writes to PostgreSQL happen exactly once.
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
//! use tower_webhook::postgres::PostgresStore;
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
//! # #[cfg(not(feature = "signal"))]
//! # fn main() {}
//! # #[cfg(feature = "signal")]
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
//!     let listener = TcpListener::bind("127.0.0.1:3000").await?;
//!     println!("listening on http://{}/webhooks", listener.local_addr()?);
//!     axum::serve(listener, app)
//!         .with_graceful_shutdown(tower_webhook::shutdown()) // feature `signal`
//!         .await?;
//!     Ok(())
//! }
//! ```
//!
//! It needs `sqlx` 0.9 with its features `postgres` and `runtime-tokio`. In the repository,
//! `examples/postgres.rs` is a whole program.
//!
//! # Guarantees
//!
//! **The writes of a handler through its connection are in the database exactly once after a delivery of the
//! event was answered with 200, and at most once before.** This holds through crashes of the receiver, of the
//! server and of the connection between them, and for any number of receivers on one database. A later
//! delivery of the event is answered with 200 and `Idempotent-Replayed: true`, and the handler does not run.
//!
//! - **Only these writes.** An e-mail, a request to another service, or a write through another connection or to
//!   another database is not part of the transaction. It happens again when the event is handled again.
//!   Insert such work into a table, in the same transaction, and let a worker do it.
//! - **As durable as the database.** With `synchronous_commit = off`, a crash of the server loses the writes and
//!   the keys of the last moments together; so does a failover to a standby that lags behind. The platform
//!   was answered with 200 by then and does not retry. Keep the default, `on`.
//! - **For as long as keys are remembered**: 8 days by default, one day longer than the platform retries.
//! - **Events with a key.** A delivery without one, such as the test request of
//!   [Spec 6, rule 5](crate::docs::platform#spec-6-rule-5), is also handled in a transaction, but again each time.
//!   Refuse such deliveries with [`Webhooks::require_key`](crate::Webhooks::require_key).
//! - **One event has one kind**, and one handler. Events of two [routes](crate::Webhooks::name) are two events.
//!
//! # How a run ends
//!
//! | the handler | its writes | the key | answer |
//! |---|---|---|---|
//! | returned `Ok` | committed | committed | 200 |
//! | returned [`HandlerError::discard`](crate::HandlerError::discard) or [`dead_letter`](crate::HandlerError::dead_letter) | rolled back | committed alone (not in an inbox) | 200 |
//! | returned another error | rolled back | rolled back | 500 |
//! | panicked | rolled back | rolled back | 500 |
//! | exceeded its time limit, 30 s by default | rolled back | rolled back | 503 |
//! | was dropped, because the client disconnected | rolled back; both or neither during the commit | as the writes | none |
//! | returned `Ok`, but one of its statements had failed | rolled back | rolled back | 500 |
//! | returned `Ok`, but the commit was refused, as by a deferred constraint | rolled back | rolled back | 500 |
//! | returned `Ok`, but the commit was not confirmed | both or neither | both or neither | 503 |
//!
//! An `Err` never leaves a write behind: to give an event up and record that, return `Ok`. In the last row the
//! result is unknown: the platform's next retry either finds the key, or handles the event again.
//!
//! When the database cannot be reached, or no connection becomes free in time, the answer is 503 with
//! `Retry-After` (see [`responses`](crate::docs::responses)). No restart is needed afterwards.
//!
//! **A client that disconnects cancels its run**, unlike behind an
//! [`IdempotencyLayer`](crate::IdempotencyLayer): the transaction is rolled back, and the platform retries.
//! If your handlers take longer than the platform or a proxy waits, use both, as described below: the layer
//! continues a run whose client disconnected.
//!
//! # In an inbox
//!
//! A worker of an [inbox](crate::docs::inbox#transactional-handlers) runs transactional handlers like any others. If
//! its queue is a `PostgresQueue` on the same tables, that is, in the same database and schema, the transaction also
//! settles the event: it is handled if and only if the writes are committed. If the lease of a run was lost, the server
//! refuses the settlement, and everything is rolled back. A redriven event runs again, although its key is known. With
//! another queue, the worker settles the event after the commit, and the key keeps the writes from happening twice.
//! If a service of your own passes an event to several transactional handlers, the first commit settles it, and nothing
//! repeats the others after a crash.
//!
//! ```no_run
//! # use tower_webhook::event::ChatRated;
//! # use tower_webhook::postgres::{PostgresQueue, PostgresStore};
//! # use tower_webhook::transactional::{TransactionalHandler, Transactions};
//! # use tower_webhook::{EventRouter, Secret, Webhooks};
//! # async fn example(crm: impl TransactionalHandler<ChatRated>) -> anyhow::Result<()> {
//! use sqlx::postgres::PgPoolOptions;
//!
//! let pool = PgPoolOptions::new().max_connections(32 + 5);
//! let pool = pool.connect("postgres://localhost/crm").await?;
//! let queue = PostgresQueue::open(pool.clone()).await?; // also creates the table of the keys
//! let transactions = Transactions::new(PostgresStore::new(pool));
//! let events = EventRouter::new().on::<ChatRated>(transactions.handler(crm));
//! let secret = Secret::from_env("WEBHOOK_SECRET")?;
//! let (webhooks, running) = Webhooks::new(secret).inbox(queue).start(events)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Writing handlers
//!
//! - The handler neither commits nor rolls back. To try a statement that may fail, use a savepoint:
//!   `let mut savepoint = db.begin().await?`, from `sqlx::Connection`, because in Postgres a failed statement fails
//!   the whole transaction. Do not put a time limit around `begin` and then continue with `db`: when the future
//!   of `begin` is dropped, sqlx rolls back everything, and later statements are committed on their own. Return
//!   an error instead.
//! - Functions and closures must not capture anything: `async |delivery: Delivery<E>, db: &mut PgConnection|
//!   { … }`. A handler with state is a struct.
//! - The isolation level is the connection's default, which is `READ COMMITTED` unless the server or the role
//!   sets another. At `REPEATABLE READ` or `SERIALIZABLE`, a serialization failure is an error like any other:
//!   the platform retries. A duplicate that waited for the first delivery is then answered with 409, not 200.
//! - Attempts are not counted: a failed one leaves no trace.
//!
//! # Costs
//!
//! - **One connection per running handler**, from before its first statement until after the commit. Size the pool for
//!   the number of handlers that are to run at once, and for the
//!   [queue of an inbox](crate::docs::inbox#transactional-handlers) if it shares the pool: a delivery that gets no
//!   connection within 10 s is answered with 503. So do slow work that needs no database elsewhere, and never take a
//!   second connection from the same pool in a handler. Duplicates of a running event wait in memory, and take one
//!   connection per process and event.
//! - **Four round trips** besides the handler's own statements: begin, key, a check that the transaction is
//!   still intact, commit. sqlx adds one to test each connection before use, which
//!   `PgPoolOptions::test_before_acquire` switches off; the price is one 503 per connection after the server
//!   restarted.
//! - **One row per key in the table of [`PostgresStore`](crate::postgres::PostgresStore)**, whose page has its size, the
//!   required privileges, and how rows are purged.
//!
//! # Comparison with `IdempotencyLayer`
//!
//! | | transactional handlers | [`IdempotencyLayer`](crate::IdempotencyLayer) with [`PostgresStore`](crate::postgres::PostgresStore) |
//! |---|---|---|
//! | effects | exactly once, in this database | at least once, anywhere |
//! | after a crash | nothing is left: rolled back | the event is handled again after its lease expired, on top of its partial effects |
//! | connections | one for each running handler | one for each short statement |
//! | the client disconnects | the run is cancelled | the run continues |
//! | attempts are counted | no | yes |
//! | inner service | `EventRouter` | any |
//!
//! Both can be used together, because other kinds have other handlers, or to migrate from one to the other.
//! Their keys are kept apart, in one table. To migrate, use both for as long as keys are remembered, so that
//! events that only the old one knows are not handled again.

mod handler;
mod run;
mod transactions;
mod turns;

#[doc(hidden)]
pub use self::handler::Function;
pub use self::handler::TransactionalHandler;
pub use self::run::Transactional;
pub use self::transactions::Transactions;
