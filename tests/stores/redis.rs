//! The Redis store, against real servers.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};
use tower_webhook::ConfigError;
use tower_webhook::redis::RedisStore;
use tower_webhook::store::conformance::{self, Harness};
use tower_webhook::store::{
    Claim, EventKey, KeyState, Lease, OpenError, OpenErrorKind, SettleError, Store, StoreError,
    StoreErrorKind,
};

use tracing::Level;

use support::MINUTE;
use support::chain;
use support::log::Log;
use support::program::{Peer, say};
use support::redis::RedisServer;

use crate::rights::{self, user_of};

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A server whose stores the suite opens.
struct Opens(RedisServer);

impl Harness for Opens {
    type Store = RedisStore;

    async fn open(&self) -> RedisStore {
        connect(&self.0).await
    }
}

async fn connect(server: &RedisServer) -> RedisStore {
    RedisStore::open(&server.url()).await.unwrap()
}

async fn refused(url: &str) -> OpenError {
    RedisStore::open(url).await.unwrap_err()
}

fn id(key: &str) -> EventKey {
    EventKey::new("", key.as_bytes(), b"{}")
}

async fn acquired(store: &RedisStore, id: &EventKey, lease: Duration) -> Lease {
    match store.claim(id, lease, WEEK).await.unwrap() {
        Claim::Acquired(lease) => lease,
        claim => panic!("{id:?} cannot be claimed: {claim:?}"),
    }
}

async fn state(store: &RedisStore, id: &EventKey) -> KeyState {
    store.peek(id).await.unwrap()
}

fn is_superseded(result: Result<(), SettleError>) -> bool {
    matches!(result, Err(SettleError::LeaseExpired))
}

#[track_caller]
fn assert_unavailable(error: &StoreError, reason: &str) {
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert!(chain(error).contains(reason), "{}", chain(error));
}

/// The key of `id` in Redis.
fn redis_key(id: &EventKey) -> Vec<u8> {
    [b"webhook:".as_slice(), &id.key().to_be_bytes()].concat()
}

