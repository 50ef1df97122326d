//! The history of a queue under random load, as seen from outside, and a checker that proves from it that the promises
//! were kept. The checker finds each of the mistakes that are planted.
//!
//! `HISTORY_SEEDS=100` lives that many histories; the default is 5.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderValue;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};
use tower::service_fn;
use tower_webhook::event::EventKind;
use tower_webhook::inbox::internal::{Lane, NewEvent, Settlement, TakenEvent};
use tower_webhook::inbox::{By, EventId, Inbox, OnFailure, Retry, Scope};
use tower_webhook::store::EventKey;
use tower_webhook::{HandlerError, IdempotencyKey, Outcome, RawDelivery};

use support::SECOND;
use support::history::{
    Entry, History, LEASE, MAX_CRASHES, Mistake, Process, Spy, Violation, check, digest, hash,
};
use support::inbox::Works;
use support::lock;
use support::queue::{Calls, new_event, take};

const PLAIN: EventKind = EventKind::CHAT_RATED;
const SKIPPED: EventKind = EventKind::MESSAGE_CREATED;
const FOREIGN: EventKind = EventKind::CHAT_CLOSED;
const POISON: EventKind = EventKind::CHAT_OPENED;

fn event_of(kind: &EventKind, chat: usize, number: usize) -> NewEvent {
    let body = format!(r#"{{"id":"chat-{chat}","number":{number}}}"#);
    let key = format!("event-{number}");
    let chat = format!("chat-{chat}");
    let raw = HeaderValue::from_str(&key)
        .ok()
        .and_then(IdempotencyKey::new);
    NewEvent {
        key: Some(EventKey::new("", key.as_bytes(), body.as_bytes())),
        lane: Some(Lane::of_chat(&chat)),
        chat: Some(chat),
        delivery: RawDelivery::new(kind.clone(), body).with_key(raw),
        ..new_event(kind.clone(), "")
    }
}

/// Some minutes of a queue: random events, handlers that fail, processes that die or come too late, pauses, and a person
/// at a console.
async fn live(history: Arc<History>, seed: u64, mistake: Mistake) {
    let mut random = fastrand::Rng::with_seed(seed);
    let spy = Spy::new(&history, mistake);
    let ghost = spy.of(Process::Ghost);
    let all = take(LEASE);

    // An event that ends each process which takes it.
    spy.accept_one(event_of(&POISON, 99, 1_000_000), None)
        .await
        .unwrap();
    for _ in 0..MAX_CRASHES {
        for event in ghost.claim_of(&all, 1, 1).await.unwrap().events {
            history.write(Entry::Died {
                event: event.lease.id,
            });
        }
        sleep(LEASE + SECOND).await;
    }

    let inbox = Inbox::new(spy.clone().shared());
    let ran = Arc::clone(&history);
    let seeds = Arc::new(Mutex::new(random.fork()));
    let service = service_fn(move |delivery: RawDelivery| {
        let (ran, seeds) = (Arc::clone(&ran), Arc::clone(&seeds));
        async move {
            let (millis, verdict) = {
                let mut random = lock(&seeds);
                (random.u64(0..3000), random.u8(..20))
            };
            let event = delivery.key().and_then(|key| ran.event(key.as_bytes()));
            let running = event.map(|event| ran.runs(event));
            sleep(Duration::from_millis(millis)).await;
            if let Some(running) = running.filter(|_| verdict > 6) {
                running.handled();
            }
            Ok::<Outcome, Infallible>(Outcome::from(match verdict {
                0..4 => Err(HandlerError::retry("failed")),
                4 => Err(HandlerError::dead_letter("dead")),
                5 => Err(HandlerError::discard("discarded")),
                6 => Err(HandlerError::snooze(5 * SECOND)),
                _ => Ok(()),
            }))
        }
    });
    let spawn = || {
        inbox
            .work(service.clone())
            .concurrency(4)
            .only([PLAIN, SKIPPED, POISON])
            .retry(Retry::default().delays(SECOND, 20 * SECOND))
            .on_failure_of(SKIPPED, OnFailure::Skip)
            .max_crashes(MAX_CRASHES)
            .lease(LEASE)
            .spawn()
    };
    let mut worker = spawn();
    let mut late: Vec<(Instant, TakenEvent)> = Vec::new();
    let mut sent = 0;
    for _ in 0..400 {
        sleep(Duration::from_millis(random.u64(..1500))).await;
        match random.u8(..100) {
            0..70 => {
                let kind = match random.u8(..10) {
                    0 => FOREIGN,
                    1..4 => SKIPPED,
                    _ => PLAIN,
                };
                // An event of a foreign kind keeps its chat waiting, so it has a chat of its own.
                let chat = if kind == FOREIGN {
                    50
                } else {
                    random.usize(..6)
                };
                spy.accept_one(event_of(&kind, chat, sent), None)
                    .await
                    .unwrap();
                sent += 1;
            }
            70..76 if sent > 0 => {
                // The sender's retry, which may come much later.
                let again = random.usize(..sent);
                let known = history
                    .entries()
                    .into_iter()
                    .find_map(|(_, entry)| match entry {
                        Entry::Stored { key, of, lane, .. }
                            if key == digest(format!("event-{again}").as_bytes()) =>
                        {
                            Some((of.kind, lane))
                        }
                        _ => None,
                    });
                let Some((kind, lane)) = known else { continue };
                let event = NewEvent {
                    lane,
                    ..event_of(&kind, 0, again)
                };
                spy.accept_one(event, None).await.unwrap();
            }
            76..82 => {
                for event in ghost.claim_of(&all, 1, 0).await.unwrap().events {
                    match random.bool() {
                        true => history.write(Entry::Died {
                            event: event.lease.id,
                        }),
                        false => {
                            let late_by = Duration::from_millis(random.u64(..3000));
                            late.push((Instant::now() + LEASE + late_by, event));
                        }
                    }
                }
            }
            82..86 => {
                let _ = worker.drain(Duration::from_millis(random.u64(..500))).await;
                worker = spawn();
            }
            86..88 => {
                spy.pause(&Scope::Everything, Some(""), &By::default())
                    .await
                    .unwrap();
                sleep(Duration::from_millis(random.u64(..5000))).await;
                inbox.resume(Scope::Everything).await.unwrap();
            }
            88..96 if sent > 0 => {
                let id = EventId(random.i64(1..=sent as i64 + 1));
                match random.u8(..4) {
                    0 => drop(inbox.discard(id, None).await.unwrap()),
                    _ => drop(inbox.redrive(id, None).await.unwrap()),
                }
            }
            _ => {}
        }
        let now = Instant::now();
        let (due, rest) = late.into_iter().partition(|(at, _)| *at <= now);
        late = rest;
        for (_, event) in due {
            // A process that was stopped, and goes on after its lease has expired.
            history.write(Entry::Handled {
                event: event.lease.id,
            });
            let _ = ghost
                .settle(&event.lease, &Settlement::Handled, None)
                .await
                .unwrap();
        }
    }
    // All that can be handled is handled.
    sleep(60 * 60 * SECOND).await;
    let _ = worker.drain(60 * SECOND).await;
    spy.note_left().await.unwrap();
}

/// Lives on a runtime of its own, with all random numbers from the seed.
fn lived(seed: u64, mistake: Mistake) -> Arc<History> {
    fastrand::seed(seed);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let history = History::begin();
        live(Arc::clone(&history), seed, mistake).await;
        history
    })
}

