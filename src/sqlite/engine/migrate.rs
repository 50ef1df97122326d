//! Which program and release a file belongs to, and how one of an earlier release is upgraded, in a transaction with the
//! lock of the writer.
//!
//! All steps are done in one transaction with the new version's number: a crash leaves the file as it was,
//! and of several processes that open it at once, one upgrades it. A process of an earlier release that has the file
//! open continues with its own statements, compiled again. So a migration keeps every table and column that these name,
//! and gives new columns a default.
//!
//! An earlier release may also open the upgraded file, as when a deploy is rolled back, if the file says so. A migration
//! that adds what earlier releases need not know leaves the lowest release as it is. Another one raises it.

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior};

use super::error::Reason;
use super::format::Format;

/// Marks our files among those of other programs: "twhk".
const APPLICATION_ID: i64 = i64::from_be_bytes(*b"\0\0\0\0twhk");

fn number(db: &Connection, sql: &str) -> rusqlite::Result<i64> {
    db.query_row(sql, [], |row| row.get(0))
}

/// Refuses files whose header says that they are not ours.
pub(super) fn check_header(db: &Connection) -> Result<(), Reason> {
    match number(db, "PRAGMA application_id")? {
        0 | APPLICATION_ID => Ok(()),
        _ => Err(Reason::Foreign),
    }
}

/// The version of the file's schema, which is 0 for a file that is still empty.
///
/// Refuses files of other programs, and files that this release may not use. If another process sets up the file, it is
/// seen before or after that.
pub(super) fn version(db: &Transaction<'_>, format: &Format) -> Result<usize, Reason> {
    check_header(db)?;
    let is_ours = number(db, "PRAGMA application_id")? == APPLICATION_ID;
    let version = usize::try_from(number(db, "PRAGMA user_version")?);
    let newest = format.migrations.len();
    match (is_ours, version) {
        (true, Ok(version)) if (1..=newest).contains(&version) => Ok(version),
        (true, Ok(version)) if version > newest => {
            let lowest = lowest_release(db, format)?;
            match lowest.as_deref().and_then(release) {
                Some(lowest) if Some(lowest) <= release(env!("CARGO_PKG_VERSION")) => Ok(version),
                _ => Err(Reason::NewerSchema { version, lowest }),
            }
        }
        (false, Ok(0)) if number(db, "SELECT count(*) FROM sqlite_schema")? == 0 => Ok(0),
        _ => Err(Reason::Foreign),
    }
}

/// The lowest release that may use the file, unless a later one keeps it elsewhere.
fn lowest_release(db: &Connection, format: &Format) -> Result<Option<String>, Reason> {
    let lowest = db.query_row(format.lowest_release, [], |row| row.get(0));
    match lowest.optional() {
        // There is no such table or column.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => Ok(None),
        lowest => Ok(lowest?),
    }
}

/// Major, minor and patch, without what follows them.
fn release(version: &str) -> Option<[u64; 3]> {
    let (version, _) = version.split_once(['-', '+']).unwrap_or((version, ""));
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let release = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(release)
}

/// Brings the schema up to date, and returns the version that it had. Another process may have been faster, so the version
/// is read under the lock.
pub(super) fn upgrade(db: &mut Connection, format: &Format) -> Result<usize, Reason> {
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let before = migrate(&transaction, format)?;
    transaction.commit()?;
    Ok(before)
}

