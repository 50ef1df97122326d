//! The file: how it is opened, and what makes it ours.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags, Transaction, TransactionBehavior};

use super::error::Reason;
use super::keys;

/// Tells our files from those of other programs: "wbhk".
const APPLICATION_ID: i64 = i64::from_be_bytes(*b"\0\0\0\0wbhk");

const VERSION: i64 = 1;

/// How often a connection asks for a lock that another one holds.
const POLL: Duration = Duration::from_micros(250);

/// How long a connection waits for another process, which is less than callers wait for it.
const PATIENCE: Duration = Duration::from_millis(1500);

const PATIENCE_ASIDE: Duration = Duration::from_millis(200);

/// How long opening waits for other processes that open the same file, or recover it after a crash.
const PATIENCE_TO_OPEN: Duration = Duration::from_secs(10);

/// Opens the file, and makes it ours if it is new.
pub(super) fn open(path: &Path) -> Result<Connection, Reason> {
    // One at a time: a process that closes a file which it opened by other means takes away the locks
    // of its own connections to it.
    static OPENING: Mutex<()> = Mutex::new(());
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);

    create(path).map_err(Reason::Create)?;
    let give_up = Instant::now() + PATIENCE_TO_OPEN;
    loop {
        // Not everything waits for locks by itself.
        match connect(path, PATIENCE).and_then(own) {
            Err(Reason::Sqlite(error)) if is_busy(&error) && Instant::now() < give_up => {
                thread::sleep(POLL);
            }
            result => return result,
        }
    }
}

/// Opens the file once more, for what must not keep others waiting.
pub(super) fn connect_aside(path: &Path) -> Result<Connection, Reason> {
    let db = connect(path, PATIENCE_ASIDE)?;
    // A connection knows of the write-ahead log once it has read something.
    is_new(&db.unchecked_transaction()?)?;
    Ok(db)
}

fn connect(path: &Path, patience: Duration) -> Result<Connection, Reason> {
    // Without `SQLITE_OPEN_URI`: a path is a path.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags)?;
    // macOS leaves in the disk's cache what was only synchronized. Others do not know this.
    db.execute_batch("PRAGMA fullfsync = ON")?;
    let mut began = Instant::now();
    db.busy_handler(Some(move |tries| {
        if tries == 0 {
            began = Instant::now();
        }
        let goes_on = began.elapsed() < patience;
        if goes_on {
            thread::sleep(POLL);
        }
        goes_on
    }))?;
    Ok(db)
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

/// Creates the file for this user alone, where SQLite would let everybody read it.
fn create(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn own(mut db: Connection) -> Result<Connection, Reason> {
    // Before anything is changed.
    is_new(&db.transaction()?)?;
    // SQLite is content with reading, until something is written.
    if db.is_readonly(MAIN_DB)? {
        return Err(Reason::ReadOnly);
    }

    let journal: String = db.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if journal != "wal" {
        return Err(Reason::NoWal { journal });
    }
    db.execute_batch("PRAGMA synchronous = FULL")?;
    // Another process may have been faster, so it is looked at again.
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if is_new(&transaction)? {
        set_up(&transaction)?;
    }
    transaction.commit()?;
    Ok(db)
}

/// Whether nobody has used the file yet. A file that is not ours is refused, and one that another process
/// makes its own meanwhile is seen before or after that.
fn is_new(db: &Transaction<'_>) -> Result<bool, Reason> {
    let number = |sql| db.query_row(sql, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    match (application, version) {
        (APPLICATION_ID, VERSION) => Ok(false),
        (APPLICATION_ID, version) if version > VERSION => Err(Reason::Newer { version }),
        (0, 0) if tables == 0 => Ok(true),
        _ => Err(Reason::Foreign),
    }
}

fn set_up(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(keys::SCHEMA)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)
}
