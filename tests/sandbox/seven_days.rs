//! A week with a bad connection and a bad handler, in milliseconds, from many seeds: the receiver keeps
//! its promises, and the same checker detects receivers that do not.
//!
//! `SEVEN_DAYS_SEEDS=100` runs that many seeds, `SEVEN_DAYS_SEED=17` only that one.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::fmt::Write;
use std::future::{Future, pending};
use std::num::{NonZeroU32, NonZeroUsize};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use http::{Request, Response, StatusCode};
use tokio::time::{Instant, sleep};
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt};
use tower_webhook::event::{
    ChatAssigned, ChatClosed, ChatOpened, ChatRated, ChatReopened, ChatTransferred, Event,
    MessageCreated, Timestamp,
};
use tower_webhook::memory::MokaStore;
use tower_webhook::store::{
    Claim, EventKey, Fence, KeyState, Lease, SettleError, Store, StoreError, StoreErrorKind,
};
use tower_webhook::{
    Delivery, EventRouter, Handler, HandlerResult, Secret, SignatureLayer, Verified, Webhooks,
};
use tower_webhook_sandbox::{
    AttemptId, AttemptResult, Body, EventState, Fault, Faults, Report, Sandbox, Settings, Webhook,
};

use support::Ready;
use support::{MINUTE, SECOND};

#[test]
fn every_promise_is_kept_with_every_seed() {
    expect_none_of(seeds(), Receiver::Moka);
}

#[test]
fn every_promise_is_kept_with_an_unreliable_durable_store() {
    // A third of the seeds, but the one that was asked for in any case.
    expect_none_of(seeds().step_by(3), Receiver::UnreliableStore);
}

#[test]
fn leases_that_expire_early_only_repeat_runs() {
    expect_none(1, &Week::live(1, Receiver::JumpyStore, 300));
}

#[test]
fn every_fault_occurs_within_a_week() {
    let week = Week::live(1, Receiver::Moka, 1_000);
    let attempts = week.report.attempts();
    for fault in Fault::ALL {
        let meets = |injected: tower_webhook_sandbox::Injected| injected.fault == fault;
        let times = attempts
            .iter()
            .filter(|attempt| attempt.fault.is_some_and(meets))
            .count();
        assert!(times > 0, "{fault} did not happen");
    }
    let span = week
        .report
        .events
        .last()
        .map(|event| event.arose_at.as_millis())
        .zip(
            week.report
                .events
                .first()
                .map(|event| event.arose_at.as_millis()),
        )
        .map(|(last, first)| last - first);
    assert!(
        span > Some(6 * 24 * 60 * 60 * 1_000),
        "the week was too short: {span:?} ms"
    );
}

#[test]
fn seed_reproduces_the_same_week() {
    let [first, second] = [(); 2].map(|()| Week::live(7, Receiver::Moka, 300));
    assert_eq!(first.report, second.report);
    assert_eq!(first.log.trace, second.log.trace);
    assert_ne!(
        first.log.trace,
        Week::live(8, Receiver::Moka, 300).log.trace
    );
}

#[test]
fn early_acknowledgement_is_detected() {
    expect(Receiver::AcknowledgesFirst, 100, "was never handled");
}

#[test]
fn missing_release_is_detected() {
    expect(Receiver::Lies(Lie::NeverReleases), 12, "is lost");
}

#[test]
fn ignored_key_is_detected() {
    expect(Receiver::IgnoresKey, 100, "ran again after its success");
    expect(Receiver::IgnoresKey, 100, "two runs at once");
}

#[test]
fn ignored_signature_is_detected() {
    expect(Receiver::IgnoresSignature, 100, "was forged and ran");
}

#[test]
fn retention_of_five_minutes_is_detected() {
    expect(
        Receiver::Lies(Lie::ForgetsAfterFiveMinutes),
        200,
        "ran again after its success",
    );
}

#[test]
fn claim_granted_twice_is_detected() {
    expect(Receiver::Lies(Lie::GrantsTwice), 200, "two runs at once");
}

#[test]
fn accepted_stale_settlement_is_detected() {
    expect(
        Receiver::Lies(Lie::AcceptsStaleSettle),
        300,
        "accepted a stale settle",
    );
}

