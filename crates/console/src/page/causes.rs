//! What is wrong: one sentence with its colour, and the other causes below it, worst first.

use std::cmp::Reverse;
use std::time::Duration;

use maud::{Markup, html};
use tower_webhook::RouteName;
use tower_webhook::inbox::{HandlerNote, Inbox, KindStats, Scope, Stats};
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::{Chain, Problem};

use super::super::lately::Lately;
use super::kinds::is_short;
use super::overview::Observed;
use super::parts::next_attempt;
use super::text::{clip, count, long, name, scope};
use super::view::View;
use super::webhooks::{budget, silent, swapped, unmatched, unverified};

/// The number of dead letters from which on they are critical.
const MANY_DEAD: u64 = 100;

/// The age of a waiting event from which on somebody should have begun to handle it.
const LONG_WAIT: Duration = Duration::from_secs(3 * 60);

/// The number of event types that a sentence names.
const NAMED: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Warning,
    Critical,
}

impl Level {
    fn class(self) -> &'static str {
        match self {
            Self::Warning => "warn",
            Self::Critical => "bad",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Warning => "Warning",
            Self::Critical => "Critical",
        }
    }
}

/// All that is wrong for one reason, of whichever event types.
pub(super) struct Cause {
    level: Level,
    text: Markup,
    /// A URL, and its text.
    link: Option<(String, &'static str)>,
}

impl Cause {
    pub(super) fn new(level: Level, text: Markup) -> Self {
        Self {
            level,
            text,
            link: None,
        }
    }

    pub(super) fn link(mut self, url: String, text: &'static str) -> Self {
        self.link = Some((url, text));
        self
    }

    fn badge(&self) -> Markup {
        html! { span class={ "badge " (self.level.class()) } { (self.level.word()) } }
    }

