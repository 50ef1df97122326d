//! The operator's console, without a browser.

mod access;
mod batches;
mod bodies;
mod changes;
mod history;
#[cfg(feature = "sqlite")]
mod large;
mod overview;
mod pages;
mod payloads;
mod people;
mod queues;
mod senders;
mod texts;
mod truth;

use axum::Router;
use axum::body::Body;
use http::header::{CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::BodyExt;
use tokio::time::sleep;
use tower::ServiceExt;
use tower_webhook::inbox::{EventState, Inbox};
use tower_webhook::{EventRouter, HandlerError, RawDelivery};

use support::SECOND;
use support::delivery::send;
use support::inbox::{Works, event, inbox, states, webhooks};

/// What a page is.
#[derive(Debug)]
struct Seen {
    status: StatusCode,
    location: Option<String>,
    text: String,
}

impl Seen {
    #[track_caller]
    fn shows(&self, text: &str) -> &Self {
        assert!(
            self.text.contains(text),
            "{text} is not in {:?}\n{}",
            self.status,
            self.text
        );
        self
    }

    #[track_caller]
    fn hides(&self, text: &str) -> &Self {
        assert!(
            !self.text.contains(text),
            "{text} is in {:?}\n{}",
            self.status,
            self.text
        );
        self
    }

    #[track_caller]
    fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self
    }
}

async fn request(app: &Router, request: Request<Body>) -> Seen {
    let answer = app.clone().oneshot(request).await.unwrap();
    let (head, body) = answer.into_parts();
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(head.headers[name], value);
    }
    let policy = head.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    let text = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    // An export has as many bytes as its events.
    let is_page = |it: &HeaderValue| it.as_bytes().starts_with(b"text/html");
    if head.headers.get(CONTENT_TYPE).is_none_or(is_page) {
        assert!(text.len() <= 50_000, "{} bytes", text.len());
    }
    Seen {
        status: head.status,
        location: head
            .headers
            .get(LOCATION)
            .map(|it| it.to_str().unwrap().to_owned()),
        text,
    }
}

/// The status of a page of any size.
async fn answer(app: &Router, path: &str) -> (StatusCode, u64) {
    let get = Request::get(path).header(HOST, "localhost:3001");
    let answer = app.clone().oneshot(get.body(Body::empty()).unwrap());
    let (head, body) = answer.await.unwrap().into_parts();
    let (mut body, mut written) = (body, 0);
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap_or_default();
        written += data.len() as u64;
    }
    (head.status, written)
}

async fn get(app: &Router, path: &str) -> Seen {
    let get = Request::get(path).header(HOST, "localhost:3001");
    request(app, get.body(Body::empty()).unwrap()).await
}

/// A form of an operator who has typed a name, or whose proxy passes it on.
fn form(path: &str, fields: &str) -> Request<Body> {
    let fields = fields.split('&').filter(|field| *field != "who=");
    let fields: Vec<_> = ["who=ada"].into_iter().chain(fields).collect();
    let fields = fields.join("&");
    Request::post(path)
        .header("x-user", "ada")
        .header(HOST, "localhost:3001")
        .header("sec-fetch-site", "same-origin")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Body::from(fields))
        .unwrap()
}

async fn post(app: &Router, path: &str, fields: &str) -> Seen {
    request(app, form(path, fields)).await
}

/// Opens the page that asks whether all that match are to be changed.
async fn asked(app: &Router, query: &str) -> Seen {
    let page = get(app, &format!("/all?{query}")).await;
    // While the events are counted, the page asks again for those that it has seen.
    let page = match &page.location {
        Some(again) => get(app, again).await,
        None => page,
    };
    page.is(200);
    page
}

/// The fields of a form that the browser would send.
fn fields(page: &Seen) -> String {
    let inputs = page.text.split("<input type=\"hidden\" name=\"").skip(1);
    let pairs = inputs.map(|input| {
        let (name, rest) = input.split_once("\" value=\"").unwrap();
        (name, rest.split('"').next().unwrap())
    });
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish()
}

/// Asks, and confirms.
async fn all(app: &Router, query: &str) -> Seen {
    let confirmed = fields(&asked(app, query).await);
    post(app, "/all", &confirmed).await
}

async fn four_events() -> Inbox {
    four_events_of(inbox()).await
}

/// Adds the events 1 (handled), 2 (a dead letter), and 3 (retried), 4 (waiting behind it).
async fn four_events_of(inbox: Inbox) -> Inbox {
    let webhooks = webhooks(&inbox);
    let events =
        EventRouter::new().fallback(
            async |delivery: RawDelivery| match delivery.body().as_ref() {
                body if body.starts_with(br#"{"id":"dead""#) => {
                    Err(HandlerError::dead_letter("no such customer"))
                }
                body if body.starts_with(br#"{"id":"stuck""#) => {
                    Err(HandlerError::retry("the CRM is down"))
                }
                _ => Ok(()),
            },
        );
    for request in [
        event("fine", 1),
        event("dead", 1),
        event("stuck", 1),
        event("stuck", 2),
    ] {
        send(&webhooks, request).await.assert_ok();
    }
    let worker = inbox.work(events).spawn();
    sleep(SECOND).await;
    worker.drain(SECOND).await.unwrap();
    assert_eq!(
        states(&inbox).await,
        [
            EventState::Handled,
            EventState::Dead,
            EventState::Retrying,
            EventState::Waiting
        ]
    );
    inbox
}