fn seeds() -> impl Iterator<Item = u64> {
    let number = |name: &str| -> Option<u64> {
        let text = std::env::var(name).ok()?;
        Some(
            text.parse()
                .unwrap_or_else(|_| panic!("{name} is no number")),
        )
    };
    match number("SEVEN_DAYS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEVEN_DAYS_SEEDS").unwrap_or(24),
    }
}

/// Lives a week with each seed, on all cores.
fn expect_none_of(seeds: impl Iterator<Item = u64> + Send, receiver: Receiver) {
    let seeds = Mutex::new(seeds);
    let next = || seeds.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZeroUsize::get) {
            scope.spawn(|| {
                while let Some(seed) = next() {
                    expect_none(seed, &Week::live(seed, receiver, 1_000));
                }
            });
        }
    });
}

fn expect_none(seed: u64, week: &Week) {
    let violations = week.violations();
    assert!(
        violations.is_empty(),
        "seed {seed}: {} violations, the first of which are\n{}\nto replay it: SEVEN_DAYS_SEED={seed} \
         bash tests/run --test sandbox seven_days",
        violations.len(),
        violations[..violations.len().min(10)].join("\n"),
    );
}

fn expect(receiver: Receiver, events: usize, violation: &str) {
    let violations = Week::live(3, receiver, events).violations();
    assert!(
        violations.iter().any(|found| found.contains(violation)),
        "the checker did not see that an event `{violation}`, but\n{}",
        violations.join("\n"),
    );
}

#[derive(Clone, Copy, Debug)]
enum Receiver {
    Moka,
    /// Fails, is slow, and its leases outlive the process: they are short and renewed.
    UnreliableStore,
    /// Ends leases after a second, as a server whose clock jumps.
    JumpyStore,
    AcknowledgesFirst,
    IgnoresKey,
    IgnoresSignature,
    Lies(Lie),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    NeverReleases,
    ForgetsAfterFiveMinutes,
    GrantsTwice,
    AcceptsStaleSettle,
}

/// What the platform and the receiver saw in a week.
struct Week {
    report: Report,
    log: Log,
}

impl Week {
    fn live(seed: u64, receiver: Receiver, events: usize) -> Self {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(Self::live_in_runtime(seed, receiver, events))
    }

    async fn live_in_runtime(seed: u64, receiver: Receiver, events: usize) -> Self {
        let secret = Secret::new("a shared secret").unwrap();
        let log = SharedLog::default();
        let sandbox = Sandbox::in_process_with(
            receiver.build(seed, &secret, &log),
            Settings {
                seed,
                faults: Faults::all(0.03),
                start: Timestamp::from_millis(1_700_000_000_000),
                ..Settings::default()
            },
        );
        sandbox.configure_all(&Webhook::new("/webhooks").signed(secret));

        let mut generator = sandbox.generator();
        let mut rng = Rng::with_seed(seed);
        // Half of the pauses are short, and the others half as long as this on average.
        let pause = 4 * 7 * 24 * 60 * MINUTE / events as u32;
        for _ in 0..events {
            generator.step();
            if rng.bool() {
                sleep(pause.mul_f64(rng.f64())).await;
            } else {
                sleep(SECOND.mul_f64(rng.f64())).await;
            }
        }
        let report = sandbox.finish().await;
        // Runs whose client has left may outlast the last delivery.
        sleep(MINUTE).await;
        Self {
            report,
            log: std::mem::take(&mut log.lock()),
        }
    }

    fn violations(&self) -> Vec<String> {
        let Self { report, log } = self;
        let mut found = log.violations.clone();
        let mut attempts = 0;
        for event in &report.events {
            let key = event.key.as_deref().unwrap();
            match event.state {
                EventState::Delivered if !log.handled.contains(key) => {
                    found.push(format!("{key} was never handled:\n{event}"));
                }
                EventState::Delivered => {}
                EventState::Lost => found.push(format!("{key} is lost")),
                EventState::NeverSent => {
                    found.push(format!("{key} arose while its webhook was disabled"));
                }
                EventState::Waiting => found.push(format!("{key} still waits")),
            }
            for attempt in &event.attempts {
                attempts += 1;
                let answered = log.answered.get(&attempt.id).copied();
                let agrees = match (&attempt.result, answered) {
                    (AttemptResult::Answered(seen), Some(Some(answered))) => *seen == answered,
                    (AttemptResult::Withheld(seen), Some(answered)) => *seen == answered,
                    (AttemptResult::TimedOut, Some(answered)) => answered.is_none(),
                    _ => false,
                };
                if !agrees {
                    found.push(format!("{attempt:?} was answered with {answered:?}"));
                }
                let forged = attempt.fault.is_some_and(|injected| {
                    matches!(injected.fault, Fault::Tamper | Fault::WrongSecret)
                });
                if forged && log.ran.contains(&attempt.id) {
                    found.push(format!("{attempt:?} was forged and ran"));
                }
                if forged && attempt.result != AttemptResult::Answered(StatusCode::UNAUTHORIZED) {
                    found.push(format!("{attempt:?} was forged and not refused"));
                }
            }
        }
        if attempts != log.answered.len() {
            found.push(format!(
                "the receiver saw {} requests of {attempts}",
                log.answered.len()
            ));
        }
        found
    }
}

