//! A receiver whose URL names a primary and its standby, which is promoted.

use std::net::SocketAddr;

use nix::sys::signal::Signal;
use support::database::{connect, execute};
use support::delivery::SECRET;
use support::net::{status, whole};
use support::postgres::{PostgresServer, Stop};
use support::program::{Server, run, until};

#[derive(Clone, Copy, Debug)]
enum Lost {
    Crashed,
    /// It does not answer, as if its machine were gone.
    Frozen,
    /// It takes no writes, and connections to it stay.
    ReadOnly,
}

const SETTINGS: [&str; 2] = ["fsync=off", "wal_level=replica"];

/// The standby is named first: the receiver asks which server takes writes.
fn url(standby: &PostgresServer, primary: &PostgresServer) -> String {
    let (standby, primary) = (standby.port(), primary.port());
    format!(
        "postgres://postgres@127.0.0.1:{standby},127.0.0.1:{primary}/postgres?target_session_attrs=read-write"
    )
}

/// Sends an event as often as it takes. Only 200 and 503 are answers.
fn send(address: SocketAddr, chat: &str, n: u64) {
    let body = format!(r#"{{"id":"{chat}","rating":{n}}}"#);
    until("a server that takes writes", || {
        let runtime = tokio::runtime::Handle::current();
        let request = whole(&format!("{chat}-{n}"), &body);
        let status = tokio::task::block_in_place(|| runtime.block_on(status(address, request)));
        match status.expect("an answer") {
            200 => Some(()),
            503 => None,
            other => panic!("{other}"),
        }
    });
}

async fn follows(lost: Lost) {
    let mut primary = PostgresServer::start_with(&SETTINGS);
    let standby = PostgresServer::follow(primary.port(), &SETTINGS);
    let url = url(&standby, &primary);
    let receiver = Server::receiver(&["--secret", SECRET, "--inbox", &url, "--lease", "2"]);
    let address = receiver.address().parse().unwrap();
    for n in 1..=5 {
        send(address, "before", n);
    }
    until("they are handled", || {
        (receiver.out().lines().count() == 5).then_some(())
    });
    match lost {
        Lost::Crashed => primary.stop(Stop::Immediate),
        Lost::Frozen => primary.signal(Signal::SIGSTOP),
        Lost::ReadOnly => {
            let pool = connect(&primary.url(), 1).await;
            for text in [
                "ALTER SYSTEM SET default_transaction_read_only = on",
                "SELECT pg_reload_conf()",
            ] {
                execute(&pool, text).await;
            }
        }
    }
    standby.promote();
    for n in 1..=5 {
        send(address, "after", n);
    }
    until("they are handled", || {
        let out = receiver.out();
        (out.lines().filter(|it| it.contains("after-")).count() == 5).then_some(())
    });
    let log = receiver.err();
    let follows = format!(
        "another server takes writes host=\"127.0.0.1:{}\"",
        standby.port()
    );
    assert!(log.contains(&follows), "{lost:?}: {log}");
    let listed = run("receiver", &["inbox", "list", "--inbox", &url]);
    assert_eq!(listed.code, 0, "{}", listed.err);
    assert!(listed.out.contains("after-5"), "{}", listed.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_primary_is_followed_by_its_standby() {
    follows(Lost::Crashed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_is_followed_by_its_standby() {
    follows(Lost::Frozen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_a_read_only_primary_are_given_up() {
    follows(Lost::ReadOnly).await;
}

/// Without a primary, the reason of each server is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_primary_each_server_is_named() {
    let mut primary = PostgresServer::start_with(&SETTINGS);
    let standby = PostgresServer::follow(primary.port(), &SETTINGS);
    primary.stop(Stop::Immediate);
    let url = url(&standby, &primary);
    let ended = run("receiver", &["--secret", SECRET, "--inbox", &url]);
    assert_eq!(ended.code, 1, "{}", ended.err);
    for part in [
        format!("127.0.0.1:{} is a standby", standby.port()),
        format!("127.0.0.1:{}: ", primary.port()),
        "no server takes writes".to_owned(),
    ] {
        assert!(ended.err.contains(&part), "{}", ended.err);
    }
}
