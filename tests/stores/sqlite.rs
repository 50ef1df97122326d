//! The SQLite store: the conformance suite, and faults that only a file has.

#![cfg(target_os = "linux")]

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::future::{Future, poll_fn};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use rusqlite::Connection;
use tokio::task::JoinSet;
use tower_webhook::sqlite::SqliteStore;
use tower_webhook::store::conformance::{self};
use tower_webhook::store::{
    Claim, EventKey, KeyState, Lease, OpenErrorKind, SettleError, Store, StoreError, StoreErrorKind,
};
use tracing::Level;

use support::chain;
use support::log::Log;
use support::program::{Peer, say};
use support::scratch::{Scratch, directory, log_to};

const LEASE: Duration = Duration::from_secs(60);
const RETENTION: Duration = Duration::from_secs(8 * 24 * 60 * 60);

fn id(key: impl ToString) -> EventKey {
    EventKey::new("", key.to_string().as_bytes(), b"{}")
}

async fn acquire(store: &SqliteStore, key: impl ToString) -> Result<Lease, StoreError> {
    let id = id(key);
    match store.claim(&id, LEASE, RETENTION).await? {
        Claim::Acquired(lease) => Ok(lease),
        claim => panic!("a free key cannot be claimed: {claim:?}"),
    }
}

/// Claims and completes.
async fn handle(store: &SqliteStore, key: impl ToString) -> Result<(), SettleError> {
    let lease = acquire(store, key).await?;
    store.complete(&lease, RETENTION).await
}

/// Asks once more when the database is unavailable, while there are tries left.
async fn at_second_try<T>(
    tries: &mut u32,
    mut ask: impl AsyncFnMut() -> Result<T, SettleError>,
) -> T {
    match ask().await {
        Err(SettleError::Store(error))
            if error.kind() == StoreErrorKind::Unavailable && *tries > 0 =>
        {
            *tries -= 1;
            ask().await.unwrap()
        }
        answer => answer.unwrap(),
    }
}

