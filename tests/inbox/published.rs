//! What users of other queues and webhook services have published about their failures. Each test has the name of such
//! an issue, says what happened there, and makes the same happen here.

use std::collections::HashMap;
use std::future::pending;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::suite::Harness;
use futures_util::future::join_all;
use http::StatusCode;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tower_webhook::event::{ChatRated, EventKind};
use tower_webhook::inbox::internal::{self, Settled, Settlement, Take, TakenEvent};
use tower_webhook::inbox::{
    Change, EventState, EventSummary, Filter, Inbox, Page, Queue, Retry, Stats,
};
use tower_webhook::memory::MemoryQueue;
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::{Delivery, EventRouter, HandlerResult, RawDelivery};

use support::database::Database;
use support::delivery::{RequestExt, delivery, send};
use support::inbox::{NotingCrm, Works, event, inbox, webhooks, within_a_month};
use support::postgres::{PostgresServer, Stop};
use support::program::{PATIENCE, Peer, say};
use support::queue::{Calls, FaultyQueue, dead, retry, skip, snooze, take};
use support::scratch::Scratch;
use support::{DAY, MINUTE, SECOND};
use support::{eventually, lock};

/// A lease that expires while a test waits for it.
const BRIEF: Duration = Duration::from_millis(500);
const HELD: Duration = Duration::from_secs(60);

async fn claim(queue: &Queue, take: &Take, limit: usize) -> Vec<TakenEvent> {
    queue.claim_of(take, limit, limit).await.unwrap().events
}

/// Claims one event, and waits for it.
async fn claimed(queue: &Queue, take: &Take) -> TakenEvent {
    let waits = async {
        loop {
            if let Some(taken) = claim(queue, take, 1).await.pop() {
                return taken;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, waits).await.expect("no event is due")
}

async fn end(queue: &Queue, taken: &TakenEvent, settlement: &Settlement) {
    let settled = queue.settle(&taken.lease, settlement, None).await.unwrap();
    assert!(matches!(settled, Settled::Ended(None)), "{settled:?}");
}

async fn events(inbox: &Inbox) -> Vec<EventSummary> {
    let page = Page::oldest(10_000);
    let listed = inbox.list(&Filter::default(), page).await.unwrap();
    listed.events
}

async fn finished(inbox: &Inbox) -> Stats {
    let finished = timeout(PATIENCE, inbox.finish()).await;
    match finished {
        Ok(stats) => stats.unwrap(),
        Err(_) => panic!("events are stuck: {}", inbox.stats().await.unwrap()),
    }
}

/// Handlers of ratings, which get the chat, the number in it, and the attempt.
fn router<F, Fut>(handle: F) -> EventRouter
where
    F: Fn(String, usize, u32) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send + 'static,
{
    EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
        let chat = delivery.payload.id.clone().unwrap_or_default();
        let number = delivery.payload.rating.unwrap_or_default() as usize;
        handle(chat, number, delivery.attempt().map_or(0, Into::into))
    })
}

/// There, a live worker missed its heartbeat, and its job was given to another one. When it ended nevertheless, it freed
/// the place that the other one held, and 11 jobs ran where one was allowed. Here, it frees nothing.
#[tokio::test(flavor = "multi_thread")]
async fn solid_queue_761() {
    async fn rule<H: Harness>(harness: &H) {
        let inbox = Inbox::new(harness.open().await);
        let webhooks = webhooks(&inbox);
        for n in 0..12 {
            send(&webhooks, event("a", n)).await.assert_ok();
        }
        let queue = internal::queue(&inbox);
        let late = claimed(queue, &take(BRIEF)).await;
        let mut holder = claimed(queue, &take(HELD)).await;
        assert_eq!(late.lease.id, holder.lease.id);
        let endings = [
            Settlement::Handled,
            Settlement::Released,
            retry(Duration::ZERO),
            dead(false),
        ];
        for number in 0..12 {
            for ending in &endings {
                let ended = queue.settle(&late.lease, ending, Some(&take(HELD))).await;
                assert!(matches!(ended, Ok(Settled::Lost)), "{ended:?}");
            }
            assert_eq!(
                queue.extend(&[late.lease], HELD).await.unwrap(),
                [Some(false)]
            );
            assert!(claim(queue, &take(HELD), 100).await.is_empty());
            let next = take(HELD);
            let ended = queue.settle(&holder.lease, &Settlement::Handled, Some(&next));
            match ended.await.unwrap() {
                Settled::Ended(Some(next)) => holder = *next,
                other => assert_eq!(number, 11, "{other:?}"),
            }
        }
        assert!(inbox.stats().await.unwrap().is_all_handled());
    }
    on_every_queue!(rule);
}

