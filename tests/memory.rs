//! The memory of many bodies at once. A process of its own, so that its memory can be measured.

#![cfg(all(feature = "moka", target_os = "linux"))]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{Semaphore, watch};
use tower_webhook::event::ChatRated;
use tower_webhook::{Delivery, EventRouter, Webhooks};

use support::Ready;
use support::delivery::{BODY, secret};
use support::eventually;
use support::net::*;

const MIB: usize = 1024 * 1024;
const CONNECTIONS: usize = 2_000;

/// What all bodies may take together: the default.
const LIMIT: usize = 64 * MIB;

/// What the layers know nothing of: each connection's state, the server's buffer of up to 400 KiB
/// for each body that is being received, and what the allocator keeps of those that were refused.
/// Without a limit, the halves would take 2,000 MiB with all this.
const SLACK: usize = 192 * MIB;

/// The memory of this process, in bytes, now.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

/// Sends half a body, counts this or the refusal, and keeps the connection until `go`.
async fn half_a_body(
    address: SocketAddr,
    key: usize,
    refused: Arc<AtomicUsize>,
    tried: Arc<AtomicUsize>,
    turn: Arc<Semaphore>,
    mut go: watch::Receiver<bool>,
) {
    static HALF: [u8; MIB / 2] = [b' '; MIB / 2];
    // Where the system's queue is short, they must not all stand in it at once.
    let turn = turn.acquire().await.unwrap();
    let mut client = Client::connect(address).await;
    let head = head(&format!("half {key}"), b"", &content_length(MIB));
    // A refusal may come before all is sent, and end the connection.
    let _ = client.send(head).await;
    let _ = client.send(&HALF).await;
    tried.fetch_add(1, Ordering::SeqCst);
    drop(turn);
    tokio::select! {
        answered = client.answer() => {
            if let Ok(answered) = answered {
                assert_eq!(answered.status, StatusCode::SERVICE_UNAVAILABLE);
                assert!(answered.retry_after().is_some());
                refused.fetch_add(1, Ordering::SeqCst);
            }
        }
        _ = go.changed() => return,
    }
    let _ = go.changed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_unfinished_bodies_stay_within_the_limit() {
    let before = resident();
    for server in SERVERS {
        two_thousand_halves(server, before).await;
    }
}

async fn two_thousand_halves(server: Server, before: usize) {
    allow_files(2 * CONNECTIONS as u64 + 500);
    let router = EventRouter::new().on::<ChatRated>(async |_: Delivery<ChatRated>| Ok(()));
    let layer = Webhooks::new(secret()).body_timeout(Duration::from_secs(300));
    let service = Watched::new(layer.layer(router));
    let live = service.live();
    let address = server.serve(service).await;
    post(address, whole("warm-up", BODY))
        .await
        .unwrap()
        .assert_ok();

    let (refused, tried) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
    let turn = Arc::new(Semaphore::new(100));
    let (leave, go) = watch::channel(false);
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|key| {
            tokio::spawn(half_a_body(
                address,
                key,
                Arc::clone(&refused),
                Arc::clone(&tried),
                Arc::clone(&turn),
                go.clone(),
            ))
        })
        .collect();

    // Meanwhile other deliveries are served or, when there is no room for their bodies, sent back.
    let mut most = 0;
    for nth in 0.. {
        if nth >= 200 && tried.load(Ordering::SeqCst) == CONNECTIONS {
            break;
        }
        let key = format!("whole {nth}");
        let answered = post(address, whole(&key, BODY)).await.unwrap();
        match answered.status {
            StatusCode::OK => {}
            StatusCode::SERVICE_UNAVAILABLE => assert!(answered.retry_after().is_some()),
            status => panic!("a whole delivery was answered with {status}"),
        }
        most = most.max(resident());
    }
    let grown = most.saturating_sub(before);
    assert!(
        grown <= LIMIT + SLACK,
        "{server:?} took {} MiB",
        grown / MIB
    );
    assert!(live() >= 32, "only {} bodies were being received", live());
    assert!(
        refused.load(Ordering::SeqCst) > 0,
        "all bodies were received"
    );

    leave.send(true).unwrap();
    for client in clients {
        client.await.unwrap();
    }
    eventually("all connections are at an end", async || live() == 0).await;
    for nth in 0..100 {
        post(address, whole(&format!("after {nth}"), BODY))
            .await
            .unwrap()
            .assert_ok();
    }
}
