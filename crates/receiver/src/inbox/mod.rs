//! Shows and changes an inbox: lists events, shows why they failed, redrives or discards them. Copies it, too.

pub(crate) mod args;
#[cfg(feature = "sqlite")]
mod backup;
mod change;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
mod flush;
mod forget;
pub(crate) mod print;

use std::collections::BTreeSet;
use std::env;
use std::process::ExitCode;
use std::time::SystemTime;

use futures_util::future::join_all;
use nix::unistd::{User, getuid};
use tower_webhook::inbox::{By, EventSummary, Filter, Inbox, Page, Retired, Scope, Which};
use tower_webhook::{EventKind, EventType, RouteName, Webhooks};

use self::args::{Command, Options};
use self::change::{Action, cancel, change, go_on};
use self::forget::forget;
use crate::cli::misused;
use crate::kinds;
use crate::place::Place;

pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let Options { inbox, command } = options;
    let Some(inbox) = inbox else {
        misused("which inbox? Pass `--inbox`, or set the environment variable WEBHOOK_INBOX");
    };
    let place = Place::parse_inbox(&inbox).unwrap_or_else(|error| misused(error));
    match (place, command) {
        #[cfg(feature = "sqlite")]
        (Place::Sqlite(path), Command::Backup { file }) => backup::backup(path, &file),
        #[cfg(feature = "sqlite")]
        (Place::Sqlite(path), Command::Restore { file, yes }) => {
            backup::restore(&file, path, yes).await
        }
        (_, Command::Backup { .. } | Command::Restore { .. }) => anyhow::bail!(
            "an inbox in PostgreSQL is copied with its database, by `pg_dump`, and restored by `pg_restore`"
        ),
        #[cfg(all(feature = "postgres", feature = "sqlite"))]
        (
            Place::Postgres(server),
            Command::Flush {
                spool,
                within,
                drop_refused,
            },
        ) => {
            let queue = crate::store::postgres_queue(server).await?;
            flush::flush(queue, &spool, within, drop_refused).await
        }
        (_, Command::Flush { .. }) => {
            anyhow::bail!("a spool is in front of an inbox in PostgreSQL")
        }
        #[cfg(feature = "sqlite")]
        (Place::Sqlite(path), command) => {
            // It would be created, and look like an empty inbox.
            anyhow::ensure!(path.exists(), "there is no file `{}`", path.display());
            execute(Inbox::new(crate::store::sqlite_queue(path)?), command).await
        }
        #[cfg(feature = "postgres")]
        (Place::Postgres(server), command) => {
            let queue = crate::store::postgres_queue(server).await?;
            execute(Inbox::new(queue), command).await
        }
        // `Place::parse_inbox` makes no others.
        (other, _) => anyhow::bail!("{other} cannot be an inbox"),
    }
}

/// Has a key looked up at all routes of the inbox.
async fn know_routes(inbox: &Inbox) -> anyhow::Result<()> {
    let kinds = inbox.stats().await?.kinds;
    let names: BTreeSet<_> = kinds.into_iter().map(|it| it.route).collect();
    let mut routes = inbox.routes();
    for name in names {
        // An inbox knows those of the receivers that were made for it.
        routes.accept(Webhooks::dangerously_unsigned().name(name))?;
    }
    Ok(())
}

