//! The Admin API client over an in-process stub and over sockets.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use serde_json::json;
use support::net;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, Sleep, sleep};
use tower::{Service, ServiceBuilder, service_fn};
use tower_webhook_admin::{
    AccessToken, AdminClient, AdminConfigError, AdminError, AdminErrorKind, BaseUrl, Location,
    PathSegment, Transport,
};

/// With characters that JSON and URLs may spell in another way.
const TOKEN: &str = "hunter2/abc+def==";
const BASE_URL: &str = "https://api.example/v1/";
const AVAILABLE: &str = r#"{"data":{"partner":{"state":{"chat":{"isAvailable":true}}}}}"#;
/// Spec 4.1.
const BODY: &str = r#"{"query":"{ partner { state { chat { isAvailable } } } }"}"#;

// What is sent.

#[tokio::test]
async fn request_is_exactly_what_the_spec_shows() {
    let seen = Arc::new(Mutex::new(None));
    let stub = {
        let seen = seen.clone();
        service_fn(move |request: Request<Full<Bytes>>| {
            *seen.lock().unwrap() = Some(request);
            async { answer(AVAILABLE) }
        })
    };
    let admin = AdminClient::with_service(BASE_URL, token(), stub).unwrap();

    assert!(admin.chat_is_available().await.unwrap());

    let (head, body) = seen.lock().unwrap().take().unwrap().into_parts();
    assert_eq!(head.method, Method::POST);
    assert_eq!(head.uri, "https://api.example/v1/graphql");
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let bearer = format!("Bearer {TOKEN}").parse().unwrap();
    headers.insert(AUTHORIZATION, bearer);
    assert_eq!(head.headers, headers);
    assert!(head.headers[AUTHORIZATION].is_sensitive());
    assert_eq!(body.collect().await.unwrap().to_bytes(), BODY);
}

#[tokio::test]
async fn query_text_arrives_unchanged() {
    let echo = service_fn(async |request: Request<Full<Bytes>>| {
        let body = request.into_body().collect().await?.to_bytes();
        let answer = [br#"{"data":"#, &*body, b"}"].concat();
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(answer)))
    });
    let admin = AdminClient::with_service(BASE_URL, token(), echo).unwrap();

    for text in [
        "",
        "{ a }",
        "\"\\\n\r\t\0/é🧾\u{2028}",
        "mutation { a(b: \"\\\"\") }",
    ] {
        let sent: BTreeMap<String, String> = admin.query(text).await.unwrap();
        assert_eq!(sent, BTreeMap::from([("query".into(), text.into())]));
    }
}

#[tokio::test]
async fn only_headers_that_http_needs_are_added() {
    let server = Server::start(|| Response::new(Body::from(AVAILABLE))).await;
    let admin = AdminClient::new(format!("http://{}/v1/", server.address), token()).unwrap();

    assert!(admin.chat_is_available().await.unwrap());

    let seen = server.seen();
    let [request] = &seen[..] else {
        panic!("one request: {seen:?}")
    };
    assert_eq!(
        (request.method(), request.uri().path(), request.version()),
        (&Method::POST, "/v1/graphql", Version::HTTP_11)
    );
    let headers: BTreeMap<_, _> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap().to_owned()))
        .collect();
    let expected = BTreeMap::from([
        ("accept", "*/*".to_owned()),
        ("authorization", format!("Bearer {TOKEN}")),
        ("content-length", BODY.len().to_string()),
        ("content-type", "application/json".to_owned()),
        ("host", server.address.to_string()),
    ]);
    assert_eq!(headers, expected);
    assert_eq!(request.body(), BODY);
}

