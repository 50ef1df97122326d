//! Redrives or discards events, after a preview.

use std::future::pending;
use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::signal::ctrl_c;
use tokio::time::sleep;
use tower_webhook::inbox::{
    ActionKind, BulkState, Change, EventId, EventState, Inbox, Page, Scope, Selection, Which,
};

use super::args::Chosen;
use super::{Pages, print};
use crate::cli::misused;

#[derive(Clone, Copy)]
pub(crate) enum Action {
    Redrive,
    Discard,
}

/// How many events are changed at the same time. They share a transaction, for which deliveries wait.
const AT_ONCE: usize = 64;

/// How many events the preview shows.
const PREVIEW: usize = 5;

/// How often a command shows its progress.
const SHOW: Duration = Duration::from_millis(200);

pub(crate) async fn change(
    inbox: &Inbox,
    action: Action,
    chosen: Chosen,
) -> anyhow::Result<ExitCode> {
    if !chosen.all && !chosen.matching.is_everything() {
        misused("options that select events need `--all`, and no numbers");
    }
    let (made, is_complete) = match chosen.all {
        true => change_all(inbox, action, &chosen).await?,
        false => change_some(inbox, action, &chosen).await?,
    };
    if matches!(action, Action::Redrive) && made > 0 {
        name_pauses(inbox).await?;
    }
    Ok(code(is_complete))
}

/// Continues a change of all events that match, whose process has ended.
pub(crate) async fn go_on(inbox: &Inbox, number: i64) -> anyhow::Result<ExitCode> {
    let (made, is_complete) = make(inbox, number).await?;
    let action = inbox.action(number).await?;
    if made > 0 && action.is_some_and(|action| action.kind == ActionKind::Redrive) {
        name_pauses(inbox).await?;
    }
    Ok(code(is_complete))
}

/// Cancels a change of all events that match.
pub(crate) async fn cancel(inbox: &Inbox, number: i64) -> anyhow::Result<ExitCode> {
    let was_open = inbox.cancel(number).await?;
    match was_open {
        true => eprintln!("cancelled: action {number}"),
        false => eprintln!("error: action {number} is no change of all that match, or has ended"),
    }
    Ok(code(was_open))
}

