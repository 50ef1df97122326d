//! A thread that owns a connection, and the calls that it answers.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::error::{FileError, Reason};
use super::transaction::Tx;
use crate::store::OpenError as Error;

/// How many calls wait for the thread before callers wait for room.
const QUEUE: usize = 1024;

/// What a piece of work needs of its transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// It changes nothing.
    Read,
    /// Its changes survive this process.
    Write,
    /// Its changes survive the machine, and it is done even when its caller has given up.
    Durable,
    /// The same of much work, in a transaction of its own: other calls wait for one such at a time.
    Alone,
}

/// A handle on a thread. Dropped, it waits until the thread has closed the file.
pub(super) struct Thread {
    path: Arc<Path>,
    jobs: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    pub(super) fn start(
        path: &Arc<Path>,
        name: &str,
        serve: impl FnOnce(mpsc::Receiver<Box<dyn Job>>) + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || serve(queue))?;
        Ok(Self {
            path: Arc::clone(path),
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// See [`Engine::run`](super::Engine::run).
    pub(super) async fn run<T: Send + 'static>(
        &self,
        need: Need,
        work: impl FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let ended = || FileError::new(&self.path, Reason::Ended).into();
        let (answer, answered) = oneshot::channel();
        let job = Box::new(Call {
            need,
            work,
            result: None,
            answer,
            runtime: Handle::try_current().ok(),
        });
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        jobs.send(job).await.map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(super) trait Job: Send {
    fn need(&self) -> Need;
    fn execute(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()>;
    /// Ends it alone, while the others are committed.
    fn fail(&mut self, error: FileError);
    /// Where the answer is waited for.
    fn runtime(&self) -> Option<&Handle>;
    fn answer(self: Box<Self>, error: Option<&FileError>);
}

struct Call<W, T> {
    need: Need,
    work: W,
    result: Option<Result<T, FileError>>,
    answer: oneshot::Sender<Result<T, Error>>,
    runtime: Option<Handle>,
}

impl<W, T> Job for Call<W, T>
where
    W: FnMut(&mut Tx<'_>) -> rusqlite::Result<T> + Send,
    T: Send,
{
    fn need(&self) -> Need {
        self.need
    }

    fn execute(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()> {
        let given_up = self.answer.is_closed() && self.need < Need::Durable;
        self.result = None;
        if !given_up {
            self.result = Some(Ok((self.work)(tx)?));
        }
        Ok(())
    }

    fn fail(&mut self, error: FileError) {
        self.result = Some(Err(error));
    }

    fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref()
    }

    fn answer(self: Box<Self>, error: Option<&FileError>) {
        let result = match (error, self.result) {
            (Some(error), _) => Err(error.clone().into()),
            (None, Some(result)) => result.map_err(Error::from),
            (None, None) => return,
        };
        let _ = self.answer.send(result);
    }
}

/// Answers all callers, with the error if the transaction failed.
///
/// To wake a task from outside its runtime takes a system call, so a single task wakes the others there.
pub(super) fn answer(jobs: &mut Vec<Box<dyn Job>>, error: Option<&FileError>) {
    while let Some(job) = jobs.pop() {
        let Some(runtime) = job.runtime().cloned() else {
            job.answer(error);
            continue;
        };
        let is_of_it = |job: &mut Box<dyn Job>| {
            job.runtime()
                .is_some_and(|other| other.id() == runtime.id())
        };
        let mut answers = Answers {
            jobs: jobs.extract_if(.., is_of_it).collect(),
            error: error.cloned(),
        };
        answers.jobs.push(job);
        match answers.jobs.len() {
            1 => drop(answers),
            _ => drop(runtime.spawn(async move { drop(answers) })),
        }
    }
}

/// Jobs that are answered when this is dropped, also by a runtime that has ended.
struct Answers {
    jobs: Vec<Box<dyn Job>>,
    error: Option<FileError>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        for job in self.jobs.drain(..) {
            job.answer(self.error.as_ref());
        }
    }
}
