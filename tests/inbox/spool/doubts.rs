//! What opens the breaker, and what does not: the size, what the file cannot do, and what people read.

use support::inbox::accepting;
use support::observer::Notes;

use super::*;

const SOON: Duration = Duration::from_millis(1200);

/// Each sends an event, which goes to the queue.
async fn are_direct(desk: &Desk, n: usize) {
    for chat in ["b", "c", "d"] {
        let began = Instant::now();
        assert_eq!(desk.send(event(chat, n)).await, 200);
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
    let direct = || {
        let seen = lock(&desk.seen).clone();
        seen.iter().filter(|it| it.1 == n && !it.2).count()
    };
    eventually("they are handled", async || direct() == 3).await;
    assert!(!desk.spooled.status().is_open);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_that_takes_long_opens_nothing_and_delays_no_chat() {
    let desk = Desk::open().await;
    desk.remote.set(|faults| &faults.measures_slowly, true);
    are_direct(&desk, 1).await;
    // Another one has the queue asked.
    desk.remote.lock(&["a"]);
    assert_eq!(desk.send(event("a", 1)).await, 200);
    for n in 2..6 {
        are_direct(&desk, n).await;
        assert!(desk.inbox.is_ready().await);
        sleep(Duration::from_millis(500)).await;
    }
    desk.remote.lock(&[]);
    desk.flushed().await;
    let handled = desk.handled(16).await;
    assert!(handled.contains(&seen("a", 1, true)));
}

/// One question finds it, whatever the sizes say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_inbox_that_does_not_answer_any_more_is_replaced_by_the_file() {
    let desk = Desk::open().await;
    desk.remote.set(|faults| &faults.is_full, true);
    assert_eq!(desk.send(event("a", 1)).await, 503);
    desk.remote.set(|faults| &faults.is_silent, true);
    eventually("it is accepted", async || {
        desk.send(event("a", 1)).await == 200
    })
    .await;
    assert!(desk.spooled.status().is_open);
    assert!(desk.inbox.is_ready().await);
}

/// As Kubernetes asks before the first delivery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_is_ready_while_the_queue_does_not_answer() {
    let second = |spool: Spool| spool.accept_within(SECOND);
    let desk = Desk::with(|webhooks| webhooks, second).await;
    desk.remote.set(|faults| &faults.is_silent, true);
    assert!(desk.inbox.is_ready().await);
    let began = Instant::now();
    assert_eq!(desk.send(event("a", 1)).await, 200);
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
    eventually("it opens", async || desk.spooled.status().is_open).await;
    assert!(desk.inbox.is_ready().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_can_only_be_read_is_not_asked_to_accept() {
    let remote = Remote::default();
    remote.set(|faults| &faults.is_read_only, true);
    let desk = Desk::before(remote, |webhooks| webhooks, |spool| spool).await;
    assert!(desk.spooled.status().is_open);
    assert_eq!(desk.send(event("a", 1)).await, 200);
    sleep(2 * SECOND).await;
    assert!(desk.spooled.status().is_open && desk.inbox.is_ready().await);
    desk.remote.set(|faults| &faults.is_read_only, false);
    desk.flushed().await;
    are_direct(&desk, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_that_a_full_file_refuses_goes_to_the_queue_again() {
    let desk = Desk::open().await;
    desk.remote.lock(&["full", "a"]);
    let large = |n: usize| {
        let text = "x".repeat(100_000);
        delivery(format!(r#"{{"id":"full","rating":{n},"x":"{text}"}}"#)).key(&format!("full-{n}"))
    };
    let mut n = 1;
    while desk.send(large(n)).await == 200 {
        n += 1;
    }
    for text in [60_000, 20_000, 5_000, 1_000, 1] {
        let text = "x".repeat(text);
        let of = |n: usize| format!(r#"{{"id":"full","rating":{n},"x":"{text}"}}"#);
        while desk.send(delivery(of(n)).key(&format!("full-{n}"))).await == 200 {
            n += 1;
        }
    }
    assert_eq!(desk.send(event("a", 1)).await, 503);
    desk.remote.lock(&["full"]);
    assert_eq!(desk.send(event("a", 2)).await, 200);
    eventually("it is handled", async || {
        *lock(&desk.seen) == [seen("a", 2, false)]
    })
    .await;
}

/// While nothing can be forwarded, since the file is broken, nothing else can be stored there, either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_file_does_not_keep_the_breaker_open() {
    let desk = Desk::open().await;
    desk.remote.down(true);
    assert_eq!(desk.send(event("a", 1)).await, 200);
    eventually("it opens", async || desk.spooled.status().is_open).await;
    let file = desk.scratch.sql();
    file.busy_timeout(SECOND).unwrap();
    let rename = |from, to| {
        let rename = format!("ALTER TABLE {from} RENAME TO {to}");
        file.execute_batch(&rename).unwrap();
    };
    rename("work", "gone");
    desk.remote.down(false);
    eventually("it closes", async || !desk.spooled.status().is_open).await;
    are_direct(&desk, 2).await;
    // Its chat does not overtake what is there.
    assert_eq!(desk.send(event("a", 2)).await, 503);
    rename("gone", "work");
    desk.flushed().await;
    assert_eq!(desk.send(event("a", 2)).await, 200);
    let all = desk.handled(5).await;
    let of_a: Vec<_> = all.iter().filter(|it| it.0 == "a").map(|it| it.1).collect();
    assert_eq!(of_a, [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_people_did_can_be_read_late_without_a_delay_for_other_chats() {
    let desk = Desk::open().await;
    // Before an event is in the file, so that nothing forwards it yet.
    desk.remote.set(|faults| &faults.lists_no_actions, true);
    desk.remote.lock(&["a"]);
    assert_eq!(desk.send(event("a", 1)).await, 200);
    desk.remote.lock(&[]);
    for n in 1..4 {
        are_direct(&desk, n).await;
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(desk.spooled.flush(Duration::ZERO).await, 1);
    desk.remote.set(|faults| &faults.lists_no_actions, false);
    desk.flushed().await;
}

#[tokio::test]
async fn what_becomes_a_dead_letter_when_it_is_forwarded_is_reported() {
    let (scratch, remote, notes) = (Scratch::new(), Remote::default(), Notes::default());
    let spooled = spool(&scratch).open(remote.clone()).await.unwrap();
    let inbox = Inbox::new(spooled.clone());
    let webhooks = accepting(&inbox, Webhooks::new(secret()).observer(notes.clone()));
    let log = Log::capture(Level::ERROR);
    remote.down(true);
    let answer = send(&webhooks, event(TOO_MANY, 1)).await;
    assert_eq!((answer.status.as_u16(), log.events().len()), (200, 0));
    remote.down(false);
    assert_eq!(spooled.flush(20 * SECOND).await, 0);
    let message = "is a dead letter from the start";
    assert_eq!(log.count(Level::ERROR, message), 1, "{}", log.text());
    let mut dead = notes.take();
    dead.retain(|line| line.starts_with("accepted dead chat-rated 7: 1,000 other"));
    assert_eq!(dead.len(), 1, "{dead:?}");
}
