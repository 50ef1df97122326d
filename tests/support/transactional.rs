//! A handler whose effects are committed together with the event's key.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tower_webhook::event::ChatRated;
use tower_webhook::transactional::{TransactionalHandler, Transactions};
use tower_webhook::{Delivery, EventRouter, HandlerError, HandlerResult};

use super::database::execute;
use super::delivery::HANDLER_ERROR;
use super::{eventually, lock};

/// The table of the effects.
pub async fn create_effects(pool: &PgPool) {
    execute(
        pool,
        "CREATE TABLE effects (id bigserial, chat text, n float8)",
    )
    .await;
}

/// What a run does after it has written its effect.
#[derive(Clone, Debug)]
pub enum Step {
    Succeed,
    /// Waits until the test lets it continue.
    SucceedWhen(Arc<Semaphore>),
    FailWhen(Arc<Semaphore>),
    Fail,
    Panic,
    Discard,
    DeadLetter,
    /// Succeeds although a statement has failed.
    Overlook,
    /// Tries what fails in a savepoint.
    Recover,
    DiscardAfterFailure,
    /// Stops waiting for a savepoint, and continues.
    DropBegin,
    ForgetSavepoint,
    ForgetSavepointAndFail,
    Execute(&'static str),
    /// Leaves the transaction idle for longer than [`IDLE_LIMIT`].
    Idle,
}

const IDLE_LIMIT: Duration = Duration::from_millis(50);

/// Writes one row for each run, then does the next step, or succeeds.
#[derive(Clone, Default)]
pub struct TransactionalCrm {
    steps: Arc<Mutex<VecDeque<Step>>>,
    runs: Arc<AtomicUsize>,
}

impl TransactionalCrm {
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        Self {
            steps: Arc::new(Mutex::new(steps.into_iter().collect())),
            runs: Arc::default(),
        }
    }

    pub fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    pub async fn running(&self, runs: usize) {
        eventually("the run", async || self.runs() >= runs).await;
    }

    pub fn router(&self, transactions: &Transactions) -> EventRouter {
        EventRouter::new().on::<ChatRated>(transactions.handler(self.clone()))
    }
}

impl TransactionalHandler<ChatRated> for TransactionalCrm {
    async fn handle(&self, chat: Delivery<ChatRated>, db: &mut PgConnection) -> HandlerResult {
        sqlx::query("INSERT INTO effects (chat, n) VALUES ($1, $2)")
            .bind(&chat.payload.id)
            .bind(chat.payload.rating)
            .execute(&mut *db)
            .await?;
        self.runs.fetch_add(1, Ordering::SeqCst);
        let step = lock(&self.steps).pop_front();
        match step.unwrap_or(Step::Succeed) {
            Step::Succeed => {}
            Step::SucceedWhen(go) => go.acquire().await?.forget(),
            Step::FailWhen(go) => {
                go.acquire().await?.forget();
                return Err(HANDLER_ERROR.into());
            }
            Step::Fail => return Err(HANDLER_ERROR.into()),
            Step::Panic => panic!("{HANDLER_ERROR}"),
            Step::Discard => return Err(HandlerError::discard(HANDLER_ERROR)),
            Step::DeadLetter => return Err(HandlerError::dead_letter(HANDLER_ERROR)),
            Step::Overlook => assert!(db.execute("SELECT 1 / 0").await.is_err()),
            Step::Recover => {
                let mut savepoint = db.begin().await?;
                assert!(savepoint.execute("SELECT 1 / 0").await.is_err());
                savepoint.rollback().await?;
            }
            Step::DiscardAfterFailure => {
                let error = db.execute("SELECT 1 / 0").await.unwrap_err();
                return Err(HandlerError::discard(error));
            }
            Step::DropBegin => {
                // What is at work yet makes it wait.
                let sleep = db.execute("SELECT pg_sleep(0.2)");
                assert!(poll_only(1, false, sleep).await.is_none());
                assert!(poll_only(1, false, db.begin()).await.is_none());
                db.execute("INSERT INTO effects (chat) VALUES ('late')")
                    .await?;
            }
            Step::ForgetSavepoint => std::mem::forget(db.begin().await?),
            Step::ForgetSavepointAndFail => {
                std::mem::forget(db.begin().await?);
                return Err(HANDLER_ERROR.into());
            }
            Step::Execute(sql) => {
                db.execute(sql).await?;
            }
            Step::Idle => {
                let limit = format!(
                    "SET idle_in_transaction_session_timeout = {}",
                    IDLE_LIMIT.as_millis()
                );
                db.execute(AssertSqlSafe(limit)).await?;
                sleep(4 * IDLE_LIMIT).await;
            }
        }
        Ok(())
    }
}

/// Polls a future this often, and drops it: at once, or when it could continue.
pub async fn poll_only<F: Future>(polls: usize, then_wait: bool, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 && !then_wait => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
