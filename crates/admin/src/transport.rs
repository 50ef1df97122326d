//! The transport: HTTP over the network, or any other service.

use std::fmt;
use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use reqwest::redirect::Policy;
use tower_service::Service;

use super::BoxError;
use super::base_url::BaseUrl;
use super::config::AdminConfigError;
use super::tls;

/// The body of a response from any service.
pub(super) type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Any service that a client can use, with its types erased so that `AdminClient` has no type
/// parameter.
pub(super) type Exchange = dyn Fn(Request<Full<Bytes>>) -> BoxFuture<Result<Response<ResponseBody>, BoxError>>
    + Send
    + Sync;

pub(super) fn exchange<S, B>(service: S) -> Arc<Exchange>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    Arc::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move {
            poll_fn(|cx| service.poll_ready(cx))
                .await
                .map_err(Into::into)?;
            let response = service.call(request).await.map_err(Into::into)?;
            Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    })
}

/// The service that sends the requests of [`AdminClient::new`](super::AdminClient::new) over the
/// network; wrap it in layers and pass it to
/// [`AdminClient::with_service`](super::AdminClient::with_service).
///
/// It speaks HTTP/1.1, and TLS with the operating system's certificates. Connections are pooled and
/// shared by clones. Redirects are not followed.
///
/// ```
/// use bytes::Bytes;
/// use http::{HeaderValue, Request, header::USER_AGENT};
/// use http_body_util::Full;
/// use tower::ServiceBuilder;
/// use tower_webhook_admin::{AccessToken, AdminClient, BaseUrl, Transport};
///
/// # fn main() -> Result<(), tower_webhook_admin::AdminConfigError> {
/// let base_url: BaseUrl = "https://api.example.com".parse()?;
/// let service = ServiceBuilder::new()
///     .map_request(|mut request: Request<Full<Bytes>>| {
///         let name = HeaderValue::from_static("crm/1.0");
///         request.headers_mut().insert(USER_AGENT, name);
///         request
///     })
///     .service(Transport::new(&base_url)?);
/// let admin = AdminClient::with_service(base_url, AccessToken::new("key")?, service)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Transport {
    client: reqwest::Client,
}

impl Transport {
    /// Creates a transport for requests to `base_url`.
    ///
    /// # Errors
    ///
    /// Returns [`AdminConfigError::Tls`] if TLS cannot be set up.
    pub fn new(base_url: &BaseUrl) -> Result<Self, AdminConfigError> {
        let is_secure = base_url.endpoint().scheme_str() == Some("https");
        let tls = match is_secure {
            true => tls::config(),
            // Without certificates, so that it works on a system that has none.
            false => tls::config_without_certificates(),
        };
        let tls = tls.map_err(|error| AdminConfigError::Tls(error.into()))?;
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(Policy::none());
        if base_url.is_local() {
            // Plain http is allowed because the token stays on this machine. A proxy or a name server
            // that sends it elsewhere would break that.
            let addresses = [
                SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
                SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
            ];
            builder = builder.no_proxy().resolve_to_addrs("localhost", &addresses);
        }
        let client = builder
            .build()
            .map_err(|error| AdminConfigError::Tls(error.into()))?;
        Ok(Self { client })
    }
}

impl Service<Request<Full<Bytes>>> for Transport {
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = BoxFuture<Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.client.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let response = reqwest::Request::try_from(request.map(reqwest::Body::wrap))
            .map(|request| self.client.call(request));
        Box::pin(async move {
            let response = Response::from(response?.await?);
            Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}
