//! The Admin API's endpoint (Spec 4.1), as far as the spec shows its schema.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use async_graphql::{
    Context, EmptyMutation, EmptySubscription, Object, PathSegment, QueryPathNode, Schema,
    ServerError, SimpleObject,
};
use bytes::Bytes;
use http::header::{
    ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use serde::Deserialize;
use tokio::time::sleep;
use tower_service::Service;

use super::api_fault::{ApiFault, Drawn, RETRY_AFTER_SECONDS, SLOW};
use super::fault::chance;
use super::sender::Shared;
use super::state::State;

const MAX_BODY: usize = 1024 * 1024;

/// The Admin API's endpoint of a [`Sandbox`](super::Sandbox), as a [`Service`] for paths that end in
/// `/graphql` ([Spec 4.1](tower_webhook::docs::platform#spec-4-1)).
///
/// A request must have the method `POST`, the type `application/json`, a bearer token from
/// [`Sandbox::create_api_key`](super::Sandbox::create_api_key), and a body that is an object with the one
/// string `query`; `variables` may be `null`. Responses and errors have GraphQL's envelope. All fields of the
/// schema are nullable, but `null` only if an [`ApiFault`] makes them so.
///
/// ```
/// # use tower_webhook_sandbox::{Body, Sandbox};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// # let receiver = tower::service_fn(async |_: http::Request<Body>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(()))
/// # });
/// use http::{Request, StatusCode};
/// use tower::ServiceExt;
///
/// let sandbox = Sandbox::in_process(receiver);
/// let key = sandbox.create_api_key("CRM");
/// let request = Request::post("/graphql")
///     .header("authorization", format!("Bearer {key}"))
///     .header("content-type", "application/json")
///     .body(r#"{"query":"{ partner { state { chat { isAvailable } } } }"}"#.to_owned())
///     .unwrap();
///
/// let response = sandbox.graphql().oneshot(request).await.unwrap();
/// assert_eq!(response.status(), StatusCode::OK);
/// # }
/// ```
#[derive(Clone)]
pub struct GraphQl {
    shared: Arc<Shared>,
    schema: Schema<Query, EmptyMutation, EmptySubscription>,
}

impl GraphQl {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let query = Query(Arc::clone(&shared));
        Self {
            shared,
            schema: Schema::new(query, EmptyMutation, EmptySubscription),
        }
    }

    fn check(&self, request: &Parts) -> Result<(), Refusal> {
        // A base URL may have a path, so only the end of the path is fixed.
        if !request.uri.path().ends_with("/graphql") {
            return refuse(StatusCode::NOT_FOUND, "The only endpoint is /graphql.");
        }
        if request.method != Method::POST {
            return refuse(StatusCode::METHOD_NOT_ALLOWED, "The method must be POST.");
        }
        let authorized = bearer_token(&request.headers)
            .is_some_and(|token| self.shared.lock().portal.knows_api_key(token));
        if !authorized {
            return refuse(
                StatusCode::UNAUTHORIZED,
                "The Authorization header must be `Bearer` with an API key.",
            );
        }
        if !is_json(&request.headers) {
            return refuse(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "The content type must be `application/json`.",
            );
        }
        Ok(())
    }

    async fn answer<B>(self, request: Request<B>) -> Result<Bytes, Refusal>
    where
        B: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    {
        let (parts, body) = request.into_parts();
        self.check(&parts)?;
        let body = match Limited::new(body, MAX_BODY).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return refuse(StatusCode::PAYLOAD_TOO_LARGE, "The query is too large.");
            }
            Err(_) => return refuse(StatusCode::BAD_REQUEST, "The body is incomplete."),
        };
        let Ok(QueryBody { query, .. }) = serde_json::from_slice(&body) else {
            return refuse(
                StatusCode::BAD_REQUEST,
                "The body must be a JSON object with exactly one field: the string `query`.",
            );
        };
        let Drawn { fault, depth } = {
            let seed = self.shared.settings.seed;
            self.shared.lock().draw_api_fault(seed)
        };
        if let Some(status) = fault.and_then(ApiFault::status) {
            return Err(Refusal(status, "The sandbox was asked for this error."));
        }
        if fault == Some(ApiFault::Slow) {
            sleep(SLOW).await;
        }
        let query = async_graphql::Request::new(query).data(Drawn { fault, depth });
        let response = self.schema.execute(query).await;
        serde_json::to_vec(&response).map(Bytes::from).map_err(|_| {
            Refusal(
                StatusCode::INTERNAL_SERVER_ERROR,
                "The response cannot be encoded.",
            )
        })
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    // Schemes are case-insensitive (RFC 9110, section 11.1).
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    content_type
        .and_then(|value| value.split(';').next())
        .is_some_and(|value| value.trim().eq_ignore_ascii_case("application/json"))
}

