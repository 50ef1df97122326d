//! Types that fail: whoever has an event of a healthy chat or type does not wait for those of sick ones. Each test plays half an
//! hour or an hour of traffic in paused time, and bounds how long events of healthy chats wait for their first attempt.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::service_fn;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::{EventState, Filter, Inbox, Page, Scope};
use tower_webhook::{EventType, HandlerError, Outcome, RawDelivery};

use support::delivery::{RequestExt, delivery, send};
use support::inbox::{Works, accepting, inbox};
use support::{MINUTE, SECOND, lock};
use tower_webhook::Webhooks;

const CHATS: usize = 500;
const BRIEF: Duration = Duration::from_millis(50);
const HANGS: Duration = Duration::from_secs(30);

/// The events of a type, which come at random times, for random chats.
#[derive(Clone)]
struct Traffic {
    kind: EventKind,
    per_second: f64,
    /// How many of the 500 chats fail.
    sick: usize,
    takes: Duration,
    sick_takes: Duration,
}

impl Traffic {
    fn well(kind: EventKind) -> Self {
        Self {
            kind,
            per_second: 5.0,
            sick: 0,
            takes: BRIEF,
            sick_takes: BRIEF,
        }
    }
}

/// What became of the events of one type.
#[derive(Default)]
struct Seen {
    /// How long those of healthy chats waited for their first attempt, those that were never tried included.
    waits: Vec<Duration>,
    failures: usize,
    successes: usize,
}

impl Seen {
    fn p99(&self) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits
            .get(waits.len() * 99 / 100)
            .copied()
            .unwrap_or_default()
    }

    fn longest(&self) -> Duration {
        self.waits.iter().max().copied().unwrap_or_default()
    }
}

#[derive(Default)]
struct Played {
    came: Mutex<Vec<Option<(usize, usize, Instant)>>>,
    waits: Mutex<Vec<(usize, Duration)>>,
    failures: [AtomicUsize; 4],
    successes: [AtomicUsize; 4],
}

