//! How a receiver stops and starts: sockets that systemd keeps, the last responses, and what balancers and probes ask.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getuid};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tower_webhook::Secret;

use support::net::{Line, Way, whole_with};
use support::postgres::PostgresServer;
use support::program::{Lingering, Program, Server, curl, example, installed, run, until};

/// A receiver to which a file is passed as systemd passes a socket.
fn activated(socket: impl Into<OwnedFd>, args: &[&str]) -> Program {
    activated_by(Command::new("sh"), socket, args)
}

fn activated_by(mut command: Command, socket: impl Into<OwnedFd>, args: &[&str]) -> Program {
    let receiver = example("receiver");
    // The socket is moved to where systemd's are.
    let script = r#"exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$0" "$@""#;
    command.args(["-c", script]).arg(receiver.get_program());
    command.args(args).stdin(Stdio::from(socket.into()));
    Program::start(&mut command)
}

fn delivery(key: &str) -> Vec<u8> {
    let body = format!(r#"{{"id":"{key}"}}"#);
    whole_with(&Secret::new("s").unwrap(), key, &body)
}

/// Delivers on a new connection, and returns the status.
async fn deliver(address: SocketAddr, key: String) -> std::io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(&delivery(&key)).await?;
    let mut answer = [0; "HTTP/1.1 200".len()];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer[9..]).into_owned())
}

/// Every event is answered by 200 and handled once, however often the receiver restarts meanwhile. `RESTARTS=50` is the
/// number of `tests/slow`.
#[tokio::test(flavor = "multi_thread")]
async fn no_connection_is_refused_or_reset_by_a_restart() {
    let restarts = std::env::var("RESTARTS").map_or(4, |it| it.parse().unwrap());
    let dir = TempDir::new().unwrap();
    let inbox = format!("sqlite:{}", dir.path().join("webhooks.db").display());
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(4096).unwrap().into_std().unwrap();
    let address = listener.local_addr().unwrap();
    let start = move || {
        let socket = listener.try_clone().unwrap();
        let mut program = activated(socket, &["--secret", "s", "--inbox", &inbox]);
        assert!(program.url().contains(&address.to_string()));
        program
    };

    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let sending = tokio::spawn(async move {
        let mut sent = Vec::new();
        let mut every = tokio::time::interval(Duration::from_millis(20));
        while stopped.try_recv().is_err() {
            every.tick().await;
            sent.push(tokio::spawn(deliver(
                address,
                format!("key-{}", sent.len()),
            )));
        }
        sent
    });
    let (programs, mut last) = tokio::task::spawn_blocking(move || {
        let mut ended = Vec::new();
        let mut program = start();
        for _ in 0..restarts {
            sleep(Duration::from_millis(300));
            let pid = Pid::from_raw(program.child.id().cast_signed());
            kill(pid, Signal::SIGTERM).unwrap();
            let end = program.finish();
            assert_eq!(end.code, 0, "{end:?}");
            ended.push(end);
            program = start();
        }
        (ended, program)
    })
    .await
    .unwrap();
    let _ = stop.send(());
    let mut count = 0;
    for sent in sending.await.unwrap() {
        let status = sent.await.unwrap();
        assert_eq!(status.expect("neither refused nor reset"), "200", "{count}");
        count += 1;
    }
    assert!(count >= 10 * restarts, "{count} in {restarts} restarts");
    let before: usize = programs.iter().map(|it| it.out.lines().count()).sum();
    until("every event", || {
        (before + last.out().lines().count() == count).then_some(())
    });
    assert!(last.err().contains("the sockets are systemd's"));
    last.child.kill().unwrap();
    println!("{count} connections during {restarts} restarts");
}

/// By the program that systemd has for it. The receiver starts itself again without its credentials, and a command gets
/// neither the socket nor its variables.
#[test]
fn sockets_of_systemd_are_taken_and_not_passed_on() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let mut command = Command::new("systemd-socket-activate");
    command.args(["-l", &address, "-E", "WEBHOOK_SECRET=s", "-E", "PATH"]);
    command.arg(example("receiver").get_program());
    command.args([
        "--exec",
        "ls -l /proc/self/fd >&2; echo fds=$LISTEN_FDS. >&2",
    ]);
    installed(
        Command::new("systemd-socket-activate")
            .arg("--version")
            .output(),
        "systemd-socket-activate",
        "systemd",
    );
    let program = Program::start(&mut command);
    until("the socket", || {
        program.err().contains("Listening on").then_some(())
    });
    let url = format!("http://{address}/webhooks");
    let sent = run("receiver", &["send", "--url", &url, "--secret", "s"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let err = program.err();
    assert!(err.contains("fds=.") && !err.contains("socket:["), "{err}");
}

/// Its receiver is a child, with another number than systemd has named.
#[test]
fn sockets_reach_the_receiver_behind_the_init_of_a_container() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut container = Command::new("unshare");
    if !getuid().is_root() {
        container.args(["--user", "--map-root-user"]);
    }
    container.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh"]);
    let any = "127.0.0.1:0";
    let args = ["--secret", "s", "--exec", "true", "--listen", any];
    let receiver = Server::listening(activated_by(container, listener, &args));
    assert_eq!(receiver.address(), address);
    assert_eq!(receiver.send("s", &[]).code, 0, "{}", receiver.err());
}

