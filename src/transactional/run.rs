use std::time::Duration;

use sqlx::{Connection, PgConnection, PgTransaction};
use tokio::time::{Instant, timeout, timeout_at};

use super::TransactionalHandler;
use super::transactions::Transactions;
use super::turns::Turn;
use crate::answer::Answer;
use crate::delivery::Delivery;
use crate::error::BoxError;
use crate::event::Event;
use crate::handler::{Handler, HandlerResult};
use crate::store::postgres::transaction::{CommitError, HeldConnection, Inserted, TxId, commit};
use crate::store::{EventKey, StoreError};

/// A [`Handler`] whose writes are committed together with its event's key. Made by
/// [`Transactions::handler`].
#[derive(Clone, Debug)]
pub struct Transactional<H> {
    pub(super) handler: H,
    pub(super) transactions: Transactions,
}

impl<E: Event, H: TransactionalHandler<E>> Handler<E> for Transactional<H> {
    async fn handle(&self, delivery: Delivery<E>) -> HandlerResult {
        let transactions = &self.transactions;
        let key = transactions.key(&delivery);
        let _turn = transactions.turn(key.as_ref()).await?;

        let mut connection = transactions.connection().await?;
        let mut transaction = transactions.begin(&mut connection).await?;
        let begun = match transactions.insert(&mut transaction, key.as_ref()).await {
            Ok(begun) => begun,
            Err(answer @ (Answer::Replayed | Answer::InFlight { .. })) => {
                if transactions.roll_back(transaction).await.is_ok() {
                    connection.give_back();
                }
                return Err(answer.into());
            }
            // Its connection is closed: it may lead to a server that takes no writes any more.
            Err(answer) => return Err(answer.into()),
        };

        let limit = transactions.handler_timeout;
        let handling = self.handler.handle(delivery, &mut transaction);
        let Ok(handled) = timeout(limit, handling).await else {
            return Err(Answer::TimedOut { limit }.into());
        };
        match &handled {
            Ok(()) => {
                transactions.commit(transaction, &begun).await?;
                if connection.is_in_transaction() {
                    return Err(Answer::Failed(CommitError::EndedBefore.into()).into());
                }
            }
            Err(error) if error.is_discard() => {
                transactions.roll_back(transaction).await?;
                transactions.record(&mut connection, key.as_ref()).await?;
            }
            // At once, so that the key is free before the sender is told.
            Err(_) => match transactions.roll_back(transaction).await {
                Ok(()) => {}
                Err(_) => return handled,
            },
        }
        connection.give_back();
        handled
    }
}

/// Later than anybody waits, and no point in time overflows with it.
const YEARS_30: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// A lock that is not free for so long is held by another delivery's transaction. The server's own are shorter.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// What a key is recognised by, and how long to wait for another delivery of it.
#[derive(Clone, Copy)]
pub(super) struct Key {
    id: EventKey,
    wait_until: Instant,
}

/// The steps of a run, each within its time limit.
impl Transactions {
    fn key<E: Event>(&self, delivery: &Delivery<E>) -> Option<Key> {
        // Apart from what an `IdempotencyLayer` keeps in the same table, so that both can be used.
        let namespace = format!("{} transactions", self.namespace);
        let key = delivery.key()?;
        Some(Key {
            id: EventKey::new(&namespace, key.as_bytes(), delivery.raw().body()),
            wait_until: Instant::now() + self.in_flight_wait.min(YEARS_30),
        })
    }

    async fn turn(&self, key: Option<&Key>) -> Result<Option<Turn>, Answer> {
        let Some(key) = key else { return Ok(None) };
        match timeout_at(key.wait_until, self.turns.wait(key.id.key())).await {
            Ok(turn) => Ok(Some(turn)),
            Err(_) => Err(self.in_flight()),
        }
    }

    async fn connection(&self) -> Result<HeldConnection, Answer> {
        self.step(self.store.acquire()).await
    }

    async fn begin<'c>(
        &self,
        connection: &'c mut PgConnection,
    ) -> Result<PgTransaction<'c>, Answer> {
        self.step(self.store.begin(connection)).await
    }

    /// Inserts the key, if there is one, and tells the transaction's number.
    async fn insert(
        &self,
        connection: &mut PgConnection,
        key: Option<&Key>,
    ) -> Result<TxId, Answer> {
        let limit = self.handler_timeout;
        let Some(key) = key else {
            return self.step(self.store.number(connection, limit)).await;
        };
        let left = key.wait_until.saturating_duration_since(Instant::now());
        let wait = left.max(SHORTEST_WAIT);
        let insert = self
            .store
            .insert(connection, &key.id, self.retention, wait, limit);
        let inserted = match timeout(wait.saturating_add(self.store_timeout), insert).await {
            Ok(inserted) => inserted.map_err(|error| self.unavailable(error))?,
            Err(_) => return Err(self.unavailable(StoreError::timed_out())),
        };
        match inserted {
            Inserted::Fresh(number) => Ok(number),
            Inserted::InFlight => Err(self.in_flight()),
            Inserted::Done { same_body } => {
                if !same_body {
                    tracing::warn!(
                        "the key was used before, with another body: the delivery counts as the \
                         same event"
                    );
                }
                Err(Answer::Replayed)
            }
        }
    }

    /// Inserts the key of an event that was given up.
    async fn record(&self, connection: &mut PgConnection, key: Option<&Key>) -> Result<(), Answer> {
        if key.is_none() {
            return Ok(());
        }
        match self.insert(connection, key).await {
            // Somebody else was faster, and did not give it up.
            Ok(_) | Err(Answer::Replayed) => Ok(()),
            Err(answer) => Err(answer),
        }
    }

    async fn roll_back(&self, transaction: PgTransaction<'_>) -> Result<(), Answer> {
        self.step(self.store.roll_back(transaction)).await
    }

    async fn commit(&self, transaction: PgTransaction<'_>, begun: &TxId) -> Result<(), Answer> {
        let committed = timeout(self.store_timeout, commit(transaction, begun)).await;
        let error: BoxError = match committed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(CommitError::Unknown(error))) => error.into(),
            Ok(Err(error)) => return Err(Answer::Failed(error.into())),
            Err(_) => StoreError::timed_out().into(),
        };
        Err(Answer::NotCommitted {
            error,
            retry_after: self.policy.retry_every,
        })
    }

    async fn step<T>(
        &self,
        step: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Answer> {
        let result = timeout(self.store_timeout, step).await;
        result
            .unwrap_or_else(|_| Err(StoreError::timed_out()))
            .map_err(|error| self.unavailable(error))
    }

    fn unavailable(&self, error: StoreError) -> Answer {
        Answer::StoreUnavailable {
            error,
            retry_after: self.policy.retry_every,
        }
    }

    /// No run takes longer than its time limit.
    fn in_flight(&self) -> Answer {
        Answer::InFlight {
            remaining: self.handler_timeout,
        }
    }
}
