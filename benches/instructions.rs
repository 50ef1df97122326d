//! Counts the instructions of a delivery and of an inbox with valgrind, as a guard against regressions.
//!
//! Run with: cargo bench --workspace --features postgres,sqlite --bench instructions
//!
//! It fails if a part takes more instructions than recorded here, and prints the difference. Counts do not
//! depend on the load of the machine. They are no measure of time: valgrind's processor has no
//! instructions for hashing, which real ones have.
//!
//! It needs valgrind, PostgreSQL, and `cargo install gungraun-runner` in the version of the library.
#![allow(
    missing_docs,
    reason = "the macros create public items without documentation"
)]

#[path = "pipeline/deliveries.rs"]
mod deliveries;
#[expect(dead_code, reason = "other benchmarks need more of it")]
#[path = "inbox/events.rs"]
mod events;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use gungraun::prelude::*;
use gungraun::{Callgrind, EntryPoint, EventKind as Metric};
use http::{Request, StatusCode};
use http_body_util::Full;
use sqlx::postgres::PgPoolOptions;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_webhook::event::{ChatClosed, EventKind, sample};
use tower_webhook::inbox::internal::Settlement;
use tower_webhook::inbox::{Inbox, Queue};
use tower_webhook::memory::{MemoryQueue, MokaStore};
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::spool::Spool;
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::store::{Claim, EventKey, Store};
use tower_webhook::telemetry::{Observation, Observer};
use tower_webhook::{Delivery, EventRouter, RawDelivery, SignatureLayer, Verified, Webhooks};

use self::deliveries::{Deliveries, secret};
use self::events::{Events, take};
use support::inbox::Works;
use support::postgres::PostgresServer;

const SECRET: &str = "1f0c7a2e9b5d4836a1c0ffee5eed00d15ea5e123";

/// Deliveries in one count, after as many uncounted ones.
const DELIVERIES: u64 = 1_000;

/// The number of keys in the memory store before the count.
const KEYS: u64 = 20_000;

/// The tolerance above the recorded number, which is the highest that was measured. The hash functions'
/// random keys change `claim` by 10 % and the others by 0.3 %. If another compiler changes them by more,
/// record them again. A SHA-256 digest, as of a key and of a lane, takes 3,400: valgrind has no instruction for it.
const TOLERANCE_PERCENT: u64 = 2;

fn at_most(recorded: u64) -> LibraryBenchmarkConfig {
    counted_in(EntryPoint::Default, recorded)
}

/// As [`at_most`], for the whole process, with other threads and what is prepared. When threads wait for each other changes
/// the number by some percent, so a tenth is added to it.
fn in_all_at_most(recorded: u64) -> LibraryBenchmarkConfig {
    counted_in(EntryPoint::None, recorded + recorded / 10)
}

fn counted_in(part: EntryPoint, recorded: u64) -> LibraryBenchmarkConfig {
    let limit = DELIVERIES * recorded * (100 + TOLERANCE_PERCENT) / 100;
    // Without a server that the benchmark starts.
    let mut callgrind = Callgrind::with_args(["--trace-children=no"]);
    callgrind.entry_point(part);
    callgrind.hard_limits([(Metric::Ir, limit)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

/// The part that is counted, ready to run.
type Counted = Box<dyn FnOnce()>;

fn chat() -> Bytes {
    sample(&EventKind::CHAT_CLOSED).unwrap_or_default().into()
}

fn runtime() -> &'static Runtime {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime")
    });
    &RUNTIME
}

/// Is never dropped, because dropping would be counted.
fn kept<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Returns a store with so many keys that it does not grow during a count.
fn store() -> MokaStore {
    let store = MokaStore::new();
    runtime().block_on(async {
        for number in 0..KEYS {
            claim_and_complete(&store, number).await;
        }
    });
    store
}

async fn claim_and_complete(store: &MokaStore, number: u64) {
    let id = EventKey::new("", &number.to_be_bytes(), b"{}");
    let minute = Duration::from_secs(60);
    let claim = store.claim(&id, minute, minute).await.expect("memory");
    let Claim::Acquired(lease) = claim else {
        panic!("a new key is in use");
    };
    store.complete(&lease, minute).await.expect("its own lease");
}

