//! Posts an event to a local server.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use crate::event::Failure;
use crate::text::{chain, printable};

/// How long a connection may take to open.
const CONNECTING: Duration = Duration::from_secs(5);

/// How long an idle connection is kept: less than common servers do (Node.js: 5 s), so that no request meets
/// the end of its connection.
const IDLE: Duration = Duration::from_secs(4);

/// How long the body of an answer may take after its status, which has decided.
const PATIENCE_WITH_BODY: Duration = Duration::from_millis(250);

/// How much of an answer is read, in bytes.
const LONGEST_ANSWER: usize = 64 * 1024;

/// How much of an answer's first line is the reason in the log, in characters.
const LONGEST_REASON: usize = 256;

pub(crate) struct Forward {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Uri,
}

impl Forward {
    pub(crate) fn new(url: Uri, concurrency: usize) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECTING));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(concurrency)
            .build(connector);
        Self { client, url }
    }

    /// Posts `line`. If the future is dropped, the request is cancelled.
    pub(crate) async fn post(&self, line: &str) -> Result<(), Failure> {
        let request = Request::post(&self.url)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(line.to_owned()))
            .map_err(|error| Failure::Failed(error.to_string()))?;
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) if error.is_connect() => {
                // The event is not to blame.
                return Err(Failure::Later(format!(
                    "the server cannot be reached: {}",
                    chain(&error)
                )));
            }
            Err(error) => return Err(Failure::Failed(chain(&error))),
        };
        let status = response.status();
        // Read to its end, so that the connection can be used again. The status has decided, so a body that stalls
        // changes nothing.
        let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect();
        let body = match timeout(PATIENCE_WITH_BODY, body).await {
            Ok(body) => body.map(Collected::to_bytes).unwrap_or_default(),
            Err(_) => Bytes::new(),
        };
        if status.is_success() {
            return Ok(());
        }
        let reason = reason(status, &body);
        Err(match status {
            StatusCode::UNPROCESSABLE_ENTITY => Failure::Discard(reason),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Failure::Later(reason)
            }
            _ => Failure::Failed(reason),
        })
    }
}

/// The first line of an answer, and its status.
fn reason(status: StatusCode, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.trim().lines().next().unwrap_or_default();
    let line: String = line.chars().take(LONGEST_REASON).collect();
    match printable(&line) {
        line if line.is_empty() => format!("the server answered {status}"),
        line => format!("{line} (the server answered {status})"),
    }
}

/// Parses the value of `--forward`.
pub(crate) fn url(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) if authority.as_str().contains('@') => {
            Err("use a URL without a user and a password".to_owned())
        }
        (Some("http"), Some(_)) => Ok(uri),
        (Some("https"), _) => Err("TLS is not supported: use an http:// URL".to_owned()),
        _ => Err("use an absolute URL, such as http://127.0.0.1:8080/events".to_owned()),
    }
}