fn violations(seed: u64, mistake: Mistake) -> Vec<Violation> {
    check(&lived(seed, mistake).entries(), Some(&FOREIGN.into()))
}

fn rules(violations: &[Violation]) -> HashSet<&'static str> {
    violations.iter().map(|violation| violation.rule).collect()
}

#[test]
fn every_promise_is_kept_with_every_seed() {
    let seeds = std::env::var("HISTORY_SEEDS").map_or(5, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let violations = violations(seed, Mistake::None);
        assert!(violations.is_empty(), "seed {seed}: {}", violations[0]);
    }
}

#[test]
fn one_seed_is_one_history() {
    let of = |seed| hash(&lived(seed, Mistake::None).lines());
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
}

#[test]
fn each_planted_mistake_is_found() {
    use Mistake::*;

    const SEEDS: u64 = 200;

    for (mistake, rule) in [
        (SettlesWithoutFence, "fence"),
        (ClaimSkipsTheHead, "out of order"),
        (PurgesTooEarly, "accepted twice"),
        (ShutdownCounts, "attempt"),
        (TakesTwice, "two attempts"),
        (CrashIsNotCounted, "crash limit"),
        (LeaseNeverExpires, "lost"),
        (SettlementIsNotStored, "taken again"),
        (AcceptsWithoutStoring, "lost"),
        (DropsDeadLetters, "changed"),
        (HandOverIgnoresPause, "paused"),
        (RetriesAtOnce, "too early"),
        (NeverBlocks, "out of order"),
        (RedrivesInProgress, "redriven in progress"),
        (IgnoresKinds, "foreign type"),
        (ForgetsFailures, "attempt"),
        (ReusesFences, "fence"),
        (DiscardIsNotStored, "taken again"),
        (RedriveIsNotStored, "lost"),
        (LosesTheNextEvent, "attempt"),
        (ReleaseIsNotStored, "attempt"),
        (RetryCountsAsHandled, "lost"),
    ] {
        let mut found = HashSet::new();
        // Some seeds give a mistake no opportunity.
        for seed in 0..SEEDS {
            found.extend(rules(&violations(seed, mistake)));
            if found.contains(rule) {
                break;
            }
        }
        assert!(found.contains(rule), "{mistake:?} was not found: {found:?}");
    }
}
