//! Counts of processes are kept, put together and deleted.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;

use super::make::{chat, key, route};
use super::steps::{Trial, ok};
use super::{HELD, Harness};
use tower_webhook::inbox::By;
use tower_webhook::inbox::Queue;
use tower_webhook::inbox::internal::NewEvent;
use tower_webhook::telemetry::{Count, CountsOf, Sample, Series, minute_of};

use support::queue::Calls;

const HOUR: i64 = 60;
const DAY: i64 = 24 * HOUR;
const SPAN: i64 = 30;

/// The minute of the queue.
async fn now(queue: &Queue) -> i64 {
    minute_of(ok(queue.note_counts(&[]).await, "note_counts"))
}

fn of(series: Series, from: i64, until: i64) -> CountsOf {
    CountsOf::new([series], from..until)
}

fn sample(lines: &str, key: Option<&[u8]>) -> Sample {
    let mut sample = Sample::default();
    sample.lines = lines.to_owned();
    sample.key = key.map(Bytes::copy_from_slice);
    sample
}

impl Trial {
    fn counted(&self, series: Series, process: i64, minute: i64, number: u64) -> Count {
        let mut count = Count::new(series, minute, number);
        count.process = process;
        count.route = self.route.clone();
        count.kind = Some(self.kind.clone());
        count.outcome = Cow::Borrowed("no-luck");
        count
    }

    async fn note(&self, counts: &[Count]) {
        ok(self.queue.note_counts(counts).await, "note_counts");
    }

    /// The counts of this rule, as minutes, processes and numbers.
    async fn counts(&self, of: &CountsOf) -> Vec<(i64, i64, u64)> {
        let counts = ok(self.queue.counts(of).await, "counts");
        let own = counts
            .iter()
            .filter(|count| count.route == self.route && count.kind.as_ref() == Some(&self.kind));
        own.map(|count| (count.minute, count.process, count.number))
            .collect()
    }

    async fn purge_all(&self) {
        while ok(self.queue.purge(Duration::MAX).await, "purge") {}
    }
}

/// Each process has numbers of its own, which never decrease, and all of them are added up: but for the lag, of which the
/// longest counts. Each route has its own, too, and none is added to those of another.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn counts_of_processes_add_up<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    let now = now(&trial.queue).await;
    let elsewhere = trial.at(&route());
    for series in Series::ALL {
        let count = |process, minute, number| trial.counted(series, process, minute, number);
        trial.note(&[count(1, now, 3), count(1, now - 1, 4)]).await;
        trial.note(&[elsewhere.counted(series, 1, now, 9)]).await;
        let again = [count(2, now, 5), count(1, now, 2)];
        ok(other.queue.note_counts(&again).await, "note_counts");
        trial.note(&[count(1, now - 1, 6)]).await;
        let all = of(series, now - 1, now + 1);
        let joined = |a: u64, b: u64| {
            if series == Series::Lag {
                a.max(b)
            } else {
                a + b
            }
        };
        assert_eq!(
            trial.counts(&all).await,
            [(now, 0, joined(3, 5)), (now - 1, 0, 6)],
            "{series:?}"
        );
        assert_eq!(elsewhere.counts(&all).await, [(now, 0, 9)], "{series:?}");
        let by_process = all.clone().by_process();
        let counts = trial.counts(&by_process).await;
        assert_eq!(counts, [(now, 1, 3), (now, 2, 5), (now - 1, 1, 6)]);
        // An hour from the first minute on, and what is not in the range.
        let mut bucket = all.bucket(HOUR);
        bucket.from = now;
        let counts = trial.counts(&bucket).await;
        assert_eq!(counts, [(now - now % HOUR, 0, joined(3, 5))]);
    }
    // Of a delivery that was refused, the type is not known. Its route is.
    let [one, two] = [(&trial, 7), (&elsewhere, 8)].map(|(at, number)| {
        let mut unknown = at.counted(Series::Refused, 3, now + 1, number);
        unknown.kind = None;
        unknown.sample = Some(sample("192.0.2.1\n17\nrequest\n", None));
        unknown
    });
    trial.note(&[one.clone(), two.clone()]).await;
    let next = of(Series::Refused, now + 1, now + 2);
    let counts = ok(trial.queue.counts(&next).await, "counts");
    for mut expected in [one, two] {
        expected.process = 0;
        assert!(counts.contains(&expected), "{counts:?}");
    }
}

