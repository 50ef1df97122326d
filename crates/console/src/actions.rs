//! The changes that operators make.

use std::future::Future;
use std::time::SystemTime;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, FormRejection, PathRejection};
use axum::extract::{Form, Path, Query};
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use serde::Deserialize;
use tower_webhook::inbox::{By, Change, EventId, EventState, Retired, Scope};
use tower_webhook::store::StoreError;
use tower_webhook::telemetry::Chain;

use super::ask::wanted;
use super::bulk::{Action, spawn};
use super::page::{self, View, Wrong};
use super::problem::Problem;
use super::request::{Did, Search, action, find_bulk, id, inbox, text};
use super::routes;
use super::settings::Console;

type Answer = Result<Redirect, Problem>;

fn refused(id: EventId, change: Change) -> Problem {
    let reason = match change {
        Change::NotFound => return Problem::not_found(format!("There is no event {id}.")),
        Change::WithoutBody => "its body was deleted, so it cannot be handled again",
        _ => "its state does not allow it; an attempt or another operator may have changed it",
    };
    let reason = format!("Event {id} was not changed: {reason}.");
    Problem::new(StatusCode::CONFLICT, reason)
}

/// The state that the page showed, who changes the event, and why.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Shown {
    pub(super) state: String,
    /// Another event with its state, which the page offers in place of its own.
    instead: String,
    pub(super) who: String,
    pub(super) reason: String,
}

/// The operator, and why something is done. Each change has a name, which a proxy passes on or the operator types.
pub(super) fn by(view: &View, who: &str, reason: &str) -> Result<By, Problem> {
    let who = match (&view.console.actor, text(who)) {
        (None, Some(typed)) => {
            let _ = view.named.set(By::new(&typed).who().to_owned());
            typed
        }
        _ => view.who.clone(),
    };
    match (By::new(&who), &view.console.actor) {
        (by, _) if !by.who().is_empty() => Ok(by.because(reason)),
        (_, None) => Err(Problem::bad(
            "Say who you are: the list of actions names who has changed what.",
        )),
        (_, Some(header)) => Err(Problem::bad(format!(
            "The header `{header}`, in which the proxy passes on the name of the operator, is missing."
        ))),
    }
}

pub(super) async fn change(
    Extension(view): Extension<View>,
    path: Result<Path<(String, String)>, PathRejection>,
    form: Result<Form<Shown>, FormRejection>,
) -> Result<Response, Problem> {
    let Path((number, name)) = path?;
    let Form(shown) = form?;
    let action = action(&name)?;
    let (id, from) = match text(&shown.instead) {
        Some(instead) => selected(&instead)?,
        None => (id(&number)?, state(&shown.state)?),
    };
    let by = by(&view, &shown.who, &shown.reason)?;
    let problem = match make(&view.console, by, action, id, from).await? {
        Change::Made => {
            let did = Did::Changed(action, vec![id]);
            return Ok(after(&view, &did, &format!("/events/{id}")).into_response());
        }
        change => refused(id, change),
    };
    // With what has become of the event meanwhile.
    match routes::record(&view, id, Some(problem.reason(&view.console))).await {
        Ok(page) => Ok(problem.on(page)),
        Err(_) => Err(problem),
    }
}

/// Makes a change and logs it in a task, since the operator may disconnect meanwhile.
pub(super) async fn in_task<T: Send + 'static>(
    change: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::spawn(change).await {
        Ok(change) => Ok(change?),
        Err(_) => Err(Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The change panicked. The log has the reason.",
        )),
    }
}

/// Changes an event, with `from` only if it is in this state.
async fn make(
    console: &Console,
    by: By,
    action: Action,
    id: EventId,
    from: Option<EventState>,
) -> Result<Change, Problem> {
    let inbox = inbox(console)?.clone().by(by.clone());
    in_task(async move {
        let change = action.apply(&inbox, id, from).await;
        let actor = by.who();
        match &change {
            Ok(change) => tracing::info!(
                actor,
                action = action.name(),
                event = id.0,
                ?change,
                "an operator requested a change of an event"
            ),
            Err(error) => tracing::warn!(
                actor,
                action = action.name(),
                event = id.0,
                reason = Chain(error).to_string(),
                "an operator requested a change of an event, and the database failed"
            ),
        }
        change
    })
    .await
}

