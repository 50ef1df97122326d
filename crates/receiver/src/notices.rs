//! Commands that are run when something needs a person, for whoever has no Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::sleep;
use tower_webhook::event::EventKind;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use tower_webhook::inbox::Inbox;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
use tower_webhook::spool::Spooled;
use tower_webhook::telemetry::{End, FailureBudget, Observation, Observer, Silence, Spent};
use tower_webhook::{EventType, RouteName};

use crate::args::Options;
use crate::exec::Exec;

/// How many dead letters a command gets at most.
const MOST: usize = 100;

/// The interval at which alarms are looked for.
const LOOK: Duration = Duration::from_secs(5);

/// The interval at which events are looked for that wait for long, which costs the database more.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
const LOOK_AT_EVENTS: Duration = Duration::from_secs(60);

/// What was seen and is not told yet.
#[derive(Default)]
pub(crate) struct Notices {
    dead: Mutex<Dead>,
    has_dead: Notify,
    slowed: Mutex<BTreeSet<EventType>>,
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    inboxes: Mutex<Vec<Inbox>>,
    /// The types of which an event waits for long, and the seconds of the oldest.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    waiting: Mutex<BTreeMap<EventType, u64>>,
    #[cfg(all(feature = "postgres", feature = "sqlite"))]
    spool: std::sync::OnceLock<Spooled>,
}

/// As in the alerts for Prometheus.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
const OLDEST_WAITING: Duration = Duration::from_secs(4 * 60);
#[cfg(all(feature = "postgres", feature = "sqlite"))]
const SPOOL_FULL_IN: Duration = Duration::from_secs(40 * 60);
#[cfg(all(feature = "postgres", feature = "sqlite"))]
const SPOOL_FLUSHED_WITHIN: Duration = Duration::from_secs(10 * 60);

#[derive(Default)]
struct Dead {
    count: u64,
    events: Vec<Value>,
}

/// What a command of `--on-alarm` is told of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Alarm {
    CannotClaim,
    FailureBudget,
    Silent,
    Slowed,
    SpoolFull,
    SpoolNotFlushed,
    UnverifiedRequests,
    Waiting,
}

/// How a command is run.
#[derive(Clone, Copy)]
struct Pace {
    /// At most once in this time.
    every: Duration,
    limit: Duration,
}

impl Notices {
    /// Returns an observer, and runs the commands that the options have.
    pub(crate) fn start(args: &Options, budget: &FailureBudget, silence: &Silence) -> Arc<Self> {
        let this = Arc::new(Self::default());
        let pace = Pace {
            every: Duration::from_secs(args.monitoring.notify_every.into()),
            limit: Duration::from_secs(args.handling.handler_timeout),
        };
        if let Some(command) = args.monitoring.on_dead.clone() {
            tokio::spawn(Arc::clone(&this).tell_of_dead(Exec::new(command), pace));
        }
        if let Some(command) = args.monitoring.on_alarm.clone() {
            let (budget, silence) = (budget.clone(), silence.clone());
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            tokio::spawn(Arc::clone(&this).look_at_events());
            let this = Arc::clone(&this);
            tokio::spawn(this.tell_of_alarms(Exec::new(command), pace, budget, silence));
        }
        this
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn watch_inbox(&self, inbox: Inbox) {
        lock(&self.inboxes).push(inbox);
    }

    #[cfg(all(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn watch_spool(&self, spool: Spooled) {
        // There is at most one.
        let _ = self.spool.set(spool);
    }

    async fn tell_of_dead(self: Arc<Self>, exec: Exec, pace: Pace) {
        loop {
            self.has_dead.notified().await;
            let Dead { count, events } = std::mem::take(&mut *lock(&self.dead));
            let notice = json!({ "dead_letters": count, "events": events });
            pace.tell("--on-dead", &exec, &notice).await;
        }
    }

