//! Measures contestants in turns, so that noise on the machine does not affect only one of them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::child::Receiver;
use crate::load::{Deliveries, Load, Pace, Sample};
use crate::machine::Cores;
use crate::report::{Spread, Table, Verdicts};

/// The effort of a measurement, and the cores that it uses.
pub(crate) struct Effort {
    pub(crate) rounds: u64,
    pub(crate) time: Duration,
    pub(crate) keys: u64,
    pub(crate) capacity: u64,
    pub(crate) server_cores: Cores,
    pub(crate) load_cores: Cores,
    pub(crate) directory: PathBuf,
}

impl Effort {
    pub(crate) fn start(&self, what: &str) -> Result<Receiver> {
        Receiver::start(what, &self.server_cores)
    }

    pub(crate) fn connect(&self, receiver: &Receiver, connections: usize) -> Result<Load> {
        Load::connect(receiver.address(), connections, &self.load_cores)
    }

    /// Warms up, measures with new connections, and reads the processor time of both sides.
    pub(crate) fn measure(
        &self,
        receiver: &Receiver,
        deliveries: &Deliveries,
        connections: usize,
        pace: Pace,
    ) -> Result<Measured> {
        let mut load = self.connect(receiver, connections)?;
        load.run(deliveries, Pace::ClosedFor(self.time / 5))?;
        receiver.settle()?;
        let before = receiver.cpu()?;
        let mut sample = load.run(deliveries, pace)?;
        sample.time += receiver.settle()?.0;
        let cpu = receiver.cpu()? - before;
        Ok(Measured::new(&sample, cpu, self))
    }
}

/// The measurement of one contestant in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Answers per second.
    pub(crate) rate: f64,
    // Microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    /// How late the load generator was with all but a thousandth of its requests, in microseconds.
    pub(crate) late: f64,
    /// Microseconds of processor time per answer.
    pub(crate) cpu: f64,
    // The share of the time in which the cores of each side were busy.
    pub(crate) receiver_busy: f64,
    pub(crate) load_busy: f64,
}

impl Measured {
    fn new(sample: &Sample, cpu: Duration, effort: &Effort) -> Self {
        let at = |times: &[u64], quantile: f64| {
            let at = (times.len() as f64 * quantile) as usize;
            let time = times.get(at).or(times.last()).copied();
            time.unwrap_or(0) as f64 / 1e3
        };
        let busy = |cpu: Duration, cores: &Cores| {
            cpu.as_secs_f64() / sample.time.as_secs_f64() / cores.len() as f64
        };
        Self {
            rate: sample.rate(),
            p50: at(&sample.latencies, 0.5),
            p99: at(&sample.latencies, 0.99),
            p999: at(&sample.latencies, 0.999),
            max: at(&sample.latencies, 1.0),
            late: at(&sample.delays, 0.999),
            cpu: cpu.as_secs_f64() * 1e6 / sample.answers as f64,
            receiver_busy: busy(cpu, &effort.server_cores),
            load_busy: busy(sample.cpu, &effort.load_cores),
        }
    }
}

/// A receiver and the deliveries that are sent to it.
pub(crate) struct Contestant<'a> {
    pub(crate) name: &'a str,
    pub(crate) receiver: &'a Receiver,
    pub(crate) deliveries: Deliveries,
}

impl<'a> Contestant<'a> {
    /// Sends deliveries with new keys.
    pub(crate) fn unique(name: &'a str, receiver: &'a Receiver) -> Self {
        Self {
            name,
            receiver,
            deliveries: Deliveries::unique(),
        }
    }
}

/// Contestants and their measurements.
pub(crate) struct Contest<'a> {
    contestants: Vec<Contestant<'a>>,
    connections: usize,
    rounds: Vec<Vec<Measured>>,
}

impl<'a> Contest<'a> {
    pub(crate) fn of(
        contestants: impl IntoIterator<Item = Contestant<'a>>,
        connections: usize,
    ) -> Self {
        let contestants: Vec<_> = contestants.into_iter().collect();
        Self {
            rounds: vec![Vec::new(); contestants.len()],
            contestants,
            connections,
        }
    }

