//! Chats that send their events one after another to a program, which is killed, as is its output; and what became of the
//! events.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reqwest::Client;
use tempfile::TempDir;
use tokio::time::sleep;
use tower_webhook::Secret;
use tower_webhook::inbox::{EventId, EventState, Filter, Inbox, Page};
use tower_webhook::sqlite::SqliteQueue;

use crate::process::{Process, eventually, free_ports};

pub const CHATS: usize = 10;
const SECRET: &str = "s";
/// Ten of each chat.
const FULL: u64 = 100;
/// Between two events of a chat.
const PAUSE: Duration = Duration::from_millis(5);
/// Before a delivery without an answer is sent again.
const AGAIN: Duration = Duration::from_millis(50);

/// What is killed at once, with SIGKILL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Killed {
    Program,
    Output,
    Both,
}

pub const ALL: &[Killed] = &[Killed::Program, Killed::Output, Killed::Both];

/// An output, which has started.
pub trait Output {
    /// The program that hands events on to it.
    const PROGRAM: &'static str;

    /// What is killed, in turn.
    const KILLS: &'static [Killed] = ALL;

    /// The program's environment variables.
    fn settings(&self) -> Vec<(&'static str, String)>;

    /// Kills the leader of a cluster. A server that is alone is started again at once.
    async fn kill(&mut self) {}

    /// Starts again what is not running, and waits until the cluster is whole.
    async fn mend(&mut self) {}

    /// What it has of the events that were sent, in its order, at least for each chat.
    async fn read(&mut self, sent: usize) -> Vec<Event>;
}

/// An event of a chat, by its number there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    pub chat: usize,
    pub number: usize,
}

impl Event {
    /// The slash is what needs care in a URL.
    pub fn chat(chat: usize) -> String {
        format!("chat/{chat}")
    }

    fn key(self) -> String {
        format!("{}/{}", self.chat, self.number)
    }

    pub fn of_key(key: &str) -> Self {
        let (chat, number) = key.split_once('/').unwrap();
        Self {
            chat: chat.parse().unwrap(),
            number: number.parse().unwrap(),
        }
    }

    fn body(self) -> String {
        let (chat, key) = (Self::chat(self.chat), self.key());
        format!(r#"{{"id":"{chat}","text":"{key}"}}"#)
    }

    pub fn of_body(body: &[u8]) -> Self {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap();
        Self::of_key(body["text"].as_str().unwrap())
    }
}

/// What became of the events.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    pub events: usize,
    pub lost: Vec<Event>,
    /// Repeats that follow their event at once, in its chat.
    pub doubled: Vec<Event>,
    /// Other repeats.
    pub doubled_later: Vec<Event>,
    /// Events whose first occurrence does not follow that of the event before, and those that were never sent.
    pub disordered: Vec<Event>,
}

impl Found {
    /// Compares what an output has with the number of events that each chat has sent.
    fn judge(sent: &[usize; CHATS], had: &[Event]) -> Self {
        let mut found = Self {
            events: sent.iter().sum(),
            ..Self::default()
        };
        for (chat, sent) in sent.iter().enumerate() {
            let (mut seen, mut last, mut highest) = (vec![false; *sent], None, None);
            for event in had.iter().filter(|it| it.chat == chat) {
                let number = event.number;
                match seen.get(number) {
                    Some(true) if last == Some(number) => found.doubled.push(*event),
                    Some(true) => found.doubled_later.push(*event),
                    Some(false) if highest < Some(number) => {}
                    _ => found.disordered.push(*event),
                }
                if let Some(seen) = seen.get_mut(number) {
                    *seen = true;
                }
                (last, highest) = (Some(number), highest.max(Some(number)));
            }
            let missing = (0..*sent).filter(|number| !seen[*number]);
            let missing = missing.map(|number| Event { chat, number });
            found.lost.extend(missing);
        }
        found
    }

    /// Each event once, in the order of its chat.
    #[track_caller]
    pub fn assert_once(&self) {
        self.assert_at_least_once();
        assert_eq!(self.doubled, []);
    }