fn client(server: &RedisServer) -> redis::Connection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_connection().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms() {
    conformance::run(&Opens(RedisServer::start())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_with_every_write_on_disk() {
    conformance::run(&Opens(RedisServer::durable())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_in_a_cluster() {
    conformance::run(&Opens(cluster_of_one().await)).await;
}

async fn cluster_of_one() -> RedisServer {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until(&server, &["CLUSTER", "INFO"], "cluster_state:ok").await;
    server
}

/// Waits until the answer contains a text.
async fn until(server: &RedisServer, command: &[&str], text: &str) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while !server.command(command).contains(text) {
        assert!(Instant::now() < give_up, "never {text} after {command:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_64_claims_from_4_processes_wins() {
    const TEST: &str = "one_of_64_claims_from_4_processes_wins";
    const ROUNDS: usize = 20;
    if let Some(url) = Peer::argument() {
        return claim_with_others(&url, ROUNDS).await;
    }

    let server = RedisServer::start();
    let url = server.url();
    let mut processes: Vec<_> = (0..4)
        .map(|_| Peer::start(Peer::command(module_path!(), TEST, &url)))
        .collect();
    for round in 0..ROUNDS {
        for process in &mut processes {
            assert_eq!(process.hear(), round.to_string());
        }
        processes.iter_mut().for_each(|process| process.tell("go"));
        let won = processes.iter_mut().map(|process| process.hear());
        let won: usize = won.map(|won| won.parse::<usize>().unwrap()).sum();
        assert_eq!(won, 1, "this many claims were acquired");
    }
}

/// In each round 16 claims on one key, at the same time as in the other processes.
async fn claim_with_others(url: &str, rounds: usize) {
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(RedisStore::open(url).await.unwrap());
    }
    let mut stdin = std::io::stdin().lines();
    for round in 0..rounds {
        let id = id(&round.to_string());
        say(round);
        stdin.next().unwrap().unwrap();
        let claims = (0..16).map(|at| {
            let store = stores[at % 4].clone();
            tokio::spawn(async move { store.claim(&id, MINUTE, WEEK).await.unwrap() })
        });
        let mut won = 0;
        for claim in claims.collect::<Vec<_>>() {
            won += usize::from(matches!(claim.await.unwrap(), Claim::Acquired(_)));
        }
        say(won);
    }
}

#[tokio::test]
async fn prefixes_separate_stores() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let other = store.clone().with_prefix("crm/").unwrap();

    let lease = acquired(&store, &id("a"), MINUTE).await;
    acquired(&other, &id("a"), MINUTE).await;
    store.complete(&lease, WEEK).await.unwrap();
    assert!(matches!(
        state(&other, &id("a")).await,
        KeyState::InFlight { .. }
    ));

    let mut keys: Vec<Vec<u8>> = redis::cmd("KEYS")
        .arg("*")
        .query(&mut client(&server))
        .unwrap();
    keys.sort();
    let expected = [
        [b"crm/".as_slice(), &id("a").key().to_be_bytes()].concat(),
        redis_key(&id("a")),
    ];
    assert_eq!(keys, expected);

    for prefix in ["", "a b", "{a}", "a}", "ä", "a\n", &"a".repeat(65)] {
        let refused = store.clone().with_prefix(prefix).unwrap_err();
        assert!(matches!(refused, ConfigError::RedisPrefix(_)));
        let message = refused.to_string();
        assert!(message.contains("printable ASCII"), "{message}");
    }
}

#[tokio::test]
async fn forgotten_scripts_are_loaded_again() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let forget = || {
        server.command(&["SCRIPT", "FLUSH"]);
    };

    forget();
    let lease = acquired(&store, &id("a"), MINUTE).await;
    forget();
    store.renew(&lease, MINUTE).await.unwrap();
    forget();
    store.release(&lease).await.unwrap();
    forget();
    assert_eq!(state(&store, &id("a")).await, KeyState::Free);
    let lease = acquired(&store, &id("a"), MINUTE).await;
    forget();
    store.complete(&lease, WEEK).await.unwrap();
    forget();
    assert_eq!(state(&store, &id("a")).await, KeyState::Done);
}

#[tokio::test]
async fn lease_is_void_after_the_server_lost_its_data() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let before = acquired(&store, &id("a"), MINUTE).await;
    server.command(&["FLUSHALL"]);

    assert!(is_superseded(store.renew(&before, MINUTE).await));
    assert!(is_superseded(store.complete(&before, WEEK).await));
    assert!(is_superseded(store.release(&before).await));
    assert_eq!(state(&store, &id("a")).await, KeyState::Free);

    let after = acquired(&store, &id("a"), MINUTE).await;
    assert_eq!(after.attempt(), before.attempt());
    assert_ne!(after.fence(), before.fence());
    assert!(is_superseded(store.complete(&before, WEEK).await));
    store.complete(&after, WEEK).await.unwrap();
}

#[tokio::test]
async fn expired_keys_are_deleted_by_redis() {
    let short = Duration::from_secs(3);
    let server = RedisServer::start();
    let store = connect(&server).await;
    for key in ["in flight", "failed", "done"] {
        let Claim::Acquired(lease) = store.claim(&id(key), short, short).await.unwrap() else {
            panic!("{key} cannot be claimed");
        };
        match key {
            "failed" => store.release(&lease).await.unwrap(),
            "done" => store.complete(&lease, short).await.unwrap(),
            _ => {}
        }
    }
    assert_eq!(server.command(&["DBSIZE"]).lines().next(), Some(":3"));
    until(&server, &["DBSIZE"], ":0").await;
}

#[tokio::test]
async fn completed_keys_take_the_least_memory() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    for key in ["done", "failed"] {
        let lease = acquired(&store, &id(key), MINUTE).await;
        match key {
            "done" => store.complete(&lease, WEEK).await.unwrap(),
            _ => store.release(&lease).await.unwrap(),
        }
        let mut client = client(&server);
        let bytes: u64 = redis::cmd("MEMORY")
            .arg("USAGE")
            .arg(redis_key(&id(key)))
            .query(&mut client)
            .unwrap();
        assert!(bytes <= 80, "{key}: {bytes} bytes");
    }
}

