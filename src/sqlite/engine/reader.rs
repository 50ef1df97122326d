//! The thread that reads what takes long: searches, counts, pages of a list. The writer works beside it.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;

use super::batches::Batches;
use super::clock::Clock;
use super::error::{FileError, Reason};
use super::file;
use super::format::Format;
use super::thread::{Job, Thread, answer};
use super::watch::FileId;

pub(super) fn start(
    path: &Arc<Path>,
    file: FileId,
    format: &'static Format,
    clock: Arc<Mutex<Clock>>,
) -> io::Result<Thread> {
    let of = Arc::clone(path);
    Thread::start(path, "webhook-sqlite-r", move |queue| {
        serve(&of, file, queue, || {
            let db = file::connect_to_read(&of)?;
            Ok(Batches::new(db, format, Vec::new(), Arc::clone(&clock))?)
        });
    })
}

/// Opens the connection for the first call, as many processes never read.
fn serve(
    path: &Arc<Path>,
    file: FileId,
    mut queue: mpsc::Receiver<Box<dyn Job>>,
    open: impl Fn() -> Result<Batches, Reason>,
) {
    let mut connection = None;
    while let Some(job) = queue.blocking_recv() {
        let mut jobs = vec![job];
        let mut read = || {
            if file.was_replaced(path) {
                return Err(Reason::Replaced);
            }
            let batches = match &mut connection {
                Some(batches) => batches,
                none => none.insert(open()?),
            };
            batches.commit(path, &mut jobs).map_err(Reason::Sqlite)
        };
        let error = read().err().map(|reason| FileError::new(path, reason));
        answer(&mut jobs, error.as_ref());
    }
}