    /// Each event in the order of its chat. A repeat follows its event, because a chat's next event waits for a settlement.
    #[track_caller]
    pub fn assert_at_least_once(&self) {
        assert!(self.events > 0);
        assert_eq!(self.lost, []);
        assert_eq!(self.disordered, []);
        assert_eq!(self.doubled_later, []);
    }
}

struct Program {
    dir: TempDir,
    port: u16,
    settings: Vec<(&'static str, String)>,
    path: PathBuf,
    process: Option<Process>,
}

impl Program {
    fn new<O: Output>(output: &O) -> Self {
        let [port] = free_ports();
        let mut program = Self {
            dir: TempDir::new().unwrap(),
            port,
            settings: output.settings(),
            path: O::PROGRAM.into(),
            process: None,
        };
        program.start();
        program
    }

    fn start(&mut self) {
        let mut command = Command::new(&self.path);
        command.envs(self.settings.iter().cloned());
        command.env("WEBHOOK_SECRET", SECRET);
        command.env("WEBHOOK_INBOX", self.inbox());
        command.env("LISTEN", format!("127.0.0.1:{}", self.port));
        let process = Process::start(&mut command, "program", self.dir.path(), "cargo build");
        self.process = Some(process);
    }

    /// Starts it again, at once, as a supervisor does.
    fn kill(&mut self) {
        self.process = None;
        self.start();
    }

    fn inbox(&self) -> PathBuf {
        self.dir.path().join("webhooks.db")
    }
}

/// Whether the chats send.
#[derive(Default)]
struct Load {
    has_ended: AtomicBool,
    /// While so many events are unsettled that more would only take time.
    is_full: AtomicBool,
}

impl Load {
    /// Sends events of a chat from this number on, until the load ends, and returns the number of the next one. Some are
    /// sent twice.
    async fn chat(self: Arc<Self>, chat: usize, mut number: usize, port: u16) -> usize {
        let (client, secret) = (Client::new(), Secret::new(SECRET).unwrap());
        while !self.has_ended.load(Ordering::SeqCst) {
            if !self.is_full.load(Ordering::SeqCst) {
                let event = Event { chat, number };
                for _ in 0..1 + usize::from(fastrand::u8(..10) == 0) {
                    while !deliver(&client, &secret, port, event).await {
                        sleep(AGAIN).await;
                    }
                }
                number += 1;
            }
            sleep(PAUSE).await;
        }
        number
    }

