//! The Redis store on a cluster, and behind sentinels.

use std::time::Duration;

use support::chain;
use support::log::Log;
use support::redis::{Failing, RedisCluster, RedisServer, SentinelSet};
use support::{MINUTE, eventually};
use tokio::time::{Instant, sleep, timeout};
use tower_webhook::redis::RedisStore;
use tower_webhook::store::conformance::{self, Harness};
use tower_webhook::store::{
    Claim, EventKey, KeyState, Lease, OpenError, OpenErrorKind, Store, StoreError,
};
use tracing::Level;

use crate::rights::{self, user_of};

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Servers whose stores the suite opens.
struct Opens<T>(T);

impl<T: Failing + Sync> Harness for Opens<T> {
    type Store = RedisStore;

    async fn open(&self) -> RedisStore {
        open(&self.0).await
    }
}

async fn open(servers: &impl Failing) -> RedisStore {
    RedisStore::open(&servers.url()).await.unwrap()
}

async fn refused(url: &str) -> OpenError {
    RedisStore::open(url).await.unwrap_err()
}

fn id(key: impl ToString) -> EventKey {
    EventKey::new("", key.to_string().as_bytes(), b"{}")
}

async fn claim(store: &RedisStore, key: impl ToString) -> Result<Lease, StoreError> {
    match store.claim(&id(key), MINUTE, WEEK).await? {
        Claim::Acquired(lease) => Ok(lease),
        claim => panic!("it cannot be claimed: {claim:?}"),
    }
}

async fn handle(store: &RedisStore, key: impl ToString) {
    let lease = claim(store, key).await.unwrap();
    store.renew(&lease, MINUTE).await.unwrap();
    store.complete(&lease, WEEK).await.unwrap();
}

async fn is_done(store: &RedisStore, key: impl ToString) -> bool {
    store.peek(&id(key)).await.unwrap() == KeyState::Done
}

/// How many keys the server has.
fn size(server: &RedisServer) -> usize {
    let size = server.command(&["DBSIZE"]);
    let size = size.lines().next().and_then(|it| it.strip_prefix(':'));
    size.unwrap().parse().unwrap()
}

/// The arguments of `CLUSTER SETSLOT` that name a server.
fn node(server: &RedisServer) -> String {
    let id = server.command(&["CLUSTER", "MYID"]);
    id.lines().nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_on_a_cluster_of_six() {
    conformance::run(&Opens(RedisCluster::start())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conforms_behind_sentinels() {
    conformance::run(&Opens(SentinelSet::start())).await;
}

#[tokio::test]
async fn any_server_of_a_cluster_leads_to_all() {
    let cluster = RedisCluster::start();
    // A replica is enough, and a server that is away is passed over.
    let url = format!("redis://127.0.0.1:1,{}/", cluster.servers[4].address());
    let store = RedisStore::open(&url).await.unwrap();
    for key in 0..300 {
        handle(&store, key).await;
    }
    for server in &cluster.servers[..3] {
        assert!(size(server) > 50, "{}", size(server));
    }
    let other = open(&cluster).await;
    for key in 0..300 {
        assert!(is_done(&other, key).await, "{key}");
    }
}

#[tokio::test]
async fn keys_follow_a_slot_that_is_moved() {
    let cluster = RedisCluster::start();
    let store = open(&cluster).await;
    let [from, to] = [&cluster.servers[0], &cluster.servers[1]];
    // All keys that these have: the slots of the first server are moved, one by one.
    for key in 0..40 {
        handle(&store, key).await;
    }
    let before = size(from);
    let mut moved = 0;
    for slot in (0..=5460u32).map(|slot| slot.to_string()) {
        let keys = from.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot]);
        if keys.starts_with(":0") {
            continue;
        }
        to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &node(from)]);
        from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &node(to)]);
        // Those that stay are found here, and new ones there.
        for key in 0..40 {
            assert!(is_done(&store, key).await, "{key}");
        }
        migrate(from, to, &slot);
        for key in 0..40 {
            assert!(is_done(&store, key).await, "{key} of a slot in between");
        }
        for server in &cluster.servers[..3] {
            server.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &node(to)]);
        }
        for key in 0..40 {
            assert!(is_done(&store, key).await, "{key} of a moved slot");
        }
        moved += 1;
    }
    assert!(moved > 5, "{moved}");
    assert_eq!((size(from), before > 5), (0, true));
}

