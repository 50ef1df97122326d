//! The client of the Admin API.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep};
use tower_service::Service;
use tracing::debug;

use super::BoxError;
use super::base_url::BaseUrl;
use super::config::AdminConfigError;
use super::error::{AdminError, AdminErrorKind, excerpt};
use super::response::GraphQlResponse;
use super::token::AccessToken;
use super::transport::{Exchange, ResponseBody, Transport, exchange};

/// How many bytes of an unsuccessful response are read: enough for GraphQL's errors.
const MAX_REFUSAL: usize = 64 * 1024;

/// A client for the platform's GraphQL Admin API.
///
/// Clones are cheap and share connections. See the [module](super) for examples.
#[derive(Clone)]
#[must_use]
pub struct AdminClient {
    exchange: Arc<Exchange>,
    endpoint: Uri,
    token: AccessToken,
    timeout: Duration,
    max_response: usize,
}

impl AdminClient {
    /// Creates a client for the API at `base_url`, a [`BaseUrl`] or its text.
    ///
    /// ```
    /// use tower_webhook_admin::{AccessToken, AdminClient};
    ///
    /// let admin = AdminClient::new("https://api.example.com/v1", AccessToken::new("key")?)?;
    /// assert_eq!(admin.endpoint(), "https://api.example.com/v1/graphql");
    /// # Ok::<_, tower_webhook_admin::AdminConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an [`AdminConfigError`] if `base_url` is invalid or TLS cannot be set up.
    pub fn new<U>(base_url: U, token: AccessToken) -> Result<Self, AdminConfigError>
    where
        U: TryInto<BaseUrl, Error: Into<AdminConfigError>>,
    {
        let base_url = base_url.try_into().map_err(Into::into)?;
        let transport = Transport::new(&base_url)?;
        Self::with_service(base_url, token, transport)
    }