    /// Measures all, one after the other. Every other round is in reverse order, so that no contestant
    /// always follows the same one.
    pub(crate) fn round(&mut self, effort: &Effort, pace: Pace) -> Result<()> {
        let mut order: Vec<_> = (0..self.contestants.len()).collect();
        if self.rounds[0].len() % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let Contestant {
                name,
                receiver,
                deliveries,
            } = &self.contestants[at];
            let measured = effort
                .measure(receiver, deliveries, self.connections, pace)
                .with_context(|| format!("`{name}` failed"))?;
            self.rounds[at].push(measured);
        }
        Ok(())
    }

    pub(crate) fn rounds(&mut self, effort: &Effort, pace: Pace) -> Result<()> {
        (0..effort.rounds).try_for_each(|_| self.round(effort, pace))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &'a str> {
        self.contestants.iter().map(|of| of.name)
    }

    pub(crate) fn spread(&self, name: &str, what: impl Fn(&Measured) -> f64) -> Spread {
        Spread::of(self.measured(name).iter().map(what))
    }

    /// Compares round by round, so that noise that lasts longer than a round cancels out.
    pub(crate) fn ratio(
        &self,
        name: &str,
        control: &str,
        what: impl Fn(&Measured) -> f64,
    ) -> Spread {
        let both = self.measured(name).iter().zip(self.measured(control));
        Spread::of(both.map(|(measured, control)| what(measured) / what(control)))
    }

    /// Returns how many deliveries were sent to a contestant.
    #[allow(dead_code)] // The benchmark `inbox` uses it.
    pub(crate) fn sent(&self, name: &str) -> u64 {
        let contestant = self.contestants.iter().find(|of| of.name == name);
        contestant.map_or(0, |of| of.deliveries.sent())
    }

    /// Returns the measurements of a contestant, round by round.
    pub(crate) fn measured(&self, name: &str) -> &[Measured] {
        let at = self.all().position(|other| other == name);
        at.map_or(&[], |at| &self.rounds[at])
    }

    /// Returns a table of speeds and ratios to `controls`.
    pub(crate) fn table(&self, controls: &[&str]) -> Table {
        let ratios = controls.iter().map(|control| format!("of {control}"));
        let head = ["", "events/s"].map(str::to_owned).into_iter();
        let costs = ["p50 µs", "p99 µs", "CPU µs", "receiver busy", "load busy"];
        let mut table = Table::new(head.chain(ratios).chain(costs.map(str::to_owned)));
        for name in self.all() {
            let mut row = vec![name.to_owned(), self.spread(name, |of| of.rate).show(0)];
            for control in controls {
                row.push(self.ratio(name, control, |of| of.rate).show(2));
            }
            let median = |what: fn(&Measured) -> f64, digits| {
                format!("{:.digits$}", self.spread(name, what).median)
            };
            row.push(median(|of| of.p50, 0));
            row.push(median(|of| of.p99, 0));
            row.push(median(|of| of.cpu, 2));
            row.push(median(|of| of.receiver_busy * 100.0, 0) + " %");
            row.push(median(|of| of.load_busy * 100.0, 0) + " %");
            table.row(row);
        }
        table
    }

    /// Reports contestants whose speed may not be their own.
    pub(crate) fn doubt(&self, verdicts: &mut Verdicts) {
        const ENOUGH: f64 = 0.93;
        for name in self.all() {
            let busy = |what: fn(&Measured) -> f64| self.spread(name, what).median;
            let (receiver, load) = (busy(|of| of.receiver_busy), busy(|of| of.load_busy));
            if receiver < ENOUGH {
                let why = match load < ENOUGH {
                    true => "other processes run on these cores",
                    false => "the load generator is the bottleneck",
                };
                let [receiver, load] = [receiver, load].map(|busy| busy * 100.0);
                verdicts.doubt(&format!(
                    "`{name}` had {receiver:.0} % of its core, the load {load:.0} %: {why}"
                ));
            }
        }
    }
}
