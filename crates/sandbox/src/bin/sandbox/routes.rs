//! The routes, and the answers to links.

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use tower_webhook::EventKind;
use tower_webhook_sandbox::{AttemptId, EventFilter, EventReport};

use crate::actions;
use crate::desk::{Desk, Notice};
use crate::host;
use crate::page::{self, EventView, List, STATES, slug};

pub(crate) fn app(desk: Desk) -> Router {
    let graphql = desk.sandbox().graphql();
    let page = Router::new()
        .route("/", get(overview))
        .route("/live", get(live))
        .route("/events", get(events))
        .route("/events/{id}", get(event))
        .route("/events/{id}/payload", get(payload))
        .route("/events/{id}/retry", post(actions::retry))
        .route("/events/{id}/resend", post(actions::resend))
        .route("/keys", post(actions::create_key))
        .route("/webhooks/{kind}", post(actions::configure))
        .route("/webhooks/{kind}/enable", post(actions::enable))
        .route("/webhooks/{kind}/test", post(actions::send_test))
        .route("/chats", post(actions::start_chat))
        .route("/chats/{id}", get(chat))
        .route("/chats/{id}/message", post(actions::message))
        .route("/chats/{id}/rate", post(actions::rate))
        .route("/chats/{id}/{step}", post(actions::step))
        .route("/rate", post(actions::set_rate))
        .route("/forward", post(actions::forward))
        .route("/availability", post(actions::set_availability))
        .route(
            "/page.css",
            get(([(CONTENT_TYPE, "text/css")], page::STYLE)),
        )
        .route(
            "/page.js",
            get(([(CONTENT_TYPE, "text/javascript")], page::SCRIPT)),
        )
        .route("/favicon.ico", get(StatusCode::NO_CONTENT))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
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
    if !host::is_known(host, &[]) {
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

/// The answer to a request that has none: a page that says why.
pub(crate) fn refused(desk: &Desk, status: StatusCode, reason: &str) -> Response {
    let title = status.canonical_reason().unwrap_or("Error");
    let page = page::problem(desk, title, reason);
    (status, Html(page.into_string())).into_response()
}

/// Returns the message that the last action left, unless the script asks, or another site.
fn notice(desk: &Desk, headers: &HeaderMap) -> Option<Notice> {
    // A link from another site shows the page, but does not use up what is shown only once: nobody may be
    // looking. A browser that does not send the header follows the redirect of the page's own form.
    let keeps = is_from_another_site(headers) || headers.contains_key("x-live");
    if keeps { None } else { desk.take_notice() }
}

#[derive(Deserialize)]
struct OverviewQuery {
    webhook: Option<String>,
}

async fn overview(
    State(desk): State<Desk>,
    headers: HeaderMap,
    Query(query): Query<OverviewQuery>,
) -> Html<String> {
    let notice = notice(&desk, &headers);
    Html(page::overview(&desk, notice.as_ref(), query.webhook.as_deref()).into_string())
}

/// The overview without the notice, which is shown only once.
async fn live(State(desk): State<Desk>) -> Html<String> {
    Html(page::overview(&desk, None, None).into_string())
}

#[derive(Deserialize)]
struct EventsQuery {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    chat: String,
    #[serde(default)]
    state: String,
    after: Option<String>,
}

impl EventsQuery {
    fn list(self) -> Result<List, String> {
        let kind = match self.kind.as_str() {
            "" => None,
            kind => Some(known(kind).ok_or_else(|| format!("There is no kind `{kind}`."))?),
        };
        let state = match self.state.as_str() {
            "" => None,
            name => {
                let state = STATES.into_iter().find(|state| slug(*state) == name);
                Some(state.ok_or_else(|| format!("There is no state `{name}`."))?)
            }
        };
        let after = self.after.map(|id| {
            id.parse()
                .map_err(|_| format!("`{id}` is not the number of an event."))
        });
        Ok(List {
            filter: EventFilter {
                kind,
                chat: Some(self.chat.trim().to_owned()).filter(|chat| !chat.is_empty()),
                state,
            },
            after: after.transpose()?,
        })
    }
}

async fn events(
    State(desk): State<Desk>,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Response {
    match query.list() {
        Ok(list) => {
            let notice = notice(&desk, &headers);
            Html(page::events(&desk, notice.as_ref(), &list).into_string()).into_response()
        }
        Err(reason) => refused(&desk, StatusCode::BAD_REQUEST, &reason),
    }
}

#[derive(Deserialize)]
struct EventQuery {
    attempt: Option<String>,
    before: Option<String>,
}

async fn event(
    State(desk): State<Desk>,
    headers: HeaderMap,
    Path(id): Path<String>,
    Query(query): Query<EventQuery>,
) -> Response {
    let Some(event) = find(&desk, &id) else {
        return no_event(&desk, &id);
    };
    let parse = |id: Option<String>| match id {
        None => Ok(None),
        Some(id) => match id.parse::<AttemptId>() {
            Ok(id) => Ok(Some(id)),
            Err(_) => Err(format!("`{id}` is not the number of an attempt.")),
        },
    };
    let view = parse(query.attempt).and_then(|attempt| {
        let before = parse(query.before)?;
        Ok(EventView { attempt, before })
    });
    match view {
        Ok(view) => {
            let notice = notice(&desk, &headers);
            Html(page::event(&desk, notice.as_ref(), &event, &view).into_string()).into_response()
        }
        Err(reason) => refused(&desk, StatusCode::BAD_REQUEST, &reason),
    }
}

/// The payload as it is sent. The browser shows it as text, or saves it.
async fn payload(State(desk): State<Desk>, Path(id): Path<String>) -> Response {
    match find(&desk, &id) {
        Some(event) => ([(CONTENT_TYPE, "text/plain; charset=utf-8")], event.body).into_response(),
        None => no_event(&desk, &id),
    }
}

pub(crate) fn find(desk: &Desk, id: &str) -> Option<EventReport> {
    desk.sandbox().event(id.parse().ok()?)
}

pub(crate) fn no_event(desk: &Desk, id: &str) -> Response {
    refused(
        desk,
        StatusCode::NOT_FOUND,
        &format!("There is no event `{id}`."),
    )
}

async fn chat(State(desk): State<Desk>, headers: HeaderMap, Path(id): Path<String>) -> Response {
    match desk.sandbox().find_chat(&id) {
        Some(chat) => {
            let notice = notice(&desk, &headers);
            Html(page::chat(&desk, notice.as_ref(), &chat).into_string()).into_response()
        }
        None => no_chat(&desk, &id),
    }
}

pub(crate) fn no_chat(desk: &Desk, id: &str) -> Response {
    refused(
        desk,
        StatusCode::NOT_FOUND,
        &format!("There is no chat `{id}`."),
    )
}

pub(crate) fn known(kind: &str) -> Option<EventKind> {
    EventKind::ALL
        .into_iter()
        .find(|known| known.as_str() == kind)
}

async fn not_found(State(desk): State<Desk>) -> Response {
    refused(&desk, StatusCode::NOT_FOUND, "There is no such page.")
}

async fn wrong_method(State(desk): State<Desk>) -> Response {
    let reason = "This address does not support the method of the request.";
    refused(&desk, StatusCode::METHOD_NOT_ALLOWED, reason)
}
