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
use tower_webhook::inbox::internal::{Scope, Seen};
use tower_webhook::inbox::{
    Action as Done, ActionKind, Change, EventId, EventState, Filter, Inbox, Job, JobState, Page,
    Queue, Which,
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

/// How often a command looks for the end of a job that another process has.
const POLL: Duration = Duration::from_millis(500);

/// How often it shows its progress.
const SHOW: Duration = Duration::from_millis(200);

pub(crate) async fn change<Q: Queue>(
    inbox: &Inbox<Q>,
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
        for pause in inbox.pauses().await? {
            let kind = pause.kind.map(|kind| kind.to_string());
            let (name, of) = match &kind {
                Some(kind) => (kind.as_str(), format!(" {kind}")),
                None => ("everything", String::new()),
            };
            eprintln!("{name} is paused: its events are tried after `receiver inbox resume{of}`");
        }
    }
    Ok(match is_complete {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Returns how many events were changed, and whether that were all.
async fn change_some<Q: Queue>(
    inbox: &Inbox<Q>,
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
            counts.count(*id, change?);
        }
    }
    eprintln!("{}: {}", action.done(), counts.made);
    let is_complete = counts.failed == 0 && counts.all() == chosen.ids.len() as u64;
    Ok((counts.made, is_complete))
}

/// Changes all events that match in a job, which a console or the next command continues if this one is killed.
async fn change_all<Q: Queue>(
    inbox: &Inbox<Q>,
    action: Action,
    chosen: &Chosen,
) -> anyhow::Result<(u64, bool)> {
    continue_jobs(inbox).await?;
    let Some(scope) = preview(inbox, action, chosen).await? else {
        eprintln!("no event matches");
        return Ok((0, true));
    };
    if !is_agreed(action, chosen, scope.matched as usize)? {
        return Ok((0, false));
    }
    let job = scope.job(action.kind(), 0);
    let job = job.context("the options that select events are too long")?;
    let number = inbox.begin_job(&job).await?;
    let stopped = tokio::select! {
        ended = run(inbox, number) => {
            ended?;
            false
        }
        _ = ctrl_c() => inbox.cancel_job(number).await?,
    };
    let (made, job) = find(inbox, number).await?;
    if stopped || job.state != JobState::Done {
        say_stopped(made + job.skipped, scope.matched);
    }
    if job.skipped > 0 {
        let skipped = job.skipped;
        eprintln!(
            "{skipped} were not changed: they were settled meanwhile, or an attempt is in progress, or their bodies were deleted"
        );
    }
    eprintln!("{}: {made}", action.done());
    Ok((made, job.state == JobState::Done && job.skipped == 0))
}

/// Finishes the jobs of commands and consoles that have ended before their jobs.
async fn continue_jobs<Q: Queue>(inbox: &Inbox<Q>) -> anyhow::Result<()> {
    while let Some((lease, job)) = inbox.take_job().await? {
        let who = match job.by.who() {
            "" => "somebody",
            who => who,
        };
        let (number, kind) = (job.number, job.kind);
        eprintln!(
            "continuing job {number} of {}: {kind} all that match",
            print::short(who)
        );
        tokio::select! {
            ended = inbox.run_job(&lease, &job) => ended?,
            () = show(inbox, number) => {}
        }
    }
    Ok(())
}

/// Works on jobs until this one has ended.
async fn run<Q: Queue>(inbox: &Inbox<Q>, number: i64) -> anyhow::Result<()> {
    let work = async {
        loop {
            match inbox.take_job().await? {
                Some((lease, job)) => inbox.run_job(&lease, &job).await?,
                // A console was quicker.
                None => sleep(POLL).await,
            }
            if find(inbox, number).await?.1.state != JobState::Running {
                return Ok(());
            }
        }
    };
    tokio::select! {
        ended = work => ended,
        () = show(inbox, number) => Ok(()),
    }
}

/// Shows the progress of a job, forever.
async fn show<Q: Queue>(inbox: &Inbox<Q>, number: i64) {
    if !io::stderr().is_terminal() {
        return pending().await;
    }
    let _line = Line;
    loop {
        sleep(SHOW).await;
        if let Ok(Some(action)) = lookup(inbox, number).await
            && let (Some(job), Some(scope)) = (&action.job, Scope::of(&action))
        {
            eprint!("\r{}/{} ", action.changed + job.skipped, scope.matched);
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

async fn lookup<Q: Queue>(inbox: &Inbox<Q>, number: i64) -> anyhow::Result<Option<Done>> {
    let found = inbox.actions(Which::All, Some(number + 1), 1).await?;
    Ok(found.into_iter().find(|action| action.number == number))
}

async fn find<Q: Queue>(inbox: &Inbox<Q>, number: i64) -> anyhow::Result<(u64, Job)> {
    let found = lookup(inbox, number).await?;
    let found = found.and_then(|action| Some((action.changed, action.job?)));
    found.with_context(|| format!("the queue has lost job {number}"))
}

/// What is changed: the events that match and that can be changed, of those that are there now. Shows the first ones.
async fn preview<Q: Queue>(
    inbox: &Inbox<Q>,
    action: Action,
    chosen: &Chosen,
) -> anyhow::Result<Option<Scope>> {
    let mut filter = chosen.matching.filter();
    filter.states.retain(|state| action.applies(*state));
    let at = inbox.stats().await?.at;
    let newest = inbox.list(&Filter::default(), Page::newest(1)).await?;
    let Some(newest) = newest.events.first().filter(|_| !filter.states.is_empty()) else {
        return Ok(None);
    };
    let seen = Seen {
        newest: newest.id,
        at,
    };
    let (mut matched, mut first) = (0, Vec::new());
    let mut pages = Pages::new(inbox, &filter, false);
    while let Some(page) = pages.next().await? {
        matched += page.len();
        first.extend(page.into_iter().take(PREVIEW - first.len()));
    }
    let Some(oldest) = first.first().map(|event| event.id) else {
        return Ok(None);
    };
    if !chosen.yes {
        print::preview(&first, matched)?;
    }
    Ok(Some(Scope {
        filter,
        seen,
        matched: matched as u64,
        is_more: false,
        oldest,
    }))
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
