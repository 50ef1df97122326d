//! Chats that send their events one after another to three receivers, and a handler that notes each attempt.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::State;
use tokio::time::{sleep, timeout};

use super::lock;
use super::net::{status, whole};

pub const RECEIVERS: usize = 3;
pub const CHATS: usize = 12;
/// At least, between the answer to an event of a chat and its next event.
pub const PAUSE: Duration = Duration::from_millis(200);
/// Before a request without an answer is sent again.
pub const AGAIN: Duration = Duration::from_millis(50);
/// How long a receiver that lives may take to answer.
pub const LIMIT: Duration = Duration::from_secs(5);
/// For some events of each chat.
pub const SOME: Duration = Duration::from_millis(500);
/// What a receiver logs if the server lacks what it has accepted.
pub const LOST: &str = "the inbox has lost this event";

/// What was found wrong.
#[derive(Debug, Default)]
pub struct Found {
    pub lost: Vec<String>,
    pub doubled: Vec<String>,
    pub disordered: Vec<String>,
    /// Attempts that were made again.
    pub again: usize,
}

/// An attempt, in the order in which they began.
pub struct Mark {
    pub key: String,
    pub has_ended: bool,
}

/// What senders and handlers know.
#[derive(Default)]
pub struct World {
    /// Where a receiver is, unless it is about to end, and how often one has.
    pub receivers: [Mutex<(Option<SocketAddr>, usize)>; RECEIVERS],
    pub marks: Mutex<Vec<Mark>>,
    /// Whether handlers wait.
    pub is_held: AtomicBool,
    pub has_ended: AtomicBool,
    pub seen: Mutex<Seen>,
}

#[derive(Default)]
pub struct Seen {
    /// How long each answer took.
    pub answers: Vec<Duration>,
    pub broken: usize,
    pub slowest: Duration,
    /// Answers but 200, and requests that a living receiver did not answer.
    pub unexpected: Vec<String>,
    pub last_unexpected: Option<Instant>,
}

/// An event that was answered with 200.
pub struct Sent {
    pub key: String,
    pub by: usize,
    /// Whether another receiver may have accepted it, too.
    pub had_another: bool,
}

impl World {
    /// Sends events of a chat until the round has ended, with a pause after each answer.
    pub async fn chat(self: Arc<Self>, round: usize, chat: usize, pause: Duration) -> Vec<Sent> {
        let mut all = Vec::new();
        while !self.has_ended.load(Ordering::SeqCst) {
            let key = format!("{round}-{chat}-{}", all.len());
            all.push(self.deliver(chat, key).await);
            sleep(pause).await;
        }
        all
    }

    async fn deliver(&self, chat: usize, key: String) -> Sent {
        let body = format!(r#"{{"id":"chat-{chat}","text":"{key}"}}"#);
        let request = whole(&key, &body);
        let (mut by, mut had_another) = (chat % RECEIVERS, false);
        loop {
            let (address, life) = *lock(&self.receivers[by]);
            if let Some(address) = address {
                let asked = Instant::now();
                let answer = timeout(LIMIT, status(address, &request)).await;
                let mut seen = lock(&self.seen);
                let took = asked.elapsed();
                seen.slowest = seen.slowest.max(took);
                let mut unexpected = |what: String| {
                    seen.unexpected.push(what);
                    seen.last_unexpected = Some(Instant::now());
                };
                match answer {
                    Ok(Ok(200)) => {
                        seen.answers.push(took);
                        let sent = Sent {
                            key,
                            by,
                            had_another,
                        };
                        return sent;
                    }
                    Ok(Ok(status)) => {
                        unexpected(format!("{status} to {key}"));
                        seen.answers.push(took);
                    }
                    _ if lock(&self.receivers[by]).1 == life => {
                        unexpected(format!("no answer to {key}"));
                    }
                    _ => seen.broken += 1,
                }
                had_another = true;
            }
            by = (by + 1) % RECEIVERS;
            sleep(AGAIN).await;
        }
    }

    /// Compares what was sent with the attempts. `settled` are the keys that were known to be handled, with the number of
    /// attempts by then.
    pub fn judge(&self, settled: &HashMap<String, usize>, sent: &[Vec<Sent>]) -> Found {
        let mut found = Found::default();
        let marks = lock(&self.marks);
        // By key, the first and the last attempt.
        let mut attempts: HashMap<&str, (usize, usize)> = HashMap::new();
        let mut ended = HashSet::new();
        for (at, mark) in marks.iter().enumerate() {
            attempts.entry(&mark.key).or_insert((at, at)).1 = at;
            if mark.has_ended {
                ended.insert(&*mark.key);
            }
            if settled.get(&mark.key).is_some_and(|known| *known <= at) {
                let again = format!("{} was handled again after its settlement", mark.key);
                found.doubled.push(again);
            }
        }
        found.again = marks.len() - attempts.len();
        for chat in sent {
            let mut last = [None; RECEIVERS];
            for sent in chat {
                let Some((first_attempt, last_attempt)) = attempts.remove(&*sent.key) else {
                    found.lost.push(sent.key.clone());
                    continue;
                };
                if !ended.contains(&*sent.key) {
                    found.lost.push(sent.key.clone());
                }
                if !sent.had_another && last[sent.by] > Some(first_attempt) {
                    found.disordered.push(sent.key.clone());
                }
                last[sent.by] = last[sent.by].max(Some(last_attempt));
            }
        }
        let never_sent = attempts.keys().map(|key| format!("{key} was never sent"));
        found.doubled.extend(never_sent);
        found
    }
}

pub async fn handle(State(world): State<Arc<World>>, line: String) {
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let key = line["key"].as_str().unwrap().to_owned();
    let mark = {
        let mut marks = lock(&world.marks);
        let has_ended = false;
        marks.push(Mark { key, has_ended });
        marks.len() - 1
    };
    sleep(Duration::from_millis(5)).await;
    while world.is_held.load(Ordering::SeqCst) {
        sleep(Duration::from_millis(5)).await;
    }
    lock(&world.marks)[mark].has_ended = true;
}
