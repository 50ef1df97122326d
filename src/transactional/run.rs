//! One run of a transactional handler: key, handler, commit.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, TryFutureExt};
use sqlx::{Connection, PgConnection, PgTransaction};
use tokio::time::{Instant, timeout_at};

use super::handler::TransactionalHandler;
use super::transactions::Transactions;
use super::turns::{Turn, Turns};
use crate::delivery::{Delivery, RawDelivery};
use crate::error::BoxError;
use crate::event::Event;
use crate::execution::{Defaults, Lent, Limits, attempt};
use crate::handler::{Handler, HandlerError, HandlerResult};
use crate::outcome::Outcome;
use crate::postgres::PostgresStore;
use crate::postgres::keys::transaction::{Busy, CommitError, Inserted, TxId};
use crate::postgres::lease::TransactionalLease;
use crate::store::{EventKey, Identity, StoreError, StoreErrorKind};
use crate::telemetry::{AttemptWatch, Call, CallTarget, Observers};

/// A [`Handler`] whose writes are committed together with its event's key. Made by
/// [`Transactions::handler`].
#[derive(Clone, Debug)]
pub struct Transactional<H> {
    handler: H,
    transactions: Transactions,
}

impl Transactions {
    /// Turns a [`TransactionalHandler`](super::TransactionalHandler) into a [`Handler`](crate::Handler), for
    /// [`EventRouter::on`](crate::EventRouter::on).
    pub fn handler<H>(&self, handler: H) -> Transactional<H> {
        Transactional {
            handler,
            transactions: self.clone(),
        }
    }
}

impl<E: Event, H: TransactionalHandler<E>> Handler<E> for Transactional<H> {
    async fn handle(&self, delivery: Delivery<E>) -> HandlerResult {
        let mut watch = None;
        let ended = self.attempt(delivery, &mut watch).await;
        let outcome = ended.map_or_else(|outcome| outcome, Outcome::from);
        if let Some(watch) = watch {
            let settlement = match outcome {
                Outcome::LeaseLost | Outcome::NotCommitted { .. } => None,
                _ => Some(outcome.settlement_of_claim(outcome.completes())),
            };
            watch.ended(&outcome, settlement.as_ref());
        }
        match outcome {
            Outcome::Handled => Ok(()),
            outcome => Err(HandlerError::ended(outcome)),
        }
    }
}

impl<H> Transactional<H> {
    /// Handles the delivery in a transaction, and returns the handler's own result; or else the outcome of an
    /// attempt that ended without it. Sets `watch` when the handler ends.
    async fn attempt<E: Event>(
        &self,
        delivery: Delivery<E>,
        watch: &mut Option<AttemptWatch>,
    ) -> Result<HandlerResult, Outcome>
    where
        H: TransactionalHandler<E>,
    {
        let run = &Run::new(&self.transactions, delivery.raw());
        let key = run.key(delivery.raw());
        let _turn = run.turn(key.as_ref()).await?;
        // Before a connection is held: it may take one for a moment.
        let lease = run.lease(delivery.raw()).await?;
        let is_from_inbox = delivery.accepted_at().is_some();

        let mut busy = run.connection().await?;
        let mut transaction = run.begin(&mut busy.connection).await?;
        let begun = match run.insert(&mut transaction, key.as_ref()).await {
            Ok(begun) => begun,
            // It was handled before, and a person asked for it again. Its lease is what keeps it from running twice.
            Err(Outcome::Replayed) if delivery.is_redriven() && lease.is_some() => {
                run.roll_back(transaction).await?;
                transaction = run.begin(&mut busy.connection).await?;
                run.insert(&mut transaction, None).await?
            }
            Err(outcome @ (Outcome::Replayed | Outcome::InFlight { .. })) => {
                if run.roll_back(transaction).await.is_ok() {
                    busy.give_back();
                }
                return Err(outcome);
            }
            // Its connection is closed: it may lead to a server that no longer takes writes.
            Err(outcome) => return Err(outcome),
        };

        let observed = run.watch(delivery.raw());
        let limit = run.limits.handler_timeout;
        let handling = self.handler.handle(delivery, &mut transaction);
        let handled = attempt(handling, limit, pending()).await;
        *watch = Some(observed.stop());
        let handled = handled?;
        match &handled {
            Ok(()) => {
                let lease = lease.as_deref();
                run.commit(transaction, &begun, lease).await?;
                if busy.connection.is_in_transaction() {
                    return Err(Outcome::failed(CommitError::EndedBefore));
                }
                if let Some(lease) = lease {
                    lease.committed();
                }
            }
            // An inbox records it, and its event can be redriven.
            Err(error) if error.is_discard() && !is_from_inbox => {
                run.roll_back(transaction).await?;
                run.record(&mut busy.connection, key.as_ref()).await?;
            }
            // At once, so that the key is free before the platform gets its answer.
            Err(_) => match run.roll_back(transaction).await {
                Ok(()) => {}
                Err(_) => return Ok(handled),
            },
        }
        busy.give_back();
        Ok(handled)
    }
}

