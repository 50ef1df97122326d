//! The SQLite store: a table of keys on the engine's thread.

pub(super) mod rows;

use std::path::Path;
use std::time::Duration;

use self::rows::{Purge, Settle};
use crate::sqlite::engine::{CHECKPOINT_EVERY, Engine, Format, Machine, Need, clock};
use crate::sqlite::schema::FORMAT;
use crate::store::{Claim, EventKey, KeyState, Lease, OpenError, SettleError, Store, StoreError};

/// Remembers keys in a SQLite file: the durable choice for one machine.
///
/// One run at a time has a key, and none after a success, among all processes of one machine that open the file. It
/// survives their crashes, and the machine's. One thread does the work of all callers, and commits up to 256 calls
/// together; only completions wait for the disk. Leases and retentions are whole milliseconds, rounded up, and leases
/// last 10 milliseconds longer, because the clocks of two processes may differ. The page on stores has [durability,
/// files, failures and time](crate::docs::stores#sqlite), [size](crate::docs::stores#size), and the module the
/// [crates that can be linked beside this one](crate::sqlite#beside-other-crates).
///
/// Clones share one thread. Dropping the last one waits until the file is closed.
///
/// ```no_run
/// use tower_webhook::sqlite::SqliteStore;
/// use tower_webhook::{Secret, Webhooks};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = SqliteStore::open("webhooks.db")?;
/// let webhooks = Webhooks::new(Secret::from_env("WEBHOOK_SECRET")?).store(store);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    engine: Engine,
}

impl SqliteStore {
    /// Opens the file. Creates it if it does not exist, and upgrades a file of an earlier release. Blocks the calling
    /// thread.
    ///
    /// ```no_run
    /// use tower_webhook::store::OpenErrorKind;
    /// use tower_webhook::sqlite::SqliteStore;
    ///
    /// match SqliteStore::open("webhooks.db") {
    ///     Ok(store) => println!("{store:?}"),
    ///     Err(error) if error.kind() == OpenErrorKind::NewerSchema => {
    ///         eprintln!("was this release rolled back? {error}")
    ///     }
    ///     Err(error) => eprintln!("{error}"),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// When the file cannot be created, read or written, is not a database, belongs to another program, or
    /// was changed by a later release. The error says what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_by(path.as_ref(), clock::machine(), CHECKPOINT_EVERY)
    }

    pub(super) fn open_by(
        path: &Path,
        machine: Machine,
        checkpoint_every: i32,
    ) -> Result<Self, OpenError> {
        let engine = open_as(&FORMAT, Purge::each(1), path, machine, checkpoint_every)?;
        Ok(Self { engine })
    }

    /// The thread that works on the file, for an inbox in the same file.
    pub(super) fn engine(&self) -> Engine {
        self.engine.clone()
    }

    async fn settle(&self, need: Need, lease: &Lease, how: Settle) -> Result<(), SettleError> {
        let (key, fence) = (lease.id().key(), lease.fence());
        let settled = self
            .engine
            .run(need, move |tx| rows::settle(tx, key, fence, how));
        match settled.await.map_err(StoreError::from)? {
            true => Ok(()),
            false => Err(SettleError::LeaseExpired),
        }
    }
}

pub(super) fn open_as(
    format: &'static Format,
    purge: Purge,
    path: &Path,
    machine: Machine,
    checkpoint_every: i32,
) -> Result<Engine, OpenError> {
    Engine::open(
        path,
        format,
        vec![Box::new(purge)],
        machine,
        checkpoint_every,
    )
}

partial_debug!(SqliteStore, |it| path = it.engine.path());

impl Store for SqliteStore {
    const DURABLE_LEASES: bool = true;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        let id = *id;
        let claimed = self
            .engine
            .run(Need::Write, move |tx| rows::claim(tx, id, lease, retain));
        Ok(claimed.await?)
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        let key = id.key();
        let found = self.engine.run(Need::Read, move |tx| rows::peek(tx, key));
        Ok(found.await?)
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        self.settle(Need::Write, lease, Settle::Renew(extend)).await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        self.settle(Need::Durable, lease, Settle::Complete(retain))
            .await
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        self.settle(Need::Write, lease, Settle::Release).await
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io::Read;
    use std::sync::{Arc, Mutex, mpsc};
    use std::thread;
    use std::time::{Instant, SystemTime};

    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use rusqlite::{Connection, StatementStatus};
    use tempfile::TempDir;
    use tokio::runtime::Runtime;
    use tokio::sync::oneshot;

    use super::*;
    use crate::error::Chain;
    use crate::sqlite::engine::Tx;
    use crate::store::StoreErrorKind;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn id(key: u64) -> EventKey {
        EventKey::new("", &key.to_be_bytes(), b"{}")
    }