#[test]
fn a_socket_that_is_none_of_tcp_is_explained() {
    let ended = activated(File::open("/dev/null").unwrap(), &["--demo"]).finish();
    assert_eq!(ended.code, 1, "{ended:?}");
    for said in [
        "socket 1 of `LISTEN_FDS`",
        "ListenStream=",
        "such as 127.0.0.1:3000",
    ] {
        assert!(ended.err.contains(said), "{said}: {ended:?}");
    }
}

/// Reads a response without a body that matters, and returns its head in lower case.
fn head(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let read = reader.read_line(&mut head).unwrap();
        assert!(read > 0, "cut: {head}");
    }
    assert!(head.contains("content-length: 0"), "{head}");
    head.to_lowercase()
}

fn has_ended(mut stream: TcpStream) -> bool {
    matches!(stream.read(&mut [0]), Ok(0))
}

#[test]
fn balancers_have_a_delay_in_which_deliveries_are_accepted() {
    let receiver = Server::receiver(&["--secret", "s", "--drain-delay", "3"]);
    let ready = format!("http://{}/readyz", receiver.address());
    assert_eq!(curl(&[&ready]), "ready\n");
    let mut kept = receiver.connect().unwrap();
    kept.write_all(&delivery("1")).unwrap();
    let first = head(&kept);
    assert!(
        first.starts_with("http/1.1 200") && !first.contains("connection: close"),
        "{first}"
    );

    receiver.signal(Signal::SIGTERM);
    let began = Instant::now();
    until("the end of readiness", || {
        (curl(&["-w", "%{http_code}", &ready]) == "the receiver is stopping\n503").then_some(())
    });
    let health = format!("http://{}/healthz", receiver.address());
    assert_eq!(curl(&["-w", "%{http_code}", &health]), "200");
    // The last response of a connection that is kept alive says so.
    kept.write_all(&delivery("2")).unwrap();
    let last = head(&kept);
    assert!(
        last.starts_with("http/1.1 200") && last.contains("connection: close"),
        "{last}"
    );
    assert!(has_ended(kept));
    assert_eq!(receiver.send("s", &[]).code, 0, "a new connection");

    let address = receiver.address().to_owned();
    let ended = receiver.program.finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(began.elapsed() >= Duration::from_secs(3));
    assert_eq!(ended.out.lines().count(), 3);
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_second_signal_ends_the_delay() {
    let receiver = Server::receiver(&["--secret", "s", "--drain-delay", "600"]);
    receiver.signal(Signal::SIGTERM);
    until("the delay", || {
        receiver.err().contains("drain_delay=600s").then_some(())
    });
    receiver.signal(Signal::SIGTERM);
    let ended = receiver.program.finish();
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn a_response_during_the_stop_is_the_last_of_its_connection() {
    let lingering = Lingering::new();
    let command = format!("({}) & sleep 2", lingering.command());
    let receiver = Server::receiver(&["--secret", "s", "--exec", &command]);
    // A proxy keeps its connections, and uses one for the next delivery before it can know of the stop.
    let mut kept = receiver.connect().unwrap();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut answer = [0; 512];
    let read = kept.read(&mut answer).unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
    let mut busy = receiver.connect().unwrap();
    busy.write_all(&delivery("1")).unwrap();
    lingering.pid();
    // One that has not said anything yet may have been opened just before.
    let mut late = receiver.connect().unwrap();
    thread::sleep(Duration::from_millis(100));
    receiver.signal(Signal::SIGTERM);
    until("the stop", || {
        receiver.err().contains("stopping after").then_some(())
    });
    late.write_all(&delivery("2")).unwrap();
    kept.write_all(&delivery("3")).unwrap();
    for stream in [busy, late, kept] {
        let head = head(&stream);
        assert!(
            head.starts_with("http/1.1 200") && head.contains("connection: close"),
            "{head}"
        );
        assert!(has_ended(stream));
    }
    assert_eq!(receiver.program.finish().code, 0);
}

/// The status of `/readyz`, which comes within a second.
fn readiness(receiver: &Server) -> String {
    let url = format!("http://{}/readyz", receiver.address());
    let began = Instant::now();
    let status = curl(&["-o", "/dev/null", "-w", "%{http_code}", &url]);
    assert!(
        began.elapsed() < Duration::from_millis(1_500),
        "{:?}",
        began.elapsed()
    );
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_is_about_what_would_be_stored_now() {
    let postgres = PostgresServer::start();
    let dir = TempDir::new().unwrap();
    let line = Line::to(postgres.port()).await;
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", line.port());
    let spool = dir.path().join("spool").display().to_string();
    let store = Server::receiver(&["--secret", "s", "--store", &url]);
    let inbox = Server::receiver(&["--secret", "s", "--inbox", &url, "--name", "b"]);
    let args = [
        "--secret", "s", "--inbox", &url, "--name", "c", "--spool", &spool,
    ];
    let spooled = Server::receiver(
        &[
            &args[..],
            &["--spool-limit", "2000000", "--spool-on-any-disk"],
        ]
        .concat(),
    );
    let all = [&store, &inbox, &spooled];
    for receiver in all {
        assert_eq!(readiness(receiver), "200");
    }

    line.set(Way::Silent);
    for receiver in [&store, &inbox] {
        until("the alarm", || (readiness(receiver) == "503").then_some(()));
        let health = format!("http://{}/healthz", receiver.address());
        assert_eq!(curl(&["-w", "%{http_code}", &health]), "200");
        let err = receiver.err();
        assert!(
            err.contains("no delivery can be stored now") && err.contains("PostgreSQL at"),
            "{err}"
        );
        let probed = run("receiver", &["probe", "--listen", receiver.address()]);
        assert_eq!(probed.code, 1, "{probed:?}");
        assert!(
            probed
                .out
                .starts_with("503 Service Unavailable: no delivery"),
            "{probed:?}"
        );
    }
    assert_eq!(readiness(&spooled), "200");
    assert_eq!(spooled.send("s", &[]).code, 0);

    line.set(Way::Open);
    for receiver in all {
        until("the end of the alarm", || {
            (readiness(receiver) == "200").then_some(())
        });
    }
}

/// Those of which the receiver has not heard yet when it stops: they would be reset with its socket.
#[test]
fn connections_that_wait_in_the_queue_of_the_system_are_answered_before_the_end() {
    let receiver = Server::receiver(&["--secret", "s"]);
    receiver.signal(Signal::SIGSTOP);
    let waiting: Vec<_> = (0..50)
        .map(|number| {
            let mut stream = receiver.connect().unwrap();
            stream.write_all(&delivery(&number.to_string())).unwrap();
            stream
        })
        .collect();
    receiver.signal(Signal::SIGTERM);
    receiver.signal(Signal::SIGCONT);
    for stream in waiting {
        let head = head(&stream);
        assert!(head.starts_with("http/1.1 200"), "{head}");
    }
    let ended = receiver.program.finish();
    assert_eq!(
        (ended.code, ended.out.lines().count()),
        (0, 50),
        "{}",
        ended.err
    );
}

/// As on a full disk.
#[test]
fn readiness_notices_a_file_that_cannot_grow() {
    let dir = TempDir::new().unwrap();
    for option in ["--store", "--inbox"] {
        let file = format!("sqlite:{}", dir.path().join(option).display());
        let receiver = Server::receiver(&["--secret", "s", option, &file]);
        assert_eq!(receiver.send("s", &[]).code, 0);
        receiver.limit_files("0:unlimited");
        until("the alarm", || {
            (readiness(&receiver) == "503").then_some(())
        });
        assert_eq!(receiver.send("s", &[]).code, 1);
        receiver.limit_files("unlimited:unlimited");
        until("the end of the alarm", || {
            (readiness(&receiver) == "200").then_some(())
        });
        assert_eq!(receiver.send("s", &[]).code, 0);
    }
}

#[test]
fn a_probe_asks_the_receiver_of_this_machine() {
    let receiver = Server::receiver(&["--demo"]);
    let port = receiver.address().rsplit(':').next().unwrap();
    let mut ready = example("receiver");
    ready
        .arg("probe")
        .env("WEBHOOK_LISTEN", format!("0.0.0.0:{port}"));
    let ready = Program::start(&mut ready).finish();
    assert_eq!(
        (ready.code, ready.out.as_str()),
        (0, "200 OK: ready\n"),
        "{ready:?}"
    );
    let alive = run(
        "receiver",
        &["probe", "healthz", "--listen", receiver.address()],
    );
    assert_eq!(
        (alive.code, alive.out.as_str()),
        (0, "200 OK\n"),
        "{alive:?}"
    );

    let address = receiver.address().to_owned();
    assert_eq!(receiver.stop(), 0);
    let none = run("receiver", &["probe", "--listen", &address]);
    assert_eq!(none.code, 1, "{none:?}");
    assert!(
        none.err.contains(&address) && none.err.contains("refused"),
        "{none:?}"
    );
    // What does not answer is no receiver.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let silent = run(
        "receiver",
        &["probe", "--timeout", "1", "--listen", &address],
    );
    assert_eq!(silent.code, 1, "{silent:?}");
    assert!(silent.err.contains("no answer within 1s"), "{silent:?}");
}