/// The same with workers: while one cannot extend its lease, another one takes over, and no two attempts run.
#[tokio::test(start_paused = true)]
async fn solid_queue_761_with_workers() {
    let (queue, crm) = (MemoryQueue::new(), NotingCrm::default());
    *lock(&crm.takes) = 5 * MINUTE;
    let queues = [
        FaultyQueue::new(queue.clone()),
        FaultyQueue::new(queue.clone()),
    ];
    let worker = |queue: &FaultyQueue| {
        let inbox = Inbox::new(queue.clone());
        let worker = inbox.work(crm.router()).max_crashes(100);
        worker.handler_timeout(60 * MINUTE).spawn()
    };
    let workers = queues.each_ref().map(worker);
    let inbox = Inbox::new(queue);
    for n in 0..12 {
        send(&webhooks(&inbox), event("a", n)).await.assert_ok();
    }
    for round in 0..12 {
        let blip = &queues[round % 2].faults.keeps_no_lease;
        blip.store(true, Ordering::SeqCst);
        sleep(MINUTE).await;
        blip.store(false, Ordering::SeqCst);
        sleep(MINUTE).await;
    }
    sleep(2 * 60 * MINUTE).await;
    assert_eq!(crm.order()["a"], (0..12).collect::<Vec<_>>());
    assert_eq!(crm.most_at_once.load(Ordering::SeqCst), 1);
    assert!(crm.attempts() > 12, "no lease was lost");
    for worker in workers {
        worker.drain(SECOND).await.unwrap();
    }
}

/// There, a blocked thread was not seen as alive. Here, a handler that blocks its thread for longer than a lease keeps its
/// event, and the other attempts keep theirs, if the runtime has another thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn solid_queue_761_with_a_blocked_thread() {
    let inbox = inbox();
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let handlers = router(move |chat, _, _| {
        let counted = Arc::clone(&counted);
        async move {
            // Woken by a timer, whose thread is the one that is blocked.
            sleep(Duration::from_millis(50)).await;
            counted.fetch_add(1, Ordering::SeqCst);
            match chat.as_str() {
                "blocks" => std::thread::sleep(4 * SECOND),
                _ => sleep(4 * SECOND).await,
            }
            Ok(())
        }
    });
    let worker = inbox.work(handlers).lease(2 * SECOND).spawn();
    for chat in ["blocks", "waits"] {
        send(&webhooks(&inbox), event(chat, 1)).await.assert_ok();
    }
    assert!(finished(&inbox).await.is_all_handled());
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
    worker.drain(SECOND).await.unwrap();
}

/// There, two recoveries saw the same job of a dead worker. The second one worked on what it had read, although the first
/// one had changed it, and the job ran again. Here, one claim gets the event, and what was read before is worth nothing.
#[tokio::test(flavor = "multi_thread")]
async fn dbos_transact_py_742() {
    async fn rule<H: Harness>(harness: &H) {
        let inbox = Inbox::new(harness.open().await);
        send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
        let died = claimed(internal::queue(&inbox), &take(BRIEF)).await;
        let handles = join_all((0..8).map(|_| harness.open())).await;
        let held = take(HELD);
        let rush = || async {
            let claims = join_all(handles.iter().map(|queue| claim(queue, &held, 4)));
            claims.await.into_iter().flatten().collect::<Vec<_>>()
        };
        let waits = async {
            loop {
                let mut taken = rush().await;
                if let Some(first) = taken.pop() {
                    assert!(taken.is_empty(), "it was taken {} times", 1 + taken.len());
                    return first;
                }
            }
        };
        let recovered = timeout(PATIENCE, waits).await.unwrap();
        assert!(rush().await.is_empty());
        end(&handles[0], &recovered, &Settlement::Handled).await;
        for late in [&died, &recovered] {
            let again = handles[1].settle(&late.lease, &Settlement::Released, None);
            assert!(matches!(again.await, Ok(Settled::Lost)));
            let extended = handles[1].extend(&[late.lease], HELD).await.unwrap();
            assert_eq!(extended, [Some(false)]);
        }
        assert!(rush().await.is_empty());
        assert!(inbox.stats().await.unwrap().is_all_handled());
    }
    on_every_queue!(rule);
}