/// A lock that is not free for so long is held by another delivery's transaction. The server's own are shorter.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// What an event is recognised by, and how long to wait for another delivery of it.
#[derive(Clone, Copy)]
pub(super) struct ClaimKey {
    id: EventKey,
    /// The guard, if there is a key as well.
    body: Option<EventKey>,
    wait_until: Instant,
}

/// The steps of a run, each within its time limit.
struct Run<'a> {
    store: &'a PostgresStore,
    turns: &'a Turns,
    limits: Limits,
    observers: Observers,
    replay_guard: bool,
}

impl<'a> Run<'a> {
    fn new(transactions: &'a Transactions, delivery: &RawDelivery) -> Self {
        let lent = delivery.lent::<Lent>().unwrap_or_default();
        Self {
            store: &transactions.store,
            turns: &transactions.turns,
            limits: Limits::unchecked(&lent.given, Defaults::TRANSACTION),
            observers: lent.observers.clone(),
            // The guard looks at the body of a delivery, which the layer that splits it guards, and never at items.
            replay_guard: lent.replay_guard && delivery.item().is_none(),
        }
    }
}

impl Run<'_> {
    /// Observes an attempt that no layer and no worker makes.
    fn watch(&self, delivery: &RawDelivery) -> AttemptWatch {
        let observers = match delivery.is_reported() {
            true => &Observers::default(),
            false => &self.observers,
        };
        AttemptWatch::new(observers, delivery, None)
    }

    fn key(&self, delivery: &RawDelivery) -> Option<ClaimKey> {
        let Identity { key, guard } = Identity::in_transaction(delivery, self.replay_guard);
        Some(ClaimKey {
            id: key.or(guard)?,
            body: guard.filter(|_| key.is_some()),
            wait_until: Instant::now() + self.limits.in_flight_wait,
        })
    }

    async fn turn(&self, key: Option<&ClaimKey>) -> Result<Option<Turn>, Outcome> {
        let Some(key) = key else { return Ok(None) };
        match timeout_at(key.wait_until, self.turns.wait(key.id.key())).await {
            Ok(turn) => Ok(Some(turn)),
            Err(_) => Err(self.in_flight()),
        }
    }

    /// The lease of the delivery's attempt, if the run's transaction can end it.
    async fn lease(
        &self,
        delivery: &RawDelivery,
    ) -> Result<Option<Arc<TransactionalLease>>, Outcome> {
        let Some(lease) = TransactionalLease::of(delivery) else {
            return Ok(None);
        };
        let can_end = self.step("can-end", self.store.can_end(&lease)).await?;
        Ok(can_end.then_some(lease))
    }

    async fn connection(&self) -> Result<Busy, Outcome> {
        self.step("acquire", self.store.acquire()).await
    }

    async fn begin<'c>(
        &self,
        connection: &'c mut PgConnection,
    ) -> Result<PgTransaction<'c>, Outcome> {
        self.step("begin", self.store.begin(connection)).await
    }

    /// Inserts the key, if there is one, and returns the id of the transaction.
    async fn insert(
        &self,
        connection: &mut PgConnection,
        key: Option<&ClaimKey>,
    ) -> Result<TxId, Outcome> {
        let limit = self.limits.handler_timeout;
        let Some(key) = key else {
            let number = self.store.number(connection, limit);
            return self.step("insert", number).await;
        };
        let number = self.insert_one(connection, key, &key.id).await?;
        // After the key, in every transaction, so that no two of them wait for each other.
        if let Some(body) = &key.body {
            self.insert_one(connection, key, body).await?;
        }
        Ok(number)
    }

    async fn insert_one(
        &self,
        connection: &mut PgConnection,
        key: &ClaimKey,
        id: &EventKey,
    ) -> Result<TxId, Outcome> {
        let limit = self.limits.handler_timeout;
        let left = key.wait_until.saturating_duration_since(Instant::now());
        let wait = left.max(SHORTEST_WAIT);
        let insert = self
            .store
            .insert(connection, id, self.limits.retention, wait, limit);
        let limit = wait.saturating_add(self.limits.store_timeout);
        match self.call("insert", limit, insert).await? {
            Inserted::Fresh(number) => Ok(number),
            Inserted::InFlight => Err(self.in_flight()),
            Inserted::Done { same_body } => {
                if !same_body {
                    tracing::warn!(
                        "the key was used before with another body, or the body with another key: the delivery counts as \
                         the same event"
                    );
                }
                Err(Outcome::Replayed)
            }
        }
    }

    /// Inserts the key of an event that was given up.
    async fn record(
        &self,
        connection: &mut PgConnection,
        key: Option<&ClaimKey>,
    ) -> Result<(), Outcome> {
        if key.is_none() {
            return Ok(());
        }
        match self.insert(connection, key).await {
            // Another delivery was faster, and did not give the event up.
            Ok(_) | Err(Outcome::Replayed) => Ok(()),
            Err(answer) => Err(answer),
        }
    }

    async fn roll_back(&self, transaction: PgTransaction<'_>) -> Result<(), Outcome> {
        self.step("roll-back", self.store.roll_back(transaction))
            .await
    }

    async fn commit(
        &self,
        mut transaction: PgTransaction<'_>,
        begun: &TxId,
        lease: Option<&TransactionalLease>,
    ) -> Result<(), Outcome> {
        let mut is_sent = false;
        let commit = async {
            let prepared = self.store.prepare_commit(&mut transaction, begun, lease);
            prepared.await?;
            is_sent = true;
            self.store.commit(transaction, lease).await
        };
        let commit = commit.map(|committed| match committed {
            Err(CommitError::Unknown(error)) => {
                Err(StoreError::new(StoreErrorKind::Unavailable, error))
            }
            committed => Ok(committed),
        });
        let limit = self.limits.store_timeout;
        let confirmed = self.observe("commit", limit, commit).await;
        match confirmed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(CommitError::LeaseLost)) => Err(Outcome::LeaseLost),
            Ok(Err(error)) => Err(Outcome::failed(error)),
            Err(error) if is_sent => Err(Outcome::NotCommitted {
                reason: BoxError::from(error).into(),
                retry_after: self.limits.policy.retry_every,
            }),
            Err(error) => {
                if let Some(lease) = lease {
                    lease.rolled_back();
                }
                Err(Outcome::failed(CommitError::Refused(error.into())))
            }
        }
    }

    fn step<T>(
        &self,
        operation: &'static str,
        step: impl Future<Output = Result<T, StoreError>>,
    ) -> impl Future<Output = Result<T, Outcome>> {
        self.call(operation, self.limits.store_timeout, step)
    }

    fn call<T>(
        &self,
        operation: &'static str,
        limit: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> impl Future<Output = Result<T, Outcome>> {
        let called = self.observe(operation, limit, call);
        called.map_err(|error| self.unavailable(error))
    }

    fn observe<C>(&self, operation: &'static str, limit: Duration, call: C) -> Call<'_, C> {
        let limit = Some(limit);
        self.observers
            .call(CallTarget::Store, operation, limit, call)
    }

    fn unavailable(&self, error: StoreError) -> Outcome {
        Outcome::unavailable(error, self.limits.policy.retry_every)
    }

    /// No run takes longer than its time limit.
    fn in_flight(&self) -> Outcome {
        Outcome::InFlight {
            remaining: self.limits.handler_timeout,
        }
    }
}