/// What the receiver did.
#[derive(Default)]
struct Log {
    /// Every request, and the answer to those that lived to see one.
    answered: HashMap<AttemptId, Option<StatusCode>>,
    /// The requests that reached a run.
    ran: HashSet<AttemptId>,
    handled: HashSet<String>,
    runs: HashMap<String, u64>,
    keys: HashMap<u128, Key>,
    fences: HashSet<Fence>,
    trace: String,
    violations: Vec<String>,
}

/// What is known of a key, by what the store said and what was answered.
#[derive(Default)]
struct Key {
    /// Those that were granted and not settled, with their ends.
    leases: Vec<(Fence, Instant)>,
    succeeded: bool,
    /// Those under way, by their lease. A receiver without a store has none.
    runs: Vec<Option<Fence>>,
}

impl Key {
    fn is_valid(&self, fence: Fence) -> bool {
        let now = Instant::now();
        self.leases
            .iter()
            .any(|(granted, until)| *granted == fence && *until > now)
    }
}

fn store_key(key: &str) -> u128 {
    EventKey::new("", key.as_bytes(), b"").key()
}

#[derive(Clone, Default)]
struct SharedLog(Arc<Mutex<Log>>);

impl SharedLog {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap()
    }
}

impl Log {
    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        writeln!(self.trace, "{what}").unwrap();
    }

    fn violated(&mut self, what: String) {
        self.note(format_args!("{what}"));
        self.violations.push(what);
    }

    fn claimed(&mut self, lease: &Lease, until: Instant) {
        let (id, fence) = (lease.id().key(), lease.fence());
        self.note(format_args!("claim {id:032x} {fence:?}"));
        if !self.fences.insert(fence) {
            self.violated(format!("{fence:?} was used twice"));
        }
        self.keys.entry(id).or_default().leases.push((fence, until));
    }

    fn renewed(&mut self, lease: &Lease, until: Instant) {
        let key = self.keys.entry(lease.id().key()).or_default();
        let granted = key
            .leases
            .iter_mut()
            .find(|(fence, _)| *fence == lease.fence());
        if let Some((_, end)) = granted {
            *end = until;
        }
    }

    fn settled(&mut self, lease: &Lease, succeeded: bool) {
        let (id, fence) = (lease.id().key(), lease.fence());
        self.note(format_args!("settle {id:032x} {fence:?} {succeeded}"));
        let key = self.keys.entry(id).or_default();
        let was_valid = key.is_valid(fence);
        key.leases.retain(|(granted, _)| *granted != fence);
        key.succeeded |= succeeded;
        if !was_valid {
            self.violated(format!("the store accepted a stale settle of {id:032x}"));
        }
    }

    fn run_begins(&mut self, id: AttemptId, name: &str) -> Option<Fence> {
        self.note(format_args!("run {id} {name}"));
        self.ran.insert(id);
        let key = self.keys.entry(store_key(name)).or_default();
        let again = key.succeeded;
        let at_once = key
            .runs
            .iter()
            .any(|run| run.is_none_or(|fence| key.is_valid(fence)));
        let fence = key.leases.last().map(|(fence, _)| *fence);
        key.runs.push(fence);
        if again {
            self.violated(format!("{name} ran again after its success"));
        }
        if at_once {
            self.violated(format!("{name} has two runs at once"));
        }
        fence
    }

    fn run_ends(&mut self, name: &str, fence: Option<Fence>, status: Option<StatusCode>) {
        self.note(format_args!("run of {name} ends with {status:?}"));
        let key = self.keys.entry(store_key(name)).or_default();
        if let Some(at) = key.runs.iter().position(|run| *run == fence) {
            key.runs.swap_remove(at);
        }
    }

    fn answers(&mut self, id: AttemptId, name: &str, status: StatusCode) {
        self.note(format_args!("{id} is answered with {status}"));
        self.answered.insert(id, Some(status));
        self.keys.entry(store_key(name)).or_default().succeeded |= status.is_success();
    }
}