#[tokio::test]
async fn clones_send_concurrently_and_localhost_resolves() {
    let server = Server::start(|| Response::new(Body::from(AVAILABLE))).await;
    let url = format!("http://localhost:{}", server.address.port());
    let admin = AdminClient::new(&url, token()).unwrap();

    let calls = (0..20).map(|_| {
        let admin = admin.clone();
        tokio::spawn(async move { admin.chat_is_available().await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert!(call.await.unwrap().unwrap());
    }
    assert_eq!(server.seen().len(), 20);
}

#[tokio::test]
async fn transport_can_be_wrapped_in_layers() {
    let server = Server::start(|| Response::new(Body::from(AVAILABLE))).await;
    let base_url: BaseUrl = format!("http://{}", server.address).parse().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let service = ServiceBuilder::new()
        .map_request({
            let calls = calls.clone();
            move |request: Request<Full<Bytes>>| {
                calls.fetch_add(1, Ordering::Relaxed);
                request
            }
        })
        .service(Transport::new(&base_url).unwrap());
    let admin = AdminClient::with_service(base_url, token(), service).unwrap();

    let (one, two) = tokio::join!(admin.chat_is_available(), admin.chat_is_available());

    assert!(one.unwrap() && two.unwrap());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn client_is_shareable_and_its_futures_are_send() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    fn moved<T: Send>(_: impl Fn(&'static AdminClient) -> T) {}

    shared::<AdminClient>();
    shared::<Transport>();
    moved(tower_webhook_admin::AdminClient::chat_is_available);
    moved(|admin| admin.query::<serde_json::Value>(""));
    moved(|admin| admin.execute(""));
}

#[test]
fn settings_that_would_expose_the_token_are_rejected() {
    let error = AdminClient::new("http://api.example", token()).unwrap_err();
    assert!(matches!(error, AdminConfigError::PlainHttp { .. }));
    let stub = service_fn(async |_: Request<Full<Bytes>>| answer(AVAILABLE));
    let error = AdminClient::with_service("http://api.example", token(), stub).unwrap_err();
    assert!(matches!(error, AdminConfigError::PlainHttp { .. }));

    let asked_for = BaseUrl::dangerously_allow_http("http://api.example").unwrap();
    let admin = AdminClient::new(asked_for, token()).unwrap();
    assert_eq!(admin.endpoint(), "http://api.example/graphql");
}

// What is answered.

#[tokio::test]
async fn availability_is_read_from_the_response() {
    for (text, available) in [
        (AVAILABLE, true),
        (&AVAILABLE.replace("true", "false"), false),
        (
            r#"{"extensions":{"cost":1},"errors":null,"x":0,"data":{"y":1,"partner":{"state":{"chat":{"isAvailable":true,"z":2}}}}}"#,
            true,
        ),
        (
            r#"{"data":{"partner":{"state":{"chat":{"isAvailable":true}}}},"errors":[]}"#,
            true,
        ),
    ] {
        let answer = stub(StatusCode::OK, text).chat_is_available().await;
        assert_eq!(answer.unwrap(), available, "{text}");
    }
}

#[tokio::test]
async fn partial_data_is_returned_with_its_errors() {
    let admin = stub(
        StatusCode::OK,
        r#"{
            "data": {"a": 1, "b": [{"c": null}]},
            "errors": [
                {
                    "message": "no c",
                    "path": ["b", 0, "c"],
                    "locations": [{"line": 2, "column": 5}, {"line": 3, "column": 7}],
                    "extensions": {"code": "GONE"}
                },
                {"message": "slow", "path": null, "locations": null, "extensions": null, "x": 1},
                {}
            ],
            "extensions": {"cost": 7}
        }"#,
    );

    let answer = admin.execute("{ a b { c } }").await.unwrap();
    assert_eq!(answer.data, Some(json!({"a": 1, "b": [{"c": null}]})));
    assert_eq!(answer.extensions["cost"], 7);
    let [gone, slow, empty] = &answer.errors[..] else {
        panic!("{answer:?}")
    };
    assert_eq!(gone.message, "no c");
    assert_eq!(
        gone.path,
        [
            PathSegment::Field("b".into()),
            PathSegment::Index(0),
            PathSegment::Field("c".into())
        ]
    );
    let locations = [(2, 5), (3, 7)].map(|(line, column)| Location { line, column });
    assert_eq!(gone.locations, locations);
    assert_eq!(gone.extensions["code"], "GONE");
    assert_eq!(slow.to_string(), "slow");
    assert_eq!(empty.to_string(), "an error without a message");

    let error = admin.query::<serde_json::Value>("").await.unwrap_err();
    let errors = answer.errors;
    assert_eq!(error.graphql_errors(), errors);
    assert_eq!(error.kind(), &AdminErrorKind::GraphQl { errors });
    assert_eq!(
        error.to_string(),
        "the query failed: no c (at b.0.c), and 2 more"
    );
}

#[tokio::test]
async fn errors_without_data_are_graphql_errors() {
    for text in [
        r#"{"data":null,"errors":[{"message":"not\nyours","path":["partner"]}]}"#,
        r#"{"errors":[{"message":"not\nyours","path":["partner"]}]}"#,
    ] {
        let error = stub(StatusCode::OK, text).failure().await;
        assert_eq!(error.graphql_errors()[0].message, "not\nyours");
        assert_eq!(
            error.to_string(),
            r"the query failed: not\nyours (at partner)"
        );
        assert!(matches!(error.kind(), AdminErrorKind::GraphQl { .. }));
        assert!(!error.is_retryable());

        let answer = stub(StatusCode::OK, text).execute("").await.unwrap();
        assert_eq!((answer.data, answer.errors.len()), (None, 1));
    }
}

#[tokio::test]
async fn response_without_data_and_errors_is_an_error() {
    for text in [
        "{}",
        r#"{"data":null}"#,
        r#"{"data":null,"errors":[]}"#,
        r#"{"message":"hi"}"#,
    ] {
        let admin = stub(StatusCode::OK, text);
        for error in [admin.failure().await, admin.execute("").await.unwrap_err()] {
            assert_eq!(error.kind(), &AdminErrorKind::NoData, "{text}");
            assert!(!error.is_retryable());
        }
    }
}

#[tokio::test]
async fn unexpected_body_is_undecodable() {
    for (text, says) in [
        ("", "EOF"),
        ("<html>", "expected value"),
        (r#"{"data":{"partner":"#, "EOF"),
        (&format!("{AVAILABLE} x"), "trailing characters"),
        ("null", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("[null,[],{}]", "not a JSON object"),
        ("\"data\"", "not a JSON object"),
        (r#"{"errors":"no"}"#, "invalid type"),
        (r#"{"errors":[{"message":1}]}"#, "invalid type"),
        (r#"{"errors":[1]}"#, "invalid type"),
        (r#"{"data":{}}"#, "missing field `partner`"),
        (r#"{"data":{"partner":null}}"#, "invalid type: null"),
        (
            r#"{"data":{"partner":{"state":{"chat":{}}}}}"#,
            "missing field `isAvailable`",
        ),
        (&AVAILABLE.replace("true", "null"), "invalid type: null"),
        (&AVAILABLE.replace("true", "\"true\""), "expected a boolean"),
        (&AVAILABLE.replace("true", "1"), "expected a boolean"),
    ] {
        let error = stub(StatusCode::OK, text).failure().await;
        assert_eq!(error.kind(), &AdminErrorKind::Decode, "{text}");
        let source = error.source().expect(text).to_string();
        assert!(source.contains(says), "{text}: {source}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn error_status_includes_an_excerpt_of_the_body() {
    let long = "é\n".repeat(100_000);
    let excerpt = r"é\n".repeat(256) + "…";
    for (code, text, excerpt, retryable) in [
        (401, "who are you?", "who are you?", false),
        (404, "", "", false),
        (429, "\x1b[2J\r\n", r"\u{1b}[2J", true),
        (500, &long, &excerpt, true),
        (503, "<html>later</html>\n", "<html>later</html>", true),
        (199, "", "", false),
        (304, "", "", false),
    ] {
        let status = StatusCode::from_u16(code).unwrap();
        let error = stub(status, text).failure().await;

        let AdminErrorKind::Status {
            status: was,
            excerpt: shown,
            errors,
            location: None,
            ..
        } = error.kind()
        else {
            panic!("{code}: {error:?}")
        };
        assert_eq!((*was, shown.as_str()), (status, excerpt));
        assert!(errors.is_empty());
        assert_eq!(error.is_retryable(), retryable, "{code}");
        let colon = if excerpt.is_empty() { "" } else { ": " };
        let display = format!("the Admin API answered {status}{colon}{excerpt}");
        assert_eq!(error.to_string(), display);
    }
}

#[tokio::test]
async fn retry_after_of_429_and_503_is_kept() {
    for (code, seconds) in [(429, Some(30)), (503, Some(30)), (500, None), (401, None)] {
        let server = Server::start(move || {
            Response::builder()
                .status(code)
                .header("retry-after", "30")
                .body(Body::from("later"))
                .unwrap()
        })
        .await;
        let error = server.client().failure().await;

        assert_eq!(error.retry_after(), seconds.map(Duration::from_secs));
        let says = ", to be retried after 30 s: later";
        let text = error.to_string();
        assert_eq!(text.ends_with(says), seconds.is_some(), "{text}");
    }
    let error = stub(StatusCode::TOO_MANY_REQUESTS, "").failure().await;
    assert_eq!(error.retry_after(), None);
}

#[tokio::test]
async fn graphql_errors_are_read_at_any_status() {
    let text = r#"{"errors":[{"message":"unknown field","locations":[{"line":1,"column":3}]}]}"#;
    let error = stub(StatusCode::BAD_REQUEST, text).failure().await;

    assert!(matches!(error.kind(), AdminErrorKind::Status { .. }));
    assert_eq!(error.graphql_errors()[0].message, "unknown field");
    assert_eq!(error.graphql_errors()[0].locations[0].column, 3);
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let elsewhere = Server::start(|| Response::new(Body::from(AVAILABLE))).await;
    for code in [301, 302, 303, 307, 308] {
        for location in [
            format!("http://{}/graphql", elsewhere.address),
            format!("//{}/", elsewhere.address),
            "/graphql/".to_owned(),
        ] {
            let to = location.clone();
            let server = Server::start(move || {
                Response::builder()
                    .status(code)
                    .header(LOCATION, &to)
                    .body(Body::from("moved"))
                    .unwrap()
            })
            .await;
            let error = server.client().failure().await;

            assert!(
                matches!(error.kind(), AdminErrorKind::Status { status, location: Some(to), .. }
                    if status.as_u16() == code && *to == location),
                "{error:?}"
            );
            assert!(error.to_string().contains("not followed"), "{error}");
            assert!(!error.is_retryable());
            assert_eq!(server.seen().len(), 1);
        }
    }
    assert!(elsewhere.seen().is_empty());
}

// Limits.

#[tokio::test]
async fn response_may_be_as_large_as_the_limit_and_no_larger() {
    let exact = AVAILABLE.len();
    for (limit, fits) in [(exact, true), (exact - 1, false), (0, false)] {
        // Known beforehand, and counted.
        for chunk in [exact, 7] {
            let server = Server::start(move || match chunk {
                7 => chunked(AVAILABLE.as_bytes().chunks(7).map(Bytes::from)),
                _ => Response::new(Body::from(AVAILABLE)),
            })
            .await;
            let result = server
                .client()
                .max_response(limit)
                .chat_is_available()
                .await;

            match result {
                Ok(available) => assert!(available && fits),
                Err(error) => {
                    assert!(!fits, "{error}");
                    assert_eq!(error.kind(), &AdminErrorKind::TooLarge { limit });
                    assert!(!error.is_retryable());
                }
            }
        }
    }
}

#[tokio::test]
async fn body_announced_too_large_is_not_read() {
    let server = raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1048577\r\n\r\n", true).await;
    let error = client(server).failure().await;
    let limit = 1024 * 1024;
    assert_eq!(error.kind(), &AdminErrorKind::TooLarge { limit });
}

#[tokio::test]
async fn endless_body_is_cut_off_at_the_limit() {
    for (code, limit) in [(200, 1024 * 1024), (500, 64 * 1024)] {
        let chunks = Arc::new(AtomicUsize::new(0));
        let count = chunks.clone();
        let stub = service_fn(move |_: Request<Full<Bytes>>| {
            let count = count.clone();
            let mut response = chunked(std::iter::repeat_with(move || {
                count.fetch_add(1, Ordering::Relaxed);
                Bytes::from_static(&[b'x'; 1024])
            }));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            async { Ok::<_, Infallible>(response) }
        });
        let error = AdminClient::with_service(BASE_URL, token(), stub)
            .unwrap()
            .failure()
            .await;

        match error.kind() {
            AdminErrorKind::TooLarge { limit: was } => assert_eq!((code, *was), (200, limit)),
            AdminErrorKind::Status { excerpt, .. } => {
                assert_eq!((code, excerpt), (500, &("x".repeat(512) + "…")));
            }
            _ => panic!("{error:?}"),
        }
        assert_eq!(chunks.load(Ordering::Relaxed), limit / 1024 + 1);
    }

    let server =
        Server::start(|| chunked(std::iter::repeat(Bytes::from_static(&[b' '; 8192])))).await;
    let error = server.client().failure().await;
    assert!(matches!(error.kind(), AdminErrorKind::TooLarge { .. }));
}

#[tokio::test(start_paused = true)]
async fn timeout_covers_the_whole_call() {
    let seconds = Duration::from_secs_f64;
    for (ready, head, body, passes) in [
        (3.0, 3.0, 3.9, true),
        (3.0, 3.0, 4.1, false),
        (10.1, 0.0, 0.0, false),
        (0.0, 10.1, 0.0, false),
        (0.0, 0.0, 10.1, false),
        (0.0, 0.0, 1e9, false),
    ] {
        let started = Instant::now();
        let [ready, head, body] = [ready, head, body].map(seconds);
        let result = slow(StatusCode::OK, ready, head, body)
            .chat_is_available()
            .await;

        let limit = seconds(10.0);
        match result {
            Ok(available) => assert!(available && passes),
            Err(error) => {
                assert!(!passes, "{error}");
                assert_eq!(error.kind(), &AdminErrorKind::TimedOut { limit });
                assert!(error.is_retryable());
            }
        }
        let expected = limit.min(ready + head + body);
        let late = started.elapsed().checked_sub(expected).unwrap();
        assert!(late < seconds(0.01), "{late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_can_be_set() {
    let [limit, long, none] = [60, 1_000_000, 0].map(Duration::from_secs);
    let admin = slow(StatusCode::OK, none, long, none);

    let started = Instant::now();
    let error = admin.clone().timeout(limit).failure().await;
    assert_eq!(error.kind(), &AdminErrorKind::TimedOut { limit });
    assert!(started.elapsed() < limit + Duration::from_secs(1));

    let admin = admin.timeout(Duration::MAX);
    assert!(admin.chat_is_available().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn status_is_reported_although_its_body_hangs() {
    let [none, long] = [0, 1_000_000].map(Duration::from_secs);
    let admin = slow(StatusCode::UNAUTHORIZED, none, none, long);
    let error = admin.failure().await;

    assert_eq!(error.to_string(), "the Admin API answered 401 Unauthorized");
    assert!(!error.is_retryable());
}

// The network.

#[tokio::test]
async fn refused_connection_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);

    let error = client(address).failure().await;

    assert_eq!(error.kind(), &AdminErrorKind::Transport);
    assert!(error.is_retryable());
    let refused = chain(&error).any(|error| {
        error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
    assert!(refused, "{}", shown(&error));
}

#[tokio::test]
async fn silent_server_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limit = Duration::from_millis(50);
    let admin = client(listener.local_addr().unwrap()).timeout(limit);

    let error = admin.failure().await;

    assert_eq!(error.kind(), &AdminErrorKind::TimedOut { limit });
}

#[tokio::test]
async fn truncated_and_malformed_responses_are_errors() {
    for text in [
        "",
        "hello\r\n\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"data\":{}}",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"dat\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
    ] {
        let server = raw(text.as_bytes(), false).await;
        let error = client(server).failure().await;
        assert_eq!(error.kind(), &AdminErrorKind::Transport, "{text:?}");
        assert!(error.source().is_some());
        assert!(error.is_retryable());
    }
}

#[tokio::test]
async fn https_does_not_fall_back_to_http() {
    let server = Server::start(|| Response::new(Body::from(AVAILABLE))).await;
    let admin = AdminClient::new(format!("https://{}", server.address), token()).unwrap();

    let error = admin.failure().await;

    assert_eq!(error.kind(), &AdminErrorKind::Transport);
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn transport_error_is_the_source() {
    #[derive(Debug)]
    struct Broken;
    impl fmt::Display for Broken {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("broken")
        }
    }
    impl Error for Broken {}

    let stub = service_fn(async |_: Request<Full<Bytes>>| Err::<Response<Full<Bytes>>, _>(Broken));
    let admin = AdminClient::with_service(BASE_URL, token(), stub).unwrap();
    let error = admin.failure().await;

    assert_eq!(error.kind(), &AdminErrorKind::Transport);
    assert!(error.source().unwrap().is::<Broken>());
}

// The token.

/// A server may put what it got into any part of its answer.
#[tokio::test]
async fn token_in_a_response_is_redacted() {
    let json = |text: &str| serde_json::to_string(text).unwrap();
    let escaped = TOKEN.replace('/', r"\/").replace('+', r"\u002B");
    let encoded = TOKEN.replace('/', "%2F").replace('+', "%2b");
    let token = TOKEN;
    let cut = "x".repeat(64 * 1024 - TOKEN.len() / 2);
    let edge = "x".repeat(512 - TOKEN.len() / 2);

    let ok = StatusCode::OK;
    let bad = StatusCode::BAD_REQUEST;
    let cases = [
        (
            ok,
            format!(r#"{{"errors":[{{"message":"bad key {token}"}}]}}"#),
        ),
        (
            ok,
            format!(r#"{{"errors":[{{"message":"bad key {escaped}"}}]}}"#),
        ),
        (
            ok,
            format!(
                r#"{{"errors":[{{"path":["a","{token}"],"extensions":{{"{token}":[{{"a":"{escaped}"}}]}}}}]}}"#
            ),
        ),
        (ok, format!(r#"{{"errors":[{}]}}"#, json(token))),
        (ok, format!(r#"{{"errors":{}}}"#, json(token))),
        (ok, format!(r#"{{"data":{}}}"#, json(token))),
        (ok, AVAILABLE.replace("true", &json(token))),
        (ok, AVAILABLE.replace("true", &format!("\"{escaped}\""))),
        (ok, token.to_owned()),
        (ok, json(token)),
        (bad, token.to_owned()),
        (bad, format!("<p>Bearer {token}</p> {encoded} {token}")),
        (bad, format!(r#"{{"error":"{escaped}"}}"#)),
        (bad, format!(r#"{{"errors":[{{"message":"{escaped}"}}]}}"#)),
        (bad, format!("{cut}{token}")),
        (bad, format!("{edge}{token}")),
        (StatusCode::FOUND, token.to_owned()),
    ];
    for (status, text) in cases {
        let response = Response::builder()
            .status(status)
            .header(LOCATION, format!("https://a.example/?{encoded}={token}"))
            .body(Full::<Bytes>::from(text.clone()))
            .unwrap();
        let stub = service_fn(move |_: Request<Full<Bytes>>| {
            let response = response.clone();
            async { Ok::<_, Infallible>(response) }
        });
        let admin = AdminClient::with_service(BASE_URL, self::token(), stub).unwrap();

        let error = admin.failure().await;
        assert_hidden(&shown(&error), &text);
        if let Ok(answer) = admin.execute("").await {
            assert_hidden(&format!("{answer:?} {:?}", answer.errors), &text);
        }
    }
}

#[tokio::test]
async fn token_cut_off_by_the_excerpt_is_redacted() {
    let text = format!("no {TOKEN}");
    for length in 3..text.len() {
        let error = stub(StatusCode::FORBIDDEN, &text)
            .max_response(length)
            .failure()
            .await;
        let display = "the Admin API answered 403 Forbidden: no";
        assert_eq!(error.to_string(), display);

        let head = "HTTP/1.1 403 Forbidden\r\ncontent-length: 999\r\n\r\n";
        let server = raw(format!("{head}{}", &text[..length]).as_bytes(), false).await;
        assert_eq!(client(server).failure().await.to_string(), display);
    }
}

#[tokio::test]
async fn token_in_a_transport_error_is_redacted() {
    let stub = service_fn(async |request: Request<Full<Bytes>>| {
        let header = request.headers()[AUTHORIZATION].to_str().unwrap();
        let error = format!("{request:?} with {header}");
        Err::<Response<Full<Bytes>>, _>(std::io::Error::other(error))
    });
    let admin = AdminClient::with_service(BASE_URL, token(), stub).unwrap();
    let error = admin.failure().await;

    assert_hidden(&shown(&error), "");
    assert!(shown(&error).contains("with Bearer [redacted]"));
}

#[test]
fn debug_output_hides_the_token() {
    let admin = AdminClient::new(BASE_URL, token()).unwrap();
    let shown = format!("{:?} {admin:?} {admin:#?}", token());

    assert!(shown.contains("https://api.example/v1/graphql"), "{shown}");
    assert_hidden(&shown, "");
}

#[cfg(feature = "sandbox")]
mod against_the_sandbox {
    use tower_webhook_sandbox::{Sandbox, Settings};

    use super::*;

    /// A client in process, and one over a real socket.
    async fn clients(sandbox: &Sandbox, token: &AccessToken) -> [AdminClient; 2] {
        let app = Router::new().route_service("/v1/graphql", sandbox.graphql());
        let url = format!("http://{}/v1", net::serve(app).await);
        [
            AdminClient::with_service(BASE_URL, token.clone(), sandbox.graphql()).unwrap(),
            AdminClient::new(url, token.clone()).unwrap(),
        ]
    }

    #[tokio::test]
    async fn availability_can_be_switched() {
        let sandbox = Sandbox::over_http(Settings::default());
        let key = AccessToken::new(sandbox.create_api_key("CRM")).unwrap();
        for admin in clients(&sandbox, &key).await {
            for available in [true, false, true] {
                sandbox.set_available(available);
                assert_eq!(admin.chat_is_available().await.unwrap(), available);
            }
        }
    }

    #[tokio::test]
    async fn unknown_key_is_refused() {
        let sandbox = Sandbox::over_http(Settings::default());
        for admin in clients(&sandbox, &token()).await {
            let error = admin.failure().await;
            assert!(
                matches!(error.kind(), AdminErrorKind::Status { status, .. }
                    if *status == StatusCode::UNAUTHORIZED),
                "{error:?}"
            );
            assert_eq!(error.graphql_errors().len(), 1);
        }
    }

    #[tokio::test]
    async fn query_error_has_its_location() {
        let sandbox = Sandbox::over_http(Settings::default());
        let key = AccessToken::new(sandbox.create_api_key("CRM")).unwrap();
        for admin in clients(&sandbox, &key).await {
            let error = admin
                .query::<serde_json::Value>("{\n  partner { nonsense } }")
                .await
                .unwrap_err();
            let [error] = error.graphql_errors() else {
                panic!("{error:?}")
            };
            assert!(error.message.contains("nonsense"), "{error}");
            let (line, column) = (2, 13);
            assert_eq!(error.locations, [Location { line, column }]);
        }
    }
}

// Helpers.

fn token() -> AccessToken {
    AccessToken::new(TOKEN).unwrap()
}

fn client(server: SocketAddr) -> AdminClient {
    AdminClient::new(format!("http://{server}"), token()).unwrap()
}

fn answer(text: &str) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from(text.to_owned())))
}

/// A client whose every request is answered alike.
fn stub(status: StatusCode, text: &str) -> AdminClient {
    let mut response = Response::new(Full::<Bytes>::from(text.to_owned()));
    *response.status_mut() = status;
    let stub = service_fn(move |_: Request<Full<Bytes>>| {
        let response = response.clone();
        async { Ok::<_, Infallible>(response) }
    });
    AdminClient::with_service(BASE_URL, token(), stub).unwrap()
}

/// A client whose service takes its time to be ready, to answer, and to send the body.
fn slow(status: StatusCode, ready: Duration, head: Duration, body: Duration) -> AdminClient {
    let stub = service_fn(move |_: Request<Full<Bytes>>| async move {
        sleep(head).await;
        let frames = stream::once(async move {
            sleep(body).await;
            Ok::<_, Infallible>(AVAILABLE)
        });
        let mut response = Response::new(Body::from_stream(frames));
        *response.status_mut() = status;
        Ok::<_, Infallible>(response)
    });
    AdminClient::with_service(BASE_URL, token(), Late::new(stub, ready)).unwrap()
}

/// A service that is not ready before some time has passed.
struct Late<S> {
    inner: S,
    delay: Duration,
    ready: Option<Pin<Box<Sleep>>>,
}

impl<S> Late<S> {
    fn new(inner: S, delay: Duration) -> Self {
        Self {
            inner,
            delay,
            ready: None,
        }
    }
}

impl<S: Clone> Clone for Late<S> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.delay)
    }
}

impl<S: Service<R>, R> Service<R> for Late<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        let delay = self.delay;
        let ready = self.ready.get_or_insert_with(|| Box::pin(sleep(delay)));
        std::task::ready!(ready.as_mut().poll(cx));
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        assert!(self.ready.take().is_some_and(|ready| ready.is_elapsed()));
        self.inner.call(request)
    }
}

fn chunked(chunks: impl Iterator<Item = Bytes> + Send + 'static) -> Response<Body> {
    let chunks = stream::iter(chunks.map(Ok::<_, Infallible>));
    Response::new(Body::from_stream(chunks))
}

trait Failure {
    async fn failure(&self) -> AdminError;
}

impl Failure for AdminClient {
    async fn failure(&self) -> AdminError {
        self.chat_is_available().await.unwrap_err()
    }
}

/// An axum server that keeps the requests that it got.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request<Bytes>>>>,
}

impl Server {
    async fn start(answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let app = Router::new().fallback({
            let seen = seen.clone();
            async move |request: Request<Body>| {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                seen.lock().unwrap().push(Request::from_parts(head, body));
                answer()
            }
        });
        let address = net::serve(app).await;
        Self { address, seen }
    }

    fn client(&self) -> AdminClient {
        client(self.address)
    }

    fn seen(&self) -> Vec<Request<Bytes>> {
        self.seen.lock().unwrap().clone()
    }
}

/// A server that reads a request, writes these bytes, and closes the connection or keeps it open.
async fn raw(answer: &[u8], keep_open: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = answer.to_owned();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(BODY.as_bytes()) {
                    if socket.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                // The client may have left.
                let _ = socket.write_all(&answer).await;
                if keep_open {
                    pending::<()>().await;
                }
            });
        }
    });
    address
}

fn chain(error: &AdminError) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |error| (*error).source())
}

/// Everything that an error can be made to say.
fn shown(error: &AdminError) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    for source in chain(error) {
        shown += &format!(" {source} {source:?}");
    }
    shown
}

/// Not even half of the token may be there.
#[track_caller]
fn assert_hidden(shown: &str, case: &str) {
    let (one, two) = TOKEN.split_at(TOKEN.len() / 2);
    for part in [TOKEN, one, two] {
        assert!(!shown.contains(part), "{case}: {shown}");
    }
}