/// All that the server learns of an operation is what the operation is about, for how long, and a
/// fence. So the clock of this machine can stand wherever it will.
#[tokio::test]
async fn only_durations_are_sent() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let mut monitor = TcpStream::connect(server.address()).unwrap();
    monitor
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    monitor.read_exact(&mut [0; b"+OK\r\n".len()]).unwrap();

    let first = acquired(&store, &id("a"), MINUTE).await;
    store.renew(&first, 2 * MINUTE).await.unwrap();
    store.release(&first).await.unwrap();
    state(&store, &id("a")).await;
    let second = acquired(&store, &id("a"), MINUTE).await;
    store.complete(&second, WEEK).await.unwrap();

    let calls: Vec<Vec<String>> = BufReader::new(monitor)
        .lines()
        .map(|line| words(&line.unwrap()))
        .filter(|words| words[0] == "EVALSHA")
        .take(6)
        // The script, the number of keys and the key.
        .map(|words| words[4..].to_vec())
        .collect();
    let fence = |lease: &Lease| format!("{:032x}", lease.fence().0);
    let body = (id("a").body() >> 65).to_string();
    let (first, second) = (&fence(&first), &fence(&second));
    let (minute, week) = ("60000000", "604800000000");
    let expected: [&[&str]; 6] = [
        &[first, &body, minute, week],
        &[first, "120000000"],
        &[first],
        &[],
        &[second, &body, minute, week],
        &[second, week],
    ];
    assert_eq!(calls, expected);
}

/// The words of a line such as `+1.5 [0 127.0.0.1:1] "EVALSHA" "abc"`.
fn words(line: &str) -> Vec<String> {
    let words = line.split_once("] ").map_or("", |(_, words)| words);
    words
        .split(' ')
        .map(|word| word.trim_matches('"').to_owned())
        .collect()
}

#[tokio::test]
async fn lease_expires_by_the_clock_of_the_server() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    acquired(&store, &id("a"), MINUTE).await;
    let time: (u64, u64) = redis::cmd("TIME").query(&mut client(&server)).unwrap();
    let value: String = redis::cmd("GET")
        .arg(redis_key(&id("a")))
        .query(&mut client(&server))
        .unwrap();
    let ends: u64 = value.split(' ').next().unwrap().parse().unwrap();
    let now = time.0 * 1_000_000 + time.1;
    assert!((now + 30_000_000..=now + 60_000_000).contains(&ends));
}

#[tokio::test]
async fn server_that_evicts_is_refused() {
    let server = RedisServer::start();
    for policy in [
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
    ] {
        server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        let error = refused(&server.url()).await;
        assert_eq!(error.kind(), OpenErrorKind::Unsuitable);
        let message = error.to_string();
        assert!(
            message.contains(policy) && message.contains("noeviction"),
            "{message}"
        );
    }
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    connect(&server).await;
}

async fn does_everything(store: &RedisStore) {
    let lease = acquired(store, &id("a"), MINUTE).await;
    store.renew(&lease, MINUTE).await.unwrap();
    store.release(&lease).await.unwrap();
    assert_eq!(state(store, &id("a")).await, KeyState::Free);
    let lease = acquired(store, &id("a"), MINUTE).await;
    store.complete(&lease, WEEK).await.unwrap();
}

#[tokio::test]
async fn database_needs_the_select_right() {
    let server = RedisServer::start();
    let url = user_of(&server, &format!("{} +info", rights::for_all())) + "1";
    let error = refused(&url).await;
    assert!(chain(&error).contains("select"), "{}", chain(&error));

    let url = user_of(&server, &format!("{} +info +select", rights::for_all())) + "1";
    let logs = Log::capture(Level::DEBUG);
    does_everything(&RedisStore::open(&url).await.unwrap()).await;
    assert_eq!(logs.count(Level::WARN, ""), 0);
}