    /// A machine whose clocks are set by hand, and its disk.
    struct Desk {
        directory: TempDir,
        clocks: Arc<Mutex<(SystemTime, Instant)>>,
    }

    impl Desk {
        fn new() -> Self {
            Self {
                directory: tempfile::tempdir().unwrap(),
                clocks: Arc::new(Mutex::new((SystemTime::now(), Instant::now()))),
            }
        }

        fn open(&self) -> SqliteStore {
            let clocks = Arc::clone(&self.clocks);
            let machine = Box::new(move || *clocks.lock().unwrap());
            SqliteStore::open_by(
                &self.directory.path().join("webhooks.db"),
                machine,
                CHECKPOINT_EVERY,
            )
            .unwrap()
        }

        fn wait(&self, time: Duration) {
            let mut clocks = self.clocks.lock().unwrap();
            clocks.0 += time;
            clocks.1 += time;
        }

        fn jump_forward(&self, time: Duration) {
            self.clocks.lock().unwrap().0 += time;
        }

        fn jump_back(&self, time: Duration) {
            self.clocks.lock().unwrap().0 -= time;
        }
    }

    impl SqliteStore {
        async fn acquire(&self, key: u64, lease: Duration) -> Lease {
            match self.claim(&id(key), lease, 8 * DAY).await.unwrap() {
                Claim::Acquired(lease) => lease,
                claim => panic!("key {key} cannot be claimed: {claim:?}"),
            }
        }

        async fn finish(&self, key: u64, retain: Duration) {
            let lease = self.acquire(key, 30 * SECOND).await;
            self.complete(&lease, retain).await.unwrap();
        }

        async fn state(&self, key: u64) -> KeyState {
            self.peek(&id(key)).await.unwrap()
        }

        async fn sql(&self, sql: &'static str) -> i64 {
            self.ask(Need::Write, sql).await
        }

        async fn ask(&self, need: Need, sql: &'static str) -> i64 {
            let row = move |tx: &mut Tx<'_>| tx.db.query_row(sql, [], |row| row.get(0));
            self.engine.run(need, row).await.unwrap()
        }
    }

    #[tokio::test]
    async fn a_clock_that_jumps_back_extends_no_lease() {
        let desk = Desk::new();
        let store = desk.open();
        let lease = store.acquire(1, 30 * SECOND).await;
        desk.jump_back(DAY);
        desk.wait(29 * SECOND);
        store.renew(&lease, 30 * SECOND).await.unwrap();
        desk.wait(31 * SECOND);
        assert_eq!(store.state(1).await, KeyState::Free);
        assert!(matches!(
            store.complete(&lease, DAY).await,
            Err(SettleError::LeaseExpired)
        ));
    }

    #[tokio::test]
    async fn a_clock_that_jumped_back_between_two_runs_continues_where_it_was() {
        let desk = Desk::new();
        let store = desk.open();
        store.finish(1, DAY).await;
        store.acquire(2, 30 * SECOND).await;
        drop(store);

        desk.jump_back(8 * DAY);
        let store = desk.open();
        assert_eq!(store.state(1).await, KeyState::Done);
        desk.wait(31 * SECOND);
        assert_eq!(store.state(2).await, KeyState::Free);
        assert_eq!(store.acquire(2, 30 * SECOND).await.attempt().get(), 2);
        desk.wait(DAY);
        assert_eq!(store.state(1).await, KeyState::Free);
    }

    #[tokio::test]
    async fn a_clock_that_jumps_forward_ends_leases_at_the_next_start() {
        let desk = Desk::new();
        let store = desk.open();
        store.finish(1, 8 * DAY).await;
        let lease = store.acquire(2, 30 * SECOND).await;
        desk.jump_forward(DAY);
        store.renew(&lease, 30 * SECOND).await.unwrap();

        // Another process, which starts now. Both must agree on the time from its first claim on.
        let other = desk.open();
        let theirs = other.acquire(2, 30 * SECOND).await;
        assert_eq!(theirs.attempt().get(), 2);
        assert!(matches!(
            store.complete(&lease, DAY).await,
            Err(SettleError::LeaseExpired)
        ));
        assert_eq!(
            store.state(2).await,
            KeyState::InFlight {
                remaining: 30 * SECOND
            }
        );
        assert_eq!(store.state(1).await, KeyState::Done);
        desk.wait(7 * DAY + SECOND);
        assert_eq!(store.state(1).await, KeyState::Free);
    }