    async fn watch(self: Arc<Self>, inbox: Inbox) {
        while !self.has_ended.load(Ordering::SeqCst) {
            let stats = inbox.stats().await.unwrap();
            self.is_full
                .store(stats.unsettled() > FULL, Ordering::SeqCst);
            sleep(PAUSE).await;
        }
    }
}

async fn deliver(client: &Client, secret: &Secret, port: u16, event: Event) -> bool {
    let body = event.body();
    let request = client
        .post(format!("http://127.0.0.1:{port}/webhooks"))
        .timeout(Duration::from_secs(5))
        .header("content-type", "application/json")
        .header("x-service-event", "chat-rated")
        .header("idempotency-key", event.key())
        .header("x-service-hmac-sha256", secret.sign(body.as_bytes()))
        .body(body);
    request.send().await.is_ok_and(|it| it.status() == 200)
}

/// What was seen of a kill: how long it took until an event was handled that was accepted after it, and until all were.
struct Round {
    killed: Killed,
    flows: Duration,
    all: Duration,
}

/// Kills the program and its output in turn, under load, and compares what the output has with what was sent.
pub async fn survive<O: Output>(output: O) -> Found {
    let kills = std::env::var("OUTPUT_KILLS").map_or(3, |kills| kills.parse().unwrap());
    let mut program = Program::new(&output);
    let process = program.process.as_mut().unwrap();
    process.listens(program.port).await;
    let mut place = Place {
        inbox: Inbox::new(SqliteQueue::open(program.inbox()).unwrap()),
        output,
        program,
        sent: [0; CHATS],
    };
    let mut rounds = Vec::new();
    for killed in O::KILLS.iter().cycle().take(kills) {
        rounds.push(place.round(*killed).await);
    }
    let had = place.output.read(place.sent.iter().sum()).await;
    let found = Found::judge(&place.sent, &had);
    let name = Path::new(O::PROGRAM).file_name().unwrap().display();
    println!("\n{}", summary(&name.to_string(), &rounds, &found));
    found
}

struct Place<O> {
    output: O,
    program: Program,
    inbox: Inbox,
    /// How many events each chat has sent.
    sent: [usize; CHATS],
}

impl<O: Output> Place<O> {
    async fn round(&mut self, killed: Killed) -> Round {
        let load = Arc::new(Load::default());
        tokio::spawn(Arc::clone(&load).watch(self.inbox.clone()));
        let mut chats = Vec::new();
        for (chat, number) in self.sent.iter().enumerate() {
            let sending = Arc::clone(&load).chat(chat, *number, self.program.port);
            chats.push(tokio::spawn(sending));
        }
        sleep(Duration::from_millis(fastrand::u64(500..1500))).await;

        // First, because the mock of Kafka aborts if it goes down while it ends the connections of a killed program.
        if killed != Killed::Program {
            self.output.kill().await;
        }
        if killed != Killed::Output {
            self.program.kill();
        }
        let began = Instant::now();
        let before = self.newest(&Filter::default()).await;
        let handled = Filter::default().states([EventState::Handled]);
        eventually("the next event", async || {
            (self.newest(&handled).await > before).then_some(())
        })
        .await;
        let flows = began.elapsed();
        load.has_ended.store(true, Ordering::SeqCst);
        for (chat, sent) in chats.into_iter().zip(&mut self.sent) {
            *sent = chat.await.unwrap();
        }
        self.output.mend().await;
        eventually("the last event", async || {
            let stats = self.inbox.stats().await.unwrap();
            assert_eq!(stats.dead(), 0);
            (stats.unsettled() == 0).then_some(())
        })
        .await;
        let all = began.elapsed();
        Round { killed, flows, all }
    }

    async fn newest(&self, filter: &Filter) -> EventId {
        let listed = self.inbox.list(filter, Page::newest(1)).await.unwrap();
        listed.events.first().map_or(EventId(0), |event| event.id)
    }
}

/// What was seen, as one text, because other tests print at the same time.
fn summary(output: &str, rounds: &[Round], found: &Found) -> String {
    let mut text = format!(
        "{output}: {} kills, {} events: {} lost, {} doubled at once, {} later, {} out of order\n",
        rounds.len(),
        found.events,
        found.lost.len(),
        found.doubled.len(),
        found.doubled_later.len(),
        found.disordered.len(),
    );
    for killed in ALL {
        let of = rounds.iter().filter(|it| it.killed == *killed);
        let mut flows: Vec<_> = of.clone().map(|it| it.flows).collect();
        flows.sort();
        if let (Some(median), Some(last)) = (flows.get(flows.len() / 2), flows.last()) {
            text += &format!(
                "  {killed:?} killed {} times: events flow again after {median:.1?} (at most {last:.1?}), and all are handled \
                 after at most {:.1?}\n",
                flows.len(),
                of.map(|it| it.all).max().unwrap(),
            );
        }
    }
    text
}

#[test]
fn faults_are_found() {
    let event = |chat, number| Event { chat, number };
    let mut sent = [0; CHATS];
    (sent[0], sent[1]) = (4, 3);
    let had = [
        event(0, 0),
        event(1, 0),
        event(0, 0),
        event(1, 2),
        event(0, 1),
        event(1, 1),
        event(0, 2),
        event(0, 1),
        event(1, 3),
    ];
    let found = Found {
        events: 7,
        lost: vec![event(0, 3)],
        doubled: vec![event(0, 0)],
        doubled_later: vec![event(0, 1)],
        disordered: vec![event(1, 1), event(1, 3)],
    };
    assert_eq!(Found::judge(&sent, &had), found);
}