/// Moves all keys of a slot.
fn migrate(from: &RedisServer, to: &RedisServer, slot: &str) {
    let mut client = redis::Client::open(from.url()).unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("CLUSTER")
        .arg(&["GETKEYSINSLOT", slot, "100"])
        .query(&mut client)
        .unwrap();
    let moved = redis::cmd("MIGRATE")
        .arg("127.0.0.1")
        .arg(to.port())
        .arg(&["", "0", "5000", "KEYS"])
        .arg(&keys)
        .exec(&mut client);
    moved.unwrap();
}

/// A cluster whose first server moves all its slots to the second.
fn moving_cluster(args: &[&str]) -> RedisCluster {
    let cluster = RedisCluster::start_with(args);
    let [from, to] = [&cluster.servers[0], &cluster.servers[1]];
    let (source, target) = (node(from), node(to));
    for slot in (0..=5460u32).map(|slot| slot.to_string()) {
        to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    }
    cluster
}

/// A user of all servers, with what the page says that it needs in a cluster.
fn user_of_all(cluster: &RedisCluster, more: &str) -> String {
    let (all, for_cluster) = (rights::for_all(), rights::for_cluster());
    let rights = format!("{all} {for_cluster} {more}");
    let urls = cluster.servers.iter().map(|it| user_of(it, &rights));
    let mut urls: Vec<_> = urls.collect();
    urls.remove(0)
}

/// The key is claimed and settled where its slot is moved to.
#[tokio::test]
async fn new_keys_of_a_slot_in_between_are_recorded_once() {
    let cluster = moving_cluster(&[]);
    let limited = user_of_all(&cluster, "+info");
    let mut keys = 0..;
    for url in [cluster.url(), limited] {
        let store = RedisStore::open(&url).await.unwrap();
        for server in &cluster.servers[..3] {
            server.command(&["SCRIPT", "FLUSH"]);
        }
        for key in keys.by_ref().take(100) {
            handle(&store, key).await;
            assert!(is_done(&store, key).await);
        }
    }
    let [from, to, third] = &cluster.servers[..3] else {
        panic!("there are six");
    };
    assert_eq!(size(from), 0);
    assert_eq!(size(to) + size(third), 200);
}

#[tokio::test]
async fn a_user_who_may_not_ask_for_a_moving_key_is_told_so() {
    let cluster = moving_cluster(&[]);
    let url = user_of_all(&cluster, "-asking");
    let store = RedisStore::open(&url).await.unwrap();
    let mut errors = Vec::new();
    for key in 0..30 {
        errors.extend(claim(&store, key).await.err());
    }
    assert!(errors.len() > 3, "{}", errors.len());
    for error in errors {
        let error = chain(&error);
        assert!(error.contains("asking"), "{error}");
    }
}

/// As in managed clusters, whose servers have names instead of addresses.
#[tokio::test]
async fn servers_are_found_by_the_names_that_the_cluster_has_for_them() {
    let named = [
        "--cluster-announce-hostname",
        "localhost",
        "--cluster-preferred-endpoint-type",
        "hostname",
    ];
    let cluster = moving_cluster(&named);
    let third = &cluster.servers[2];
    eventually("each server tells the others its name", async || {
        let slots = third.command(&["CLUSTER", "SLOTS"]);
        // Six servers, and an address beside each name.
        slots.matches("localhost").count() == 6 && !slots.contains("\r\n?\r\n")
    })
    .await;
    let url = format!("redis://localhost:{}", third.port());
    let store = RedisStore::open(&url).await.unwrap();
    for key in 0..100 {
        handle(&store, key).await;
        assert!(is_done(&store, key).await);
    }
    let sizes: Vec<_> = cluster.servers[..3].iter().map(size).collect();
    assert!(sizes[0] == 0 && sizes[1] > 30 && sizes[2] > 10, "{sizes:?}");
}

