//! Which requests are answered, and who sent them.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{OriginalUri, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::future::join;
use http::header::{CONTENT_TYPE, COOKIE, HOST, SET_COOKIE};
use http::uri::Authority;
use http::{HeaderMap, StatusCode};
use tokio::time::timeout;
use tower_webhook::inbox::{By, Inbox, Which};
use tower_webhook::store::{StoreError, StoreErrorKind};

use super::page::View;
use super::problem::Problem;
use super::request::Did;
use super::settings::Console;

/// How long a page waits for the counts, which say what is paused.
const COUNTS: Duration = Duration::from_secs(1);

/// Refuses requests under other host names, notes where the console is mounted, and makes pages of problems and of what the
/// layers inside refuse.
pub(super) async fn guard(
    State(console): State<Arc<Console>>,
    OriginalUri(original): OriginalUri,
    mut request: Request,
    next: Next,
) -> Response {
    let inner = request.uri().path();
    let base = match original.path().strip_suffix(inner) {
        Some(base) => base,
        // Without the slash at its end.
        None => original.path(),
    };
    // A style or a script shows no pauses, so it does not ask the queue for them.
    let is_page = !inner.contains('.');
    let mut view = View {
        console,
        base: base.trim_end_matches('/').to_owned(),
        did: None,
        counted: None,
        failed: None,
        who: String::new(),
        named: Arc::default(),
    };
    let did = original.query().and_then(Did::of_query);
    // Anybody can write a URL.
    view.did = did.filter(|did| view.console.done.has(did));
    // The checks come first, so that a request of another site does not reach the queue.
    if !is_known_host(&view.console, &request) {
        let reason = "The console is not reachable under this host name.";
        let problem = Problem::new(StatusCode::MISDIRECTED_REQUEST, reason);
        return problem.page(&view);
    }
    let headers = request.headers();
    if is_embedded(headers) {
        let reason = "A page of another site has sent this request.";
        let problem = Problem::new(StatusCode::FORBIDDEN, reason);
        return problem.page(&view);
    }
    // A client may have set the first one, before the proxy.
    let actors = view.console.actor.as_ref();
    if actors.is_some_and(|name| headers.get_all(name).iter().nth(1).is_some()) {
        let problem = Problem::bad("The header with the operator's name occurs twice.");
        return problem.page(&view);
    }
    view.who = actor(&view.console, headers).unwrap_or_default();
    if let Some(inbox) = view.console.inbox.clone().filter(|_| is_page) {
        let counted = timeout(COUNTS, view.console.counts.of(&inbox));
        let (counted, failed) = join(counted, failure(&inbox)).await;
        // Counts of before say nothing of a database that has gone since.
        view.counted = counted
            .ok()
            .and_then(Result::ok)
            .filter(|_| failed.is_none());
        view.failed = failed.map(Arc::new);
    }
    // The overview shows what does not come from the database.
    if let Some(error) = view.failed.as_deref().filter(|_| inner != "/") {
        return Problem::from(error).page(&view);
    }
    request.extensions_mut().insert(view.clone());
    let answer = next.run(request).await;
    let of_layer = || reason(&answer).map(|reason| Problem::new(answer.status(), reason));
    let problem = answer.extensions().get().cloned().or_else(of_layer);
    let mut answer = match problem {
        Some(problem) => problem.page(&view),
        None => answer,
    };
    remember(&view, &mut answer);
    answer
}

/// How long a page waits for any answer of the database.
const ANSWER: Duration = Duration::from_millis(2_500);

/// The database's error, if it does not answer the smallest question.
async fn failure(inbox: &Inbox) -> Option<StoreError> {
    match timeout(ANSWER, inbox.actions(Which::All, None, 1)).await {
        Ok(answer) => answer.err(),
        Err(_) => {
            let reason = format!("it did not answer for {:.1} s", ANSWER.as_secs_f32());
            Some(StoreError::new(StoreErrorKind::TimedOut, reason))
        }
    }
}

/// The cookie with the name that an operator has typed, so that nobody types it twice.
const WHO: &str = "webhook-console-who";

fn remember(view: &View, answer: &mut Response) {
    let Some(who) = view.named.get() else {
        return;
    };
    let who: String = form_urlencoded::byte_serialize(who.as_bytes()).collect();
    let path = if view.base.is_empty() {
        "/"
    } else {
        &view.base
    };
    let cookie = format!("{WHO}={who}; Path={path}; Max-Age=31536000; SameSite=Strict; HttpOnly");
    if let Ok(cookie) = cookie.parse() {
        answer.headers_mut().append(SET_COOKIE, cookie);
    }
}

/// Why a layer refused a request, or `None` if the answer is a page already.
fn reason(answer: &Response) -> Option<Cow<'static, str>> {
    let status = answer.status();
    let is_page = answer
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    if is_page || !(status.is_client_error() || status.is_server_error()) {
        return None;
    }
    Some(match status {
        // `CsrfLayer` answers with 403, and the handlers never do.
        StatusCode::FORBIDDEN => "A page of another site has sent this request.".into(),
        StatusCode::INTERNAL_SERVER_ERROR => "The console panicked. The log has the reason.".into(),
        other => format!("The request was refused with {other}.").into(),
    })
}

/// Whether a browser says that a page of another site loads this one: as an image, a script or a frame. Links are allowed.
fn is_embedded(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    // Programs do not send the header. `none` is an address that the operator has typed.
    let is_own = site.is_none_or(|site| site == "same-origin" || site == "none");
    !is_own
        && headers
            .get("sec-fetch-dest")
            .is_none_or(|dest| dest != "document")
}

fn is_known_host(console: &Console, request: &Request) -> bool {
    let Some(hosts) = &console.hosts else {
        return true;
    };
    // A request in HTTP/2 has the host in its URI, and may have no `Host`.
    let authority = match request.uri().authority() {
        Some(authority) => Some(authority.clone()),
        None => request
            .headers()
            .get(HOST)
            .and_then(|host| host.to_str().ok()?.parse::<Authority>().ok()),
    };
    authority.is_some_and(|authority| {
        let host = authority.host();
        // No name of another site leads here by an address.
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let is_address = address.parse::<IpAddr>().is_ok();
        is_address || hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
    })
}

/// The name of the operator, if a proxy passes it on, or the operator has typed it before.
pub(super) fn actor(console: &Console, headers: &HeaderMap) -> Option<String> {
    let Some(name) = &console.actor else {
        let cookies = headers.get_all(COOKIE).into_iter();
        let cookies = cookies.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let mut named = cookies.filter_map(|pair| {
            let value = pair.trim_ascii().strip_prefix(WHO.as_bytes())?;
            value.strip_prefix(b"=")
        });
        let encoded = [b"who=", named.next()?].concat();
        let (_, who) = form_urlencoded::parse(&encoded).next()?;
        return Some(By::new(&who).who().to_owned());
    };
    let value = headers.get(name)?;
    Some(
        // A header may have any bytes, and a terminal that shows the log would obey some of them.
        By::new(&value.as_bytes().escape_ascii().to_string())
            .who()
            .to_owned(),
    )
}
