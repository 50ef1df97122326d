//! Which worker handles an event, if workers of one queue have handlers of different types: each notes its own, and leaves
//! what others have noted. Nothing is read or changed here.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use super::event::Kinds;
use crate::event::EventKind;
use crate::route::{EventType, RouteName, Scope};
use crate::router::Handles;

/// A note of a worker: it handles these events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerNote {
    /// An event type, or a route for all of its types that no other note names.
    pub of: Scope,
    /// Whether a fallback handles them, or a service that is no router: a handler of their type comes first.
    pub is_fallback: bool,
    /// When the worker was last seen, by the queue's clock.
    pub seen: SystemTime,
    /// The name of its program, with host and process.
    pub worker: String,
}

/// A note to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNote {
    /// See [`HandlerNote::of`].
    pub of: Scope,
    /// See [`HandlerNote::is_fallback`].
    pub is_fallback: bool,
    /// For how long it is kept after the worker was last seen.
    pub keep: Duration,
}

/// How often a worker notes its handlers.
pub(super) const NOTE_EVERY: Duration = Duration::from_secs(60);

/// The time after which a worker that was not seen is away.
pub(super) const AWAY_AFTER: Duration = Duration::from_secs(10 * 60);

/// By how much an event is put off whose worker is away.
pub(super) const PUT_OFF: Duration = Duration::from_secs(10 * 60);

/// Between two readings: after a longer time, the other workers may have been cut off from the queue, too.
const LONGEST_GAP: Duration = Duration::from_secs(3 * 60);

/// What a worker does with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    Handle,
    /// It leaves the event to the worker that handles it. Its chat waits.
    Leave,
    /// That worker is away: the event is tried again later, and its chat goes on without it.
    PutOff,
    /// No worker handles it.
    Ignore,
}

/// What a worker has for the events of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    Handler,
    Fallback,
    Nothing,
}

/// What is noted of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    is_fallback: bool,
    is_away: bool,
}

fn duty(own: Own, known: Option<Known>) -> Duty {
    match (own, known) {
        (Own::Handler, _) | (Own::Fallback, None) => Duty::Handle,
        // Its own one, perhaps.
        (Own::Fallback, Some(known)) if known.is_fallback => Duty::Handle,
        (_, Some(known)) if known.is_away => Duty::PutOff,
        (_, Some(_)) => Duty::Leave,
        (Own::Nothing, None) => Duty::Ignore,
    }
}

impl Handles {
    pub(super) fn own(&self, kind: &EventKind) -> Own {
        match (self.named.contains(kind), self.has_fallback) {
            (true, _) => Own::Handler,
            (false, true) => Own::Fallback,
            (false, false) => Own::Nothing,
        }
    }

    /// The notes on those of its events that the worker takes.
    pub(super) fn notes(&self, taken: &Kinds, keep: Duration) -> Vec<NewNote> {
        let note = |of, is_fallback| NewNote {
            of,
            is_fallback,
            keep,
        };
        let of_type = |kind: &EventKind| EventType::new(taken.route.clone(), kind.clone()).into();
        let named = self.named.iter().filter(|kind| taken.contains(kind));
        let mut notes: Vec<_> = named.map(|kind| note(of_type(kind), false)).collect();
        match taken.included() {
            _ if !self.has_fallback => {}
            None => notes.push(note(Scope::Route(taken.route.clone()), true)),
            Some(only) => {
                let others = only.iter().filter(|kind| !self.named.contains(*kind));
                notes.extend(others.map(|kind| note(of_type(kind), true)));
            }
        }
        notes
    }
}

/// The notes of all workers, as one of them has read them.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    notes: Vec<HandlerNote>,
    /// When they were read, by the queue's clock.
    at: SystemTime,
    /// Since when they were read without a gap.
    since: SystemTime,
}

impl Noted {
    pub(super) fn new(notes: Vec<HandlerNote>, at: SystemTime, before: Option<&Self>) -> Self {
        let goes_on = |before: &&Self| apart(at, before.at) <= LONGEST_GAP;
        Self {
            notes,
            at,
            since: before.filter(goes_on).map_or(at, |before| before.since),
        }
    }

    /// Whether the worker of a note was not seen for so long that it is away. Only time counts in which this worker would
    /// have seen it: after an outage of the database, or when all are started again, others may be a little later.
    fn is_away(&self, note: &HandlerNote) -> bool {
        let unseen = self.at.duration_since(note.seen).unwrap_or_default();
        unseen.min(apart(self.at, self.since)) > AWAY_AFTER
    }