/// There, the process that rescued jobs of the dead did not know a kind, and discarded its jobs. Here, a worker that
/// leaves a kind to others changes nothing about its events, whatever happened to them.
#[tokio::test(flavor = "multi_thread")]
async fn river_1105() {
    async fn rule<H: Harness>(harness: &H) {
        let inbox = Inbox::new(harness.open().await);
        let webhooks = webhooks(&inbox);
        let newer = delivery(r#"{"id":"new"}"#).kind("chat-closed").key("new");
        send(&webhooks, newer).await.assert_ok();
        let taken = claimed(internal::queue(&inbox), &take(BRIEF)).await;

        // It rescues its own kind, and would make a dead letter of the first crash.
        let crm = NotingCrm::default();
        let older = inbox
            .work(crm.router())
            .only([EventKind::CHAT_RATED])
            .max_crashes(1)
            .poll_every(Duration::from_millis(20))
            .spawn();
        sleep(2 * BRIEF).await;
        send(&webhooks, event("old", 1)).await.assert_ok();
        eventually("the older worker works", async || crm.handled() == 1).await;
        sleep(BRIEF).await;
        let left = inbox.get(taken.lease.id).await.unwrap().unwrap();
        assert!(left.summary.state.is_unsettled(), "{left:?}");
        assert!(left.failures.is_empty(), "{left:?}");

        let attempts = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&attempts);
        let closed = EventRouter::new().fallback(move |delivery: RawDelivery| {
            lock(&seen).push((delivery.kind().clone(), delivery.attempt().unwrap().get()));
            async { Ok(()) }
        });
        let worker = inbox.work(closed).only([EventKind::CHAT_CLOSED]).spawn();
        assert!(finished(&inbox).await.is_all_handled());
        assert_eq!(*lock(&attempts), [(EventKind::CHAT_CLOSED, 2)]);
        drop((worker, older));
    }
    on_every_queue!(rule);
}

