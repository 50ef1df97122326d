//! Chats that the queue does not accept, because another transaction has locked them or it refuses an event, and the others.

use super::*;

/// Lets this much simulated time pass, while the file is on a real disk.
async fn pass(time: Duration) {
    const STEP: Duration = Duration::from_millis(100);
    for _ in 0..time.as_millis() / STEP.as_millis() {
        let pause = spawn_blocking(|| thread::sleep(Duration::from_millis(2)));
        pause.await.unwrap();
        advance(STEP).await;
    }
}

/// Sends an event while time passes.
async fn send_in_time(desk: &Desk, chat: &str, n: usize) {
    let (status, ()) = tokio::join!(desk.send(event(chat, n)), pass(SECOND));
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_locked_chat_goes_through_the_file_and_no_other_one_does() {
    let log = Log::capture(Level::WARN);
    let desk = Desk::open().await;
    desk.remote.lock(&["a"]);
    for n in 1..=10 {
        assert_eq!(desk.send(event("a", n)).await, 200);
        let began = Instant::now();
        assert_eq!(desk.send(event(&format!("b-{}", n % 2), n)).await, 200);
        assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
        desk.handled(n).await;
        assert!(!desk.spooled.status().is_open);
    }
    let others = lock(&desk.seen).clone();
    assert!(others.iter().all(|(_, _, was_spooled)| !was_spooled));
    desk.remote.lock(&[]);
    desk.flushed().await;
    let all = desk.handled(20).await;
    let numbers: Vec<_> = of(&all, "a").iter().map(|it| it.1).collect();
    assert_eq!(numbers, Vec::from_iter(1..=10));
    assert_eq!(desk.send(event("a", 11)).await, 200);
    assert_eq!(desk.handled(21).await[20], seen("a", 11, false));
    // The chat is reported once.
    assert_eq!(log.events().len(), 1, "{}", log.text());
}

/// For longer than ten tries of ten seconds.
#[tokio::test(start_paused = true)]
async fn a_chat_that_is_locked_for_long_is_not_refused_and_keeps_its_order() {
    let (_until_the_end, ended) = mpsc::channel::<()>();
    spawn_blocking(move || ended.recv());
    let desk = Desk::open().await;
    desk.remote.lock(&["a"]);
    send_in_time(&desk, "a", 1).await;
    for n in 2..=20 {
        send_in_time(&desk, "a", n).await;
        send_in_time(&desk, "b", n).await;
        pass(10 * SECOND).await;
        assert_eq!(of(&lock(&desk.seen), "b").len(), n - 1);
    }
    let status = desk.spooled.status();
    assert_eq!((status.refused, status.events), (0, 20));
    desk.remote.lock(&[]);
    pass(60 * SECOND).await;
    let all = lock(&desk.seen).clone();
    let numbers: Vec<_> = of(&all, "a").iter().map(|it| it.1).collect();
    assert_eq!(numbers, Vec::from_iter(1..=20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_chats_without_a_success_between_them_open_the_breaker() {
    let desk = Desk::open().await;
    let chats = ["a", "b", "c", "d"];
    desk.remote.lock(&chats);
    let send = async |chat, n| assert_eq!(desk.send(event(chat, n)).await, 200);
    let is_open = || desk.spooled.status().is_open;
    for chat in ["a", "b"] {
        send(chat, 1).await;
    }
    // One of them again, and another one that is accepted.
    send("a", 2).await;
    assert!(!is_open());
    send("e", 1).await;
    send("c", 1).await;
    assert!(!is_open());
    send("d", 1).await;
    // Those before the success have been tried again.
    eventually("it opens", async || is_open()).await;
    // What is accepted from the file closes it.
    send("f", 1).await;
    assert!(is_open());
    eventually("it closes", async || !is_open()).await;
    assert_eq!(desk.handled(2).await.len(), 2);
    desk.remote.lock(&[]);
    desk.flushed().await;
    let all = desk.handled(7).await;
    assert_eq!(of(&all, "a"), [&seen("a", 1, true), &seen("a", 2, true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_that_has_events_in_the_file_when_it_is_opened_goes_on_behind_them() {
    let desk = Desk::open().await;
    desk.remote.lock(&["a"]);
    for n in 1..=3 {
        assert_eq!(desk.send(event("a", n)).await, 200);
    }
    let (remote, scratch) = desk.close();
    let spooled = reopen(&spool(&scratch), &remote).await;
    let inbox = Inbox::new(spooled.clone());
    // It is tried at once, and looked at in a while.
    sleep(Duration::from_millis(50)).await;
    remote.lock(&[]);
    assert_eq!(send(&webhooks(&inbox), event("a", 4)).await.status, 200);
    assert_eq!(spooled.flush(20 * SECOND).await, 0);
    let page = Page::oldest(9);
    let listed = remote.memory().list(&Filter::default(), page).await;
    let keys = listed.unwrap().events.into_iter();
    let keys: Vec<_> = keys.map(|event| event.key.unwrap().to_string()).collect();
    assert_eq!(keys, ["a-1", "a-2", "a-3", "a-4"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_the_queue_refuses_does_not_keep_others_for_ever() {
    let desk = Desk::open().await;
    let began = Instant::now();
    assert_eq!(desk.send(event(REFUSED, 1)).await, 200);
    let sends = async {
        for n in 1.. {
            assert_eq!(desk.send(event("a", n)).await, 200);
            sleep(Duration::from_millis(300)).await;
        }
    };
    let refused = eventually("it is put aside", async || {
        desk.spooled.status().refused == 1
    });
    tokio::select! {
        () = sends => {}
        () = async { timeout(60 * SECOND, refused).await.unwrap() } => {}
    }
    // In ten rounds, a second apart.
    assert!(began.elapsed() > 9 * SECOND, "{:?}", began.elapsed());
    // It is not waited for.
    assert_eq!(desk.spooled.flush(20 * SECOND).await, 1);
    let handled = lock(&desk.seen).len();
    assert!(handled > 5, "{handled}");
    assert_eq!(desk.spooled.status().refused, 1);

    let (remote, scratch) = desk.close();
    // The next process knows it, and does not have its chat wait again.
    let spooled = reopen(&spool(&scratch), &remote).await;
    eventually("it is refused again", async || {
        spooled.status().refused == 1
    })
    .await;
    let mut dropped = Vec::new();
    let no_room =
        spooled.drop_refused(|_| Err(StoreError::new(StoreErrorKind::Unavailable, "full")));
    no_room.await.unwrap_err();
    let keep = |record: &EventRecord| {
        dropped.push(record.clone());
        Ok::<_, StoreError>(())
    };
    assert_eq!(spooled.drop_refused(keep).await.unwrap(), 1);
    let [record] = &*dropped else {
        panic!("{dropped:?}")
    };
    let of = &record.summary;
    assert_eq!(
        (&of.kind, of.chat.as_deref()),
        (&EventKind::CHAT_RATED, Some(REFUSED))
    );
    let body = record.body.as_deref();
    assert_eq!(body, Some(&br#"{"id":"refused","rating":1}"#[..]));
    assert!(record.headers.is_empty(), "{:?}", record.headers);
    assert_eq!(record.failures[0].failure.outcome, "refused");
    assert_eq!(spooled.flush(5 * SECOND).await, 0);
    assert_eq!(spooled.status().refused, 0);
}

#[tokio::test]
async fn what_is_refused_is_tried_again_in_its_lane() {
    let log = Log::capture(Level::ERROR);
    let desk = Desk::open().await;
    for n in [1, 2] {
        assert_eq!(desk.send(event(REFUSED, n)).await, 200);
    }
    let is_refused = || desk.spooled.status().refused == 1;
    for n in 0.. {
        assert_eq!(desk.send(event("a", n)).await, 200);
        sleep(Duration::from_millis(300)).await;
        if is_refused() {
            break;
        }
        assert!(n < 100, "it is never refused");
    }
    // Its chat goes on.
    eventually("the next one is handled", async || {
        of(&lock(&desk.seen), REFUSED) == [&seen(REFUSED, 2, true)]
    })
    .await;
    // None of them waits for the refused one.
    let mut soonest = Duration::MAX;
    for n in 3..8 {
        let began = Instant::now();
        assert_eq!(desk.send(event(REFUSED, n)).await, 200);
        soonest = soonest.min(began.elapsed());
    }
    assert!(soonest < Duration::from_millis(200), "{soonest:?}");
    eventually("they are handled", async || {
        of(&lock(&desk.seen), REFUSED).len() == 6
    })
    .await;
    let tries = || lock(&desk.remote.faults.lanes).len();
    let before = tries();
    sleep(7 * SECOND).await;
    // After 2 and 4 more seconds.
    let more = tries() - before;
    assert!((1..=3).contains(&more), "{more}");
    desk.remote.set(|faults| &faults.stores_refused, true);
    eventually("it is forwarded", async || {
        desk.spooled.flush(Duration::ZERO).await == 0
    })
    .await;
    assert!(!is_refused());
    eventually("it is handled", async || {
        of(&lock(&desk.seen), REFUSED).len() == 7
    })
    .await;
    let all = lock(&desk.seen).clone();
    let expected = [2, 3, 4, 5, 6, 7, 1].map(|n| seen(REFUSED, n, true));
    assert_eq!(of(&all, REFUSED), expected.iter().collect::<Vec<_>>());
    let lanes = lock(&desk.remote.faults.lanes).clone();
    assert!(lanes.iter().all(Option::is_some), "{lanes:?}");
    assert_eq!(log.events().len(), 1, "{}", log.text());
}

/// As without a spool: `postgres/stalls.rs`.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_locked_delays_no_other_chat() {
    use support::database::Database;

    const LOCKED: Duration = Duration::from_secs(12);

    let database = Database::create().await;
    let queue = database.queue().await;
    let first = support::queue::new_event(EventKind::CHAT_RATED, r#"{"id":"locked","rating":0}"#);
    let first = NewEvent {
        lane: Some(Lane::of_chat("locked")),
        ..first
    };
    queue.accept_one(first, None).await.unwrap();
    let pool = database.pool(1).await;
    let mut transaction = pool.begin().await.unwrap();
    let row = "SELECT FROM tower_webhook.head FOR UPDATE";
    sqlx::query(row).execute(&mut *transaction).await.unwrap();

    let scratch = Scratch::new();
    let spooled = Spool::new(scratch.path()).on_any_disk().limit(1 << 20);
    let spooled = spooled.open(queue).await.unwrap();
    let began = Instant::now();
    let handled = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&handled);
    let events = EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
        let chat = delivery.payload.id.clone().unwrap_or_default();
        let number = delivery.payload.rating.unwrap_or_default() as usize;
        lock(&note).push((chat, number, began.elapsed()));
        async { Ok(()) }
    });
    let inbox = Inbox::new(spooled.clone());
    let webhooks = Webhooks::new(secret()).inbox(inbox);
    let (webhooks, _worker) = webhooks.start(events).unwrap();
    let mut sent = Vec::new();
    while began.elapsed() < LOCKED {
        let n = sent.len();
        if n % 40 == 0 {
            let answer = send(&webhooks, event("locked", n + 1)).await;
            assert_eq!(answer.status, 200);
        }
        sent.push(began.elapsed());
        let answer = send(&webhooks, event(&format!("{}", n % 50), n)).await;
        assert_eq!(answer.status, 200);
        assert!(!spooled.status().is_open);
        sleep(Duration::from_millis(50)).await;
    }
    transaction.rollback().await.unwrap();
    let locked = 1 + sent.len().div_ceil(40);
    let all = sent.len() + locked;
    eventually("all are handled", async || lock(&handled).len() >= all).await;
    let handled = lock(&handled).clone();
    let (locked, others): (Vec<_>, Vec<_>) =
        handled.into_iter().partition(|(chat, ..)| chat == "locked");
    assert!(
        locked.is_sorted_by_key(|(_, number, _)| *number),
        "{locked:?}"
    );
    let waits = others.iter().map(|(_, number, at)| *at - sent[*number]);
    let mut waits: Vec<_> = waits.collect();
    waits.sort();
    let (median, most) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    println!(
        "{} events: median {median:?}, at most {most:?}",
        waits.len()
    );
    assert!(most < 2 * SECOND, "one was handled {most:?} late");
}

/// While statements wait for the table, the server answers questions.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_locked_opens_the_breaker_and_all_are_forwarded_in_order() {
    use support::database::Database;

    const CHATS: usize = 6;
    const ROUNDS: usize = 4;

    let database = Database::create().await;
    let queue = database.queue().await;
    let pool = database.pool(1).await;
    let scratch = Scratch::new();
    let spooled = Spool::new(scratch.path()).on_any_disk().limit(1 << 20);
    let spooled = spooled.open(queue).await.unwrap();
    let handled = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&handled);
    let events = EventRouter::new().on::<ChatRated>(move |delivery: Delivery<ChatRated>| {
        let chat = delivery.payload.id.clone().unwrap_or_default();
        let number = delivery.payload.rating.unwrap_or_default() as usize;
        lock(&note).push((chat, number, delivery.was_spooled()));
        async { Ok(()) }
    });
    let inbox = Inbox::new(spooled.clone());
    let (webhooks, _worker) = Webhooks::new(secret()).inbox(inbox).start(events).unwrap();

    let mut transaction = pool.begin().await.unwrap();
    let all = "LOCK TABLE tower_webhook.events IN ACCESS EXCLUSIVE MODE";
    sqlx::query(all).execute(&mut *transaction).await.unwrap();
    for n in 1..=ROUNDS {
        let sent = (0..CHATS).map(|chat| send(&webhooks, event(&format!("{chat}"), n)));
        let answers = join_all(sent).await;
        assert!(answers.iter().all(|answer| answer.status == 200), "{n}");
        if n == 1 {
            eventually("it opens", async || spooled.status().is_open).await;
        }
    }
    sleep(3 * SECOND).await;
    assert!(spooled.status().is_open);
    transaction.rollback().await.unwrap();
    assert_eq!(spooled.flush(30 * SECOND).await, 0);
    eventually("it closes", async || !spooled.status().is_open).await;
    let last = send(&webhooks, event("0", ROUNDS + 1)).await;
    assert_eq!(last.status, 200);
    eventually("all are handled", async || {
        lock(&handled).len() > CHATS * ROUNDS
    })
    .await;
    let handled = lock(&handled).clone();
    for chat in 0..CHATS {
        let chat = format!("{chat}");
        let numbers: Vec<_> = of(&handled, &chat).iter().map(|it| it.1).collect();
        let last = ROUNDS + usize::from(chat == "0");
        assert_eq!(numbers, Vec::from_iter(1..=last), "{chat}");
    }
    assert_eq!(of(&handled, "0")[ROUNDS], &seen("0", ROUNDS + 1, false));
}
