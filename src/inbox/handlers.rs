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
    /// Since when other workers were seen without it: `seen`, or when the first one was seen after ten minutes without any,
    /// as when the database was away. `None` if there was none in the last ten minutes.
    pub missed_since: Option<SystemTime>,
    /// The name of its program, with host and process.
    pub worker: String,
}

/// What became of a note that a person ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retired {
    /// It was ended.
    Ended,
    /// No worker has noted this.
    NotNoted,
    /// It was kept, as its worker was seen in the last ten minutes, and others would ignore the events of a handler that is there.
    Kept {
        /// When it can be ended, if the worker is not seen again.
        until: SystemTime,
    },
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

/// What a worker does with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    Handle,
    /// The worker leaves the event to another, which handles its type. The event's chat waits.
    Leave,
    /// The worker for the type is away: the event is tried again later, and its chat goes on without it.
    PutOff,
    /// No worker handles the type.
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
        // A noted fallback may be this worker's own. A worker that is away may never come back.
        (Own::Fallback, Some(known)) if known.is_fallback || known.is_away => Duty::Handle,
        (Own::Nothing, Some(known)) if known.is_away => Duty::PutOff,
        (_, Some(_)) => Duty::Leave,
        (Own::Nothing, None) => Duty::Ignore,
    }
}

impl HandlerNote {
    /// Whether its worker was missed for so long that it is away.
    pub(super) fn is_away(&self, at: SystemTime) -> bool {
        let missed = self.missed_since.and_then(|it| at.duration_since(it).ok());
        missed > Some(AWAY_AFTER)
    }

    /// For how long its worker was not seen.
    pub(super) fn unseen(&self, at: SystemTime) -> Duration {
        at.duration_since(self.seen).unwrap_or_default()
    }

    /// What a queue returns of all notes that it keeps, each with the time since when it has been kept without an end: that on
    /// everything, which [each worker writes](NewNote::any), says since when others are missed.
    pub(crate) fn with_missed(mut notes: Vec<Self>) -> Vec<Self> {
        let any = notes.iter().position(|note| note.of == Scope::Everything);
        let since = any.and_then(|at| notes.swap_remove(at).missed_since);
        for note in &mut notes {
            note.missed_since = since.map(|since| since.max(note.seen));
        }
        notes
    }
}

impl NewNote {
    /// That a worker is there, whatever it handles.
    pub(super) fn any() -> Self {
        Self {
            of: Scope::Everything,
            is_fallback: true,
            keep: AWAY_AFTER,
        }
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
    pub(super) notes: Vec<HandlerNote>,
    /// When they were read, by the queue's clock.
    pub(super) at: SystemTime,
}

impl Noted {
    /// The note that decides on a type.
    pub(super) fn of(&self, route: &RouteName, kind: &EventKind) -> Option<&HandlerNote> {
        deciding(&self.notes, self.at, route, kind)
    }

    pub(super) fn duty(&self, own: Own, route: &RouteName, kind: &EventKind) -> Duty {
        let known = self.of(route, kind).map(|note| Known {
            is_fallback: note.is_fallback,
            is_away: note.is_away(self.at),
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
            note.of == Scope::Route(route.clone())
                && !note.is_away(self.at)
                && !handles.has_fallback
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
                    && self.of(&of.route, &of.kind) == Some(*note)
                    && self.duty(handles.own(&of.kind), &of.route, &of.kind) == Duty::Leave
            }
            of => {
                *of == Scope::Route(kinds.route.clone())
                    && kinds.included().is_none()
                    && !handles.has_fallback
                    && !note.is_away(self.at)
            }
        };
        self.notes.iter().filter(is_left).collect()
    }
}

/// The note that decides on a type: of those whose workers are there, that of a handler, and otherwise the newest one of a
/// fallback. If all are away, the same of these.
pub(super) fn deciding<'a>(
    notes: &'a [HandlerNote],
    at: SystemTime,
    route: &RouteName,
    kind: &EventKind,
) -> Option<&'a HandlerNote> {
    let notes = notes.iter().filter(|note| note.of.has(route, kind));
    notes.max_by_key(|note| (!note.is_away(at), !note.is_fallback, note.seen))
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
            missed_since: Some(at(seen)),
            worker: "crm".to_owned(),
        }
    }

    fn read(notes: Vec<HandlerNote>, minute: u32) -> Noted {
        let at = at(minute);
        Noted { notes, at }
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
            (note(false, true), Handle, Handle, PutOff),
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

    /// Ten minutes in which others were seen, and not those of an outage, or in which none was started.
    #[test]
    fn only_time_counts_in_which_others_were_seen() {
        let any = |since: u32| HandlerNote {
            of: Scope::Everything,
            missed_since: Some(at(since)),
            ..note("chat-rated", true, 90)
        };
        let duty = |any: Option<HandlerNote>, minute| {
            let mut notes = vec![note("chat-rated", false, 20)];
            notes.extend(any);
            let noted = read(HandlerNote::with_missed(notes), minute);
            assert_eq!(noted.notes.len(), 1);
            noted.duty(Own::Nothing, &RouteName::default(), &EventKind::CHAT_RATED)
        };
        assert_eq!(duty(Some(any(0)), 30), Duty::Leave);
        assert_eq!(duty(Some(any(0)), 31), Duty::PutOff);
        assert_eq!(duty(Some(any(80)), 90), Duty::Leave);
        assert_eq!(duty(Some(any(80)), 91), Duty::PutOff);
        assert_eq!(duty(None, 90), Duty::Leave, "nobody was seen");
        assert_eq!(duty(Some(any(0)), 10), Duty::Leave, "the clock jumped");
    }

    /// A fallback that is there comes before a handler that is away.
    #[test]
    fn who_is_there_decides() {
        let notes = vec![
            note("chat-rated", false, 0),
            note("chat-platform/", true, 20),
        ];
        let duty = |own, minute| {
            let noted = read(notes.clone(), minute);
            noted.duty(own, &RouteName::default(), &EventKind::CHAT_RATED)
        };
        let both = |minute| (duty(Own::Fallback, minute), duty(Own::Nothing, minute));
        assert_eq!(both(10), (Duty::Leave, Duty::Leave));
        assert_eq!(both(11), (Duty::Handle, Duty::Leave));
        assert_eq!(both(31), (Duty::Handle, Duty::PutOff));
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