    fn sentence(&self) -> Markup {
        html! {
            (self.text)
            @if let Some((url, text)) = &self.link { " " a href=(url) { (text) } }
        }
    }
}

/// All causes, worst first.
pub(super) fn causes(
    view: &View,
    stats: Option<&Stats>,
    error: Option<&StoreError>,
    observed: &Observed,
    lately: &Lately,
) -> Vec<Cause> {
    let of_queue = error.map(|error| {
        let error = match view.console.hides_payloads {
            true => "the log has the reason".to_owned(),
            false => Chain(error).to_string(),
        };
        Cause::new(
            Level::Critical,
            html! { "The database cannot be read: " (clip(&error, 300)) ". When it is repaired, receivers reconnect by themselves." },
        )
    });
    let of_stats = |cause: fn(&View, &Stats) -> Option<Cause>| {
        let stats = stats?;
        cause(view, stats)
    };
    let mut causes: Vec<_> = [
        #[cfg(feature = "sqlite")]
        spooled(view),
        of_queue,
        cannot_claim(view),
        unavailable(view),
        budget(observed),
        swapped(view, lately),
        slowed(view, stats, observed),
        silent(&observed.silent, lately),
        of_stats(away),
        of_stats(nobodys),
        of_stats(waiting),
        of_stats(dead),
        unverified(view, observed),
        unmatched(view, observed, lately),
        of_stats(blocked),
        retried(view, stats, observed),
        of_stats(paused),
    ]
    .into_iter()
    .flatten()
    .collect();
    causes.extend(stats.into_iter().flat_map(|stats| of_routes(view, stats)));
    causes.extend(idle(view));
    // The sort is stable, so the list above decides which cause of a level is the first sentence.
    causes.sort_by_key(|cause| Reverse(cause.level));
    causes
}

pub(super) fn show(view: &View, stats: Option<&Stats>, causes: &[Cause]) -> Markup {
    let kinds = stats.into_iter().flat_map(|stats| &stats.kinds);
    let retrying: u64 = kinds.map(|it| it.retrying).sum();
    html! {
        @match causes.split_first() {
            None if retrying > 0 => div.alert.good { p {
                b { "Nothing is wrong for long: " }
                @if retrying == 1 { "an event has failed, and is" } @else { (count(retrying)) " events have failed, and are" }
                " tried again. " a href=(view.events(&[("state", "retrying")])) { "Retrying events" }
            } },
            None => div.alert.good { p { b { "All is well: " } "nothing is wrong." } },
            Some((worst, others)) => div class={ "alert " (worst.level.class()) } {
                p { b { (worst.level.word()) ": " } (worst.sentence()) }
                @if !others.is_empty() {
                    p { "And " (others.len()) " more:" }
                    ul { @for cause in others { li { (cause.badge()) " " (cause.sentence()) } } }
                }
            },
        }
    }
}

/// A database that does not accept events, or what it has not got since.
#[cfg(feature = "sqlite")]
fn spooled(view: &View) -> Option<Cause> {
    let status = view.console.spool.as_ref()?.status();
    let level = match status.is_open || status.refused > 0 {
        true => Level::Critical,
        false => Level::Warning,
    };
    let text = html! {
        @if status.is_open { "The database does not accept events: they go to the spool. " }
        b { (count(status.events)) @if status.events == 1 { " event" } @else { " events" } }
        @if status.events == 1 { " waits" } @else { " wait" } " in the spool of this process"
        @if let Some(oldest) = status.oldest { ", the oldest for " (long(oldest)) }
        "."
        @if let Some(left) = status.full_in { " At this rate it is full in " (long(left)) ", and deliveries are then refused." }
        @if status.refused > 0 { " The database refuses " (count(status.refused)) " of its events; the log has the reason." }
    };
    let is_shown = status.is_open || status.events > 0 || status.refused > 0;
    is_shown.then(|| Cause::new(level, text))
}

/// A worker of this process that takes nothing from the queue, although deliveries may be accepted.
fn cannot_claim(view: &View) -> Option<Cause> {
    let can_claim = view.console.inbox.as_ref()?.can_claim();
    let text = html! {
        "The worker of this process cannot take events from the inbox: it handles none that wait or have failed. "
        "The log has the reason."
    };
    (!can_claim).then(|| Cause::new(Level::Critical, text))
}

/// For how long after the last refusal the store is said not to answer.
const RECENTLY: Duration = Duration::from_secs(60);

/// Deliveries that were refused because the store or the queue failed.
fn unavailable(view: &View) -> Option<Cause> {
    let problems = view.console.recent.as_ref()?.problems();
    let refused = |it: &&Problem| it.outcome == "database-unavailable" && !it.is_from_inbox;
    let problem = problems.iter().find(refused)?;
    let age = problem.at.elapsed().unwrap_or_default();
    let text = html! {
        "Deliveries to this process are refused, as the database does not work; the last one " (long(age)) " ago. The newest problems have the reason."
    };
    (age < RECENTLY).then(|| Cause::new(Level::Critical, text))
}

/// The first names, and how many there are beside them.
pub(super) fn names(all: impl IntoIterator<Item = String>) -> Markup {
    let all: Vec<_> = all.into_iter().collect();
    let (named, others) = all.split_at(all.len().min(NAMED));
    html! {
        @for (at, name) in named.iter().enumerate() {
            @if at > 0 { @if others.is_empty() { " and " } @else { ", " } }
            b { (name) }
        }
        @if !others.is_empty() { " and " (others.len()) " more" }
    }
}

fn name_of(stats: &KindStats) -> String {
    name(&stats.route, &stats.kind)
}

/// Events that have failed, block no lane and are of no type that is slowed down: nothing else tells of them.
fn retried(view: &View, stats: Option<&Stats>, observed: &Observed) -> Option<Cause> {
    let stats = stats?;
    let fails = |it: &&KindStats| {
        it.retrying > it.blocking
            && !observed.slowed.contains_key(&it.event_type())
            && stats.age(it).is_some_and(|age| age >= LONG_WAIT)
    };
    let kinds: Vec<_> = stats.kinds.iter().filter(fails).collect();
    let number: u64 = kinds.iter().map(|it| it.retrying - it.blocking).sum();
    let oldest = kinds.iter().filter_map(|it| stats.age(it)).max()?;
    let text = html! {
        (count(number)) @if number == 1 { " event of " } @else { " events of " }
        (names(kinds.into_iter().map(name_of)))
        @if number == 1 { " has failed and is" } @else { " have failed and are" }
        " tried again; the oldest was accepted " (long(oldest)) " ago."
    };
    let url = view.events(&[("state", "retrying")]);
    Some(Cause::new(Level::Warning, text).link(url, "Retrying events"))
}

fn slowed(view: &View, stats: Option<&Stats>, observed: &Observed) -> Option<Cause> {
    let (first, _) = observed.slowed.first_key_value()?;
    let next = observed.slowed.values().min()?;
    let kinds = stats.into_iter().flat_map(|stats| &stats.kinds);
    let kinds = kinds.filter(|it| observed.slowed.contains_key(&it.event_type()));
    let unsettled: u64 = kinds
        .map(|it| it.waiting + it.in_progress + it.retrying)
        .sum();
    let text = html! {
        "Events of " (names(observed.slowed.keys().map(|it| name(&it.route, &it.kind)))) " fail, and none succeeds: this process slows down their attempts "
        "until one succeeds, and begins the next " (next_attempt(*next)) ". " (count(unsettled)) " of them are to be handled. "
        @if view.can_change() { b { "Redrive" } " tries one at once; when it succeeds, attempts are not slowed down any more." }
    };
    let cause = Cause::new(Level::Critical, text);
    Some(match observed.slowed.len() {
        1 if is_short(&first.kind) => {
            let query = [
                ("state", "retrying"),
                ("route", first.route.as_str()),
                ("kind", first.kind.as_str()),
            ];
            cause.link(view.events(&query), "Retrying events")
        }
        _ => cause.link(view.events(&[("state", "retrying")]), "Retrying events"),
    })
}

fn dead(view: &View, stats: &Stats) -> Option<Cause> {
    let dead = stats.dead();
    let level = match dead {
        0 => return None,
        MANY_DEAD.. => Level::Critical,
        _ => Level::Warning,
    };
    let mut kinds: Vec<_> = stats.kinds.iter().filter(|it| it.dead > 0).collect();
    kinds.sort_by_key(|it| Reverse(it.dead));
    let text = html! {
        b { (count(dead)) @if dead == 1 { " dead letter" } @else { " dead letters" } }
        " of " (names(kinds.into_iter().map(name_of)))
        @if dead == 1 { " waits" } @else { " wait" } " for a person."
    };
    Some(Cause::new(level, text).link(view.events(&[("state", "dead")]), "Dead letters"))
}

/// The note on a type, and for how long its worker was not seen, if that is away.
fn away_from<'a>(stats: &'a Stats, it: &KindStats) -> Option<(&'a HandlerNote, Duration)> {
    let (note, _) = stats.handler(&it.event_type())?;
    stats.away().into_iter().find(|(away, _)| *away == note)
}