#[tokio::test]
async fn cluster_must_say_where_its_keys_are() {
    let server = cluster_of_one().await;
    for missing in ["slots", "info"] {
        let (all, cluster) = (rights::for_all(), rights::for_cluster());
        let user = format!("{all} +info {cluster} -cluster|{missing}");
        let error = refused(&user_of(&server, &user)).await;
        assert_eq!(error.kind(), OpenErrorKind::Denied, "{error:?}");
        let command = format!("cluster|{missing}");
        assert!(chain(&error).contains(&command), "{}", chain(&error));
    }
    for info in ["+info", "-info"] {
        let (all, cluster) = (rights::for_all(), rights::for_cluster());
        let url = user_of(&server, &format!("{all} {cluster} {info}"));
        let store = RedisStore::open(&url).await.unwrap();
        does_everything(&store).await;
        server.command(&["FLUSHALL"]);
    }
}

#[test]
fn a_runtime_that_stands_still_does_not_delay_another() {
    let server = RedisServer::start();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (one, other) = (runtime(), runtime());
    let store = one.block_on(async {
        let store = RedisStore::open(&server.url()).await.unwrap();
        store.claim(&id("a"), MINUTE, WEEK).await.unwrap();
        store
    });
    // From here on, nothing runs in the first runtime.
    let claim = other.block_on(store.claim(&id("b"), MINUTE, WEEK));
    assert!(matches!(claim, Ok(Claim::Acquired(_))), "{claim:?}");
    one.block_on(store.peek(&id("b"))).unwrap();
}

#[tokio::test]
async fn server_that_saves_nothing_causes_a_warning() {
    let warnings = async |arguments: &[&str]| {
        let server = RedisServer::start_with(arguments);
        let logs = Log::capture(Level::DEBUG);
        RedisStore::open(&server.url()).await.unwrap();
        let warnings = logs.count(Level::WARN, "");
        assert_eq!(logs.count(Level::WARN, "appendonly yes"), warnings);
        warnings
    };
    assert_eq!(warnings(&["--save", ""]).await, 1);
    assert_eq!(warnings(&[]).await, 0);
    assert_eq!(warnings(&["--save", "", "--appendonly", "yes"]).await, 0);

    // A managed server may forbid to ask.
    let server = RedisServer::start_with(&["--save", ""]);
    let logs = Log::capture(Level::DEBUG);
    let user = user_of(&server, &format!("{} +info", rights::for_all()));
    RedisStore::open(&user).await.unwrap();
    assert_eq!(logs.count(Level::WARN, ""), 0);
}

#[tokio::test]
async fn unknown_eviction_policy_causes_a_warning() {
    let server = RedisServer::start();
    let url = user_of(&server, &rights::for_all());
    let logs = Log::capture(Level::DEBUG);
    let store = RedisStore::open(&url).await.unwrap();
    assert_eq!(logs.count(Level::WARN, "maxmemory-policy"), 1);
    does_everything(&store).await;

    let elsewhere = store.with_prefix("elsewhere:").unwrap();
    let error = elsewhere.claim(&id("a"), MINUTE, WEEK).await.unwrap_err();
    assert_unavailable(&error, "permission");
}

#[tokio::test]
async fn password_is_required_and_never_shown() {
    let server = RedisServer::start_with(&["--requirepass", "hunter2"]);
    let with = |user: &str| format!("redis://{user}{}/", server.address());
    for wrong in [":hunter3@", "nobody:hunter3@", ""] {
        let error = refused(&with(wrong)).await;
        assert!(
            error.kind() == OpenErrorKind::Denied && chain(&error).contains("user or password"),
            "{wrong:?}: {error:?}"
        );
        let shown = format!("{} {error:?}", chain(&error));
        assert!(!shown.contains("hunter"), "{shown}");
        assert!(shown.contains(&server.address()), "{shown}");
    }
    let store = RedisStore::open(&with(":hunter2@")).await.unwrap();
    assert!(!format!("{store:?}").contains("hunter"));
    acquired(&store, &id("a"), MINUTE).await;
}