/// Says which routes and kinds neither the platform nor the inbox has: they are typing errors, perhaps.
async fn unknown(inbox: &Inbox, named: &Filter) -> anyhow::Result<Vec<String>> {
    let mut unknown = Vec::new();
    let is_unseen = async |filter: Filter| {
        let listed = inbox.list(&filter, Page::newest(1)).await?;
        anyhow::Ok(listed.events.is_empty())
    };
    let platform = RouteName::default();
    for route in named.routes.iter().filter(|route| **route != platform) {
        if is_unseen(Filter::default().routes([route.clone()])).await? {
            unknown.push(format!("the inbox has no event of the route `{route}`"));
        }
    }
    let is_of_platform = named.routes.is_empty() || named.routes.contains(&platform);
    let is_known = |kind: &EventKind| is_of_platform && EventKind::ALL.contains(kind);
    for kind in named.kinds.iter().filter(|kind| !is_known(kind)) {
        let of_kind = Filter::default().routes(named.routes.clone());
        if !is_unseen(of_kind.kinds([kind.clone()])).await? {
            continue;
        }
        // Also those that are settled, if they are recent.
        let recent = inbox.list(&Filter::default(), Page::newest(1_000)).await?;
        let meant = recent.events.iter().find_map(
            |EventSummary {
                 route, kind: its, ..
             }| {
                let of = EventType::new(route.clone(), its.clone());
                match kind.as_str() {
                    text if text == its.as_str() => Some(of.to_string()),
                    text if text == route.as_str() => Some(format!("{route}/")),
                    text if text == of.to_string() => Some(format!("--route {route} --type {its}")),
                    _ => None,
                }
            },
        );
        if let Some(meant) = meant {
            unknown.push(format!(
                "the inbox has no such event `{kind}`: did you mean `{meant}`?"
            ));
            continue;
        }
        let seen = recent.events.into_iter().map(|event| event.kind);
        unknown.extend(kinds::unknown(kind, seen.collect()));
    }
    Ok(unknown)
}

/// Says what was paused or resumed.
fn said(what: &str, of: &Scope) {
    match of {
        Scope::Everything => eprintln!("{what}: everything"),
        of => eprintln!("{what}: {of}"),
    }
}

/// The user of this command.
fn user() -> String {
    let names = ["SUDO_USER", "USER", "LOGNAME"];
    let mut users = names.into_iter().filter_map(|name| env::var(name).ok());
    // A timer of systemd and a container may have none of them.
    users.find(|user| !user.is_empty()).unwrap_or_else(|| {
        let uid = getuid();
        match User::from_uid(uid) {
            Ok(Some(user)) => user.name,
            _ => format!("user {uid}"),
        }
    })
}

/// Who changes something, for the list of actions.
fn by(reason: &str) -> By {
    By::new(&format!("{} (receiver inbox)", user())).because(reason)
}

