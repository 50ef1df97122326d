//! How the statements of the queue are executed.

use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use sqlx::postgres::PgRow;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::batches::{Call, Executed, GRACE, Locked, Result, Row, share};
use crate::inbox::event::{EventLease, TakenEvent};
use crate::lock::lock;
use crate::postgres::engine::{
    Busy, Tables, Value, code, column, corrupt, is_locked, is_without_answer,
};
use crate::postgres::lease::{Identity, TransactionalLease};
use crate::store::OpenError as Error;
use crate::store::StoreError;

/// The tables of the queue.
pub(super) struct Database {
    pub(super) tables: Arc<Tables>,
    identity: Arc<Identity>,
    /// Whether the default isolation level is not the level that the functions need.
    begins: Arc<AtomicBool>,
    /// How many more calls may have a connection.
    connections: Arc<Semaphore>,
    /// How many of them may read for people.
    reads: Arc<Semaphore>,
    /// Held while a step of a change of many is executed: they follow each other without a pause, and one at a time leaves
    /// the connections and the server to deliveries.
    steps: Semaphore,
    unanswered: Arc<Unanswered>,
    /// Held while they are given up.
    gives_up: Arc<Semaphore>,
}

/// The numbers of calls that may have taken events for nobody: no answer came, and the server may execute them still.
#[derive(Default)]
struct Unanswered(Mutex<VecDeque<String>>);

/// How many are remembered: more than there can be while each of the connections hangs until it is given up.
const MOST_UNANSWERED: usize = 1024;
const GIVEN_UP_AT_ONCE: usize = 64;

impl Unanswered {
    fn add(&self, call: String) {
        let mut calls = lock(&self.0);
        calls.push_back(call);
        if calls.len() > MOST_UNANSWERED {
            calls.pop_front();
        }
    }

    /// A few of them, each in its turn. Giving up a call takes a lock until all these are given up, and a small server has
    /// few.
    fn some(&self) -> Vec<String> {
        let mut calls = lock(&self.0);
        let some = calls.len().min(GIVEN_UP_AT_ONCE);
        calls.rotate_left(some);
        calls.range(calls.len() - some..).cloned().collect()
    }

    fn forget(&self, ended: &[String]) {
        lock(&self.0).retain(|call| !ended.contains(call));
    }
}

/// A call that may take events. It travels with its answer, and is unanswered if it is dropped before somebody has read
/// that.
struct Asked {
    number: Option<String>,
    unanswered: Arc<Unanswered>,
}

impl Asked {
    fn answered(&mut self, rows: &sqlx::Result<Vec<PgRow>>) {
        let is_known = match rows {
            Ok(_) => true,
            // The server's errors say that nothing was taken, except when a pooler reports a lost server.
            Err(error) => code(error).is_some_and(|code| !is_without_answer(&code)),
        };
        if is_known {
            self.number = None;
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            self.unanswered.add(number);
        }
    }
}

/// A number for a call that may take events: the first half of their fences.
fn number() -> String {
    let number = getrandom::u64().unwrap_or_else(|_| fastrand::u64(..));
    let number = format!("{number:016x}");
    format!("{}-{}-{}", &number[..8], &number[8..12], &number[12..])
}

/// How many calls have a connection at the same time, those included whose callers have given up.
const MOST_CONNECTIONS: usize = 5;
const MOST_READS: usize = 2;

/// For how long a reading waits for a connection.
const READ_WITHIN: Duration = Duration::from_secs(5);

const GIVE_UP: &str = "SELECT {schema}.give_up($1)";

const LOCKED: &str = "
    SELECT r.lane, r.own FROM unnest($1::bigint[], $2::bigint[]) AS r (lane, own) WHERE {schema}.is_locked(r.lane, r.own)";

impl Database {
    pub(super) fn new(tables: Tables) -> Self {
        let tables = Arc::new(tables);
        Self {
            identity: Arc::new(Identity::new(&tables)),
            tables,
            begins: Arc::new(AtomicBool::new(false)),
            connections: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
            reads: Arc::new(Semaphore::new(MOST_READS)),
            steps: Semaphore::new(1),
            unanswered: Arc::default(),
            gives_up: Arc::new(Semaphore::new(1)),
        }
    }

    /// A statement, with the schema's name in it.
    fn sql(&self, sql: &str) -> Arc<str> {
        self.tables.schema.sql(sql).into()
    }

    /// Executes a statement that calls a function of the schema, and returns its rows.
    pub(super) async fn call(
        &self,
        sql: &str,
        values: impl Into<Vec<Value>>,
    ) -> Result<Vec<PgRow>> {
        let rows = self.try_call(sql, values.into(), None).await;
        rows.map_err(|error| self.error(error))
    }

    /// Executes a statement that may take events, and has the number of the call as its last parameter.
    pub(super) async fn take(
        &self,
        connected: Connected,
        sql: &str,
        mut values: Vec<Value>,
    ) -> Result<Vec<PgRow>> {
        let call = number();
        values.push(Value::Text(call.clone()));
        let rows = self.send(connected, sql, values, Some(call)).await;
        rows.map_err(|error| self.error(error))
    }

