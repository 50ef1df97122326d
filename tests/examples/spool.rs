//! The receiver with a spool: its database is stopped and started under load, and the receiver is killed meanwhile.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use support::delivery::SECRET;
use support::lock;
use support::net::whole;
use support::postgres::{PostgresServer, Stop};
use support::program::{Server, run, until};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

struct Place {
    dir: TempDir,
    server: PostgresServer,
}

impl Place {
    fn new() -> Self {
        let server = PostgresServer::start_with(&["fsync=off"]);
        let dir = TempDir::new().unwrap();
        Self { dir, server }
    }

    fn spool(&self) -> String {
        self.dir.path().join("spool.db").display().to_string()
    }

    fn start(&self) -> Server {
        let (url, spool) = (self.server.url(), self.spool());
        #[rustfmt::skip]
        let args = [
            "--secret", SECRET, "--inbox", &url, "--spool", &spool, "--spool-limit", "8388608",
            "--spool-on-any-disk", "--lease", "2",
        ];
        Server::receiver(&args)
    }

    fn flush(&self) -> (i32, String) {
        let ended = run(
            "receiver",
            &[
                "inbox",
                "flush",
                &self.spool(),
                "--inbox",
                &self.server.url(),
                "--within",
                "20",
            ],
        );
        (ended.code, ended.err)
    }
}

/// The events that a receiver has handled: chat and number.
fn handled(out: &str) -> Vec<(String, u64)> {
    let lines = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let payloads = lines.map(|line| line["payload"].clone());
    payloads
        .map(|it| {
            (
                it["id"].as_str().unwrap().to_owned(),
                it["rating"].as_f64().unwrap() as u64,
            )
        })
        .collect()
}

fn request(chat: usize, n: u64) -> Vec<u8> {
    let body = format!(r#"{{"id":"chat-{chat}","rating":{n}}}"#);
    whole(&format!("{chat}-{n}"), &body)
}

/// The status of the answer, if there is one.
async fn post(to: SocketAddr, request: &[u8]) -> io::Result<u16> {
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(request).await?;
    let mut status = [0; "HTTP/1.1 200".len()];
    stream.read_exact(&mut status).await?;
    Ok(str::from_utf8(&status[9..]).unwrap().parse().unwrap())
}

/// Ten chats, each of which sends its next event when the one before was answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_sees_nothing_but_200_while_the_database_is_stopped_and_the_receiver_killed() {
    const CHATS: usize = 10;
    let mut place = Place::new();
    let first = place.start();
    let address: Arc<Mutex<SocketAddr>> = Arc::new(Mutex::new(first.address().parse().unwrap()));
    let ends = Arc::new(AtomicBool::new(false));
    let chats: Vec<_> = (0..CHATS)
        .map(|chat| {
            let (address, ends) = (Arc::clone(&address), Arc::clone(&ends));
            tokio::spawn(async move {
                let mut n = 0;
                while !ends.load(Ordering::SeqCst) {
                    n += 1;
                    loop {
                        let to = *lock(&address);
                        match post(to, &request(chat, n)).await {
                            Ok(status) => {
                                assert_eq!(status, 200, "chat {chat}, event {n}");
                                break;
                            }
                            // Nobody answers while the receiver is not there.
                            Err(_) => sleep(Duration::from_millis(50)).await,
                        }
                    }
                    sleep(Duration::from_millis(50)).await;
                }
                n
            })
        })
        .collect();

    sleep(Duration::from_secs(2)).await;
    place.server.stop(Stop::Immediate);
    sleep(Duration::from_secs(3)).await;
    first.signal(Signal::SIGKILL);
    let out = first.out();
    let second = place.start();
    *lock(&address) = second.address().parse().unwrap();
    sleep(Duration::from_secs(3)).await;
    place.server.restart();
    sleep(Duration::from_secs(4)).await;
    place.server.stop(Stop::Immediate);
    sleep(Duration::from_secs(2)).await;
    place.server.restart();
    sleep(Duration::from_secs(1)).await;
    ends.store(true, Ordering::SeqCst);
    let mut sent = Vec::new();
    for chat in chats {
        sent.push(chat.await.unwrap());
    }
    let all: u64 = sent.iter().sum();
    until("all are handled", || {
        let count = handled(&out).len() + handled(&second.out()).len();
        (count as u64 >= all).then_some(())
    });
    let both = [handled(&out), handled(&second.out())].concat();
    for (chat, sent) in sent.into_iter().enumerate() {
        let name = format!("chat-{chat}");
        let of_chat = both.iter().filter(|(of, _)| *of == name);
        let mut numbers: Vec<_> = of_chat.map(|(_, n)| *n).collect();
        // An attempt whose end could not be recorded is made again.
        numbers.dedup();
        assert_eq!(numbers, (1..=sent).collect::<Vec<_>>(), "{name}");
    }
    println!("{all} events, all answered with 200");
    assert_eq!(second.stop(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_receiver_says_what_is_left_and_flush_forwards_it() {
    let mut place = Place::new();
    let receiver = place.start();
    place.server.stop(Stop::Immediate);
    let address = receiver.address().parse().unwrap();
    for n in 1..=3 {
        assert_eq!(post(address, &request(1, n)).await.unwrap(), 200);
    }
    let (code, told) = place.flush();
    assert_eq!(code, 1, "{told}");
    receiver.signal(Signal::SIGTERM);
    let ended = receiver.program.finish();
    assert!(
        ended.err.contains("left=3") && ended.err.contains("are left in the spool"),
        "{}",
        ended.err
    );

    place.server.restart();
    let (code, told) = place.flush();
    assert_eq!(
        (code, told.contains("forwarded: 3, left: 0")),
        (0, true),
        "{told}"
    );
    let receiver = place.start();
    // Another receiver cannot use the file.
    let (code, told) = place.flush();
    assert!(
        code == 1 && told.contains("used by another process"),
        "{told}"
    );
    until("they are handled", || {
        (handled(&receiver.out()).len() == 3).then_some(())
    });
    assert_eq!(receiver.stop(), 0);

    let other = PostgresServer::start_with(&["fsync=off"]);
    let ended = run(
        "receiver",
        &["inbox", "flush", &place.spool(), "--inbox", &other.url()],
    );
    assert!(
        ended.code == 1 && ended.err.contains("another database"),
        "{}",
        ended.err
    );
    let ended = run(
        "receiver",
        &["inbox", "flush", "nowhere.db", "--inbox", &other.url()],
    );
    assert!(
        ended.code == 1 && ended.err.contains("there is no file"),
        "{}",
        ended.err
    );
}