async fn execute(inbox: Inbox, command: Command) -> anyhow::Result<ExitCode> {
    let named = command.named();
    if named.key.is_some() {
        know_routes(&inbox).await?;
    }
    for unknown in unknown(&inbox, &named).await? {
        // What is paused by a wrong name goes on. A route in front of it may be one of tomorrow.
        let is_bare = named.routes.iter().all(|it| *it == RouteName::default());
        if is_bare && matches!(command, Command::Pause { .. }) {
            eprintln!("error: {unknown}; nothing was paused");
            return Ok(ExitCode::FAILURE);
        }
        eprintln!("warning: {unknown}");
    }
    let inbox = &inbox.by(by(command.reason()));
    match command {
        Command::List {
            matching,
            limit,
            newest_first,
            json,
        } => {
            let mut events = Vec::new();
            let filter = matching.filter();
            let mut pages = Pages::new(inbox, &filter, newest_first);
            while events.len() < limit
                && let Some(page) = pages.next().await?
            {
                events.extend(page);
            }
            events.truncate(limit);
            match json {
                true => print::lines(&events)?,
                false => print::table(&events)?,
            }
        }
        Command::Show { id, json } => {
            let Some(record) = inbox.get(id).await? else {
                eprintln!("error: there is no event {id}");
                return Ok(ExitCode::FAILURE);
            };
            match json {
                true => print::record_line(&record)?,
                false => {
                    let place = inbox.place_of(&record.summary).await?;
                    print::record(&record, place.ahead(&record.summary))?;
                }
            }
        }
        Command::Gaps {
            matching,
            limit,
            json,
        } => {
            let gaps = inbox.gaps(&matching.filter(), Page::oldest(limit)).await?;
            match json {
                true => print::gap_lines(&gaps.events)?,
                false => print::gaps(&gaps.events)?,
            }
        }
        Command::Lanes { limit, json } => {
            let lanes = inbox.blocked_lanes(None, None, limit).await?;
            match json {
                true => print::lane_lines(&lanes)?,
                false => print::lanes(&lanes)?,
            }
        }
        Command::Redrive { chosen } => return change(inbox, Action::Redrive, chosen).await,
        Command::Discard { chosen } => return change(inbox, Action::Discard, chosen).await,
        Command::Continue { number } => return go_on(inbox, number).await,
        Command::Cancel { number } => return cancel(inbox, number).await,
        Command::Forget { chat, yes, .. } => return forget(inbox, chat, yes).await,
        Command::Pause { what, note } => {
            let of = what.scope();
            inbox.pause(of.clone(), &note).await?;
            said("paused", &of);
        }
        Command::Resume { what } => {
            let of = what.scope();
            inbox.resume(of.clone()).await?;
            said("resumed", &of);
            for pause in inbox.stats().await?.pauses {
                said("still paused", &pause.of);
            }
        }
        Command::Retire { of, .. } => match inbox.retire(of.clone()).await? {
            Retired::Ended => said("retired", &of),
            Retired::Kept { until } => {
                let left = until.duration_since(SystemTime::now()).unwrap_or_default();
                eprintln!(
                    "a worker that handles {of} was seen in the last ten minutes: nothing was retired; if it is not coming back, \
                     retire its handler in {} min",
                    // Of another clock.
                    (left.as_secs() / 60 + 1).min(10)
                );
                return Ok(ExitCode::FAILURE);
            }
            _ => {
                eprintln!(
                    "no worker has noted that it handles {of}: nothing was retired; `receiver inbox stats` lists handlers that \
                     are away"
                );
                return Ok(ExitCode::FAILURE);
            }
        },
        Command::Actions { event, limit, json } => {
            let actions = inbox
                .actions(event.map_or(Which::All, Which::Of), None, limit)
                .await?;
            match json {
                true => print::action_lines(&actions)?,
                false => print::actions(&actions)?,
            }
        }
        Command::Stats { json } => {
            let stats = inbox.stats().await?;
            match json {
                true => print::stats_line(&stats)?,
                false => print::stats(&stats)?,
            }
        }
        Command::Export { matching } => {
            let filter = matching.filter();
            let mut pages = Pages::new(inbox, &filter, false);
            while let Some(page) = pages.next().await? {
                for some in page.chunks(AT_ONCE) {
                    let records = join_all(some.iter().map(|event| inbox.get(event.id)));
                    for record in records.await {
                        if let Some(record) = record? {
                            print::record_line(&record)?;
                        }
                    }
                }
            }
        }
        // They open no inbox.
        Command::Backup { .. } | Command::Restore { .. } | Command::Flush { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// How many events are read at the same time. They share a statement.
const AT_ONCE: usize = 128;

/// The events that match, page by page.
pub(crate) struct Pages<'a> {
    inbox: &'a Inbox,
    filter: &'a Filter,
    /// `None` after the last one.
    next: Option<Page>,
}

impl<'a> Pages<'a> {
    pub(crate) fn new(inbox: &'a Inbox, filter: &'a Filter, newest_first: bool) -> Self {
        let mut first = Page::oldest(4 * AT_ONCE);
        first.newest_first = newest_first;
        Self {
            inbox,
            filter,
            next: Some(first),
        }
    }

    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Vec<EventSummary>>> {
        let Some(page) = self.next else {
            return Ok(None);
        };
        let events = self.inbox.list(self.filter, page).await?.events;
        self.next = events.last().map(|last| page.after(last.id));
        Ok(self.next.map(|_| events))
    }
}
