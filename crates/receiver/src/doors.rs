//! Requests at a wrong door: another path, another method, another protocol.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;

use crate::refusals::Refusals;
use crate::text::printable;

/// The characters of a path that are logged.
const LONGEST: usize = 100;

struct Doors {
    paths: Vec<String>,
    refusals: Arc<Refusals>,
}

/// Has requests logged and counted that come to none of the paths, or that only ask whether one exists.
pub(crate) fn watch(app: Router, paths: Vec<String>, refusals: Arc<Refusals>) -> Router {
    let doors = Arc::new(Doors { paths, refusals });
    app.layer(middleware::from_fn_with_state(doors, pass))
}

async fn pass(State(doors): State<Arc<Doors>>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let peer = request.extensions().get::<SocketAddr>().copied();
    let response = next.run(request).await;
    let is_route = doors.paths.contains(&path);
    let shown = || printable(&path.chars().take(LONGEST).collect::<String>());
    match method {
        // Some senders ask so whether their receiver exists.
        Method::HEAD if response.status().is_success() => {}
        Method::HEAD if is_route => {
            let reason = format!(
                "HEAD of `{}` is no delivery: somebody asks whether the address exists; a monitor asks for `/healthz`",
                shown()
            );
            doors.refusals.log("head", peer, &reason);
        }
        // Whoever looks around with GET meant no delivery.
        Method::GET | Method::HEAD | Method::OPTIONS => {}
        method if !is_route && response.status() == StatusCode::NOT_FOUND => {
            let reason = format!(
                "{method} to `{}`, which is no route: {}",
                shown(),
                doors.meant(&path)
            );
            doors.refusals.log("unknown-path", peer, &reason);
        }
        _ => {}
    }
    response
}

impl Doors {
    /// What the sender may have meant.
    fn meant(&self, path: &str) -> String {
        let bare = |path: &str| path.trim_matches('/').to_lowercase();
        let similar = self.paths.iter().find(|known| bare(known) == bare(path));
        let known: Vec<_> = self
            .paths
            .iter()
            .take(5)
            .map(|it| format!("`{it}`"))
            .collect();
        match similar {
            Some(known) => format!("set exactly `{known}` at the sender"),
            None => format!("deliveries are sent to {}", known.join(", ")),
        }
    }
}

/// Says what speaks another protocol than HTTP/1.1 by its first bytes, with the name of the refusal.
pub(crate) fn protocol(first: &[u8]) -> Option<(&'static str, &'static str)> {
    // A record of a handshake, of any version.
    if let [0x16, 3, ..] = first {
        return Some((
            "tls",
            "the client speaks TLS, and this port does not: send to `http://`, or let a proxy in front terminate TLS",
        ));
    }
    let version_2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    if first.starts_with(b"PROXY ") || first.starts_with(version_2) {
        return Some((
            "proxy-protocol",
            "the proxy in front sends the PROXY protocol, which the receiver does not read: switch it off there",
        ));
    }
    first.starts_with(b"PRI * HTTP/2").then_some((
        "http2",
        "the client speaks HTTP/2 without TLS, and the receiver HTTP/1.1: let the proxy in front use HTTP/1.1",
    ))
}