/// Parses the state that the page showed. `None` if it sent none.
fn state(text: &str) -> Result<Option<EventState>, Problem> {
    let unknown = |error| Problem::bad(format!("`{text}`: {error}."));
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(unknown),
    }
}

/// An event, and the state that the page showed.
pub(super) type Selected = (EventId, Option<EventState>);

/// Parses an event as `7:dead`, or `7` for any state.
fn selected(text: &str) -> Result<Selected, Problem> {
    match text.split_once(':') {
        Some((number, shown)) => Ok((id(number)?, state(shown)?)),
        None => Ok((id(text)?, None)),
    }
}

/// The form of a list.
#[derive(Default)]
struct Selection {
    ids: Vec<Selected>,
    action: String,
    who: String,
    reason: String,
    /// Whether the operator was asked.
    is_sure: bool,
    /// The query of the list.
    query: String,
}

impl Selection {
    fn parse(body: &[u8]) -> Result<Self, Problem> {
        let mut it = Self::default();
        for (field, value) in form_urlencoded::parse(body) {
            match &*field {
                "id" => it.ids.push(selected(&value)?),
                "action" => it.action = value.into_owned(),
                "who" => it.who = value.into_owned(),
                "reason" => it.reason = value.into_owned(),
                "sure" => it.is_sure = true,
                "query" => it.query = value.into_owned(),
                _ => {}
            }
        }
        Ok(it)
    }
}

/// Changes the events that are selected in a list. The body has a field `id` for each, with the state that was shown.
pub(super) async fn change_selected(
    Extension(view): Extension<View>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let Selection {
        ids,
        action,
        who,
        reason,
        is_sure,
        query,
    } = Selection::parse(&body?)?;
    // Only what a URL can have.
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(form_urlencoded::parse(query.as_bytes()))
        .finish();
    let list = format!("/events?{query}");
    if action == Action::Discard.name() && !is_sure && !ids.is_empty() {
        return Ok(page::discard_selected(&view, &ids, &query, &reason).into_response());
    }
    let by = by(&view, &who, &reason)?;
    let problem = match change_each(&view.console, by, &action, &ids).await {
        Ok(did) => return Ok(after(&view, &did, &list).into_response()),
        Err(problem) => problem,
    };
    // The list stays, and what is selected in it.
    let checked: Vec<_> = ids.iter().map(|(id, _)| *id).collect();
    let wrong = Wrong {
        reason: problem.reason(&view.console),
        checked: &checked,
    };
    // The query is a text of the browser. If it is no filter, the problem has a page without the list.
    let search = list
        .parse()
        .ok()
        .and_then(|uri| Query::try_from_uri(&uri).ok());
    let page = match search {
        Some(Query(search)) => routes::list(&view, &search, Some(wrong)).await.ok(),
        None => None,
    };
    match page {
        Some(page) => Ok(problem.on(page)),
        None => Err(problem),
    }
}

/// Changes events, one after another.
async fn change_each(
    console: &Console,
    by: By,
    name: &str,
    ids: &[Selected],
) -> Result<Did, Problem> {
    let action = action(name)?;
    if ids.is_empty() {
        return Err(Problem::bad("No event was selected."));
    }
    let mut unchanged = Vec::new();
    // One after another, so that an error can say how many events were tried before it.
    for (at, &(id, from)) in ids.iter().enumerate() {
        match make(console, by.clone(), action, id, from).await {
            Ok(Change::Made) => {}
            Ok(_) => unchanged.push(id.to_string()),
            Err(mut problem) => {
                problem.add(&format!(
                    "The first {at} of {} events were tried before.",
                    ids.len()
                ));
                return Err(problem);
            }
        }
    }
    if !unchanged.is_empty() {
        let count = ids.len() - unchanged.len();
        let reason = format!(
            "{count} events were {}. These were not changed, because their state does not allow it, their bodies were deleted, or they no longer exist: {}.",
            action.past(),
            unchanged.join(", ")
        );
        return Err(Problem::new(StatusCode::CONFLICT, reason));
    }
    Ok(Did::Changed(
        action,
        ids.iter().map(|(id, _)| *id).collect(),
    ))
}

