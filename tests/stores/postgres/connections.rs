//! Servers that are stopped, and connections that hang or are closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_webhook::postgres::PostgresStore;
use tower_webhook::store::{KeyState, Lease, OpenErrorKind, Store, StoreErrorKind};

use support::database::{connect, count};
use support::postgres::{PostgresServer, Stop};
use support::{MINUTE, eventually};

use super::{RETENTION, acquire, complete, fails_as, id, is_done};

#[tokio::test(flavor = "multi_thread")]
async fn stopped_server_is_unavailable() {
    let mut server = PostgresServer::start();
    let url = server.url().replace("postgres@", "postgres:hunter2@");
    let patient = PostgresStore::new(connect(&url, 1).await);
    patient.migrate().await.unwrap();
    complete(&patient, "key", RETENTION).await;
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy(&url)
        .unwrap();
    let store = PostgresStore::new(pool);
    let works = async || matches!(store.peek(&id("key")).await, Ok(KeyState::Done));
    eventually("the store works", works).await;

    server.stop(Stop::Immediate);
    for message in fails_as(&store, StoreErrorKind::Unavailable).await {
        assert!(!message.contains("hunter2"), "{message}");
    }
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), OpenErrorKind::Unavailable);
    assert!(!format!("{store:?} {error:?}").contains("hunter2"));
    let error = store.purge().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);

    server.restart();
    eventually("the store works again", works).await;
}

/// Passes bytes on between clients and a server, or drops them on request.
struct Network {
    url: String,
    passes: watch::Sender<bool>,
}

impl Network {
    async fn to(server: &PostgresServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = ("127.0.0.1", server.port());
        let passes = watch::Sender::new(true);
        let subscribed = passes.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(target).await else {
                    continue;
                };
                let (client_reads, client_writes) = client.into_split();
                let (server_reads, server_writes) = server.into_split();
                for (mut from, mut to) in
                    [(client_reads, server_writes), (server_reads, client_writes)]
                {
                    let mut passes = subscribed.subscribe();
                    tokio::spawn(async move {
                        let swallowed = async {
                            let _ = passes.wait_for(|passes| !passes).await;
                        };
                        tokio::select! {
                            biased;
                            // Neither end notices.
                            () = swallowed => std::future::pending().await,
                            _ = tokio::io::copy(&mut from, &mut to) => {}
                        }
                    });
                }
            }
        });
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        Self { url, passes }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_connections_time_out() {
    let server = PostgresServer::start();
    let network = Network::to(&server).await;
    let store = PostgresStore::new(connect(&network.url, 2).await);
    store.migrate().await.unwrap();

    let mut underway = Vec::new();
    for at in 0..2 {
        let key = format!("key {at}");
        let lease = acquire(&store, &key, MINUTE).await;
        underway.push((key, lease));
    }
    // Statements that are under way when the network goes, on every connection that there may be.
    let hold = connect(&server.url(), 2).await;
    let mut lock = hold.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM tower_webhook.keys FOR UPDATE")
        .execute(&mut *lock)
        .await
        .unwrap();
    let settle = |lease: Lease| {
        let store = store.clone();
        async move { store.complete(&lease, RETENTION).await }
    };
    let settled: Vec<_> = underway
        .iter()
        .map(|(_, lease)| tokio::spawn(settle(lease.clone())))
        .collect();
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("both statements wait", async || {
        count(&hold, waiting).await == 2
    })
    .await;
    network.passes.send_replace(false);
    lock.rollback().await.unwrap();
    let direct = PostgresStore::new(hold);
    for (key, _) in &underway {
        eventually("the server goes on", async || is_done(&direct, key).await).await;
    }
    for settled in settled {
        settled.abort();
        let given_up = settled.await.expect_err("the network passes bytes");
        assert!(given_up.is_cancelled(), "{given_up}");
    }

    // The caller gave these two up, and so does the pool: new connections take their place.
    network.passes.send_replace(true);
    let recovered = timeout(Duration::from_secs(20), async {
        for (key, _) in &underway {
            assert!(is_done(&store, key).await, "{key}");
        }
        complete(&store, "new", RETENTION).await;
    });
    recovered.await.expect("the pool recovers");
}

/// Takes its time to open a connection, as over a long way with TLS, and loses all at will.
struct Doorman {
    url: String,
    is_open: watch::Sender<bool>,
}

impl Doorman {
    async fn before(server: &PostgresServer, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = ("127.0.0.1", server.port());
        let is_open = watch::Sender::new(true);
        let subscribed = is_open.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut is_open = subscribed.subscribe();
                tokio::spawn(async move {
                    let _ = is_open.wait_for(|is_open| *is_open).await;
                    sleep(delay).await;
                    let mut server = TcpStream::connect(target).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = is_open.wait_for(|is_open| !is_open) => {}
                    }
                });
            }
        });
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        Self { url, is_open }
    }
}

/// Whoever waited longest gets the place of a connection, and has the least time left to open it.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_reopened_under_load() {
    const PATIENCE: Duration = Duration::from_millis(500);
    const OPENING: Duration = Duration::from_millis(200);

    let server = PostgresServer::start();
    let doorman = Doorman::before(&server, OPENING).await;
    let store = PostgresStore::new(connect(&doorman.url, 2).await);
    store.migrate().await.unwrap();

    let answered = Arc::new(AtomicU32::new(0));
    let load = {
        let (store, answered) = (store.clone(), Arc::clone(&answered));
        tokio::spawn(async move {
            let mut calls = JoinSet::new();
            loop {
                sleep(Duration::from_millis(10)).await;
                let (store, answered) = (store.clone(), Arc::clone(&answered));
                calls.spawn(async move {
                    if let Ok(Ok(_)) = timeout(PATIENCE, store.peek(&id("key"))).await {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
                while calls.try_join_next().is_some() {}
            }
        })
    };
    let more = async |what: &str| {
        let before = answered.load(Ordering::Relaxed);
        let more = async {
            while answered.load(Ordering::Relaxed) < before + 100 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(20), more).await.expect(what);
    };
    more("it works").await;
    doorman.is_open.send_replace(false);
    sleep(PATIENCE * 3).await;
    doorman.is_open.send_replace(true);
    more("it works again").await;
    load.abort();
}
