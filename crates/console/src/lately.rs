//! What all processes counted in the last hour.

use std::collections::BTreeMap;
use std::time::Duration;

use tower_webhook::inbox::Inbox;
use tower_webhook::telemetry::{Count, CountsOf, Series, Silence, Silent, minute_of};
use tower_webhook::{EventType, RouteName};

use super::settings::Console;

/// The most counts that are read: those of 800 types and outcomes in each minute.
const MOST: usize = 50_000;

/// The numbers of the last hour.
#[derive(Clone, Debug, Default)]
pub(super) struct Lately {
    /// By event type.
    pub(super) types: BTreeMap<EventType, Hour>,
    /// The deliveries and the refused requests, by outcome, and whether they were refused.
    pub(super) responses: BTreeMap<(bool, String), u64>,
    /// The requests at each route.
    pub(super) routes: BTreeMap<RouteName, Requests>,
    /// By the route and the secret of another that would have matched: the last minute of such a request.
    pub(super) swapped: BTreeMap<(RouteName, String), i64>,
    /// The event types of which no process was delivered an event for longer than expected.
    pub(super) silent: Vec<Silent>,
    /// For how long these have been known, and whether they are those of this process alone.
    pub(super) age: Duration,
    pub(super) is_own: bool,
}

/// The requests at a route.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Requests {
    pub(super) all: u64,
    /// Those without a signature that matches.
    pub(super) unmatched: u64,
}

/// What became of the events of a type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hour {
    /// Those that were handled in each minute, the present one last.
    pub(super) handled: [u64; 60],
    pub(super) failed_attempts: u64,
}

impl Default for Hour {
    fn default() -> Self {
        Self {
            handled: [0; 60],
            failed_attempts: 0,
        }
    }
}

impl Hour {
    pub(super) fn sum(&self) -> u64 {
        self.handled.iter().sum()
    }
}

impl Lately {
    /// Those of all processes, or if these cannot be read, or there is no inbox, of this one.
    pub(super) async fn of(console: &Console) -> Self {
        Self::of_inbox(console, console.inbox.as_ref()).await
    }

    /// Those of this process, if the database does not answer.
    pub(super) async fn own(console: &Console) -> Self {
        Self::of_inbox(console, None).await
    }

    async fn of_inbox(console: &Console, inbox: Option<&Inbox>) -> Self {
        let now = minute_of(console.now());
        let of = CountsOf::new(
            [
                Series::Acknowledged,
                Series::Refused,
                Series::Handled,
                Series::Failed,
                Series::Swapped,
            ],
            now - 59..now + 1,
        );
        let of = of.by_process().limit(MOST);
        let own = console.recent.as_ref();
        let all = match inbox {
            Some(inbox) => {
                let (inbox, of) = (inbox.clone(), of.clone());
                let read = console.lately.by(async move { inbox.counts(&of).await });
                Some(read.await)
            }
            None => None,
        };
        let own_counts = own.map(|recent| recent.counts(&of)).unwrap_or_default();
        let process = own_counts.first().map(|count| count.process);
        let mut lately = match all {
            Some(Ok((all, age))) => Self {
                age,
                ..Self::new(joined(all, own_counts), now)
            },
            Some(Err(_)) | None => Self {
                is_own: true,
                ..Self::new(own_counts, now)
            },
        };
        lately.silent = silent(console, inbox, process).await;
        if let (None, Some(recent)) = (inbox, own) {
            // A quiet type keeps its row.
            for of in recent.minutes().into_keys() {
                lately.types.entry(of).or_default();
            }
        }
        lately
    }

    fn new(counts: Vec<Count>, now: i64) -> Self {
        let mut lately = Self::default();
        for count in counts {
            let is_refused = count.series == Series::Refused;
            if is_refused || count.series == Series::Acknowledged {
                let outcome = count.outcome.clone().into_owned();
                let number = lately.responses.entry((is_refused, outcome)).or_default();
                *number = number.saturating_add(count.number);
                let requests = lately.routes.entry(count.route.clone()).or_default();
                requests.all = requests.all.saturating_add(count.number);
                if count.outcome == "invalid-signature" {
                    requests.unmatched = requests.unmatched.saturating_add(count.number);
                }
            }
            if count.series == Series::Swapped {
                let found = (count.route, count.outcome.into_owned());
                let last = lately.swapped.entry(found).or_insert(count.minute);
                *last = count.minute.max(*last);
                continue;
            }
            let Some(kind) = count.kind else { continue };
            let hour = lately.types.entry(EventType::new(count.route, kind));
            let hour = hour.or_default();
            let number = match count.series {
                Series::Failed => Some(&mut hour.failed_attempts),
                // A minute after the present one has no place. It exists when the queue's clock was set back.
                Series::Handled => usize::try_from(59 - (now - count.minute))
                    .ok()
                    .and_then(|place| hour.handled.get_mut(place)),
                _ => None,
            };
            if let Some(number) = number {
                *number = number.saturating_add(count.number);
            }
        }
        lately
    }
}

/// The types that are silent at this process, unless another one was delivered their events.
async fn silent(console: &Console, inbox: Option<&Inbox>, process: Option<i64>) -> Vec<Silent> {
    let silent = console.silence.as_ref().map(Silence::silent);
    let mut silent = silent.unwrap_or_default();
    let longest = silent.iter().map(|it| minutes(it.quiet_for)).max();
    let (Some(inbox), Some(longest)) = (inbox, longest) else {
        return silent;
    };
    let now = minute_of(console.now());
    // A delivery of several events is counted with a type of its own. Their types are known of their first attempts.
    let delivered = [Series::Acknowledged, Series::Refused, Series::Lag];
    let of = CountsOf::new(delivered, now - longest.min(LONGEST)..now + 1);
    let of = of.by_process().limit(MOST);
    let inbox = inbox.clone();
    let counts = async move { inbox.counts(&of).await };
    let Ok((counts, _)) = console.delivered.by(counts).await else {
        return silent;
    };
    let mut last = BTreeMap::<EventType, i64>::new();
    // This process knows its own deliveries to the second. Those of the events that it tries may be of another one.
    let is_new = |it: &Count| it.series == Series::Lag || Some(it.process) != process;
    for count in counts.into_iter().filter(is_new) {
        let waited = match count.series {
            Series::Lag => minutes(Duration::from_millis(count.number)),
            _ => 0,
        };
        // Without a kind, it was not verified, and proves nothing.
        if let Some(kind) = count.kind {
            let last = last.entry(EventType::new(count.route, kind)).or_default();
            *last = (*last).max(count.minute - waited);
        }
    }
    silent.retain_mut(|it| {
        let of = EventType::new(it.route.clone(), it.kind.clone());
        if let Some(last) = last.get(&of) {
            // Old counts are put together by half hours.
            let apart = if now - last > 120 { 30 } else { 0 };
            let since = u64::try_from(now - last - apart).unwrap_or(0);
            it.quiet_for = it.quiet_for.min(Duration::from_secs(60 * since));
        }
        it.quiet_for > it.expected_within
    });
    silent
}

/// The longest silence that is compared with the deliveries of others, in minutes.
const LONGEST: i64 = 7 * 24 * 60;

fn minutes(time: Duration) -> i64 {
    i64::try_from(time.as_secs() / 60).unwrap_or(i64::MAX)
}

/// Those of this process are written once a second, so its own are newer.
fn joined(mut all: Vec<Count>, own: Vec<Count>) -> Vec<Count> {
    if let Some(process) = own.first().map(|count| count.process) {
        all.retain(|count| count.process != process);
    }
    all.extend(own);
    all
}