/// There, 5,000 jobs were "running" for up to 91 days: they did not return, nobody stopped them, and their places were
/// gone. Here, a handler has a time limit, whatever it waits for, and its place is free after it.
#[tokio::test(start_paused = true)]
async fn river_1258() {
    let inbox = inbox();
    let handled = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&handled);
    let handlers = router(move |chat, _, _| {
        let counted = Arc::clone(&counted);
        async move {
            if chat.starts_with("hangs") {
                pending::<()>().await;
            }
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let worker = inbox
        .work(handlers)
        .concurrency(2)
        .retry(Retry::default().max_attempts(3))
        .spawn();
    let webhooks = webhooks(&inbox);
    for n in 0..8 {
        let chat = format!("hangs-{n}");
        send(&webhooks, event(&chat, 1)).await.assert_ok();
        send(&webhooks, event(&format!("fine-{n}"), 1))
            .await
            .assert_ok();
    }
    within_a_month(|| handled.load(Ordering::SeqCst) == 8).await;
    sleep(DAY).await;
    let running = |state| matches!(state, EventState::InProgress);
    let events = events(&inbox).await;
    assert!(!events.iter().any(|event| running(event.state)));
    let dead = |event: &&EventSummary| event.state == EventState::Dead;
    assert_eq!(events.iter().filter(dead).count(), 8);
    worker.drain(SECOND).await.unwrap();
}

/// There, the id of a worker was that of its machine. After a restart, the heartbeat of the new process kept the jobs of
/// the old one "doing" for ever. Here, a lease belongs to one attempt, and only that attempt extends it.
#[tokio::test(flavor = "multi_thread")]
async fn procrastinate_1518() {
    async fn rule<H: Harness>(harness: &H) {
        let before = Inbox::new(harness.open().await);
        for chat in ["a", "b"] {
            send(&webhooks(&before), event(chat, 1)).await.assert_ok();
            claimed(internal::queue(&before), &take(2 * BRIEF)).await;
        }
        drop(before);

        // The same process, with a lease that it extends all the time.
        let inbox = Inbox::new(harness.open().await);
        let release = Arc::new(Notify::new());
        let handled = Arc::new(Mutex::new(Vec::new()));
        let (released, noted) = (Arc::clone(&release), Arc::clone(&handled));
        let handlers = router(move |chat, _, attempt| {
            let (released, noted) = (Arc::clone(&released), Arc::clone(&noted));
            async move {
                if chat == "long" {
                    released.notified().await;
                }
                lock(&noted).push((chat, attempt));
                Ok(())
            }
        });
        let worker = inbox.work(handlers).lease(BRIEF).spawn();
        send(&webhooks(&inbox), event("long", 1)).await.assert_ok();
        eventually("the old events", async || lock(&handled).len() == 2).await;
        let mut old = lock(&handled).clone();
        old.sort();
        assert_eq!(old, [("a".to_owned(), 2), ("b".to_owned(), 2)]);
        release.notify_one();
        assert!(finished(&inbox).await.is_all_handled());
        drop(worker);
    }
    on_every_queue!(rule);
}

/// There, the oldest job decided: if its key was blocked, no other key got a job. Here, whatever blocks a lane, a claim
/// of a single event finds the other lanes.
#[tokio::test(flavor = "multi_thread")]
async fn pg_boss_849() {
    async fn rule<H: Harness>(harness: &H) {
        let inbox = Inbox::new(harness.open().await);
        let (queue, webhooks) = (internal::queue(&inbox), webhooks(&inbox));
        for (chat, blocked_by) in [
            ("retried", Some(retry(HELD))),
            ("held", Some(dead(true))),
            ("busy", None),
        ] {
            send(&webhooks, event(chat, 0)).await.assert_ok();
            let first = claimed(queue, &take(HELD)).await;
            for n in 1..100 {
                send(&webhooks, event(chat, n)).await.assert_ok();
            }
            if let Some(blocked_by) = blocked_by {
                end(queue, &first, &blocked_by).await;
            }
        }
        for n in 0..3 {
            let chat = format!("free-{n}");
            send(&webhooks, event(&chat, 0)).await.assert_ok();
        }
        let mut chats = Vec::new();
        for _ in 0..3 {
            for taken in claim(queue, &take(HELD), 1).await {
                let record = inbox.get(taken.lease.id).await.unwrap().unwrap();
                chats.push(record.summary.chat.unwrap());
            }
        }
        assert_eq!(chats, ["free-0", "free-1", "free-2"]);
        assert!(claim(queue, &take(HELD), 1).await.is_empty());
    }
    on_every_queue!(rule);
}

/// There, the jobs A, B and C of a group ran as B, C, A when A was retried. Here, B waits for A.
#[tokio::test(flavor = "multi_thread")]
async fn bullmq_2774() {
    async fn rule<H: Harness>(harness: &H) {
        let inbox = Inbox::new(harness.open().await);
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&attempts);
        let handlers = router(move |_, number, attempt| {
            lock(&noted).push((number, attempt));
            async move {
                match (number, attempt) {
                    (0, 1..=3) => Err("A fails".into()),
                    _ => Ok(()),
                }
            }
        });
        let shortly = Duration::from_millis(50);
        let worker = inbox
            .work(handlers)
            .retry(Retry::default().delays(shortly, shortly))
            .poll_every(shortly)
            .spawn();
        for n in 0..3 {
            send(&webhooks(&inbox), event("a", n)).await.assert_ok();
        }
        assert!(finished(&inbox).await.is_all_handled());
        let expected = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (2, 1)];
        assert_eq!(*lock(&attempts), expected);
        drop(worker);
    }
    on_every_queue!(rule);
}

