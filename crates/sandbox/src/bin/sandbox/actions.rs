//! The answers to forms: each changes something, leaves a message for the next page, and redirects to it.

use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::header::{HOST, HeaderMap, REFERER};
use axum::http::uri::Authority;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tower_webhook::{EventKind, Secret};
use tower_webhook_sandbox::{EventId, EventReport, Rating, Sandbox, Webhook};

use crate::desk::{Desk, Notice};
use crate::routes::{find, known, no_chat, no_event, refused};

const MAX_URL: usize = 1_000;

/// The fields of a form. Others are refused by a page that says why.
pub(crate) struct Fields<T>(T);

impl<T: DeserializeOwned> FromRequest<Desk> for Fields<T> {
    type Rejection = Response;

    async fn from_request(request: Request, desk: &Desk) -> Result<Self, Response> {
        match Form::from_request(request, desk).await {
            Ok(Form(fields)) => Ok(Self(fields)),
            Err(rejection) => {
                let rejection: FormRejection = rejection;
                Err(refused(desk, rejection.status(), &rejection.body_text()))
            }
        }
    }
}

/// Redirects to the page whose form was sent, else to the overview.
fn back(headers: &HeaderMap) -> Redirect {
    let text = |name| headers.get(name)?.to_str().ok();
    let page = text(REFERER).and_then(|page| page.parse::<Uri>().ok());
    let own = page.filter(|page| page.authority().map(Authority::as_str) == text(HOST));
    let path = own.as_ref().and_then(Uri::path_and_query);
    // Two slashes would begin the name of another host.
    let path = path.filter(|path| !path.as_str().starts_with("//"));
    Redirect::to(path.map_or("/", |path| path.as_str()))
}

pub(crate) async fn retry(state: State<Desk>, headers: HeaderMap, id: Path<String>) -> Response {
    let done = |id| format!("Event {id} is retried.");
    let refused = |id| {
        format!(
            "Event {id} cannot be retried now: it is not waiting, or its webhook does not deliver."
        )
    };
    send(state, &headers, id, Sandbox::retry_now, done, refused)
}

pub(crate) async fn resend(state: State<Desk>, headers: HeaderMap, id: Path<String>) -> Response {
    let done = |id| format!("Event {id} is sent again.");
    let refused = |id| {
        format!(
            "Event {id} cannot be sent again: it is not delivered, or its webhook does not deliver."
        )
    };
    send(state, &headers, id, Sandbox::resend, done, refused)
}

fn send(
    State(desk): State<Desk>,
    headers: &HeaderMap,
    Path(id): Path<String>,
    send: fn(&Sandbox, EventId) -> bool,
    done: fn(EventId) -> String,
    refused: fn(EventId) -> String,
) -> Response {
    let Some(EventReport { id, .. }) = find(&desk, &id) else {
        return no_event(&desk, &id);
    };
    desk.say(match send(desk.sandbox(), id) {
        true => Notice::Done(done(id)),
        false => Notice::Refused(refused(id)),
    });
    back(headers).into_response()
}

#[derive(Deserialize)]
pub(crate) struct NewKey {
    description: String,
}

pub(crate) async fn create_key(State(desk): State<Desk>, Fields(form): Fields<NewKey>) -> Redirect {
    let description = form.description.trim();
    desk.say(match description {
        "" => Notice::Refused("The API key needs a description.".to_owned()),
        _ => Notice::NewKey(desk.sandbox().create_api_key(description)),
    });
    Redirect::to("/")
}

#[derive(Deserialize)]
pub(crate) struct WebhookForm {
    url: String,
    secret: String,
    remove_secret: Option<String>,
    active: Option<String>,
}

pub(crate) async fn configure(
    State(desk): State<Desk>,
    Path(kind): Path<String>,
    Fields(form): Fields<WebhookForm>,
) -> Result<Redirect, Response> {
    let kind = known(&kind).ok_or_else(|| no_webhook(&desk, &kind))?;
    desk.say(match webhook(&desk, &kind, form) {
        Ok(webhook) => {
            desk.sandbox().configure(kind.clone(), webhook);
            Notice::Done(format!("The webhook {kind} is saved."))
        }
        Err(reason) => Notice::Refused(format!("The webhook {kind} is not saved: {reason}.")),
    });
    Ok(unfolded(&kind))
}

fn webhook(desk: &Desk, kind: &EventKind, form: WebhookForm) -> Result<Webhook, String> {
    let url = form.url.trim();
    if url.len() > MAX_URL {
        return Err(format!("a URL has at most {MAX_URL} characters"));
    }
    if !url.is_empty() {
        let _: Uri = crate::url(url)?;
    }
    let secret = if form.remove_secret.is_some() {
        if !form.secret.is_empty() {
            return Err("a new secret is entered, and the secret is to be removed".to_owned());
        }
        None
    } else if form.secret.is_empty() {
        let webhooks = desk.sandbox().webhooks();
        let before = webhooks.into_iter().find(|webhook| webhook.kind == *kind);
        before.and_then(|before| before.webhook.secret)
    } else {
        Some(Secret::new(form.secret).map_err(|error| error.to_string())?)
    };
    let mut webhook = Webhook::new(url);
    webhook.secret = secret;
    webhook.active = form.active.is_some();
    Ok(webhook)
}

pub(crate) async fn enable(
    State(desk): State<Desk>,
    Path(kind): Path<String>,
) -> Result<Redirect, Response> {
    let kind = known(&kind).ok_or_else(|| no_webhook(&desk, &kind))?;
    desk.sandbox().enable(&kind);
    desk.say(Notice::Done(format!("The webhook {kind} is enabled.")));
    Ok(Redirect::to("/"))
}

