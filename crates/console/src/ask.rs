//! Questions before changes, and how far a change of all that match is.

use std::time::Duration;

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query};
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use tower_webhook::inbox::{ActionKind, Filter, Page, Seen};

use super::actions::{Paused, Shown};
use super::bulk::Action;
use super::page::{self, View};
use super::problem::Problem;
use super::reading::{SEARCH, read};
use super::request::{Search, action, find_bulk, id, inbox};
use super::routes::{Answer, gone};
use super::scan::Wanted;

/// Asks before an event type, a route or everything is paused.
pub(super) async fn confirm_pause(
    Extension(view): Extension<View>,
    paused: Result<Query<Paused>, QueryRejection>,
) -> Answer {
    let Query(paused) = paused?;
    inbox(&view.console)?;
    Ok(page::confirm_pause(&view, &paused.scope()?))
}

/// Asks before a pause ends.
pub(super) async fn confirm_resume(
    Extension(view): Extension<View>,
    paused: Result<Query<Paused>, QueryRejection>,
) -> Answer {
    let Query(paused) = paused?;
    inbox(&view.console)?;
    Ok(page::confirm_resume(&view, &paused.scope()?))
}

/// Asks before the note on a handler ends.
pub(super) async fn confirm_retire(
    Extension(view): Extension<View>,
    retired: Result<Query<Paused>, QueryRejection>,
) -> Answer {
    let Query(retired) = retired?;
    inbox(&view.console)?;
    Ok(page::confirm_retire(&view, &retired.scope()?))
}

/// Asks before an event is discarded.
pub(super) async fn confirm_discard(
    Extension(view): Extension<View>,
    path: Result<Path<(String, String)>, PathRejection>,
    shown: Result<Query<Shown>, QueryRejection>,
) -> Answer {
    let (Path((number, name)), Query(shown)) = (path?, shown?);
    if action(&name)? != Action::Discard {
        let reason = "The page cannot be requested with this method.";
        return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, reason));
    }
    let id = id(&number)?;
    let record = read(inbox(&view.console)?.get(id)).await?;
    let record = record.ok_or_else(|| gone(id))?;
    Ok(page::discard(&view, &record.summary, &shown.reason))
}

/// What a change of all that match reaches.
pub(super) fn wanted(filter: Filter, seen: Seen) -> Wanted {
    Wanted {
        filter,
        newest: seen.newest,
        seen: Some(seen),
    }
}

/// Asks before all events that match are changed.
pub(super) async fn confirm(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(search) = search?;
    let action = action(&search.action)?;
    let inbox = inbox(&view.console)?;
    if search.filter(&view.console)?.states.is_empty() && search.payload.is_empty() {
        return Ok(page::which_state(&view, action, &search).into_response());
    }
    let filter = search.filter_for_change(&view.console)?;
    let (turns, counts) = (&view.console.turns, &view.console.counts);
    let is_first = search.newest.is_empty();
    // Before it counts, so that it has seen what is changed.
    let seen = match is_first {
        true => read(inbox.seen()).await?,
        false => Some(search.seen()?),
    };
    let (mut selection, mut found) = (None, None);
    if let Some(seen) = seen {
        let mut selected = turns.select(inbox, counts, &filter, seen).await?;
        if selected.is_more {
            let wanted = wanted(filter.clone(), seen);
            let so_far = view.console.scans.of(inbox, &wanted, None).await;
            if so_far.is_done {
                (selected.matched, selected.is_more) = (so_far.events, false);
            } else if is_first {
                // The page asks again for the same events until they are counted.
                let (newest, at) = (seen.newest, page::nanos(seen.at));
                let (query, name) = (search.query(), action.name());
                let url = format!("/all?{query}&action={name}&newest={newest}&at={at}");
                return Ok(Redirect::to(&view.url(url)).into_response());
            } else {
                found = Some(so_far);
            }
        }
        selection = Some(selected);
    }
    // A change begins with the oldest event, so these are the first that it changes.
    let page = Page::oldest(SAMPLE).within(SEARCH);
    let sample = read(inbox.list(&filter, page)).await?.events;
    let asked = page::Asked {
        selection: selection.as_ref(),
        found: found.as_ref(),
        sample: &sample,
    };
    Ok(page::confirm(&view, action, &search, &asked).into_response())
}

/// The number of events that a question shows.
const SAMPLE: usize = 5;

pub(super) async fn bulk(
    Extension(view): Extension<View>,
    path: Result<Path<i64>, PathRejection>,
) -> Answer {
    let Path(number) = path?;
    let action = find_bulk(&view.console, number).await?;
    let selection = action.selection();
    let selection = selection.filter(|_| action.kind == ActionKind::Redrive && action.changed > 0);
    let mut found = None;
    if let Some(selection) = selection {
        let changed = Wanted {
            filter: Filter::default().changed_by(number),
            newest: selection.seen.newest,
            seen: None,
        };
        let scans = &view.console.scans;
        found = Some(scans.of(inbox(&view.console)?, &changed, Some(AGAIN)).await);
    }
    Ok(page::bulk(&view, &action, found.as_ref()))
}

/// How old the counts of what became of redriven events are.
const AGAIN: Duration = Duration::from_secs(5);
