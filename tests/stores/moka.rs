//! The memory store: the conformance suite, a reference model, and a full store.

#![cfg(all(feature = "moka", feature = "conformance"))]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use tower_webhook::memory::MokaStore;
use tower_webhook::store::conformance::{self, Harness};
use tower_webhook::store::{Claim, EventKey, Fence, KeyState, Lease, SettleError, Store};

use tracing::Level;

use support::log::Log;

struct Memory(MokaStore);

impl Harness for Memory {
    type Store = MokaStore;

    async fn open(&self) -> MokaStore {
        self.0.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn conforms_in_paused_time() {
    conformance::run(&Memory(MokaStore::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_in_real_time_on_several_threads() {
    conformance::run(&Memory(MokaStore::new())).await;
}

#[tokio::test(start_paused = true)]
async fn full_store_warns_that_it_evicts() {
    let logs = Log::capture(Level::DEBUG);
    let store = MokaStore::with_capacity(100);
    let day = Duration::from_secs(24 * 60 * 60);
    let handle = async |key: u32| {
        let id = EventKey::new("", &key.to_be_bytes(), b"");
        if let Claim::Acquired(lease) = store.claim(&id, day, day).await.unwrap() {
            store.complete(&lease, day).await.unwrap();
        }
    };
    for key in 0..10_000 {
        handle(key).await;
    }
    // Other tests' threads may have dropped some keys, or may be about to.
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut key = 10_000;
    while store.evictions() == 0 && Instant::now() < deadline {
        handle(key).await;
        key += 1;
    }
    handle(u32::MAX).await;
    let warnings = logs.count(Level::WARN, "the memory store is full");
    assert!(warnings > 0, "nothing was logged");
    let most = store.evictions().ilog2() as usize + 1;
    assert!(warnings <= most, "{warnings} warnings, {most} at most");
}

#[derive(Clone, Debug)]
enum Step {
    Claim {
        key: u8,
        body: u8,
        lease: u64,
        retain: u64,
    },
    /// Settling operations take the lease that was handed out so many claims ago.
    Renew {
        ago: usize,
        extend: u64,
    },
    Complete {
        ago: usize,
        retain: u64,
    },
    Release {
        ago: usize,
    },
    Forge {
        ago: usize,
        fence: u128,
    },
    Peek {
        key: u8,
    },
    Pass {
        seconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (key, body, ago) = (0..3_u8, 0..2_u8, 0..4_usize);
    let (lease, retain) = (1..20_u64, 1..60_u64);
    prop_oneof![
        4 => (key.clone(), body, lease.clone(), retain.clone())
            .prop_map(|(key, body, lease, retain)| Step::Claim { key, body, lease, retain }),
        2 => (ago.clone(), lease).prop_map(|(ago, extend)| Step::Renew { ago, extend }),
        2 => (ago.clone(), retain).prop_map(|(ago, retain)| Step::Complete { ago, retain }),
        2 => ago.clone().prop_map(|ago| Step::Release { ago }),
        1 => (ago, any::<u128>()).prop_map(|(ago, fence)| Step::Forge { ago, fence }),
        1 => key.prop_map(|key| Step::Peek { key }),
        3 => (0..15_u64).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

/// All that ever happened to a key, in whole seconds. What it is now is derived by looking back,
/// which is slow and has nothing in common with the store.
#[derive(Default)]
struct History(Vec<Past>);

struct Past {
    fence: Fence,
    attempt: u32,
    body: u8,
    until: u64,
    known: u64,
    released: bool,
    /// Until when.
    done: Option<u64>,
}

impl History {
    fn in_flight(&self, now: u64) -> Option<&Past> {
        let last = self.0.last()?;
        (!last.released && last.done.is_none() && now < last.until).then_some(last)
    }

    fn done(&self, now: u64) -> Option<&Past> {
        let last = self.0.last()?;
        last.done.is_some_and(|until| now < until).then_some(last)
    }

    fn next_attempt(&self, now: u64) -> u32 {
        match self.0.last() {
            Some(last) if last.done.is_none() && now < last.known => last.attempt + 1,
            _ => 1,
        }
    }

    fn current(&mut self, fence: Fence, now: u64) -> Option<&mut Past> {
        self.in_flight(now).filter(|past| past.fence == fence)?;
        self.0.last_mut()
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Whether the store did what the model says can be done.
fn agrees(result: Result<(), SettleError>, can: bool) -> bool {
    match result {
        Ok(()) => can,
        Err(SettleError::LeaseExpired) => !can,
        Err(_) => false,
    }
}

async fn agrees_with_the_model(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let store = MokaStore::with_capacity(20_000);
    let id = |key: u8, body: u8| EventKey::new("", &[key], &[body]);
    let mut model: HashMap<u8, History> = HashMap::new();
    let mut leases: Vec<(u8, Lease)> = Vec::new();
    let mut now = 0;

    for step in steps {
        let lease_of = |ago: usize| leases.iter().rev().nth(ago).cloned();
        match step {
            Step::Claim {
                key,
                body,
                lease,
                retain,
            } => {
                let history = model.entry(key).or_default();
                let claim = store
                    .claim(&id(key, body), seconds(lease), seconds(retain))
                    .await
                    .unwrap();
                match claim {
                    Claim::InFlight {
                        remaining,
                        same_body,
                    } => {
                        let run = history.in_flight(now);
                        let told = run.map(|run| (seconds(run.until - now), run.body == body));
                        prop_assert_eq!(Some((remaining, same_body)), told);
                    }
                    Claim::Done { same_body } => {
                        let told = history.done(now).map(|run| run.body == body);
                        prop_assert_eq!(Some(same_body), told);
                    }
                    Claim::Acquired(acquired) => {
                        prop_assert!(history.in_flight(now).is_none());
                        prop_assert!(history.done(now).is_none());
                        let attempt = history.next_attempt(now);
                        prop_assert_eq!(acquired.attempt().get(), attempt);
                        let fence = acquired.fence();
                        prop_assert!(leases.iter().all(|(_, old)| old.fence() != fence));
                        history.0.push(Past {
                            fence,
                            attempt,
                            body,
                            until: now + lease,
                            known: now + retain,
                            released: false,
                            done: None,
                        });
                        leases.push((key, acquired));
                    }
                }
            }
            Step::Renew { ago, extend } => {
                let Some((key, lease)) = lease_of(ago) else {
                    continue;
                };
                let run = model.entry(key).or_default().current(lease.fence(), now);
                let result = store.renew(&lease, seconds(extend)).await;
                prop_assert!(agrees(result, run.is_some()));
                if let Some(run) = run {
                    run.until = now + extend;
                }
            }
            Step::Complete { ago, retain } => {
                let Some((key, lease)) = lease_of(ago) else {
                    continue;
                };
                let run = model.entry(key).or_default().current(lease.fence(), now);
                let result = store.complete(&lease, seconds(retain)).await;
                prop_assert!(agrees(result, run.is_some()));
                if let Some(run) = run {
                    run.done = Some(now + retain);
                }
            }
            Step::Release { ago } => {
                let Some((key, lease)) = lease_of(ago) else {
                    continue;
                };
                let run = model.entry(key).or_default().current(lease.fence(), now);
                let result = store.release(&lease).await;
                prop_assert!(agrees(result, run.is_some()));
                if let Some(run) = run {
                    run.released = true;
                }
            }
            Step::Forge { ago, fence } => {
                let Some((_, lease)) = lease_of(ago) else {
                    continue;
                };
                let forged = Lease::new(*lease.id(), Fence(fence | 1 << 100), lease.attempt());
                prop_assert!(agrees(store.renew(&forged, seconds(99)).await, false));
                prop_assert!(agrees(store.complete(&forged, seconds(99)).await, false));
                prop_assert!(agrees(store.release(&forged).await, false));
            }
            Step::Peek { key } => {
                let history = model.entry(key).or_default();
                let expected = if let Some(run) = history.in_flight(now) {
                    KeyState::InFlight {
                        remaining: seconds(run.until - now),
                    }
                } else if history.done(now).is_some() {
                    KeyState::Done
                } else {
                    KeyState::Free
                };
                prop_assert_eq!(store.peek(&id(key, 0)).await.unwrap(), expected);
            }
            Step::Pass { seconds: passed } => {
                tokio::time::advance(seconds(passed)).await;
                now += passed;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_of_operations_matches_the_model(steps in vec(step(), 1..60)) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(agrees_with_the_model(steps))?;
    }
}
