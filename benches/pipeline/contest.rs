//! Measures contestants in turns, so that noise on the machine does not affect only one of them.

use std::fmt::Debug;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use allocation_counter::{measure, opt_out};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::runtime::{Builder, Runtime};
use tower::{Service, ServiceExt};

use super::deliveries::Deliveries;

#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) requests: u64,
    pub(crate) large_requests: u64,
}

impl Effort {
    pub(crate) const FULL: Self = Self {
        rounds: 15,
        requests: 10_000,
        large_requests: 50,
    };
    pub(crate) const SMOKE: Self = Self {
        rounds: 1,
        requests: 2,
        large_requests: 2,
    };
}

/// Contestants that answer the same number of requests in each round.
pub(crate) struct Contest {
    title: String,
    requests: u64,
    runtime: Rc<Runtime>,
    entries: Vec<Entry>,
    results: Vec<Outcome>,
}

struct Entry {
    name: &'static str,
    prepare: Box<dyn Fn(Range<u64>) -> Serve>,
}

/// Serves prepared requests.
type Serve = Box<dyn FnOnce()>;

impl Entry {
    fn count_allocations(&self, numbers: Range<u64>) -> u64 {
        measure((self.prepare)(numbers)).count_total
    }

    /// Few requests at a time, so that they stay in the processor's caches, as in a server.
    fn time(&self, numbers: Range<u64>) -> Duration {
        let batches = numbers.clone().step_by(BATCH as usize);
        batches
            .map(|first| {
                let serve = (self.prepare)(first..numbers.end.min(first + BATCH));
                let started = Instant::now();
                opt_out(serve);
                started.elapsed()
            })
            .sum()
    }
}

const BATCH: u64 = 50;

impl Contest {
    pub(crate) fn new(what: &str, bytes: usize, requests: u64) -> Self {
        let runtime = Builder::new_current_thread().enable_time().build();
        Self {
            title: format!("{what} of {bytes} bytes"),
            requests,
            runtime: Rc::new(runtime.expect("a runtime without I/O")),
            entries: Vec::new(),
            results: Vec::new(),
        }
    }

    pub(crate) fn enter<S, R>(&mut self, name: &'static str, service: S, deliveries: &Deliveries)
    where
        S: Service<Request<Full<Bytes>>, Response = Response<R>, Error: Debug> + Clone + 'static,
    {
        let runtime = Rc::clone(&self.runtime);
        let deliveries = deliveries.clone();
        let expected = deliveries.status;
        let prepare = move |numbers: Range<u64>| -> Serve {
            let requests: Vec<_> = numbers.map(|at| deliveries.request(at)).collect();
            let (runtime, service) = (Rc::clone(&runtime), service.clone());
            Box::new(move || {
                runtime.block_on(async {
                    for request in requests {
                        // A server clones the service of a connection for each request.
                        let response = service.clone().oneshot(request).await;
                        assert_eq!(response.expect("an answer").status(), expected);
                    }
                });
            })
        };
        self.entries.push(Entry {
            name,
            prepare: Box::new(prepare),
        });
    }

    /// Counts allocations in a first round, measures time in the others, and prints both, with
    /// ratios to the times of `controls`.
    pub(crate) fn run(&mut self, rounds: usize, controls: &[&str]) {
        let mut numbers = 0..self.requests;
        let mut results: Vec<_> = self
            .entries
            .iter()
            .map(|entry| Outcome {
                name: entry.name,
                allocations: self.each(entry.count_allocations(numbers.clone())),
                nanoseconds: Vec::new(),
            })
            .collect();

        for _ in 0..rounds {
            numbers = numbers.end..numbers.end + self.requests;
            for (entry, result) in self.entries.iter().zip(&mut results) {
                let time = entry.time(numbers.clone());
                result.nanoseconds.push(self.each(time.as_nanos() as u64));
            }
        }
        println!("\n{}, {rounds} rounds of {}\n", self.title, self.requests);
        print(&results, controls);
        self.results = results;
    }

    /// Prints the cost of one above another, round by round.
    pub(crate) fn compare(&self, one: &str, other: &str) {
        let result = |name| self.results.iter().find(|result| result.name == name);
        let (Some(a), Some(b)) = (result(one), result(other)) else {
            return;
        };
        let rounds = a.nanoseconds.iter().zip(&b.nanoseconds);
        let [least, median, most] = spread(rounds.map(|(a, b)| a - b));
        let allocations = a.allocations - b.allocations;
        println!(
            "\n*{one}* takes {median:.0} ns ({least:.0} to {most:.0}) and {allocations:.1} allocations \
             more than *{other}*."
        );
    }

    fn each(&self, total: u64) -> f64 {
        total as f64 / self.requests as f64
    }
}

struct Outcome {
    name: &'static str,
    allocations: f64,
    /// Per request, one for each round.
    nanoseconds: Vec<f64>,
}

impl Outcome {
    /// Compares round by round, so that noise that lasts longer than a round cancels out.
    fn ratio(&self, control: &Self) -> f64 {
        let rounds = self.nanoseconds.iter().zip(&control.nanoseconds);
        let [_, median, _] = spread(rounds.map(|(time, control)| time / control));
        median
    }
}

/// Minimum, median and maximum.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [0, values.len() / 2, values.len() - 1].map(|at| values[at])
}

fn print(results: &[Outcome], controls: &[&str]) {
    let row = |cells: Vec<String>| {
        let (name, numbers) = (&cells[0], &cells[1..]);
        let numbers: Vec<_> = numbers.iter().map(|cell| format!("{cell:>11}")).collect();
        println!("| {name:24} | {} |", numbers.join(" | "));
    };

    let head = ["ns, median", "fastest", "slowest", "allocations"].map(str::to_owned);
    let ratios = controls.iter().map(|control| format!("of {control}"));
    row([String::new()]
        .into_iter()
        .chain(head)
        .chain(ratios)
        .collect());
    row(vec!["---".to_owned(); 5 + controls.len()]);

    for result in results {
        let [fastest, median, slowest] = spread(result.nanoseconds.iter().copied());
        let times = [median, fastest, slowest].map(|time| format!("{time:.0}"));
        let ratios = results
            .iter()
            .filter(|other| controls.contains(&other.name))
            .map(|control| format!("{:.2}", result.ratio(control)));
        let name = result.name.to_owned();
        let allocations = format!("{:.1}", result.allocations);
        row([name]
            .into_iter()
            .chain(times)
            .chain([allocations])
            .chain(ratios)
            .collect());
    }
}
