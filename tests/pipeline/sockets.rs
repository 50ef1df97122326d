//! Real sockets, on axum and on plain hyper: load, clients that disconnect, and bodies that arrive
//! slowly, in pieces, or with another length.

#![cfg(feature = "moka")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::sync::{RwLock, Semaphore};
use tokio::time::sleep;
use tower::Layer;
use tower_webhook::event::ChatRated;
use tower_webhook::idempotency::Idempotency;
use tower_webhook::memory::MokaStore;
use tower_webhook::signature::Signature;
use tower_webhook::store::KeyState;
use tower_webhook::{Delivery, EventRouter, Secret, Secrets, Webhooks};

use support::MINUTE;
use support::Ready;
use support::delivery::{BODY, secret};
use support::eventually;
use support::net::*;
use support::store::{Operation, TestStore};

/// A handler that succeeds once it is let through.
#[derive(Clone)]
struct Gated {
    gate: Arc<Semaphore>,
    runs: Arc<AtomicUsize>,
    succeeded: Arc<AtomicBool>,
}

impl Gated {
    fn shut() -> Self {
        Self {
            gate: Arc::new(Semaphore::new(0)),
            runs: Arc::default(),
            succeeded: Arc::default(),
        }
    }

    fn open() -> Self {
        let gated = Self::shut();
        gated.let_through();
        gated
    }

