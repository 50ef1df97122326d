//! Redrives or discards events, after a preview.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::signal::ctrl_c;
use tower_webhook::inbox::{Change, EventId, EventState, Inbox, Queue};

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

pub(crate) async fn change<Q: Queue>(
    inbox: &Inbox<Q>,
    action: Action,
    chosen: Chosen,
) -> anyhow::Result<ExitCode> {
    if !chosen.all && !chosen.matching.is_everything() {
        misused("options that select events need `--all`, and no numbers");
    }
    let ids = match chosen.all {
        true => matching(inbox, action, &chosen).await?,
        false => chosen.ids.into_iter().map(|id| (id, None)).collect(),
    };
    if ids.is_empty() {
        eprintln!("no event matches");
        return Ok(ExitCode::SUCCESS);
    }
    let events = if ids.len() == 1 { "event" } else { "events" };
    let question = format!("{} {} {events}?", action.name(), ids.len());
    if !chosen.yes && !is_confirmed(&question)? {
        eprintln!("nothing was changed");
        return Ok(ExitCode::FAILURE);
    }

    let mut counts = Counts::default();
    let is_seen = io::stderr().is_terminal();
    let mut stopped = std::pin::pin!(ctrl_c());
    for some in ids.chunks(AT_ONCE) {
        // Not during a change: what was begun is counted.
        if stopped.as_mut().now_or_never().is_some() {
            eprintln!("stopped after {} of {} events", counts.all(), ids.len());
            break;
        }
        let changes = some.iter().map(async |(id, from)| match action {
            Action::Redrive => inbox.redrive(*id, *from).await,
            Action::Discard => inbox.discard(*id, *from).await,
        });
        for ((id, _), change) in some.iter().zip(join_all(changes).await) {
            counts.count(*id, change?);
        }
        if is_seen {
            eprint!("\r{}/{} ", counts.all(), ids.len());
        }
    }
    if is_seen {
        eprintln!();
    }
    eprintln!("{}: {}", action.done(), counts.made);
    if matches!(action, Action::Redrive) && counts.made > 0 {
        for pause in inbox.pauses().await? {
            let kind = pause.kind.map(|kind| kind.to_string());
            let (name, of) = match &kind {
                Some(kind) => (kind.as_str(), format!(" {kind}")),
                None => ("everything", String::new()),
            };
            eprintln!("{name} is paused: its events are tried after `receiver inbox resume{of}`");
        }
    }
    let is_complete = counts.failed == 0 && counts.all() == ids.len();
    Ok(match is_complete {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The events that match and that can be changed, with their states. Shows the first ones.
async fn matching<Q: Queue>(
    inbox: &Inbox<Q>,
    action: Action,
    chosen: &Chosen,
) -> anyhow::Result<Vec<(EventId, Option<EventState>)>> {
    let filter = chosen.matching.filter();
    let (mut ids, mut first) = (Vec::new(), Vec::new());
    let mut pages = Pages::new(inbox, &filter, false);
    while let Some(page) = pages.next().await? {
        for event in page.into_iter().filter(|event| action.applies(event.state)) {
            ids.push((event.id, Some(event.state)));
            if first.len() < PREVIEW {
                first.push(event);
            }
        }
    }
    if !chosen.yes && !ids.is_empty() {
        print::preview(&first, ids.len())?;
    }
    Ok(ids)
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

    fn applies(self, state: EventState) -> bool {
        match self {
            Self::Redrive => state != EventState::InProgress,
            Self::Discard => state.is_unsettled() || state == EventState::Dead,
        }
    }
}

#[derive(Default)]
struct Counts {
    made: usize,
    failed: usize,
}

impl Counts {
    fn all(&self) -> usize {
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
