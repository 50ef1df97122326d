//! Keeps a secret that a sender brings, once.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tower_webhook::{ConfigError, Secret, Secrets};

use crate::text::chain;

/// Appends the first secret to a file, and accepts deliveries that are signed with it.
pub(crate) struct Learn {
    file: PathBuf,
    secrets: Secrets,
    is_done: Mutex<bool>,
}

impl Learn {
    pub(crate) fn new(file: PathBuf, secrets: Secrets) -> Self {
        let is_done = Mutex::new(false);
        Self {
            file,
            secrets,
            is_done,
        }
    }

    /// Whether the secret was kept.
    pub(crate) fn keep(&self, secret: &str) -> bool {
        let mut is_done = self.is_done.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.file.display();
        if *is_done {
            tracing::warn!(
                "the sender, or somebody else, brought another secret, which was refused: a start with `--learn-secret` keeps one"
            );
            return false;
        }
        if let Err(error) = append(&self.file, secret) {
            tracing::error!(%file, reason = %error, "a secret that the sender brought could not be written");
            return false;
        }
        *is_done = true;
        match read(&self.file).and_then(|new| self.secrets.replace(new)) {
            Ok(()) => tracing::info!(
                %file,
                labels = self.secrets.labels().join(","),
                "a secret was learned: leave out `--learn-secret` from now on"
            ),
            Err(error) => tracing::error!(
                %file,
                reason = chain(&error),
                "a secret was learned, and the file cannot be read"
            ),
        }
        true
    }
}

fn to_append() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true);
    options
}

/// Opens the file for what will be appended, or creates it, for its owner alone.
fn open(file: &Path) -> io::Result<File> {
    to_append().create(true).mode(0o600).open(file)
}

/// Creates the file, if it is not there.
pub(crate) fn create(file: &Path) -> Result<(), ConfigError> {
    open(file).map(drop).map_err(|it| unreadable(file, it))
}

fn unreadable(file: &Path, source: io::Error) -> ConfigError {
    ConfigError::SecretFile {
        path: file.to_owned(),
        source,
    }
}

fn append(file: &Path, secret: &str) -> io::Result<()> {
    let mut opened = open(file)?;
    // The last line may lack its end, and would become one with this.
    let is_open = match opened.seek(SeekFrom::End(-1)) {
        Ok(_) => {
            let mut last = [0];
            opened.read_exact(&mut last)?;
            last != *b"\n"
        }
        // It is empty.
        Err(_) => false,
    };
    let start = if is_open { "\n" } else { "" };
    opened.write_all(format!("{start}{secret}\n").as_bytes())?;
    opened.sync_all()
}

fn read(file: &Path) -> Result<Secrets, ConfigError> {
    Secrets::from_file(file)
}

/// The secrets of a file. A file without a secret gives a random one, which nobody knows.
pub(crate) fn secrets(file: &Path) -> Result<Secrets, ConfigError> {
    let of_file = |source| unreadable(file, source);
    let mut text = String::new();
    match to_append().open(file) {
        Ok(mut opened) => _ = opened.read_to_string(&mut text).map_err(of_file)?,
        // `check` leaves it to `run` to create it.
        Err(error) if error.kind() == io::ErrorKind::NotFound && may_be_created(file) => {}
        Err(error) => return Err(of_file(error)),
    }
    if !text.trim_start_matches('\u{feff}').trim().is_empty() {
        return read(file);
    }
    let mut bytes = [0; 32];
    let failed = |error: getrandom::Error| of_file(io::Error::other(error.to_string()));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(Secret::new(bytes)?.with_label("none yet").into())
}

fn may_be_created(file: &Path) -> bool {
    let directory = file.parent();
    directory.is_some_and(|it| it.as_os_str().is_empty() || it.is_dir())
}