#[tokio::test]
async fn invalid_url_differs_from_an_unreachable_server() {
    for url in [
        "",
        "nonsense",
        "http://:hunter2@localhost/",
        "redis://",
        "redis://:hunter2@localhost:99999/",
        "redis://:hunter2@localhost/zero",
    ] {
        let error = refused(url).await;
        assert_eq!(error.kind(), OpenErrorKind::InvalidUrl, "{url}: {error:?}");
        let shown = format!("{} {error:?}", chain(&error));
        assert!(!shown.contains("hunter"), "{shown}");
    }

    let mut server = RedisServer::start();
    server.stop();
    let url = format!("redis://:hunter2@{}/", server.address());
    let error = refused(&url).await;
    assert_eq!(error.kind(), OpenErrorKind::Unavailable);
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    let shown = format!("{} {error:?}", chain(&error));
    assert!(
        shown.contains(&server.address()) && shown.contains("refused"),
        "{shown}"
    );
    assert!(!shown.contains("hunter"), "{shown}");

    server.restart();
    server.freeze();
    let began = Instant::now();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), OpenErrorKind::Unavailable);
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn tls_needs_its_feature() {
    let error = refused("rediss://:hunter2@localhost/").await;
    assert_eq!(error.kind(), OpenErrorKind::TlsMissing, "{error:?}");
    let shown = format!("{} {error:?}", chain(&error));
    assert!(
        shown.contains("-comp") && !shown.contains("hunter"),
        "{shown}"
    );
}

#[tokio::test]
async fn replica_is_refused() {
    let primary = RedisServer::start();
    let port = primary.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    let error = refused(&replica.url()).await;
    assert_eq!(error.kind(), OpenErrorKind::Unsuitable, "{error:?}");
    assert!(error.to_string().contains("is a replica"), "{error}");
}

#[tokio::test]
async fn full_memory_refuses_claims_and_settles_runs() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let handled = acquired(&store, &id("handled"), MINUTE).await;
    let failed = acquired(&store, &id("failed"), MINUTE).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);

    let error = store.claim(&id("new"), MINUTE, WEEK).await.unwrap_err();
    assert_unavailable(&error, "OOM");
    store.renew(&handled, MINUTE).await.unwrap();
    assert!(matches!(
        store.claim(&id("handled"), MINUTE, WEEK).await.unwrap(),
        Claim::InFlight { .. }
    ));
    store.complete(&handled, WEEK).await.unwrap();
    store.release(&failed).await.unwrap();
    assert_eq!(state(&store, &id("handled")).await, KeyState::Done);
    assert!(matches!(
        store.claim(&id("handled"), MINUTE, WEEK).await.unwrap(),
        Claim::Done { same_body: true }
    ));

    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    acquired(&store, &id("new"), MINUTE).await;
}

#[tokio::test]
async fn server_that_cannot_save_is_unavailable() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let lease = acquired(&store, &id("a"), MINUTE).await;
    let done = acquired(&store, &id("done"), MINUTE).await;
    store.complete(&done, WEEK).await.unwrap();
    fs::remove_dir_all(server.directory()).unwrap();
    server.command(&["BGSAVE"]);
    until(&server, &["INFO", "persistence"], "bgsave_status:err").await;

    let error = store.claim(&id("b"), MINUTE, WEEK).await.unwrap_err();
    assert_unavailable(&error, "MISCONF");
    let duplicate = store.claim(&id("done"), MINUTE, WEEK).await.unwrap();
    assert!(matches!(duplicate, Claim::Done { .. }), "{duplicate:?}");
    let Err(SettleError::Store(error)) = store.complete(&lease, WEEK).await else {
        panic!("completed what cannot be saved");
    };
    assert_unavailable(&error, "MISCONF");

    server.command(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    store.complete(&lease, WEEK).await.unwrap();
}