async fn state(store: &SqliteStore, key: impl ToString) -> KeyState {
    store.peek(&id(key)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms() {
    conformance::run(&Scratch::new()).await;
}

#[tokio::test]
async fn records_outlive_reopening() {
    let scratch = Scratch::new();
    let store = scratch.store();
    handle(&store, "done").await.unwrap();
    let failed = acquire(&store, "failed").await.unwrap();
    store.release(&failed).await.unwrap();
    let running = acquire(&store, "running").await.unwrap();
    drop(store);
    // The last handle leaves one file, which holds everything.
    let names: Vec<_> = fs::read_dir(scratch.directory.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");

    let store = scratch.store();
    assert_eq!(state(&store, "done").await, KeyState::Done);
    assert_eq!(acquire(&store, "failed").await.unwrap().attempt().get(), 2);
    let found = state(&store, "running").await;
    assert!(matches!(found, KeyState::InFlight { .. }), "{found:?}");
    store.complete(&running, RETENTION).await.unwrap();
}

#[tokio::test]
async fn concurrent_calls_share_a_commit() {
    const CALLS: usize = 64;
    let scratch = Scratch::new();
    let store = scratch.store();
    let mut leases = Vec::new();
    for key in 0..CALLS {
        leases.push(acquire(&store, key).await.unwrap());
    }
    let before = commits(&scratch);

    // Nothing can be committed before all have asked.
    let other = scratch.sql();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let completions = leases.iter().map(|lease| store.complete(lease, RETENTION));
    let mut completions: Vec<_> = completions.map(Box::pin).collect();
    for completion in &mut completions {
        poll_fn(|cx| match completion.as_mut().poll(cx) {
            Poll::Pending => Poll::Ready(()),
            Poll::Ready(result) => panic!("{result:?} although another process has the file"),
        })
        .await;
    }
    other.execute_batch("COMMIT").unwrap();
    for completion in completions {
        completion.await.unwrap();
    }

    // One for those that were asked for at first, and one for the rest.
    let commits = commits(&scratch) - before;
    assert!((1..=2).contains(&commits), "{commits} commits");
}

/// How often something was committed, by the format of the write-ahead log.
fn commits(scratch: &Scratch) -> usize {
    const HEADER: usize = 32;
    const FRAME: usize = 24 + 4096;
    let log = fs::read(scratch.path().with_extension("db-wal")).unwrap();
    let salt = &log[16..24];
    log[HEADER..]
        .chunks_exact(FRAME)
        .take_while(|frame| frame[8..16] == *salt)
        .filter(|frame| frame[4..8] != [0; 4])
        .count()
}

#[tokio::test]
async fn replay_writes_nothing() {
    let scratch = Scratch::new();
    let store = scratch.store();
    handle(&store, 1).await.unwrap();
    acquire(&store, 2).await.unwrap();
    let before = commits(&scratch);
    for _ in 0..10 {
        let done = store.claim(&id(1), LEASE, RETENTION).await.unwrap();
        assert!(matches!(done, Claim::Done { same_body: true }), "{done:?}");
        let taken = store.claim(&id(2), LEASE, RETENTION).await.unwrap();
        assert!(matches!(taken, Claim::InFlight { .. }), "{taken:?}");
    }
    assert_eq!(commits(&scratch), before);
}

#[tokio::test]
async fn completed_key_takes_at_most_150_bytes() {
    const KEYS: u64 = 20_000;
    const TOGETHER: u64 = 250;
    let scratch = Scratch::new();
    let store = scratch.store();
    for first in (0..KEYS).step_by(TOGETHER as usize) {
        let mut pairs = JoinSet::new();
        for key in first..first + TOGETHER {
            let store = store.clone();
            pairs.spawn(async move {
                handle(&store, key).await.unwrap();
            });
        }
        pairs.join_all().await;
    }
    drop(store);
    let bytes = fs::metadata(scratch.path()).unwrap().len();
    assert!(bytes <= 150 * KEYS, "{} bytes a key", bytes / KEYS);
}

#[tokio::test]
async fn long_read_does_not_block_claims() {
    let scratch = Scratch::new();
    let store = scratch.store();
    acquire(&store, 1).await.unwrap();
    let reader = scratch.sql();
    reader.execute_batch("BEGIN").unwrap();
    let keys = |reader: &Connection| -> i64 {
        let count = "SELECT count(*) FROM keys";
        reader.query_row(count, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(keys(&reader), 1);
    handle(&store, 2).await.unwrap();
    assert_eq!(keys(&reader), 1);
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(keys(&reader), 2);
}

#[tokio::test]
async fn locked_file_is_unavailable_until_it_is_unlocked() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let other = scratch.sql();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.claim(&id(1), LEASE, RETENTION).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let told = chain(&error);
    assert!(told.contains("locked by another process"), "{told}");
    other.execute_batch("COMMIT").unwrap();
    acquire(&store, 1).await.unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn file_that_was_deleted_or_replaced_is_unavailable_until_it_is_back() {
    let scratch = Scratch::new();
    let store = scratch.store();
    handle(&store, 1).await.unwrap();
    let file = scratch.directory.path().join("webhooks.db");
    let away = scratch.directory.path().join("away.db");
    let refused = async || {
        let error = store.claim(&id(2), LEASE, RETENTION).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        let shown = chain(&error);
        assert!(shown.contains("deleted or replaced"), "{shown}");
        assert!(store.peek(&id(1)).await.is_err());
    };

    fs::rename(&file, &away).unwrap();
    refused().await;
    fs::copy(&away, &file).unwrap();
    refused().await;
    fs::rename(&away, &file).unwrap();
    assert_eq!(state(&store, 1).await, KeyState::Done);
    handle(&store, 2).await.unwrap();
}

/// What a person does to the files of a running process, what that process says, and whether a restart after `kill -9` finds
/// everything.
type Accident = (fn(&Scratch), &'static str, bool);

const ACCIDENTS: [Accident; 6] = [
    (
        |of| fs::remove_file(of.beside("-wal")).unwrap(),
        "nothing is lost",
        true,
    ),
    (
        |of| fs::remove_file(of.beside("-shm")).unwrap(),
        "nothing is lost",
        true,
    ),
    (
        |of| {
            for end in ["-wal", "-shm"] {
                fs::remove_file(of.beside(end)).unwrap();
            }
        },
        "nothing is lost",
        true,
    ),
    (
        |of| {
            fs::write(of.beside("-new"), "").unwrap();
            fs::rename(of.beside("-new"), of.beside("-wal")).unwrap();
        },
        "put it back if it was moved",
        false,
    ),
    (|of| of.truncate("-wal", 0), "was truncated", false),
    (|of| of.truncate("", 8192), "was truncated", false),
];

#[tokio::test]
async fn nothing_is_acknowledged_once_a_file_was_deleted_or_truncated() {
    const TEST: &str = "nothing_is_acknowledged_once_a_file_was_deleted_or_truncated";
    const KEYS: u64 = 100;
    if let Some(directory) = directory() {
        log_to(&directory);
        let store = SqliteStore::open(directory.join("webhooks.db")).unwrap();
        let held = acquire(&store, "held").await.unwrap();
        for key in 0..KEYS {
            handle(&store, key).await.unwrap();
        }
        say("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        for _ in 0..3 {
            match store.complete(&held, RETENTION).await {
                Ok(()) => say("acknowledged"),
                Err(SettleError::Store(error)) => say(chain(&error)),
                Err(error) => panic!("{error}"),
            }
        }
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }

    for (at, (accident, told, is_saved)) in ACCIDENTS.into_iter().enumerate() {
        let scratch = Scratch::new();
        // The file has more than its first pages, and the log has more.
        drop(scratch.store());
        let mut peer = Peer::start(Peer::command(
            module_path!(),
            TEST,
            scratch.directory.path(),
        ));
        assert_eq!(peer.hear(), "ready");
        accident(&scratch);
        peer.tell("go on");
        for _ in 0..3 {
            let error = peer.hear();
            assert!(error.contains(told), "{at}: {error}");
        }
        peer.kill();
        while peer.line().is_some() {}
        let log = fs::read_to_string(scratch.directory.path().join("log")).unwrap();
        let errors: Vec<_> = log.lines().filter(|line| line.contains("ERROR")).collect();
        assert_eq!(errors.len(), 1, "{at}: {log}");
        assert!(errors[0].contains(told), "{at}: {log}");
        assert!(errors[0].contains("webhooks.db"), "{at}: {log}");
        if is_saved {
            let store = scratch.store();
            for key in 0..KEYS {
                assert_eq!(state(&store, key).await, KeyState::Done, "{at}: {key}");
            }
            let held = state(&store, "held").await;
            assert!(matches!(held, KeyState::InFlight { .. }), "{at}: {held:?}");
        }
    }
}

#[tokio::test]
async fn files_that_sqlite_itself_truncates_are_used_on() {
    const MORE: &str = "
        WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 20000)
        INSERT INTO keys (key, body, attempt, done, lease_until, keep_until)
        SELECT randomblob(16), randomblob(16), 1, 1, 0, 9000000000000 FROM number";
    const TRUNCATE: &str = "PRAGMA wal_checkpoint(TRUNCATE)";
    let scratch = Scratch::new();
    let store = scratch.store();
    let size = |end| fs::metadata(scratch.beside(end)).unwrap().len();
    let other = scratch.sql();
    other
        .execute_batch("PRAGMA wal_autocheckpoint = 0")
        .unwrap();
    let sql = |sql| other.execute_batch(sql).unwrap();
    handle(&store, 1).await.unwrap();
    sql(MORE);
    handle(&store, 2).await.unwrap();
    assert!(size("-wal") > 1 << 20);
    sql(TRUNCATE);
    assert_eq!(size("-wal"), 0);
    handle(&store, 3).await.unwrap();

    let large = size("");
    sql("DELETE FROM keys WHERE keep_until = 9000000000000");
    handle(&store, 4).await.unwrap();
    sql("VACUUM");
    sql(TRUNCATE);
    assert!(size("") < large / 2);
    // Its new pages are in the log alone.
    sql(MORE);
    handle(&store, 5).await.unwrap();
    for key in 1..=5 {
        assert_eq!(state(&store, key).await, KeyState::Done);
    }
}

#[test]
fn new_file_is_private_to_its_user() {
    let scratch = Scratch::new();
    let _store = scratch.store();
    for name in ["webhooks.db", "webhooks.db-wal", "webhooks.db-shm"] {
        let file = fs::metadata(scratch.directory.path().join(name)).unwrap();
        assert_eq!(file.mode() & 0o777, 0o600, "{name}");
    }
}

#[test]
fn file_that_others_may_read_is_warned_of() {
    let scratch = Scratch::new();
    drop(scratch.store());
    let log = Log::capture(Level::WARN);
    for (mode, warnings) in [(0o600, 0), (0o640, 0), (0o644, 1), (0o602, 1)] {
        fs::set_permissions(scratch.path(), Permissions::from_mode(mode)).unwrap();
        log.clear();
        drop(scratch.store());
        let warned = log.count(Level::WARN, "chmod 600");
        assert_eq!(warned, warnings, "{mode:o}: {}", log.text());
    }
}

#[test]
fn path_is_not_read_as_a_uri() {
    let scratch = Scratch::new();
    for name in [":memory:", "file:webhooks.db?mode=memory"] {
        let path = scratch.directory.path().join(name);
        let _store = SqliteStore::open(&path).unwrap();
        assert!(path.is_file(), "{name}");
    }
    let told = chain(&SqliteStore::open("").unwrap_err());
    assert!(told.contains("cannot be created"), "{told}");
}

#[test]
fn missing_directory_is_explained() {
    let scratch = Scratch::new();
    let error = SqliteStore::open(scratch.path().join("webhooks.db")).unwrap_err();
    assert_eq!(error.kind(), OpenErrorKind::Unavailable);
    let told = chain(&error);
    assert!(told.contains("its directory must exist"), "{told}");
    assert!(told.contains("No such file or directory"), "{told}");
}

#[test]
fn directory_is_refused() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path()).unwrap();
    let told = scratch.refusal(OpenErrorKind::Unavailable);
    assert!(told.contains("it must be a file"), "{told}");
}

#[test]
fn file_that_is_not_a_database_is_left_unchanged() {
    let scratch = Scratch::new();
    let text = "a letter, and not a database at all\n".repeat(1000);
    fs::write(scratch.path(), &text).unwrap();
    let told = scratch.refusal(OpenErrorKind::Corrupt);
    assert!(told.contains("is not a SQLite database"), "{told}");
    assert_eq!(fs::read_to_string(scratch.path()).unwrap(), text);
}

#[test]
fn database_of_another_program_is_left_unchanged() {
    for claim in [
        "PRAGMA user_version = 1",
        "PRAGMA application_id = 7",
        "SELECT 1",
    ] {
        let scratch = Scratch::new();
        let other = scratch.sql();
        other
            .execute_batch("CREATE TABLE letters (text TEXT)")
            .unwrap();
        other.execute_batch(claim).unwrap();
        drop(other);
        let before = fs::read(scratch.path()).unwrap();

        let told = scratch.refusal(OpenErrorKind::Foreign);
        assert!(told.contains("of another program"), "{told}");
        assert!(fs::read(scratch.path()).unwrap() == before, "{claim}");
    }
}

/// A connection that may write would move the log that a crash has left into the file.
#[test]
fn log_of_another_program_is_left_unchanged() {
    let (other, scratch) = (Scratch::new(), Scratch::new());
    let sql = other.sql();
    let crashed = "
        PRAGMA application_id = 7;
        CREATE TABLE letters (text TEXT);
        PRAGMA journal_mode = WAL;
        INSERT INTO letters VALUES ('a')";
    sql.execute_batch(crashed).unwrap();
    for end in ["", "-wal"] {
        fs::copy(other.beside(end), scratch.beside(end)).unwrap();
    }
    let files = || {
        let files = fs::read_dir(scratch.directory.path()).unwrap();
        let files = files.map(|file| file.unwrap().path());
        files
            .map(|file| (file.clone(), fs::read(file).unwrap()))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let before = files();
    assert_eq!(before.len(), 2);
    let told = scratch.refusal(OpenErrorKind::Foreign);
    assert!(told.contains("of another program"), "{told}");
    assert!(files() == before, "{told}");
}

/// The file says which releases may use it.
#[tokio::test]
async fn newer_schema_is_used_or_refused() {
    let scratch = Scratch::new();
    handle(&scratch.store(), 1).await.unwrap();
    let upgrade = "
        PRAGMA user_version = 2;
        CREATE TABLE more (id INTEGER);
        ALTER TABLE keys ADD COLUMN more INTEGER NOT NULL DEFAULT 1";
    scratch.sql().execute_batch(upgrade).unwrap();
    let store = scratch.store();
    assert_eq!(state(&store, 1).await, KeyState::Done);
    handle(&store, 2).await.unwrap();

    // A process that has the file open goes on.
    let raise = "PRAGMA user_version = 3; UPDATE file SET lowest_release = '99.0.0'";
    scratch.sql().execute_batch(raise).unwrap();
    handle(&store, 3).await.unwrap();
    drop(store);
    let told = scratch.refusal(OpenErrorKind::NewerSchema);
    assert!(told.contains("version 3 of the schema"), "{told}");
    assert!(told.contains("only release 99.0.0"), "{told}");
    assert!(
        told.contains("use a later release, or another path"),
        "{told}"
    );
}

/// SQLite keeps the lock of a process that stands still.
#[tokio::test]
async fn a_migration_that_stands_still_delays_calls_for_a_limited_time() {
    const TEST: &str = "a_migration_that_stands_still_delays_calls_for_a_limited_time";
    if let Some(directory) = directory() {
        let sql = Connection::open(directory.join("webhooks.db")).unwrap();
        sql.execute_batch("BEGIN IMMEDIATE; ALTER TABLE keys ADD COLUMN more INTEGER")
            .unwrap();
        say(std::process::id());
        std::io::stdin().read_line(&mut String::new()).unwrap();
        sql.execute_batch("PRAGMA user_version = 2; COMMIT")
            .unwrap();
        return;
    }

    let scratch = Scratch::new();
    let store = scratch.store();
    handle(&store, 1).await.unwrap();
    let mut peer = Peer::start(Peer::command(
        module_path!(),
        TEST,
        scratch.directory.path(),
    ));
    let peer_id = Pid::from_raw(peer.hear().parse().unwrap());
    kill(peer_id, Signal::SIGSTOP).unwrap();
    let began = Instant::now();
    let error = acquire(&store, 2).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(10), "{error}");
    assert_eq!(state(&store, 1).await, KeyState::Done);

    kill(peer_id, Signal::SIGCONT).unwrap();
    peer.tell("go on");
    peer.end();
    handle(&store, 2).await.unwrap();
    drop(store);
    assert_eq!(state(&scratch.store(), 2).await, KeyState::Done);
}

/// Damage that opening meets is refused with the remedy, and damage that it does not meet is reported by the calls that
/// do. The file is not changed by a refusal.
#[tokio::test]
async fn damaged_pages_are_reported() {
    let sound = Scratch::new();
    let store = sound.store();
    for key in 0..100 {
        handle(&store, key).await.unwrap();
    }
    drop(store);
    let sound = fs::read(sound.path()).unwrap();
    let mut refused = 0;
    for page in 0..sound.len() / 4096 {
        let scratch = Scratch::new();
        let mut bytes = sound.clone();
        // Of the first page, the part behind the file's header.
        let from = page * 4096 + if page == 0 { 100 } else { 0 };
        bytes[from..(page + 1) * 4096].fill(0xff);
        fs::write(scratch.path(), &bytes).unwrap();

        let error = match SqliteStore::open(scratch.path()) {
            Ok(store) => match store.peek(&id(1)).await {
                Ok(state) => {
                    assert_eq!(state, KeyState::Done, "page {page}");
                    continue;
                }
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "page {page}");
                    chain(&error)
                }
            },
            Err(error) => {
                refused += 1;
                assert_eq!(fs::read(scratch.path()).unwrap(), bytes, "page {page}");
                chain(&error)
            }
        };
        assert!(error.contains("restore a copy"), "page {page}: {error}");
    }
    assert!(refused > 0, "no damage is in the way of opening");
}

#[test]
fn many_processes_create_a_file_at_once() {
    const TEST: &str = "many_processes_create_a_file_at_once";
    const PROCESSES: usize = 8;
    if let Some(directory) = directory() {
        say("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let store = SqliteStore::open(directory.join("webhooks.db"));
        say(store.map_or_else(|error| chain(&error), |_| "open".to_owned()));
        return;
    }

    let scratch = Scratch::new();
    let mut peers: Vec<_> = (0..PROCESSES)
        .map(|_| {
            Peer::start(Peer::command(
                module_path!(),
                TEST,
                scratch.directory.path(),
            ))
        })
        .collect();
    for peer in &mut peers {
        assert_eq!(peer.hear(), "ready");
    }
    for peer in &mut peers {
        peer.tell("go");
    }
    for mut peer in peers {
        assert_eq!(peer.hear(), "open");
        peer.end();
    }
    let version = "PRAGMA user_version";
    let version = scratch.sql().query_row(version, [], |row| row.get(0));
    assert_eq!(version, Ok(1));
}

#[test]
fn read_only_file_is_explained() {
    const TEST: &str = "read_only_file_is_explained";
    if let Some(scratch) = directory() {
        let open = || SqliteStore::open(scratch.join("webhooks.db"));
        say(chain(&open().unwrap_err()));
        std::io::stdin().read_line(&mut String::new()).unwrap();
        say(open().map_or_else(|error| chain(&error), |_| "open".to_owned()));
        return;
    }
    for (file, directory) in [(0o444, 0o755), (0o644, 0o555)] {
        let scratch = Scratch::new();
        drop(scratch.store());
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        mode(&scratch.path(), file);
        mode(scratch.directory.path(), directory);
        let mut command = Peer::command(module_path!(), TEST, scratch.directory.path());
        if is_root() {
            // Root may write anything.
            chown(scratch.path(), Some(NOBODY), Some(NOBODY)).unwrap();
            chown(scratch.directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut peer = Peer::start(command);
        let told = peer.hear();
        assert!(told.contains("this user"), "{told}");
        assert!(told.contains("write") || told.contains("create"), "{told}");
        // No file is left beside it that this user could not write either.
        let names: Vec<_> = fs::read_dir(scratch.directory.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        mode(scratch.directory.path(), 0o755);
        mode(&scratch.path(), 0o600);
        peer.tell("again");
        assert_eq!(peer.hear(), "open");
        peer.end();
    }
}

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_claims_from_several_processes_wins() {
    const TEST: &str = "one_of_many_claims_from_several_processes_wins";
    const PROCESSES: usize = 4;
    const CLAIMS: usize = 16;
    if let Some(directory) = directory() {
        let store = SqliteStore::open(directory.join("webhooks.db")).unwrap();
        say("open");
        let mut line = String::new();
        while std::io::stdin().read_line(&mut line).unwrap() > 0 {
            let key = id(line.trim());
            line.clear();
            let mut claims = JoinSet::new();
            for _ in 0..CLAIMS {
                let store = store.clone();
                claims.spawn(async move { store.claim(&key, LEASE, RETENTION).await.unwrap() });
            }
            let claims = claims.join_all().await;
            let won = claims
                .iter()
                .filter(|claim| matches!(claim, Claim::Acquired(_)));
            say(won.count());
        }
        return;
    }

    let scratch = Scratch::new();
    let mut peers: Vec<_> = (0..PROCESSES)
        .map(|_| {
            Peer::start(Peer::command(
                module_path!(),
                TEST,
                scratch.directory.path(),
            ))
        })
        .collect();
    for peer in &mut peers {
        assert_eq!(peer.hear(), "open");
    }
    for round in 0..20 {
        for peer in &mut peers {
            peer.tell(round);
        }
        let won: Vec<usize> = peers
            .iter_mut()
            .map(|peer| peer.hear().parse().unwrap())
            .collect();
        assert_eq!(won.iter().sum::<usize>(), 1, "round {round}: {won:?}");
    }
    for peer in peers {
        peer.end();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_process_does_not_starve_another() {
    const TEST: &str = "busy_process_does_not_starve_another";
    if let Some(directory) = directory() {
        let store = SqliteStore::open(directory.join("webhooks.db")).unwrap();
        let mut callers = JoinSet::new();
        for caller in 0..64 {
            let store = store.clone();
            callers.spawn(async move {
                for at in 0_u64.. {
                    handle(&store, format!("{caller} {at}")).await.unwrap();
                }
            });
        }
        say("busy");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        callers.shutdown().await;
        return;
    }

    let scratch = Scratch::new();
    let store = scratch.store();
    let mut peer = Peer::start(Peer::command(
        module_path!(),
        TEST,
        scratch.directory.path(),
    ));
    assert_eq!(peer.hear(), "busy");
    // One of 60 calls may meet a machine that stands still.
    let mut tries = 1;
    for key in 0..30 {
        let lease = at_second_try(&mut tries, async || Ok(acquire(&store, key).await?)).await;
        at_second_try(&mut tries, async || store.complete(&lease, RETENTION).await).await;
    }
    peer.tell("enough");
    peer.end();
}

#[tokio::test]
async fn answered_calls_outlive_a_killed_process() {
    const TEST: &str = "answered_calls_outlive_a_killed_process";
    if let Some(directory) = directory() {
        let store = SqliteStore::open(directory.join("webhooks.db")).unwrap();
        let mut callers = JoinSet::new();
        for caller in 0..16 {
            let store = store.clone();
            callers.spawn(async move {
                for at in 0_u64.. {
                    let key = format!("{caller} {at}");
                    let lease = acquire(&store, &key).await.unwrap();
                    say(format!("claimed/{key}"));
                    store.complete(&lease, RETENTION).await.unwrap();
                    say(format!("done/{key}"));
                }
            });
        }
        callers.join_all().await;
        return;
    }

    let scratch = Scratch::new();
    for round in 0..3 {
        let mut peer = Peer::start(Peer::command(
            module_path!(),
            TEST,
            scratch.directory.path(),
        ));
        let mut told = HashMap::new();
        let mut hear = |line: String| {
            let (what, key) = line.split_once('/').unwrap();
            told.insert(key.to_owned(), what == "done");
        };
        for _ in 0..500 {
            hear(peer.hear());
        }
        peer.kill();
        while let Some(line) = peer.line() {
            hear(line);
        }

        let store = scratch.store();
        for (key, done) in &told {
            let found = state(&store, key).await;
            match done {
                true => assert_eq!(found, KeyState::Done, "{key} in round {round}"),
                // Its completion may have been on its way.
                false => assert_ne!(found, KeyState::Free, "{key} in round {round}"),
            }
        }
        assert!(told.values().any(|done| *done), "nothing was done");
        drop(store);
        let sql = scratch.sql();
        let check = "PRAGMA integrity_check";
        let sound: String = sql.query_row(check, [], |row| row.get(0)).unwrap();
        assert_eq!(sound, "ok");
        sql.execute_batch("DELETE FROM keys").unwrap();
    }
}

#[tokio::test]
async fn work_resumes_when_the_disk_has_space_again() {
    const TEST: &str = "work_resumes_when_the_disk_has_space_again";
    if let Some(directory) = directory() {
        // A write beyond the limit fails then, instead of ending the process. The store's threads
        // inherit that.
        SigSet::from(Signal::SIGXFSZ).thread_block().unwrap();
        let (_, most) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        let room = |bytes| setrlimit(Resource::RLIMIT_FSIZE, bytes, most).unwrap();
        let store = SqliteStore::open(directory.join("webhooks.db")).unwrap();
        let held = acquire(&store, "held").await.unwrap();

        room(256 * 1024);
        let mut done = 0;
        let error = loop {
            match handle(&store, done).await {
                Ok(()) => done += 1,
                Err(error) => break error,
            }
            assert!(done < 100_000, "the disk is never full");
        };
        assert!(done > 0, "nothing was done");
        let SettleError::Store(error) = error else {
            panic!("{error}")
        };
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(
            chain(&error).contains("cannot be read or written"),
            "{error:?}"
        );

        // Not even what a checkpoint has set free.
        room(0);
        let refused = store.complete(&held, RETENTION).await;
        assert!(matches!(refused, Err(SettleError::Store(_))), "{refused:?}");
        acquire(&store, "new").await.unwrap_err();
        assert!(matches!(
            state(&store, "held").await,
            KeyState::InFlight { .. }
        ));
        for key in 0..done {
            assert_eq!(state(&store, key).await, KeyState::Done);
        }

        room(most);
        store.complete(&held, RETENTION).await.unwrap();
        let new = acquire(&store, "new").await.unwrap();
        assert_eq!(new.attempt().get(), 1);
        say(done);
        return;
    }

    let scratch = Scratch::new();
    let mut peer = Peer::start(Peer::command(
        module_path!(),
        TEST,
        scratch.directory.path(),
    ));
    let done: u64 = peer.hear().parse().unwrap();
    peer.end();
    let store = scratch.store();
    assert_eq!(state(&store, "held").await, KeyState::Done);
    for key in 0..done {
        assert_eq!(state(&store, key).await, KeyState::Done);
    }
}