/// A list has the newest counts, however many others there are.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn newest_counts_come_first<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let now = now(&trial.queue).await - 100;
    let many: Vec<_> = (0..3_000)
        .map(|number| trial.counted(Series::Dead, 1 + number % 60, now - number / 60, 1))
        .collect();
    for some in many.chunks(256) {
        trial.note(some).await;
    }
    let all = of(Series::Dead, now - 60, now + 1);
    let expected: Vec<_> = (0..50).map(|ago| (now - ago, 0, 60)).collect();
    assert_eq!(trial.counts(&all).await, expected);
    let few = all.limit(3);
    let newest = ok(trial.queue.counts(&few).await, "counts");
    let minutes: Vec<_> = newest.iter().map(|count| count.minute).collect();
    assert!(
        minutes.len() == 3 && minutes.is_sorted_by(|a, b| a >= b),
        "{minutes:?}"
    );
    assert_eq!(minutes[0], now);
    let nothing = of(Series::Dead, now + 1, now);
    assert_eq!(trial.counts(&nothing).await, []);
    let huge = of(Series::Dead, i64::MIN / 2, i64::MAX / 2);
    assert_eq!(trial.counts(&huge).await, expected);
}

/// Old minutes are put together by 30, older ones by 720, and deleted when they are very old.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn old_counts_are_put_together<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let now = now(&trial.queue).await;
    let span_of = |minute: i64| minute - minute % SPAN;
    let all = |series| of(series, now - 40 * DAY, now + 1);
    let twelve_hours_of = |minute: i64| minute - minute % (12 * HOUR);
    let (day, week, weeks, month) = (
        span_of(now - 25 * HOUR),
        span_of(now - 7 * DAY - HOUR),
        twelve_hours_of(now - 20 * DAY),
        span_of(now - 30 * DAY - HOUR),
    );
    for series in Series::ALL {
        let count = |process, minute, number| trial.counted(series, process, minute, number);
        let mut counts = vec![count(1, now - HOUR, 1), count(1, now - 3 * HOUR, 1)];
        for old in [day, week, weeks, month] {
            counts.extend((0..SPAN).map(|minute| count(1, old + minute, 2)));
            counts.push(count(2, old + 5, 7));
        }
        trial.note(&counts).await;
    }
    trial.purge_all().await;
    let (recent, later) = ((now - HOUR, 0, 1), now - 3 * HOUR);
    for series in Series::ALL {
        let counts = trial.counts(&all(series)).await;
        let sum = if series == Series::Lag { 7 } else { 67 };
        assert_eq!(counts[0], recent);
        match series {
            Series::Budget => assert_eq!(counts.len(), 1),
            Series::Refused => {
                // Those of the day before yesterday are still by minute.
                assert_eq!(counts[1], (later, 0, 1));
                assert_eq!(counts[2..2 + 30].last(), Some(&(day, 0, 2)));
                assert_eq!(counts[32..], [(week, 0, sum), (weeks, 0, sum)]);
            }
            // Addresses are personal data: they are kept for a week.
            Series::Origin => {
                assert_eq!(counts[1..], [(span_of(later), 0, 1), (day, 0, sum)]);
            }
            _ => {
                let old = [day, week, weeks].map(|minute| (minute, 0, sum));
                assert_eq!(counts[1], (span_of(later), 0, 1));
                assert_eq!(counts[2..], old, "{series:?}");
            }
        }
    }
    // What is put together later is added.
    let late = [day + 7, weeks + 700];
    let late = late.map(|minute| trial.counted(Series::Handled, 3, minute, 100));
    trial.note(&late).await;
    trial.purge_all().await;
    let counts = trial.counts(&all(Series::Handled)).await;
    assert_eq!(counts[2..], [(day, 0, 167), (week, 0, 67), (weeks, 0, 167)]);
}

/// When a chat is forgotten, so is what is kept of refused requests with the keys of its events. Their numbers stay, and
/// what is written again brings nothing back.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn samples_are_forgotten<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let now = now(&trial.queue).await;
    let (forgotten, kept) = (chat(), chat());
    let mut counts = Vec::new();
    for (process, chat) in [(1, &forgotten), (2, &kept)] {
        let key = key();
        let event = NewEvent {
            chat: Some(chat.clone()),
            ..trial.event()
        };
        let delivery = event.delivery.clone().with_key(key.clone());
        trial.taken(NewEvent { delivery, ..event }, HELD).await;
        let mut count = trial.counted(Series::Refused, process, now, 1);
        let lines = format!("192.0.2.{process}\n\n\nkey");
        count.sample = Some(sample(&lines, Some(key.as_bytes())));
        counts.push(count);
    }
    trial.note(&counts).await;
    let by = By::new("ada");
    let forget = trial.queue.forget_all(&forgotten, &by);
    assert_eq!(ok(forget.await, "forget"), 1);
    trial.note(&counts).await;
    let by_process = of(Series::Refused, now, now + 1).by_process();
    let mut left = ok(trial.queue.counts(&by_process).await, "counts");
    left.retain(|count| count.kind.as_ref() == Some(&trial.kind));
    let lines = |count: &Count| count.sample.as_ref().map(|sample| sample.lines.clone());
    let samples: Vec<_> = left
        .iter()
        .map(|count| (count.number, lines(count)))
        .collect();
    let of_kept = "192.0.2.2\n\n\nkey".to_owned();
    assert_eq!(samples, [(1, None), (1, Some(of_kept))]);
}
