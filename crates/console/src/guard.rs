//! Which requests are answered, and who sent them.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{OriginalUri, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HOST};
use http::uri::Authority;
use http::{HeaderMap, StatusCode};
use tokio::time::timeout;
use tower_webhook::inbox::By;

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
    if let Some(inbox) = view.console.inbox.as_ref().filter(|_| is_page) {
        // A queue that fails is a matter of the page.
        let counted = timeout(COUNTS, view.console.counts.of(inbox)).await;
        view.counted = counted.ok().and_then(Result::ok);
    }
    request.extensions_mut().insert(view.clone());
    let answer = next.run(request).await;
    let of_layer = || reason(&answer).map(|reason| Problem::new(answer.status(), reason));
    let problem = answer.extensions().get().cloned().or_else(of_layer);
    match problem {
        Some(problem) => problem.page(&view),
        None => answer,
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

/// The name of an operator, if it is known.
pub(super) fn known(who: &str) -> Option<&str> {
    Some(who).filter(|who| !who.is_empty())
}

/// The name of the operator, for the log and the actions.
pub(super) fn actor(console: &Console, headers: &HeaderMap) -> Option<String> {
    let value = headers.get(console.actor.as_ref()?)?;
    Some(
        // A header may have any bytes, and a terminal that shows the log would obey some of them.
        By::new(&value.as_bytes().escape_ascii().to_string())
            .who()
            .to_owned(),
    )
}