fn code(is_complete: bool) -> ExitCode {
    match is_complete {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

async fn name_pauses(inbox: &Inbox) -> anyhow::Result<()> {
    for pause in inbox.stats().await?.pauses {
        let (name, of) = match pause.of {
            Scope::Everything => ("everything".to_owned(), " --all".to_owned()),
            of => (of.to_string(), format!(" {of}")),
        };
        eprintln!("{name} is paused: its events are tried after `receiver inbox resume{of}`");
    }
    Ok(())
}

/// Returns how many events were changed, and whether that were all.
async fn change_some(
    inbox: &Inbox,
    action: Action,
    chosen: &Chosen,
) -> anyhow::Result<(u64, bool)> {
    if !is_agreed(action, chosen, chosen.ids.len())? {
        return Ok((0, false));
    }
    let mut counts = Counts::default();
    let mut stopped = std::pin::pin!(ctrl_c());
    for some in chosen.ids.chunks(AT_ONCE) {
        // Not during a change: what was begun is counted.
        if stopped.as_mut().now_or_never().is_some() {
            say_stopped(counts.all(), chosen.ids.len() as u64);
            break;
        }
        let changes = some.iter().map(async |id| match action {
            Action::Redrive => inbox.redrive(*id, None).await,
            Action::Discard => inbox.discard(*id, None).await,
        });
        for (id, change) in some.iter().zip(join_all(changes).await) {
            let change = change?;
            counts.count(*id, change);
            if matches!((action, change), (Action::Redrive, Change::Made)) {
                name_ahead(inbox, *id).await?;
            }
        }
    }
    eprintln!("{}: {}", action.done(), counts.made);
    let is_complete = counts.failed == 0 && counts.all() == chosen.ids.len() as u64;
    Ok((counts.made, is_complete))
}

/// Says for which event a redriven one waits, if it waits behind one.
async fn name_ahead(inbox: &Inbox, id: EventId) -> anyhow::Result<()> {
    let Some(record) = inbox.get(id).await? else {
        return Ok(());
    };
    let place = inbox.place_of(&record.summary).await?;
    if let Some(ahead) = place.ahead(&record.summary) {
        let why = ahead.why_unsettled();
        let ahead = ahead.id;
        eprintln!(
            "event {id} waits for event {ahead} of the same chat, which {why}: to redrive event {id} changes nothing before"
        );
    }
    Ok(())
}

/// Changes all events that match. If the command is killed, `receiver inbox continue` or a console goes on.
async fn change_all(inbox: &Inbox, action: Action, chosen: &Chosen) -> anyhow::Result<(u64, bool)> {
    name_interrupted(inbox).await?;
    let Some(selection) = preview(inbox, action, chosen).await? else {
        eprintln!("no event matches");
        return Ok((0, true));
    };
    if !is_agreed(action, chosen, selection.matched as usize)? {
        return Ok((0, false));
    }
    let number = inbox.begin_all(action.kind(), &selection, 0).await?;
    make(inbox, number).await
}

/// Says which changes of all that match wait for somebody who continues them.
async fn name_interrupted(inbox: &Inbox) -> anyhow::Result<()> {
    for action in inbox.actions(Which::Running, None, 100).await? {
        let bulk = action.bulk.as_ref();
        if bulk.is_none_or(|bulk| bulk.state != BulkState::Interrupted) {
            continue;
        }
        let who = match action.by.who() {
            "" => "somebody".to_owned(),
            who => print::short(who),
        };
        let (number, kind, changed) = (action.number, action.kind, action.changed);
        eprintln!(
            "action {number} of {who} was interrupted after {changed} events ({kind} all that match): `receiver inbox continue {number}` continues it, `receiver inbox cancel {number}` cancels it"
        );
    }
    Ok(())
}

/// Makes a change that was begun until its end, or until Ctrl-C, which cancels it. Returns how many events were changed, and
/// whether that were all.
async fn make(inbox: &Inbox, number: i64) -> anyhow::Result<(u64, bool)> {
    let ended = tokio::select! {
        ended = inbox.continue_all(number) => Some(ended?),
        () = show(inbox, number) => None,
        _ = ctrl_c() => {
            inbox.cancel(number).await?;
            inbox.action(number).await?
        }
    };
    let action = ended.with_context(|| format!("the inbox has lost action {number}"))?;
    let (made, of) = (action.changed, action.selection());
    let bulk = action.bulk.context("it is no change of all that match")?;
    let of = of.map_or(0, |selection| selection.matched);
    match bulk.state {
        BulkState::Done => {}
        BulkState::Cancelled => say_stopped(made + bulk.skipped, of),
        _ => eprintln!("another process goes on with action {number}"),
    }
    if bulk.skipped > 0 {
        let skipped = bulk.skipped;
        eprintln!(
            "{skipped} were not changed: they were settled meanwhile, or an attempt is in progress, or their bodies were deleted"
        );
    }
    let done = match action.kind {
        ActionKind::Redrive => Action::Redrive.done(),
        _ => Action::Discard.done(),
    };
    eprintln!("{done}: {made}");
    Ok((made, bulk.state == BulkState::Done && bulk.skipped == 0))
}

/// Shows the progress of a change, forever.
async fn show(inbox: &Inbox, number: i64) {
    if !io::stderr().is_terminal() {
        return pending().await;
    }
    let _line = Line;
    loop {
        sleep(SHOW).await;
        if let Ok(Some(action)) = inbox.action(number).await
            && let (Some(bulk), Some(selection)) = (&action.bulk, action.selection())
        {
            let at = action.changed + bulk.skipped;
            eprint!("\r{at}/{} ", selection.matched);
        }
    }
}

/// The line with the progress, which ends when it is dropped.
struct Line;

impl Drop for Line {
    fn drop(&mut self) {
        eprintln!();
    }
}

/// What is changed: the events that match and that can be changed, of those that are there now. Shows the first ones.
async fn preview(
    inbox: &Inbox,
    action: Action,
    chosen: &Chosen,
) -> anyhow::Result<Option<Selection>> {
    let mut filter = chosen.matching.filter();
    filter.states.retain(|state| action.applies(*state));
    if filter.states.is_empty() {
        return Ok(None);
    }
    let Some(seen) = inbox.seen().await? else {
        return Ok(None);
    };
    let mut selection = inbox.select(&filter, seen).await?;
    if selection.is_more {
        (selection.matched, selection.is_more) = (0, false);
        let mut pages = Pages::new(inbox, &filter, false);
        while let Some(page) = pages.next().await? {
            selection.matched += page.iter().filter(|event| seen.has(event)).count() as u64;
        }
    }
    if selection.is_empty() {
        return Ok(None);
    }
    if !chosen.yes {
        let mut first = inbox.list(&filter, Page::oldest(PREVIEW)).await?.events;
        first.retain(|event| seen.has(event));
        print::preview(&first, selection.matched as usize)?;
    }
    Ok(Some(selection))
}

fn say_stopped(after: u64, of: u64) {
    eprintln!("stopped after {after} of {of} events");
}

fn is_agreed(action: Action, chosen: &Chosen, count: usize) -> anyhow::Result<bool> {
    let events = if count == 1 { "event" } else { "events" };
    let question = format!("{} {count} {events}?", action.name());
    let is_agreed = chosen.yes || is_confirmed(&question)?;
    if !is_agreed {
        eprintln!("nothing was changed");
    }
    Ok(is_agreed)
}

/// Exits if nobody could be asked.
pub(crate) fn must_be_terminal() {
    if !io::stdin().is_terminal() {
        misused("standard input is no terminal to ask at: pass `--yes`");
    }
}

pub(crate) fn is_confirmed(question: &str) -> anyhow::Result<bool> {
    must_be_terminal();
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Self::Redrive => "Redrive",
            Self::Discard => "Discard",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Redrive => "redriven",
            Self::Discard => "discarded",
        }
    }

    fn kind(self) -> ActionKind {
        match self {
            Self::Redrive => ActionKind::Redrive,
            Self::Discard => ActionKind::Discard,
        }
    }

    fn applies(self, state: EventState) -> bool {
        match self {
            Self::Redrive => state != EventState::InProgress,
            Self::Discard => state.is_unsettled() || state == EventState::Dead,
        }
    }
}

#[derive(Default)]
struct Counts {
    made: u64,
    failed: u64,
}

impl Counts {
    fn all(&self) -> u64 {
        self.made + self.failed
    }

    fn count(&mut self, id: EventId, change: Change) {
        let reason = match change {
            Change::Made => {
                self.made += 1;
                return;
            }
            Change::NotFound => "there is no such event",
            Change::WithoutBody => "its body was deleted, so it cannot be handled any more",
            _ => {
                "its state has changed or does not allow it: it is settled, or an attempt is in progress"
            }
        };
        self.failed += 1;
        eprintln!("event {id}: {reason}");
    }
}
