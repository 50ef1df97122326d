//! A moment in which the writer leaves the write-ahead log alone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::lock::lock;

/// How long a pause waits for the end of a commit.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

/// Lets the writer of one [`Engine`](super::Engine) pause. Clones share the writer.
#[derive(Clone, Default)]
pub(super) struct Pause(Arc<Waiters>);

#[derive(Default)]
struct Waiters {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_writing: bool,
    /// The duration of a pause that begins when the writer has ended its commit.
    wanted: Option<Duration>,
    until: Option<Instant>,
}

impl Pause {
    /// Waits until nothing is written. From then on nothing is, for this time or until the guard is dropped. Returns
    /// `None`, without a pause, if the writer needs long.
    pub(super) fn begin(&self, time: Duration) -> Option<Paused<'_>> {
        let give_up = Instant::now() + PATIENCE;
        let mut state = self.lock();
        match state.is_writing {
            true => state.wanted = Some(time),
            false => state.until = Some(Instant::now() + time),
        }
        while state.wanted.is_some() {
            if Instant::now() >= give_up {
                state.wanted = None;
                return None;
            }
            state = self.wait(state, give_up);
        }
        Some(Paused(self))
    }

    /// Waits for the end of a pause. None begins before the guard is dropped.
    pub(super) fn write(&self) -> Writing<'_> {
        let mut state = self.lock();
        while let Some(until) = state.until.filter(|until| Instant::now() < *until) {
            state = self.wait(state, until);
        }
        state.is_writing = true;
        Writing(self)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, until: Instant) -> MutexGuard<'a, State> {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.0.changed.wait_timeout(state, left);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }
}

/// Ends the pause when it is dropped.
#[must_use]
pub(super) struct Paused<'a>(&'a Pause);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.lock().until = None;
        self.0.0.changed.notify_all();
    }
}

/// Ends the writing when it is dropped, and begins a pause that was waited for.
#[must_use]
pub(super) struct Writing<'a>(&'a Pause);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_writing = false;
        let Some(time) = state.wanted.take() else {
            return;
        };
        state.until = Some(Instant::now() + time);
        drop(state);
        self.0.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_pause_begins_after_the_commit_and_the_next_one_waits_for_its_end() {
        let pause = Pause::default();
        let began = Instant::now();
        let events = Mutex::new(Vec::new());
        let happens = |event| events.lock().unwrap().push(event);
        let writing = pause.write();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _paused = pause.begin(LONG);
                happens("pause");
                thread::sleep(MOMENT);
                happens("end of the pause");
            });
            while pause.lock().wanted.is_none() {
                thread::yield_now();
            }
            happens("end of the commit");
            drop(writing);
            let _writing = pause.write();
            happens("next commit");
        });
        let events = events.into_inner().unwrap();
        let order = [
            "end of the commit",
            "pause",
            "end of the pause",
            "next commit",
        ];
        assert_eq!(events, order);
        // Each was woken, and did not wait for the end of its time.
        assert!(began.elapsed() < LONG / 2);
    }

    #[test]
    fn a_commit_waits_for_no_longer_than_the_time_of_the_pause() {
        let pause = Pause::default();
        let paused = pause.begin(MOMENT).unwrap();
        let (written, heard) = mpsc::channel();
        let of = pause.clone();
        thread::spawn(move || {
            drop(of.write());
            written.send(()).unwrap();
        });
        heard.recv_timeout(LONG).unwrap();
        drop(paused);
    }

    #[test]
    fn a_long_commit_gets_no_pause_after_it() {
        let pause = Pause::default();
        let writing = pause.write();
        assert!(pause.begin(LONG).is_none());
        drop(writing);
        let began = Instant::now();
        drop(pause.write());
        assert!(began.elapsed() < LONG / 2);
    }
}