#[derive(Deserialize)]
pub(crate) struct TestForm {
    #[serde(default)]
    test_secret: String,
}

/// A request without a form sends a test event with the webhook's secret.
pub(crate) async fn send_test(
    State(desk): State<Desk>,
    Path(kind): Path<String>,
    form: Result<Form<TestForm>, FormRejection>,
) -> Result<Redirect, Response> {
    let kind = known(&kind).ok_or_else(|| no_webhook(&desk, &kind))?;
    let secret = form.map_or_else(|_| String::new(), |Form(form)| form.test_secret);
    match secret.as_str() {
        "" => desk.sandbox().send_test(kind.clone()),
        secret => {
            let secret = Secret::new(secret).map_err(|error| {
                refused(&desk, StatusCode::UNPROCESSABLE_ENTITY, &error.to_string())
            })?;
            desk.sandbox().send_test_signed(kind.clone(), secret)
        }
    };
    desk.say(Notice::Done(format!("A test event {kind} is being sent.")));
    Ok(unfolded(&kind))
}

fn no_webhook(desk: &Desk, kind: &str) -> Response {
    let reason = format!("There is no webhook `{kind}`.");
    refused(desk, StatusCode::NOT_FOUND, &reason)
}

/// Redirects to the overview with this webhook unfolded.
fn unfolded(kind: &EventKind) -> Redirect {
    Redirect::to(&format!("/?webhook={kind}#webhook-{kind}"))
}

#[derive(Deserialize)]
pub(crate) struct NewChat {
    text: String,
}

pub(crate) async fn start_chat(
    State(desk): State<Desk>,
    Fields(form): Fields<NewChat>,
) -> Redirect {
    let chat = desk.sandbox().chat();
    chat.assign();
    if !form.text.is_empty() {
        chat.message(form.text);
    }
    desk.say(Notice::Chat(chat.id()));
    Redirect::to("/")
}

#[derive(Deserialize)]
pub(crate) struct NewMessage {
    text: String,
    #[serde(default)]
    from: String,
}

pub(crate) async fn message(
    State(desk): State<Desk>,
    Path(id): Path<String>,
    Fields(form): Fields<NewMessage>,
) -> Response {
    let Some(chat) = desk.sandbox().find_chat(&id) else {
        return no_chat(&desk, &id);
    };
    let sender = match form.from.as_str() {
        "expert" => {
            chat.reply(form.text);
            "expert"
        }
        "" | "customer" => {
            chat.message(form.text);
            "customer"
        }
        from => {
            let reason = format!("A message is from `customer` or `expert`, not from `{from}`.");
            return refused(&desk, StatusCode::UNPROCESSABLE_ENTITY, &reason);
        }
    };
    desk.say(Notice::Done(format!("The {sender} has sent a message.")));
    to_chat(&id)
}

#[derive(Deserialize)]
pub(crate) struct NewRating {
    rating: String,
}

pub(crate) async fn rate(
    State(desk): State<Desk>,
    Path(id): Path<String>,
    Fields(form): Fields<NewRating>,
) -> Response {
    let Some(chat) = desk.sandbox().find_chat(&id) else {
        return no_chat(&desk, &id);
    };
    let rating = match form.rating.as_str() {
        "bad" => Rating::Bad,
        "fair" => Rating::Fair,
        "good" => Rating::Good,
        rating => {
            let reason = format!("A rating is `bad`, `fair` or `good`, not `{rating}`.");
            return refused(&desk, StatusCode::UNPROCESSABLE_ENTITY, &reason);
        }
    };
    chat.rate(rating);
    desk.say(Notice::Done(format!(
        "The customer has rated the chat: {}.",
        form.rating
    )));
    to_chat(&id)
}

pub(crate) async fn step(
    State(desk): State<Desk>,
    Path((id, step)): Path<(String, String)>,
) -> Response {
    let Some(chat) = desk.sandbox().find_chat(&id) else {
        return no_chat(&desk, &id);
    };
    let done = match step.as_str() {
        "assign" => (chat.assign(), "assigned"),
        "open" => (chat.open(), "opened"),
        "close" => (chat.close(), "closed"),
        "transfer" => (chat.transfer(), "transferred"),
        "reopen" => (chat.reopen(), "reopened"),
        _ => {
            return refused(
                &desk,
                StatusCode::NOT_FOUND,
                &format!("There is no step `{step}`."),
            );
        }
    };
    desk.say(Notice::Done(format!("The chat is {}.", done.1)));
    to_chat(&id)
}

fn to_chat(id: &str) -> Response {
    Redirect::to(&format!("/chats/{id}")).into_response()
}

#[derive(Deserialize)]
pub(crate) struct EventRate {
    rate: u32,
}

pub(crate) async fn set_rate(
    State(desk): State<Desk>,
    Fields(form): Fields<EventRate>,
) -> Redirect {
    desk.set_rate(form.rate);
    let text = format!("Chats cause {} events per minute.", desk.rate());
    desk.say(Notice::Done(text));
    Redirect::to("/")
}

#[derive(Deserialize)]
pub(crate) struct Forward {
    steps: u32,
}

pub(crate) async fn forward(State(desk): State<Desk>, Fields(form): Fields<Forward>) -> Redirect {
    desk.forward(form.steps);
    Redirect::to("/")
}

#[derive(Deserialize)]
pub(crate) struct Availability {
    available: bool,
}

pub(crate) async fn set_availability(
    State(desk): State<Desk>,
    Fields(form): Fields<Availability>,
) -> Redirect {
    desk.sandbox().set_available(form.available);
    Redirect::to("/")
}
