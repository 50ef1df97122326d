//! The conformance suite, and processes that compete.

use std::collections::HashSet;

use tokio::io::{AsyncBufReadExt, BufReader};
use tower_webhook::postgres::PostgresStore;
use tower_webhook::store::conformance;
use tower_webhook::store::{Claim, KeyState, Store};

use support::MINUTE;
use support::database::{Database, connect, count, execute};
use support::postgres::{PostgresServer, Stop};
use support::program::{Peer, say};

use super::{RETENTION, id};

#[tokio::test]
async fn restarted_server_keeps_its_data_and_its_port() {
    let mut server = PostgresServer::start();
    let url = server.url();
    for stop in [Stop::Fast, Stop::Immediate] {
        let pool = connect(&url, 1).await;
        execute(&pool, "CREATE TABLE IF NOT EXISTS t (c integer)").await;
        execute(&pool, "INSERT INTO t VALUES (1)").await;
        server.stop(stop);
        server.restart();
    }
    let pool = connect(&url, 1).await;
    assert_eq!(count(&pool, "SELECT count(*) FROM t").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    conformance::run(&Database::create().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_with_other_session_defaults() {
    for setting in [
        "default_transaction_isolation = 'repeatable read'",
        "default_transaction_isolation = 'serializable'",
        "timezone = 'Pacific/Chatham'",
        "plan_cache_mode = 'force_generic_plan'",
    ] {
        let database = Database::create().await;
        database.set(setting).await;
        conformance::run(&database).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_64_claims_from_8_processes_wins() {
    const TEST: &str = "one_of_64_claims_from_8_processes_wins";
    const KEYS: usize = 50;
    const PROCESSES: usize = 8;

    if let Some(url) = Peer::argument() {
        return compete(&url).await;
    }
    let database = Database::create().await;
    let store = database.store().await;
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|_| Peer::start(Peer::command(module_path!(), TEST, &database.url)))
        .collect();
    for process in &mut processes {
        assert_eq!(process.hear(), "ready");
    }
    let mut winners = HashSet::new();
    for key in 0..KEYS {
        // Whoever is asked first is likely to win.
        for turn in 0..PROCESSES {
            let process = &mut processes[(key + turn) % PROCESSES];
            process.tell(key);
        }
        let mut won = 0;
        for (at, process) in processes.iter_mut().enumerate() {
            let its: u32 = process.hear().parse().unwrap();
            won += its;
            if its > 0 {
                winners.insert(at);
            }
        }
        assert_eq!(won, 1, "claims won on key {key}");
        let state = store.peek(&id(&key.to_string())).await.unwrap();
        assert!(matches!(state, KeyState::InFlight { .. }), "{state:?}");
    }
    assert!(winners.len() > 1, "the processes did not compete");
}

/// One of several processes: claims each key that it reads 8 times at once, and says how often it won.
async fn compete(url: &str) {
    let pool = connect(url, 8).await;
    let store = PostgresStore::new(pool);
    let mut keys = BufReader::new(tokio::io::stdin()).lines();
    say("ready");
    while let Some(key) = keys.next_line().await.unwrap() {
        let claims: Vec<_> = (0..8)
            .map(|_| {
                let (store, id) = (store.clone(), id(&key));
                tokio::spawn(async move { store.claim(&id, MINUTE, RETENTION).await.unwrap() })
            })
            .collect();
        let mut won = 0;
        for claim in claims {
            match claim.await.unwrap() {
                Claim::Acquired(_) => won += 1,
                Claim::InFlight { .. } => {}
                Claim::Done { .. } => panic!("nobody completed it"),
            }
        }
        say(won);
    }
}
