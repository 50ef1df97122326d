//! The log of one thread.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, Interest};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use super::lock;

/// Everything that is logged on the current thread while this lives.
pub struct Log {
    records: Records,
    _guard: DefaultGuard,
}

/// The fields of a span or an event, and its `level`, `name` and `target`; for a span also its `parent`, and for
/// an event its `span`.
pub type Fields = HashMap<&'static str, String>;

impl Log {
    /// Captures this level and those above.
    pub fn capture(level: Level) -> Self {
        LazyLock::force(&BYSTANDER);
        let records = Records::default();
        let layer = records.clone().with_filter(LevelFilter::from_level(level));
        let subscriber = tracing_subscriber::registry().with(layer);
        Self {
            records,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    pub fn spans(&self) -> Vec<Fields> {
        let spans = lock(&self.records.spans);
        spans.iter().map(|(_, span)| span.clone()).collect()
    }

    pub fn events(&self) -> Vec<Fields> {
        lock(&self.records.events).clone()
    }

    /// How many events of exactly this level contain a text in their message or another field.
    pub fn count(&self, level: Level, text: &str) -> usize {
        let contains = |event: &&Fields| event.values().any(|value| value.contains(text));
        let events = self.events();
        let events = events
            .iter()
            .filter(|event| event["level"] == level.as_str());
        events.filter(contains).count()
    }

    pub fn clear(&self) {
        lock(&self.records.spans).clear();
        lock(&self.records.events).clear();
    }

    /// All spans and events, as text to search.
    pub fn text(&self) -> String {
        format!("{:?}\n{:?}", self.spans(), self.events())
    }
}

/// While a single subscriber lives, tracing asks the thread that reaches an event first whether the
/// event is enabled, and remembers the answer for all threads. With this second one, which never
/// captures anything, each thread is asked each time, so that tests do not disturb each other.
static BYSTANDER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Bystander));

struct Bystander;

impl Subscriber for Bystander {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Clone, Default)]
struct Records {
    spans: Arc<Mutex<Vec<(Id, Fields)>>>,
    events: Arc<Mutex<Vec<Fields>>>,
}

struct Visitor<'a>(&'a mut Fields);

impl Visit for Visitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

fn fields(metadata: &'static Metadata<'static>, record: impl FnOnce(&mut Visitor<'_>)) -> Fields {
    let mut fields = Fields::new();
    fields.insert("level", metadata.level().to_string());
    fields.insert("name", metadata.name().to_owned());
    fields.insert("target", metadata.target().to_owned());
    record(&mut Visitor(&mut fields));
    fields
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Records {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut span = fields(attributes.metadata(), |visitor| attributes.record(visitor));
        if let Some(parent) = context.span(id).and_then(|span| span.parent()) {
            span.insert("parent", parent.name().to_owned());
        }
        lock(&self.spans).push((id.clone(), span));
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        let mut spans = lock(&self.spans);
        // The registry uses the ids of closed spans again.
        let span = spans.iter_mut().rev().find(|(known, _)| known == id);
        if let Some((_, fields)) = span {
            record.record(&mut Visitor(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = fields(event.metadata(), |visitor| event.record(visitor));
        if let Some(span) = context.event_span(event) {
            fields.insert("span", span.name().to_owned());
        }
        lock(&self.events).push(fields);
    }
}