/// Event types whose worker is away.
fn away(view: &View, stats: &Stats) -> Option<Cause> {
    let unattended = stats.unattended();
    let waits = |it: &&KindStats| {
        // There is a sentence about the whole route.
        it.waiting > 0 && !unattended.iter().any(|(route, _)| *route == it.route)
    };
    let kinds = stats.kinds.iter().filter(waits);
    let kinds: Vec<_> = kinds
        .filter_map(|it| Some((it, away_from(stats, it)?)))
        .collect();
    let (_, (note, unseen)) = kinds.iter().max_by_key(|(_, (_, unseen))| *unseen)?;
    let text = html! {
        "Nobody handles " (names(kinds.iter().map(|(it, _)| name_of(it)))) ": " (clip(&note.worker, 200))
        " did, and was last seen " (long(*unseen)) " ago. The events are put off by ten minutes at a time, and their chats go on "
        "without them. Start that worker, or retire its handler if it is not coming back."
    };
    let cause = Cause::new(Level::Critical, text);
    Some(cause.link(view.events(&[("state", "waiting")]), "Waiting events"))
}

/// Event types of which no attempt was made for long, though nothing keeps them from it, and that no worker has noted.
fn nobodys(view: &View, stats: &Stats) -> Option<Cause> {
    waiting_of(view, stats, false, "Nobody handles ")
}

/// The sentence on waiting types that a worker has noted.
fn waiting(view: &View, stats: &Stats) -> Option<Cause> {
    waiting_of(view, stats, true, "No attempt is made of ")
}

