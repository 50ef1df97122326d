//! Compares the memory store with a model of the `Store` contract, step by step.
#![no_main]

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use arbitrary::Arbitrary;
use futures_util::FutureExt;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};
use tower_webhook::memory::MokaStore;
use tower_webhook::store::{Claim, EventKey, KeyState, Lease, SettleError, Store};

#[derive(Arbitrary, Debug)]
enum Operation {
    Claim {
        key: u8,
        body: u8,
        lease: Time,
        retain: Time,
    },
    Peek {
        key: u8,
    },
    /// The other operations pick one of all leases that were acquired.
    Renew {
        lease: u8,
        extend: Time,
    },
    Complete {
        lease: u8,
        retain: Time,
    },
    Release {
        lease: u8,
    },
    Wait(Time),
}

/// Long, so that the real time of a run, by which moka collects its garbage, does not matter.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Time(u8);

impl From<Time> for Duration {
    fn from(Time(hours): Time) -> Self {
        Self::from_secs(u64::from(hours) * 3600)
    }
}

const KEYS: u8 = 4;
const BODIES: u8 = 2;
const FLOOD: u64 = 3500;

/// The state of a key according to the contract.
#[derive(Default)]
struct Key {
    state: State,
    /// How often the key was claimed, and until when the count is kept.
    attempts: Option<(u32, Duration)>,
}

#[derive(Default)]
enum State {
    #[default]
    Free,
    InFlight {
        fence: u128,
        body: u8,
        until: Duration,
    },
    Done {
        body: u8,
        until: Duration,
    },
}

impl Key {
    fn at(&mut self, now: Duration) -> &mut Self {
        if let State::InFlight { until, .. } | State::Done { until, .. } = self.state
            && until <= now
        {
            self.state = State::Free;
        }
        self.attempts = self.attempts.filter(|(_, until)| *until > now);
        self
    }

    /// Returns the claim, if it has this fence.
    fn claim(&mut self, wanted: u128) -> Option<(u8, &mut Duration)> {
        match &mut self.state {
            State::InFlight { fence, body, until } if *fence == wanted => Some((*body, until)),
            _ => None,
        }
    }
}

struct World {
    store: MokaStore,
    now: Duration,
    keys: HashMap<u64, Key>,
    leases: Vec<(u64, Lease)>,
    fences: HashSet<u128>,
}

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
}

fuzz_target!(|operations: Vec<Operation>| {
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let mut world = World {
                store: MokaStore::with_capacity(100_000),
                now: Duration::ZERO,
                keys: HashMap::new(),
                leases: Vec::new(),
                fences: HashSet::new(),
            };
            // Rarely, because a flood takes as long as thousands of operations.
            let flood = operations.len() % 16 == 15;
            for operation in operations {
                world.step(operation).await;
            }
            if flood {
                world.flood();
            }
            assert_eq!(world.store.evictions(), 0);
        });
    });
});

impl World {
    async fn step(&mut self, operation: Operation) {
        match operation {
            Operation::Claim {
                key,
                body,
                lease,
                retain,
            } => {
                self.claim(
                    u64::from(key % KEYS),
                    body % BODIES,
                    lease.into(),
                    retain.into(),
                );
            }
            Operation::Peek { key } => self.peek(u64::from(key % KEYS)),
            Operation::Wait(time) => {
                self.now += time.into();
                tokio::time::advance(time.into()).await;
            }
            Operation::Renew { lease, extend } => {
                let Some((key, lease)) = self.lease(lease) else {
                    return;
                };
                let renewed = now(self.store.renew(&lease, extend.into()));
                let until = self.now + extend.into();
                let claim = self
                    .key(key)
                    .claim(lease.fence().0)
                    .map(|(_, deadline)| *deadline = until);
                assert_settled(renewed, claim.is_some());
            }
            Operation::Complete { lease, retain } => {
                let Some((key, lease)) = self.lease(lease) else {
                    return;
                };
                let completed = now(self.store.complete(&lease, retain.into()));
                let until = self.now + retain.into();
                let key = self.key(key);
                let body = key.claim(lease.fence().0).map(|(body, _)| body);
                assert_settled(completed, body.is_some());
                if let Some(body) = body {
                    *key = Key {
                        state: State::Done { body, until },
                        attempts: None,
                    };
                }
            }
            Operation::Release { lease } => {
                let Some((key, lease)) = self.lease(lease) else {
                    return;
                };
                let released = now(self.store.release(&lease));
                let key = self.key(key);
                let claimed = key.claim(lease.fence().0).is_some();
                assert_settled(released, claimed);
                if claimed {
                    key.state = State::Free;
                }
            }
        }
    }

    /// Makes so many claims that expired ones are swept, and then checks that their counts are kept.
    fn flood(&mut self) {
        for key in (0..FLOOD).chain(0..FLOOD) {
            self.claim(key, 0, Duration::ZERO, Duration::from_secs(10_000_000));
        }
    }

    fn claim(&mut self, number: u64, body: u8, lease: Duration, retain: Duration) {
        let id = id(number, body);
        let claim = now(self.store.claim(&id, lease, retain)).expect("memory does not fail");
        let at = self.now;
        let key = self.key(number);
        match (claim, &key.state) {
            (Claim::Acquired(lease_held), State::Free) => {
                let attempt = key.attempts.map_or(1, |(attempts, _)| attempts + 1);
                assert_eq!(lease_held.attempt().get(), attempt);
                assert_eq!(lease_held.id(), &id);
                let fence = lease_held.fence().0;
                key.attempts = Some((attempt, at + retain));
                key.state = State::InFlight {
                    fence,
                    body,
                    until: at + lease,
                };
                assert!(self.fences.insert(fence), "a fence was used twice");
                self.leases.push((number, lease_held));
            }
            (
                Claim::InFlight {
                    remaining,
                    same_body,
                },
                State::InFlight {
                    body: other, until, ..
                },
            ) => {
                assert_eq!(remaining, *until - at);
                assert_eq!(same_body, body == *other);
            }
            (Claim::Done { same_body }, State::Done { body: other, .. }) => {
                assert_eq!(same_body, body == *other);
            }
            (claim, _) => panic!("{claim:?}"),
        }
    }

    fn peek(&mut self, number: u64) {
        let peeked = now(self.store.peek(&id(number, 0))).expect("memory does not fail");
        let at = self.now;
        let expected = match self.key(number).state {
            State::Free => KeyState::Free,
            State::InFlight { until, .. } => KeyState::InFlight {
                remaining: until - at,
            },
            State::Done { .. } => KeyState::Done,
        };
        assert_eq!(peeked, expected);
    }

    fn key(&mut self, number: u64) -> &mut Key {
        self.keys.entry(number).or_default().at(self.now)
    }

    /// Prefers the newest leases, which are the most interesting ones.
    fn lease(&self, back: u8) -> Option<(u64, Lease)> {
        let back = usize::from(back) % self.leases.len().max(1);
        self.leases.iter().rev().nth(back).cloned()
    }
}

fn id(key: u64, body: u8) -> EventKey {
    EventKey::new("", &key.to_be_bytes(), &[body])
}

fn now<T>(operation: impl Future<Output = T>) -> T {
    operation.now_or_never().expect("memory answers at once")
}

fn assert_settled(result: Result<(), SettleError>, claimed: bool) {
    match result {
        Ok(()) => assert!(claimed, "an expired lease was settled"),
        Err(SettleError::LeaseExpired) => assert!(!claimed, "a valid lease was refused"),
        Err(error) => panic!("{error}"),
    }
}
