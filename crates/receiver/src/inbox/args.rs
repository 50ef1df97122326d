//! The options of `inbox`.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{ArgGroup, Args, Subcommand};
use tower_webhook::inbox::{EventId, EventState, Filter, Scope, unescaped};
use tower_webhook::{EventKind, IdempotencyKey, RouteName};

#[derive(Args)]
pub(crate) struct Options {
    /// The inbox, as in `run --inbox`: `sqlite:PATH` or `postgres://HOST/DATABASE`
    ///
    /// `postgres://HOST,HOST/DATABASE` names several servers, of which one takes writes. Pass a URL with a password in the environment variable WEBHOOK_INBOX. While it is set, `receiver run` uses this
    /// inbox, too.
    #[arg(
        long,
        global = true,
        value_name = "INBOX",
        env = "WEBHOOK_INBOX",
        hide_env_values = true
    )]
    pub(crate) inbox: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List events, oldest first
    List {
        #[command(flatten)]
        matching: Matching,
        /// The maximum number of events to list
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// List the newest event first
        #[arg(long)]
        newest_first: bool,
        /// Print one line of JSON for each event
        #[arg(long)]
        json: bool,
    },
    /// List the chats in which events wait for one that has failed
    Lanes {
        /// The maximum number of chats to list
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Print one line of JSON for each chat
        #[arg(long)]
        json: bool,
    },
    /// List chats that have an event, but not the one that is expected with it: closed or transferred and not rated, or
    /// without what comes before
    ///
    /// A chat without any event is not found. Ratings may take days: `--older-than` leaves out what is recent.
    Gaps {
        #[command(flatten)]
        matching: Matching,
        /// The maximum number of chats to list
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Print one line of JSON for each chat
        #[arg(long)]
        json: bool,
    },
    /// Show an event with its payload, its headers and its failures
    Show {
        /// The number of the event
        #[arg(value_parser = number)]
        id: EventId,
        /// Print it as a line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Try events again: dead letters, settled events, or events that wait for their next attempt
    Redrive {
        #[command(flatten)]
        chosen: Chosen,
    },
    /// Discard events that are unsettled or dead: they are not handled any more
    Discard {
        #[command(flatten)]
        chosen: Chosen,
    },
    /// Continue a change of all that match, whose process has ended before its end
    Continue {
        /// The number of its action
        number: i64,
    },
    /// Cancel a change of all that match; events that were changed before stay changed
    Cancel {
        /// The number of its action
        number: i64,
    },
    /// Delete the payloads, headers and errors of a chat, and discard its events that were not handled
    ///
    /// The types, keys and times of the events, and the chat's id, stay for the retention. The last line says who did it,
    /// and when, with a digest of the chat's id. If the command is interrupted, repeat it.
    Forget {
        /// The id of the chat
        #[arg(value_name = "CHAT", value_parser = chat)]
        chat: String,
        /// Why, for the list of actions
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Do not ask before
        #[arg(long)]
        yes: bool,
    },
    /// Forward the events that a receiver has left in its spool, when it is not started again
    ///
    /// Its receiver must not run. Exits with 1 if events are left.
    Flush {
        /// The file of `run --spool`
        #[arg(value_name = "FILE")]
        spool: PathBuf,
        /// How long it may take
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        within: u64,
        /// Remove what the inbox refuses, after it is printed as `export` prints events
        #[arg(long)]
        drop_refused: bool,
    },
    /// Pause the handling of events, of one type, a route or all; events are still accepted
    Pause {
        #[command(flatten)]
        what: What,
        /// Who pauses it and why, for the others
        #[arg(
            long,
            value_name = "TEXT",
            default_value = "",
            hide_default_value = true
        )]
        note: String,
    },
    /// Resume the handling of events after a pause
    Resume {
        #[command(flatten)]
        what: What,
    },
    /// End the note on a handler whose worker is not coming back: its events are then ignored, and not put off any more
    Retire {
        /// The event type, such as `chat-rated` or `github/push`, or a route for its other types, such as `github/`
        #[arg(value_name = "TYPE")]
        of: Scope,
        /// Why, for the list of actions
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List who changed what, and why, newest first
    Actions {
        /// Those that changed this event
        #[arg(long, value_name = "ID", value_parser = number)]
        event: Option<EventId>,
        /// The maximum number of actions to list
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Print one line of JSON for each action
        #[arg(long)]
        json: bool,
    },
    /// Count the unsettled events and the dead letters of each event type
    Stats {
        /// Print it as a line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Print events with their payloads and failures, as lines of JSON
    Export {
        #[command(flatten)]
        matching: Matching,
    },
    /// Copy the inbox to a new file, whether or not receivers are running
    Backup {
        /// The new file, which only its owner may read
        file: PathBuf,
    },
    /// Create the inbox from a copy, while no receiver is running
    Restore {
        /// The file that `backup` has made
        file: PathBuf,
        /// Do not ask before
        #[arg(long)]
        yes: bool,
    },
}

/// What is paused or resumed. Everything has to be asked for: a command whose type was forgotten would stop the receiver.
#[derive(Args, Clone)]
#[command(group = ArgGroup::new("what").required(true).args(["of", "everything"]))]
pub(crate) struct What {
    /// The event type, such as `chat-rated` or `github/push`, or a route, such as `github/`
    #[arg(value_name = "TYPE", value_parser = type_or_route)]
    of: Option<Scope>,
    /// All events, of every type and route
    #[arg(long = "all")]
    everything: bool,
}

impl What {
    pub(crate) fn scope(&self) -> Scope {
        self.of.clone().unwrap_or(Scope::Everything)
    }
}

/// Selects events. Without an option, all events match.
#[derive(Args, Clone)]
#[command(group = ArgGroup::new("states").args(["state", "failed"]))]
pub(crate) struct Matching {
    /// Events of this state: waiting, in-progress, retrying, handled, ignored, discarded or dead; repeat it for several
    #[arg(long, value_name = "STATE")]
    state: Vec<EventState>,
    /// Events that have failed and were not handled since: retrying or dead. `--older-than` and `--newer-than` then mean
    /// the last failure
    #[arg(long)]
    failed: bool,
    /// Events that were accepted at the route of this name; repeat it for several
    #[arg(long, value_name = "NAME")]
    route: Vec<RouteName>,
    /// Events of this type, without its route; repeat it for several
    #[arg(long = "type", alias = "kind", value_name = "TYPE")]
    kind: Vec<EventKind>,
    /// Events of the chat with this id
    #[arg(long, value_name = "ID", value_parser = chat)]
    chat: Option<String>,
    /// The event with this idempotency key
    #[arg(long, value_name = "KEY")]
    key: Option<IdempotencyKey>,
    /// Events that have failed with an error that contains this text, ignoring ASCII case
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Events that were accepted before this time, such as 2026-11-22T20:15 (UTC), or at least this long ago, such as 2h
    #[arg(long, value_name = "TIME", value_parser = time)]
    older_than: Option<SystemTime>,
    /// Events that were accepted at this time or later, or at most this long ago
    #[arg(long, value_name = "TIME", value_parser = time)]
    newer_than: Option<SystemTime>,
}

fn number(text: &str) -> Result<EventId, &'static str> {
    let error =
        "not the number of an event: `receiver inbox list` finds it, also with --key or --chat";
    text.parse().map_err(|_| error)
}