/// The spec shows one field, `query`. A client that sends `variables` too works here only if it works on
/// the platform, so other fields are refused. `"variables": null` is what many clients send without any.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryBody {
    query: String,
    #[serde(rename = "variables", default)]
    _variables: Option<()>,
}

struct Refusal(StatusCode, &'static str);

fn refuse<T>(status: StatusCode, message: &'static str) -> Result<T, Refusal> {
    Err(Refusal(status, message))
}

impl Refusal {
    fn respond(self) -> Response<Full<Bytes>> {
        let Self(status, message) = self;
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            let page = format!("<!doctype html><title>500</title><p>{message}\n");
            let mut response = Response::new(Full::from(page));
            *response.status_mut() = status;
            let html = HeaderValue::from_static("text/html");
            response.headers_mut().insert(CONTENT_TYPE, html);
            return response;
        }
        let body = serde_json::json!({ "errors": [{ "message": message }] });
        let mut response = Response::new(Full::from(body.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        match status {
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(ALLOW, HeaderValue::from_static("POST"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS.into());
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

impl<B> Service<Request<B>> for GraphQl
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let mut response = match this.answer(request).await {
                Ok(body) => Response::new(Full::from(body)),
                Err(refusal) => refusal.respond(),
            };
            response
                .headers_mut()
                .entry(CONTENT_TYPE)
                .or_insert(HeaderValue::from_static("application/json"));
            Ok(response)
        })
    }
}

impl fmt::Debug for GraphQl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphQl").finish_non_exhaustive()
    }
}

struct Query(Arc<Shared>);

/// All fields are nullable, as they are by default in GraphQL. The names of the types are invented.
#[Object]
impl Query {
    async fn partner(&self, context: &Context<'_>) -> Option<Partner> {
        let depth = match context.data_opt() {
            Some(Drawn {
                fault: Some(ApiFault::Null),
                depth,
            }) => Some(*depth),
            _ => None,
        };
        let is = |null: u8| depth == Some(null);
        let available = self.0.lock().portal.available;
        let chat = ChatState((!is(3)).then_some(available));
        let state = PartnerState {
            chat: (!is(2)).then_some(chat),
        };
        let partner = Partner {
            state: (!is(1)).then_some(state),
        };
        (!is(0)).then_some(partner)
    }
}

#[derive(SimpleObject)]
struct Partner {
    state: Option<PartnerState>,
}

#[derive(SimpleObject)]
struct PartnerState {
    chat: Option<ChatState>,
}

struct ChatState(Option<bool>);

#[Object]
impl ChatState {
    async fn is_available(&self, context: &Context<'_>) -> Option<bool> {
        match context.data_opt::<Drawn>() {
            Some(Drawn {
                fault: Some(ApiFault::PartialErrors),
                ..
            }) => {
                // As an `Err`, it would make the whole chat null.
                let path = context.path_node.map(QueryPathNode::to_string_vec);
                let path = path.unwrap_or_default().into_iter();
                let error =
                    ServerError::new("The availability is unknown.", Some(context.item.pos));
                context.add_error(error.with_path(path.map(PathSegment::Field).collect()));
                None
            }
            _ => self.0,
        }
    }
}

impl State {
    /// Returns the fault of the next query: the first that was injected, or in strict mode one for about
    /// half of the queries.
    fn draw_api_fault(&mut self, seed: u64) -> Drawn {
        // Not `self.rng`: queries must not change the keys of events.
        let mut rng = chance(seed, u64::MAX, self.queries);
        self.queries += 1;
        let depth = rng.u8(..4);
        let drawn = rng.usize(..2 * ApiFault::ALL.len());
        let fault = self.api_faults.pop_front();
        let fault = fault.or_else(|| ApiFault::ALL.get(drawn).copied().filter(|_| self.strict));
        Drawn { fault, depth }
    }
}