    /// Creates a client that sends its requests through `service`, such as a [`Transport`] inside
    /// layers or a stub in a test; see the [module](super#layers) for an example.
    ///
    /// The service must not follow redirects: they could send the token to another host.
    ///
    /// # Errors
    ///
    /// Returns an [`AdminConfigError`] if `base_url` is invalid.
    pub fn with_service<U, S, B>(
        base_url: U,
        token: AccessToken,
        service: S,
    ) -> Result<Self, AdminConfigError>
    where
        U: TryInto<BaseUrl, Error: Into<AdminConfigError>>,
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let base_url = base_url.try_into().map_err(Into::into)?;
        Ok(Self {
            exchange: exchange(service),
            endpoint: base_url.endpoint().clone(),
            token,
            timeout: Duration::from_secs(10),
            max_response: 1024 * 1024,
        })
    }

    /// Sets the time limit of a whole call, after which it fails with [`AdminErrorKind::TimedOut`].
    /// Defaults to 10 seconds.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_webhook_admin::{AccessToken, AdminClient};
    ///
    /// let admin = AdminClient::new("https://api.example.com", AccessToken::new("key")?)?
    ///     .timeout(Duration::from_secs(3))
    ///     .max_response(64 * 1024);
    /// # Ok::<_, tower_webhook_admin::AdminConfigError>(())
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the limit of a response's body in bytes; a larger one is an
    /// [`AdminErrorKind::TooLarge`] error. Defaults to 1 MiB.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Returns the URL that requests are sent to: [`BaseUrl::endpoint`].
    #[must_use]
    pub fn endpoint(&self) -> &Uri {
        &self.endpoint
    }

    /// Returns whether chat is available: `partner { state { chat { isAvailable } } }`
    /// ([Spec 2.4](https://docs.rs/tower-webhook/latest/tower_webhook/docs/platform/index.html#spec-2-4)).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`query`](Self::query).
    pub async fn chat_is_available(&self) -> Result<bool, AdminError> {
        let data: Availability = self
            .query("{ partner { state { chat { isAvailable } } } }")
            .await?;
        Ok(data.partner.state.chat.is_available)
    }

    /// Sends the text of a query or mutation, and decodes the response's data.
    ///
    /// Unknown fields are ignored by default, as always with serde. A response with errors makes the
    /// call fail, even if it has data; [`execute`](Self::execute) returns both.
    ///
    /// ```no_run
    /// # async fn example(admin: tower_webhook_admin::AdminClient) -> anyhow::Result<()> {
    /// #[derive(serde::Deserialize)]
    /// struct Data {
    ///     partner: Partner,
    /// }
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Partner {
    ///     name: String,
    /// }
    ///
    /// let data: Data = admin.query("{ partner { name } }").await?;
    /// println!("{}", data.partner.name);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an [`AdminError`] of any [`AdminErrorKind`].
    pub async fn query<T: DeserializeOwned>(&self, text: &str) -> Result<T, AdminError> {
        let GraphQlResponse { data, errors, .. } = self.execute(text).await?;
        if !errors.is_empty() {
            return Err(AdminError::new(AdminErrorKind::GraphQl { errors }));
        }
        let data = data.ok_or_else(|| AdminError::new(AdminErrorKind::NoData))?;
        serde_json::from_value(data).map_err(|error| self.undecodable(error.into()))
    }

    /// Sends the text of a query or mutation, and returns its data and errors without decoding them.
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use bytes::Bytes;
    /// # use http::{Request, Response};
    /// # use http_body_util::Full;
    /// # use tower_webhook_admin::{AccessToken, AdminClient};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let stub = tower::service_fn(async |_: Request<Full<Bytes>>| {
    /// #     let body = r#"{"data":{"a":1,"b":null},"errors":[{"message":"no b","path":["b"]}]}"#;
    /// #     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(body)))
    /// # });
    /// # let admin = AdminClient::with_service("https://api.example.com", AccessToken::new("key")?, stub)?;
    /// let response = admin.execute("{ a b }").await?;
    /// assert_eq!(response.data, Some(serde_json::json!({ "a": 1, "b": null })));
    /// assert_eq!(response.errors[0].to_string(), "no b (at b)");
    /// # anyhow::Ok(())
    /// # })?;
    /// # Ok::<_, anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an [`AdminError`] of any kind but [`AdminErrorKind::GraphQl`]: the errors of a response
    /// with a 2xx status are in [`GraphQlResponse::errors`].
    pub async fn execute(&self, text: &str) -> Result<GraphQlResponse, AdminError> {
        let started = Instant::now();
        let result = self.receive(text).await;
        let duration_ms = started.elapsed().as_secs_f64() * 1e3;
        match &result {
            Ok(answer) => debug!(
                duration_ms,
                errors = answer.errors.len(),
                "the Admin API answered"
            ),
            Err(error) => debug!(duration_ms, %error, "a query of the Admin API failed"),
        }
        result
    }

    async fn receive(&self, text: &str) -> Result<GraphQlResponse, AdminError> {
        let mut deadline = pin!(sleep(self.timeout));
        let request = self.request(text)?;
        let response = self
            .in_time(deadline.as_mut(), (self.exchange)(request))
            .await?;

        let (head, body) = response.into_parts();
        let mut bytes = BytesMut::new();
        if !head.status.is_success() {
            // The status is the error. The body only explains it, so failing to read it is no error
            // of its own.
            let reading = read(body, &mut bytes, MAX_REFUSAL.min(self.max_response));
            let is_whole = self.in_time(deadline, reading).await.unwrap_or(false);
            return Err(self.refusal(head.status, &head.headers, &bytes, is_whole));
        }
        let too_large = || {
            AdminError::new(AdminErrorKind::TooLarge {
                limit: self.max_response,
            })
        };
        if body.size_hint().lower() > self.max_response as u64 {
            return Err(too_large());
        }
        let reading = read(body, &mut bytes, self.max_response);
        if !self.in_time(deadline, reading).await? {
            return Err(too_large());
        }
        let answer = self.parse(&bytes)?;
        // Neither data nor errors is not a GraphQL response: another server may be at the URL.
        match answer {
            GraphQlResponse {
                data: None, errors, ..
            } if errors.is_empty() => Err(AdminError::new(AdminErrorKind::NoData)),
            answer => Ok(answer),
        }
    }

    /// Builds a request whose body is an object with the one string `query` (Spec 4.1).
    fn request(&self, text: &str) -> Result<Request<Full<Bytes>>, AdminError> {
        #[derive(Serialize)]
        struct Query<'a> {
            query: &'a str,
        }

        let body = serde_json::to_vec(&Query { query: text })
            .map_err(|error| AdminError::with_source(AdminErrorKind::Transport, error.into()))?;
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.endpoint.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(AUTHORIZATION, self.token.header().clone());
        Ok(request)
    }

    async fn in_time<T>(
        &self,
        deadline: Pin<&mut Sleep>,
        step: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, AdminError> {
        tokio::select! {
            // A response that is complete at the deadline is not discarded.
            biased;
            result = step => result.map_err(|error| {
                AdminError::with_source(AdminErrorKind::Transport, self.token.redact_error(error))
            }),
            () = deadline => Err(AdminError::new(AdminErrorKind::TimedOut { limit: self.timeout })),
        }
    }

    fn parse(&self, body: &[u8]) -> Result<GraphQlResponse, AdminError> {
        let undecodable = |error: serde_json::Error| self.undecodable(error.into());
        let mut answer: Value = serde_json::from_slice(body).map_err(undecodable)?;
        if !answer.is_object() {
            return Err(self.undecodable("it is not a JSON object".into()));
        }
        // Only errors are shown in errors and logs; `data` is the caller's, unchanged.
        if let Some(errors) = answer.get_mut("errors") {
            self.token.redact_json(errors);
        }
        serde_json::from_value(answer).map_err(undecodable)
    }

    fn undecodable(&self, error: BoxError) -> AdminError {
        AdminError::with_source(AdminErrorKind::Decode, self.token.redact_error(error))
    }

    fn refusal(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        is_whole: bool,
    ) -> AdminError {
        let location = headers.get(LOCATION).filter(|_| status.is_redirection());
        let location = location.map(|location| {
            let text = String::from_utf8_lossy(location.as_bytes());
            excerpt(&self.token.redact(&text))
        });
        let text = String::from_utf8_lossy(body);
        let text = match is_whole {
            true => self.token.redact(&text),
            false => self.token.redact_cut(&text),
        };
        let errors = self.parse(body).map_or(Vec::new(), |answer| answer.errors);
        AdminError::new(AdminErrorKind::Status {
            status,
            location,
            excerpt: excerpt(&text),
            errors,
        })
        .with_retry_after(headers)
    }
}

impl fmt::Debug for AdminClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminClient")
            .field("endpoint", &self.endpoint)
            .field("timeout", &self.timeout)
            .field("max_response", &self.max_response)
            .finish_non_exhaustive()
    }
}

/// Reads a body up to `limit` bytes, and returns whether it is complete.
async fn read(
    mut body: ResponseBody,
    bytes: &mut BytesMut,
    limit: usize,
) -> Result<bool, BoxError> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            let rest = limit - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(rest)]);
            if data.len() > rest {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

#[derive(Deserialize)]
struct Availability {
    partner: Partner,
}

#[derive(Deserialize)]
struct Partner {
    state: State,
}

#[derive(Deserialize)]
struct State {
    chat: Chat,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chat {
    is_available: bool,
}