/// There, a job that killed its worker was fetched again after each restart, for ever. Here, it is a dead letter after
/// three processes, and all other events are handled, those of its chat included.
#[tokio::test]
async fn sidekiq_4992() {
    const TEST: &str = "sidekiq_4992";
    const CHATS: usize = 20;

    async fn work(queue: Queue) {
        let inbox = Inbox::new(queue);
        let handlers = router(|chat, number, _| async move {
            if (chat.as_str(), number) == ("chat-7", 0) {
                process::exit(9);
            }
            sleep(Duration::from_millis(5)).await;
            say(format!("{chat} {number}"));
            Ok(())
        });
        let worker = inbox
            .work(handlers)
            .concurrency(8)
            .lease(2 * BRIEF)
            .poll_every(Duration::from_millis(50))
            .spawn();
        finished(&inbox).await;
        say("done");
        worker.drain(SECOND).await.unwrap();
    }
    if let Some(argument) = Peer::argument() {
        return match argument.starts_with("postgres:") {
            true => work(postgres_queue(&argument).await.into()).await,
            false => work(SqliteQueue::open(argument).unwrap().into()).await,
        };
    }

    async fn survives<H: Harness>(harness: &H, argument: &str) {
        let inbox = Inbox::new(harness.open().await);
        for n in 0..5 {
            for chat in 0..CHATS {
                let event = event(&format!("chat-{chat}"), n);
                send(&webhooks(&inbox), event).await.assert_ok();
            }
        }
        let mut handled = Vec::new();
        let mut deaths = 0;
        loop {
            let mut peer = Peer::start(Peer::command(module_path!(), TEST, argument));
            while let Some(line) = peer.line() {
                handled.push(line);
            }
            if handled.pop_if(|last| last == "done").is_some() {
                break;
            }
            deaths += 1;
            assert!(deaths <= 3, "the event kills every process");
        }
        // A process that stood still for longer than a lease is a crash, too.
        assert!(deaths >= 1);
        let events = events(&inbox).await;
        let dead: Vec<_> = events
            .iter()
            .filter(|event| event.state != EventState::Handled)
            .collect();
        assert_eq!(dead.len(), 1, "{dead:?}");
        assert_eq!(dead[0].state, EventState::Dead);
        let record = inbox.get(dead[0].id).await.unwrap().unwrap();
        assert_eq!(record.failures[0].failure.outcome, "crashed");
        assert_eq!(record.summary.chat.as_deref(), Some("chat-7"));
        assert!(handled.len() >= 5 * CHATS - 1);
        assert!(handled.contains(&"chat-7 4".to_owned()));
    }
    let scratch = Scratch::new();
    survives(&scratch, scratch.path().to_str().unwrap()).await;
    let database = Database::create().await;
    survives(&database, &database.url).await;
}

async fn postgres_queue(url: &str) -> PostgresQueue {
    let pool = PgPoolOptions::new().max_connections(4).connect(url).await;
    let queue = PostgresQueue::new(pool.unwrap());
    queue.migrate().await.unwrap();
    queue
}

/// There, jobs that failed under load were retried at once and together, so that the load grew until nothing worked. Here,
/// a system that answers nothing while it has too many calls recovers from its backlog: retries spread.
#[tokio::test(start_paused = true)]
async fn hatchet_1540() {
    const EVENTS: usize = 2000;
    const CAPACITY: usize = 4;

    let inbox = inbox();
    let (attempts, handled) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let running = Arc::new(AtomicUsize::new(0));
    struct Call(Arc<AtomicUsize>);
    impl Drop for Call {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let handlers = router({
        let (attempts, handled) = (Arc::clone(&attempts), Arc::clone(&handled));
        move |_, _, _| {
            attempts.fetch_add(1, Ordering::SeqCst);
            let calls = running.fetch_add(1, Ordering::SeqCst) + 1;
            let (call, handled) = (Call(Arc::clone(&running)), Arc::clone(&handled));
            async move {
                if calls > CAPACITY {
                    // Until its time limit.
                    pending::<()>().await;
                }
                sleep(SECOND / 10).await;
                handled.fetch_add(1, Ordering::SeqCst);
                drop(call);
                Ok(())
            }
        }
    });
    let webhooks = webhooks(&inbox);
    for n in 0..EVENTS {
        let chat = format!("chat-{}", n % 400);
        send(&webhooks, event(&chat, n)).await.assert_ok();
    }
    let began = Instant::now();
    let worker = inbox.work(handlers).spawn();
    within_a_month(|| handled.load(Ordering::SeqCst) == EVENTS).await;
    let (attempts, took) = (attempts.load(Ordering::SeqCst), began.elapsed());
    // Some 5 each, within 4 hours.
    assert!(attempts < 8 * EVENTS, "{attempts} attempts");
    assert!(took < DAY / 4, "{took:?}");
    sleep(SECOND).await;
    assert!(inbox.stats().await.unwrap().is_all_handled());
    worker.drain(SECOND).await.unwrap();
}

/// There, stopping waited for a job that hung, although it had a deadline. Here, a drain ends at its deadline, and the
/// event is released without a counted attempt.
#[tokio::test(start_paused = true)]
async fn river_78() {
    let inbox = inbox();
    let running = Arc::new(AtomicUsize::new(0));
    let begun = Arc::clone(&running);
    let hangs = router(move |_, _, _| {
        begun.fetch_add(1, Ordering::SeqCst);
        pending()
    });
    let worker = inbox.work(hangs).spawn();
    for chat in ["a", "b", "c"] {
        send(&webhooks(&inbox), event(chat, 1)).await.assert_ok();
    }
    within_a_month(|| running.load(Ordering::SeqCst) == 3).await;
    let began = Instant::now();
    let interrupted = worker.drain(10 * SECOND).await.unwrap_err();
    assert_eq!(interrupted.count(), 3);
    assert!(began.elapsed() < 11 * SECOND, "{:?}", began.elapsed());
    for event in events(&inbox).await {
        assert_eq!((event.state, event.failures), (EventState::Waiting, 0));
    }
    let crm = NotingCrm::default();
    let worker = inbox.work(crm.router()).spawn();
    within_a_month(|| crm.handled() == 3).await;
    worker.drain(SECOND).await.unwrap();
}

/// The same with a handler that blocks its thread, which nobody can interrupt: the drain ends nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn river_78_with_a_blocked_thread() {
    let inbox = inbox();
    let running = Arc::new(AtomicBool::new(false));
    let unblocked = Arc::new(AtomicBool::new(false));
    let (begun, until) = (Arc::clone(&running), Arc::clone(&unblocked));
    let blocks = router(move |_, _, _| {
        let (begun, until) = (Arc::clone(&begun), Arc::clone(&until));
        async move {
            begun.store(true, Ordering::SeqCst);
            while !until.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        }
    });
    let worker = inbox.work(blocks).spawn();
    send(&webhooks(&inbox), event("a", 1)).await.assert_ok();
    eventually("the handler", async || running.load(Ordering::SeqCst)).await;
    let drained = timeout(PATIENCE, worker.drain(SECOND / 10)).await;
    unblocked.store(true, Ordering::SeqCst);
    let interrupted = drained.expect("the drain waits for the handler");
    assert_eq!(interrupted.unwrap_err().count(), 1);
}