/// Selects the events to change.
#[derive(Args, Clone)]
#[command(group = ArgGroup::new("events").required(true).args(["ids", "all"]))]
pub(crate) struct Chosen {
    /// The numbers of the events
    #[arg(value_name = "ID", value_parser = number)]
    pub(crate) ids: Vec<EventId>,
    /// All events that match the options below, instead of numbers; requires `--state` or `--failed`
    #[arg(long, requires = "states")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) matching: Matching,
    /// Why they are changed, for the list of actions
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Do not ask before the change
    #[arg(long)]
    pub(crate) yes: bool,
}

impl Matching {
    pub(crate) fn filter(&self) -> Filter {
        let (from, until) = (self.newer_than, self.older_than);
        let mut filter = match self.failed {
            true => Filter::failed(from, until),
            false => Filter::default()
                .states(self.state.clone())
                .accepted(from, until),
        };
        filter.routes.clone_from(&self.route);
        filter.kinds.clone_from(&self.kind);
        filter.chat.clone_from(&self.chat);
        filter.key.clone_from(&self.key);
        filter.error.clone_from(&self.error);
        filter
    }

    pub(crate) fn is_everything(&self) -> bool {
        let filter = self.filter();
        filter.states.is_empty()
            && filter.routes.is_empty()
            && filter.kinds.is_empty()
            && filter.chat.is_none()
            && filter.key.is_none()
            && filter.error.is_none()
            && filter.accepted_from.is_none()
            && filter.accepted_until.is_none()
    }
}

impl Command {
    /// The events that it names: those of routes and kinds, and perhaps of a key.
    pub(crate) fn named(&self) -> Filter {
        match self {
            Self::List { matching, .. }
            | Self::Gaps { matching, .. }
            | Self::Export { matching } => matching.filter(),
            Self::Redrive { chosen } | Self::Discard { chosen } => chosen.matching.filter(),
            Self::Pause { what, .. } | Self::Resume { what } => of_scope(what.scope()),
            Self::Retire { of, .. } => of_scope(of.clone()),
            _ => Filter::default(),
        }
    }

    /// Why something is changed.
    pub(crate) fn reason(&self) -> &str {
        let reason = match self {
            Self::Redrive { chosen } | Self::Discard { chosen } => &chosen.reason,
            Self::Forget { reason, .. } | Self::Retire { reason, .. } => reason,
            Self::Pause { note, .. } => return note,
            _ => &None,
        };
        reason.as_deref().unwrap_or_default()
    }
}

/// The id of a chat as the other commands show it.
fn chat(text: &str) -> Result<String, Infallible> {
    Ok(unescaped(text).into_owned())
}

fn of_scope(of: Scope) -> Filter {
    match of {
        Scope::Route(route) => Filter::default().routes([route]),
        Scope::Type(of) => Filter::default().routes([of.route]).kinds([of.kind]),
        _ => Filter::default(),
    }
}

/// An empty text means everything, and may be a variable of a script that is not set.
fn type_or_route(text: &str) -> Result<Scope, String> {
    match text.parse() {
        Ok(Scope::Everything) => Err("pass --all for everything".to_owned()),
        Ok(of) => Ok(of),
        Err(error) => Err(format!("{error}")),
    }
}

/// A time in UTC, or one so long ago.
fn time(text: &str) -> Result<SystemTime, String> {
    if let Some(age) = age(text) {
        // An age before the start of time matches nothing, or everything.
        let at = SystemTime::now().checked_sub(age);
        return Ok(at.unwrap_or(SystemTime::UNIX_EPOCH));
    }
    let whole = match text.len() {
        10 => format!("{text}T00:00:00"),
        16 => format!("{text}:00"),
        _ => text.to_owned(),
    };
    let at = humantime::parse_rfc3339_weak(&whole);
    at.map_err(|_| {
        format!("`{text}` is neither an age, such as 90s, 15m, 2h or 7d, nor a time, such as 2026-11-22T20:15, in UTC")
    })
}

fn age(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return None,
    };
    let number: u64 = text[..text.len() - 1].parse().ok()?;
    number.checked_mul(seconds).map(Duration::from_secs)
}