type Gated = BoxCloneSyncService<Request<Body>, Response<()>, Infallible>;

impl Receiver {
    fn build(self, seed: u64, secret: &Secret, log: &SharedLog) -> Gated {
        let verify = SignatureLayer::new(secret.clone());
        let router = Spy {
            inner: router(seed, log),
            log: log.clone(),
        };
        let watched = |limit, lie| Watched {
            inner: MapStore::<false>::new(lie),
            limit,
            log: log.clone(),
        };
        match self {
            Self::Moka => {
                let store = Watched {
                    inner: MokaStore::new(),
                    limit: Duration::MAX,
                    log: log.clone(),
                };
                log.gate(
                    Webhooks::new(secret.clone())
                        .store(Arc::new(store))
                        .layer(router),
                )
            }
            Self::UnreliableStore => {
                let store = Unreliable {
                    inner: Watched {
                        inner: MapStore::<true>::new(None),
                        limit: Duration::MAX,
                        log: log.clone(),
                    },
                    rng: Mutex::new(Rng::with_seed(seed)),
                };
                log.gate(
                    Webhooks::new(secret.clone())
                        .store(Arc::new(store))
                        .layer(router),
                )
            }
            Self::JumpyStore => {
                let store = watched(SECOND, None);
                log.gate(
                    Webhooks::new(secret.clone())
                        .store(Arc::new(store))
                        .layer(router),
                )
            }
            Self::Lies(lie) => {
                let limit = match lie {
                    Lie::AcceptsStaleSettle => SECOND,
                    _ => Duration::MAX,
                };
                let store = watched(limit, Some(lie));
                log.gate(
                    Webhooks::new(secret.clone())
                        .store(Arc::new(store))
                        .layer(router),
                )
            }
            Self::AcknowledgesFirst => {
                let store = watched(Duration::MAX, None);
                let acknowledge = tower::service_fn(move |request| {
                    tokio::spawn(router.clone().oneshot(request));
                    async {
                        Ok::<_, Infallible>(Response::new(
                            http_body_util::Empty::<bytes::Bytes>::new(),
                        ))
                    }
                });
                log.gate(
                    Webhooks::new(secret.clone())
                        .store(Arc::new(store))
                        .layer(acknowledge),
                )
            }
            Self::IgnoresKey => log.gate(verify.layer(router)),
            Self::IgnoresSignature => {
                let store = watched(Duration::MAX, None);
                let webhooks = Webhooks::dangerously_unsigned().store(Arc::new(store));
                log.gate(webhooks.layer(router))
            }
        }
    }
}

impl SharedLog {
    /// Notes what comes in from the platform and what is answered.
    fn gate<S, B>(&self, service: S) -> Gated
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send,
        B: 'static,
    {
        let log = self.clone();
        BoxCloneSyncService::new(tower::service_fn(move |request: Request<Body>| {
            let id = *request.extensions().get::<AttemptId>().unwrap();
            let key = request.headers()["idempotency-key"]
                .to_str()
                .unwrap()
                .to_owned();
            log.lock().answered.insert(id, None);
            let answer = service.clone().oneshot(request);
            let log = log.clone();
            async move {
                let response = answer.await?.map(drop);
                log.lock().answers(id, &key, response.status());
                Ok(response)
            }
        }))
    }
}

/// Notes every run: it stands where only what the layers let through arrives.
#[derive(Clone)]
struct Spy {
    inner: EventRouter,
    log: SharedLog,
}

impl Service<Request<Verified>> for Spy {
    type Response = <EventRouter as Service<Request<Verified>>>::Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Verified>) -> Self::Future {
        let id = *request.extensions().get::<AttemptId>().unwrap();
        let key = request.body().delivery().key().unwrap().to_string();
        let fence = self.log.lock().run_begins(id, &key);
        let run = Run {
            key,
            fence,
            status: None,
            log: self.log.clone(),
        };
        let handling = self.inner.call(request);
        Box::pin(async move {
            let mut run = run;
            let response = handling.await?;
            run.status = Some(response.status());
            Ok(response)
        })
    }
}