pub(super) async fn change_all(
    Extension(view): Extension<View>,
    form: Result<Form<Search>, FormRejection>,
) -> Answer {
    let Form(search) = form?;
    let action = action(&search.action)?;
    let filter = search.filter_for_change(&view.console)?;
    let (seen, rate) = (search.seen()?, search.rate()?);
    let turns = &view.console.turns;
    // Before the change is stored: without a turn it would be listed, and interrupted a minute later.
    let turn = turns.of_change()?;
    let by = by(&view, &search.who, &search.reason)?;
    let inbox = inbox(&view.console)?.clone().by(by.clone());
    let counts = &view.console.counts;
    let mut selection = turns.select(&inbox, counts, &filter, seen).await?;
    if let Some(found) = view.console.scans.ended(&wanted(filter, seen))
        && selection.is_more
    {
        (selection.matched, selection.is_more) = (found.events, false);
    }
    let begun = in_task(async move {
        let number = inbox.begin_all(action.kind(), &selection, rate).await?;
        tracing::info!(
            actor = by.who(),
            action = action.name(),
            filter = search.logged(),
            number,
            "the console changes all events that match"
        );
        spawn(inbox, number, turn);
        Ok(number)
    });
    let number = begun.await?;
    Ok(Redirect::to(&view.url(format_args!("/actions/{number}"))))
}

/// Goes on with a change of all that match, whatever became of the process that made it.
pub(super) async fn go_on(
    Extension(view): Extension<View>,
    path: Result<Path<i64>, PathRejection>,
    form: Result<Form<Shown>, FormRejection>,
) -> Answer {
    let (Path(number), Form(shown)) = (path?, form?);
    let by = by(&view, &shown.who, "")?;
    let found = find_bulk(&view.console, number).await?;
    // A change may have ended since the page was made. The operator then sees its page, which says so.
    if found.bulk.is_some_and(|bulk| bulk.is_open()) {
        let turn = view.console.turns.of_change()?;
        tracing::info!(
            actor = by.who(),
            number,
            "the console continues a change of all events that match"
        );
        spawn(inbox(&view.console)?.clone(), number, turn);
    }
    Ok(Redirect::to(&view.url(format_args!("/actions/{number}"))))
}

pub(super) async fn cancel(
    Extension(view): Extension<View>,
    path: Result<Path<i64>, PathRejection>,
    form: Result<Form<Shown>, FormRejection>,
) -> Answer {
    let (Path(number), Form(shown)) = (path?, form?);
    find_bulk(&view.console, number).await?;
    let by = by(&view, &shown.who, "")?;
    let inbox = inbox(&view.console)?.clone().by(by.clone());
    in_task(async move {
        let cancelled = inbox.cancel(number).await;
        let actor = by.who();
        match &cancelled {
            Ok(is_cancelled) => tracing::info!(
                actor,
                number,
                is_cancelled,
                "the console cancels a change of all events that match"
            ),
            Err(error) => tracing::warn!(
                actor,
                number,
                reason = Chain(error).to_string(),
                "the console could not cancel a change of all events that match"
            ),
        }
        cancelled
    })
    .await?;
    Ok(Redirect::to(&view.url(format_args!("/actions/{number}"))))
}

/// What is paused or resumed.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Paused {
    /// A [`Scope`] as text.
    of: String,
    who: String,
    /// Why it is paused.
    reason: String,
}

