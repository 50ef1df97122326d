//! Deletes the data of a person, in all chats.

use axum::Extension;
use axum::body::Bytes;
use axum::extract::Query;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::response::{IntoResponse, Redirect, Response};
use tower_webhook::inbox::{Filter, Page};
use tower_webhook::telemetry::Chain;

use super::actions::{after, by, in_task};
use super::page::{self, View};
use super::problem::Problem;
use super::reading::read;
use super::request::{Did, LONGEST_TEXT, Search, id, inbox, read_line, text};
use super::scan::Wanted;

/// Finds the chats of a person: the one with this id, and those with the text in a payload.
pub(super) async fn search(
    Extension(view): Extension<View>,
    search: Result<Query<Search>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(search) = search?;
    let inbox = inbox(&view.console)?;
    let Some(wanted) = read_line(&search.id) else {
        return Ok(page::forget(&view, "", false, None).into_response());
    };
    let of_chat = Filter::default().chat(&wanted);
    let of_chat = read(inbox.list(&of_chat, Page::newest(1))).await?;
    let is_chat = !of_chat.events.is_empty();
    if view.console.hides_payloads {
        return Ok(page::forget(&view, &wanted, is_chat, None).into_response());
    }
    if wanted.chars().count() > LONGEST_TEXT {
        let reason = format!("A text in a payload has at most {LONGEST_TEXT} characters.");
        return Err(Problem::bad(reason));
    }
    // Up to the newest event at the first request, which the page passes on when it asks again.
    let newest = match text(&search.newest) {
        Some(newest) => Some(id(&newest)?),
        None => read(inbox.seen()).await?.map(|seen| seen.newest),
    };
    let mut found = None;
    if let Some(newest) = newest {
        let events = Wanted {
            filter: Filter::default().body(&wanted),
            newest,
            seen: None,
        };
        let so_far = view.console.scans.of(inbox, &events, None).await;
        if !so_far.is_done && search.newest.is_empty() {
            let id = form_urlencoded::byte_serialize(search.id.as_bytes()).collect::<String>();
            let url = view.url(format_args!("/forget?id={id}&newest={newest}"));
            return Ok(Redirect::to(&url).into_response());
        }
        found = Some(so_far);
    }
    Ok(page::forget(&view, &wanted, is_chat, found.as_ref()).into_response())
}

/// Forgets chats. The body has a field `chat` for each.
pub(super) async fn forget(
    Extension(view): Extension<View>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Redirect, Problem> {
    let body = body?;
    let (mut chats, mut who, mut reason) = (Vec::new(), String::new(), String::new());
    for (field, value) in form_urlencoded::parse(&body) {
        match &*field {
            "chat" => chats.extend(read_line(&value)),
            "who" => who = value.into_owned(),
            "reason" => reason = value.into_owned(),
            _ => {}
        }
    }
    if chats.is_empty() {
        return Err(Problem::bad("No chat was selected."));
    }
    let by = by(&view, &who, &reason)?;
    let inbox = inbox(&view.console)?.clone().by(by.clone());
    let counts = view.console.counts.clone();
    let number = chats.len();
    let bodies = in_task(async move {
        let mut bodies = 0;
        for (at, chat) in chats.iter().enumerate() {
            match inbox.forget(chat).await {
                Ok(deleted) => bodies += deleted,
                Err(error) => {
                    let reason = Chain(&error).to_string();
                    let forgotten = at;
                    tracing::warn!(
                        actor = by.who(),
                        forgotten,
                        reason,
                        "the console could not forget all chats of a person"
                    );
                    return Err(error);
                }
            }
        }
        counts.forget();
        // Ids of chats would outlive the data in the log.
        tracing::info!(
            actor = by.who(),
            chats = chats.len(),
            bodies,
            "the console has forgotten the chats of a person"
        );
        Ok(bodies)
    });
    let did = Did::Forgotten(number, bodies.await?);
    Ok(after(&view, &did, "/forget"))
}
