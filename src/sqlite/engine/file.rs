//! How the file is created and opened.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags};

use super::error::Reason;
use super::format::Format;
use super::migrate;
use crate::lock::lock;
use crate::private::is_open_to_others;

/// How often a connection asks for a lock that another one holds.
const POLL: Duration = Duration::from_micros(250);

/// How long a connection waits for another process, which is less than callers wait for it.
const PATIENCE: Duration = Duration::from_millis(1500);

const PATIENCE_ASIDE: Duration = Duration::from_millis(200);

/// How long opening waits for other processes that open the same file, or recover it after a crash.
const PATIENCE_TO_OPEN: Duration = Duration::from_secs(10);

/// Opens the file, sets it up if it is new, and upgrades it if it is old.
pub(super) fn open(path: &Path, format: &Format) -> Result<Connection, Reason> {
    // One at a time: a process that closes a file which it opened by other means takes away the locks
    // of its own connections to it.
    static OPENING: Mutex<()> = Mutex::new(());
    let _opening = lock(&OPENING);

    create(path).map_err(Reason::Create)?;
    look_at_header(path)?;
    let give_up = Instant::now() + PATIENCE_TO_OPEN;
    loop {
        // Some steps fail on a lock without calling the busy handler.
        match connect(path, wait).and_then(|db| own(db, path, format)) {
            Err(Reason::Sqlite(error)) if is_busy(&error) && Instant::now() < give_up => {
                thread::sleep(POLL);
            }
            Ok(db) => {
                warn_of_others(path);
                return Ok(db);
            }
            refused => return refused,
        }
    }
}

/// Only its owner can read a file that this library has created, but others can read a copy by `sqlite3`.
fn warn_of_others(path: &Path) {
    if is_open_to_others(path) {
        tracing::warn!(
            file = %path.display(),
            "other users may read or write the SQLite file: `chmod 600` it, and the files `-wal` and `-shm` beside it"
        );
    }
}

/// Refuses a file of another program before SQLite changes anything: any connection moves the log that a crash has left
/// into the file, even if it only reads, unless the file is immutable for it.
///
/// Not by other means than SQLite, see [`open`]. What cannot be read is left to the next connection.
fn look_at_header(path: &Path) -> Result<(), Reason> {
    let mut uri = "file:".to_owned();
    if cfg!(windows) {
        uri.push_str("///");
    }
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                uri.push(char::from(*byte));
            }
            b'\\' | b':' if cfg!(windows) => uri.push(if *byte == b':' { ':' } else { '/' }),
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    let looked = Connection::open_with_flags(uri, flags).map_err(Reason::from);
    match looked.and_then(|db| migrate::check_header(&db)) {
        Err(Reason::Sqlite(_)) | Ok(()) => Ok(()),
        refused => refused,
    }
}

/// Opens the file once more, for work that must not keep others waiting.
pub(super) fn connect_aside(path: &Path, format: &Format) -> Result<Connection, Reason> {
    let db = connect(path, wait_briefly)?;
    // A connection knows of the write-ahead log once it has read something.
    migrate::version(&db.unchecked_transaction()?, format)?;
    Ok(db)
}

/// Opens the file once more, for work that changes nothing.
pub(super) fn connect_to_read(path: &Path) -> Result<Connection, Reason> {
    let db = connect(path, wait)?;
    // As above. A later release may have upgraded the file since the writer opened it, which goes on, too.
    db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    db.execute_batch("PRAGMA query_only = ON")?;
    Ok(db)
}

#[allow(unused_mut, reason = "rusqlite before 0.41 sets handlers through `&`")]
fn connect(path: &Path, busy: fn(i32) -> bool) -> Result<Connection, Reason> {
    // Without `SQLITE_OPEN_URI`: a path is a path.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags)?;
    // SQLite is content with reading, until something is written. It would leave files beside it that cannot be written
    // either, even when the file itself can be again.
    if db.is_readonly(MAIN_DB)? {
        return Err(Reason::ReadOnly);
    }
    // Else SQLite plans by the values that are bound, and compiles a statement again for the next ones.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // macOS leaves in the disk's cache what was only synchronized. Others do not know this.
    db.execute_batch("PRAGMA fullfsync = ON")?;
    db.busy_handler(Some(busy))?;
    Ok(db)
}

fn wait(tries: i32) -> bool {
    wait_up_to(PATIENCE, tries)
}

fn wait_briefly(tries: i32) -> bool {
    wait_up_to(PATIENCE_ASIDE, tries)
}

/// Waits before the lock is asked for again, unless patience is at its end.
///
/// The state is the thread's own, as rusqlite before 0.41 takes plain functions only.
fn wait_up_to(patience: Duration, tries: i32) -> bool {
    thread_local! {
        static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    if tries == 0 {
        BEGAN.set(None);
    }
    let began = BEGAN.get().unwrap_or_else(Instant::now);
    BEGAN.set(Some(began));
    let goes_on = began.elapsed() < patience;
    if goes_on {
        thread::sleep(POLL);
    }
    goes_on
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

fn own(mut db: Connection, path: &Path, format: &Format) -> Result<Connection, Reason> {
    // Before anything is changed.
    migrate::version(&db.transaction()?, format)?;
    let journal: String = db.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if journal != "wal" {
        return Err(Reason::NoWal { journal });
    }
    db.execute_batch("PRAGMA synchronous = FULL")?;
    let before = migrate::upgrade(&mut db, format)?;
    let purpose = &format.purpose;
    db.execute_batch(purpose.begin)?;
    if !db.query_row(purpose.is_met, [], |row| row.get(0))? {
        return Err(Reason::Purpose(purpose.refusal));
    }
    let now = format.migrations.len();
    if (1..now).contains(&before) {
        tracing::info!(
            file = %path.display(),
            before,
            now,
            "the schema of the SQLite file was upgraded"
        );
    }
    Ok(db)
}