impl Paused {
    pub(super) fn scope(&self) -> Result<Scope, Problem> {
        let wrong = |_| {
            Problem::bad(format!(
                "`{}` is neither an event type, such as `chat-rated` or `github/push`, nor a route, such as `github/`.",
                self.of
            ))
        };
        self.of.parse().map_err(wrong)
    }

    /// Who pauses, and why.
    fn note(&self, by: &By) -> Result<String, Problem> {
        if text(&self.reason).is_none() {
            return Err(Problem::bad("Say why it is paused, for the others."));
        }
        Ok(match (by.who(), by.reason()) {
            ("", reason) => reason.to_owned(),
            (who, reason) => format!("{who}: {reason}"),
        })
    }
}

pub(super) async fn pause(
    view: Extension<View>,
    form: Result<Form<Paused>, FormRejection>,
) -> Answer {
    set_paused(view, form, true).await
}

pub(super) async fn resume(
    view: Extension<View>,
    form: Result<Form<Paused>, FormRejection>,
) -> Answer {
    set_paused(view, form, false).await
}

async fn set_paused(
    Extension(view): Extension<View>,
    form: Result<Form<Paused>, FormRejection>,
    is_paused: bool,
) -> Answer {
    let Form(form) = form?;
    let of = form.scope()?;
    let by = by(&view, &form.who, &form.reason)?;
    let inbox = inbox(&view.console)?.clone().by(by.clone());
    let counts = view.console.counts.clone();
    let did = match is_paused {
        true => Did::Paused(of.clone()),
        false => Did::Resumed(of.clone()),
    };
    let note = is_paused.then(|| form.note(&by)).transpose()?;
    in_task(async move {
        let set = match &note {
            Some(note) => inbox.pause(of.clone(), note).await,
            None => inbox.resume(of.clone()).await,
        };
        // The counts say what is paused. Also after an error, since the pause may have been stored before it.
        counts.forget();
        let actor = by.who();
        let of = (of != Scope::Everything).then(|| tracing::field::display(of));
        match &set {
            Ok(()) => tracing::info!(actor, of, is_paused, note, "the console pauses or resumes"),
            Err(error) => tracing::warn!(
                actor,
                of,
                is_paused,
                reason = Chain(error).to_string(),
                "the console could not pause or resume"
            ),
        }
        set
    })
    .await?;
    Ok(after(&view, &did, "/"))
}

/// Shows a page after a change, with what it did.
pub(super) fn after(view: &View, did: &Did, path: &str) -> Redirect {
    view.console.done.note(did);
    Redirect::to(&view.url(did.at(path)))
}

/// Ends the note on a handler whose worker is not coming back.
pub(super) async fn retire(
    Extension(view): Extension<View>,
    form: Result<Form<Paused>, FormRejection>,
) -> Answer {
    let Form(form) = form?;
    let of = form.scope()?;
    let by = by(&view, &form.who, &form.reason)?;
    let inbox = inbox(&view.console)?.clone().by(by.clone());
    let counts = view.console.counts.clone();
    let did = Did::Retired(of.clone());
    let retired = in_task(async move {
        let retired = inbox.retire(of.clone()).await;
        counts.forget();
        let actor = by.who();
        match &retired {
            Ok(retired) => tracing::info!(actor, %of, ?retired, "an operator retires a handler"),
            Err(error) => tracing::warn!(
                actor,
                %of,
                reason = Chain(error).to_string(),
                "an operator could not retire a handler, as the database failed"
            ),
        }
        retired
    });
    let refused = match retired.await? {
        Retired::Ended => return Ok(after(&view, &did, "/")),
        Retired::Kept { until } => {
            let left = until.duration_since(SystemTime::now()).unwrap_or_default();
            format!(
                "A worker with this handler was seen in the last ten minutes. If it is not coming back, retire its handler in {} min.",
                // Of another clock.
                (left.as_secs() / 60 + 1).min(10)
            )
        }
        _ => "No worker has noted this handler any more; another operator may have retired it."
            .to_owned(),
    };
    Err(Problem::new(StatusCode::CONFLICT, refused))
}
