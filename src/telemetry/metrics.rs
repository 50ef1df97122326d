//! Metrics through the `metrics` facade.

use std::time::SystemTime;

use metrics::{
    Label, SharedString, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use super::budget::{FailureBudget, Spent};
use super::gauges::{Gauges, kind_label, labels, labels_of, name_label};
use super::labels::Types;
use super::observer::{AttemptEnded, CallEnded, DeliveryEnded, Observation, Observer};
use super::silence::Silence;
use crate::event::EventKind;
use crate::outcome::Settlement;
use crate::route::{EventType, RouteName};

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
/// used, and beyond 32 kinds of a route that the platform does not document, all others are `other`.
#[derive(Debug)]
pub struct Metrics {
    types: Types,
}

/// The metrics: how each is described to a recorder, its name, its unit and its description.
macro_rules! metrics {
    ($($(#[$cfg:meta])* $describe:ident $NAME:ident = $name:literal, $unit:ident, $text:literal;)*) => {
        $($(#[$cfg])* pub(crate) const $NAME: &str = $name;)*

        fn describe() {
            $($(#[$cfg])* $describe!($NAME, metrics::Unit::$unit, $text);)*
        }
    };
}

metrics! {
    describe_counter DELIVERIES = "webhook_deliveries_total", Count, "Deliveries, and requests that were refused.";
    describe_histogram DELIVERY_DURATION = "webhook_delivery_duration_seconds", Seconds, "Time from the headers of a request to its answer.";
    describe_counter ATTEMPTS = "webhook_attempts_total", Count, "Attempts to handle an event.";
    describe_histogram ATTEMPT_DURATION = "webhook_attempt_duration_seconds", Seconds, "Duration of an attempt.";
    describe_histogram START_DELAY = "webhook_start_delay_seconds", Seconds, "Time from the acceptance of an event by an inbox to the start of an attempt.";
    describe_counter DEAD_LETTERS = "webhook_dead_letters_total", Count, "Events that became dead letters, or were accepted as such.";
    describe_counter LEASES_LOST = "webhook_leases_lost_total", Count, "Attempts whose lease was lost.";
    describe_counter DETACHED = "webhook_detached_total", Count, "Attempts that continued after their client disconnected.";
    describe_histogram CALL_DURATION = "webhook_call_duration_seconds", Seconds, "Duration of a call of the store or the inbox.";
    describe_counter CALL_ERRORS = "webhook_call_errors_total", Count, "Calls of the store or the inbox that failed.";
    describe_gauge SLOWED = "webhook_inbox_slowed", Count, "1 while attempts of an event type are slowed down in this process.";
    describe_gauge BUDGET_SPENT = "webhook_failure_budget_spent", Count, "Failed deliveries in the last hour.";
    describe_gauge BUDGET_SHARED = "webhook_failure_budget_shared", Count, "Failed deliveries in the last hour, of all processes that share a database.";
    describe_gauge BUDGET_LIMIT = "webhook_failure_budget_limit", Count, "Failed deliveries in an hour above which the sender disables a webhook.";
    describe_gauge UNVERIFIED = "webhook_unverified_failures", Count, "Requests in the last hour that ended before verification.";
    describe_gauge SILENT = "webhook_silent", Count, "1 while no event of the type has been delivered for longer than expected.";
    describe_gauge LAST_DELIVERY = "webhook_last_delivery_timestamp_seconds", Seconds, "Time of the last delivery, since 1970-01-01 00:00 UTC.";
    describe_gauge EXPECTED = "webhook_expected_within_seconds", Seconds, "Time within which the next delivery is expected.";
    describe_gauge BUFFERED = "webhook_buffered_bytes", Bytes, "Memory of the bodies that are being received.";
    describe_gauge DETACHED_NOW = "webhook_detached_runs", Count, "Attempts in progress whose client disconnected.";
    #[cfg(feature = "moka")]
    describe_counter EVICTIONS = "webhook_evictions_total", Count, "Keys that the memory store evicted before the end of their retention.";
    describe_gauge WAITING = "webhook_inbox_waiting", Count, "Events that wait for their first attempt.";
    describe_gauge IN_PROGRESS = "webhook_inbox_in_progress", Count, "Events with an attempt in progress.";
    describe_gauge RETRYING = "webhook_inbox_retrying", Count, "Events that wait for another attempt.";
    describe_gauge DEAD = "webhook_inbox_dead_letters", Count, "Dead letters.";
    describe_gauge BLOCKED = "webhook_inbox_blocked_lanes", Count, "Lanes that wait for an event that has failed.";
    describe_gauge OLDEST = "webhook_inbox_oldest_seconds", Seconds, "Age of the oldest event that is not settled.";
    describe_gauge PAUSED = "webhook_inbox_paused", Count, "1 while an event type is paused.";
    describe_gauge AWAY = "webhook_inbox_handler_away", Count, "1 while events of a type wait and the worker for the type is away.";
    describe_gauge BYTES = "webhook_inbox_bytes", Bytes, "Size of the inbox.";
    describe_gauge LIMIT = "webhook_inbox_limit_bytes", Bytes, "Limit of the inbox's size.";
    #[cfg(feature = "sqlite")]
    describe_gauge SPOOL_EVENTS = "webhook_spool_events", Count, "Events that wait in the spool.";
    #[cfg(feature = "sqlite")]
    describe_gauge SPOOL_OLDEST = "webhook_spool_oldest_seconds", Seconds, "Age of the oldest event in the spool.";
    #[cfg(feature = "sqlite")]
    describe_gauge SPOOL_REFUSED = "webhook_spool_refused", Count, "Events in the spool that the database refuses.";
    #[cfg(feature = "sqlite")]
    describe_gauge SPOOL_OPEN = "webhook_spool_open", Count, "1 while the database does not accept events, which go to the spool.";
    #[cfg(feature = "sqlite")]
    describe_gauge SPOOL_BYTES = "webhook_spool_bytes", Bytes, "Size of the spool.";
    #[cfg(feature = "sqlite")]
    describe_gauge SPOOL_LIMIT = "webhook_spool_limit_bytes", Bytes, "Limit of the spool's size.";
    #[cfg(feature = "sqlite")]
    describe_gauge SPOOL_FULL_IN = "webhook_spool_full_in_seconds", Seconds, "Time until the spool is full at the rate of the last minute.";
}

impl Metrics {
    /// Describes the metrics to the recorder that is installed, and records all that is observed.
    #[must_use]
    pub fn new() -> Self {
        describe();
        Self {
            types: Types::default(),
        }
    }

    fn delivery(&self, ended: &DeliveryEnded<'_>) {
        let kind = match self.types.verified(ended) {
            Some(kind) => kind_label(&kind),
            None => SharedString::const_str("unverified"),
        };
        let of = labels_of(ended.route, kind);
        let outcome = Label::from_static_parts("outcome", ended.outcome);
        let sender = Label::new("sender", name_label(ended.sender.name()));
        counter!(DELIVERIES, [&[outcome], &of[..], &[sender]].concat()).increment(1);
        histogram!(DELIVERY_DURATION, of).record(ended.duration);
    }

    fn attempt(&self, ended: &AttemptEnded<'_>) {
        let of = self.labels(ended.route, ended.kind);
        let outcome = Label::from_static_parts("outcome", ended.outcome.name());
        counter!(ATTEMPTS, [&[outcome], &of[..]].concat()).increment(1);
        histogram!(ATTEMPT_DURATION, of.clone()).record(ended.duration);
        if let Some(delay) = ended.since_accepted {
            histogram!(START_DELAY, of.clone()).record(delay);
        }
        match ended.settlement {
            Some(Settlement::Dead { .. }) => counter!(DEAD_LETTERS, of).increment(1),
            Some(_) => {}
            None => counter!(LEASES_LOST, of).increment(1),
        }
    }

    fn labels(&self, route: &RouteName, kind: &EventKind) -> Vec<Label> {
        labels(&self.types.bounded(route, kind))
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
            Observation::AcceptedDead { route, kind, .. } => {
                counter!(DEAD_LETTERS, self.labels(route, kind)).increment(1);
            }
            Observation::Call(ended) => call(ended),
            Observation::Detached => counter!(DETACHED).increment(1),
            Observation::Slowed {
                route,
                kind,
                is_slowed,
            } => {
                let value = f64::from(u8::from(*is_slowed));
                gauge!(SLOWED, self.labels(route, kind)).set(value);
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
    /// Records the failures of the last hour, by event type, and the limit of each route that has been asked: see the
    /// [table of metrics](crate::docs::metrics#failure-budget).
    pub fn record_metrics(&self) {
        let record = |gauges: &Gauges, name, spent: &[Spent]| {
            let verified = spent.iter().filter_map(|it| {
                let of = EventType::new(it.route.clone(), it.kind.clone()?);
                Some((of, f64::from(it.failures)))
            });
            gauges.set(name, verified, f64::max);
        };
        // Two gauges: own failures are summed over receivers, and the shared ones are the same in each receiver.
        let (own, [gauges, shared]) = (self.all(false), self.gauges());
        record(gauges, BUDGET_SPENT, &own);
        // Without a database, a shared gauge of 0 would look like an hour without failures.
        if self.is_shared() {
            record(shared, BUDGET_SHARED, &self.spent());
        }
        for (route, sender) in self.senders() {
            let label = name_label(route.as_str());
            let limit = sender.policy().disable_after;
            // No number of failures reaches what is not known.
            let limit = limit.map_or(f64::INFINITY, f64::from);
            gauge!(BUDGET_LIMIT, "route" => label.clone()).set(limit);
            let mut own = own.iter();
            let unverified = own.find(|spent| spent.route == route && spent.kind.is_none());
            let failures = unverified.map_or(0.0, |spent| f64::from(spent.failures));
            gauge!(UNVERIFIED, "route" => label).set(failures);
        }
    }
}

impl Silence {
    /// Records which event types are silent, when each was delivered last, and when it is expected again: see the
    /// [table of metrics](crate::docs::metrics#silence).
    pub fn record_metrics(&self) {
        let silent = self.silent().into_iter();
        let silent = silent.map(|it| (EventType::new(it.route, it.kind), 1.0));
        self.gauges().set(SILENT, silent, f64::max);

        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        for (of, last) in self.last_deliveries() {
            // In whole seconds, so that the value stays the same until the next delivery.
            let at = now.saturating_sub(last.elapsed()).as_secs();
            gauge!(LAST_DELIVERY, labels(&of)).set(at as f64);
        }
        for (of, within) in self.expected_now() {
            gauge!(EXPECTED, labels(&of)).set(within.as_secs_f64());
        }
    }
}
