//! The connections of the example `receiver`: limits, and the way that each ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tower_webhook::Secret;

use crate::attackers::{SORTS, Sent, Sort, Target, attack, send, settle};
use support::program::{PATIENCE, Program, Server, example, run, tool, until};

/// An unsigned delivery.
fn request(body: &str) -> String {
    format!(
        "POST /webhooks HTTP/1.1\r\nHost: receiver\r\nContent-Type: application/json\r\n\
         X-Service-Event: chat-rated\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn start(args: &[&str]) -> Server {
    Server::receiver(&[&["--dangerously-unsigned"], args].concat())
}

fn connect(receiver: &Server) -> TcpStream {
    let stream = receiver.connect().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads the head of an answer without a body.
fn answer(mut stream: &TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Reads the body of an answer with this head.
fn read_body(mut stream: &TcpStream, head: &str) {
    let (_, length) = head.split_once("content-length: ").unwrap();
    let length = length.split("\r\n").next().unwrap().parse().unwrap();
    stream.read_exact(&mut vec![0; length]).unwrap();
}

fn is_closed(mut stream: &TcpStream) -> bool {
    stream.read(&mut [0; 1024]).is_ok_and(|length| length == 0)
}

#[test]
fn silent_connections_do_not_shut_out_deliveries() {
    let few_files = r#"ulimit -n 128; exec "$0" "$@""#;
    let mut command = Command::new("sh");
    command
        .args(["-c", few_files])
        .arg(example("receiver").get_program())
        .args(["--secret", "s", "--header-timeout", "600"]);
    let few_files = Server::start_by(&mut command);
    let limited = ["--secret", "s", "--header-timeout", "600"];
    // More than the deliveries, each of which may open a connection while another becomes idle.
    let limited = Server::receiver(&[&limited[..], &["--max-connections", "32"]].concat());

    for (receiver, limit) in [(few_files, 64), (limited, 32)] {
        let silent: Vec<_> = (0..300).map(|_| connect(&receiver)).collect();
        // One that is still accepted later might take the place of an idle connection of `send`.
        until("the end of the silent connections", || {
            let closed = silent.iter().filter(|connection| was_closed(connection));
            (closed.count() >= silent.len() - limit).then_some(())
        });

        let sent = receiver.send("s", &["--count", "20", "--concurrency", "3"]);

        assert_eq!(sent.code, 0, "{sent:?}");
        drop(silent);
    }
}

#[test]
fn connections_with_a_request_are_not_closed_for_others() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().display();
    // It ends with its test as well.
    let command = format!(
        "touch '{path}/started'; while test -d '{path}' && ! test -e '{path}/go'; do sleep 0.02; done"
    );
    let receiver = start(&["--max-connections", "1", "--exec", &command]);
    let mut busy = connect(&receiver);
    busy.write_all(request("{}").as_bytes()).unwrap();
    until("the command", || {
        dir.path().join("started").exists().then_some(())
    });

    let mut waiting = connect(&receiver);
    waiting.write_all(request("{}").as_bytes()).unwrap();
    fs::write(dir.path().join("go"), "").unwrap();

    assert!(answer(&busy).starts_with("HTTP/1.1 200"));
    assert!(answer(&waiting).starts_with("HTTP/1.1 200"));
}

/// Without waiting for what may come.
fn was_closed(connection: &TcpStream) -> bool {
    connection.set_nonblocking(true).unwrap();
    matches!(connection.peek(&mut [0]), Ok(0))
}

#[test]
fn unfinished_headers_take_bounded_memory() {
    const CONNECTIONS: usize = 200;
    let receiver = start(&["--header-timeout", "600"]);
    let before = 1024 * receiver.memory("VmRSS");
    let start = "POST /webhooks HTTP/1.1\r\nHost: receiver\r\nX-Long: ";

    let large = format!("{start}{}", "x".repeat(400_000));
    let streams: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut stream = connect(&receiver);
            stream.write_all(large.as_bytes()).unwrap();
            stream
        })
        .collect();
    for stream in &streams {
        assert!(answer(stream).starts_with("HTTP/1.1 431"));
    }
    let allowed = format!("{start}{}", "x".repeat(30_000));
    let unfinished: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut stream = connect(&receiver);
            stream.write_all(allowed.as_bytes()).unwrap();
            stream
        })
        .collect();
    // Those before were read when this one is answered.
    let mut last = connect(&receiver);
    last.write_all(request("{}").as_bytes()).unwrap();
    assert!(answer(&last).starts_with("HTTP/1.1 200"));

    let grown = (1024 * receiver.memory("VmRSS")).saturating_sub(before);
    assert!(grown < CONNECTIONS * 128 * 1024, "{grown}");
    drop(unfinished);

    let mut many = connect(&receiver);
    let headers: String = (0..101)
        .map(|number| format!("X-{number}: x\r\n"))
        .collect();
    let many_headers = format!("GET /healthz HTTP/1.1\r\n{headers}\r\n");
    many.write_all(many_headers.as_bytes()).unwrap();
    assert!(answer(&many).starts_with("HTTP/1.1 431"));
}