/// The old primary keeps calls waiting until the new one is, which may take longer than a connection may be silent.
#[tokio::test]
async fn planned_failover_of_a_cluster_loses_nothing() {
    let cluster = RedisCluster::start();
    let store = open(&cluster).await;
    let [old, new] = [&cluster.servers[0], &cluster.servers[3]];
    let begin = || assert!(new.command(&["CLUSTER", "FAILOVER"]).starts_with("+OK"));
    begin();
    let mut begun = Instant::now();
    let (mut key, mut done) = (0, Vec::new());
    let mut try_next = async || {
        key += 1;
        if let Ok(lease) = claim(&store, key).await
            && store.complete(&lease, WEEK).await.is_ok()
        {
            done.push(key);
        }
    };
    eventually("the replica is the primary", async || {
        // It is given up after 5 seconds, which a busy machine may need.
        if begun.elapsed() > Duration::from_secs(6) {
            begin();
            begun = Instant::now();
        }
        try_next().await;
        new.command(&["INFO", "replication"])
            .contains("role:master")
    })
    .await;
    let before = size(new);
    eventually("it is found", async || {
        try_next().await;
        size(new) > before
    })
    .await;
    let role = old.command(&["INFO", "replication"]);
    assert!(role.contains("role:slave"), "{role}");
    for key in 1000..1100 {
        handle(&store, key).await;
    }
    for key in done {
        assert!(is_done(&store, key).await, "{key}");
    }
}

/// As with the connection of a single server: what comes next has one of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn silent_server_of_a_cluster_stops_only_its_keys() {
    // Longer than this test, so that nobody takes the place of the silent one.
    let cluster = RedisCluster::start_with(&["--cluster-node-timeout", "60000"]);
    let store = open(&cluster).await;
    let mut lives = Vec::new();
    let [silent, others @ ..] = &cluster.servers[..3] else {
        panic!("there are six");
    };
    for key in 0..60 {
        let before: usize = others.iter().map(size).sum();
        handle(&store, key).await;
        lives.push(others.iter().map(size).sum::<usize>() > before);
    }
    silent.freeze();
    let began = Instant::now();
    // Each of its keys waits for as long as a connection may.
    let waiting: Vec<_> = (0..60)
        .filter(|&key| !lives[key])
        .map(|key| {
            let store = store.clone();
            tokio::spawn(async move { store.peek(&id(key)).await })
        })
        .collect();
    assert!(waiting.len() > 5, "{}", waiting.len());
    let mut slowest = Duration::ZERO;
    while waiting.iter().any(|it| !it.is_finished()) {
        for key in (0..60).filter(|&key| lives[key]) {
            let asked = Instant::now();
            assert!(is_done(&store, key).await, "{key}");
            slowest = slowest.max(asked.elapsed());
        }
        sleep(Duration::from_millis(5)).await;
    }
    for answer in waiting {
        answer.await.unwrap().unwrap_err();
    }
    // Less than any limit of a connection: none of them waited for it.
    assert!(slowest < Duration::from_millis(1_000), "{slowest:?}");
    assert!(began.elapsed() >= Duration::from_millis(1_000));
    silent.thaw();
    eventually("its keys are back", async || {
        store.peek(&id(0)).await.is_ok() && store.peek(&id(1)).await.is_ok()
    })
    .await;
}

/// The slot of the key of an event.
fn redis_slot(server: &RedisServer, key: &str) -> String {
    let mut client = redis::Client::open(server.url()).unwrap();
    let key = [b"webhook:".as_slice(), &id(key).key().to_be_bytes()].concat();
    let slot: u16 = redis::cmd("CLUSTER")
        .arg("KEYSLOT")
        .arg(key)
        .query(&mut client)
        .unwrap();
    slot.to_string()
}

/// The connection on which the last script was called.
fn line(server: &RedisServer) -> String {
    let clients = server.command(&["CLIENT", "LIST"]);
    let mut calls = clients.lines().filter(|it| it.contains("cmd=evalsha"));
    let id = calls.next().unwrap().split(' ').next().unwrap();
    format!("{id} ")
}

#[tokio::test]
async fn moved_keys_and_a_cluster_that_is_down_keep_the_connection() {
    let cluster = RedisCluster::start();
    let store = open(&cluster).await;
    let server = &cluster.servers[0];
    // Each call is for the same slot.
    let key = "a";
    handle(&store, key).await;
    let at = |server: &&RedisServer| size(server) == 1;
    let [from, to] = match cluster.servers[..3].iter().position(|it| at(&it)) {
        Some(0) => [server, &cluster.servers[1]],
        Some(other) => [&cluster.servers[other], server],
        None => panic!("it is nowhere"),
    };
    let line = line(from);
    let slot = redis_slot(from, key);

    // Down: no server has the slot.
    for server in &cluster.servers[..3] {
        server.command(&["CLUSTER", "DELSLOTS", &slot]);
    }
    let error = store.peek(&id(key)).await.unwrap_err();
    assert!(chain(&error).contains("ClusterDown"), "{}", chain(&error));
    // Moved, with a new key.
    from.command(&["FLUSHALL"]);
    for server in &cluster.servers[..3] {
        server.command(&["CLUSTER", "ADDSLOTS", &slot]);
        server.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &node(to)]);
    }
    eventually("the key is elsewhere", async || {
        claim(&store, key).await.is_ok()
    })
    .await;
    assert!(from.command(&["CLIENT", "LIST"]).contains(&line));
}