    /// Gives up what calls without an answer have taken, beside its caller. A call that the server has not ended yet is given
    /// up the next time.
    pub(super) fn give_up_unanswered(self: &Arc<Self>) {
        let calls = self.unanswered.some();
        if calls.is_empty() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.gives_up).try_acquire_owned() else {
            return;
        };
        let database = Arc::clone(self);
        tokio::spawn(async move {
            let given_up = timeout(GRACE, database.call_one(GIVE_UP, [Value::Texts(calls)])).await;
            if let Ok(Ok(row)) = given_up
                && let Ok(ended) = column::<Vec<String>>(&row, 0)
            {
                database.unanswered.forget(&ended);
            }
            drop(permit);
        });
    }

    pub(super) async fn call_one(&self, sql: &str, values: impl Into<Vec<Value>>) -> Result<PgRow> {
        one(self.call(sql, values).await?)
    }

    /// Executes a step of a change of many events, again and again while another transaction locks what it needs: until its
    /// caller gives up. Between two attempts, others have their turn.
    pub(super) async fn step(&self, sql: &str, values: &[Value]) -> Result<PgRow> {
        loop {
            let turn = self.steps.acquire().await;
            let tried = self.try_call(sql, values.to_vec(), None).await;
            drop(turn);
            match tried {
                Err(error) if is_locked(&error) => {}
                rows => return one(rows.map_err(|error| self.error(error))?),
            }
        }
    }

    /// Executes a statement that may change something, and may take events if it has a number.
    async fn try_call(
        &self,
        sql: &str,
        values: Vec<Value>,
        number: Option<String>,
    ) -> sqlx::Result<Vec<PgRow>> {
        let connected = self.connect().await?;
        self.send(connected, sql, values, number).await
    }

    async fn send(
        &self,
        connected: Connected,
        sql: &str,
        values: Vec<Value>,
        number: Option<String>,
    ) -> sqlx::Result<Vec<PgRow>> {
        let (tables, begins) = (Arc::clone(&self.tables), Arc::clone(&self.begins));
        let sql = self.sql(sql);
        let asked = Asked {
            number,
            unanswered: Arc::clone(&self.unanswered),
        };
        let fetched = connected
            .execute(async move |busy| (fetch(busy, &tables, &begins, &sql, &values).await, asked));
        let Some((rows, mut asked)) = fetched.await else {
            return Err(sqlx::Error::WorkerCrashed);
        };
        asked.answered(&rows);
        rows
    }

    /// Waits for one of the connections. A caller that gives up before there is one has asked the server for nothing.
    pub(super) async fn connect(&self) -> sqlx::Result<Connected> {
        let permit = Arc::clone(&self.connections).acquire_owned().await;
        let permit = permit.map_err(|_| sqlx::Error::PoolClosed)?;
        let busy = self.tables.pool.acquire().await?;
        Ok(Connected { busy, permit })
    }

    /// Finds locked rows.
    pub(super) fn locked(self: &Arc<Self>) -> Locked {
        let database = Arc::clone(self);
        Box::new(move |rows: BTreeSet<Row>| {
            let database = Arc::clone(&database);
            Box::pin(async move {
                let (lanes, own) = rows.iter().copied().unzip::<_, _, Vec<_>, Vec<_>>();
                let values = [Value::numbers(lanes), Value::numbers(own)];
                let locked = database.call(LOCKED, values).await?;
                let locked = locked
                    .iter()
                    .map(|row| Ok((column(row, 0)?, column(row, 1)?)));
                Ok(locked.collect::<Result<_, Error>>()?)
            })
        })
    }

    /// Executes one statement for several calls, with the rows of their answers one after another.
    pub(super) async fn execute<C: Call>(
        &self,
        sql: &str,
        calls: &[C],
        values: fn(&[C]) -> Vec<Value>,
        returned: fn(&C, &[PgRow]) -> Result<C::Return, Error>,
    ) -> Executed<C::Return> {
        let send = async |calls: &[C]| {
            let number = C::TAKES.then(number);
            let mut values = values(calls);
            values.extend(number.clone().map(Value::Text));
            self.try_call(sql, values, number).await
        };
        let rows = match send(calls).await {
            Err(error) if is_locked(&error) => return Executed::Blocked,
            // What the server cannot store is not the fault of the others.
            Err(error) if calls.len() > 1 && is_of_a_value(&error) => {
                let mut results = Vec::new();
                for call in calls {
                    let rows = send(std::slice::from_ref(call)).await;
                    let rows = rows.map_err(|error| self.error(error));
                    results.push(rows.and_then(|rows| answered(call, &rows, returned)));
                }
                return Executed::Done(results);
            }
            Err(error) => return Executed::Done(share(self.error(error), calls.len())),
            Ok(rows) => rows,
        };
        let mut rest = &rows[..];
        let results = calls.iter().map(|call| {
            let of_call = rest.split_off(..call.answers()).unwrap_or_default();
            answered(call, of_call, returned)
        });
        let results = results.collect();
        match rest {
            [] => Executed::Done(results),
            _ => Executed::Done(share(misfit(), calls.len())),
        }
    }

    /// Executes a statement that only reads.
    pub(super) async fn read(&self, sql: &str, values: &[Value]) -> Result<Vec<PgRow>> {
        Ok(self.search(sql, values).await?.0)
    }

    pub(super) async fn read_one(&self, sql: &str, values: &[Value]) -> Result<PgRow> {
        one(self.read(sql, values).await?)
    }

    /// Executes a statement that reads many rows, and returns the time that it took, too. Those of people leave
    /// connections to others.
    pub(super) async fn search(
        &self,
        sql: &str,
        values: &[Value],
    ) -> Result<(Vec<PgRow>, Duration)> {
        let connecting = async {
            let reads = Arc::clone(&self.reads).acquire_owned().await;
            (reads, self.connect().await)
        };
        // The pool may wait for much longer, and a person waits for the answer.
        let refused = async { (None, Err(self.tables.pool.refusal().await)) };
        let connected = async {
            match select(pin!(connecting), pin!(refused)).await {
                Either::Left(((reads, connected), _)) => (Some(reads), connected),
                Either::Right((refused, _)) => refused,
            }
        };
        let connected = timeout(READ_WITHIN, connected).await;
        let (reads, connected) = connected.map_err(|_| StoreError::timed_out())?;
        let connected = connected.map_err(|error| self.error(error))?;
        let (sql, values) = (self.sql(sql), values.to_vec());
        let found = connected.execute(async move |busy| {
            let found = busy.fetch_planned(&sql, &values).await;
            drop(reads);
            found
        });
        let found = found.await.unwrap_or(Err(sqlx::Error::WorkerCrashed));
        found.map_err(|error| self.error(error))
    }

    /// Lets a transactional handler end the attempt itself.
    pub(super) fn lend(&self, taken: &mut TakenEvent) {
        let EventLease { id, fence, place } = taken.lease;
        let lease = TransactionalLease::new(&self.identity, id.0, fence, place);
        taken.delivery.lend(Arc::new(lease));
    }

    pub(super) fn error(&self, error: sqlx::Error) -> StoreError {
        self.tables.error(error).into()
    }
}

