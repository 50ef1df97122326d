//! Measures those that verify the same deliveries in turns, and prints a table.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use nix::time::{ClockId, clock_gettime};

use super::Delivery;

#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) deliveries: usize,
}

impl Effort {
    pub(crate) const FULL: Self = Self {
        rounds: 25,
        deliveries: 1_000,
    };
    pub(crate) const SMOKE: Self = Self {
        rounds: 1,
        deliveries: 1,
    };
}

/// Returns how many of these are accepted.
pub(crate) type Verify = Box<dyn Fn(Vec<Request<Bytes>>) -> usize>;

struct Contestant {
    name: &'static str,
    verify: Verify,
    /// For each delivery, one for each round.
    nanoseconds: Vec<f64>,
}

impl Contestant {
    fn new(name: &'static str, verify: Verify) -> Self {
        Self {
            name,
            verify,
            nanoseconds: Vec::new(),
        }
    }

    /// Few deliveries at a time, so that they stay in the processor's caches, as in a server.
    fn measure(&mut self, genuine: &Request<Bytes>, deliveries: usize) {
        const BATCH: usize = 50;
        let mut nanoseconds = 0;
        let mut left = deliveries;
        while left > 0 {
            let requests = vec![genuine.clone(); left.min(BATCH)];
            left -= requests.len();
            let count = requests.len();
            let started = processor_time();
            let accepted = (self.verify)(requests);
            nanoseconds += (processor_time() - started).as_nanos();
            assert_eq!(accepted, count, "{}", self.name);
        }
        self.nanoseconds
            .push(nanoseconds as f64 / deliveries as f64);
    }
}

/// That of this thread, which is all that verification takes: other programs do not add to it.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("a clock of every thread").into()
}

/// The deliveries of a sender, and those that verify them: the first two are of this crate.
pub(crate) struct Row {
    pub(crate) sender: String,
    algorithm: String,
    delivery: Delivery,
    contestants: Vec<Contestant>,
}

impl Row {
    /// Of this crate: the verdict alone, and all that the layer does.
    pub(crate) fn new(
        sender: &str,
        algorithm: String,
        delivery: Delivery,
        [verdict, layer]: [Verify; 2],
    ) -> Self {
        let contestants = [("this crate", verdict), ("`SignatureLayer`", layer)];
        let contestants = contestants.map(|(name, verify)| Contestant::new(name, verify));
        Self {
            sender: sender.to_owned(),
            algorithm,
            delivery,
            contestants: contestants.into(),
        }
    }

    #[must_use]
    pub(crate) fn beside(mut self, name: &'static str, verify: Verify) -> Self {
        self.contestants.push(Contestant::new(name, verify));
        self
    }

    /// Each accepts a genuine delivery, and refuses a changed one.
    pub(crate) fn check(&self) {
        for it in &self.contestants {
            let Delivery { genuine, changed } = self.delivery.clone();
            assert_eq!(genuine.body().len(), super::BODY);
            let accepted = [genuine, changed].map(|request| (it.verify)(vec![request]));
            assert_eq!(accepted, [1, 0], "{}: {}", self.sender, it.name);
        }
    }

    pub(crate) fn measure(&mut self, effort: Effort) {
        for round in 0..effort.rounds {
            let count = self.contestants.len();
            for turn in 0..count {
                let it = &mut self.contestants[(round + turn) % count];
                it.measure(&self.delivery.genuine, effort.deliveries);
            }
        }
    }
}

pub(crate) fn print(rows: &[Row]) {
    println!("| sender | signature | this crate | its layer | beside | µs | ratio |");
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let (ours, peers) = (&row.contestants[0], &row.contestants[2..]);
        let [own, layer] = [0, 1].map(|at| micros(&row.contestants[at]));
        let mut cells = format!("{} | {} | {own} | {layer}", row.sender, row.algorithm);
        if peers.is_empty() {
            println!("| {cells} | – | | |");
        }
        for peer in peers {
            // Round by round, so that noise that lasts longer than a round cancels out.
            let rounds = ours.nanoseconds.iter().zip(&peer.nanoseconds);
            let ratio = median(rounds.map(|(own, its)| own / its));
            let (name, its) = (peer.name, micros(peer));
            println!("| {cells} | {name} | {its} | {ratio:.2} |");
            cells = " | | | ".to_owned();
        }
    }
}

fn micros(it: &Contestant) -> String {
    format!("{:.2}", median(it.nanoseconds.iter().copied()) / 1000.0)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