#[test]
fn malformed_requests_are_logged_once_a_second_and_counted() {
    const REQUESTS: u64 = 60;
    let receiver = start(&[]);
    for (line, status) in [("GET  /\r\n\r\n", "400"), ("\0\r\n\r\n", "400")] {
        for _ in 0..REQUESTS / 2 {
            let mut stream = connect(&receiver);
            stream.write_all(line.as_bytes()).unwrap();
            assert!(answer(&stream).starts_with(&format!("HTTP/1.1 {status}")));
        }
    }

    let outcome = r#"outcome="malformed-request""#;
    let err = until("all refusals in the log", || {
        let err = receiver.err();
        let lines = err.lines().filter(|line| line.contains(outcome));
        let counted = lines.map(|line| match line.split_once(" more=") {
            Some((_, more)) => more.trim().parse::<u64>().unwrap(),
            None => 1,
        });
        (counted.sum::<u64>() == REQUESTS).then_some(err)
    });
    assert!(err.contains("WARN"), "{err}");
    assert!(err.contains("peer=127.0.0.1:"), "{err}");
    assert!(err.contains("reason=\"invalid "), "{err}");
    let first = err.matches("a request was refused").count();
    assert!(first < 30, "{err}");
}

#[test]
fn idle_time_and_header_time_are_two_limits() {
    let receiver = start(&["--header-timeout", "2", "--idle-timeout", "600"]);
    let mut stream = connect(&receiver);
    for _ in 0..2 {
        stream.write_all(request("{}").as_bytes()).unwrap();
        assert!(answer(&stream).starts_with("HTTP/1.1 200"));
        thread::sleep(Duration::from_secs(3));
    }
    stream.write_all(b"POST /webhooks HTTP/1.1\r\n").unwrap();
    assert!(is_closed(&stream));
    until("the refusal", || {
        let err = receiver.err();
        err.contains(r#"outcome="header-timeout""#).then_some(())
    });
    assert!(is_closed(&connect(&receiver)));

    let receiver = start(&["--header-timeout", "600", "--idle-timeout", "1"]);
    let mut stream = connect(&receiver);
    stream.write_all(request("{}").as_bytes()).unwrap();
    assert!(answer(&stream).starts_with("HTTP/1.1 200"));
    assert!(is_closed(&stream));
}

#[test]
fn request_of_a_half_closed_connection_is_answered() {
    const REQUESTS: usize = 50;
    let receiver = start(&["--exec", "true"]);

    for number in 0..REQUESTS {
        let mut stream = connect(&receiver);
        let request = request(&format!(r#"{{"id":"{number}"}}"#));
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(answer(&stream).starts_with("HTTP/1.1 200"), "{number}");
        assert!(is_closed(&stream));
    }
    assert_eq!(receiver.out().lines().count(), REQUESTS);
}

#[test]
fn client_that_writes_first_sees_the_refusal_of_a_large_body() {
    let receiver = start(&[]);
    let request = request(&"x".repeat(8_000_000));

    for _ in 0..5 {
        let mut stream = connect(&receiver);
        stream.write_all(request.as_bytes()).unwrap();
        assert!(answer(&stream).starts_with("HTTP/1.1 413"));
    }
}

#[test]
fn open_connections_do_not_delay_the_end() {
    let receiver = start(&["--grace", "600"]);
    let mut idle = connect(&receiver);
    idle.write_all(request("{}").as_bytes()).unwrap();
    assert!(answer(&idle).starts_with("HTTP/1.1 200"));
    let mut refused = connect(&receiver);
    refused.write_all(b"\0\r\n\r\n").unwrap();
    assert!(answer(&refused).starts_with("HTTP/1.1 400"));

    receiver.signal(nix::sys::signal::Signal::SIGTERM);

    assert_eq!(receiver.program.finish().code, 0);
}

#[test]
fn connections_that_are_accepted_during_a_stop_do_not_delay_it() {
    for _ in 0..8 {
        let receiver = start(&["--grace", "600"]);
        let address = receiver.address().to_owned();
        let busy: Vec<_> = (0..8)
            .map(|_| {
                let address = address.clone();
                thread::spawn(move || {
                    let mut last = None;
                    while let Ok(mut stream) = TcpStream::connect(&address) {
                        let _ =
                            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: receiver\r\n\r\n");
                        answer(&stream);
                        // It stays open until the next one is.
                        last = Some(stream);
                    }
                    assert!(last.is_none_or(|last| is_closed(&last)));
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(50));
        receiver.signal(nix::sys::signal::Signal::SIGTERM);
        assert_eq!(receiver.program.finish().code, 0);
        for busy in busy {
            busy.join().unwrap();
        }
    }
}

#[test]
fn connections_without_a_whole_request_do_not_delay_the_end() {
    let receiver = start(&["--grace", "600", "--header-timeout", "600"]);
    let silent = connect(&receiver);
    let mut half = connect(&receiver);
    half.write_all(b"POST /webhooks HTTP/1.1\r\n").unwrap();
    // Both were accepted when this one is answered.
    let mut last = connect(&receiver);
    last.write_all(request("{}").as_bytes()).unwrap();
    assert!(answer(&last).starts_with("HTTP/1.1 200"));

    receiver.signal(nix::sys::signal::Signal::SIGTERM);

    assert_eq!(receiver.program.finish().code, 0);
    assert!(is_closed(&silent));
    drop(half);
}

#[test]
fn bodies_beyond_max_buffered_are_refused() {
    // At least one body must fit.
    let receiver = start(&["--max-body", "1000000", "--max-buffered", "1"]);
    let request = request(&"x".repeat(900_000));
    let unfinished = &request.as_bytes()[..request.len() - 1];
    let streams: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = connect(&receiver);
            stream.write_all(unfinished).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();

    let mut head = [0; 12];
    until("the answer to one of them", || {
        let mut answers = streams.iter().map(|stream| stream.peek(&mut head));
        answers.any(|peeked| peeked.is_ok()).then_some(())
    });
    assert_eq!(&head, b"HTTP/1.1 503");
}

/// Genuine deliveries beside attackers that connect again at once.
fn under_attack(
    receiver: &Server,
    sorts: &[Sort],
    attackers: usize,
    [genuine, held_back]: [usize; 2],
) -> Sent {
    // Each attack takes all cores, so that of two at once, one starves the genuine sender of the other.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let target = Target {
        address: receiver.address().parse().unwrap(),
        path: "/webhooks".to_owned(),
        held_back,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let connections = Arc::<AtomicU64>::default();
        let attacks = sorts
            .iter()
            .map(|sort| attack(&target, *sort, attackers, &connections));
        let attacks: Vec<_> = attacks.collect();
        settle(&connections, attackers * sorts.len()).await;
        let secret = Secret::new("s").unwrap();
        let sent = send(&target, &secret, genuine, Duration::from_secs(2)).await;
        drop(attacks);
        sent
    })
}

#[test]
fn attackers_without_the_secret_do_not_shut_out_deliveries() {
    // Of each sort, there are as many attackers as connections.
    let receiver = Server::receiver(&["--secret", "s", "--max-connections", "64"]);

    let sent = under_attack(&receiver, &SORTS, 64, [600, 600]);

    assert_eq!(sent.answered.len(), 20, "{:?}", sent.refused);
    for outcome in ["connection-limit", "connection-closed"] {
        assert!(receiver.err().contains(outcome));
    }
    // Each outcome has a line within a second, and one for those that were left out.
    let lines = receiver.err().lines().count();
    assert!(lines < 300, "{lines}");
}

#[test]
fn one_that_sent_a_valid_signature_is_not_closed_for_those_that_send_nothing() {
    let receiver = Server::receiver(&["--secret", "s", "--max-connections", "16"]);
    let mut genuine = connect(&receiver);
    let signature = Secret::new("s").unwrap().sign(b"{}");
    let signed = format!("\r\nX-Service-Hmac-Sha256: {signature}\r\n\r\n");
    let signed = request("{}").replace("\r\n\r\n", &signed);
    let mut deliver = || {
        genuine.write_all(signed.as_bytes()).unwrap();
        let answer = answer(&genuine);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        read_body(&genuine, &answer);
    };
    // Longer than a connection that has proved nothing may wait.
    thread::sleep(Duration::from_millis(600));
    deliver();
    let _silent: Vec<_> = (0..16).filter_map(|_| receiver.connect()).collect();
    thread::sleep(Duration::from_millis(100));
    deliver();
}

#[test]
fn large_bodies_that_are_held_back_do_not_shut_out_large_deliveries() {
    let receiver = Server::receiver(&["--secret", "s", "--max-buffered", "12000000"]);

    for genuine in [100_000, 300_000] {
        let sent = under_attack(&receiver, &[Sort::HeldBack], 16, [genuine, 1 << 20]);
        assert_eq!(sent.answered.len(), 20, "{:?}", sent.refused);
    }
}

/// A receiver whose log is at a terminal, with colours.
fn at_terminal() -> Server {
    let receiver = example("receiver");
    let program = receiver.get_program().to_str().unwrap();
    // It ends with `script`, although it survives the end of its terminal.
    let command =
        format!("exec setpriv --pdeathsig KILL '{program}' --secret s --listen 127.0.0.1:0");
    let mut script = Command::new("sh");
    let output = r#"exec script -qec "$0" /dev/null >&2"#;
    script.args(["-c", output, &command]);
    let mut receiver = Server::listening(Program::start(&mut script));
    receiver.url = receiver.url.trim_end().to_owned();
    receiver
}

#[test]
fn forgeries_do_not_flood_the_log() {
    const REQUESTS: usize = 200;
    let signature = format!("\r\nX-Service-Hmac-Sha256: {}\r\n\r\n", "0".repeat(64));
    let forged = request("{}").replace("\r\n\r\n", &signature);
    let json = Server::receiver(&["--secret", "s", "--log-format", "json"]);
    for receiver in [Server::receiver(&["--secret", "s"]), json, at_terminal()] {
        let mut stream = connect(&receiver);
        for _ in 0..REQUESTS {
            stream.write_all(forged.as_bytes()).unwrap();
            let answer = answer(&stream);
            assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
            read_body(&stream, &answer);
        }

        let sent = receiver.send("s", &["--key", "genuine"]);
        assert_eq!(sent.code, 0, "{sent:?}");
        let log = until("the end of the genuine one", || {
            let log = receiver.err();
            let end = log.lines().find(|line| is_end(line, "handled"))?;
            assert!(end.contains("genuine"), "{end}");
            Some(log)
        });
        let ends = log.lines().filter(|line| is_end(line, "invalid-signature"));
        let ends = ends.count();
        // One in a second, on a machine of any speed.
        assert!((1..REQUESTS / 4).contains(&ends), "{ends}: {log}");
    }
}

#[test]
fn each_line_of_a_log_of_json_is_json() {
    let any = "127.0.0.1:0";
    let args = ["--log-format", "json", "--console", any, "--metrics", any];
    // With `--demo`, it prints the command that sends a first event.
    let receiver = Server::receiver(&[&["--demo"], &args[..]].concat());
    let log = until("the command", || {
        let log = receiver.err();
        (log.contains("send --url") && log.ends_with('\n')).then_some(log)
    });
    for said in ["console on http", "metrics on http", "listening on http"] {
        assert!(log.contains(said), "{said}: {log}");
    }
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).expect(line);
        assert!(line["fields"]["message"].is_string(), "{line}");
        let parts = ["timestamp", "level", "target"];
        assert!(parts.iter().all(|part| line[part].is_string()), "{line}");
    }
    let ended = run(
        "receiver",
        &[
            "run",
            "--demo",
            "--log-format",
            "json",
            "--inbox",
            "sqlite:/",
        ],
    );
    let line: Value = serde_json::from_str(ended.err.lines().last().unwrap()).unwrap();
    assert_eq!(line["level"], "ERROR", "{line}");

    // What is wrong in the command line, too, and what a command writes.
    let json = [("WEBHOOK_LOG_FORMAT", "json")];
    for (variables, args, reason) in [
        (&[][..], &["--log-format", "json"][..], "WEBHOOK_SECRET"),
        (
            &[],
            &["check", "--log-format=json", "--port", "1"],
            "--port",
        ),
        (&json, &["--demo", "--inbox", "memory"], "an inbox is"),
        (
            &json,
            &["--lease", "600"],
            "count as options: WEBHOOK_LOG_FORMAT",
        ),
    ] {
        let mut command = example("receiver");
        command.envs(variables.iter().copied()).args(args);
        let ended = Program::start(&mut command).finish();
        assert_eq!(ended.code, 2, "{ended:?}");
        let line: Value = serde_json::from_str(ended.err.trim_end()).expect(&ended.err);
        let message = line["fields"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{line}");
        assert_eq!(line["level"], "ERROR");
    }
    let exec = "echo out; echo err >&2; (sleep 1; echo later) & exit 1";
    let args = ["--secret", "s", "--log-format", "json", "--exec", exec];
    let receiver = Server::receiver(&args);
    assert_eq!(receiver.send("s", &[]).code, 1);
    let log = until("the late line", || {
        let log = receiver.err();
        (log.contains("\"later\"") && log.ends_with('\n')).then_some(log)
    });
    for line in log.lines() {
        serde_json::from_str::<Value>(line).expect(line);
    }
    assert!(
        log.contains("err (exit status: 1)"),
        "the reason is of standard error: {log}"
    );
    let lines = log
        .lines()
        .filter(|it| it.contains(r#""target":"command""#));
    assert_eq!(lines.count(), 3, "{log}");
}

#[test]
fn forged_challenges_do_not_flood_the_log() {
    const REQUESTS: usize = 200;
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "the token").unwrap();
    let token = token.to_str().unwrap();
    let args = ["--sender", "meta", "--sender-token-file", token];
    let receiver = Server::receiver(&[&["--secret", "s"], &args[..]].concat());
    let query = "hub.mode=subscribe&hub.verify_token=forged&hub.challenge=1";
    let forged = format!("GET /webhooks?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut stream = connect(&receiver);
    for _ in 0..REQUESTS {
        stream.write_all(forged.as_bytes()).unwrap();
        let answer = answer(&stream);
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        read_body(&stream, &answer);
    }
    receiver.signal(Signal::SIGTERM);
    let log = until("the end", || {
        let log = receiver.err();
        log.contains("stopped").then_some(log)
    });
    let ends = log.lines().filter(|line| is_end(line, "invalid-challenge"));
    let ends = ends.count();
    assert!((1..REQUESTS / 4).contains(&ends), "{ends}: {log}");
}

/// Whether a line of the log, in any format, is that of the end of a delivery with an outcome.
fn is_end(line: &str, outcome: &str) -> bool {
    line.contains("duration_ms") && line.contains(outcome)
}

/// With a request id like the name of a field.
#[test]
fn bodies_that_are_given_up_do_not_flood_the_log() {
    const REQUESTS: usize = 200;
    let head = format!(
        "\r\nX-Request-Id: kind\r\nX-Service-Hmac-Sha256: {}\r\n\r\n",
        "0".repeat(64)
    );
    let whole = request("{}").replace("\r\n\r\n", &head);
    let part = &whole[..whole.len() - 1];
    for format in ["text", "json"] {
        let args = ["--secret", "s", "--log-format", format, "--grace", "0"];
        let receiver = Server::receiver(&args);
        let mut waiting = Vec::new();
        for _ in 0..REQUESTS {
            let mut stream = connect(&receiver);
            stream.write_all(part.as_bytes()).unwrap();
            waiting.push(stream);
        }
        // All that came before it are being received.
        assert_eq!(receiver.send("s", &[]).code, 0);
        receiver.signal(Signal::SIGTERM);
        let log = receiver.program.finish().err;
        let ends = log
            .lines()
            .filter(|line| line.contains("request_id") && line.contains("time.busy"))
            .count();
        assert!((1..REQUESTS / 4).contains(&ends), "{ends}: {log}");
    }
}

#[test]
fn connections_that_cannot_be_accepted_do_not_flood_the_log() {
    let receiver = Server::receiver(&["--secret", "s"]);
    let pid = receiver.program.child.id().to_string();
    let limit = |files| tool("prlimit", &["--pid", &pid, &format!("--nofile={files}:")]);
    limit("3");
    let waiting = connect(&receiver);
    // Ten attempts in a second.
    thread::sleep(Duration::from_secs(3));
    let log = receiver.err();
    let lines = log.lines().filter(|line| line.contains("not-accepted"));
    let lines: Vec<_> = lines.collect();
    assert!((2..8).contains(&lines.len()), "{log}");
    assert!(lines[0].contains("Too many open files"), "{log}");
    assert!(!lines[0].contains("peer"), "{log}");
    drop(waiting);
    limit("512");
    assert_eq!(receiver.send("s", &[]).code, 0);
}

#[test]
fn responses_have_a_length_and_leave_the_connection_open() {
    let receiver = start(&[]);
    let mut stream = connect(&receiver);
    for version in ["1.1", "1.0"] {
        let get = format!("GET /webhooks HTTP/{version}\r\nConnection: keep-alive\r\n\r\n");
        for _ in 0..2 {
            stream.write_all(get.as_bytes()).unwrap();
            let answer = answer(&stream);
            assert!(answer.contains(" 405 Method Not Allowed"), "{answer}");
            read_body(&stream, &answer);
        }
    }
}

#[test]
fn head_that_came_with_the_request_before_has_the_time_of_a_head() {
    let receiver = start(&["--header-timeout", "2", "--idle-timeout", "600"]);
    let mut stream = connect(&receiver);
    let pipelined = request("{}") + "POST /webhooks HTTP/1.1\r\n";
    stream.write_all(pipelined.as_bytes()).unwrap();
    assert!(answer(&stream).starts_with("HTTP/1.1 200"));
    assert!(is_closed(&stream));
    until("the refusal", || {
        let err = receiver.err();
        err.contains(r#"outcome="header-timeout""#).then_some(())
    });
}
