//! A simulated day: two senders, a balancer, replicas with their handlers, faults, and an operator.

use std::convert::Infallible;
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::runtime::Builder;
use tokio::time::{Instant, advance, sleep, sleep_until};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};
use tower_webhook::event::Timestamp;
use tower_webhook::inbox::{By, EventId, Inbox, OnFailure, Retry, Scope};
use tower_webhook::{
    EventKind, HandlerError, Outcome, RawDelivery, Running, Secret, SignatureLayer,
};
use tower_webhook_sandbox::{
    Body, BodyTruncated, Fault, Faults, Report, Sandbox, Settings, SimulatedChat, Webhook,
};

use super::batches::{self, Batches};
use super::flaky::{Flaky, Process, Trouble};
use support::history::{
    Entry, History, LEASE, MAX_CRASHES, Mistake, Process as Number, Spy, Violation, check, digest,
    hash,
};
use support::inbox::{Works, accepting};
use support::queue::Calls;
use support::{DAY, HOUR, MINUTE, SECOND, lock};

const REPLICAS: usize = 3;
const CHATS: usize = 40;
const EVENTS: usize = 300;
const BATCHES: usize = 50;
const FAULTS: usize = 30;
const ACTIONS: usize = 24;
/// How long a sender waits for a response.
pub(crate) const SENDER_WAITS: Duration = Duration::from_secs(10);

/// What a day has shown.
pub(crate) struct Lived {
    pub(crate) violations: Vec<Violation>,
    pub(crate) lines: Vec<String>,
    pub(crate) deliveries: usize,
    /// Of batches.
    pub(crate) items: usize,
    /// Of processes, clocks and the queue.
    pub(crate) faults: usize,
    /// Between the platform and the receivers.
    pub(crate) faulty_deliveries: usize,
    /// The attempts that failed for the senders.
    pub(crate) failures: usize,
}

impl Lived {
    pub(crate) fn hash(&self) -> u64 {
        hash(&self.lines)
    }
}

/// Lives a day on a runtime of its own. All random numbers come from the seed.
pub(crate) fn live(seed: u64, mistake: Mistake) -> Lived {
    // The library's jitter.
    fastrand::seed(seed);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime starts");
    runtime.block_on(async { Cluster::start(seed, mistake).live().await })
}

/// The body of a request of any sender.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BodyTruncated>;

type Service = BoxCloneSyncService<Request<AnyBody>, StatusCode, Infallible>;

pub(crate) struct Cluster {
    random: Mutex<Rng>,
    pub(crate) history: Arc<History>,
    began: Instant,
    spy: Spy,
    pub(crate) batches: Mutex<Batches>,
    replicas: Mutex<Vec<Replica>>,
    started: Mutex<usize>,
    crm_is_up_at: Mutex<Instant>,
    /// When something was wrong that a sender may notice.
    bad_times: Mutex<Vec<(Instant, Instant)>>,
    is_over: Mutex<bool>,
}

struct Replica {
    number: usize,
    process: Arc<Process>,
    service: Service,
    worker: Option<Arc<Running>>,
    /// Until then, the balancer sends to it although it is dead.
    noticed: Instant,
}

/// What happens at some time of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Event,
    Batch,
    Fault,
    Action,
}

pub(crate) fn secret() -> Secret {
    Secret::new("secret").expect("a valid secret")
}