fn waiting_of(view: &View, stats: &Stats, are_noted: bool, start: &str) -> Option<Cause> {
    let unattended = unattended(view, stats);
    let slowed = view.console.inbox.as_ref().map(Inbox::slowed);
    let slowed = slowed.unwrap_or_default();
    // An attempt in progress or a failed one shows that a worker takes the type. Events behind others wait for these.
    let waits = |it: &&KindStats| {
        it.ready > 0
            && !slowed.contains_key(&it.event_type())
            // There is a sentence about the whole route.
            && !unattended.iter().any(|(route, _)| *route == it.route)
            && it.in_progress + it.retrying == 0
            && !it.is_paused
            && stats.age(it).is_some_and(|age| age >= LONG_WAIT)
            && away_from(stats, it).is_none()
            && stats.handler(&it.event_type()).is_some() == are_noted
    };
    let kinds: Vec<_> = stats.kinds.iter().filter(waits).collect();
    let oldest = kinds.iter().filter_map(|it| stats.age(it)).max()?;
    let text = html! {
        (start) (names(kinds.into_iter().map(name_of))) ": the oldest event was accepted "
        (long(oldest)) " ago, and no attempt was made. Does a worker run?"
    };
    let cause = Cause::new(Level::Critical, text);
    (!stats.is_paused()).then(|| cause.link(view.events(&[("state", "waiting")]), "Waiting events"))
}

/// Routes whose events wait although a worker could have begun them, and how many wait.
fn unattended(view: &View, stats: &Stats) -> Vec<(RouteName, u64)> {
    let mut routes = stats.unattended();
    let inbox = view.console.inbox.as_ref();
    routes.retain(|(route, _)| inbox.is_none_or(|inbox| !inbox.handles(route)));
    routes
}

fn of_routes(view: &View, stats: &Stats) -> Vec<Cause> {
    let cause = |(route, waiting): (RouteName, u64)| {
        let text = html! {
            (count(waiting)) @if waiting == 1 { " event of " } @else { " events of " } b { (route) }
            @if waiting == 1 { " waits" } @else { " wait" }
            ", and no worker seems to handle "
            @if waiting == 1 { "it" } @else { "them" }
            ": start one with a route of this name, or discard the events."
        };
        let query = [("state", "waiting"), ("route", route.as_str())];
        Cause::new(Level::Critical, text).link(view.events(&query), "Waiting events")
    };
    unattended(view, stats).into_iter().map(cause).collect()
}

/// Routes of which this worker should get events from another process, and has got none.
fn idle(view: &View) -> Option<Cause> {
    let routes = view.console.inbox.as_ref()?.idle_routes();
    let text = html! {
        "The worker of this process has had no event of " (names(routes.iter().map(ToString::to_string)))
        " since it was started: check that another process accepts these deliveries, under the same name."
    };
    (!routes.is_empty()).then(|| Cause::new(Level::Warning, text))
}

fn blocked(view: &View, stats: &Stats) -> Option<Cause> {
    let lanes: u64 = stats.kinds.iter().map(|it| it.blocking).sum();
    let text = match lanes {
        0 => return None,
        1 => {
            html! { "1 chat is blocked by an event that has failed: later ones wait for it" (until_repaired(view)) }
        }
        _ => {
            html! { (count(lanes)) " chats are blocked by events that have failed: later ones wait for them" (until_repaired(view)) }
        }
    };
    Some(Cause::new(Level::Warning, text).link(view.url("/lanes"), "Blocked lanes"))
}

/// What a person can do about events that fail.
fn until_repaired(view: &View) -> Markup {
    html! {
        ". When what they fail for is repaired, they succeed by themselves"
        @if view.can_change() { ", at once after " b { "Redrive" } }
        "."
    }
}

fn paused(_: &View, stats: &Stats) -> Option<Cause> {
    // That of everything comes first.
    let text = match &stats.pauses.first()?.of {
        Scope::Everything => html! { "Everything is paused." },
        _ => html! { "Paused: " (names(stats.pauses.iter().map(|pause| scope(&pause.of)))) "." },
    };
    Some(Cause::new(Level::Warning, text))
}