/// Callers wait for less than a connection may be silent.
async fn is_replaced_while_frozen(servers: &mut impl Failing) {
    const PATIENCE: Duration = Duration::from_millis(300);
    let store = open(servers).await;
    let primary = servers.primaries()[0];
    let mut keys = Vec::new();
    for key in 0..30 {
        handle(&store, key).await;
        keys.push(key);
    }
    servers.servers()[primary].freeze();
    eventually("all keys are back", async || {
        let mut known = true;
        for key in &keys {
            let id = id(key);
            let state = timeout(PATIENCE, store.peek(&id)).await;
            // The replica may not have had the last ones.
            known &= matches!(state, Ok(Ok(_)));
        }
        known
    })
    .await;
    for key in 100..130 {
        handle(&store, key).await;
    }
    servers.servers()[primary].thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn frozen_primary_of_a_cluster_is_replaced() {
    is_replaced_while_frozen(&mut RedisCluster::start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn frozen_primary_is_replaced_by_sentinels() {
    is_replaced_while_frozen(&mut SentinelSet::start()).await;
}

#[tokio::test]
async fn sentinels_that_are_away_or_behind_are_passed_over() {
    let mut set = SentinelSet::start();
    set.sentinels[0].kill();
    set.sentinels[1].freeze();
    let store = open(&set).await;
    handle(&store, "a").await;
    set.sentinels[1].thaw();
    set.sentinels[0].restart();

    // This one calls another server by that name.
    let foreign = RedisServer::start();
    let behind = format!("sentinel monitor webhooks 127.0.0.1 {} 2\n", foreign.port());
    set.sentinels[0] = RedisServer::sentinel(&behind);
    set.sentinels[1].command(&["SENTINEL", "FAILOVER", "webhooks"]);
    eventually("the others know a new primary", async || {
        let info = set.sentinels[2].command(&["SENTINEL", "MASTER", "webhooks"]);
        info.contains("config-epoch\r\n$1\r\n1")
    })
    .await;
    eventually("it is the primary", async || {
        let opened = RedisStore::open(&set.url()).await;
        matches!(opened, Ok(store) if claim(&store, "b").await.is_ok())
    })
    .await;
    assert_eq!(size(&foreign), 0);
}

/// As with a primary that is back before a sentinel has noticed that it is none any more.
#[tokio::test]
async fn former_primary_is_left_although_it_answers() {
    let (former, new) = (RedisServer::start(), RedisServer::start());
    let monitor = |server: &RedisServer| format!("webhooks 127.0.0.1 {} 1", server.port());
    let sentinel = RedisServer::sentinel(&format!("sentinel monitor {}\n", monitor(&former)));
    let url = format!("redis+sentinel://{}/webhooks", sentinel.address());
    let store = RedisStore::open(&url).await.unwrap();
    handle(&store, "before").await;
    assert_eq!(size(&former), 1);

    sentinel.command(&["SENTINEL", "REMOVE", "webhooks"]);
    let other = format!("SENTINEL MONITOR {}", monitor(&new));
    sentinel.command(&other.split(' ').collect::<Vec<_>>());
    let mut key = 0;
    eventually("the new one is found", async || {
        key += 1;
        claim(&store, key).await.unwrap();
        size(&new) > 0
    })
    .await;
    let before = size(&former);
    handle(&store, "after").await;
    assert_eq!(size(&former), before);
}

#[tokio::test]
async fn login_of_the_servers_serves_sentinels_that_ask_for_one() {
    let password = ["--requirepass", "hunter2", "--masterauth", "hunter2"];
    let primary = RedisServer::start_with(&password);
    let config = format!(
        "sentinel monitor webhooks 127.0.0.1 {} 1\nsentinel auth-pass webhooks hunter2\n",
        primary.port()
    );
    for lines in ["", "requirepass hunter2\n"] {
        let sentinel = RedisServer::sentinel(&format!("{config}{lines}"));
        let url = |password: &str| {
            format!(
                "redis+sentinel://:{password}@{}/webhooks",
                sentinel.address()
            )
        };
        let store = RedisStore::open(&url("hunter2")).await.unwrap();
        handle(&store, lines).await;
        let shown = format!("{store:?}");
        assert!(
            shown.contains("`webhooks`") && !shown.contains("hunter2"),
            "{shown}"
        );

        let error = refused(&url("hunter3")).await;
        assert_eq!(error.kind(), OpenErrorKind::Denied, "{error:?}");
        assert!(!format!("{} {error:?}", chain(&error)).contains("hunter3"));
    }
}

#[tokio::test]
async fn servers_that_do_not_fit_the_url_are_refused() {
    let mut set = SentinelSet::start();
    let sentinel = set.sentinels[0].address();
    let error = refused(&format!("redis://{sentinel}")).await;
    assert_eq!(error.kind(), OpenErrorKind::Unsuitable, "{error:?}");
    let text = error.to_string();
    let url = format!("`redis+sentinel://{sentinel}/webhooks`");
    assert!(
        text.contains("is a sentinel") && text.contains(&url),
        "{text}"
    );

    let error = refused(&format!("redis+sentinel://{sentinel}/other")).await;
    assert!(
        chain(&error).contains("No such master"),
        "{}",
        chain(&error)
    );

    let server = set.servers[0].address();
    let error = refused(&format!("redis+sentinel://{server}/webhooks")).await;
    assert_eq!(error.kind(), OpenErrorKind::Unsuitable, "{error:?}");
    assert!(error.to_string().contains("no sentinel"), "{error}");

    let both: Vec<_> = set.servers.iter().map(RedisServer::address).collect();
    let error = refused(&format!("redis://{}", both.join(","))).await;
    assert_eq!(error.kind(), OpenErrorKind::Unsuitable, "{error:?}");
    assert!(
        error.to_string().contains("not part of a cluster"),
        "{error}"
    );

    let error = refused("redis://127.0.0.1:1,127.0.0.1:2").await;
    assert_eq!(error.kind(), OpenErrorKind::Unavailable, "{error:?}");
    let text = chain(&error);
    for each in ["127.0.0.1:1 ", "127.0.0.1:2 "] {
        assert!(text.contains(each), "{text}");
    }
    assert_eq!(text.matches("refused").count(), 2, "{text}");
    let error = refused(&format!("redis://{sentinel},127.0.0.1:1")).await;
    assert_eq!(error.kind(), OpenErrorKind::Unsuitable, "{error:?}");

    for sentinel in &mut set.sentinels {
        sentinel.kill();
    }
    let error = refused(&set.url()).await;
    assert_eq!(error.kind(), OpenErrorKind::Unavailable, "{error:?}");
    assert!(
        error
            .to_string()
            .contains(&set.at().replace("/webhooks", "")),
        "{error}"
    );
}

#[tokio::test]
async fn cluster_that_does_not_have_all_slots_is_refused() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), OpenErrorKind::Unsuitable, "{error:?}");
    assert!(error.to_string().contains("join the cluster"), "{error}");

    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), OpenErrorKind::Unsuitable, "{error:?}");
    assert!(error.to_string().contains("8192 of the 16384"), "{error}");

    server.command(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
    eventually("it has all", async || {
        RedisStore::open(&server.url()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn every_primary_of_a_cluster_is_checked() {
    // Nobody takes the place of a primary in this test.
    let mut cluster = RedisCluster::start_with(&["--cluster-node-timeout", "60000"]);
    cluster.servers[2].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let error = refused(&cluster.url()).await;
    assert_eq!(error.kind(), OpenErrorKind::Unsuitable, "{error:?}");
    assert!(error.to_string().contains("noeviction"), "{error}");
    cluster.servers[2].command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);

    // One that is away stops only its own keys.
    cluster.servers[2].kill();
    let logs = Log::capture(Level::DEBUG);
    let store = open(&cluster).await;
    assert_eq!(logs.count(Level::WARN, "was not checked"), 1);
    let mut claimed = 0;
    for key in 0..60 {
        claimed += usize::from(claim(&store, key).await.is_ok());
    }
    assert_eq!(
        size(&cluster.servers[0]) + size(&cluster.servers[1]),
        claimed
    );
    assert!((10..55).contains(&claimed), "{claimed}");
}
