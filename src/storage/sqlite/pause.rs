//! A moment in which the writer leaves the write-ahead log alone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Asks the writer of this process to pause. Clones belong to the same writer.
#[derive(Clone, Default)]
pub(super) struct Pause(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_writing: bool,
    until: Option<Instant>,
}

impl Pause {
    /// Waits until nothing is written, for this time at most. Then nothing is, until the guard is dropped or the time has
    /// passed once more.
    pub(super) fn begin(&self, time: Duration) -> Paused<'_> {
        let until = Instant::now() + time;
        let mut state = self.lock();
        state.until = Some(until);
        while state.is_writing && Instant::now() < until {
            state = self.wait(state, until);
        }
        state.until = Some(Instant::now() + time);
        Paused(self)
    }

    /// Waits for the end of a pause. None is begun before the guard is dropped.
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
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.0.changed.notify_all();
    }
}

/// Ends the pause when it is dropped.
#[must_use]
pub(super) struct Paused<'a>(&'a Pause);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.until = None);
    }
}

/// Ends the writing when it is dropped.
#[must_use]
pub(super) struct Writing<'a>(&'a Pause);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.is_writing = false);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_pause_begins_after_what_is_being_written_and_ends_when_it_is_dropped() {
        let pause = Pause::default();
        let events = Mutex::new(Vec::new());
        let happens = |event| events.lock().unwrap().push(event);
        let moment = Duration::from_millis(20);
        let writing = pause.write();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _paused = pause.begin(LONG);
                happens("pause");
                thread::sleep(moment);
                happens("end of the pause");
            });
            thread::sleep(moment);
            happens("end of the write");
            drop(writing);
            while events.lock().unwrap().len() < 2 {
                thread::yield_now();
            }
            let _writing = pause.write();
            happens("next write");
        });
        let events = events.into_inner().unwrap();
        let order = [
            "end of the write",
            "pause",
            "end of the pause",
            "next write",
        ];
        assert_eq!(events, order);
    }

    #[test]
    fn neither_waits_for_longer_than_the_time_of_the_pause() {
        let pause = Pause::default();
        let time = Duration::from_millis(20);
        let writing = pause.write();
        let began = Instant::now();
        let paused = pause.begin(time);
        assert!(began.elapsed() >= time);
        drop((writing, paused));

        let paused = pause.begin(time);
        let began = Instant::now();
        drop(pause.write());
        assert!(began.elapsed() < LONG);
        drop(paused);
    }
}