    async fn tell_of_alarms(
        self: Arc<Self>,
        exec: Exec,
        pace: Pace,
        budget: FailureBudget,
        silence: Silence,
    ) {
        let mut told = BTreeMap::new();
        loop {
            sleep(LOOK.min(pace.every)).await;
            let alarms = self.alarms(&budget, &silence);
            let severities: BTreeMap<_, _> = alarms
                .iter()
                .map(|(name, alarm)| (name.clone(), alarm["severity"].clone()))
                .collect();
            if severities == told {
                continue;
            }
            let ended = told.keys().filter(|name| !alarms.contains_key(*name));
            let ended: Vec<_> = ended.map(described).collect();
            let alarms: Vec<_> = alarms.values().collect();
            let notice = json!({ "alarms": alarms, "ended": ended });
            told = severities;
            pace.tell("--on-alarm", &exec, &notice).await;
        }
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    async fn look_at_events(self: Arc<Self>) {
        loop {
            sleep(LOOK_AT_EVENTS).await;
            let inboxes = lock(&self.inboxes).clone();
            let stats = join_all(inboxes.iter().map(Inbox::stats)).await;
            // While a database is away, what was seen last counts.
            let Ok(stats) = stats.into_iter().collect::<Result<Vec<_>, _>>() else {
                continue;
            };
            let mut waiting = BTreeMap::new();
            for stats in &stats {
                for kind in stats.kinds.iter().filter(|kind| !kind.is_paused) {
                    let age = stats.age(kind).filter(|age| *age >= OLDEST_WAITING);
                    waiting.extend(age.map(|age| (kind.event_type(), age.as_secs())));
                }
            }
            *lock(&self.waiting) = waiting;
        }
    }

    /// The alarms of now.
    fn alarms(&self, budget: &FailureBudget, silence: &Silence) -> BTreeMap<Name, Value> {
        let mut alarms = BTreeMap::new();
        let mut add = |name: Name, of: Value| {
            let mut alarm = described(&name);
            if let (Some(alarm), Value::Object(of)) = (alarm.as_object_mut(), of) {
                alarm.extend(of);
            }
            alarms.insert(name, alarm);
        };
        for spent in budget.spent().iter().filter(|spent| spent.share() >= 0.2) {
            let name = match spent.kind {
                Some(_) => Alarm::FailureBudget,
                None => Alarm::UnverifiedRequests,
            };
            let (route, kind) = (spent.route.clone(), spent.kind.clone());
            add((name, Some(route), kind), of_budget(spent));
        }
        for silent in silence.silent() {
            let quiet = silent.quiet_for.as_secs();
            let of = json!({ "severity": "critical", "quiet_seconds": quiet });
            add((Alarm::Silent, Some(silent.route), Some(silent.kind)), of);
        }
        for of in &*lock(&self.slowed) {
            let name = (Alarm::Slowed, Some(of.route.clone()), Some(of.kind.clone()));
            add(name, json!({ "severity": "critical" }));
        }
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        for (of, oldest) in &*lock(&self.waiting) {
            let name = (
                Alarm::Waiting,
                Some(of.route.clone()),
                Some(of.kind.clone()),
            );
            add(
                name,
                json!({ "severity": "warning", "oldest_seconds": oldest }),
            );
        }
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        if !lock(&self.inboxes).iter().all(Inbox::can_claim) {
            add(
                (Alarm::CannotClaim, None, None),
                json!({ "severity": "critical" }),
            );
        }
        #[cfg(all(feature = "postgres", feature = "sqlite"))]
        if let Some(status) = self.spool.get().map(Spooled::status) {
            let of = json!({
                "severity": "critical",
                "events": status.events,
                "full_in_seconds": status.full_in.map(|left| left.as_secs()),
            });
            let is_soon_full = status.full_in.is_some_and(|left| left < SPOOL_FULL_IN)
                || status.bytes > status.limit / 10 * 9;
            // Between two measurements, the bytes are estimated: an empty file is not nearly full.
            if is_soon_full && status.events > 0 {
                add((Alarm::SpoolFull, None, None), of.clone());
            }
            if status.oldest > Some(SPOOL_FLUSHED_WITHIN) {
                add((Alarm::SpoolNotFlushed, None, None), of);
            }
        }
        alarms
    }
}

/// The name of an alarm, and its route and kind.
type Name = (Alarm, Option<RouteName>, Option<EventKind>);

fn described((name, route, kind): &Name) -> Value {
    let (route, kind) = (route.as_ref(), kind.as_ref());
    let name = name.to_possible_value();
    let name = name.as_ref().map(PossibleValue::get_name);
    json!({ "alarm": name, "route": route.map(RouteName::as_str), "kind": kind.map(EventKind::as_str) })
}

fn of_budget(spent: &Spent) -> Value {
    let severity = match spent.share() {
        0.5.. => "critical",
        _ => "warning",
    };
    json!({
        "severity": severity,
        "failures": spent.failures,
        "limit": spent.limit,
        "disabled_in_seconds": spent.disabled_in.map(|left| left.as_secs()),
    })
}

impl Pace {
    /// Runs a command, and waits until it may run again.
    async fn tell(self, option: &str, exec: &Exec, notice: &Value) {
        let line = format!("{notice}\n");
        let next = tokio::time::Instant::now() + self.every;
        if let Err(reason) = exec.tell(&line, self.limit).await {
            tracing::error!(
                reason,
                "the command of `{option}` failed; it is not run again for this"
            );
        }
        tokio::time::sleep_until(next).await;
    }
}

impl Observer for Notices {
    fn observe(&self, observation: &Observation<'_>) {
        let (route, kind, event, outcome, reason) = match observation {
            Observation::Attempt(ended) => match (ended.end(), ended.failure()) {
                (Some(End::Dead), Some(it)) => (
                    ended.route,
                    ended.kind,
                    ended.event,
                    &*it.outcome,
                    &*it.reason,
                ),
                _ => return,
            },
            Observation::AcceptedDead {
                route,
                kind,
                event,
                reason,
            } => (*route, *kind, Some(*event), "undecodable", *reason),
            Observation::Slowed {
                route,
                kind,
                is_slowed,
            } => {
                let of = EventType::new((*route).clone(), (*kind).clone());
                let mut slowed = lock(&self.slowed);
                match is_slowed {
                    true => slowed.insert(of),
                    false => slowed.remove(&of),
                };
                return;
            }
            _ => return,
        };
        let mut dead = lock(&self.dead);
        dead.count += 1;
        if dead.events.len() < MOST {
            dead.events.push(json!({
                "event": event, "route": route.as_str(), "kind": kind.as_str(), "outcome": outcome, "reason": reason,
            }));
        }
        drop(dead);
        self.has_dead.notify_one();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;

    #[test]
    fn the_help_names_each_alarm() {
        let command = Options::augment_args(clap::Command::new("run"));
        let mut all = command.get_arguments();
        let option = all.find(|it| it.get_long() == Some("on-alarm"));
        let help = option
            .and_then(|it| it.get_long_help())
            .unwrap()
            .to_string();
        for alarm in Alarm::value_variants() {
            let name = alarm.to_possible_value().unwrap();
            let name = name.get_name();
            assert!(help.contains(&format!("`{name}`")), "{name}: {help}");
        }
        for field in ["oldest_seconds", "quiet_seconds", "full_in_seconds"] {
            assert!(help.contains(&format!("`{field}`")), "{field}: {help}");
        }
    }
}
