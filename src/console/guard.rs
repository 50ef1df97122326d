//! Which requests are answered, and who sent them.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{OriginalUri, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, StatusCode};

use super::Console;
use super::page::Site;
use crate::telemetry::Short;

/// Refuses requests under other host names, and notes where the console is mounted.
pub(super) async fn guard(
    State(console): State<Arc<Console>>,
    OriginalUri(original): OriginalUri,
    mut request: Request,
    next: Next,
) -> Response {
    if !is_known_host(&console, &request) {
        let reason = "The console is not reachable under this host name.";
        return (StatusCode::MISDIRECTED_REQUEST, reason).into_response();
    }
    let inner = request.uri().path();
    let base = match original.path().strip_suffix(inner) {
        Some(base) => base,
        // Without the slash at its end.
        None => original.path(),
    };
    let base = base.trim_end_matches('/').to_owned();
    request.extensions_mut().insert(Site { base });
    next.run(request).await
}

fn is_known_host(console: &Console, request: &Request) -> bool {
    let Some(hosts) = &console.hosts else {
        return true;
    };
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

/// The name of the operator, for the log.
pub(super) fn actor(console: &Console, headers: &HeaderMap) -> Option<String> {
    let value = headers.get(console.actor.as_ref()?)?;
    Some(Short(value.as_bytes().escape_ascii()).to_string())
}
