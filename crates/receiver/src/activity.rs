//! What each connection is doing, and which one is closed when there are too many.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The bytes of a connection that are kept, since they tell what it speaks.
const FIRST: usize = 12;

/// The time that a genuine sender has for a request. Without it, whoever connects fast enough would have the
/// connections of all others closed.
pub(crate) const LEAST_AGE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_connections: usize,
    /// How long the head of a request may take, from its first byte.
    pub(crate) head: Duration,
    /// How long the body may take, where nothing else limits it.
    pub(crate) body: Duration,
    /// How long a connection may wait for its next request, and for how long it may read nothing of a response.
    pub(crate) idle: Duration,
}

impl Limits {
    /// Those of a listener for operators and their programs.
    #[cfg_attr(not(any(feature = "console", feature = "metrics")), allow(dead_code))]
    pub(crate) const FEW: Self = Self {
        max_connections: 64,
        head: Duration::from_secs(10),
        body: Duration::from_secs(10),
        idle: Duration::from_secs(75),
    };
}

/// The open connections, by numbers.
#[derive(Default)]
pub(crate) struct Open {
    connections: Mutex<HashMap<u64, Arc<Activity>>>,
    next: AtomicU64,
}

impl Open {
    pub(crate) fn enter(self: &Arc<Self>, activity: &Arc<Activity>) -> Entry {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.connections).insert(number, Arc::clone(activity));
        Entry {
            open: Arc::clone(self),
            number,
        }
    }

    /// Closes a connection, and returns its peer: the oldest connection that has proved nothing, or if all have, the
    /// connection that has been idle for longest. A connection at work on a complete request is left alone. If all
    /// others are too young, the error has the time at which one may be closed.
    pub(crate) fn close_one(&self, least_age: Duration) -> Result<SocketAddr, Option<Instant>> {
        let connections = lock(&self.connections);
        let latest = Instant::now().checked_sub(least_age);
        let closable = connections.values().filter_map(|activity| {
            let closable = activity.closable()?;
            let is_too_young = latest.is_none_or(|latest| closable.since > latest);
            Some(((is_too_young, closable), activity))
        });
        match closable.min_by_key(|(order, _)| *order) {
            None => Err(None),
            Some(((true, closable), _)) => Err(Some(closable.since + least_age)),
            Some(((false, _), activity)) => {
                activity.close();
                Ok(activity.peer)
            }
        }
    }
}

/// A connection that may be closed, in the order in which they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Closable {
    was_verified: bool,
    /// The acceptance, or when a part of a large body was received, so that a connection that makes progress is not the
    /// next.
    progress: Instant,
    since: Instant,
}

/// Removes its connection when it is dropped.
pub(crate) struct Entry {
    open: Arc<Open>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.open.connections).remove(&self.number);
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    /// It is new, and has sent nothing.
    Silent(Instant),
    /// It sends the head of a request.
    Head(Instant),
    Body(Instant),
    /// It waits for a response.
    Busy,
    /// It reads a response, since this part of it.
    Answered(Instant),
    /// It may send another request.
    Idle(Instant),
    /// The same, and it has not begun with one.
    Quiet(Instant),
    Closing,
}

impl Phase {
    /// Whether the head of a request has arrived whose response is not written yet.
    pub(crate) fn has_request(self) -> bool {
        matches!(self, Self::Body(_) | Self::Busy | Self::Answered(_))
    }
}

pub(crate) struct Activity {
    pub(crate) peer: SocketAddr,
    state: Mutex<State>,
    pub(crate) closed: Notify,
}

struct State {
    phase: Phase,
    /// The first bytes that arrived, and how many there are.
    first: ([u8; FIRST], usize),
    /// Since when it has proved nothing. None after a request that was verified.
    unproved: Option<Instant>,
    progress: Instant,
}

impl Activity {
    pub(crate) fn new(peer: SocketAddr) -> Self {
        let now = Instant::now();
        Self {
            peer,
            state: Mutex::new(State {
                phase: Phase::Silent(now),
                first: ([0; FIRST], 0),
                unproved: Some(now),
                progress: now,
            }),
            closed: Notify::new(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        lock(&self.state).phase
    }

    /// The end of this phase.
    pub(crate) fn deadline(&self, limits: &Limits) -> Option<Instant> {
        match self.phase() {
            Phase::Silent(since) | Phase::Head(since) => Some(since + limits.head),
            Phase::Body(since) => Some(since + limits.body),
            Phase::Answered(since) | Phase::Quiet(since) => Some(since + limits.idle),
            Phase::Idle(since) => Some(since + limits.idle.min(limits.head)),
            Phase::Busy | Phase::Closing => None,
        }
    }

    fn closable(&self) -> Option<Closable> {
        let state = lock(&self.state);
        let since = match (state.phase, state.unproved) {
            (Phase::Busy | Phase::Closing, _) => None,
            (_, Some(since)) => Some(since),
            (Phase::Idle(since) | Phase::Quiet(since), None) => Some(since),
            (_, None) => None,
        }?;
        Some(Closable {
            was_verified: state.unproved.is_none(),
            progress: since.max(state.progress),
            since,
        })
    }

    /// A part of a large body has arrived.
    pub(crate) fn progress(&self) {
        lock(&self.state).progress = Instant::now();
    }

    /// The first bytes that arrived.
    pub(crate) fn first(&self) -> Vec<u8> {
        let (first, length) = lock(&self.state).first;
        first[..length].to_vec()
    }

    /// Bytes have arrived.
    pub(crate) fn read(&self, bytes: &[u8]) {
        let mut state = lock(&self.state);
        let (first, length) = &mut state.first;
        for (place, byte) in first[*length..].iter_mut().zip(bytes) {
            *place = *byte;
            *length += 1;
        }
        if let Phase::Silent(_) | Phase::Idle(_) | Phase::Quiet(_) = state.phase {
            let now = Instant::now();
            state.phase = Phase::Head(now);
            state.unproved.get_or_insert(now);
        }
    }

    /// Bytes of a response were sent. A limit on all of them would cut a long one, however fast it is read.
    pub(crate) fn wrote(&self) {
        let mut state = lock(&self.state);
        if let Phase::Answered(since) = &mut state.phase {
            *since = Instant::now();
        }
    }

    /// A head has arrived.
    pub(crate) fn begin(self: &Arc<Self>, is_complete: bool) -> Exchange {
        let now = Instant::now();
        self.enter(match is_complete {
            true => Phase::Busy,
            false => Phase::Body(now),
        });
        lock(&self.state).unproved.get_or_insert(now);
        Exchange(Arc::clone(self))
    }

    /// The body is complete.
    pub(crate) fn received(&self) {
        if let Phase::Body(_) = self.phase() {
            self.enter(Phase::Busy);
        }
    }

    pub(crate) fn answered(&self, is_verified: bool) {
        self.enter(Phase::Answered(Instant::now()));
        if is_verified {
            lock(&self.state).unproved = None;
        }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        let mut state = lock(&self.state);
        if !matches!(state.phase, Phase::Closing) {
            state.phase = phase;
        }
    }

    fn close(&self) {
        self.enter(Phase::Closing);
        self.closed.notify_one();
    }
}

/// A request, until its response is written.
pub(crate) struct Exchange(pub(crate) Arc<Activity>);

impl Drop for Exchange {
    fn drop(&mut self) {
        self.0.enter(Phase::Idle(Instant::now()));
    }
}

/// No lock is held across code that could panic and leave something half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