/// Ends the run when it is dropped, however that comes about.
struct Run {
    key: String,
    fence: Option<Fence>,
    status: Option<StatusCode>,
    log: SharedLog,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.log.lock().run_ends(&self.key, self.fence, self.status);
    }
}

fn router(seed: u64, log: &SharedLog) -> EventRouter {
    let moody = Moody {
        seed,
        log: log.clone(),
    };
    EventRouter::new()
        .on::<ChatAssigned>(moody.clone())
        .on::<ChatOpened>(moody.clone())
        .on::<ChatClosed>(moody.clone())
        .on::<ChatReopened>(moody.clone())
        .on::<ChatTransferred>(moody.clone())
        .on::<ChatRated>(moody.clone())
        .on::<MessageCreated>(moody)
}

/// Fails, panics, hangs and dawdles.
#[derive(Clone)]
struct Moody {
    seed: u64,
    log: SharedLog,
}

impl<E: Event> Handler<E> for Moody {
    async fn handle(&self, delivery: Delivery<E>) -> HandlerResult {
        let key = delivery.key().unwrap().to_string();
        let mut rng = {
            let mut log = self.log.lock();
            let runs = log.runs.entry(key.clone()).or_default();
            *runs += 1;
            Rng::with_seed(self.seed ^ *runs ^ store_key(&key) as u64)
        };
        let pauses = rng.u8(..4);
        for _ in 0..pauses {
            sleep(SECOND.mul_f64(rng.f64())).await;
        }
        match rng.u8(..100) {
            0..15 => return Err("in a bad mood".into()),
            // `panic!` would write to the terminal each time.
            15..20 => std::panic::resume_unwind(Box::new("in a worse mood")),
            20..23 => pending().await,
            // Longer than the platform waits, and then than the handler may take.
            23..30 => sleep(SECOND.mul_f64(5.0 + 30.0 * rng.f64())).await,
            _ => {}
        }
        self.log.lock().handled.insert(key);
        Ok(())
    }
}

/// Notes what a store says, and lets its leases end after `limit` at the latest.
struct Watched<S> {
    inner: S,
    limit: Duration,
    log: SharedLog,
}

impl<S> Watched<S> {
    fn until(&self, lease: Duration) -> Instant {
        Instant::now() + lease.min(self.limit)
    }
}

impl<S: Store> Store for Watched<S> {
    const DURABLE_LEASES: bool = S::DURABLE_LEASES;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        let claim = self.inner.claim(id, lease.min(self.limit), retain).await?;
        if let Claim::Acquired(granted) = &claim {
            self.log.lock().claimed(granted, self.until(lease));
        }
        Ok(claim)
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        self.inner.peek(id).await
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        self.inner.renew(lease, extend.min(self.limit)).await?;
        self.log.lock().renewed(lease, self.until(extend));
        Ok(())
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        self.inner.complete(lease, retain).await?;
        self.log.lock().settled(lease, true);
        Ok(())
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        self.inner.release(lease).await?;
        self.log.lock().settled(lease, false);
        Ok(())
    }
}

/// A store that is as simple as the contract allows, and may break one clause of it.
struct MapStore<const OUTLIVES: bool> {
    keys: Mutex<(u128, HashMap<u128, Entry>)>,
    lie: Option<Lie>,
}

struct Entry {
    fence: Fence,
    body: u128,
    attempt: u32,
    leased_until: Instant,
    done_until: Option<Instant>,
}

impl<const OUTLIVES: bool> MapStore<OUTLIVES> {
    fn new(lie: Option<Lie>) -> Self {
        Self {
            keys: Mutex::default(),
            lie,
        }
    }

    fn with_current(
        &self,
        lease: &Lease,
        change: impl FnOnce(&mut Entry),
    ) -> Result<(), SettleError> {
        let mut keys = self.keys.lock().unwrap();
        let stale = self.lie == Some(Lie::AcceptsStaleSettle);
        let entry = keys.1.get_mut(&lease.id().key()).filter(|entry| {
            stale || entry.fence == lease.fence() && entry.leased_until > Instant::now()
        });
        entry.map(change).ok_or(SettleError::LeaseExpired)
    }
}

