//! Notices when the file, or one of the two beside it, is deleted, replaced or truncated while it is open.
//!
//! SQLite keeps writing to a file that was deleted, of which nothing would be left after a restart. So the files are
//! looked at before and after each commit, by their paths: a process that opens and closes the file by other means than
//! SQLite takes away the locks of its own connections. Windows does not delete a file that is open.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::checkpoint::{self, MEASURE};
use super::error::Reason;

/// The file that a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    #[cfg(unix)]
    device_and_inode: (u64, u64),
}

impl FileId {
    /// With its size in bytes.
    #[cfg(unix)]
    fn and_size(path: &Path) -> io::Result<(Self, u64)> {
        use std::os::unix::fs::MetadataExt;

        let metadata = path.metadata()?;
        let id = Self {
            device_and_inode: (metadata.dev(), metadata.ino()),
        };
        Ok((id, metadata.len()))
    }

    #[cfg(not(unix))]
    fn and_size(path: &Path) -> io::Result<(Self, u64)> {
        Ok((Self {}, path.metadata()?.len()))
    }

    /// Whether the path leads to another file, or to none. A path that cannot be looked at just now still leads there.
    pub(super) fn was_replaced(self, path: &Path) -> bool {
        match Self::and_size(path) {
            Ok((other, _)) => self != other,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// The three files as they were seen last.
pub(super) struct Watch {
    file: Stamp,
    log: Stamp,
    index: Stamp,
    /// Changes when the file is vacuumed, which may truncate it.
    schema: i64,
    /// If a file is gone, whether the rest has everything that was acknowledged.
    saved: Option<bool>,
    is_truncated: bool,
}

struct Stamp {
    path: PathBuf,
    id: FileId,
    size: u64,
}

enum Found {
    Same,
    Smaller,
    Other,
}

impl Stamp {
    fn first(path: &Path, end: &str) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        let path = PathBuf::from(name);
        let (id, size) = FileId::and_size(&path)?;
        Ok(Self { path, id, size })
    }

    fn again(&mut self) -> Found {
        match FileId::and_size(&self.path) {
            Ok((id, _)) if id != self.id => Found::Other,
            Ok((_, size)) if size < self.size => {
                self.size = size;
                Found::Smaller
            }
            Ok((_, size)) => {
                self.size = size;
                Found::Same
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Other,
            Err(_) => Found::Same,
        }
    }
}

impl Watch {
    /// Looks at the files of a connection that has read something, so that they are not deleted as unused any more.
    pub(super) fn start(path: &Path, db: &Connection) -> Result<Self, Reason> {
        let seen = |end| Stamp::first(path, end).map_err(Reason::Create);
        Ok(Self {
            file: seen("")?,
            log: seen("-wal")?,
            index: seen("-shm")?,
            schema: number(db, SCHEMA)?,
            saved: None,
            is_truncated: false,
        })
    }

    pub(super) fn file(&self) -> FileId {
        self.file.id
    }

    /// Refuses to go on with files that were deleted, replaced or truncated. The connection is not in a transaction.
    pub(super) fn check(&mut self, db: &Connection) -> Result<(), Reason> {
        let (file, log, index) = (self.file.again(), self.log.again(), self.index.again());
        self.is_truncated |= matches!(file, Found::Smaller) && !self.is_vacuumed(db)
            || matches!(log, Found::Smaller) && !self.has_whole_log(db);
        if self.is_truncated {
            // It would fill the gap in the file with zeros.
            let _ = db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            return Err(Reason::Truncated);
        }
        if matches!(file, Found::Other) {
            // Elsewhere, it is without its log.
            self.saved.get_or_insert_with(|| save(db, || true));
            return Err(Reason::Replaced);
        }
        if matches!(log, Found::Other) || matches!(index, Found::Other) {
            // A process that uses another log would not notice that the file is changed.
            let may = || !self.log.path.exists();
            let is_whole = matches!(log, Found::Same);
            let saved = is_whole || *self.saved.get_or_insert_with(|| save(db, may));
            return Err(Reason::LogReplaced { saved });
        }
        self.saved = None;
        Ok(())
    }

    /// Whether the file is smaller by the means of SQLite. After a vacuum, new pages may be in the log alone.
    fn is_vacuumed(&mut self, db: &Connection) -> bool {
        let is_vacuumed = || -> rusqlite::Result<bool> {
            let bytes = number(db, "PRAGMA page_count")? * number(db, PAGE_SIZE)?;
            let has_all = u64::try_from(bytes).is_ok_and(|bytes| bytes <= self.file.size);
            Ok(has_all || number(db, SCHEMA)? != self.schema)
        };
        let is_vacuumed = is_vacuumed().unwrap_or(false);
        self.schema = number(db, SCHEMA).unwrap_or(self.schema);
        is_vacuumed
    }

    /// Whether the log has all frames that it should have. One that starts over may be truncated, by SQLite's means.
    fn has_whole_log(&mut self, db: &Connection) -> bool {
        const HEADER: i64 = 32;
        const HEADER_OF_FRAME: i64 = 24;
        /// Another process may truncate it, and write to it, in between.
        const LOOKS: usize = 5;

        let needed = || -> rusqlite::Result<i64> {
            let pages: i64 = db.query_row(MEASURE, [], |row| row.get(1))?;
            let page = number(db, PAGE_SIZE)?;
            Ok(match pages {
                ..1 => 0,
                pages => HEADER + pages * (HEADER_OF_FRAME + page),
            })
        };
        (0..LOOKS).any(|_| {
            let needed = needed().unwrap_or(i64::MAX);
            self.log.again();
            u64::try_from(needed).is_ok_and(|needed| needed <= self.log.size)
        })
    }
}

const SCHEMA: &str = "PRAGMA schema_version";
const PAGE_SIZE: &str = "PRAGMA page_size";

fn number(db: &Connection, sql: &str) -> rusqlite::Result<i64> {
    db.query_row(sql, [], |row| row.get(0))
}

/// Moves all that the log holds into the file, and returns whether that was possible.
fn save(db: &Connection, may: impl Fn() -> bool) -> bool {
    const TRIES: usize = 50;
    /// Another thread may be moving the log, or reading from it.
    const TRY_AGAIN: Duration = Duration::from_millis(5);

    for _ in 0..TRIES {
        if !may() {
            return false;
        }
        match checkpoint::pass(db, checkpoint::PASSIVE) {
            Ok(Some(log)) if log.is_moved() => return true,
            _ => thread::sleep(TRY_AGAIN),
        }
    }
    false
}
