//! Several routes on one inbox: what is apart, what they share, and a process that has one half alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tower_webhook::inbox::internal::{self, Claims, Share, Tuning};
use tower_webhook::inbox::{
    EventId, EventState, Filter, Inbox, OnFailure, Page, Queue, Retry, Scope, Worker,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::store::StoreError;
use tower_webhook::{
    EventKind, EventRouter, EventType, HandlerError, IdempotencyKey, RawDelivery, Receiver,
    RouteName, Secret, Sender, Webhooks,
};
use tracing::Level;

use crate::suite::Harness;
use support::database::Database;
use support::delivery::send;
use support::log::Log;
use support::queue::Calls;
use support::scratch::Scratch;
use support::{MINUTE, SECOND, eventually, lock};

const MADE: EventKind = EventKind::from_static("made");

/// Longer than a worker needs to look for events of other processes.
const LONG: Duration = Duration::from_millis(1500);

/// Whose webhooks arrive at a route, and its name.
#[derive(Clone)]
struct Place {
    sender: Sender,
    name: RouteName,
}

fn github() -> Place {
    named(Sender::github(), "github")
}

/// Another account of the same sender.
fn europe() -> Place {
    named(Sender::github(), "github-europe")
}

fn stripe() -> Place {
    named(Sender::stripe(), "stripe")
}

fn named(sender: Sender, name: &str) -> Place {
    let name = name.parse().unwrap();
    Place { sender, name }
}

#[derive(Deserialize)]
struct Body {
    chat: String,
    does: String,
}

impl Place {
    fn secret(&self) -> Secret {
        Secret::new(format!("that of {}", self.name)).unwrap()
    }

    fn webhooks(&self) -> Webhooks {
        self.route(Webhooks::new(self.secret()))
    }

    fn without_secrets(&self) -> Webhooks {
        self.route(Webhooks::without_secrets())
    }

    fn route(&self, webhooks: Webhooks) -> Webhooks {
        let webhooks = webhooks.sender(self.sender.clone()).name(self.name.clone());
        webhooks.lane_by(|delivery| {
            let body: Body = delivery.decode().ok()?;
            Some(body.chat)
        })
    }

    fn made(&self) -> EventType {
        EventType::new(self.name.clone(), MADE)
    }

    fn event(&self, key: &str, chat: &str, does: &str) -> Request<Full<Bytes>> {
        self.signed(&self.secret(), MADE, key, chat, does)
    }

    fn signed(
        &self,
        by: &Secret,
        kind: EventKind,
        key: &str,
        chat: &str,
        does: &str,
    ) -> Request<Full<Bytes>> {
        let body = format!(r#"{{"id":"{key}","type":"{kind}","chat":"{chat}","does":"{does}"}}"#);
        let delivery = RawDelivery::new(kind, body).with_key(key_of(key));
        let body = Full::new(delivery.body().clone());
        let mut request = Request::post("/").body(body).unwrap();
        *request.headers_mut() = self.sender.sign(by, &delivery).unwrap();
        request
    }

    /// How the handlers of the route note an event.
    fn note(&self, key: &str) -> String {
        format!("{} {key}", self.made())
    }
}

fn key_of(key: &str) -> Option<IdempotencyKey> {
    IdempotencyKey::new(key.parse().unwrap())
}

/// The handlers of a route, and what they have seen: the type of each event as its delivery knows it, and its key.
#[derive(Clone)]
struct Desk {
    seen: Arc<Mutex<Vec<String>>>,
    attempts: Arc<AtomicUsize>,
    /// Opened for those that wait.
    gate: Arc<Semaphore>,
    running: Arc<AtomicUsize>,
}

impl Desk {
    fn new() -> Self {
        Self {
            seen: Arc::default(),
            attempts: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            running: Arc::default(),
        }
    }

    fn router(&self) -> EventRouter {
        let desk = self.clone();
        EventRouter::new().fallback(move |delivery: RawDelivery| {
            let desk = desk.clone();
            async move {
                desk.attempts.fetch_add(1, Ordering::SeqCst);
                let body: Body = delivery.decode()?;
                match body.does.as_str() {
                    "fails" => return Err(HandlerError::retry("it fails")),
                    "waits" => {
                        desk.running.fetch_add(1, Ordering::SeqCst);
                        desk.gate.acquire().await?.forget();
                        desk.running.fetch_sub(1, Ordering::SeqCst);
                    }
                    _ => {}
                }
                let of = EventType::new(delivery.route().clone(), delivery.kind().clone());
                let key = delivery.key().map(ToString::to_string);
                lock(&desk.seen).push(format!("{of} {}", key.unwrap_or_default()));
                Ok(())
            }
        })
    }

    fn seen(&self) -> Vec<String> {
        lock(&self.seen).clone()
    }

    async fn has_seen(&self, expected: &[String]) {
        eventually("the events of a route", async || {
            self.seen().len() >= expected.len()
        })
        .await;
        assert_eq!(self.seen(), expected);
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }

    fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }
}

async fn opened<H: Harness>(harness: &H, set: impl FnOnce(Worker) -> Worker) -> Inbox {
    Inbox::new(harness.open().await).worker(set)
}

fn patient(worker: Worker) -> Worker {
    worker.retry(Retry::default().delays(MINUTE, MINUTE))
}

async fn ids(inbox: &Inbox, filter: &Filter, page: Page) -> Vec<EventId> {
    let listed = inbox.list(filter, page).await.unwrap();
    listed.events.iter().map(|event| event.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_events_of_two_accounts_are_apart() {
    async fn rule<H: Harness>(harness: &H) {
        equal_events_are_apart(harness, [github(), europe()]).await;
    }
    on_every_queue!(rule);
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_events_of_two_senders_are_apart() {
    async fn rule<H: Harness>(harness: &H) {
        equal_events_are_apart(harness, [github(), stripe()]).await;
    }
    on_every_queue!(rule);
}

/// They have the same keys, chats and kinds. The second route is only accepted here at first.
async fn equal_events_are_apart<H: Harness>(harness: &H, [one, two]: [Place; 2]) {
    let inbox = opened(harness, patient).await;
    let (of_one, of_two) = (Desk::new(), Desk::new());
    let mut routes = inbox.routes();
    let to_one = routes.add(one.webhooks(), of_one.router()).unwrap();
    let to_two = routes.accept(two.webhooks()).unwrap();
    let running = routes.start().unwrap();
    let forged = one.signed(&two.secret(), MADE, "forged", "a", "");
    let forged = send(&to_one, forged).await;
    forged.assert_problem(401, "invalid-signature");

    send(&to_one, one.event("same", "a", "")).await.assert_ok();
    send(&to_two, two.event("same", "a", "")).await.assert_ok();
    for (service, place) in [(&to_one, &one), (&to_two, &two)] {
        let again = send(service, place.event("same", "a", "")).await;
        again.assert_replayed();
    }
    of_one.has_seen(&[one.note("same")]).await;
    sleep(LONG).await;
    assert_eq!(of_one.seen(), [one.note("same")]);
    let waiting = Filter::default().states([EventState::Waiting]);
    let waiting = inbox.list(&waiting, Page::oldest(9)).await.unwrap();
    let waiting: Vec<_> = waiting.events.into_iter().map(|it| it.route).collect();
    assert_eq!(waiting, std::slice::from_ref(&two.name));
    // It was not lost.
    let mut others = inbox.routes();
    others
        .handle(two.without_secrets(), of_two.router())
        .unwrap();
    let other = others.start().unwrap();
    of_two.has_seen(&[two.note("same")]).await;

    // A failure holds up the events of its own route alone.
    send(&to_one, one.event("fails", "b", "fails"))
        .await
        .assert_ok();
    send(&to_one, one.event("waits", "b", "")).await.assert_ok();
    send(&to_two, two.event("passes", "b", ""))
        .await
        .assert_ok();
    let both = ["same", "passes"].map(|key| two.note(key));
    of_two.has_seen(&both).await;
    assert_eq!(of_one.seen(), [one.note("same")]);

    // Both are found, by an inbox that knows both.
    let key = Filter::default().key(key_of("same").unwrap());
    let oldest = ids(&inbox, &key, Page::oldest(9)).await;
    let mut newest = ids(&inbox, &key, Page::newest(9)).await;
    newest.reverse();
    assert_eq!(oldest.len(), 2);
    assert_eq!(oldest, newest);
    assert_eq!(ids(&inbox, &key, Page::oldest(1)).await, oldest[..1]);
    let of_second = key.clone().routes([two.name.clone()]);
    assert_eq!(ids(&inbox, &of_second, Page::oldest(9)).await, oldest[1..]);
    let alone = Inbox::new(internal::queue(&inbox).clone());
    alone.routes().accept(two.webhooks()).unwrap();
    assert_eq!(ids(&alone, &key, Page::oldest(9)).await, oldest[1..]);

    assert_eq!(inbox.forget("b").await.unwrap(), 3);
    for running in [running, other] {
        running.drain(SECOND).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_route_leaves_a_place_to_others() {
    async fn rule<H: Harness>(harness: &H) {
        let set = |worker: Worker| worker.concurrency(4);
        let inbox = opened(harness, set).await;
        let (slow, quick) = (Desk::new(), Desk::new());
        let mut routes = inbox.routes();
        let to_slow = routes.add(github().webhooks(), slow.router()).unwrap();
        let to_quick = routes.add(europe().webhooks(), quick.router()).unwrap();
        let running = routes.start().unwrap();
        // Another process accepts, too.
        let elsewhere = Inbox::new(harness.open().await);
        let from_elsewhere = elsewhere.routes().accept(europe().webhooks()).unwrap();

        let quick_one = |n: usize| europe().event(&format!("quick-{n}"), &(n % 5).to_string(), "");
        send(&to_quick, quick_one(0)).await.assert_ok();
        eventually("the quick one", async || quick.seen().len() == 1).await;
        for n in 0..24 {
            let chat = (n % 6).to_string();
            let event = github().event(&format!("slow-{n}"), &chat, "waits");
            send(&to_slow, event).await.assert_ok();
        }
        eventually("three slow ones", async || slow.running() == 3).await;
        for n in 1..20 {
            let service = [&to_quick, &from_elsewhere][n % 2];
            send(service, quick_one(n)).await.assert_ok();
            eventually("a quick one", async || quick.seen().len() == n + 1).await;
            assert_eq!(slow.attempts(), 3);
        }

        // The end of a slow one makes room for another.
        slow.gate.add_permits(2);
        eventually("two more slow ones", async || {
            slow.attempts() == 5 && slow.running() == 3
        })
        .await;
        slow.gate.add_permits(100);
        eventually("all slow ones", async || slow.seen().len() == 24).await;
        assert_eq!((slow.attempts(), quick.attempts()), (24, 20));
        running.drain(SECOND).await.unwrap();
        assert!(inbox.stats().await.unwrap().is_all_handled());
    }
    on_every_queue!(rule);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_does_not_wait_for_polls() {
    async fn rule<H: Harness>(harness: &H) {
        let set = |worker: Worker| worker.concurrency(4).poll_every(60 * MINUTE);
        let both = [github(), europe()];
        // With fewer chats than events, an attempt takes the next event of its chat.
        for (places, chats) in [(&both[..1], 40), (&both, 40), (&both, 6)] {
            let inbox = opened(harness, set).await;
            let accepting = Inbox::new(harness.open().await);
            for place in places {
                let service = accepting.routes().accept(place.webhooks()).unwrap();
                for n in 0..40 {
                    let key = format!("{}-{chats}-{n}", places.len());
                    let event = place.event(&key, &(n % chats).to_string(), "");
                    send(&service, event).await.assert_ok();
                }
            }
            let desk = Desk::new();
            let mut routes = inbox.routes();
            for place in places {
                routes
                    .handle(place.without_secrets(), desk.router())
                    .unwrap();
            }
            let running = routes.start().unwrap();
            eventually("all events", async || desk.attempts() == 40 * places.len()).await;
            running.drain(SECOND).await.unwrap();
        }
    }
    on_every_queue!(rule);
}

/// A queue whose claims return when the gate lets them.
struct GatedQueue {
    queue: MemoryQueue,
    gate: Arc<Semaphore>,
}

#[async_trait]
impl Calls for GatedQueue {
    fn inner(&self) -> Result<Queue, StoreError> {
        Ok(self.queue.clone().into())
    }

    async fn claim(
        &self,
        of: &[Share],
        limit: usize,
        suspects: usize,
    ) -> Result<Claims, StoreError> {
        let claims = self.queue.claim(of, limit, suspects).await;
        self.gate.acquire().await.unwrap().forget();
        claims
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_and_acceptances_leave_a_slot_together() {
    let (queue, gate) = (MemoryQueue::new(), Arc::new(Semaphore::new(1)));
    let gated = GatedQueue {
        queue: queue.clone(),
        gate: Arc::clone(&gate),
    };
    let inbox = Inbox::new(gated.shared());
    let inbox = inbox.worker(|worker| worker.concurrency(4).poll_every(10 * SECOND));
    let (slow, quick) = (Desk::new(), Desk::new());
    let mut routes = inbox.routes();
    let to_slow = routes.add(github().webhooks(), slow.router()).unwrap();
    let to_quick = routes.add(europe().webhooks(), quick.router()).unwrap();
    let running = routes.start().unwrap();
    sleep(SECOND).await;
    send(&to_quick, europe().event("quick", "a", ""))
        .await
        .assert_ok();
    let elsewhere = Inbox::new(queue).routes().accept(github().webhooks());
    let to_slow_elsewhere = elsewhere.unwrap();
    let slow_one = |n: u32| github().event(&n.to_string(), &n.to_string(), "waits");
    for n in 0..4 {
        send(&to_slow_elsewhere, slow_one(n)).await.assert_ok();
    }
    // The next claim has taken some of them, and has not returned.
    sleep(15 * SECOND).await;
    for n in 4..8 {
        send(&to_slow, slow_one(n)).await.assert_ok();
    }
    gate.add_permits(100);
    sleep(15 * SECOND).await;
    assert_eq!((slow.attempts(), quick.attempts()), (3, 1));
    slow.gate.add_permits(8);
    eventually("all slow ones", async || slow.attempts() == 8).await;
    running.drain(SECOND).await.unwrap();
}

/// Events of a route that this process does not accept are unknown to it until it claims them.
#[tokio::test(start_paused = true)]
async fn a_route_that_is_accepted_elsewhere_does_not_wait_for_whole_lanes() {
    let queue = MemoryQueue::new();
    let inbox = opened(&queue, |worker| worker.concurrency(4)).await;
    let mut accepting = Inbox::new(queue.clone()).routes();
    let to_long = accepting.accept(github().webhooks()).unwrap();
    let to_other = accepting.accept(europe().webhooks()).unwrap();
    for n in 0..400 {
        let event = github().event(&n.to_string(), &(n % 4).to_string(), "waits");
        send(&to_long, event).await.assert_ok();
    }
    let (long, other) = (Desk::new(), Desk::new());
    let mut routes = inbox.routes();
    routes
        .handle(github().without_secrets(), long.router())
        .unwrap();
    routes
        .handle(europe().without_secrets(), other.router())
        .unwrap();
    let running = routes.start().unwrap();
    eventually("all slots", async || long.running() == 4).await;
    send(&to_other, europe().event("first", "a", ""))
        .await
        .assert_ok();
    let mut before = 0;
    while other.attempts() == 0 {
        long.gate.add_permits(1);
        before += 1;
        sleep(SECOND).await;
    }
    assert!(before <= 16, "{before}");
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn a_route_has_all_places_while_the_others_are_silent() {
    let inbox = opened(&MemoryQueue::new(), |worker| worker.concurrency(4)).await;
    let (slow, quick) = (Desk::new(), Desk::new());
    let mut routes = inbox.routes();
    let slowly = github().webhooks().handler_timeout(60 * MINUTE);
    let to_slow = routes.add(slowly, slow.router()).unwrap();
    let to_quick = routes.add(europe().webhooks(), quick.router()).unwrap();
    let running = routes.start().unwrap();
    send(&to_quick, europe().event("0", "a", ""))
        .await
        .assert_ok();
    for n in 0..12 {
        let chat = (n % 6).to_string();
        let event = github().event(&n.to_string(), &chat, "waits");
        send(&to_slow, event).await.assert_ok();
    }
    sleep(50 * SECOND).await;
    assert_eq!(slow.running(), 3);
    sleep(20 * SECOND).await;
    assert_eq!(slow.running(), 4);

    // It waits for the first place, and gets it before what has been due for longer, and before the next event of the
    // chat whose attempt has ended.
    send(&to_quick, europe().event("1", "a", ""))
        .await
        .assert_ok();
    sleep(SECOND).await;
    assert_eq!(quick.seen().len(), 1);
    slow.gate.add_permits(1);
    sleep(SECOND).await;
    assert_eq!((quick.seen().len(), slow.running()), (2, 3));
    sleep(2 * MINUTE).await;
    assert_eq!(slow.running(), 4);
    slow.gate.add_permits(100);
    sleep(MINUTE).await;
    assert_eq!(slow.seen().len(), 12);
    running.drain(SECOND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_for_its_type_or_its_route() {
    async fn rule<H: Harness>(harness: &H) {
        let inbox = opened(harness, patient).await;
        let places = [github(), europe()];
        let (of_one, of_two) = (Desk::new(), Desk::new());
        let mut routes = inbox.routes();
        let services = [(&places[0], &of_one), (&places[1], &of_two)]
            .map(|(place, desk)| routes.add(place.webhooks(), desk.router()).unwrap());
        let running = routes.start().unwrap();
        let [one, two] = &places;
        let opened = EventKind::from_static("opened");
        let send_all = async |key: &str| {
            for (service, place) in services.iter().zip(&places) {
                for kind in [MADE, opened.clone()] {
                    let key = format!("{kind}-{key}");
                    let event = place.signed(&place.secret(), kind, &key, &key, "");
                    send(service, event).await.assert_ok();
                }
            }
        };
        let seen = async |expected: [usize; 2]| {
            let counts = || [of_one.seen().len(), of_two.seen().len()];
            eventually("the events", async || counts() == expected).await;
            sleep(LONG).await;
            assert_eq!(counts(), expected);
        };

        inbox.pause(one.made(), "").await.unwrap();
        send_all("a").await;
        seen([1, 2]).await;
        assert_eq!(of_one.seen(), ["github/opened opened-a"]);
        inbox
            .pause(Scope::Route(one.name.clone()), "")
            .await
            .unwrap();
        send_all("b").await;
        seen([1, 4]).await;
        let stats = inbox.stats().await.unwrap();
        let paused: Vec<_> = stats.pauses.iter().map(|it| it.of.to_string()).collect();
        assert_eq!(paused, ["github/", "github/made"]);
        assert_eq!(stats.unsettled(), 3);
        inbox.resume(one.made()).await.unwrap();
        seen([1, 4]).await;
        inbox.resume(Scope::Route(one.name.clone())).await.unwrap();
        seen([4, 4]).await;
        inbox.pause(two.made(), "").await.unwrap();
        send_all("c").await;
        seen([6, 5]).await;
        running.drain(SECOND).await.unwrap();
    }
    on_every_queue!(rule);
}

/// Two routes whose handlers fail on request.
async fn two_routes(inbox: &Inbox) -> ([(Receiver, Place, Desk); 2], tower_webhook::Running) {
    let mut routes = inbox.routes();
    let both = [github(), europe()].map(|place| {
        let desk = Desk::new();
        let service = routes.add(place.webhooks(), desk.router()).unwrap();
        (service, place, desk)
    });
    (both, routes.start().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_type_is_slowed_down_at_its_route_alone() {
    let inbox = opened(&MemoryQueue::new(), |worker| worker.credit(3)).await;
    let ([one, two], running) = two_routes(&inbox).await;
    for chat in ["a", "b", "c", "d"] {
        for ((service, place, _), does) in [(&one, "fails"), (&two, "")] {
            let event = place.event(chat, chat, does);
            send(service, event).await.assert_ok();
        }
        sleep(SECOND / 100).await;
    }
    let slowed: Vec<_> = inbox.slowed().into_keys().collect();
    assert_eq!(slowed, [github().made()]);
    assert_eq!(two.2.seen().len(), 4);
    let attempts = one.2.attempts();
    for n in 0..50 {
        let n = n.to_string();
        let (service, place, _) = &two;
        send(service, place.event(&n, &n, "")).await.assert_ok();
    }
    sleep(SECOND).await;
    assert_eq!(two.2.seen().len(), 54);
    assert!(one.2.attempts() <= attempts + 1, "one a second is tried");
    running.drain(SECOND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_rule_for_failures_is_one_for_its_route() {
    let skips = |worker: Worker| patient(worker).on_failure_of(github().made(), OnFailure::Skip);
    let inbox = opened(&MemoryQueue::new(), skips).await;
    let (both, running) = two_routes(&inbox).await;
    for (service, place, _) in &both {
        send(service, place.event("1", "a", "fails"))
            .await
            .assert_ok();
        sleep(SECOND).await;
        send(service, place.event("2", "a", "")).await.assert_ok();
    }
    sleep(SECOND).await;
    let seen = both.each_ref().map(|(_, _, desk)| desk.seen());
    assert_eq!(seen, [vec!["github/made 2".to_owned()], vec![]]);
    running.drain(SECOND).await.unwrap();
}

/// Each of them has a handle of its own.
async fn one_process_accepts_and_another_one_handles<H: Harness>(harness: &H) {
    let edge = Inbox::new(harness.open().await);
    let mut routes = edge.routes();
    let services = [github(), europe()].map(|place| routes.accept(place.webhooks()).unwrap());
    // It has nothing to stop.
    let accepting = routes.start().unwrap();
    for n in 0..4 {
        for (service, place) in services.iter().zip([github(), europe()]) {
            let event = place.event(&n.to_string(), "a", "");
            send(service, event).await.assert_ok();
        }
    }
    sleep(LONG).await;
    assert_eq!(edge.stats().await.unwrap().unsettled(), 8);

    let behind = Inbox::new(harness.open().await);
    let mut routes = behind.routes();
    let desks = [github(), europe()].map(|place| {
        let desk = Desk::new();
        let handled = routes.handle(place.without_secrets(), desk.router());
        handled.unwrap();
        desk
    });
    let handling = routes.start().unwrap();
    let all = |place: Place| (0..5).map(move |n| place.note(&n.to_string()));
    for (service, place) in services.iter().zip([github(), europe()]) {
        send(service, place.event("4", "a", "")).await.assert_ok();
    }
    for (desk, place) in desks.iter().zip([github(), europe()]) {
        desk.has_seen(&all(place).collect::<Vec<_>>()).await;
    }
    accepting.drain(SECOND).await.unwrap();
    handling.drain(SECOND).await.unwrap();
    assert!(edge.stats().await.unwrap().is_all_handled());
    // What is accepted afterwards waits.
    let event = github().event("5", "a", "");
    send(&services[0], event).await.assert_ok();
    sleep(LONG).await;
    assert_eq!(behind.stats().await.unwrap().unsettled(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_accepts_and_another_one_handles_with_sqlite() {
    one_process_accepts_and_another_one_handles(&Scratch::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_accepts_and_another_one_handles_with_postgres() {
    one_process_accepts_and_another_one_handles(&Database::create().await).await;
}

const DROPPED: &str = "a worker was dropped without being drained";

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_dropped_at_the_start_is_an_error() {
    let log = Log::capture(Level::WARN);
    let (events, inbox) = (Desk::new().router(), Inbox::new(MemoryQueue::new()));
    let started = || {
        let webhooks = github().webhooks().inbox(inbox.clone());
        webhooks.start(events.clone()).unwrap()
    };
    let (webhooks, _) = started();
    assert_eq!(log.count(Level::ERROR, DROPPED), 1, "{}", log.text());
    assert_eq!(log.events()[0]["routes"], "github");
    send(&webhooks, github().event("1", "a", ""))
        .await
        .assert_ok();
    log.clear();

    let (_webhooks, running) = started();
    sleep(SECOND).await;
    running.drain(SECOND).await.unwrap();
    drop(running);
    assert!(inbox.stats().await.unwrap().is_all_handled());

    // A drain that was cut is one, too.
    let (webhooks, running) = started();
    send(&webhooks, github().event("2", "a", "waits"))
        .await
        .assert_ok();
    sleep(SECOND).await;
    running.drain(Duration::ZERO).await.unwrap_err();
    drop(running);
    // Neither is there anything to drain of a part that only accepts.
    let mut routes = inbox.routes();
    let _webhooks = routes.accept(europe().webhooks()).unwrap();
    drop(routes.start().unwrap());
    assert!(log.events().is_empty(), "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn routes_that_are_not_started_are_an_error() {
    let log = Log::capture(Level::WARN);
    let inbox = Inbox::new(MemoryQueue::new());
    let mut routes = inbox.routes();
    let _webhooks = routes.accept(europe().webhooks()).unwrap();
    drop(routes);
    assert!(log.events().is_empty(), "{}", log.text());
    let mut routes = inbox.routes();
    let _webhooks = routes.add(github().webhooks(), EventRouter::new()).unwrap();
    drop(routes);
    assert_eq!(log.count(Level::ERROR, "not started"), 1, "{}", log.text());
}

/// Such as those of a route that was renamed.
#[tokio::test(start_paused = true)]
async fn events_that_no_worker_handles_are_told() {
    let log = Log::capture(Level::WARN);
    let inbox = Inbox::new(MemoryQueue::new());
    let mut routes = inbox.routes();
    let to_github = routes.accept(github().webhooks()).unwrap();
    let handled = routes.handle(europe().without_secrets(), EventRouter::new());
    handled.unwrap();
    let running = routes.start().unwrap();
    send(&to_github, github().event("1", "a", ""))
        .await
        .assert_ok();
    sleep(9 * MINUTE).await;
    assert_eq!(inbox.stats().await.unwrap().unattended(), []);
    assert!(log.events().is_empty(), "{}", log.text());
    sleep(12 * MINUTE).await;
    let unattended = inbox.stats().await.unwrap().unattended();
    assert_eq!(unattended, [(github().name, 1)]);
    let logged = log.events();
    let told = |text: &str, route: &str| {
        let told = logged.iter().filter(|it| it["route"] == route);
        let mut told = told.filter(|it| it["message"].contains(text));
        told.next().is_some()
    };
    assert!(told("no worker seems to handle it", "github"), "{logged:?}");
    assert!(
        told("has had no event of the route", "github-europe"),
        "{logged:?}"
    );
    running.drain(SECOND).await.unwrap();
}

/// A description says which events are handled in order, and a function counts more.
#[tokio::test]
async fn a_description_says_what_is_in_order() {
    let sender = serde_json::json!({
        "name": "acme",
        "kind": "/type",
        "order": ["/data/customer", "/data/id"],
        "signature": {"headers": ["x-tag"], "algorithm": "hmac-sha256", "coding": "hex"},
    });
    let sender: Sender = serde_json::from_value(sender).unwrap();
    let secret = Secret::new("secret").unwrap();
    let bodies = [
        (
            r#"{"type":"chat-rated","id":"a","data":{"customer":"cus_1"}}"#,
            Some("cus_1"),
        ),
        (
            r#"{"type":"made","data":{"customer":7,"id":"x"}}"#,
            Some("7"),
        ),
        (r#"{"type":"made","data":{"id":"x"}}"#, Some("x")),
        (r#"{"type":"made","data":{}}"#, None),
        // Two, or of another type.
        (
            r#"{"type":"made","data":{"customer":"a","customer":"b"}}"#,
            None,
        ),
        (
            r#"{"type":"made","data":{"customer":["a"],"id":"x"}}"#,
            Some("x"),
        ),
        (
            r#"{"type":"made","data":{"customer":null,"id":["x"]}}"#,
            None,
        ),
        (r#"{"type":"made","data":null}"#, None),
    ];
    for has_function in [false, true] {
        let inbox = Inbox::new(MemoryQueue::new());
        let mut webhooks = Webhooks::new(secret.clone()).sender(sender.clone());
        if has_function {
            webhooks = webhooks.lane_by(|_| Some("by a function".to_owned()));
        }
        let (service, _running) = webhooks
            .inbox(inbox.clone())
            .start(EventRouter::new())
            .unwrap();
        for (body, _) in bodies {
            let delivery = RawDelivery::new(EventKind::from_static("made"), body);
            let mut request = Request::post("/")
                .body(Full::new(Bytes::from(body)))
                .unwrap();
            *request.headers_mut() = sender.sign(&secret, &delivery).unwrap();
            send(&service, request).await.assert_ok();
        }
        let listed = inbox
            .list(&Filter::default(), Page::oldest(9))
            .await
            .unwrap();
        let chats: Vec<_> = listed.events.iter().map(|it| it.chat.as_deref()).collect();
        match has_function {
            false => assert_eq!(chats, bodies.map(|(_, chat)| chat)),
            true => assert_eq!(chats[1..], [Some("by a function"); 7]),
        }
    }
}

/// A sender that has its key, type and order in the body, and its secret.
fn acme() -> (Sender, Secret) {
    let sender = serde_json::json!({
        "name": "acme",
        "key": "/id",
        "kind": "/type",
        "order": ["/data/customer", "/customer/0/id"],
        "signature": {"headers": ["x-tag"], "algorithm": "hmac-sha256", "coding": "hex"},
    });
    let sender = serde_json::from_value(sender).unwrap();
    (sender, Secret::new("secret").unwrap())
}

fn signed((sender, secret): &(Sender, Secret), body: &str) -> Request<Full<Bytes>> {
    let delivery = RawDelivery::new(EventKind::from_static("made"), body.to_owned());
    let body = Full::new(delivery.body().clone());
    let mut request = Request::post("/").body(body).unwrap();
    *request.headers_mut() = sender.sign(secret, &delivery).unwrap();
    request
}

fn accepting(inbox: &Inbox, (sender, secret): &(Sender, Secret)) -> Receiver {
    let webhooks = Webhooks::new(secret.clone()).sender(sender.clone());
    inbox.routes().accept(webhooks).unwrap()
}

#[tokio::test]
async fn a_pointer_that_finds_nothing_in_100_deliveries_is_warned_of_once() {
    for found_at in [None, Some(50), Some(150)] {
        let log = Log::capture(Level::WARN);
        let (inbox, of) = (Inbox::new(MemoryQueue::new()), acme());
        let service = accepting(&inbox, &of);
        for n in 0..250 {
            let body = match found_at == Some(n) {
                true => r#"{"type":"made","id":1,"customer":[{"id":"c-1"}]}"#.to_owned(),
                // A body of its own, which is no duplicate without a key.
                false => format!(r#"{{"type":"made","n":{n},"data":{{"customer":{{}}}}}}"#),
            };
            send(&service, signed(&of, &body)).await.assert_ok();
        }
        let events = log.events();
        let told: Vec<_> = events
            .iter()
            .filter(|line| line["message"].contains("none of the first 100 deliveries"))
            .map(|line| (&*line["field"], &*line["pointers"], &*line["last"]))
            .collect();
        let expected = [
            ("key", "/id", "nothing stands there"),
            (
                "order",
                "/data/customer, /customer/0/id",
                "`/data/customer` is an object, and not a string or an integer",
            ),
        ];
        match found_at {
            Some(50) => assert!(told.is_empty(), "{told:?}"),
            _ => assert_eq!(told, expected),
        }
    }
}

/// The id of a chat has at most 1,024 bytes in a row, and refusing a longer one would lose an event.
#[tokio::test]
async fn a_chat_with_a_long_id_has_its_order_and_is_found_and_forgotten() {
    let (inbox, of) = (Inbox::new(MemoryQueue::new()), acme());
    let service = accepting(&inbox, &of);
    let long = "\u{e9}".repeat(1 << 18);
    let chats = [
        long.clone(),
        format!("{long}."),
        long.clone(),
        "short".into(),
    ];
    for (n, chat) in chats.iter().enumerate() {
        let body = format!(r#"{{"type":"made","id":{n},"data":{{"customer":"{chat}"}}}}"#);
        send(&service, signed(&of, &body)).await.assert_ok();
    }
    let all = inbox.list(&Filter::default(), Page::oldest(9)).await;
    let stored = all.unwrap().events.into_iter().map(|it| it.chat.unwrap());
    let stored: Vec<_> = stored.collect();
    assert!(stored.iter().all(|chat| chat.len() <= 1_024), "{stored:?}");
    assert_eq!(stored[0], stored[2]);
    assert_ne!(stored[0], stored[1]);
    for chat in [&long, &stored[0]] {
        let filter = Filter::default().chat(chat);
        let found = ids(&inbox, &filter, Page::oldest(9)).await;
        assert_eq!(found, [EventId(1), EventId(3)]);
    }

    // Its first event fails, and the second one waits.
    let failing =
        EventRouter::new().fallback(async |_: RawDelivery| Err(HandlerError::retry("no")));
    let webhooks = Webhooks::without_secrets().sender(of.0.clone());
    let mut routes = inbox.routes();
    let running = routes
        .handle(webhooks, failing)
        .and_then(|()| routes.start());
    let running = running.unwrap();
    let blocked = async || inbox.blocked_lanes(Some(&long), None, 9).await.unwrap();
    eventually("a lane is blocked", async || !blocked().await.is_empty()).await;
    let blocked = blocked().await;
    assert_eq!((blocked.len(), blocked[0].event.id), (1, EventId(1)));
    assert_eq!(blocked[0].waiting, 1);
    running.drain(SECOND).await.unwrap();

    let discarded = Filter::default().chat(&long).states([EventState::Waiting]);
    let discarded = inbox.discard_all(&discarded).await.unwrap().unwrap();
    assert_eq!(discarded.changed, 1);
    assert_eq!(inbox.forget(&long).await.unwrap(), 2);
    let left = inbox.get(EventId(2)).await.unwrap().unwrap();
    assert!(left.body.is_some());
}