#[tokio::test]
async fn server_that_loads_its_data_is_unavailable() {
    let mut server = RedisServer::start();
    let store = connect(&server).await;
    for key in 0..400 {
        let lease = acquired(&store, &id(&key.to_string()), MINUTE).await;
        store.complete(&lease, WEEK).await.unwrap();
    }
    let url = server.url();
    let restarting = tokio::task::spawn_blocking(move || {
        // Two seconds in all, with a look at the connections after each 20 keys or so.
        let slowly = "--key-load-delay 5000 --loading-process-events-interval-bytes 1024";
        server.restart_with(&slowly.split(' ').collect::<Vec<_>>());
        server
    });

    let is_loading = |error: &(dyn Error + 'static)| chain(error).contains("BusyLoading");
    let (mut operations, mut connections) = (0, 0);
    let give_up = Instant::now() + MINUTE;
    let state = loop {
        assert!(Instant::now() < give_up, "it never comes back");
        if let Err(error) = RedisStore::open(&url).await {
            let unavailable = error.kind() == OpenErrorKind::Unavailable;
            connections += usize::from(unavailable && is_loading(&error));
        }
        match store.peek(&id("399")).await {
            Ok(state) if restarting.is_finished() => break state,
            Ok(_) => {}
            Err(error) if is_loading(&error) => {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable);
                operations += 1;
            }
            Err(_) => {}
        }
        sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(state, KeyState::Done);
    assert!(operations > 0, "no operation met a server that loads");
    assert!(connections > 0, "no connection met a server that loads");
    drop(restarting.await.unwrap());
}

#[tokio::test]
async fn foreign_record_is_corrupt() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let key = redis_key(&id("a"));
    let corrupt = |error: StoreError| {
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{}", chain(&error));
    };
    for value in ["", "nonsense", "1.5", "- 1", "1 2 3", "--1", "1 2 x 4 5"] {
        let mut client = client(&server);
        let set = redis::cmd("SET").arg(&key).arg(value).exec(&mut client);
        set.unwrap();
        corrupt(store.claim(&id("a"), MINUTE, WEEK).await.unwrap_err());
        corrupt(store.peek(&id("a")).await.unwrap_err());
    }
    server.command(&["FLUSHALL"]);
    let push = redis::cmd("LPUSH")
        .arg(&key)
        .arg("a")
        .exec(&mut client(&server));
    push.unwrap();
    corrupt(store.claim(&id("a"), MINUTE, WEEK).await.unwrap_err());
    corrupt(store.peek(&id("a")).await.unwrap_err());
}

#[tokio::test]
async fn connection_closed_while_idle_causes_no_error() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let close = || {
        let closed = server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert!(closed.starts_with(":1"), "{closed}");
    };
    close();
    let lease = acquired(&store, &id("a"), MINUTE).await;
    close();
    store.renew(&lease, MINUTE).await.unwrap();
    close();
    assert!(matches!(
        state(&store, &id("a")).await,
        KeyState::InFlight { .. }
    ));
    close();
    store.release(&lease).await.unwrap();
    close();
    let lease = acquired(&store, &id("a"), MINUTE).await;
    store.complete(&lease, WEEK).await.unwrap();
}

#[tokio::test]
async fn connecting_is_retried_after_a_refused_password() {
    let server = RedisServer::start_with(&["--requirepass", "old"]);
    let with = |password: &str| format!("redis://:{password}@{}/", server.address());
    let ask = |password: &str, words: &[&str]| {
        let client = redis::Client::open(with(password)).unwrap();
        let mut connection = client.get_connection().unwrap();
        let asked = redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection);
        asked.unwrap();
    };
    let store = RedisStore::open(&with("old")).await.unwrap();

    ask("old", &["CONFIG", "SET", "requirepass", "new"]);
    ask(
        "new",
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
    );
    for _ in 0..20 {
        let error = store.claim(&id("a"), MINUTE, WEEK).await.unwrap_err();
        assert_unavailable(&error, "authentication failed");
        sleep(Duration::from_millis(20)).await;
    }
    ask("new", &["CONFIG", "SET", "requirepass", "old"]);
    // For as long as there is no other attempt.
    sleep(Duration::from_millis(200)).await;
    acquired(&store, &id("a"), MINUTE).await;
}