impl<const OUTLIVES: bool> Store for MapStore<OUTLIVES> {
    const DURABLE_LEASES: bool = OUTLIVES;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        _: Duration,
    ) -> Result<Claim, StoreError> {
        let now = Instant::now();
        let (next_fence, keys) = &mut *self.keys.lock().unwrap();
        let mut attempt = 1;
        if let Some(entry) = keys.get(&id.key()) {
            let same_body = entry.body == id.body();
            if entry.done_until.is_some_and(|until| until > now) {
                return Ok(Claim::Done { same_body });
            }
            if entry.leased_until > now && self.lie != Some(Lie::GrantsTwice) {
                let remaining = entry.leased_until - now;
                return Ok(Claim::InFlight {
                    remaining,
                    same_body,
                });
            }
            attempt = entry.attempt + 1;
        }
        *next_fence += 1;
        let fence = Fence(*next_fence);
        let entry = Entry {
            fence,
            body: id.body(),
            attempt,
            leased_until: now + lease,
            done_until: None,
        };
        keys.insert(id.key(), entry);
        Ok(Claim::Acquired(Lease::new(
            *id,
            fence,
            NonZeroU32::new(attempt).unwrap(),
        )))
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        let now = Instant::now();
        let keys = self.keys.lock().unwrap();
        Ok(match keys.1.get(&id.key()) {
            Some(entry) if entry.done_until.is_some_and(|until| until > now) => KeyState::Done,
            Some(entry) if entry.leased_until > now => KeyState::InFlight {
                remaining: entry.leased_until - now,
            },
            _ => KeyState::Free,
        })
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        self.with_current(lease, |entry| entry.leased_until = Instant::now() + extend)
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        let retain = match self.lie {
            Some(Lie::ForgetsAfterFiveMinutes) => 5 * MINUTE,
            _ => retain,
        };
        self.with_current(lease, |entry| {
            entry.leased_until = Instant::now();
            entry.done_until = Some(Instant::now() + retain);
        })
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        match self.lie {
            Some(Lie::NeverReleases) => Ok(()),
            _ => self.with_current(lease, |entry| entry.leased_until = Instant::now()),
        }
    }
}

/// Fails now and then, before or after the deed, and is slow, sometimes too slow.
struct Unreliable<S> {
    inner: S,
    rng: Mutex<Rng>,
}

impl<S> Unreliable<S> {
    async fn trouble(&self) -> Result<(), StoreError> {
        let (fails, pause) = {
            let mut rng = self.rng.lock().unwrap();
            let pause = match rng.u8(..20) {
                0 => 3.0 * rng.f64(),
                _ => 0.01 * rng.f64(),
            };
            (rng.u8(..20) == 0, pause)
        };
        sleep(SECOND.mul_f64(pause)).await;
        match fails {
            true => Err(StoreError::new(
                StoreErrorKind::Unavailable,
                "away for a moment",
            )),
            false => Ok(()),
        }
    }
}

impl<S: Store> Store for Unreliable<S> {
    const DURABLE_LEASES: bool = S::DURABLE_LEASES;

    async fn claim(
        &self,
        id: &EventKey,
        lease: Duration,
        retain: Duration,
    ) -> Result<Claim, StoreError> {
        self.trouble().await?;
        let claim = self.inner.claim(id, lease, retain).await?;
        self.trouble().await?;
        Ok(claim)
    }

    async fn peek(&self, id: &EventKey) -> Result<KeyState, StoreError> {
        self.trouble().await?;
        self.inner.peek(id).await
    }

    async fn renew(&self, lease: &Lease, extend: Duration) -> Result<(), SettleError> {
        self.trouble().await?;
        self.inner.renew(lease, extend).await?;
        Ok(self.trouble().await?)
    }

    async fn complete(&self, lease: &Lease, retain: Duration) -> Result<(), SettleError> {
        self.trouble().await?;
        self.inner.complete(lease, retain).await?;
        Ok(self.trouble().await?)
    }

    async fn release(&self, lease: &Lease) -> Result<(), SettleError> {
        self.trouble().await?;
        self.inner.release(lease).await?;
        Ok(self.trouble().await?)
    }
}