/// There, workers of a new release ignored the jobs that the old one had stored, because their format had another number.
/// Here, another release of the program, with other settings, goes on with all that is there.
#[tokio::test(flavor = "multi_thread")]
async fn que_429() {
    async fn rule<H: Harness>(harness: &H) {
        let before = Inbox::new(harness.open().await);
        let queue = internal::queue(&before);
        let webhooks = webhooks(&before);
        let mut taken = HashMap::new();
        for chat in [
            "waits", "retried", "snoozed", "released", "skipped", "died", "dead",
        ] {
            send(&webhooks, event(chat, 1)).await.assert_ok();
            send(&webhooks, event(chat, 2)).await.assert_ok();
            if chat != "waits" {
                let taken_now = claim(queue, &take(2 * BRIEF), 10).await;
                for event in taken_now {
                    let record = before.get(event.lease.id).await.unwrap().unwrap();
                    taken.insert(record.summary.chat.unwrap(), event);
                }
            }
        }
        for (chat, settlement) in [
            ("waits", Settlement::Released),
            ("retried", retry(BRIEF)),
            ("snoozed", snooze(BRIEF)),
            ("released", Settlement::Released),
            ("skipped", skip(BRIEF)),
            ("dead", dead(true)),
        ] {
            end(queue, &taken[chat], &settlement).await;
        }
        let dead = taken["dead"].lease.id;
        drop(webhooks);
        drop(before);

        let now = Inbox::new(harness.open().await)
            .keep_bodies(Duration::ZERO)
            .backlog_limit(1 << 20);
        let crm = NotingCrm::default();
        let worker = now
            .work(crm.router())
            .route(|webhooks| webhooks.reject_changed_bodies().replay_guard())
            .concurrency(2)
            .lease(2 * SECOND)
            .retry(Retry::default().max_attempts(50))
            .spawn();
        eventually("all but the dead letter's chat", async || {
            crm.handled() == 12
        })
        .await;
        assert_eq!(now.redrive(dead, None).await.unwrap(), Change::Made);
        assert!(finished(&now).await.is_all_handled());
        for (chat, order) in crm.order() {
            let mut order = order;
            if chat == "skipped" {
                order.sort_unstable();
            }
            assert_eq!(order, [1, 2], "{chat}");
        }
        drop(worker);
    }
    on_every_queue!(rule);
}