/// A connection that a call has.
pub(super) struct Connected {
    busy: Busy,
    permit: OwnedSemaphorePermit,
}

impl Connected {
    /// Executes a statement. One whose caller gives up keeps the connection for a while: the server executes it all the
    /// same, and another connection would be one more. Returns nothing if the runtime was shut down.
    async fn execute<T, F>(self, fetch: impl FnOnce(Busy) -> F) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let Self { busy, permit } = self;
        let fetch = fetch(busy);
        let (mut caller, result) = oneshot::channel();
        let began = Instant::now();
        tokio::spawn(async move {
            let given_up = async {
                caller.closed().await;
                sleep_until(began + GRACE).await;
            };
            let fetched = match select(pin!(fetch), pin!(given_up)).await {
                Either::Left((fetched, _)) => Some(fetched),
                Either::Right(_) => None,
            };
            drop(permit);
            if let Some(fetched) = fetched {
                let _ = caller.send(fetched);
            }
        });
        result.await.ok()
    }
}

async fn fetch(
    busy: Busy,
    tables: &Tables,
    begins: &AtomicBool,
    sql: &Arc<str>,
    values: &[Value],
) -> sqlx::Result<Vec<PgRow>> {
    if begins.load(Ordering::Relaxed) {
        return busy.fetch_committed(sql, values).await;
    }
    match busy.fetch_all(sql, values).await {
        Err(error) if code(&error).as_deref() == Some(NOT_READ_COMMITTED) => {
            begins.store(true, Ordering::Relaxed);
            let busy = tables.pool.acquire().await?;
            busy.fetch_committed(sql, values).await
        }
        result => result,
    }
}

/// What the functions fail with where transactions are repeatable reads or serializable by default.
const NOT_READ_COMMITTED: &str = "TW001";

fn answered<C: Call>(
    call: &C,
    rows: &[PgRow],
    returned: fn(&C, &[PgRow]) -> Result<C::Return, Error>,
) -> Result<C::Return> {
    match rows.len() == call.answers() {
        true => Ok(returned(call, rows)?),
        false => Err(misfit()),
    }
}

fn misfit() -> StoreError {
    corrupt("a statement that did not return each row of its calls").into()
}

fn one(mut rows: Vec<PgRow>) -> Result<PgRow> {
    let row = rows.pop();
    row.ok_or_else(|| corrupt("an answer without a row").into())
}

/// Whether the server refused a value, and would take the others.
fn is_of_a_value(error: &sqlx::Error) -> bool {
    let code = code(error).unwrap_or_default();
    ["22", "23", "54"]
        .iter()
        .any(|class| code.starts_with(class))
}