    /// The note that decides on a type: that of a handler, and otherwise the newest one of a fallback.
    pub(super) fn of(&self, route: &RouteName, kind: &EventKind) -> Option<&HandlerNote> {
        newest(&self.notes, route, kind)
    }

    pub(super) fn duty(&self, own: Own, route: &RouteName, kind: &EventKind) -> Duty {
        let known = self.of(route, kind).map(|note| Known {
            is_fallback: note.is_fallback,
            is_away: self.is_away(note),
        });
        duty(own, known)
    }

    /// Leaves those of some kinds that the worker would not leave to another one.
    pub(super) fn taken(&self, kinds: Kinds, handles: &Handles) -> Kinds {
        let route = kinds.route.clone();
        let duty = |kind: &EventKind| self.duty(handles.own(kind), &route, kind);
        let named: BTreeSet<_> = (self.notes.iter())
            .filter_map(|note| match &note.of {
                Scope::Type(of) if of.route == route => Some(of.kind.clone()),
                _ => None,
            })
            .collect();
        // Of a kind that nobody names.
        let others = self.notes.iter().any(|note| {
            note.of == Scope::Route(route.clone()) && !self.is_away(note) && !handles.has_fallback
        });
        let (left, taken): (BTreeSet<_>, _) = named
            .into_iter()
            .partition(|kind| duty(kind) == Duty::Leave);
        match others {
            true => kinds.within(&handles.named | &taken).except(left),
            false => kinds.except(left),
        }
    }

    /// What a worker that takes these kinds would handle or ignore, and leaves to a worker that is there.
    pub(super) fn left(&self, kinds: &Kinds, handles: &Handles) -> Vec<&HandlerNote> {
        let is_left = |note: &&HandlerNote| match &note.of {
            Scope::Type(of) => {
                kinds.takes(&of.route, &of.kind)
                    && self.duty(handles.own(&of.kind), &of.route, &of.kind) == Duty::Leave
            }
            of => {
                *of == Scope::Route(kinds.route.clone())
                    && kinds.included().is_none()
                    && !handles.has_fallback
                    && !self.is_away(note)
            }
        };
        self.notes.iter().filter(is_left).collect()
    }

    /// For how long the worker of a note was not seen.
    pub(super) fn unseen(&self, note: &HandlerNote) -> Duration {
        self.at.duration_since(note.seen).unwrap_or_default()
    }
}

/// The note that decides on a type.
pub(super) fn newest<'a>(
    notes: &'a [HandlerNote],
    route: &RouteName,
    kind: &EventKind,
) -> Option<&'a HandlerNote> {
    let notes = notes.iter().filter(|note| note.of.has(route, kind));
    notes.max_by_key(|note| (!note.is_fallback, note.seen))
}

