//! Keeps the timers of a runtime in time although a handler blocks its thread.
//!
//! The worker that polls timers and sockets also runs the tasks that they wake, without waking another
//! worker to poll in its place. If such a task blocks, timers stop although other workers are idle
//! (tokio-rs/tokio#4730). Spawning a task from outside the runtime wakes one of those.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{self, Handle, RuntimeFlavor};

use crate::lock::lock;

/// One thread for each multi-threaded runtime. They end when the last clone is dropped, and each with its
/// runtime.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clocks {
    of_runtimes: Arc<Mutex<ByRuntime>>,
}

type ByRuntime = HashMap<runtime::Id, Clock>;

#[derive(Debug)]
struct Clock {
    every: Duration,
    /// The same in nanoseconds, for the thread.
    period: Arc<AtomicU64>,
    thread: Thread,
}

/// More often would cost noticeable work, and no lease is short enough to need it.
const SHORTEST: Duration = Duration::from_millis(10);

impl Clocks {
    /// Wakes an idle worker of `runtime` at least every tenth of `lease`, from now on.
    pub(crate) fn keep_running(&self, runtime: &Handle, lease: Duration) {
        if runtime.runtime_flavor() != RuntimeFlavor::MultiThread {
            return;
        }
        let every = (lease / 10).max(SHORTEST);
        let mut clocks = lock(&self.of_runtimes);
        match clocks.get_mut(&runtime.id()) {
            Some(clock) if clock.every <= every => {}
            Some(clock) => {
                clock.every = every;
                clock.period.store(nanos(every), Ordering::Relaxed);
                clock.thread.unpark();
            }
            None => {
                let period = Arc::new(AtomicU64::new(nanos(every)));
                let thread = {
                    let (clocks, runtime) = (Arc::downgrade(&self.of_runtimes), runtime.clone());
                    let period = Arc::clone(&period);
                    thread::Builder::new()
                        .name("webhook-clock".to_owned())
                        .spawn(move || tick(&clocks, &runtime, &period))
                };
                match thread {
                    Ok(thread) => {
                        let thread = thread.thread().clone();
                        let clock = Clock {
                            every,
                            period,
                            thread,
                        };
                        clocks.insert(runtime.id(), clock);
                    }
                    Err(error) => tracing::warn!(
                        reason = error.to_string(),
                        "no thread could be started: a handler that blocks its thread may lose its lease"
                    ),
                }
            }
        }
    }
}

fn tick(clocks: &Weak<Mutex<ByRuntime>>, runtime: &Handle, period: &AtomicU64) {
    while clocks.strong_count() > 0 {
        let (woken, seen) = mpsc::channel();
        runtime.spawn(async move {
            let _ = woken.send(());
        });
        thread::park_timeout(Duration::from_nanos(period.load(Ordering::Relaxed)));
        // A runtime that has ended drops tasks without polling them.
        if seen.try_recv() == Err(TryRecvError::Disconnected) {
            if let Some(clocks) = clocks.upgrade() {
                lock(&clocks).remove(&runtime.id());
            }
            return;
        }
    }
}

fn nanos(period: Duration) -> u64 {
    u64::try_from(period.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap()
    }

    fn periods(clocks: &Clocks) -> Vec<Duration> {
        let clocks = lock(&clocks.of_runtimes);
        let mut periods: Vec<_> = clocks.values().map(|clock| clock.every).collect();
        periods.sort();
        periods
    }

    #[test]
    fn each_runtime_has_a_clock_by_its_shortest_lease() {
        let clocks = Clocks::default();
        let (one, other) = (runtime(), runtime());
        let seconds = Duration::from_secs;
        clocks.keep_running(one.handle(), seconds(590));
        clocks.clone().keep_running(one.handle(), seconds(10));
        clocks.keep_running(one.handle(), seconds(20));
        assert_eq!(periods(&clocks), [seconds(1)]);
        clocks.keep_running(other.handle(), seconds(30));
        assert_eq!(periods(&clocks), [seconds(1), seconds(3)]);

        let single = Builder::new_current_thread().build().unwrap();
        clocks.keep_running(single.handle(), seconds(1));
        assert_eq!(periods(&clocks).len(), 2);
    }

    #[test]
    fn a_clock_ends_with_its_runtime() {
        let clocks = Clocks::default();
        let runtime = runtime();
        clocks.keep_running(runtime.handle(), Duration::from_millis(100));
        assert_eq!(periods(&clocks).len(), 1);
        drop(runtime);
        let give_up = Instant::now() + Duration::from_secs(60);
        while !periods(&clocks).is_empty() {
            assert!(Instant::now() < give_up, "its thread goes on");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