fn router() -> EventRouter {
    EventRouter::new().on::<ChatClosed>(async |chat: Delivery<ChatClosed>| {
        black_box(chat);
        Ok(())
    })
}

/// Sends half of the deliveries now, and the other half when the result is called.
fn sent<S, B>(service: S, deliveries: &Deliveries) -> Counted
where
    S: Service<Request<Full<Bytes>>, Response = http::Response<B>, Error: std::fmt::Debug>,
    S: Clone + 'static,
{
    let (runtime, service) = (runtime(), kept(service));
    let expected = deliveries.status;
    let send = move |requests: Vec<Request<Full<Bytes>>>| {
        runtime.block_on(async {
            for request in requests {
                let response = service.clone().oneshot(request).await;
                assert_eq!(response.expect("an answer").status(), expected);
            }
        });
    };
    let requests =
        |numbers: std::ops::Range<u64>| numbers.map(|at| deliveries.request(at)).collect();
    send(requests(0..DELIVERIES));
    let rest = requests(DELIVERIES..2 * DELIVERIES);
    Box::new(move || send(rest))
}

fn verifying() -> Counted {
    let nothing = service_fn(async |verified: Request<Verified>| {
        black_box(verified);
        Ok::<_, std::convert::Infallible>(http::Response::new(()))
    });
    sent(
        SignatureLayer::new(secret()).layer(nothing),
        &Deliveries::of(&chat()),
    )
}

fn claiming() -> Counted {
    let (runtime, store) = (runtime(), kept(store()));
    Box::new(move || {
        runtime.block_on(async {
            for number in KEYS..KEYS + DELIVERIES {
                claim_and_complete(store, number).await;
            }
        });
    })
}

fn routing() -> Counted {
    let (runtime, router, chat) = (runtime(), kept(router()), chat());
    let route = move || {
        runtime.block_on(async {
            for _ in 0..DELIVERIES {
                let delivery = RawDelivery::new(EventKind::CHAT_CLOSED, chat.clone());
                drop(black_box(router.handle(delivery).await));
            }
        });
    };
    route();
    Box::new(route)
}

fn pipeline(deliveries: &Deliveries) -> Counted {
    let webhooks = Webhooks::new(secret()).store(store());
    let (service, _) = webhooks.start(router()).unwrap();
    sent(service, deliveries)
}

/// An observer that does nothing.
struct Nobody;

impl Observer for Nobody {
    fn observe(&self, observation: &Observation<'_>) {
        black_box(observation);
    }
}

fn observed() -> Counted {
    let webhooks = Webhooks::new(secret()).store(store()).observer(Nobody);
    let (service, _) = webhooks.start(router()).unwrap();
    sent(service, &Deliveries::of(&chat()))
}

fn fresh() -> Counted {
    pipeline(&Deliveries::of(&chat()))
}

fn replayed() -> Counted {
    pipeline(&Deliveries {
        unique: false,
        ..Deliveries::of(&chat())
    })
}

fn forged() -> Counted {
    pipeline(&Deliveries {
        body: chat().slice(1..),
        status: StatusCode::UNAUTHORIZED,
        ..Deliveries::of(&chat())
    })
}

/// Accepts events of 100 chats.
async fn accept(queue: &Queue, events: &Events) {
    for _ in 0..DELIVERIES {
        let accepted = queue.accept.accept([events.next()].into(), None).await;
        drop(black_box(accepted.expect("room")));
    }
}

/// Claims so many events and settles each, with the next one of its chat.
async fn handle(queue: &Queue) {
    let share = [take().into()];
    let mut left = DELIVERIES;
    while left > 0 {
        let limit = left.min(32) as usize;
        let claimed = queue.claim.claim(&share, limit, 0).await.expect("events");
        assert!(!claimed.events.is_empty());
        for event in claimed.events {
            let settling = queue
                .settle
                .settle(&event.lease, &Settlement::Handled, None);
            drop(black_box(settling.await.expect("its own lease")));
            left -= 1;
        }
    }
}

fn accepting(queue: impl Into<Queue>) -> Counted {
    let (runtime, queue, events) = (runtime(), kept(queue.into()), kept(Events::of_chats(100)));
    runtime.block_on(accept(queue, events));
    Box::new(move || runtime.block_on(accept(queue, events)))
}