impl Cluster {
    fn start(seed: u64, mistake: Mistake) -> Arc<Self> {
        let history = History::begin();
        let now = Instant::now();
        let cluster = Arc::new(Self {
            random: Mutex::new(Rng::with_seed(seed)),
            spy: Spy::new(&history, mistake),
            history,
            batches: Mutex::default(),
            began: now,
            replicas: Mutex::default(),
            started: Mutex::default(),
            crm_is_up_at: Mutex::new(now),
            bad_times: Mutex::default(),
            is_over: Mutex::new(false),
        });
        for _ in 0..REPLICAS {
            let replica = cluster.replica();
            lock(&cluster.replicas).push(replica);
        }
        cluster
    }

    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut lock(&self.random))
    }

    pub(crate) fn seconds(&self, most: u64) -> Duration {
        Duration::from_millis(self.draw(|random| random.u64(1..=1_000 * most)))
    }

    fn note(&self, what: impl Into<String>) {
        self.history.write(Entry::Note(what.into()));
    }

    /// From now on, the sender may see failures, also of requests that have begun, or that wait for a call's end.
    fn is_bad_until(&self, until: Instant) {
        let (now, tail) = (Instant::now(), SENDER_WAITS + SECOND);
        lock(&self.bad_times).push((now, until + tail));
        let lasts = until + LEASE - now;
        self.history.write(Entry::Trouble { lasts });
    }

    /// Starts a process: a receiver and a worker on the shared queue.
    fn replica(self: &Arc<Self>) -> Replica {
        let number = {
            let mut started = lock(&self.started);
            *started += 1;
            *started
        };
        let process = Process::start(self.draw(Rng::fork));
        // A queue in front of this one, such as a spool, goes around it here.
        let queue = Flaky {
            queue: self.spy.of(Number::Worker(number)).shared(),
            process: Arc::clone(&process),
        };
        let inbox = Inbox::new(queue.shared()).keep_bodies(6 * HOUR);
        let handler = self.handler(Arc::clone(&process));
        let worker = inbox
            .work(handler)
            .concurrency(4)
            .retry(Retry::default().delays(SECOND, 10 * MINUTE))
            .on_failure_of(EventKind::MESSAGE_CREATED, OnFailure::Skip)
            .max_crashes(MAX_CRASHES)
            .poll_every(MINUTE)
            .lease(LEASE)
            .handler_timeout(20 * SECOND)
            .spawn();
        let receiver = SignatureLayer::new(secret()).layer(inbox.accept());
        let batches = accepting(&inbox, batches::route());
        let of = Arc::clone(&process);
        let service = service_fn(move |request: Request<AnyBody>| {
            let (receiver, batches) = (receiver.clone(), batches.clone());
            let process = Arc::clone(&of);
            async move {
                let answer = async {
                    process.lives().await;
                    let status = match request.uri().path() {
                        batches::PATH => batches.oneshot(request).await.map(|it| it.status()),
                        _ => receiver.oneshot(request).await.map(|it| it.status()),
                    };
                    let status = match status {
                        Ok(status) => status,
                        Err(error) => match error {},
                    };
                    process.lives().await;
                    status
                };
                Ok(tokio::select! {
                    biased;
                    () = process.died() => StatusCode::BAD_GATEWAY,
                    status = answer => status,
                })
            }
        });
        Replica {
            number,
            process,
            service: BoxCloneSyncService::new(service),
            worker: Some(Arc::new(worker)),
            noticed: Instant::now(),
        }
    }

    fn handler(
        self: &Arc<Self>,
        process: Arc<Process>,
    ) -> impl tower::Service<RawDelivery, Response = Outcome, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static {
        let cluster = Arc::clone(self);
        service_fn(move |delivery: RawDelivery| {
            let (cluster, process) = (Arc::clone(&cluster), Arc::clone(&process));
            async move { Ok(cluster.handle(&delivery, &process).await) }
        })
    }

    async fn handle(self: &Arc<Self>, delivery: &RawDelivery, process: &Arc<Process>) -> Outcome {
        process.lives().await;
        let event = delivery
            .key()
            .and_then(|key| self.history.event(key.as_bytes()));
        let event = event.expect("an event is stored before it is handled");
        lock(&self.batches).handles(delivery);
        let running = self.history.runs(event);
        let (millis, verdict) = self.draw(|random| {
            let millis = match random.u8(..50) {
                0 => random.u64(10_000..25_000),
                1..5 => random.u64(1_000..10_000),
                _ => random.u64(..1_000),
            };
            (millis, random.u8(..40))
        });
        sleep(Duration::from_millis(millis)).await;
        process.lives().await;
        if event.0 % 101 == 50 && !*lock(&self.is_over) {
            // A poison event.
            self.kill(process, "its handler");
            pending::<()>().await;
        }
        if *lock(&self.crm_is_up_at) > Instant::now() {
            return Outcome::from(Err(HandlerError::retry("the CRM is down")));
        }
        Outcome::from(match verdict {
            0..4 => Err(HandlerError::retry("failed")),
            4 => Err(HandlerError::dead_letter("dead")),
            5 => Err(HandlerError::discard("discarded")),
            6 => Err(HandlerError::snooze(5 * SECOND)),
            7 => resume_unwind(Box::new("panicked")),
            _ => {
                running.handled();
                Ok(())
            }
        })
    }

    /// Sends a request to one of the replicas that it takes for alive.
    pub(crate) async fn balance(&self, request: Request<AnyBody>) -> StatusCode {
        let key = request.headers().get("idempotency-key").cloned();
        let now = Instant::now();
        let service = {
            let replicas = lock(&self.replicas);
            let alive = replicas
                .iter()
                .filter(|replica| !replica.process.is_dead() || replica.noticed > now);
            let alive: Vec<_> = alive.map(|replica| &replica.service).collect();
            self.draw(|random| random.choice(alive)).cloned()
        };
        let Some(service) = service else {
            return StatusCode::BAD_GATEWAY;
        };
        let status = match service.oneshot(request).await {
            Ok(status) => status,
            Err(error) => match error {},
        };
        if let Some(key) = key.filter(|_| status == StatusCode::OK) {
            let key = digest(key.as_bytes());
            self.history.write(Entry::Answered { key });
        }
        status
    }

    /// Kills a process. Another one takes its place some seconds later.
    fn kill(self: &Arc<Self>, process: &Arc<Process>, why: &str) {
        if process.is_dead() {
            return;
        }
        process.kill();
        let now = Instant::now();
        let (notices, starts) = (now + self.seconds(10), now + self.seconds(60));
        // A balancer that knows no replica fails, too.
        self.is_bad_until(starts.max(notices));
        let mut worker = None;
        let mut slot = None;
        for (at, replica) in lock(&self.replicas).iter_mut().enumerate() {
            if Arc::ptr_eq(&replica.process, process) {
                replica.noticed = notices;
                worker = replica.worker.take();
                slot = Some(at);
                self.note(format!("replica {} is killed by {why}", replica.number));
            }
        }
        let cluster = Arc::clone(self);
        tokio::spawn(async move {
            // Not within its own handler.
            drop(worker);
            sleep_until(starts).await;
            let Some(slot) = slot else { return };
            let replica = cluster.replica();
            cluster.note(format!("replica {} starts", replica.number));
            lock(&cluster.replicas)[slot] = replica;
        });
    }

    async fn live(self: Arc<Self>) -> Lived {
        let settings = Settings {
            seed: self.draw(|random| random.u64(..)),
            faults: Faults::all(0.01).with(Fault::Reorder, 0.03),
            start: Timestamp::from_millis(0),
            ..Settings::default()
        };
        let balancer = Arc::clone(&self);
        let balancer = service_fn(move |request: Request<Body>| {
            let cluster = Arc::clone(&balancer);
            async move {
                let mut response = Response::new(Full::<Bytes>::default());
                *response.status_mut() = cluster.balance(request.map(Body::boxed_unsync)).await;
                Ok::<_, Infallible>(response)
            }
        });
        let sandbox = Sandbox::in_process_with(balancer, settings);
        sandbox.configure_all(&Webhook::new("/webhooks").signed(secret()));
        let chats: Vec<_> = (0..CHATS).map(|_| sandbox.chat()).collect();
        for (at, plan) in self.plans() {
            sleep_until(self.began + at).await;
            match plan {
                Plan::Event => self.draw(|random| happens(random, &chats)),
                Plan::Batch => self.batch(&chats),
                Plan::Fault => self.fault().await,
                Plan::Action => self.act(&chats).await,
            }
        }
        let unsettled = self.calm_down(&sandbox).await;
        self.drain().await;
        self.spy.note_left().await.expect("the queue works");
        self.judge(&sandbox, unsettled)
    }

    /// What happens in a day, in order. Half of it is within half an hour, and half of that within two minutes.
    fn plans(&self) -> Vec<(Duration, Plan)> {
        self.draw(|random| {
            let busy = DAY.mul_f64(0.1 + 0.8 * random.f64());
            let mut plans = Vec::new();
            for (plan, number) in [
                (Plan::Event, EVENTS),
                (Plan::Batch, BATCHES),
                (Plan::Fault, FAULTS),
                (Plan::Action, ACTIONS),
            ] {
                for _ in 0..number {
                    let at = match random.u8(..4) {
                        0 => busy + (2 * MINUTE).mul_f64(random.f64()),
                        1 => busy + (HOUR / 2).mul_f64(random.f64()),
                        _ => DAY.mul_f64(random.f64()),
                    };
                    plans.push((Duration::from_millis(at.as_millis() as u64), plan));
                }
            }
            plans.sort_by_key(|(at, _)| *at);
            plans
        })
    }

    async fn fault(self: &Arc<Self>) {
        let (kind, slot) = self.draw(|random| (random.u8(..13), random.usize(..REPLICAS)));
        let now = Instant::now();
        let (some, number) = {
            let replica = &lock(&self.replicas)[slot];
            (Arc::clone(&replica.process), replica.number)
        };
        let trouble = match kind {
            0 | 6 => Some(Trouble::Down),
            1 | 7 => Some(Trouble::Frozen),
            2 => Some(Trouble::Mute),
            3 => Some(Trouble::Slow),
            _ => None,
        };
        if let Some(trouble) = trouble {
            let until = now + self.seconds(90);
            self.is_bad_until(until);
            self.note(format!(
                "replica {number} is {trouble:?} for {:?}",
                until - now
            ));
            // The queue itself, or one process.
            let of_all = kind > 3;
            for replica in lock(&self.replicas).iter() {
                if of_all || Arc::ptr_eq(&replica.process, &some) {
                    replica.process.suffer(trouble, until);
                }
            }
            return;
        }
        match kind {
            4 | 5 => self.kill(&some, "the machine"),
            8 => {
                let until = now + self.seconds(20 * 60);
                self.note(format!("the CRM is down for {:?}", until - now));
                *lock(&self.crm_is_up_at) = until;
            }
            9 => {
                let left = self.seconds(20);
                self.note(format!(
                    "the clock of the queue leaves {left:?} of each lease"
                ));
                self.spy.jump(left).await.expect("the queue works");
            }
            10 => {
                let by = self.seconds(60);
                self.note(format!("all stand still for {by:?}"));
                self.is_bad_until(now + by);
                self.history.write(Entry::Jumped { by });
                advance(by).await;
            }
            _ => self.deploy(slot),
        }
    }

    /// Drains a replica, and starts its next version.
    fn deploy(self: &Arc<Self>, slot: usize) {
        let (process, worker) = {
            let replica = &lock(&self.replicas)[slot];
            self.note(format!("replica {} is drained", replica.number));
            (Arc::clone(&replica.process), replica.worker.clone())
        };
        let deadline = self.seconds(10);
        let cluster = Arc::clone(self);
        tokio::spawn(async move {
            if let Some(worker) = worker {
                let drained = worker.drain(deadline).await;
                let panics = drained.map_or_else(|timeout| timeout.panics(), |()| 0);
                if panics > 0 {
                    cluster.note(format!("{panics} background tasks panicked"));
                }
            }
            cluster.kill(&process, "its deploy");
        });
    }

    async fn act(self: &Arc<Self>, chats: &[SimulatedChat]) {
        let by = By::new("operator");
        let newest = self.history.newest().max(1);
        let (kind, id) = self.draw(|random| (random.u8(..10), EventId(random.i64(1..=newest))));
        let queue = &self.spy;
        let done = match kind {
            0..4 => queue.redrive(id, None, &by).await.map(drop),
            4..6 => queue.discard(id, None, &by).await.map(drop),
            6 => {
                let chat = self.draw(|random| random.usize(..chats.len()));
                queue.forget_all(&chats[chat].id(), &by).await.map(drop)
            }
            _ => {
                let kind = self.draw(|random| {
                    let kind = random.choice(EventKind::ALL);
                    kind.filter(|_| random.bool())
                });
                let of = kind.map_or(Scope::Everything, Scope::from);
                let (cluster, pause) = (Arc::clone(self), self.seconds(10 * 60));
                let paused = queue.pause(&of, Some("a while"), &by).await;
                tokio::spawn(async move {
                    sleep(pause).await;
                    let _ = cluster.spy.pause(&of, None, &by).await;
                });
                paused
            }
        };
        done.expect("the queue works");
    }

    /// Waits until the last troubles have passed and everything is handled. Returns how many events are not.
    async fn calm_down(&self, sandbox: &Sandbox) -> u64 {
        *lock(&self.is_over) = true;
        self.note("the day is over");
        // The ratings of chats come an hour after their ends, and a retry up to 10 minutes after that.
        let give_up = Instant::now() + 12 * HOUR;
        let earliest = Instant::now() + HOUR + 20 * MINUTE;
        loop {
            sleep(10 * MINUTE).await;
            let unsettled = self.spy.stats().await.map_or(0, |stats| stats.unsettled());
            let is_sent = sandbox.report().is_all_delivered() && lock(&self.batches).waiting == 0;
            let is_done = unsettled == 0 && is_sent;
            if is_done && Instant::now() > earliest || Instant::now() > give_up {
                return unsettled;
            }
        }
    }

    async fn drain(&self) {
        let workers: Vec<_> = lock(&self.replicas)
            .iter_mut()
            .filter_map(|replica| replica.worker.take())
            .collect();
        for worker in workers {
            if let Err(timeout) = worker.drain(MINUTE).await {
                self.note(format!("a drain at rest ended with {timeout}"));
            }
        }
    }

    fn judge(&self, sandbox: &Sandbox, unsettled: u64) -> Lived {
        let report = sandbox.report();
        let mut violations = check(&self.history.entries(), None);
        let mut broken = |rule, text: String| violations.push(Violation { rule, text });
        if unsettled > 0 {
            broken("not settled", format!("{unsettled} events"));
        }
        if !report.is_all_delivered() {
            broken("not delivered", report.to_string());
        }
        let batches = lock(&self.batches);
        if !batches.open.is_empty() || batches.waiting > 0 {
            let (open, waiting) = (&batches.open, batches.waiting);
            broken(
                "not delivered",
                format!("the items {open:?} of {waiting} deliveries"),
            );
        }
        for changed in &batches.changed {
            broken("changed item", changed.clone());
        }
        for webhook in sandbox.webhooks() {
            if webhook.disabled {
                broken("disabled", webhook.kind.to_string());
            }
        }
        let lines = self.history.lines();
        for line in &lines {
            if line.contains("background tasks panicked") || line.contains("a drain at rest") {
                broken("drain", line.clone());
            }
        }
        let forged = |fault: Fault| matches!(fault, Fault::Tamper | Fault::WrongSecret);
        for attempt in report.attempts() {
            let is_forged = attempt.fault.is_some_and(|injected| forged(injected.fault));
            if is_forged && attempt.result.is_delivered() {
                broken("forged", format!("{attempt:?}"));
            }
        }
        for text in self.unexplained(&report, &batches) {
            broken("unexplained failure", text);
        }
        let attempts = report.attempts();
        let failed = attempts
            .iter()
            .filter(|attempt| !attempt.result.is_delivered());
        Lived {
            violations,
            lines,
            deliveries: attempts.len() + batches.attempts,
            items: batches.items(),
            faults: FAULTS,
            faulty_deliveries: attempts
                .iter()
                .filter(|attempt| attempt.fault.is_some())
                .count(),
            failures: failed.count() + batches.failures.len(),
        }
    }

    /// The senders see no failures but those that a fault explains.
    fn unexplained(&self, report: &Report, batches: &Batches) -> Vec<String> {
        let bad_times = lock(&self.bad_times);
        let attempts = report.attempts().into_iter();
        let of_platform = attempts
            .filter(|attempt| !attempt.result.is_delivered() && attempt.fault.is_none())
            .map(|attempt| {
                let at = u64::try_from(attempt.at.as_millis()).unwrap_or_default();
                let began = self.began + Duration::from_millis(at);
                let text = format!("{:?} of {} at {at} ms", attempt.result, attempt.event);
                (began, began + attempt.took, text)
            });
        let of_batches = batches.failures.iter().map(|failure| {
            let at = (failure.began - self.began).as_millis();
            let text = format!("{} at {at} ms", failure.text);
            (failure.began, failure.ended, text)
        });
        of_platform
            .chain(of_batches)
            .filter(|(began, ended, _)| {
                let ended = *ended + Duration::from_millis(1);
                !bad_times
                    .iter()
                    .any(|(from, until)| *from <= ended && began <= until)
            })
            .map(|(_, _, text)| text)
            .collect()
    }
}

/// One of the events of a chat.
fn happens(random: &mut Rng, chats: &[SimulatedChat]) {
    let chat = &chats[random.usize(..chats.len())];
    match random.u8(..10) {
        0 => chat.assign(),
        1 => chat.open(),
        2 => chat.close(),
        3 => chat.reopen(),
        4 => chat.transfer(),
        _ => chat.message("Is anybody there?"),
    };
}