/// Plays traffic with so many places, and returns what became of the events of each type.
async fn play(traffic: &[Traffic], places: usize, minutes: u32) -> Vec<Seen> {
    let inbox: Inbox = inbox();
    let played = Arc::new(Played::default());
    let (all, noting) = (traffic.to_vec(), Arc::clone(&played));
    let handler = service_fn(move |event: RawDelivery| {
        let (all, played) = (all.clone(), Arc::clone(&noting));
        async move {
            let of = all.iter().position(|it| it.kind == *event.kind()).unwrap();
            let body: serde_json::Value = serde_json::from_slice(event.body()).unwrap();
            let id: usize = body["id"].as_str().unwrap().parse().unwrap();
            let chat = id % CHATS;
            let number = body["number"].as_u64().unwrap() as usize;
            let is_sick = chat < all[of].sick;
            if let Some((_, _, came)) = lock(&played.came)[number].take()
                && !is_sick
            {
                lock(&played.waits).push((of, came.elapsed()));
            }
            sleep(if is_sick {
                all[of].sick_takes
            } else {
                all[of].takes
            })
            .await;
            let (ended, result) = match is_sick {
                true => (
                    &played.failures,
                    Err(HandlerError::from("its shard is down")),
                ),
                false => (&played.successes, Ok(())),
            };
            ended[of].fetch_add(1, Ordering::SeqCst);
            Ok::<_, Infallible>(Outcome::from(result))
        }
    });
    let worker = inbox.work(handler).concurrency(places).spawn();
    let webhooks = accepting(&inbox, Webhooks::new(support::delivery::secret()));
    let mut random = fastrand::Rng::with_seed(7);
    let end = Instant::now() + minutes * MINUTE;
    let mut next: Vec<_> = traffic.iter().map(|_| Instant::now()).collect();
    let mut count = 0;
    loop {
        let of = (0..next.len()).min_by_key(|of| next[*of]).unwrap();
        if next[of] > end {
            break;
        }
        tokio::time::sleep_until(next[of]).await;
        let pause = -(1.0 - random.f64()).ln() / traffic[of].per_second;
        next[of] += Duration::from_secs_f64(pause);
        let chat = random.usize(..CHATS);
        lock(&played.came).push(Some((of, chat, Instant::now())));
        // No chat has events of two types.
        let body = format!(r#"{{"id":"{}","number":{count}}}"#, CHATS * of + chat);
        let request = delivery(body).kind(traffic[of].kind.as_str());
        send(&webhooks, request.key(&format!("key-{count}")))
            .await
            .assert_ok();
        count += 1;
    }
    let mut seen: Vec<_> = traffic.iter().map(|_| Seen::default()).collect();
    for (of, wait) in &*lock(&played.waits) {
        seen[*of].waits.push(*wait);
    }
    // Those of a chat wait for each other, and only the first one for a place.
    let mut first = HashSet::new();
    for (of, chat, came) in lock(&played.came).iter().flatten() {
        if *chat >= traffic[*of].sick && first.insert((*of, *chat)) {
            seen[*of].waits.push(came.elapsed());
        }
    }
    for (of, seen) in seen.iter_mut().enumerate() {
        seen.failures = played.failures[of].load(Ordering::SeqCst);
        seen.successes = played.successes[of].load(Ordering::SeqCst);
        println!(
            "{} with {places} places: p99 {:?}, at most {:?}; {} succeeded, {} failed",
            traffic[of].kind,
            seen.p99(),
            seen.longest(),
            seen.successes,
            seen.failures
        );
    }
    let _ = worker.drain(Duration::ZERO).await;
    seen
}

/// The most calls of a type that may fail in such a time.
fn most(seen: &Seen, minutes: usize, places: usize) -> usize {
    64 + minutes * 60 + 16 * seen.successes + places
}

/// A type of which some chats fail at once.
fn partly(sick_in_100: usize) -> [Traffic; 1] {
    [Traffic {
        per_second: 10.0,
        sick: CHATS * sick_in_100 / 100,
        ..Traffic::well(EventKind::CHAT_RATED)
    }]
}

#[tokio::test(start_paused = true)]
async fn no_event_of_a_healthy_chat_waits_for_the_sick_chats_of_its_type() {
    for places in [1, 16] {
        let [seen] = &play(&partly(30), places, 15).await[..] else {
            panic!()
        };
        assert!(seen.p99() <= Duration::from_millis(280), "{:?}", seen.p99());
        assert!(seen.failures <= most(seen, 15, places));
    }
    for sick in [50, 80] {
        let [seen] = &play(&partly(sick), 16, 15).await[..] else {
            panic!()
        };
        assert!(seen.p99() <= BRIEF, "{sick}: {:?}", seen.p99());
    }
}

#[tokio::test(start_paused = true)]
async fn nor_does_one_with_few_or_many_places() {
    for places in [4, 64] {
        for sick in [30, 50, 80] {
            let [seen] = &play(&partly(sick), places, 5).await[..] else {
                panic!()
            };
            assert!(seen.p99() <= BRIEF, "{sick} at {places}: {:?}", seen.p99());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn events_of_few_healthy_chats_seldom_wait() {
    let [seen] = &play(&partly(90), 16, 30).await[..] else {
        panic!()
    };
    assert!(seen.p99() <= BRIEF, "{:?}", seen.p99());
    // 9.8 s and 13 ms were measured: it is the luck of a few chats.
    assert!(seen.longest() <= 20 * SECOND, "{:?}", seen.longest());
}

/// What fails whole makes few calls: 64, one a second for ten minutes, and one in ten seconds.
#[tokio::test(start_paused = true)]
async fn a_type_that_fails_whole_makes_few_calls() {
    let [seen] = &play(&partly(100), 16, 30).await[..] else {
        panic!()
    };
    assert_eq!(seen.successes, 0);
    assert!(
        (300..=64 + 600 + 120 + 16).contains(&seen.failures),
        "{}",
        seen.failures
    );
}

fn hanging(kind: EventKind) -> Traffic {
    Traffic {
        sick: CHATS,
        sick_takes: HANGS,
        ..Traffic::well(kind)
    }
}

#[tokio::test(start_paused = true)]
async fn a_type_that_hangs_leaves_places_for_others() {
    let traffic = [
        hanging(EventKind::CHAT_RATED),
        Traffic::well(EventKind::CHAT_CLOSED),
    ];
    for (places, bound) in [
        (4, Duration::from_millis(160)),
        (16, BRIEF),
        (32, BRIEF),
        (64, BRIEF),
    ] {
        let seen = play(&traffic, places, 10).await;
        assert!(seen[1].p99() <= bound, "{places}: {:?}", seen[1].p99());
    }
}

#[tokio::test(start_paused = true)]
async fn three_types_that_hang_delay_others_in_the_first_burst_alone() {
    let hanging = [
        EventKind::CHAT_RATED,
        EventKind::CHAT_OPENED,
        EventKind::CHAT_ASSIGNED,
    ]
    .map(hanging);
    let mut traffic = hanging.to_vec();
    traffic.push(Traffic::well(EventKind::CHAT_CLOSED));
    for places in [4, 16] {
        let seen = play(&traffic, places, 15).await;
        assert!(
            seen[3].p99() <= 38 * SECOND,
            "{places}: {:?}",
            seen[3].p99()
        );
        assert!(
            seen[3].longest() <= MINUTE,
            "{places}: {:?}",
            seen[3].longest()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn healthy_chats_of_a_type_overtake_those_that_hang_once_these_are_known() {
    let partly = Traffic {
        sick: CHATS * 30 / 100,
        ..hanging(EventKind::CHAT_RATED)
    };
    let traffic = [partly, Traffic::well(EventKind::CHAT_CLOSED)];
    for (places, bound) in [(16, 700), (32, 300)] {
        let seen = play(&traffic, places, 30).await;
        assert!(
            seen[0].p99() <= bound * SECOND,
            "{places}: {:?}",
            seen[0].p99()
        );
        assert!(seen[1].p99() <= BRIEF, "{places}: {:?}", seen[1].p99());
    }
}

#[tokio::test(start_paused = true)]
async fn handlers_that_are_slow_and_succeed_lose_nothing() {
    let slow = Traffic {
        per_second: 0.4,
        takes: HANGS,
        ..Traffic::well(EventKind::CHAT_RATED)
    };
    let seen = play(
        &[slow.clone(), Traffic::well(EventKind::CHAT_CLOSED)],
        16,
        30,
    )
    .await;
    assert!(seen[0].successes >= 650, "{}", seen[0].successes);
    assert!(seen[1].p99() <= BRIEF, "{:?}", seen[1].p99());
    // As many as 32 places can handle in half an hour.
    let alone = Traffic {
        per_second: 1.0,
        ..slow
    };
    let seen = play(&[alone], 32, 30).await;
    assert!(seen[0].successes >= 1_650, "{}", seen[0].successes);
}

/// A quiet type, whose credit lasts, is slowed down as well once ten of its chats have failed: its failures
/// do not count, and a person hears of it.
#[tokio::test(start_paused = true)]
async fn an_outage_of_a_quiet_type_is_told() {
    let inbox = inbox();
    let down = service_fn(|_: RawDelivery| async {
        Ok::<_, Infallible>(Outcome::from(Err(HandlerError::from("the CRM is down"))))
    });
    let retry = tower_webhook::inbox::Retry::default().max_attempts(8);
    let worker = inbox.work(down).retry(retry).spawn();
    let webhooks = accepting(&inbox, Webhooks::new(support::delivery::secret()));
    let of = EventType::from(EventKind::CHAT_RATED);
    for n in 0..12 {
        send(&webhooks, support::inbox::event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
        sleep(MINUTE).await;
        let is_slowed = inbox.slowed().contains_key(&of);
        assert_eq!(is_slowed, n >= 9, "after {n} minutes");
    }
    assert!(inbox.slowed().contains_key(&of));
    sleep(24 * 60 * MINUTE).await;
    let states = support::inbox::states(&inbox).await;
    assert!(
        states.iter().filter(|it| it.is_unsettled()).count() >= 10,
        "{states:?}"
    );
    let _ = worker.drain(SECOND).await;
}

/// Types that hang one after another, which all have an event that is due at the same moment.
#[tokio::test(start_paused = true)]
async fn one_claim_leaves_places_however_many_types_fail() {
    const TYPES: usize = 30;
    let inbox = inbox();
    let busy = Arc::new(AtomicUsize::new(0));
    let (now, most) = (Arc::clone(&busy), Arc::new(AtomicUsize::new(0)));
    let peak = Arc::clone(&most);
    let handler = service_fn(move |event: RawDelivery| {
        let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
        async move {
            if *event.kind() == EventKind::CHAT_CLOSED {
                return Ok::<_, Infallible>(Outcome::Handled);
            }
            let before = now.fetch_add(1, Ordering::SeqCst);
            peak.fetch_max(before + 1, Ordering::SeqCst);
            sleep(SECOND).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(Outcome::from(Err(HandlerError::from("it is down"))))
        }
    });
    let worker = inbox.work(handler).concurrency(32).spawn();
    let webhooks = accepting(&inbox, Webhooks::new(support::delivery::secret()));
    let send = async |kind: &str, n: usize| {
        let body = format!(r#"{{"id":"{kind}-{n}"}}"#);
        let request = delivery(body).kind(kind).key(&format!("{kind} {n}"));
        send(&webhooks, request).await.assert_ok();
    };
    let kinds: Vec<_> = (0..TYPES).map(|n| format!("failing-{n}")).collect();
    for kind in &kinds {
        send(kind, 0).await;
        sleep(2 * SECOND).await;
    }
    inbox.pause(Scope::Everything, "").await.unwrap();
    sleep(MINUTE).await;
    for kind in &kinds {
        send(kind, 1).await;
    }
    most.store(0, Ordering::SeqCst);
    send("chat-closed", 1).await;
    inbox.resume(Scope::Everything).await.unwrap();
    sleep(SECOND / 2).await;
    assert_eq!(busy.load(Ordering::SeqCst), 24);
    sleep(20 * SECOND).await;
    assert_eq!(
        most.load(Ordering::SeqCst),
        24,
        "the last quarter is for others"
    );
    let attempts = inbox.list(&Filter::default(), Page::oldest(100)).await;
    let events = attempts.unwrap().events;
    assert_eq!(events.len(), 2 * TYPES + 1);
    assert!(
        events.iter().all(|it| it.state != EventState::Waiting),
        "each had its turn"
    );
    let _ = worker.drain(SECOND).await;
}

/// A type that hangs makes few calls long before two minutes have passed: a person hears of it as well.
#[tokio::test(start_paused = true)]
async fn a_type_whose_calls_hang_is_slowed_as_soon_as_it_makes_few_calls() {
    let inbox = inbox();
    let hangs = service_fn(|_: RawDelivery| async {
        sleep(HANGS).await;
        Ok::<_, Infallible>(Outcome::from(Err(HandlerError::from("it is down"))))
    });
    let worker = inbox.work(hangs).spawn();
    let webhooks = accepting(&inbox, Webhooks::new(support::delivery::secret()));
    for n in 0..24 {
        send(&webhooks, support::inbox::event(&format!("chat-{n}"), 1))
            .await
            .assert_ok();
    }
    let of = EventType::from(EventKind::CHAT_RATED);
    sleep(HANGS - SECOND).await;
    assert!(!inbox.slowed().contains_key(&of));
    sleep(2 * SECOND).await;
    assert!(inbox.slowed().contains_key(&of));
    let _ = worker.drain(SECOND).await;
}