fn apart(a: SystemTime, b: SystemTime) -> Duration {
    a.duration_since(b).unwrap_or_else(|error| error.duration())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const START: SystemTime = SystemTime::UNIX_EPOCH;

    fn at(minutes: u32) -> SystemTime {
        START + minutes * MINUTE
    }

    fn note(of: &str, is_fallback: bool, seen: u32) -> HandlerNote {
        HandlerNote {
            of: of.parse().unwrap(),
            is_fallback,
            seen: at(seen),
            worker: "crm".to_owned(),
        }
    }

    /// As a worker that was started at the first minute reads it at this one.
    fn read(notes: Vec<HandlerNote>, until: u32) -> Noted {
        let mut noted = Noted::new(notes.clone(), at(0), None);
        for minute in 1..=until {
            noted = Noted::new(notes.clone(), at(minute), Some(&noted));
        }
        noted
    }

    #[test]
    fn the_rule() {
        use Duty::{Handle, Ignore, Leave, PutOff};
        let note = |is_fallback, is_away| {
            Some(Known {
                is_fallback,
                is_away,
            })
        };
        for (known, with_handler, with_fallback, with_nothing) in [
            (None, Handle, Handle, Ignore),
            (note(false, false), Handle, Leave, Leave),
            (note(false, true), Handle, PutOff, PutOff),
            (note(true, false), Handle, Handle, Leave),
            (note(true, true), Handle, Handle, PutOff),
        ] {
            assert_eq!(duty(Own::Handler, known), with_handler, "{known:?}");
            assert_eq!(duty(Own::Fallback, known), with_fallback, "{known:?}");
            assert_eq!(duty(Own::Nothing, known), with_nothing, "{known:?}");
        }
    }

    /// What is taken is all but what is left, whatever is noted and handled.
    #[test]
    fn what_is_left_is_not_taken() {
        let kinds = ["chat-rated", "chat-closed", "message-created"];
        let all = kinds.map(|kind| kind.parse::<EventKind>().unwrap());
        let known = ["chat-rated", "chat-closed", "chat-platform/"];
        let choices = known.map(|of| {
            let named = of != "chat-platform/";
            let mut choices = vec![None, Some(note(of, true, 20)), Some(note(of, true, 0))];
            choices.extend(named.then(|| Some(note(of, false, 20))));
            choices.extend(named.then(|| Some(note(of, false, 0))));
            choices
        });
        let [first, second, third] = &choices;
        let mut checked = 0;
        for notes in (first.iter())
            .flat_map(|a| second.iter().map(move |b| (a, b)))
            .flat_map(|(a, b)| third.iter().map(move |c| [a, b, c]))
        {
            let noted = read(notes.into_iter().flatten().cloned().collect(), 20);
            for (named, has_fallback) in [(0, false), (1, false), (0, true), (1, true)] {
                let handles = Handles {
                    named: all[..named].iter().cloned().collect(),
                    has_fallback,
                };
                for only in [None, Some(&all[..2])] {
                    let kinds = only.map_or(Kinds::all(), |only| Kinds::only(only.to_vec()));
                    let taken = noted.taken(kinds.clone(), &handles);
                    for kind in &all {
                        let duty = noted.duty(handles.own(kind), &RouteName::default(), kind);
                        let is_taken = kinds.contains(kind) && duty != Duty::Leave;
                        assert_eq!(
                            taken.contains(kind),
                            is_taken,
                            "{kind}: {noted:?} {handles:?}"
                        );
                        checked += 1;
                    }
                }
            }
        }
        assert_eq!(checked, 5 * 5 * 3 * 4 * 2 * 3);
    }

    /// Ten minutes of its absence that were seen, and not those of an outage or before a start.
    #[test]
    fn only_time_counts_in_which_a_worker_would_have_been_seen() {
        let kind = EventKind::CHAT_RATED;
        let duty = |noted: &Noted| noted.duty(Own::Nothing, &RouteName::default(), &kind);
        let notes = vec![note("chat-rated", false, 0)];
        assert_eq!(duty(&read(notes.clone(), 10)), Duty::Leave);
        assert_eq!(duty(&read(notes.clone(), 11)), Duty::PutOff);
        // Started an hour later.
        let mut noted = Noted::new(notes.clone(), at(60), None);
        for minute in 61..=70 {
            assert_eq!(duty(&noted), Duty::Leave, "{minute}");
            noted = Noted::new(notes.clone(), at(minute), Some(&noted));
        }
        let noted = Noted::new(notes.clone(), at(71), Some(&noted));
        assert_eq!(duty(&noted), Duty::PutOff);
        // After the database was away for 15 minutes, or the clock jumped.
        for minute in [86, 30] {
            let after = Noted::new(notes.clone(), at(minute), Some(&noted));
            assert_eq!(duty(&after), Duty::Leave);
        }
        // The clocks of two processes may differ by some milliseconds.
        let before = at(71) - Duration::from_millis(11);
        let again = Noted::new(notes, before, Some(&noted));
        assert_eq!(duty(&again), Duty::PutOff);
    }

    #[test]
    fn a_worker_notes_what_it_handles_and_takes() {
        let [rated, closed] = [EventKind::CHAT_RATED, EventKind::CHAT_CLOSED];
        let handles = |has_fallback| Handles {
            named: [rated.clone()].into(),
            has_fallback,
        };
        let noted = |has_fallback, kinds: &Kinds| {
            let notes = handles(has_fallback).notes(kinds, MINUTE);
            let mut notes = notes
                .into_iter()
                .map(|note| (note.of.to_string(), note.is_fallback));
            (notes.next(), notes.next(), notes.next())
        };
        let named = |kind: &str, is_fallback| Some((kind.to_owned(), is_fallback));
        let all = Kinds::all();
        assert_eq!(noted(false, &all), (named("chat-rated", false), None, None));
        let with_fallback = (
            named("chat-rated", false),
            named("chat-platform/", true),
            None,
        );
        assert_eq!(noted(true, &all), with_fallback);
        let only = Kinds::only([closed]);
        assert_eq!(noted(false, &only), (None, None, None));
        assert_eq!(noted(true, &only), (named("chat-closed", true), None, None));
    }
}