fn handling(queue: impl Into<Queue>) -> Counted {
    let (runtime, queue, events) = (runtime(), kept(queue.into()), kept(Events::of_chats(100)));
    runtime.block_on(async {
        accept(queue, events).await;
        accept(queue, events).await;
        handle(queue).await;
    });
    Box::new(move || runtime.block_on(handle(queue)))
}

/// Requests that are verified, accepted, handled and settled.
fn inbox() -> Counted {
    let (runtime, handled) = (runtime(), Arc::new(AtomicU64::new(0)));
    let inbox = Inbox::new(MemoryQueue::new());
    let counted = Arc::clone(&handled);
    let router = EventRouter::new().on::<ChatClosed>(move |chat: Delivery<ChatClosed>| {
        black_box(chat);
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    });
    let worker = runtime.block_on(async { inbox.work(router).spawn() });
    kept(worker);
    let service = kept(SignatureLayer::new(secret()).layer(inbox.accept()));
    let deliveries = Deliveries::of(&chat());
    let send = move |requests: Vec<Request<Full<Bytes>>>| {
        let until = handled.load(Ordering::Relaxed) + DELIVERIES;
        runtime.block_on(async {
            for request in requests {
                let response = service.clone().oneshot(request).await;
                assert_eq!(response.expect("an answer").status(), StatusCode::OK);
            }
            while handled.load(Ordering::Relaxed) < until {
                yield_now().await;
            }
        });
    };
    let requests =
        |numbers: std::ops::Range<u64>| numbers.map(|at| deliveries.request(at)).collect();
    send(requests(0..DELIVERIES));
    let rest = requests(DELIVERIES..2 * DELIVERIES);
    Box::new(move || send(rest))
}

/// A queue in a file that is never deleted, since that would be counted.
fn sqlite() -> SqliteQueue {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let queue = SqliteQueue::open(directory.path().join("webhooks.db"));
    kept(directory);
    queue.expect("a new file")
}

/// A queue of one process, without its server. How what it receives is divided changes the number by little.
fn postgres() -> PostgresQueue {
    let server = kept(PostgresServer::start());
    runtime().block_on(async {
        let pool = PgPoolOptions::new().max_connections(4);
        let pool = pool.connect_lazy(&server.url()).expect("its URL");
        PostgresQueue::open(pool).await.expect("a new database")
    })
}

/// A queue behind a spool that it does not need.
fn spooled() -> Counted {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let spool = Spool::new(directory.path().join("spool.db"));
    let spool = spool.on_any_disk().limit(1 << 20);
    kept(directory);
    accepting(
        runtime()
            .block_on(spool.open(MemoryQueue::new()))
            .expect("a new file"),
    )
}

#[library_benchmark]
#[bench::inbox(args = (), setup = inbox, config = at_most(118_400))]
#[bench::accept_memory(args = (MemoryQueue::new()), setup = accepting, config = at_most(18_930))]
#[bench::accept_spooled(args = (), setup = spooled, config = at_most(21_220))]
#[bench::accept_sqlite(args = (sqlite()), setup = accepting, config = in_all_at_most(290_700))]
#[bench::handle_memory(args = (MemoryQueue::new()), setup = handling, config = at_most(9_300))]
#[bench::handle_sqlite(args = (sqlite()), setup = handling, config = in_all_at_most(611_400))]
#[bench::accept_postgres(args = (postgres()), setup = accepting, config = at_most(99_620))]
#[bench::handle_postgres(args = (postgres()), setup = handling, config = at_most(88_400))]
#[bench::verify(args = (), setup = verifying, config = at_most(47_620))]
#[bench::claim(args = (), setup = claiming, config = at_most(9_400))]
#[bench::route(args = (), setup = routing, config = at_most(17_800))]
#[bench::pipeline(args = (), setup = fresh, config = at_most(76_260))]
#[bench::pipeline_observed(args = (), setup = observed, config = at_most(78_340))]
#[bench::pipeline_replay(args = (), setup = replayed, config = at_most(55_530))]
#[bench::pipeline_wrong_signature(args = (), setup = forged, config = at_most(46_570))]
fn instructions(counted: Counted) {
    counted();
}

library_benchmark_group!(name = deliveries_group, benchmarks = instructions);

main!(library_benchmark_groups = deliveries_group);
