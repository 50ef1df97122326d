//! The routes of the page's links and forms.

use axum::extract::rejection::FormRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Form, Router};
use serde::Deserialize;
use tower_webhook::sandbox::{EventId, Webhook};
use tower_webhook::{EventKind, Secret};

use crate::desk::{Desk, Notice};
use crate::page;

pub(crate) fn app(desk: Desk) -> Router {
    let graphql = desk.sandbox().graphql();
    let page = Router::new()
        .route("/", get(index))
        .route("/live", get(live))
        .route("/events/{id}", get(event))
        .route("/events/{id}/retry", post(retry))
        .route("/keys", post(create_key))
        .route("/webhooks/{kind}", post(configure))
        .route("/webhooks/{kind}/enable", post(enable))
        .route("/webhooks/{kind}/test", post(send_test))
        .route("/chats", post(start_chat))
        .route("/rate", post(set_rate))
        .route("/forward", post(forward))
        .route("/availability", post(set_availability))
        .route(
            "/page.css",
            get(([(CONTENT_TYPE, "text/css")], include_str!("page.css"))),
        )
        .route(
            "/page.js",
            get(([(CONTENT_TYPE, "text/javascript")], include_str!("page.js"))),
        )
        .route("/favicon.ico", get(StatusCode::NO_CONTENT))
        .with_state(desk)
        .layer(from_fn(guard));
    // Not behind `guard`: a token protects it, and clients may use any host name.
    page.route_service("/graphql", graphql)
}

/// Protects the page from other sites that its user visits: they must not post its forms (CSRF), nor read
/// it under a name of their own that resolves to this address (DNS rebinding).
async fn guard(request: Request, next: Next) -> Response {
    if let Err(reason) = is_own(request.method(), request.headers()) {
        return (StatusCode::FORBIDDEN, reason).into_response();
    }
    let policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                  img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
    let headers: [(HeaderName, &str); 4] = [
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With `no-referrer`, the page's own forms would be sent without their origin.
        (REFERRER_POLICY, "same-origin"),
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, next.run(request).await).into_response()
}

fn is_own(method: &Method, headers: &HeaderMap) -> Result<(), &'static str> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(HOST).ok_or("The request has no host.")?;
    let name = host.parse::<Authority>();
    let name = name.as_ref().map_or("", |authority| authority.host());
    let address = name.trim_start_matches('[').trim_end_matches(']');
    if name != "localhost" && address.parse::<std::net::IpAddr>().is_err() {
        return Err("Open this page by its IP address or as localhost.");
    }
    // Images, scripts and frames of other sites, which have nothing to see here. Links are allowed.
    let is_link = text(HeaderName::from_static("sec-fetch-dest")) == Some("document");
    if is_from_another_site(headers) && !is_link {
        return Err("The request comes from another site.");
    }
    let origin = text(ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
    if !method.is_safe() && origin != Some(host) {
        return Err("The request does not come from the sandbox's own page.");
    }
    Ok(())
}

/// Whether a browser says that another site causes the request. Typed addresses are `none`; another port of
/// this machine is `same-site`.
fn is_from_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

async fn index(State(desk): State<Desk>, headers: HeaderMap) -> Html<String> {
    // A link from another site shows the page, but does not use up what is shown only once: nobody may be
    // looking. A browser that does not send the header follows the redirect of the page's own form.
    let notice = match is_from_another_site(&headers) {
        true => None,
        false => desk.take_notice(),
    };
    Html(page::index(&desk, notice.as_ref()).into_string())
}

/// The page for the script's updates, without the notice, which is shown only once.
async fn live(State(desk): State<Desk>) -> Html<String> {
    Html(page::index(&desk, None).into_string())
}

async fn event(
    State(desk): State<Desk>,
    Path(id): Path<String>,
) -> Result<Html<String>, StatusCode> {
    let id: EventId = id.parse().map_err(|_| StatusCode::NOT_FOUND)?;
    let event = desk.sandbox().event(id).ok_or(StatusCode::NOT_FOUND)?;
    Ok(Html(page::event(&event).into_string()))
}

async fn retry(State(desk): State<Desk>, Path(id): Path<String>) -> Result<Redirect, StatusCode> {
    let id: EventId = id.parse().map_err(|_| StatusCode::NOT_FOUND)?;
    desk.say(match desk.sandbox().retry_now(id) {
        true => Notice::Done(format!("Event {id} is retried.")),
        false => Notice::Refused(format!(
            "Event {id} cannot be retried now: it is not waiting, or its webhook does not deliver."
        )),
    });
    Ok(Redirect::to("/"))
}