    /// Keeps the writing thread waiting, so that the next calls become one transaction.
    async fn hold(store: &SqliteStore) -> mpsc::Sender<()> {
        let (entered, has_entered) = oneshot::channel();
        let mut entered = Some(entered);
        let (go_on, gate) = mpsc::channel();
        let store = store.clone();
        tokio::spawn(async move {
            let waits = store.engine.run(Need::Write, move |_| {
                if let Some(entered) = entered.take() {
                    let _ = entered.send(());
                    let _ = gate.recv();
                }
                Ok(())
            });
            waits.await.unwrap();
        });
        has_entered.await.unwrap();
        go_on
    }

    #[tokio::test]
    async fn a_completion_waits_for_the_disk_and_a_claim_does_not() {
        const NORMAL: i64 = 1;
        const FULL: i64 = 2;
        let desk = Desk::new();
        let store = desk.open();
        // A transaction that only reads leaves it as the last one set it.
        let synchronous = async || store.ask(Need::Read, "PRAGMA synchronous").await;

        let lease = store.acquire(1, 30 * SECOND).await;
        assert_eq!(synchronous().await, NORMAL);
        store.complete(&lease, DAY).await.unwrap();
        assert_eq!(synchronous().await, FULL);
        store.acquire(2, 30 * SECOND).await;
        assert_eq!(synchronous().await, NORMAL);
    }

    #[tokio::test]
    async fn a_claim_does_not_wait_for_earlier_completions() {
        let desk = Desk::new();
        let store = desk.open();
        let go_on = hold(&store).await;
        let (claimed, has_claimed) = mpsc::channel();
        let completion = store.engine.run(Need::Durable, move |_| {
            Ok(has_claimed.recv_timeout(10 * SECOND).is_ok())
        });
        let (claim_came_first, (), ()) = tokio::join!(
            completion,
            async {
                store.acquire(1, 30 * SECOND).await;
                claimed.send(()).unwrap();
            },
            async { go_on.send(()).unwrap() }
        );
        assert!(claim_came_first.unwrap());
    }

