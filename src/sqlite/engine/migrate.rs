//! Which program and release a file belongs to, and how one of an earlier release is upgraded.
//!
//! All steps are done in one transaction with the new version's number: a crash leaves the file as it was,
//! and of several processes that open it at once, one upgrades it. A process of an earlier release may have
//! the file open meanwhile, and continues with its own statements, compiled again. So a migration keeps every
//! table and column that those name, and gives new columns a default.

use rusqlite::Transaction;

use super::Format;
use super::error::Reason;

/// Marks our files among those of other programs: "wbhk".
const APPLICATION_ID: i64 = i64::from_be_bytes(*b"\0\0\0\0wbhk");

/// The version of the file's schema, which is 0 for a file that is still empty.
///
/// Refuses files of other programs and of later releases. A file that another process sets up meanwhile is
/// seen before or after that.
pub(super) fn version(db: &Transaction<'_>, format: &Format) -> Result<usize, Reason> {
    let number = |sql| db.query_row(sql, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    let newest = format.migrations.len();
    match (application, usize::try_from(version)) {
        (APPLICATION_ID, Ok(version)) if (1..=newest).contains(&version) => Ok(version),
        (APPLICATION_ID, Ok(version)) if version > newest => {
            Err(Reason::NewerSchema { version, newest })
        }
        (0, Ok(0)) if tables == 0 => Ok(0),
        _ => Err(Reason::Foreign),
    }
}

/// Brings the schema up to date, and returns the version that it had.
pub(super) fn migrate(db: &Transaction<'_>, format: &Format) -> Result<usize, Reason> {
    let version = version(db, format)?;
    let steps = &format.migrations[version..];
    for step in steps {
        db.execute_batch(step)?;
    }
    if !steps.is_empty() {
        db.pragma_update(None, "application_id", APPLICATION_ID)?;
        let newest = format.migrations.len() as i64;
        db.pragma_update(None, "user_version", newest)?;
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rusqlite::{Connection, TransactionBehavior};

    use super::super::file;
    use super::super::testing::FORMAT;
    use super::*;

    const NEXT: Format = Format {
        migrations: &[
            FORMAT.migrations[0],
            "CREATE TABLE more (id INTEGER) STRICT",
        ],
        ..FORMAT
    };

    fn tables(db: &Connection) -> i64 {
        let tables = "SELECT count(*) FROM sqlite_schema";
        db.query_row(tables, [], |row| row.get(0)).unwrap()
    }

    fn open(path: &Path, format: &Format) -> Connection {
        file::open(path, format).unwrap()
    }

    #[test]
    fn a_crash_during_an_upgrade_leaves_the_file_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("webhooks.db");
        let mut db = open(&path, &FORMAT);
        let upgrade = db
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .unwrap();
        assert_eq!(migrate(&upgrade, &NEXT).unwrap(), 1);
        assert_eq!(tables(&upgrade), 2);
        // All of it is in the log, but for the commit.
        upgrade.cache_flush().unwrap();

        let crashed = directory.path().join("crashed.db");
        for file in ["", "-wal"] {
            let name = |path: &Path| format!("{}{file}", path.display());
            fs::copy(name(&path), name(&crashed)).unwrap();
        }
        assert!(
            fs::metadata(directory.path().join("crashed.db-wal"))
                .unwrap()
                .len()
                > 0
        );
        assert_eq!(tables(&open(&crashed, &FORMAT)), 1);
        assert_eq!(tables(&open(&crashed, &NEXT)), 2);
        let Err(Reason::NewerSchema { version, newest }) = file::open(&crashed, &FORMAT) else {
            panic!("a file of version 2 was opened");
        };
        assert_eq!((version, newest), (2, 1));
    }

    #[test]
    fn a_step_that_fails_leaves_the_file_as_it_was() {
        const BROKEN: Format = Format {
            migrations: &[
                FORMAT.migrations[0],
                "CREATE TABLE more (id INTEGER) STRICT; INSERT INTO nowhere VALUES (1);",
            ],
            ..FORMAT
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("webhooks.db");
        drop(open(&path, &FORMAT));
        assert!(matches!(file::open(&path, &BROKEN), Err(Reason::Sqlite(_))));
        assert_eq!(tables(&open(&path, &FORMAT)), 1);
    }
}
