//! The client.

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

use super::base_url::BaseUrl;
use super::config::AdminConfigError;
use super::error::{AdminError, AdminErrorKind, excerpt};
use super::response::GraphQlResponse;
use super::token::AccessToken;
use super::transport::{Exchange, ResponseBody, Transport, exchange};
use crate::error::BoxError;

/// How much of an answer is read that is no success: enough for the errors of GraphQL.
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
    /// A client for the API under `base_url`, which is a [`BaseUrl`] or the text of one.
    ///
    /// # Errors
    ///
    /// See [`AdminConfigError`].
    pub fn new<U>(base_url: U, token: AccessToken) -> Result<Self, AdminConfigError>
    where
        U: TryInto<BaseUrl, Error: Into<AdminConfigError>>,
    {
        let base_url = base_url.try_into().map_err(Into::into)?;
        let transport = Transport::new(&base_url)?;
        Self::with_service(base_url, token, transport)
    }

    /// A client that sends its requests through `service`.
    ///
    /// A service that follows redirects may carry the token elsewhere.
    ///
    /// # Errors
    ///
    /// See [`AdminConfigError`].
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

    /// How long a call may take in all. 10 seconds unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many bytes the body of an answer may have. 1 MiB unless set.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Where requests go.
    #[must_use]
    pub fn endpoint(&self) -> &Uri {
        &self.endpoint
    }

    /// Whether chat is available: `partner { state { chat { isAvailable } } }`.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Self::query).
    pub async fn chat_is_available(&self) -> Result<bool, AdminError> {
        let data: Availability = self
            .query("{ partner { state { chat { isAvailable } } } }")
            .await?;
        Ok(data.partner.state.chat.is_available)
    }

    /// Sends the text of a query or mutation, and decodes the answer's data.
    ///
    /// Unknown fields are ignored, as serde does. Any error of GraphQL makes the call fail, even
    /// when there is data.
    ///
    /// ```no_run
    /// # async fn example(admin: tower_webhook::admin::AdminClient) -> anyhow::Result<()> {
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
    /// Each [`AdminErrorKind`].
    pub async fn query<T: DeserializeOwned>(&self, text: &str) -> Result<T, AdminError> {
        let GraphQlResponse { data, errors, .. } = self.execute(text).await?;
        if !errors.is_empty() {
            return Err(AdminError::new(AdminErrorKind::GraphQl { errors }));
        }
        let data = data.ok_or_else(|| AdminError::new(AdminErrorKind::NoData))?;
        serde_json::from_value(data).map_err(|error| self.undecodable(error.into()))
    }

    /// Sends the text of a query or mutation, and gives its data and errors as they came.
    ///
    /// # Errors
    ///
    /// Each [`AdminErrorKind`] but [`GraphQl`](AdminErrorKind::GraphQl): with a 2xx status, what
    /// GraphQL reports is in the answer.
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
            // Whatever becomes of the body: the status is what matters.
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
        match answer {
            GraphQlResponse {
                data: None, errors, ..
            } if errors.is_empty() => Err(AdminError::new(AdminErrorKind::NoData)),
            answer => Ok(answer),
        }
    }

    /// Spec 4.1: one string field, `query`, and nothing else.
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

/// Reads a body, and tells whether that was all of it.
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