    #[tokio::test]
    async fn callers_of_several_runtimes_are_answered_though_one_has_ended() {
        let desk = Desk::new();
        let store = desk.open();
        let go_on = hold(&store).await;

        let ended = Runtime::new().unwrap();
        let orphans = {
            let _entered = ended.enter();
            let mut claims = Box::pin(join_all((1..=2).map(|key| store.acquire(key, SECOND))));
            assert!((&mut claims).now_or_never().is_none());
            claims
        };
        ended.shutdown_background();
        let theirs = store.clone();
        let other = thread::spawn(move || {
            let claims = join_all((3..=4).map(|key| theirs.acquire(key, SECOND)));
            Runtime::new().unwrap().block_on(claims).len()
        });
        let mut ours = Box::pin(join_all((5..=6).map(|key| store.acquire(key, SECOND))));
        assert!((&mut ours).now_or_never().is_none());
        go_on.send(()).unwrap();

        assert_eq!(orphans.await.len(), 2);
        assert_eq!(ours.await.len(), 2);
        let other = tokio::task::spawn_blocking(|| other.join().unwrap());
        assert_eq!(other.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn an_abandoned_claim_is_skipped_and_a_completion_is_not() {
        let desk = Desk::new();
        let store = desk.open();
        let lease = store.acquire(1, 30 * SECOND).await;
        let go_on = hold(&store).await;
        let new = id(2);
        for abandoned in [
            store.complete(&lease, DAY).boxed().now_or_never().map(drop),
            store.claim(&new, DAY, DAY).boxed().now_or_never().map(drop),
        ] {
            assert!(abandoned.is_none(), "it was not waited for");
        }
        go_on.send(()).unwrap();
        assert_eq!(store.acquire(2, 30 * SECOND).await.attempt().get(), 1);
        assert_eq!(store.state(1).await, KeyState::Done);
    }

    #[tokio::test]
    async fn a_lease_lasts_to_its_last_millisecond() {
        let desk = Desk::new();
        let store = desk.open();
        store.acquire(1, 30 * SECOND).await;
        desk.wait(30 * SECOND);
        assert!(
            matches!(store.state(1).await, KeyState::InFlight { remaining } if !remaining.is_zero())
        );
        // For another process, which may be ahead of this one by so much.
        let agreement = Duration::from_millis(clock::AGREEMENT.unsigned_abs());
        desk.wait(agreement);
        assert!(matches!(store.state(1).await, KeyState::InFlight { .. }));
        desk.wait(Duration::from_millis(1));
        assert_eq!(store.state(1).await, KeyState::Free);
    }

    #[tokio::test]
    async fn expired_rows_are_dropped_a_few_at_a_time() {
        const ROWS: &str = "SELECT count(*) FROM keys";
        const KEYS: u64 = 500;
        let desk = Desk::new();
        let store = desk.open();
        // Keys that are kept for longer, or still in flight, do not block the purge of the others.
        store.finish(u64::MAX, 80 * DAY).await;
        let lease = store.acquire(u64::MAX - 1, 80 * DAY).await;
        for key in 0..KEYS {
            store.finish(key, 8 * DAY).await;
        }
        desk.wait(9 * DAY);

        let mut before = store.sql(ROWS).await;
        assert_eq!(before, 502);
        for call in 0.. {
            assert!(call < KEYS, "{before} rows are left after {call} calls");
            store.renew(&lease, 80 * DAY).await.unwrap();
            let after = store.sql(ROWS).await;
            // That counting is a call, too.
            assert!(before - after <= 4, "{before} rows, then {after}");
            before = after;
            if after == 2 {
                break;
            }
        }
        assert_eq!(store.state(u64::MAX).await, KeyState::Done);
        store.release(&lease).await.unwrap();
    }

    #[tokio::test]
    async fn expired_rows_do_not_pile_up() {
        let desk = Desk::new();
        let store = desk.open();
        let mut most = 0;
        for key in 0..600 {
            store.finish(key, 100 * SECOND).await;
            desk.wait(SECOND);
            if key % 10 == 0 {
                most = most.max(store.sql("SELECT count(*) FROM keys").await);
            }
        }
        // 101 are remembered at any time, and all rows are looked at once while a quarter as many
        // keys come in.
        assert!(most <= 101 + 101 / 3, "{most} rows");
    }

    #[tokio::test]
    async fn a_full_disk_refuses_what_it_cannot_record_and_recovers() {
        let desk = Desk::new();
        let store = desk.open();
        let held = store.acquire(0, 30 * SECOND).await;
        store.sql("PRAGMA max_page_count = 1").await;
        let mut key = 1;
        let error = loop {
            match store.claim(&id(key), 30 * SECOND, DAY).await {
                Ok(Claim::Acquired(_)) => key += 1,
                Ok(claim) => panic!("key {key}: {claim:?}"),
                Err(error) => break error,
            }
            assert!(key < 10_000, "the disk is never full");
        };
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        let told = Chain(&error).to_string();
        assert!(told.contains("no room on its disk"), "{told}");

        // Nothing of that was half done, and work that needs no room continues.
        assert_eq!(store.state(key).await, KeyState::Free);
        store.complete(&held, DAY).await.unwrap();

        store.sql("PRAGMA max_page_count = 1000000").await;
        store.acquire(key, 30 * SECOND).await;
    }

    #[tokio::test]
    async fn calls_fail_when_the_thread_is_dead() {
        let desk = Desk::new();
        let store = desk.open();
        let dies = store.engine.run(Need::Write, |_| -> rusqlite::Result<()> {
            panic!("a fault")
        });
        for error in [
            StoreError::from(dies.await.unwrap_err()),
            store.peek(&id(1)).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
            let told = Chain(&error).to_string();
            assert!(told.contains("its thread has ended"), "{told}");
        }
    }

    /// A planner that looks at bound values would compile a statement again for the next ones.
    #[tokio::test]
    async fn statements_are_compiled_once() {
        let desk = Desk::new();
        let store = desk.open();
        for key in 0..200 {
            let lease = store.acquire(key, 30 * SECOND).await;
            store.renew(&lease, 60 * SECOND).await.unwrap();
            match key % 3 {
                0 => store.release(&lease).await.unwrap(),
                _ => store.complete(&lease, 100 * SECOND).await.unwrap(),
            }
            store.claim(&id(key / 2), SECOND, DAY).await.unwrap();
            desk.wait(SECOND);
        }
        // One whose plan would depend on the values.
        const LIMITED: &str = "SELECT id FROM keys WHERE id > ?1 ORDER BY id LIMIT ?2";
        for limit in 1..10 {
            let first = store.engine.run(Need::Read, move |tx| {
                let mut limited = tx.prepare(LIMITED)?;
                limited.query_row([0, limit], |row| row.get::<_, i64>(0))
            });
            first.await.unwrap();
        }
        for sql in rows::STATEMENTS.iter().copied().chain([LIMITED]) {
            let counts = store.engine.run(Need::Read, move |tx| {
                let statement = tx.prepare(sql)?;
                let count = |status| statement.get_status(status);
                Ok([StatementStatus::Run, StatementStatus::RePrepare].map(count))
            });
            let [runs, compiled_again] = counts.await.unwrap();
            assert!(runs > 1, "{runs} runs of {sql}");
            assert_eq!(compiled_again, 0, "{sql}");
        }
    }

    #[tokio::test]
    async fn an_invalid_row_is_reported_as_corrupt() {
        let desk = Desk::new();
        let store = desk.open();
        store.acquire(1, 30 * SECOND).await;
        store.sql("UPDATE keys SET body = x'00' RETURNING 1").await;
        let error = store.peek(&id(1)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(error.source().unwrap().source().is_some(), "{error:?}");
    }

    #[tokio::test]
    async fn a_damaged_row_fails_its_own_calls_only() {
        let desk = Desk::new();
        let store = desk.open();
        let damaged = store.acquire(1, 30 * SECOND).await;
        let sound = store.acquire(2, 30 * SECOND).await;
        let plain = Connection::open(desk.directory.path().join("webhooks.db")).unwrap();
        let update = "UPDATE keys SET body = x'00' WHERE key = ?1";
        let updated = plain.execute(update, [id(1).key().to_be_bytes()]);
        assert_eq!(updated.unwrap(), 1);

        let go_on = hold(&store).await;
        let (new, old) = (id(3), id(1));
        let (completed, claim, refused, state, lease, ()) = tokio::join!(
            store.complete(&sound, DAY),
            store.claim(&new, DAY, DAY),
            store.claim(&old, DAY, DAY),
            store.peek(&old),
            store.acquire(4, 30 * SECOND),
            async { go_on.send(()).unwrap() }
        );
        completed.unwrap();
        assert!(matches!(claim, Ok(Claim::Acquired(_))), "{claim:?}");
        assert_eq!(lease.attempt().get(), 1);
        for error in [refused.unwrap_err(), state.unwrap_err()] {
            assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        }
        assert_eq!(store.state(2).await, KeyState::Done);
        assert!(matches!(store.state(3).await, KeyState::InFlight { .. }));

        // The damaged row is purged as others are.
        store.complete(&damaged, DAY).await.unwrap();
        desk.wait(9 * DAY);
        for key in 10..15 {
            store.acquire(key, 30 * SECOND).await;
        }
        assert_eq!(store.acquire(1, 30 * SECOND).await.attempt().get(), 1);
    }

    #[tokio::test]
    async fn a_damaged_page_affects_no_other_page() {
        const KEYS: u64 = 2000;
        const PAGE: usize = 4096;
        const LEAF_OF_TABLE: u8 = 13;
        let desk = Desk::new();
        let store = desk.open();
        join_all((0..KEYS).map(|key| store.finish(key, 8 * DAY))).await;
        drop(store);

        let path = desk.directory.path().join("webhooks.db");
        let mut file = std::fs::read(&path).unwrap();
        let mut leaves = file
            .chunks_exact_mut(PAGE)
            .filter(|page| page[0] == LEAF_OF_TABLE && page[4] > 20);
        leaves.nth(20).unwrap()[0] = 0;
        std::fs::write(&path, file).unwrap();

        let store = desk.open();
        let mut lost = Vec::new();
        for key in 0..KEYS {
            match store.peek(&id(key)).await {
                Ok(state) => assert_eq!(state, KeyState::Done),
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
                    lost.push(key);
                }
            }
        }
        assert!((1..100).contains(&lost.len()), "{} are lost", lost.len());

        desk.wait(9 * DAY);
        let lease = store.acquire(KEYS, 80 * DAY).await;
        for _ in 0..KEYS {
            store.renew(&lease, 80 * DAY).await.unwrap();
        }
        // By the index, which is sound. The neighbours of the page cannot be merged with it.
        let rows = store.sql("SELECT count(key) FROM keys").await;
        let most = 4 * lost.len() as i64;
        assert!(rows <= most, "{rows} rows are left of at most {most}");
    }

    #[tokio::test]
    async fn the_log_begins_anew_under_load() {
        let desk = Desk::new();
        let path = desk.directory.path().join("webhooks.db");
        let store = SqliteStore::open_by(&path, clock::machine(), 64).unwrap();
        let log = desk.directory.path().join("webhooks.db-wal");
        let begun_anew = || {
            // Of the log's header, the checkpoints' count.
            let mut header = [0; 16];
            let mut log = std::fs::File::open(&log).unwrap();
            log.read_exact(&mut header).unwrap();
            u32::from_be_bytes(header[12..].try_into().unwrap())
        };

        let mut key = 0;
        while begun_anew() < 5 {
            assert!(key < 100_000, "the log grew to {key} commits");
            let claims = (0..100).map(|at| store.acquire(key + at, 30 * SECOND));
            join_all(claims).await;
            key += 100;
        }
    }
}
