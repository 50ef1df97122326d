//! A process, as its queue, its clients and its handlers see it: it can be cut off, slow, frozen or dead.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tower_webhook::inbox::internal::{
    Accepted, Claims, EventLease, NewEvent, Settled, Settlement, Share, Take, TakenEvent,
};
use tower_webhook::inbox::{EventId, Queue};
use tower_webhook::store::{StoreError, StoreErrorKind};

use support::lock;
use support::queue::Calls;

/// A process, and its connection to the queue.
pub(crate) struct Process {
    state: Mutex<State>,
    killed: Notify,
}

struct State {
    random: Rng,
    is_dead: bool,
    frozen: Instant,
    down: Instant,
    mute: Instant,
    slow: Instant,
}

/// What can be wrong with a process for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It stands still, and so do its calls.
    Frozen,
    /// The queue cannot be reached.
    Down,
    /// Calls take effect, and their answers are lost.
    Mute,
    /// Calls take seconds.
    Slow,
}

impl Process {
    pub(crate) fn start(random: Rng) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            state: Mutex::new(State {
                random,
                is_dead: false,
                frozen: now,
                down: now,
                mute: now,
                slow: now,
            }),
            killed: Notify::new(),
        })
    }

    pub(crate) fn suffer(&self, trouble: Trouble, until: Instant) {
        let mut state = lock(&self.state);
        let end = match trouble {
            Trouble::Frozen => &mut state.frozen,
            Trouble::Down => &mut state.down,
            Trouble::Mute => &mut state.mute,
            Trouble::Slow => &mut state.slow,
        };
        *end = until.max(*end);
    }

    /// Nothing leaves the process from now on, and nothing reaches it. To all others, that is its death: what still
    /// runs in it ends by itself.
    pub(crate) fn kill(&self) {
        lock(&self.state).is_dead = true;
        self.killed.notify_waiters();
    }

    pub(crate) fn is_dead(&self) -> bool {
        lock(&self.state).is_dead
    }

    pub(crate) async fn died(&self) {
        loop {
            let killed = self.killed.notified();
            if self.is_dead() {
                return;
            }
            killed.await;
        }
    }

    /// Waits while the process is frozen, and for ever if it is dead.
    pub(crate) async fn lives(&self) {
        self.thaws().await;
        if self.is_dead() {
            pending::<()>().await;
        }
    }

    async fn thaws(&self) {
        loop {
            let frozen = lock(&self.state).frozen;
            if frozen <= Instant::now() {
                return;
            }
            sleep_until(frozen).await;
        }
    }

    /// One way to the queue or back.
    async fn travel(&self) {
        let millis = {
            let mut state = lock(&self.state);
            let is_slow = state.slow > Instant::now();
            match (is_slow, state.random.u8(..16)) {
                (true, _) => state.random.u64(..3_000),
                (false, 0) => state.random.u64(..300),
                (false, 1..8) => state.random.u64(..20),
                _ => 0,
            }
        };
        if millis > 0 {
            sleep(Duration::from_millis(millis)).await;
        }
        self.thaws().await;
    }

    fn fails(&self, and_is_mute: bool) -> Result<(), StoreError> {
        let (now, state) = (Instant::now(), lock(&self.state));
        let is_cut_off = state.down > now || and_is_mute && state.mute > now;
        match is_cut_off {
            true => Err(unavailable()),
            false => Ok(()),
        }
    }

    /// Goes on if its caller gives up, as a statement does that is on its way.
    async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.lives().await;
        let process = Arc::clone(self);
        let answer = tokio::spawn(async move {
            process.travel().await;
            let (is_dead, arrives) = {
                let mut state = lock(&process.state);
                (state.is_dead, state.random.bool())
            };
            if is_dead && !arrives {
                pending::<()>().await;
            }
            process.fails(false)?;
            let answer = call.await;
            process.travel().await;
            process.lives().await;
            process.fails(true)?;
            answer
        });
        answer.await.unwrap_or_else(|_| Err(unavailable()))
    }
}

fn unavailable() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the connection was lost")
}

/// A queue as a process reaches it.
#[derive(Clone)]
pub(crate) struct Flaky {
    pub(crate) queue: Queue,
    pub(crate) process: Arc<Process>,
}

/// Writes the calls that go on if their callers give up, with copies of what they borrow.
macro_rules! on_its_way {
    ($($method:ident($($given:ident: $type:ty),*) -> $answer:ty, $($kept:ident = $copy:expr),* => ($($use:expr),*);)*) => {
        #[async_trait]
        impl Calls for Flaky {
            fn inner(&self) -> Result<Queue, StoreError> {
                self.process.fails(true)?;
                match self.process.is_dead() {
                    true => Err(unavailable()),
                    false => Ok(self.queue.clone()),
                }
            }

            $(async fn $method(&self, $($given: $type),*) -> Result<$answer, StoreError> {
                let queue = self.queue.clone();
                $(let $kept = $copy;)*
                self.process.call(async move { queue.$method($($use),*).await }).await
            })*
        }
    };
}

on_its_way! {
    accept_one(event: NewEvent, take: Option<&Take>) -> Accepted, take = take.cloned() => (event, take.as_ref());
    claim(of: &[Share], limit: usize, suspects: usize) -> Claims, of = of.to_vec() => (&of, limit, suspects);
    take(id: EventId, take: &Take) -> Option<TakenEvent>, take = take.clone() => (id, &take);
    extend(leases: &[EventLease], lease: Duration) -> Vec<Option<bool>>, leases = leases.to_vec() => (&leases, lease);
    settle(lease: &EventLease, end: &Settlement, next: Option<&Take>) -> Settled, lease = *lease, end = end.clone(),
        next = next.cloned() => (&lease, &end, next.as_ref());
}