/// Stands between a store and its server.
#[derive(Clone)]
struct Proxy {
    address: SocketAddr,
    /// Where new connections go.
    server: Arc<Mutex<String>>,
    /// Whether the next answer is to be lost, with its connection.
    cut: Arc<AtomicBool>,
    /// How many of the first connections get no answers any more.
    silenced: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
    /// How many milliseconds new connections take.
    delay: Arc<AtomicU64>,
}

impl Proxy {
    async fn before(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            server: Arc::new(Mutex::new(server.address())),
            cut: Arc::default(),
            silenced: Arc::default(),
            accepted: Arc::default(),
            delay: Arc::default(),
        };
        let accepting = proxy.clone();
        tokio::spawn(async move {
            for number in 0.. {
                let (ours, _) = listener.accept().await.unwrap();
                accepting.accepted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(accepting.clone().pass_on(number, ours));
            }
        });
        proxy
    }

    async fn connect(&self) -> RedisStore {
        let url = format!("redis://{}/", self.address);
        RedisStore::open(&url).await.unwrap()
    }

    fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    async fn pass_on(self, number: usize, ours: tokio::net::TcpStream) {
        sleep(Duration::from_millis(self.delay.load(Ordering::SeqCst))).await;
        let server = self.server.lock().unwrap().clone();
        let theirs = tokio::net::TcpStream::connect(server).await.unwrap();
        let (mut requests, mut answered) = ours.into_split();
        let (mut answers, mut asked) = theirs.into_split();
        let asking = tokio::io::copy(&mut requests, &mut asked);
        let answering = async {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = answers.read(&mut buffer).await {
                if number < self.silenced.load(Ordering::SeqCst) {
                    continue;
                }
                if self.cut.swap(false, Ordering::SeqCst)
                    || answered.write_all(&buffer[..length]).await.is_err()
                {
                    break;
                }
            }
        };
        tokio::select! {
            _ = asking => {}
            () = answering => {}
        }
    }
}

#[tokio::test]
async fn claim_with_a_lost_response_is_retried_and_acquired_once() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = proxy.connect().await;
    for attempt in 1..=3 {
        proxy.cut();
        let lease = acquired(&store, &id("a"), MINUTE).await;
        assert!(!proxy.cut.load(Ordering::SeqCst), "nothing was cut");
        assert_eq!(lease.attempt().get(), attempt);
        store.release(&lease).await.unwrap();
    }

    // After a second settlement the lease looks expired: the caller gets an error and peeks.
    let lease = acquired(&store, &id("a"), MINUTE).await;
    proxy.cut();
    let lost = store.complete(&lease, WEEK).await;
    assert!(matches!(lost, Err(SettleError::Store(_))), "{lost:?}");
    assert!(is_superseded(store.complete(&lease, WEEK).await));
    assert_eq!(state(&store, &id("a")).await, KeyState::Done);
}

/// As when a machine has vanished, or a firewall has forgotten the connection: TCP would wait for a
/// quarter of an hour.
#[tokio::test]
async fn silent_connection_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = proxy.connect().await;
    acquired(&store, &id("a"), MINUTE).await;

    proxy.silenced.store(1, Ordering::SeqCst);
    let asked = Instant::now();
    let error = store.claim(&id("b"), MINUTE, WEEK).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TimedOut);
    assert!(asked.elapsed() < Duration::from_secs(5));
    acquired(&store, &id("c"), MINUTE).await;
}