fn migrate(db: &Transaction<'_>, format: &Format) -> Result<usize, Reason> {
    let version = version(db, format)?;
    let newest = format.migrations.len();
    if version < newest {
        for step in &format.migrations[version..] {
            db.execute_batch(step)?;
        }
        db.pragma_update(None, "application_id", APPLICATION_ID)?;
        db.pragma_update(None, "user_version", newest as i64)?;
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::super::file;
    use super::super::testing::FORMAT;
    use super::*;

    /// Version 2, which releases that know only version 1 may use.
    const NEXT: Format = Format {
        migrations: &[
            FORMAT.migrations[0],
            "CREATE TABLE more (id INTEGER) STRICT;
             ALTER TABLE file ADD COLUMN note TEXT NOT NULL DEFAULT ''",
        ],
        ..FORMAT
    };

    /// Version 3, which they may not use.
    const LATER: Format = Format {
        migrations: &[
            NEXT.migrations[0],
            NEXT.migrations[1],
            "UPDATE file SET lowest_release = '99.0.0'",
        ],
        ..FORMAT
    };

    fn tables(db: &Connection) -> i64 {
        number(db, "SELECT count(*) FROM sqlite_schema").unwrap()
    }

    fn user_version(db: &Connection) -> i64 {
        number(db, "PRAGMA user_version").unwrap()
    }

    fn open(path: &Path, format: &Format) -> Connection {
        file::open(path, format).unwrap()
    }

    fn immediate(db: &mut Connection) -> Transaction<'_> {
        db.transaction_with_behavior(TransactionBehavior::Immediate)
            .unwrap()
    }

    #[test]
    fn a_file_is_upgraded_beside_a_process_that_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("webhooks.db");
        let first = open(&path, &FORMAT);
        let mut set = first.prepare(FORMAT.set_highest_time).unwrap();
        set.execute([1]).unwrap();
        let second = open(&path, &NEXT);
        assert_eq!((user_version(&second), tables(&second)), (2, 2));
        set.execute([2]).unwrap();
        assert_eq!(number(&second, NEXT.highest_time).unwrap(), 2);
        second.execute(NEXT.set_highest_time, [3]).unwrap();
        assert_eq!(number(&first, FORMAT.highest_time).unwrap(), 3);
    }

    #[test]
    fn of_two_that_upgrade_a_file_one_waits_for_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("webhooks.db");
        let mut db = open(&path, &FORMAT);
        let upgrade = immediate(&mut db);
        assert_eq!(migrate(&upgrade, &NEXT).unwrap(), 1);
        let (opened, is_open) = mpsc::channel();
        let of = path.clone();
        thread::spawn(move || opened.send(user_version(&open(&of, &NEXT))).unwrap());
        let waits = is_open.recv_timeout(Duration::from_millis(50));
        assert!(waits.is_err(), "{waits:?}");
        upgrade.commit().unwrap();
        assert_eq!(is_open.recv().unwrap(), 2);
    }

    #[test]
    fn a_newer_file_is_opened_by_the_releases_that_it_allows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("webhooks.db");
        drop(open(&path, &NEXT));
        let earlier = open(&path, &FORMAT);
        assert_eq!(user_version(&earlier), 2);
        earlier.execute(FORMAT.set_highest_time, [7]).unwrap();
        drop(earlier);
        assert_eq!(number(&open(&path, &NEXT), NEXT.highest_time).unwrap(), 7);
        drop(open(&path, &LATER));

        let before = fs::read(&path).unwrap();
        for (lowest, shown) in [
            ("SELECT 1", "99.0.0"),
            ("UPDATE file SET lowest_release = 'next'", "next"),
            ("ALTER TABLE file RENAME TO files", "(unknown)"),
        ] {
            fs::write(&path, &before).unwrap();
            Connection::open(&path)
                .unwrap()
                .execute_batch(lowest)
                .unwrap();
            let left = fs::read(&path).unwrap();
            let Err(reason) = file::open(&path, &FORMAT) else {
                panic!("a file of version 3 was opened");
            };
            let error = super::super::FileError::new(&path.as_path().into(), reason).to_string();
            let told =
                format!("version 3 of the schema, which only release {shown} of this library");
            assert!(error.contains(&told), "{error}");
            assert!(
                error.contains("use a later release, or another path"),
                "{error}"
            );
            assert!(fs::read(&path).unwrap() == left, "{error}");
        }
    }

    #[test]
    fn releases_are_compared_by_their_numbers() {
        for (lower, higher) in [
            ("0.1.0", "0.2.0"),
            ("0.9.9", "0.10.0"),
            ("0.10.3", "1.0.0-rc.1"),
        ] {
            assert!(release(lower).unwrap() < release(higher).unwrap());
        }
        for no_release in ["", "1", "1.2", "1.2.x", "1.2.3.4"] {
            assert_eq!(release(no_release), None);
        }
    }

    #[test]
    fn a_crash_during_an_upgrade_leaves_the_file_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("webhooks.db");
        let mut db = open(&path, &FORMAT);
        let upgrade = immediate(&mut db);
        assert_eq!(migrate(&upgrade, &NEXT).unwrap(), 1);
        assert_eq!(tables(&upgrade), 2);
        // All of it is in the log, but for the commit.
        upgrade.cache_flush().unwrap();

        let crashed = directory.path().join("crashed.db");
        for file in ["", "-wal"] {
            let name = |path: &Path| format!("{}{file}", path.display());
            fs::copy(name(&path), name(&crashed)).unwrap();
        }
        let log = fs::metadata(directory.path().join("crashed.db-wal"));
        assert!(log.unwrap().len() > 0);
        assert_eq!(tables(&open(&crashed, &FORMAT)), 1);
        assert_eq!(tables(&open(&crashed, &NEXT)), 2);
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
