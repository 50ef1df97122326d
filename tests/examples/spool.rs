//! The receiver with a spool: what it says when it is stopped, and `inbox flush`. `../kills/spool.rs` has its crashes.

use std::fs;

use nix::sys::signal::Signal;
use rusqlite::Connection;
use support::delivery::SECRET;
use support::net::{status, whole};
use support::postgres::{PostgresServer, Stop};
use support::program::{Ended, Server, curl, run, until};
use tempfile::TempDir;

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
        let ended = self.flush_with(&[]);
        (ended.code, ended.err)
    }

    fn flush_with(&self, options: &[&str]) -> Ended {
        let (url, spool) = (self.server.url(), self.spool());
        let args = ["inbox", "flush", &spool, "--inbox", &url, "--within", "20"];
        run("receiver", &[&args, options].concat())
    }
}

fn request(chat: usize, n: u64) -> Vec<u8> {
    let body = format!(r#"{{"id":"chat-{chat}","rating":{n}}}"#);
    whole(&format!("{chat}-{n}"), &body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_receiver_says_what_is_left_and_flush_forwards_it() {
    let mut place = Place::new();
    let receiver = place.start();
    place.server.stop(Stop::Immediate);
    let address = receiver.address().parse().unwrap();
    for n in 1..=3 {
        assert_eq!(status(address, request(1, n)).await.unwrap(), 200);
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
        (receiver.out().lines().count() == 3).then_some(())
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_printed_and_dropped() {
    let mut place = Place::new();
    let receiver = place.start();
    place.server.stop(Stop::Immediate);
    let address = receiver.address().parse().unwrap();
    for chat in [1, 2] {
        assert_eq!(status(address, request(chat, 1)).await.unwrap(), 200);
    }
    assert_eq!(receiver.stop(), 0);
    let file = Connection::open(place.spool()).unwrap();
    let spoil = "UPDATE bodies SET headers = NULL WHERE seq = (SELECT min(seq) FROM work)";
    assert_eq!(file.execute(spoil, []).unwrap(), 1);
    drop(file);
    place.server.restart();
    let (code, told) = place.flush();
    let counts = "forwarded: 1, left: 0, refused by the inbox: 1, dropped: 0";
    assert!(code == 1 && told.contains(counts), "{code}: {told}");
    let ended = place.flush_with(&["--drop-refused"]);
    let counts = "forwarded: 0, left: 0, refused by the inbox: 1, dropped: 1";
    assert!(
        ended.code == 0 && ended.err.contains(counts),
        "{}",
        ended.err
    );
    assert_eq!(ended.out.lines().count(), 1, "{}", ended.out);
    assert!(ended.out.contains(r#""id":"chat-1""#), "{}", ended.out);
    let (code, told) = place.flush();
    assert_eq!(code, 0, "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_that_fills_is_on_the_console_and_told() {
    let mut place = Place::new();
    let told = place.dir.path().join("told");
    let (url, spool) = (place.server.url(), place.spool());
    #[rustfmt::skip]
    let args = [
        "--secret", SECRET, "--inbox", &url, "--spool", &spool, "--spool-limit", "1048576", "--spool-on-any-disk",
        "--console", "127.0.0.1:0", "--notify-every", "1", "--on-alarm", &format!("cat >>'{}'", told.display()),
    ];
    let receiver = Server::receiver(&args);
    let console = receiver.url_of("console");
    assert!(!curl(&[&console]).contains("spool"));
    place.server.stop(Stop::Immediate);
    let address = receiver.address().parse().unwrap();
    for n in 0..12 {
        let text = "x".repeat(70_000);
        let body = format!(r#"{{"id":"chat-{n}","rating":1,"text":"{text}"}}"#);
        let answered = status(address, whole(&format!("large-{n}"), &body)).await;
        assert_eq!(answered.unwrap(), 200);
    }
    until("the sentence", || {
        let page = curl(&[&console]);
        (page.contains("<b>Critical: </b>The database does not accept events")
            && page.contains("<b>12 events</b> wait in the spool"))
        .then_some(())
    });
    let notices = || fs::read_to_string(&told).unwrap_or_default();
    let line = until("the alarm", || {
        let lines = notices();
        let line = lines.lines().find(|line| line.contains("spool-full"));
        line.map(str::to_owned)
    });
    assert!(!line.contains(r#""events":0"#), "{line}");

    place.server.restart();
    until("the end of the alarm", || {
        let lines = notices();
        let last = lines.lines().last()?;
        (last.contains(r#""alarms":[]"#) && last.contains("spool-full")).then_some(())
    });
    until("the empty spool", || {
        (!curl(&[&console]).contains("spool")).then_some(())
    });
    assert_eq!(receiver.stop(), 0);
}

#[test]
fn a_spool_in_front_of_a_file_is_refused_by_run_and_check() {
    let dir = TempDir::new().unwrap();
    let (inbox, spool) = (dir.path().join("webhooks.db"), dir.path().join("spool.db"));
    let inbox = format!("sqlite:{}", inbox.display());
    let fixed = [
        "--secret",
        "s",
        "--listen",
        "127.0.0.1:0",
        "--inbox",
        &inbox,
    ];
    for command in ["run", "check"] {
        let args = [
            &[command],
            &fixed[..],
            &["--spool", spool.to_str().unwrap()],
        ]
        .concat();
        let refused = run("receiver", &args);
        assert_eq!(refused.code, 1, "{command}: {refused:?}");
        let reason = "`--spool` is for an inbox in PostgreSQL";
        assert!(refused.err.contains(reason), "{command}: {refused:?}");
    }
}
