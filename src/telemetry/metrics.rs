//! Metrics through the `metrics` facade.

use std::time::SystemTime;

use metrics::{
    SharedString, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::budget::FailureBudget;
use super::gauges::label;
use super::labels::Kinds;
use super::observer::{AttemptEnded, CallEnded, DeliveryEnded, Observation, Observer};
use super::silence::Silence;
use crate::outcome::Settlement;

/// Records metrics through the [`metrics`] facade, for any exporter that the application installs. The
/// [table of metrics](crate::docs::metrics) lists them.
///
/// It is an [`Observer`]. Gauges that no observation changes, such as the failures of the last hour, are recorded by
/// methods called `record_metrics`, which the application calls before each scrape or every few seconds:
///
/// ```no_run
/// # use axum::{Router, routing::get};
/// # use tower_webhook::telemetry::{FailureBudget, Metrics};
/// # use tower_webhook::{EventRouter, Secret, Webhooks};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let events = EventRouter::new();
/// // Without buckets, this exporter renders summaries.
/// let prometheus = metrics_exporter_prometheus::PrometheusBuilder::new()
///     .set_buckets(&[0.001, 0.01, 0.1, 1.0, 10.0])?
///     .install_recorder()?;
/// let budget = FailureBudget::default();
/// let (webhooks, running) = Webhooks::new(Secret::from_env("WEBHOOK_SECRET")?)
///     .observer((Metrics::new(), budget.clone()))
///     .start(events)?;
/// let running = std::sync::Arc::new(running);
/// let recorded = running.clone();
///
/// let app = Router::new().route_service("/webhooks", webhooks).route(
///     "/metrics",
///     get(async move || {
///         budget.record_metrics();
///         let _ = recorded.record_metrics().await; // errors are also a metric
///         prometheus.render()
///     }),
/// );
/// # let _: Router = app;
/// # Ok(())
/// # }
/// ```
///
/// Call `run_upkeep` of the exporter's handle every few seconds, too.
///
/// The number of time series is bounded, whatever senders write: the kinds of requests that were not verified are not
/// used, and beyond 32 kinds that the platform does not document, all others are `other`.
#[derive(Debug)]
pub struct Metrics {
    kinds: Kinds,
}

const DELIVERIES: &str = "webhook_deliveries_total";
const DELIVERY_DURATION: &str = "webhook_delivery_duration_seconds";
const ATTEMPTS: &str = "webhook_attempts_total";
const ATTEMPT_DURATION: &str = "webhook_attempt_duration_seconds";
const START_DELAY: &str = "webhook_start_delay_seconds";
const DEAD_LETTERS: &str = "webhook_dead_letters_total";
const LEASES_LOST: &str = "webhook_leases_lost_total";
const DETACHED: &str = "webhook_detached_total";
const CALL_DURATION: &str = "webhook_call_duration_seconds";
const CALL_ERRORS: &str = "webhook_call_errors_total";
const TRIPPED: &str = "webhook_inbox_tripped";
const BUDGET_SPENT: &str = "webhook_failure_budget_spent";
const BUDGET_LIMIT: &str = "webhook_failure_budget_limit";
const UNVERIFIED: &str = "webhook_unverified_failures";
const SILENT: &str = "webhook_silent";
const LAST_DELIVERY: &str = "webhook_last_delivery_timestamp_seconds";
const EXPECTED: &str = "webhook_expected_within_seconds";
pub(crate) const BUFFERED: &str = "webhook_buffered_bytes";
pub(crate) const DETACHED_NOW: &str = "webhook_detached_runs";
#[cfg(feature = "moka")]
const EVICTIONS: &str = "webhook_evictions_total";
pub(crate) const WAITING: &str = "webhook_inbox_waiting";
pub(crate) const IN_PROGRESS: &str = "webhook_inbox_in_progress";
pub(crate) const RETRYING: &str = "webhook_inbox_retrying";
pub(crate) const DEAD: &str = "webhook_inbox_dead_letters";
pub(crate) const BLOCKED: &str = "webhook_inbox_blocked_lanes";
pub(crate) const OLDEST: &str = "webhook_inbox_oldest_seconds";
pub(crate) const PAUSED: &str = "webhook_inbox_paused";
pub(crate) const BYTES: &str = "webhook_inbox_bytes";

impl Metrics {
    /// Describes the metrics to the recorder that is installed, and records all that is observed.
    #[must_use]
    pub fn new() -> Self {
        describe();
        Self {
            kinds: Kinds::default(),
        }
    }

    fn delivery(&self, ended: &DeliveryEnded<'_>) {
        let kind = match self.kinds.verified(ended) {
            Some(kind) => label(&kind),
            None => SharedString::const_str("unverified"),
        };
        counter!(DELIVERIES, "outcome" => ended.outcome, "kind" => kind.clone()).increment(1);
        histogram!(DELIVERY_DURATION, "kind" => kind).record(ended.duration);
    }

    fn attempt(&self, ended: &AttemptEnded<'_>) {
        let kind = label(&self.kinds.bounded(ended.kind));
        counter!(ATTEMPTS, "outcome" => ended.outcome.name(), "kind" => kind.clone()).increment(1);
        histogram!(ATTEMPT_DURATION, "kind" => kind.clone()).record(ended.duration);
        if let Some(delay) = ended.since_accepted {
            histogram!(START_DELAY, "kind" => kind.clone()).record(delay);
        }
        match ended.settlement {
            Some(Settlement::Dead { .. }) => counter!(DEAD_LETTERS, "kind" => kind).increment(1),
            Some(_) => {}
            None => counter!(LEASES_LOST, "kind" => kind).increment(1),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for Metrics {
    fn observe(&self, observation: &Observation<'_>) {
        match observation {
            Observation::Delivery(ended) => self.delivery(ended),
            Observation::Attempt(ended) => self.attempt(ended),
            Observation::AcceptedDead { kind, .. } => {
                let kind = label(&self.kinds.bounded(kind));
                counter!(DEAD_LETTERS, "kind" => kind).increment(1);
            }
            Observation::Call(ended) => call(ended),
            Observation::Detached => counter!(DETACHED).increment(1),
            Observation::Tripped { kind, is_tripped } => {
                let kind = label(&self.kinds.bounded(kind));
                gauge!(TRIPPED, "kind" => kind).set(f64::from(u8::from(*is_tripped)));
            }
        }
    }
}

fn call(ended: &CallEnded<'_>) {
    let target = ended.target.name();
    histogram!(CALL_DURATION, "target" => target, "operation" => ended.operation)
        .record(ended.duration);
    if ended.error.is_some() {
        counter!(CALL_ERRORS, "target" => target, "operation" => ended.operation).increment(1);
    }
}

impl FailureBudget {
    /// Records the failures of the last hour, by kind, and the limit: see the
    /// [table of metrics](crate::docs::metrics#failure-budget).
    pub fn record_metrics(&self) {
        let spent = self.spent();
        let verified = spent.iter().filter_map(|it| Some((it.kind.as_ref()?, it)));
        self.gauges().set(
            BUDGET_SPENT,
            verified.map(|(kind, spent)| (kind, f64::from(spent.failures))),
        );
        // No number of failures reaches what is not known.
        gauge!(BUDGET_LIMIT).set(self.limit().map_or(f64::INFINITY, f64::from));
        gauge!(UNVERIFIED).set(f64::from(self.unverified().failures));
    }
}

impl Silence {
    /// Records which kinds are silent, when each kind was delivered last, and when it is expected again: see the
    /// [table of metrics](crate::docs::metrics#silence).
    pub fn record_metrics(&self) {
        let silent = self.silent();
        let silent = silent.iter().map(|silent| (&silent.kind, 1.0));
        self.gauges().set(SILENT, silent);

        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        for (kind, last) in self.last_deliveries() {
            // In whole seconds, so that the value stays the same until the next delivery.
            let at = now.saturating_sub(last.elapsed()).as_secs();
            gauge!(LAST_DELIVERY, "kind" => label(&kind)).set(at as f64);
        }
        for (kind, within) in self.expected_now() {
            let within = within.map_or(f64::INFINITY, |within| within.as_secs_f64());
            gauge!(EXPECTED, "kind" => label(&kind)).set(within);
        }
    }
}

fn describe() {
    describe_deliveries();
    describe_calls();
    describe_budget();
    describe_silence();
    describe_process();
    describe_inbox();
}

fn describe_deliveries() {
    use metrics::Unit::{Count, Seconds};

    describe_counter!(
        DELIVERIES,
        Count,
        "Deliveries, and requests that were refused."
    );
    describe_histogram!(
        DELIVERY_DURATION,
        Seconds,
        "Time from the headers of a request to its answer."
    );
    describe_counter!(ATTEMPTS, Count, "Attempts to handle an event.");
    describe_histogram!(ATTEMPT_DURATION, Seconds, "Duration of an attempt.");
    describe_histogram!(
        START_DELAY,
        Seconds,
        "Time from the acceptance of an event by an inbox to the start of an attempt."
    );
    describe_counter!(
        DEAD_LETTERS,
        Count,
        "Events that became dead letters, or were accepted as such."
    );
    describe_counter!(LEASES_LOST, Count, "Attempts whose lease was lost.");
    describe_counter!(
        DETACHED,
        Count,
        "Attempts that continued after their client disconnected."
    );
}

fn describe_calls() {
    use metrics::Unit::{Count, Seconds};

    describe_histogram!(
        CALL_DURATION,
        Seconds,
        "Duration of a call of the store or the queue."
    );
    describe_counter!(
        CALL_ERRORS,
        Count,
        "Calls of the store or the queue that failed."
    );
}

fn describe_budget() {
    use metrics::Unit::Count;

    describe_gauge!(BUDGET_SPENT, Count, "Failed deliveries in the last hour.");
    describe_gauge!(
        BUDGET_LIMIT,
        Count,
        "Failed deliveries in an hour above which the platform disables a webhook."
    );
    describe_gauge!(
        UNVERIFIED,
        Count,
        "Requests in the last hour that ended before verification."
    );
}

fn describe_silence() {
    use metrics::Unit::{Count, Seconds};

    describe_gauge!(
        SILENT,
        Count,
        "1 while no event of the kind has been delivered for longer than expected."
    );
    describe_gauge!(
        LAST_DELIVERY,
        Seconds,
        "Time of the last delivery, since 1970-01-01 00:00 UTC."
    );
    describe_gauge!(
        EXPECTED,
        Seconds,
        "Time within which the next delivery is expected."
    );
}

fn describe_process() {
    use metrics::Unit::{Bytes, Count};

    describe_gauge!(
        BUFFERED,
        Bytes,
        "Memory of the bodies that are being received."
    );
    describe_gauge!(
        DETACHED_NOW,
        Count,
        "Attempts in progress whose client disconnected."
    );
    #[cfg(feature = "moka")]
    describe_counter!(
        EVICTIONS,
        Count,
        "Keys that the memory store evicted before the end of their retention."
    );
}

fn describe_inbox() {
    use metrics::Unit::{Bytes, Count, Seconds};

    describe_gauge!(TRIPPED, Count, "1 while a kind is tripped in this process.");
    describe_gauge!(WAITING, Count, "Events that wait for their first attempt.");
    describe_gauge!(IN_PROGRESS, Count, "Events with an attempt in progress.");
    describe_gauge!(RETRYING, Count, "Events that wait for another attempt.");
    describe_gauge!(DEAD, Count, "Dead letters.");
    describe_gauge!(
        BLOCKED,
        Count,
        "Lanes that wait for an event that has failed."
    );
    describe_gauge!(
        OLDEST,
        Seconds,
        "Age of the oldest event that is not settled."
    );
    describe_gauge!(PAUSED, Count, "1 while a kind is paused.");
    describe_gauge!(BYTES, Bytes, "Size of the queue.");
}
