//! Standard output, on a thread of its own: whoever reads it may be slow.

use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::{block_in_place, spawn_blocking};

/// How long an event that is handled waits for its line.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many lines wait for a reader. Further ones are lost.
const WAITING: usize = 64;

pub(crate) struct Output {
    jobs: SyncSender<Job>,
    /// Events that wait for it can still be cancelled.
    turn: Mutex<()>,
}

struct Job {
    /// `None` if only the lines before it matter.
    line: Option<String>,
    written: Sender<io::Result<()>>,
}

impl Output {
    pub(crate) fn start() -> io::Result<Self> {
        let (jobs, queue) = mpsc::sync_channel(WAITING);
        thread::Builder::new()
            .name("stdout".to_owned())
            .spawn(move || write_all(&queue))?;
        Ok(Self {
            jobs,
            turn: Mutex::new(()),
        })
    }

    /// Prints the line of an event that is handled by being printed.
    pub(crate) async fn print(&self, line: String) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let (written, result) = mpsc::channel();
        let job = Job {
            line: Some(line),
            written,
        };
        // A slow reader can block this write beyond the handler's time limit. `block_in_place` cannot be
        // cancelled there, and must not be: an event whose line was written is handled.
        block_in_place(|| {
            let sent = self.jobs.send(job);
            sent.map_err(|_| broken())?;
            result.recv().unwrap_or_else(|_| Err(broken()))
        })
    }

    /// Prints the line of an event that was handled before. A failure is only logged.
    ///
    /// It never awaits, because the event would be handled again if the time limit passed while it waited.
    pub(crate) fn record(&self, line: String) {
        let (written, result) = mpsc::channel();
        let job = Job {
            line: Some(line),
            written,
        };
        let error = match self.jobs.try_send(job) {
            Ok(()) => match block_in_place(|| result.recv_timeout(PATIENCE)) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                // It is written later.
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => broken(),
            },
            Err(TrySendError::Full(_)) => io::Error::other("standard output is blocked"),
            Err(TrySendError::Disconnected(_)) => broken(),
        };
        lost(&error);
    }

    /// Waits until all lines are written.
    pub(crate) async fn flush(&self) {
        let jobs = self.jobs.clone();
        let flushed = spawn_blocking(move || {
            let (written, result) = mpsc::channel();
            let line = None;
            if jobs.send(Job { line, written }).is_ok() {
                let _ = result.recv();
            }
        });
        let _ = flushed.await;
    }
}

fn broken() -> io::Error {
    io::Error::other("the thread that writes it has ended")
}

fn lost(error: &io::Error) {
    tracing::warn!(
        reason = error.to_string(),
        "the event was handled, but its line could not be printed"
    );
}

fn write_all(queue: &Receiver<Job>) {
    // Whether the last line may be incomplete.
    let mut torn = false;
    for Job { line, written } in queue {
        let result = match line {
            Some(line) => write(&line, &mut torn),
            None => Ok(()),
        };
        if let Err(mpsc::SendError(Err(error))) = written.send(result) {
            lost(&error); // Its event no longer waits.
        }
    }
}

fn write(line: &str, torn: &mut bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    // An incomplete line must not corrupt the next one.
    let start = if *torn { "\n" } else { "" };
    *torn = true;
    stdout.write_all(format!("{start}{line}").as_bytes())?;
    stdout.flush()?;
    *torn = false;
    Ok(())
}
