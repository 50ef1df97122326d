//! The server that the example `receiver` forwards events to.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use nix::sys::signal::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use support::program::{self, run, until};

/// A server that gives each event the same answer.
#[derive(Clone)]
pub(crate) struct Server {
    answer: (StatusCode, &'static str),
    seen: Arc<Mutex<Vec<(String, SocketAddr)>>>,
    /// Requests wait for a permit.
    open: Arc<Semaphore>,
}

impl Server {
    /// Returns the server, and the URL to forward to.
    pub(crate) async fn start(status: u16, text: &'static str) -> (Self, String) {
        let server = Self {
            answer: (StatusCode::from_u16(status).unwrap(), text),
            seen: Arc::default(),
            open: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/events", listener.local_addr().unwrap());
        let app = Router::new()
            .route("/events", post(Self::event))
            .with_state(server.clone())
            .into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, app).await });
        (server, url)
    }

    async fn event(
        State(server): State<Self>,
        ConnectInfo(peer): ConnectInfo<SocketAddr>,
        headers: HeaderMap,
        body: String,
    ) -> (StatusCode, &'static str) {
        assert_eq!(headers["content-type"], "application/json");
        server.seen.lock().unwrap().push((body, peer));
        let _permit = server.open.acquire().await;
        server.answer
    }

    fn seen(&self) -> Vec<(String, SocketAddr)> {
        self.seen.lock().unwrap().clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_posted_and_printed() {
    let (server, url) = Server::start(204, "").await;
    let receiver = program::Server::receiver(&["--secret", "s", "--forward", &url]);

    let sent = receiver.send("s", &["--count", "5"]);

    assert_eq!(sent.code, 0, "{sent:?}");
    let seen = server.seen();
    let bodies: String = seen.iter().map(|(body, _)| body.as_str()).collect();
    assert_eq!(bodies, receiver.out());
    assert!(bodies.starts_with(r#"{"event":"chat-rated","key":""#));
    let peers: HashSet<_> = seen.iter().map(|(_, peer)| peer).collect();
    assert_eq!(peers.len(), 1, "connections are kept");
}

/// As in a container, whose log would have the payloads.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_receiver_prints_no_payload() {
    let (server, url) = Server::start(204, "").await;
    let args = ["--secret", "s", "--quiet", "--forward", &url];
    let receiver = program::Server::receiver(&args);
    assert_eq!(receiver.send("s", &["--count", "5"]).code, 0);
    assert_eq!(server.seen().len(), 5);
    receiver.signal(Signal::SIGTERM);
    let ended = receiver.program.finish();
    assert_eq!((ended.code, ended.out.as_str()), (0, ""));
    assert!(!ended.err.contains("Ada Jensen"), "{ended:?}");

    let printed = run("receiver", &["--demo", "--quiet"]);
    assert_eq!(printed.code, 2, "{printed:?}");
    assert!(
        printed
            .err
            .contains("those of `/webhooks` are handled by being printed")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn status_422_discards_the_event() {
    let (server, url) = Server::start(422, "no such\u{202e} customer\nat line 7").await;
    let receiver = program::Server::receiver(&["--secret", "s", "--forward", &url]);

    let sent = receiver.send("s", &["--key", "k", "--count", "2"]);

    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(
        sent.out.contains("it had been accepted or handled before"),
        "{sent:?}"
    );
    assert_eq!(server.seen().len(), 1);
    assert_eq!(receiver.out(), "");
    let err = receiver.err();
    let discarded =
        r#"outcome="discarded" reason="no such\\u{202e} customer (the server answered 422"#;
    assert!(err.contains(discarded), "{err}");
    assert!(!err.contains('\u{202e}'), "{err:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_statuses_fail_the_event() {
    for (status, attempts) in [(500, "2"), (302, "2"), (404, "2"), (503, "1"), (429, "1")] {
        let (server, url) = Server::start(status, "").await;
        let receiver = program::Server::receiver(&[
            "--secret",
            "s",
            "--max-attempts",
            attempts,
            "--forward",
            &url,
        ]);

        let sent = receiver.send("s", &["--key", "k"]);

        assert_eq!(sent.code, 1, "{status}: {sent:?}");
        assert!(sent.out.contains("500 Internal Server Error"), "{sent:?}");
        assert_eq!((server.seen().len(), receiver.out()), (1, String::new()));
        let err = receiver.err();
        let reason = format!("reason=\"the server answered {status}");
        assert!(err.contains(&reason), "{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_is_down_fails_the_event_and_never_discards_it() {
    let down = ["--forward", "http://127.0.0.1:1/"];
    let receiver =
        program::Server::receiver(&[&["--secret", "s", "--max-attempts", "1"], &down[..]].concat());

    let sent = receiver.send("s", &["--key", "k"]);

    assert_eq!(sent.code, 1, "{sent:?}");
    let err = receiver.err();
    assert!(err.contains("the server cannot be reached"), "{err}");
    assert!(err.contains("Connection refused"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_limits_the_requests() {
    let (server, url) = Server::start(200, "").await;
    server.open.forget_permits(Semaphore::MAX_PERMITS);
    let receiver =
        program::Server::receiver(&["--secret", "s", "--concurrency", "2", "--forward", &url]);

    let sending = receiver.start_send("s", &["--count", "5", "--concurrency", "5"]);
    until("two requests", || (server.seen().len() == 2).then_some(()));
    sleep(Duration::from_millis(200)).await;
    assert_eq!(server.seen().len(), 2);
    server.open.add_permits(2);
    let sent = sending.finish();

    assert_eq!(sent.code, 0, "{sent:?}");
    assert_eq!(server.seen().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_have_a_time_limit() {
    let (server, url) = Server::start(200, "").await;
    server.open.forget_permits(Semaphore::MAX_PERMITS);
    let args = [
        "--secret",
        "s",
        "--concurrency",
        "2",
        "--handler-timeout",
        "2",
    ];
    let receiver = program::Server::receiver(&[&args[..], &["--forward", &url]].concat());

    let sent = receiver.send("s", &["--count", "5", "--concurrency", "5"]);

    assert!(sent.out.contains("5 503 Service Unavailable"), "{sent:?}");
    // The turns of those that were cancelled are free again.
    server.open.add_permits(2);
    let sent = receiver.send("s", &["--count", "5", "--concurrency", "5"]);
    assert_eq!(sent.code, 0, "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_decides_although_the_rest_of_the_answer_does_not_come() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/events", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            // A request is one packet here.
            let _ = connection.read(&mut [0; 4096]).await.unwrap();
            let part = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhi";
            connection.write_all(part).await.unwrap();
            open.push(connection);
        }
    });
    let receiver = program::Server::receiver(&["--secret", "s", "--forward", &url]);

    let sent = receiver.send("s", &[]);

    assert_eq!(sent.code, 0, "{sent:?}");
    assert_eq!(receiver.out().lines().count(), 1);
}