    fn let_through(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    fn succeeded(&self) -> bool {
        self.succeeded.load(Ordering::SeqCst)
    }

    fn router(&self) -> EventRouter {
        let gated = self.clone();
        EventRouter::new().on::<ChatRated>(move |_: Delivery<ChatRated>| {
            let gated = gated.clone();
            async move {
                gated.runs.fetch_add(1, Ordering::SeqCst);
                let _passed = gated.gate.acquire().await?;
                gated.succeeded.store(true, Ordering::SeqCst);
                Ok(())
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_a_thousand_deliveries_of_a_key_is_handled() {
    for server in SERVERS {
        thousand_deliveries(server).await;
    }
}

async fn thousand_deliveries(server: Server) {
    const EACH: usize = 500;
    allow_files(4_096);

    // One half is answered at once when the key is in flight, the other half waits.
    let gated = Gated::shut();
    let layer = Webhooks::new(secret())
        .store(MokaStore::new())
        .handler_timeout(Duration::from_secs(120));
    let waits = |wait| layer.clone().in_flight_wait(wait);
    let hasty = waits(Duration::ZERO).layer(gated.router());
    let patient = waits(Duration::from_secs(50)).layer(gated.router());
    let addresses = [server.serve(hasty).await, server.serve(patient).await];

    let refused = Arc::new(AtomicUsize::new(0));
    let deliveries: Vec<_> = (0..2 * EACH)
        .map(|at| {
            let (gated, refused) = (gated.clone(), Arc::clone(&refused));
            tokio::spawn(async move {
                let answered = post(addresses[at % 2], whole("k", BODY)).await.unwrap();
                if answered.status == StatusCode::OK {
                    assert!(
                        gated.succeeded(),
                        "acknowledged before the run had succeeded"
                    );
                } else {
                    assert_eq!(answered.status, StatusCode::CONFLICT);
                    refused.fetch_add(1, Ordering::SeqCst);
                }
                answered
            })
        })
        .collect();
    eventually("all that do not wait are answered", async || {
        refused.load(Ordering::SeqCst) >= EACH - 1
    })
    .await;
    gated.let_through();

    let (mut handled, mut replayed) = (0, 0);
    for delivery in deliveries {
        let answered = delivery.await.unwrap();
        match answered.status {
            StatusCode::OK if answered.is_replay() => replayed += 1,
            StatusCode::OK => handled += 1,
            _ => assert!(answered.retry_after().is_some()),
        }
    }
    assert_eq!((gated.runs(), handled), (1, 1), "{server:?}");
    assert!(
        replayed >= EACH - 1,
        "of those that waited, {replayed} were acknowledged"
    );

    let again: Vec<_> = (0..2 * EACH)
        .map(|at| tokio::spawn(post(addresses[at % 2], whole("k", BODY))))
        .collect();
    for delivery in again {
        delivery.await.unwrap().unwrap().assert_replayed();
    }
    assert_eq!(gated.runs(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_continues_when_its_client_disconnects() {
    for server in SERVERS {
        let gated = Gated::shut();
        let layer = Webhooks::new(secret()).ready();
        let runs = layer.runs();
        let address = server.serve(layer.layer(gated.router())).await;

        let mut client = Client::connect(address).await;
        client.send(whole("k", BODY)).await.unwrap();
        eventually("the handler runs", async || gated.runs() == 1).await;
        assert_eq!(runs.detached(), 0);
        drop(client);
        eventually("the run goes on without its client", async || {
            runs.detached() == 1
        })
        .await;
        assert!(!gated.succeeded());

        gated.let_through();
        assert_eq!(runs.drain(Duration::from_secs(20)).await, Ok(()));
        assert!(gated.succeeded());
        post(address, whole("k", BODY))
            .await
            .unwrap()
            .assert_replayed();
        assert_eq!(gated.runs(), 1);
    }
}

type Watch = Watched<Signature<Idempotency<EventRouter, TestStore>>>;

/// A receiver whose requests in progress and whose calls to the store are counted.
fn watched(gated: &Gated, body_timeout: Duration) -> (Watch, TestStore) {
    let store = TestStore::default();
    let layer = Webhooks::new(secret())
        .store(store.clone())
        .body_timeout(body_timeout);
    (Watched::new(layer.layer(gated.router())), store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_within_the_body_runs_nothing() {
    let chunk = format!("{:x}\r\n{}\r\n", BODY.len(), BODY);
    let length = content_length(BODY.len());
    for server in SERVERS {
        for (framing, sent) in [
            (length.as_str(), &BODY[..BODY.len() / 2]),
            (CHUNKED, &chunk[..chunk.len() / 2]),
            (CHUNKED, &chunk), // All of it, but for the end.
        ] {
            let gated = Gated::open();
            let (service, store) = watched(&gated, MINUTE);
            let live = service.live();
            let address = server.serve(service).await;

            let mut client = Client::connect(address).await;
            let head = head("k", BODY.as_bytes(), framing);
            client
                .send([head.as_bytes(), sent.as_bytes()].concat())
                .await
                .unwrap();
            eventually("the body is being received", async || live() == 1).await;
            drop(client);
            eventually("the client's leaving is noticed", async || live() == 0).await;

            assert_eq!(gated.runs(), 0);
            assert!(store.calls(Operation::Claim).is_empty());
            assert_eq!(store.state("k").await, KeyState::Free);
            post(address, whole("k", BODY)).await.unwrap().assert_ok();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_body_is_refused_at_its_timeout() {
    const LIMIT: Duration = Duration::from_secs(2);
    for server in SERVERS {
        let gated = Gated::open();
        let (service, store) = watched(&gated, LIMIT);
        let address = server.serve(service).await;

        let mut client = Client::connect(address).await;
        let start = Instant::now();
        client
            .send(head("k", BODY.as_bytes(), &content_length(BODY.len())))
            .await
            .unwrap();
        let mut bytes = BODY.bytes();
        let answered = loop {
            tokio::select! {
                answered = client.answer() => break answered.unwrap(),
                () = sleep(LIMIT / 4) => {}
            }
            client.send([bytes.next().unwrap()]).await.unwrap();
        };
        assert_eq!(answered.status, StatusCode::REQUEST_TIMEOUT);
        // The whole body would have taken 12 seconds.
        let took = start.elapsed();
        assert!(
            took >= LIMIT && took < 4 * LIMIT,
            "{server:?} cut it off after {took:?}"
        );
        assert_eq!(gated.runs(), 0);
        assert!(store.calls(Operation::Claim).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_of_another_length_is_not_handled() {
    let signed = |key, length: &str| head(key, BODY.as_bytes(), length);
    for server in SERVERS {
        let gated = Gated::open();
        let (service, store) = watched(&gated, MINUTE);
        let address = server.serve(service).await;

        // Shorter than announced.
        let mut client = Client::connect(address).await;
        let length = content_length(BODY.len() + 1);
        client.send(signed("short", &length) + BODY).await.unwrap();
        client.finish().await;
        let answered = client.answer().await.unwrap();
        assert_eq!(answered.status, StatusCode::BAD_REQUEST, "{server:?}");

        // Longer than announced: what was signed did not come, and the rest is no HTTP.
        let length = content_length(BODY.len() - 1);
        let answered = post(address, signed("long", &length) + BODY).await.unwrap();
        assert_eq!(answered.status, StatusCode::UNAUTHORIZED, "{server:?}");

        // Announced as what is no length, or as two.
        let two = format!("{length}\r\n{}", content_length(BODY.len()));
        let lengths = ["-1", "+24", "24x", "0x18", "18446744073709551616"];
        for length in lengths.map(content_length).iter().chain([&two]) {
            let answered = post(address, signed("odd", length) + BODY).await.unwrap();
            assert_eq!(
                answered.status,
                StatusCode::BAD_REQUEST,
                "{server:?}: {length}"
            );
        }

        assert_eq!(gated.runs(), 0);
        assert!(store.calls(Operation::Claim).is_empty());

        // Chunks outweigh a length (RFC 9112, section 6.3), for the signature too.
        let both = format!("{}\r\n{CHUNKED}", content_length(3));
        let request = [
            signed("both", &both).into_bytes(),
            chunks([BODY.as_bytes()]),
        ]
        .concat();
        post(address, request).await.unwrap().assert_ok();
    }
}

/// Chunks and their end, of text that is cut anywhere.
fn chunks<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut chunks = Vec::new();
    for part in parts {
        chunks.extend(format!("{:x}\r\n", part.len()).bytes());
        chunks.extend(part);
        chunks.extend(b"\r\n");
    }
    chunks.extend(b"0\r\n\r\n");
    chunks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_and_packets_may_end_anywhere() {
    const TEXT: &str = r#"{"id":"c-1","question":"Grüße 👋🏽, 世界?"}"#;

    for server in SERVERS {
        let questions = Arc::new(AtomicUsize::new(0));
        let asked = Arc::clone(&questions);
        let router = EventRouter::new().on::<ChatRated>(move |chat: Delivery<ChatRated>| {
            let asked = Arc::clone(&asked);
            async move {
                assert_eq!(chat.payload.question.as_deref(), Some("Grüße 👋🏽, 世界?"));
                assert_eq!(chat.raw().body(), TEXT);
                asked.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        });
        let address = server.serve(Webhooks::new(secret()).layer(router)).await;
        let mut client = Client::connect(address).await;
        let mut sent = 0;

        // Two chunks, cut at every byte, also within a character; all in one packet, then each in
        // packets of its own.
        for cut in 1..TEXT.len() {
            let (first, second) = TEXT.as_bytes().split_at(cut);
            let head = head(&format!("one packet {cut}"), TEXT.as_bytes(), CHUNKED);
            let chunks = chunks([first, second]);
            client
                .send([head.as_bytes(), &chunks].concat())
                .await
                .unwrap();
            client.answer().await.unwrap().assert_ok();

            let head = self::head(&format!("packets {cut}"), TEXT.as_bytes(), CHUNKED);
            let (before, after) = chunks.split_at(chunks.len() - second.len() - 10);
            for packet in [head.as_bytes(), before, after] {
                client.send(packet).await.unwrap();
                sleep(Duration::from_millis(1)).await;
            }
            client.answer().await.unwrap().assert_ok();
            sent += 2;
        }

        // Every byte a chunk, and every byte of it all a packet.
        let chunks = chunks(TEXT.as_bytes().chunks(1));
        client
            .send(head("bytes", TEXT.as_bytes(), CHUNKED))
            .await
            .unwrap();
        for byte in chunks {
            client.send([byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        client.answer().await.unwrap().assert_ok();
        assert_eq!(questions.load(Ordering::SeqCst), sent + 1, "{server:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_large_body_is_refused_before_it_is_received() {
    const MIB: usize = 1024 * 1024;
    for server in SERVERS {
        let gated = Gated::open();
        let (service, store) = watched(&gated, MINUTE);
        let address = server.serve(service).await;

        // Not a byte of it is sent.
        for length in [MIB as u64 + 1, 10 << 30, u64::MAX - 2] {
            let request = head("k", b"", &content_length(length));
            let answered = post(address, request).await.unwrap();
            assert_eq!(
                answered.status,
                StatusCode::PAYLOAD_TOO_LARGE,
                "{length} bytes"
            );
        }

        // Without an announcement, as much of it as is allowed.
        let mut client = Client::connect(address).await;
        client.send(head("k", b"", CHUNKED)).await.unwrap();
        let chunk = [
            format!("{:x}\r\n", MIB / 8).as_bytes(),
            &vec![b' '; MIB / 8],
            b"\r\n",
        ]
        .concat();
        for _ in 0..8 {
            client.send(&chunk).await.unwrap();
        }
        tokio::select! {
            answered = client.answer() => panic!("refused what is allowed: {answered:?}"),
            () = sleep(Duration::from_millis(200)) => {}
        }
        client.send("1\r\n \r\n").await.unwrap();
        let answered = client.answer().await.unwrap();
        assert_eq!(answered.status, StatusCode::PAYLOAD_TOO_LARGE);

        assert_eq!(gated.runs(), 0);
        assert!(store.calls(Operation::Claim).is_empty());
    }
}

/// The secrets of [`secrets_can_be_replaced_under_load`], numbered as they come.
struct Rotation {
    /// The first one that is accepted.
    oldest: AtomicUsize,
    /// The last one that is accepted.
    newest: AtomicUsize,
    /// Shared by those who have signed with a secret and wait for the answer; exclusive before the
    /// secret is removed, and from then on.
    in_use: Vec<RwLock<()>>,
    accepted: AtomicUsize,
    refused: AtomicUsize,
    over: AtomicBool,
}

fn numbered(number: usize) -> Secret {
    Secret::new(format!("secret {number}")).unwrap()
}

impl Rotation {
    /// Until both kinds of clients have been at it for a while.
    async fn under_load(&self) {
        let done = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        let (accepted, refused) = (done(&self.accepted), done(&self.refused));
        eventually("deliveries are answered", async || {
            done(&self.accepted) >= accepted + 40
                && (done(&self.oldest) == 0 || done(&self.refused) >= refused + 20)
        })
        .await;
    }

    /// Delivers with secrets that are accepted now.
    async fn deliver_authentic(&self, address: SocketAddr, client: usize) {
        let mut connection = Client::connect(address).await;
        for nth in 0.. {
            if self.over.load(Ordering::SeqCst) {
                break;
            }
            let number = match nth % 2 {
                0 => self.oldest.load(Ordering::SeqCst),
                _ => self.newest.load(Ordering::SeqCst),
            };
            let Ok(_in_use) = self.in_use[number].try_read() else {
                tokio::task::yield_now().await;
                continue;
            };
            let request = whole_with(&numbered(number), &format!("{client} {nth}"), BODY);
            connection.send(request).await.unwrap();
            let answered = connection.answer().await.unwrap();
            assert_eq!(answered.status, StatusCode::OK, "with secret {number}");
            self.accepted.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Delivers with secrets that were removed before.
    async fn deliver_with_removed(&self, address: SocketAddr) {
        let mut connection = Client::connect(address).await;
        while !self.over.load(Ordering::SeqCst) {
            let Some(number) = self.oldest.load(Ordering::SeqCst).checked_sub(1) else {
                tokio::task::yield_now().await;
                continue;
            };
            let request = whole_with(&numbered(number), "removed", BODY);
            connection.send(request).await.unwrap();
            let answered = connection.answer().await.unwrap();
            assert_eq!(
                answered.status,
                StatusCode::UNAUTHORIZED,
                "with secret {number}"
            );
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_can_be_replaced_under_load() {
    const ROTATIONS: usize = 20;

    let secrets = Secrets::from(numbered(0));
    let layer = Webhooks::new(secrets.clone()).ready();
    let address = Server::Axum
        .serve(layer.layer(Gated::open().router()))
        .await;
    let rotation = Arc::new(Rotation {
        oldest: AtomicUsize::new(0),
        newest: AtomicUsize::new(0),
        in_use: (0..=ROTATIONS).map(|_| RwLock::new(())).collect(),
        accepted: AtomicUsize::new(0),
        refused: AtomicUsize::new(0),
        over: AtomicBool::new(false),
    });
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let rotation = Arc::clone(&rotation);
            tokio::spawn(async move {
                match client {
                    0..6 => rotation.deliver_authentic(address, client).await,
                    _ => rotation.deliver_with_removed(address).await,
                }
            })
        })
        .collect();

    let mut removed = Vec::new();
    for old in 0..ROTATIONS {
        let new = old + 1;
        rotation.under_load().await;
        secrets.replace([numbered(old), numbered(new)]).unwrap();
        rotation.newest.store(new, Ordering::SeqCst);
        rotation.under_load().await;
        removed.push(rotation.in_use[old].write().await);
        secrets.replace([numbered(new)]).unwrap();
        rotation.oldest.store(new, Ordering::SeqCst);
    }
    rotation.under_load().await;
    rotation.over.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_is_verified_with_the_secrets_at_its_end() {
    for server in SERVERS {
        let secrets = Secrets::from(numbered(0));
        let layer = Webhooks::new(secrets.clone()).ready();
        let service = Watched::new(layer.layer(Gated::open().router()));
        let live = service.live();
        let address = server.serve(service).await;

        let mut clients = Vec::new();
        for number in [0, 1] {
            let request = whole_with(&numbered(number), &format!("k {number}"), BODY);
            let (before, after) = request.split_at(request.len() - 5);
            let mut client = Client::connect(address).await;
            client.send(before).await.unwrap();
            clients.push((client, after.to_vec()));
        }
        eventually("the bodies are being received", async || live() == 2).await;
        secrets.replace([numbered(1)]).unwrap();

        let mut statuses = Vec::new();
        for (mut client, rest) in clients {
            client.send(rest).await.unwrap();
            statuses.push(client.answer().await.unwrap().status);
        }
        assert_eq!(statuses, [StatusCode::UNAUTHORIZED, StatusCode::OK]);
    }
}