/// As with a layer whose `store_timeout` is shorter than what the store itself waits.
#[tokio::test]
async fn silent_connection_is_replaced_when_callers_give_up_first() {
    let server = RedisServer::start();
    for (patience, calls) in [(500, 1), (100, 3)] {
        let proxy = Proxy::before(&server).await;
        let store = proxy.connect().await;
        proxy.silenced.store(1, Ordering::SeqCst);
        let id = id("a");
        for call in 0..calls {
            let given_up = timeout(Duration::from_millis(patience), store.peek(&id)).await;
            // On a slow machine fewer calls take as long, and the last is answered.
            assert!(given_up.is_err() || call > 0, "{given_up:?}");
        }
        assert_eq!(state(&store, &id).await, KeyState::Free);
        assert_eq!(proxy.accepted.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test]
async fn cancelled_call_keeps_the_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = proxy.connect().await;
    for _ in 0..3 {
        let id = id("a");
        let left = pin!(store.peek(&id)).now_or_never();
        assert!(left.is_none(), "{left:?}");
        assert_eq!(state(&store, &id).await, KeyState::Free);
        sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(proxy.accepted.load(Ordering::SeqCst), 1);
}

/// As behind an address that always leads to the primary.
#[tokio::test]
async fn new_primary_is_found_after_a_failover() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::before(&old).await;
    let store = proxy.connect().await;
    let lease = acquired(&store, &id("a"), MINUTE).await;
    store.complete(&lease, WEEK).await.unwrap();

    new.command(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]);
    until(&new, &["INFO", "replication"], "master_link_status:up").await;
    new.command(&["REPLICAOF", "NO", "ONE"]);
    *proxy.server.lock().unwrap() = new.address();
    // Of a server that is not there, so that it loads nothing now.
    old.command(&["REPLICAOF", "127.0.0.1", "1"]);

    let error = store.claim(&id("b"), MINUTE, WEEK).await.unwrap_err();
    assert_unavailable(&error, "ReadOnly");
    acquired(&store, &id("b"), MINUTE).await;
    assert_eq!(state(&store, &id("a")).await, KeyState::Done);
}

/// As when the old primary is cut off from its replicas, one of which has taken its place.
#[tokio::test]
async fn new_primary_is_found_while_the_old_one_runs() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::before(&old).await;
    let store = proxy.connect().await;
    let done = acquired(&store, &id("done"), MINUTE).await;
    store.complete(&done, WEEK).await.unwrap();
    old.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);

    let error = store.claim(&id("a"), MINUTE, WEEK).await.unwrap_err();
    assert_unavailable(&error, "NOREPLICAS");
    let duplicate = store.claim(&id("done"), MINUTE, WEEK).await.unwrap();
    assert!(matches!(duplicate, Claim::Done { .. }), "{duplicate:?}");
    *proxy.server.lock().unwrap() = new.address();
    let give_up = Instant::now() + Duration::from_secs(20);
    while let Err(error) = store.claim(&id("a"), MINUTE, WEEK).await {
        assert_unavailable(&error, "NOREPLICAS");
        assert!(Instant::now() < give_up, "the new one is not found");
        sleep(Duration::from_millis(20)).await;
    }
    // Not one for each of the calls.
    assert!(proxy.accepted.load(Ordering::SeqCst) < 10);
}

/// As with a `store_timeout` that is shorter than it takes to connect.
#[tokio::test]
async fn connection_is_made_although_every_call_is_cancelled() {
    let server = RedisServer::start();
    let proxy = Proxy::before(&server).await;
    let store = proxy.connect().await;
    proxy.delay.store(300, Ordering::SeqCst);
    proxy.cut();
    let id = id("a");

    let give_up = Instant::now() + Duration::from_secs(20);
    let asked = || timeout(Duration::from_millis(100), store.peek(&id));
    while !matches!(asked().await, Ok(Ok(_))) {
        assert!(Instant::now() < give_up, "never connected");
    }
    assert_eq!(proxy.accepted.load(Ordering::SeqCst), 2);
}
