//! Copies an inbox in a SQLite file while it is in use, and brings a copy back.

use std::fs::{self, File, OpenOptions};
use std::path::{self, Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use rusqlite::{Connection, OpenFlags};
use tower_webhook::inbox::{Filter, Inbox, Page};

use super::change::{is_confirmed, must_be_terminal};
use super::print;
use crate::store;

pub(crate) fn backup(inbox: PathBuf, copy: &Path) -> anyhow::Result<ExitCode> {
    ensure!(inbox.exists(), "there is no file `{}`", inbox.display());
    ensure!(!copy.exists(), "`{}` exists already", copy.display());
    // Refuses the file of another program, and of a later release.
    let queue = store::sqlite_queue(inbox.clone())?;
    let part = beside(copy, ".part");
    copy_into(&inbox, &part)?;
    drop(queue);
    rename(&part, copy)?;
    let bytes = fs::metadata(copy)?.len();
    eprintln!("copied to `{}`: {bytes} bytes", copy.display());
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn restore(copy: &Path, inbox: PathBuf, yes: bool) -> anyhow::Result<ExitCode> {
    ensure!(copy.is_file(), "there is no file `{}`", copy.display());
    for end in ["", "-wal", "-shm"] {
        let file = beside(&inbox, end);
        ensure!(
            !file.exists(),
            "`{}` exists: stop all receivers, and move the inbox and the files `-wal` and `-shm` beside it away",
            file.display()
        );
    }
    if !yes {
        must_be_terminal();
    }
    let part = beside(&inbox, ".part");
    copy_into(copy, &part)?;
    let is_agreed = match is_wanted(copy, &part, &inbox, yes).await {
        Ok(true) => rename(&part, &inbox).map(|()| true),
        other => other,
    };
    if !matches!(is_agreed, Ok(true)) {
        fs::remove_file(&part)?;
    }
    Ok(match is_agreed? {
        true => {
            eprintln!("restored: start the receivers");
            ExitCode::SUCCESS
        }
        false => {
            eprintln!("nothing was restored");
            ExitCode::FAILURE
        }
    })
}

/// Says what becomes of the events in a copy and of those that are not in it, and asks whether it is wanted.
async fn is_wanted(copy: &Path, part: &Path, inbox: &Path, yes: bool) -> anyhow::Result<bool> {
    // It is an inbox, which this release can use.
    let events = Inbox::new(store::sqlite_queue(part.to_owned())?);
    let stats = events.stats().await?;
    let newest = newest(&events).await?;
    drop(events);
    eprintln!(
        "`{}` has {} unsettled events and {} dead letters. Its newest event was accepted {newest}.\n\
         - The unsettled events are handled once the receivers run, also those that were handled after the copy was \
         made. To choose, pause the inbox after this, start the receivers, and discard what was handled.\n\
         - Events that were accepted after the copy was made are not in it. They are lost, unless the platform sends \
         them again.\n\
         - Events that were handled after it was made are handled again if the platform sends them again.",
        copy.display(),
        stats.unsettled(),
        stats.dead()
    );
    match yes {
        true => Ok(true),
        false => is_confirmed(&format!("Restore it as `{}`?", inbox.display())),
    }
}

async fn newest(inbox: &Inbox) -> anyhow::Result<String> {
    let listed = inbox.list(&Filter::default(), Page::newest(1)).await?;
    let newest = listed.events.first();
    Ok(newest.map_or("never".to_owned(), |event| print::ago(event.accepted_at)))
}

/// Copies what is committed into a new file, which is for its owner alone from the beginning.
fn copy_into(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let cannot = || format!("`{}` cannot be created", to.display());
    options.open(to).with_context(|| {
        format!(
            "{}: if another command was interrupted, delete it",
            cannot()
        )
    })?;
    let copied = (|| {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(from, flags)?;
        db.busy_timeout(Duration::from_secs(10))?;
        // SQLite would give another meaning to some relative paths.
        let path = path::absolute(to)?;
        let path = path.to_str().context("its path is not UTF-8")?;
        db.execute("VACUUM INTO ?1", [path])?;
        drop(db);
        File::open(to)?.sync_all()?;
        anyhow::Ok(())
    })();
    if copied.is_err() {
        let _ = fs::remove_file(to);
    }
    copied.with_context(|| {
        format!(
            "`{}` cannot be copied to `{}`",
            from.display(),
            to.display()
        )
    })
}

fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::rename(from, to)?;
    // The name is on the disk when its directory is.
    #[cfg(unix)]
    if let Some(directory) = path::absolute(to)?.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(end);
    name.into()
}
