//! Requests that come to a wrong door of the receiver: the log says what they are, and a metric counts them.

use std::io::{Read, Write};
use std::time::Duration;

use support::program::{PATIENCE, Server, curl, until};

fn start(args: &[&str]) -> Server {
    Server::receiver(&[&["--secret", "s"], args].concat())
}

/// Sends bytes on a connection of their own, and returns the start of the answer.
fn say(receiver: &Server, bytes: &[u8]) -> String {
    let mut stream = receiver.connect().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = [0; "HTTP/1.1 400".len()];
    // TLS gets no answer that its client could read.
    let _ = stream.read(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Waits for the warning of an outcome.
fn warning(receiver: &Server, outcome: &str) -> String {
    until(outcome, || {
        let log = receiver.err();
        let outcome = format!("outcome=\"{outcome}\" listener=\"webhooks\"");
        let line = log.lines().find(|line| line.contains(&outcome))?;
        Some(line.to_owned())
    })
}

#[test]
fn deliveries_to_a_path_that_is_no_route_are_warned_of() {
    let receiver = start(&[]);
    let post = |path: &str| {
        let url = format!("http://{}{path}", receiver.address());
        curl(&["-o", "/dev/null", "-w", "%{http_code}", "-d", "{}", &url])
    };
    // Without a delivery, somebody looks around.
    let look = format!("http://{}/wp-login.php", receiver.address());
    curl(&["-o", "/dev/null", &look]);
    assert_eq!(post("/webhooks/?token=hush"), "404");
    let warned = warning(&receiver, "unknown-path");
    assert!(
        warned.contains("WARN") && warned.contains("POST to `/webhooks/`, which is no route"),
        "{warned}"
    );
    assert!(
        warned.contains("set exactly `/webhooks` at the sender"),
        "{warned}"
    );
    // One line a second, however many there are.
    std::thread::sleep(Duration::from_millis(1_100));
    for _ in 0..20 {
        assert_eq!(post("/hooks"), "404");
    }
    let log = until("how many more there were", || {
        let log = receiver.err();
        log.contains("further requests were refused").then_some(log)
    });
    assert!(
        log.lines()
            .filter(|line| line.contains("unknown-path"))
            .count()
            < 12,
        "{log}"
    );
    assert!(!log.contains("hush") && !log.contains("wp-login"), "{log}");
}

#[test]
fn a_path_that_resembles_no_route_is_told_the_routes() {
    let receiver = start(&["--path", "/in/github"]);
    let path = format!("/{}\u{1b}[31m", "x".repeat(500));
    let request = format!("PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    let answer = say(&receiver, request.replace('\u{1b}', "%1b").as_bytes());
    assert_eq!(answer, "HTTP/1.1 404");
    let warned = warning(&receiver, "unknown-path");
    assert!(
        warned.contains("PUT to `/xxx") && warned.contains("deliveries are sent to `/in/github`"),
        "{warned}"
    );
    assert!(warned.len() < 500, "{warned}");
}

#[test]
fn head_is_called_what_it_is() {
    let receiver = start(&[]);
    let status = curl(&["-I", "-o", "/dev/null", "-w", "%{http_code}", &receiver.url]);
    assert_eq!(status, "405");
    let warned = warning(&receiver, "head");
    assert!(
        warned.contains("HEAD of `/webhooks` is no delivery") && warned.contains("/healthz"),
        "{warned}"
    );
}

/// Trello asks so when a webhook is created.
#[test]
fn a_sender_that_asks_by_head_is_not_refused() {
    let url = "https://example.com/webhooks";
    let receiver = start(&[
        "--sender",
        "trello",
        "--sender-url",
        url,
        "--metrics",
        "127.0.0.1:0",
    ]);
    let head = |path: &str| {
        let url = format!("http://{}{path}", receiver.address());
        curl(&["-I", "-o", "/dev/null", "-w", "%{http_code}", &url])
    };
    assert_eq!(head("/webhooks"), "200");
    // Its counter comes after that of the first request.
    let (metrics, hello) = (receiver.url_of("metrics"), b"\x16\x03\x01\x02\x00\x01");
    say(&receiver, hello);
    warning(&receiver, "tls");
    let metrics = curl(&[&metrics]);
    assert!(metrics.contains("outcome=\"tls\""), "{metrics}");
    assert!(!metrics.contains("outcome=\"head\""), "{metrics}");
    let log = receiver.err();
    assert!(!log.contains("HEAD of"), "{log}");
}

#[test]
fn other_protocols_are_called_by_their_names() {
    let any = "127.0.0.1:0";
    let receiver = start(&["--metrics", any]);
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let version_1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\nPOST /webhooks HTTP/1.1\r\n\r\n";
    let version_2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c";
    let http_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (bytes, outcome, reason) in [
        (&hello[..], "tls", "the client speaks TLS"),
        (version_1, "proxy-protocol", "the PROXY protocol"),
        (version_2, "proxy-protocol", "the PROXY protocol"),
        (http_2, "http2", "HTTP/2 without TLS"),
        (b"EHLO mail\r\n\r\n", "malformed-request", "invalid"),
    ] {
        let answer = say(&receiver, bytes);
        assert!(!answer.contains("200"), "{answer}");
        let warned = warning(&receiver, outcome);
        assert!(
            warned.contains("WARN") && warned.contains(reason),
            "{warned}"
        );
        assert!(warned.contains("peer=127.0.0.1:"), "{warned}");
    }
    // Behind the first request of a connection, they would be a part of it.
    curl(&["-o", "/dev/null", "-I", &receiver.url]);
    let metrics = receiver.url_of("metrics");
    for (outcome, count) in [
        ("tls", 1),
        ("proxy-protocol", 2),
        ("http2", 1),
        ("malformed-request", 1),
        ("head", 1),
    ] {
        let counter = format!(
            "receiver_refusals_total{{listener=\"webhooks\",outcome=\"{outcome}\"}} {count}"
        );
        until(&counter, || {
            curl(&[&metrics]).contains(&counter).then_some(())
        });
    }
}
