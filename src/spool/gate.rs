//! The way that an event goes: to the queue, or to the file in front of it.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::{Notify, RwLock, RwLockReadGuard};
use tokio::time::{Instant, timeout_at};

use crate::lock::lock;

/// How long an event waits for the last ones in the file to be forwarded, instead of going behind them. Otherwise, a
/// steady flow of events would never leave the file.
const HANDOVER: Duration = Duration::from_millis(200);

/// How few they are.
const FEW: u64 = 64;

/// The breaker, and what is in the file.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    /// Read by each acceptance that goes to the queue. One that goes to the file waits until those before it have ended,
    /// because they may follow it there.
    direct: RwLock<()>,
    /// Whenever the file has become empty, or the breaker has opened.
    changed: Notify,
    /// Whenever an event was stored in the file.
    pub(super) stored: Notify,
}

#[derive(Default)]
struct State {
    is_open: bool,
    /// Whether events may be in the file.
    has_events: bool,
    /// About how many they are.
    events: u64,
    /// How many are being stored there.
    storing: usize,
    /// How often one was stored there.
    stored: u64,
}

pub(super) enum Way<'a> {
    Queue(RwLockReadGuard<'a, ()>),
    File(Storing<'a>),
}

impl Gate {
    /// Returns the way that the next event goes.
    pub(super) async fn way(&self) -> Way<'_> {
        let mut give_up = None;
        loop {
            let changed = self.changed.notified();
            {
                let mut state = lock(&self.state);
                if !state.is_open && !state.has_events && state.storing == 0 {
                    // Nobody waits for it before an event is stored in the file.
                    if let Ok(direct) = self.direct.try_read() {
                        return Way::Queue(direct);
                    }
                }
                let may_wait = !state.is_open && state.events <= FEW;
                if !may_wait || give_up.is_some_and(|give_up| give_up <= Instant::now()) {
                    state.storing += 1;
                    break;
                }
            }
            let give_up = *give_up.get_or_insert_with(|| Instant::now() + HANDOVER);
            let _ = timeout_at(give_up, changed).await;
        }
        let storing = Storing(self);
        drop(self.direct.write().await);
        Way::File(storing)
    }

    /// The way to the file of an event that was on its way to the queue.
    pub(super) fn turn(&self) -> Storing<'_> {
        lock(&self.state).storing += 1;
        Storing(self)
    }

    /// Opens or closes the breaker, and returns whether that is new.
    pub(super) fn set_open(&self, is_open: bool) -> bool {
        let was_open = std::mem::replace(&mut lock(&self.state).is_open, is_open);
        self.changed.notify_waiters();
        was_open != is_open
    }

    pub(super) fn is_open(&self) -> bool {
        lock(&self.state).is_open
    }

    /// Whether events may be in the file, or on their way to it.
    pub(super) fn is_busy(&self) -> bool {
        let state = lock(&self.state);
        state.has_events || state.storing > 0
    }

    /// Notes how many events are in the file.
    pub(super) fn set_events(&self, events: u64) {
        let mut state = lock(&self.state);
        state.events = events;
        state.has_events |= events > 0;
    }

    pub(super) fn forwarded(&self) {
        let mut state = lock(&self.state);
        state.events = state.events.saturating_sub(1);
    }

    /// How often an event was stored in the file, if none is being stored now.
    pub(super) fn quiet(&self) -> Option<u64> {
        let state = lock(&self.state);
        (state.storing == 0).then_some(state.stored)
    }

    /// Notes that the file is empty, unless an event was stored since it was [quiet](Self::quiet).
    pub(super) fn empty(&self, since: u64) {
        let mut state = lock(&self.state);
        if state.storing == 0 && state.stored == since {
            (state.has_events, state.events) = (false, 0);
            self.changed.notify_waiters();
        }
    }
}

/// An event that is being stored in the file. If this is dropped, it may have been.
pub(super) struct Storing<'a>(&'a Gate);

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.storing -= 1;
        state.stored += 1;
        state.events += 1;
        state.has_events = true;
        self.0.stored.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_an_event_that_was_stored_meanwhile_is_not_empty() {
        let gate = Gate::default();
        for stored in 1..=3 {
            let quiet = gate.quiet().unwrap();
            let storing = gate.turn();
            assert!(gate.is_busy());
            gate.empty(quiet);
            assert_eq!(gate.quiet(), None);
            drop(storing);
            assert_eq!(lock(&gate.state).events, stored);
            gate.empty(quiet);
            assert!(gate.is_busy());
        }
        gate.empty(gate.quiet().unwrap());
        assert!(!gate.is_busy());
    }
}
