//! A store with faults, and a view of what stores hold.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_webhook::memory::MokaStore;
use tower_webhook::store::{
    Claim, EventKey, KeyState, Lease, SettleError, Store, StoreError, StoreErrorKind,
};

use super::lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Claim,
    Peek,
    Renew,
    Complete,
    Release,
}

/// An operation that a [`TestStore`] was called for.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub op: Operation,
    /// Counted from 1, among those of the same kind.
    pub nth: usize,
    pub at: Instant,
    /// The key's digest.
    pub key: u128,
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// It has no effect and fails.
    Error,
    /// It has no effect and never returns.
    Hang,
    /// It is delayed by this time.
    Late(Duration),
    /// It takes effect and fails all the same. For completions only.
    LostAnswer,
}

/// A store with faults over a [`MokaStore`]. With `DURABLE`, its leases outlive the process, as those
/// of a server do.
pub struct TestStore<const DURABLE: bool = true> {
    truth: MokaStore,
    shared: Arc<Shared>,
    yields_before: usize,
    yields_after: usize,
}

struct Shared {
    script: Box<dyn Fn(Call) -> Fault + Send + Sync>,
    failing: Mutex<Vec<Operation>>,
    calls: Mutex<Vec<Call>>,
    /// What every lease really lasts, as on a server whose clock runs fast.
    real_lease: Option<Duration>,
    /// In the order of their claims.
    leases: Mutex<Vec<Lease>>,
}

impl TestStore<true> {
    pub fn new(script: impl Fn(Call) -> Fault + Send + Sync + 'static) -> Self {
        Self::scripted(script, None)
    }

    pub fn with_real_lease(lease: Duration) -> Self {
        Self::scripted(|_| Fault::None, Some(lease))
    }
}

impl TestStore<false> {
    /// One whose leases end with the process.
    pub fn volatile(script: impl Fn(Call) -> Fault + Send + Sync + 'static) -> Self {
        Self::scripted(script, None)
    }
}

impl<const DURABLE: bool> TestStore<DURABLE> {
    fn scripted(
        script: impl Fn(Call) -> Fault + Send + Sync + 'static,
        real_lease: Option<Duration>,
    ) -> Self {
        Self {
            // A default one is made for a million keys, which takes milliseconds.
            truth: MokaStore::with_capacity(10_000),
            shared: Arc::new(Shared {
                script: Box::new(script),
                failing: Mutex::default(),
                calls: Mutex::default(),
                real_lease,
                leases: Mutex::default(),
            }),
            yields_before: 0,
            yields_after: 0,
        }
    }

    /// Yields this often before each change takes effect, and after it.
    pub fn yielding(before: usize, after: usize) -> Self {
        Self {
            yields_before: before,
            yields_after: after,
            ..Self::default()
        }
    }

    /// From now on these operations fail, and no others.
    pub fn fail(&self, operations: impl Into<Vec<Operation>>) {
        *lock(&self.shared.failing) = operations.into();
    }

    /// The calls of one operation so far.
    pub fn calls(&self, op: Operation) -> Vec<Call> {
        let calls = lock(&self.shared.calls);
        calls.iter().filter(|call| call.op == op).copied().collect()
    }

    /// The calls so far that were to change something, each with its key's digest.
    pub fn changes(&self) -> Vec<(Operation, u128)> {
        let calls = lock(&self.shared.calls);
        let changes = calls.iter().filter(|call| call.op != Operation::Peek);
        changes.map(|call| (call.op, call.key)).collect()
    }

    /// Ends a lease, counted from 0, without the knowledge of its run.
    pub async fn end_lease(&self, nth: usize) {
        let lease = lock(&self.shared.leases)[nth].clone();
        self.truth.release(&lease).await.unwrap();
    }

    /// The true state of a key, whatever the faults.
    pub async fn state(&self, key: &str) -> KeyState {
        self.truth.state(key).await
    }

    /// Runs an operation with its faults.
    async fn call<T, E: From<StoreError>>(
        &self,
        op: Operation,
        id: &EventKey,
        effect: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let call = self.record(op, id.key());
        if op == Operation::Peek {
            return self.with_fault(call, effect).await;
        }
        for _ in 0..self.yields_before {
            tokio::task::yield_now().await;
        }
        if lock(&self.shared.failing).contains(&op) {
            return Err(unavailable().into());
        }
        let done = self.with_fault(call, effect).await;
        for _ in 0..self.yields_after {
            tokio::task::yield_now().await;
        }
        done
    }

    fn record(&self, op: Operation, key: u128) -> Call {
        let mut calls = lock(&self.shared.calls);
        let nth = 1 + calls.iter().filter(|call| call.op == op).count();
        let at = Instant::now();
        let call = Call { op, nth, at, key };
        calls.push(call);
        call
    }

    async fn with_fault<T, E: From<StoreError>>(
        &self,
        call: Call,
        effect: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match (self.shared.script)(call) {
            Fault::None => effect.await,
            Fault::Late(by) => {
                sleep(by).await;
                effect.await
            }
            Fault::LostAnswer => {
                effect.await?;
                Err(unavailable().into())
            }
            Fault::Error => Err(unavailable().into()),
            Fault::Hang => pending().await,
        }
    }

    fn real(&self, lease: Duration) -> Duration {
        self.shared.real_lease.unwrap_or(lease)
    }
}

impl<const DURABLE: bool> Default for TestStore<DURABLE> {
    fn default() -> Self {
        Self::scripted(|_| Fault::None, None)
    }
}

impl<const DURABLE: bool> Clone for TestStore<DURABLE> {
    fn clone(&self) -> Self {
        Self {
            truth: self.truth.clone(),
            shared: Arc::clone(&self.shared),
            ..*self
        }
    }
}

impl<const DURABLE: bool> Store for TestStore<DURABLE> {
    const DURABLE_LEASES: bool = DURABLE;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        let effect = async {
            let claim = self.truth.claim(id, self.real(lease), retain).await?;
            if let Claim::Acquired(lease) = &claim {
                lock(&self.shared.leases).push(lease.clone());
            }
            Ok(claim)
        };
        self.call(Operation::Claim, id, effect).await
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        self.call(Operation::Peek, id, self.truth.peek(id)).await
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        let effect = self.truth.renew(lease, self.real(extend));
        self.call(Operation::Renew, lease.id(), effect).await
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        let effect = self.truth.complete(lease, retain);
        self.call(Operation::Complete, lease.id(), effect).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        let effect = self.truth.release(lease);
        self.call(Operation::Release, lease.id(), effect).await
    }
}

fn unavailable() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "disk full")
}

pub trait StoreExt {
    /// What is known of a key in the empty namespace.
    fn state(&self, key: &str) -> impl Future<Output = KeyState>;
}

impl StoreExt for MokaStore {
    async fn state(&self, key: &str) -> KeyState {
        self.peek(&EventKey::new("", key.as_bytes(), b""))
            .await
            .unwrap()
    }
}
