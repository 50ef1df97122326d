//! Records the metrics of the library for Prometheus, for OpenTelemetry, or for both.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use metrics_exporter_prometheus::PrometheusRecorder;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{self as otel, Meter};

use crate::telemetry::buckets;

/// Gives each value to the meter of OpenTelemetry, and to Prometheus if there is a server for it.
pub(crate) struct Both {
    meter: Meter,
    prometheus: Option<PrometheusRecorder>,
    descriptions: Mutex<HashMap<String, String>>,
    counters: Mutex<HashMap<Key, Arc<Counted>>>,
    gauges: Mutex<HashMap<Key, Arc<Gauged>>>,
    histograms: Mutex<HashMap<Key, Arc<Recorded>>>,
}

impl Both {
    pub(crate) fn new(meter: Meter, prometheus: Option<PrometheusRecorder>) -> Self {
        Self {
            meter,
            prometheus,
            descriptions: Mutex::default(),
            counters: Mutex::default(),
            gauges: Mutex::default(),
            histograms: Mutex::default(),
        }
    }

    fn describe(&self, name: &KeyName, description: &SharedString) {
        let (name, description) = (name.as_str().to_owned(), description.to_string());
        lock(&self.descriptions).insert(name, description);
    }

    fn description(&self, key: &Key) -> String {
        let description = lock(&self.descriptions).get(key.name()).cloned();
        description.unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one of this key, which is made only once.
fn of<T>(known: &Mutex<HashMap<Key, Arc<T>>>, key: &Key, make: impl FnOnce() -> T) -> Arc<T>
where
    Key: Hash + Eq,
{
    let mut known = lock(known);
    let found = known.entry(key.clone()).or_insert_with(|| Arc::new(make()));
    Arc::clone(found)
}

fn attributes(key: &Key) -> Vec<KeyValue> {
    let labels = key.labels();
    labels
        .map(|label| KeyValue::new(label.key().to_owned(), label.value().to_owned()))
        .collect()
}

impl Recorder for Both {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&name, &description);
        if let Some(prometheus) = &self.prometheus {
            prometheus.describe_counter(name, unit, description);
        }
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&name, &description);
        if let Some(prometheus) = &self.prometheus {
            prometheus.describe_gauge(name, unit, description);
        }
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&name, &description);
        if let Some(prometheus) = &self.prometheus {
            prometheus.describe_histogram(name, unit, description);
        }
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let counted = of(&self.counters, key, || {
            let counter = self.meter.u64_counter(key.name().to_owned());
            Counted {
                otel: counter.with_description(self.description(key)).build(),
                attributes: attributes(key),
                total: AtomicU64::new(0),
                prometheus: match &self.prometheus {
                    Some(prometheus) => prometheus.register_counter(key, metadata),
                    None => Counter::noop(),
                },
            }
        });
        Counter::from_arc(counted)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let gauged = of(&self.gauges, key, || {
            let gauge = self.meter.f64_gauge(key.name().to_owned());
            Gauged {
                otel: gauge.with_description(self.description(key)).build(),
                attributes: attributes(key),
                value: Mutex::new(0.0),
                prometheus: match &self.prometheus {
                    Some(prometheus) => prometheus.register_gauge(key, metadata),
                    None => Gauge::noop(),
                },
            }
        });
        Gauge::from_arc(gauged)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let recorded = of(&self.histograms, key, || {
            let histogram = self.meter.f64_histogram(key.name().to_owned());
            let histogram = histogram.with_description(self.description(key));
            Recorded {
                otel: histogram
                    .with_boundaries(buckets(key.name()).to_vec())
                    .build(),
                attributes: attributes(key),
                prometheus: match &self.prometheus {
                    Some(prometheus) => prometheus.register_histogram(key, metadata),
                    None => Histogram::noop(),
                },
            }
        });
        Histogram::from_arc(recorded)
    }
}

struct Counted {
    otel: otel::Counter<u64>,
    attributes: Vec<KeyValue>,
    total: AtomicU64,
    prometheus: Counter,
}

impl CounterFn for Counted {
    fn increment(&self, value: u64) {
        self.total.fetch_add(value, Ordering::Relaxed);
        self.otel.add(value, &self.attributes);
        self.prometheus.increment(value);
    }

    fn absolute(&self, value: u64) {
        let before = self.total.fetch_max(value, Ordering::Relaxed);
        self.otel
            .add(value.saturating_sub(before), &self.attributes);
        self.prometheus.absolute(value);
    }
}

struct Gauged {
    otel: otel::Gauge<f64>,
    attributes: Vec<KeyValue>,
    value: Mutex<f64>,
    prometheus: Gauge,
}

impl Gauged {
    fn change(&self, change: impl FnOnce(f64) -> f64) {
        let mut value = lock(&self.value);
        *value = change(*value);
        self.otel.record(*value, &self.attributes);
    }
}

impl GaugeFn for Gauged {
    fn increment(&self, by: f64) {
        self.change(|value| value + by);
        self.prometheus.increment(by);
    }

    fn decrement(&self, by: f64) {
        self.change(|value| value - by);
        self.prometheus.decrement(by);
    }

    fn set(&self, to: f64) {
        self.change(|_| to);
        self.prometheus.set(to);
    }
}

struct Recorded {
    otel: otel::Histogram<f64>,
    attributes: Vec<KeyValue>,
    prometheus: Histogram,
}

impl HistogramFn for Recorded {
    fn record(&self, value: f64) {
        self.otel.record(value, &self.attributes);
        self.prometheus.record(value);
    }
}