#[derive(Deserialize)]
struct NewKey {
    description: String,
}

async fn create_key(State(desk): State<Desk>, Form(form): Form<NewKey>) -> Redirect {
    let description = form.description.trim();
    desk.say(match description {
        "" => Notice::Refused("The API key needs a description.".to_owned()),
        _ => Notice::NewKey(desk.sandbox().create_api_key(description)),
    });
    Redirect::to("/")
}

#[derive(Deserialize)]
struct WebhookForm {
    url: String,
    secret: String,
    remove_secret: Option<String>,
    active: Option<String>,
}

async fn configure(
    State(desk): State<Desk>,
    Path(kind): Path<String>,
    Form(form): Form<WebhookForm>,
) -> Result<Redirect, StatusCode> {
    let kind = known(&kind)?;
    desk.say(match webhook(&desk, &kind, form) {
        Ok(webhook) => {
            desk.sandbox().configure(kind.clone(), webhook);
            Notice::Done(format!("The webhook {kind} is saved."))
        }
        Err(reason) => Notice::Refused(format!("The webhook {kind} is not saved: {reason}.")),
    });
    Ok(Redirect::to("/"))
}

fn webhook(desk: &Desk, kind: &EventKind, form: WebhookForm) -> Result<Webhook, String> {
    let url = form.url.trim();
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

async fn enable(
    State(desk): State<Desk>,
    Path(kind): Path<String>,
) -> Result<Redirect, StatusCode> {
    let kind = known(&kind)?;
    desk.sandbox().enable(&kind);
    desk.say(Notice::Done(format!("The webhook {kind} is enabled.")));
    Ok(Redirect::to("/"))
}

#[derive(Deserialize)]
struct TestForm {
    #[serde(default)]
    test_secret: String,
}

/// A request without a form sends a test event with the webhook's secret.
async fn send_test(
    State(desk): State<Desk>,
    Path(kind): Path<String>,
    form: Result<Form<TestForm>, FormRejection>,
) -> Result<Redirect, StatusCode> {
    let kind = known(&kind)?;
    let secret = form.map_or_else(|_| String::new(), |Form(form)| form.test_secret);
    match secret.as_str() {
        "" => desk.sandbox().send_test(kind.clone()),
        secret => {
            let secret = Secret::new(secret).map_err(|_| StatusCode::UNPROCESSABLE_ENTITY)?;
            desk.sandbox().send_test_signed(kind.clone(), secret)
        }
    };
    desk.say(Notice::Done(format!("A test event {kind} is being sent.")));
    Ok(Redirect::to("/"))
}

fn known(kind: &str) -> Result<EventKind, StatusCode> {
    let known = EventKind::ALL
        .into_iter()
        .find(|known| known.as_str() == kind);
    known.ok_or(StatusCode::NOT_FOUND)
}

#[derive(Deserialize)]
struct NewChat {
    text: String,
}

async fn start_chat(State(desk): State<Desk>, Form(form): Form<NewChat>) -> Redirect {
    let chat = desk.sandbox().chat();
    chat.assign();
    if !form.text.is_empty() {
        chat.message(form.text);
    }
    desk.say(Notice::Done(format!("Chat {} is started.", chat.id())));
    Redirect::to("/")
}

#[derive(Deserialize)]
struct Rate {
    rate: u32,
}

async fn set_rate(State(desk): State<Desk>, Form(form): Form<Rate>) -> Redirect {
    desk.set_rate(form.rate);
    let text = format!("Chats cause {} events per minute.", desk.rate());
    desk.say(Notice::Done(text));
    Redirect::to("/")
}

#[derive(Deserialize)]
struct Forward {
    steps: u32,
}

async fn forward(State(desk): State<Desk>, Form(form): Form<Forward>) -> Redirect {
    desk.forward(form.steps);
    Redirect::to("/")
}

#[derive(Deserialize)]
struct Availability {
    available: bool,
}

async fn set_availability(State(desk): State<Desk>, Form(form): Form<Availability>) -> Redirect {
    desk.sandbox().set_available(form.available);
    Redirect::to("/")
}