/// There, a delivery was recorded in one step and queued in another. When only the first one happened, every retry of the
/// sender was dropped as a duplicate. Here, whatever is answered as a duplicate is handled.
#[tokio::test(flavor = "multi_thread")]
async fn breeze_4095() {
    async fn rule<H: Harness>(harness: &H) {
        const EVENTS: usize = 100;
        let queue = FaultyQueue::new(harness.open().await);
        let faults = Arc::clone(&queue.faults);
        let inbox = Inbox::new(queue);
        let webhooks = webhooks(&inbox);
        let chat = |n: usize| format!("chat-{}", n % 7);
        let crm = NotingCrm::default();
        // Some have no worker beside them, and the others are taken when they are accepted.
        let mut worker = None;
        for n in 0..EVENTS {
            if n == EVENTS / 2 {
                let brief = inbox.work(crm.router()).lease(BRIEF);
                worker = Some(brief.spawn());
            }
            // The connection breaks after the write, or the caller is gone at some moment.
            let lost = n.is_multiple_of(2);
            faults.loses_answers.store(lost, Ordering::SeqCst);
            let limit = match lost {
                true => PATIENCE,
                false => Duration::from_micros(n as u64 * 97 % 3000),
            };
            let first = timeout(limit, send(&webhooks, event(&chat(n), n))).await;
            if lost {
                let answer = first.unwrap();
                assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
                assert_eq!(answer.retry_after(), Some(600));
            }
            faults.loses_answers.store(false, Ordering::SeqCst);
            let retried = send(&webhooks, event(&chat(n), n)).await;
            assert_eq!(retried.status, StatusCode::OK);
            assert!(retried.is_replay() || !lost, "it was stored");
        }
        assert!(finished(&inbox).await.is_all_handled());
        let order = crm.order();
        let distinct: std::collections::HashSet<_> = order.values().flatten().collect();
        assert_eq!(distinct.len(), EVENTS);
        drop(worker);
    }
    on_every_queue!(rule);
}

/// There, the workers were in limbo after the restart of the server behind the queue, until they were restarted, too. Here,
/// deliveries are answered with 503 meanwhile, and work resumes by itself.
#[tokio::test(flavor = "multi_thread")]
async fn svix_webhooks_1844() {
    let mut server = tokio::task::spawn_blocking(PostgresServer::start)
        .await
        .unwrap();
    let inbox = Inbox::new(postgres_queue(&server.url()).await);
    let crm = NotingCrm::default();
    let worker = inbox.work(crm.router()).lease(BRIEF).spawn();
    let webhooks = webhooks(&inbox);
    for round in 0..3 {
        send(&webhooks, event("a", 3 * round)).await.assert_ok();
        // In progress while the server goes, and stored before it went.
        *lock(&crm.takes) = SECOND;
        send(&webhooks, event("b", 3 * round + 1)).await.assert_ok();
        server.stop([Stop::Immediate, Stop::Fast][round % 2]);
        let refused = send(&webhooks, event("c", 3 * round + 2)).await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.retry_after(), Some(600));
        *lock(&crm.takes) = Duration::ZERO;
        sleep(2 * SECOND).await;
        server.restart();
        let accepted = async {
            while send(&webhooks, event("c", 3 * round + 2)).await.status != StatusCode::OK {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, accepted).await.expect("still 503");
        assert!(finished(&inbox).await.is_all_handled());
        let mut handled: Vec<_> = crm.order().into_values().flatten().collect();
        handled.sort_unstable();
        handled.dedup();
        assert_eq!(handled, (0..3 * round + 3).collect::<Vec<_>>());
    }
    worker.drain(SECOND).await.unwrap();
}

/// The same for a day, with any queue.
#[tokio::test(start_paused = true)]
async fn svix_webhooks_1844_for_a_day() {
    let queue = FaultyQueue::new(MemoryQueue::new());
    let (inbox, crm) = (Inbox::new(queue.clone()), NotingCrm::default());
    let worker = inbox.work(crm.router()).spawn();
    let webhooks = webhooks(&inbox);
    for n in 0..2 {
        *lock(&crm.takes) = 10 * SECOND;
        send(&webhooks, event("a", n)).await.assert_ok();
        sleep(SECOND).await;
        queue.faults.is_down.store(true, Ordering::SeqCst);
        let refused = send(&webhooks, event("b", n)).await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        sleep(DAY).await;
        *lock(&crm.takes) = Duration::ZERO;
        queue.faults.is_down.store(false, Ordering::SeqCst);
        // Whoever asks in vain asks at least every 5 seconds.
        sleep(10 * SECOND).await;
        assert!(inbox.stats().await.unwrap().is_all_handled());
    }
    worker.drain(SECOND).await.unwrap();
}
