//! The metrics of an inbox that no observation changes.

use std::ops::Add;

use super::handle::Inbox;
use super::records::KindStats;
use crate::store::StoreError;
use crate::telemetry::{
    AWAY, BLOCKED, BYTES, DEAD, IN_PROGRESS, LIMIT, OLDEST, PAUSED, RETRYING, WAITING,
};

impl Inbox {
    /// Records the number of events by kind and state, the age of the oldest one, pauses, handlers that are away, and the size
    /// of the queue: see the [table of metrics](crate::docs::metrics#inbox). It counts the unsettled events, which takes some 0.3 seconds
    /// for a million.
    ///
    /// # Errors
    ///
    /// When the queue fails.
    pub async fn record_metrics(&self) -> Result<(), StoreError> {
        let stats = self.stats().await?;
        let size = self.shared.queue.measure.size();
        let bytes = self.shared.call("size", size).await?;
        let record = |name, value: fn(&KindStats) -> f64| {
            let values = stats
                .kinds
                .iter()
                .map(|kind| (kind.event_type(), value(kind)));
            self.shared.gauges.set(name, values, Add::add);
        };
        record(WAITING, |kind| kind.waiting as f64);
        record(IN_PROGRESS, |kind| kind.in_progress as f64);
        record(RETRYING, |kind| kind.retrying as f64);
        record(DEAD, |kind| kind.dead as f64);
        record(BLOCKED, |kind| kind.blocking as f64);
        let ages = stats.kinds.iter().map(|kind| {
            let age = stats.age(kind).unwrap_or_default();
            (kind.event_type(), age.as_secs_f64())
        });
        self.shared.gauges.set(OLDEST, ages, f64::max);
        let is_paused = stats.is_paused();
        let values = stats.kinds.iter().map(|kind| {
            let is_paused = is_paused || kind.is_paused;
            (kind.event_type(), f64::from(u8::from(is_paused)))
        });
        self.shared.gauges.set(PAUSED, values, f64::max);
        let values = stats.kinds.iter().map(|kind| {
            let is_away = kind.waiting > 0 && stats.is_away(&kind.event_type());
            (kind.event_type(), f64::from(u8::from(is_away)))
        });
        self.shared.gauges.set(AWAY, values, f64::max);
        metrics::gauge!(BYTES).set(bytes as f64);
        metrics::gauge!(LIMIT).set(self.settings.backlog_limit as f64);
        Ok(())
    }
}
