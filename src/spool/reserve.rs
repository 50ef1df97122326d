//! The disk of a spool: a file beside it that reserves its room, and that one process has locked.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::store::{OpenError, OpenErrorKind};

/// What is written at a time, and given up at a time.
const CHUNK: u64 = 1 << 20;

/// The room for the log beside a file with this limit.
pub(super) fn log_room(limit: u64) -> u64 {
    limit.min(256 * CHUNK)
}

/// Room on the disk for what the spool does not use yet. As zeros, because room in a sparse file is not reserved.
pub(super) struct Reserve {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// For the spool, its log and the reserve together.
    limit: u64,
}

impl Reserve {
    /// Locks the spool for this process.
    pub(super) fn lock(path: &Path, limit: u64, on_any_disk: bool) -> Result<Self, OpenError> {
        if !on_any_disk && let Some(kind) = ephemeral(path) {
            let refusal = DiskError::Ephemeral(path.into(), kind);
            return Err(OpenError::new(OpenErrorKind::Unsuitable, refusal));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let opened = options.open(beside(path, RESERVE));
        let file = opened.map_err(|error| unusable(path, error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let refusal = DiskError::Locked(path.into());
                return Err(OpenError::new(OpenErrorKind::Unavailable, refusal));
            }
            Err(TryLockError::Error(error)) => return Err(unusable(path, error)),
        }
        let bytes = file.metadata().map_err(|error| unusable(path, error))?;
        Ok(Self {
            path: path.into(),
            bytes: bytes.len(),
            file,
            limit: limit.saturating_add(log_room(limit)),
        })
    }

    /// Reserves the room that the spool does not use yet.
    pub(super) fn hold(&mut self) -> Result<(), OpenError> {
        self.fill().map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::QuotaExceeded => {
                let refusal = DiskError::NoRoom(self.path.clone(), self.limit, error);
                OpenError::new(OpenErrorKind::Unavailable, refusal)
            }
            _ => unusable(&self.path, error),
        })
    }

    /// The bytes that the reserve should have, beside the files.
    fn wanted(&self) -> u64 {
        let size = |end| {
            beside(&self.path, end)
                .metadata()
                .map_or(0, |file| file.len())
        };
        self.limit.saturating_sub(size("") + size("-wal"))
    }

    fn fill(&mut self) -> io::Result<()> {
        let (before, wanted) = (self.bytes, self.wanted());
        if wanted <= before {
            return self.shrink_to(wanted);
        }
        let zeros = vec![0; CHUNK as usize];
        self.file.seek(SeekFrom::Start(before))?;
        let mut left = wanted - before;
        while left > 0 {
            let next = left.min(CHUNK);
            if let Err(error) = self.file.write_all(&zeros[..next as usize]) {
                // Others need it, too.
                self.file.set_len(before)?;
                return Err(error);
            }
            left -= next;
        }
        self.file.sync_all()?;
        self.bytes = wanted;
        Ok(())
    }

    fn shrink_to(&mut self, bytes: u64) -> io::Result<()> {
        if bytes < self.bytes {
            self.file.set_len(bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Gives up what the spool uses by now.
    pub(super) fn follow(&mut self) {
        // If this fails, the reserve is larger than it has to be.
        let _ = self.shrink_to(self.wanted());
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives up a part, because the disk was full while the reserve had so many bytes. Returns whether there is room now:
    /// of all calls of a transaction that failed, the first one gives it up.
    pub(super) fn give_up(&mut self, had: u64) -> bool {
        let given_up = self.bytes.saturating_sub(CHUNK);
        self.bytes < had || self.bytes > 0 && self.shrink_to(given_up).is_ok()
    }
}

/// The end of the name of the reserve.
const RESERVE: &str = "-reserve";

fn unusable(path: &Path, error: io::Error) -> OpenError {
    let refusal = DiskError::Unusable(beside(path, RESERVE), error);
    OpenError::new(OpenErrorKind::Unavailable, refusal)
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// The kind of file system below a path, if it ends with its container or machine.
#[cfg(target_os = "linux")]
fn ephemeral(path: &Path) -> Option<&'static str> {
    const KINDS: [&str; 3] = ["overlay", "tmpfs", "ramfs"];
    let path = std::path::absolute(path).ok()?;
    let directory = path.parent()?.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    // The last of the deepest mounts that cover the path is the visible one.
    let kind = mounts
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let point = mount.split(' ').nth(4)?.replace("\\040", " ");
            let covers = directory.starts_with(&point);
            covers.then_some((point.len(), kind.split(' ').next()?))
        })
        .max_by_key(|(length, _)| *length)?;
    KINDS.into_iter().find(|known| *known == kind.1)
}

#[cfg(not(target_os = "linux"))]
fn ephemeral(_: &Path) -> Option<&'static str> {
    None
}

#[derive(Debug)]
enum DiskError {
    Ephemeral(PathBuf, &'static str),
    Locked(PathBuf),
    NoRoom(PathBuf, u64, io::Error),
    Unusable(PathBuf, io::Error),
}

errors! {
    DiskError {
        Self::Ephemeral(path, kind) => "the spool `{}` would be on {kind}, which ends with its container or machine and \
            takes accepted events with it: choose a path on a disk, such as a volume, or allow any disk", path.display();
        Self::Locked(path) => "the spool `{}` is used by another process: each process needs a spool of its own",
            path.display();
        Self::NoRoom(path, bytes, error) => "the spool `{}` has no room on its disk: make room for {bytes} bytes, or \
            lower its limit", path.display() => error;
        Self::Unusable(path, error) => "the file `{}` beside the spool cannot be used: this user must be allowed to \
            write there", path.display() => error;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_transaction_takes_one_part_of_the_reserve() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("spool.db");
        let mut reserve = Reserve::lock(&path, 2 * CHUNK, true).unwrap();
        reserve.hold().unwrap();
        let had = reserve.bytes();
        assert_eq!(had, 4 * CHUNK);
        assert!((0..64).all(|_| reserve.give_up(had)));
        assert_eq!(reserve.bytes(), 3 * CHUNK);
        while reserve.bytes() > 0 {
            assert!(reserve.give_up(reserve.bytes()));
        }
        assert!(!reserve.give_up(0));
    }

    #[test]
    fn the_reserve_is_the_room_that_the_files_do_not_use() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("spool.db");
        let mut reserve = Reserve::lock(&path, 2 * CHUNK, true).unwrap();
        let grow = |end, chunks| {
            let file = File::create(beside(&path, end)).unwrap();
            file.set_len(chunks * CHUNK).unwrap();
        };
        let length = || beside(&path, RESERVE).metadata().unwrap().len();
        reserve.hold().unwrap();
        assert_eq!((reserve.bytes(), length()), (4 * CHUNK, 4 * CHUNK));
        grow("", 1);
        grow("-wal", 2);
        reserve.follow();
        assert_eq!((reserve.bytes(), length()), (CHUNK, CHUNK));
        grow("-wal", 0);
        // It grows again only when it is held.
        reserve.follow();
        assert_eq!(length(), CHUNK);
        reserve.hold().unwrap();
        assert_eq!((reserve.bytes(), length()), (3 * CHUNK, 3 * CHUNK));
        assert_eq!(log_room(1 << 40), 256 << 20);
    }
}
