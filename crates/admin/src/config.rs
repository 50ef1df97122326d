//! Errors in the settings of a client.

use std::convert::Infallible;
use std::env::VarError;
use std::io;
use std::path::PathBuf;

use super::BoxError;

/// The error of creating an [`AccessToken`](super::AccessToken), a [`BaseUrl`](super::BaseUrl), a
/// [`Transport`](super::Transport) or an [`AdminClient`](super::AdminClient).
///
/// It shows neither the token nor a password.
///
/// ```
/// use tower_webhook_admin::{AccessToken, AdminConfigError};
///
/// assert!(matches!(AccessToken::new(""), Err(AdminConfigError::EmptyToken)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminConfigError {
    /// The access token is empty.
    #[error(
        "the access token is empty: create an API key in the partner portal, under Settings, Developer"
    )]
    EmptyToken,
    /// The access token contains a character that is not allowed in a token.
    #[error(
        "the access token must consist of visible ASCII characters, without spaces, line breaks, quotation marks and \
         backslashes: copy the API key exactly as the partner portal shows it"
    )]
    InvalidToken,
    /// The environment variable with the token is not set, or is not Unicode.
    #[error(
        "the environment variable `{name}` holds no access token: set it to an API key from the partner portal"
    )]
    TokenVariable {
        /// The variable's name.
        name: String,
        /// Why it cannot be read.
        source: VarError,
    },
    /// The file with the token cannot be read.
    #[error(
        "the access token in `{}` cannot be read: give the path of a file that this user can read, with an API key from \
         the partner portal in it",
        path.display()
    )]
    TokenFile {
        /// The file's path.
        path: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// The base URL is not a URL.
    #[error("the base URL is not a URL: use an absolute one, such as https://api.example.com")]
    InvalidUrl(
        /// The error of the URL parser.
        #[source]
        BoxError,
    ),
    /// The scheme of the base URL is neither `https` nor `http`.
    #[error("the base URL has the scheme `{0}`: use a URL that starts with https://")]
    UnsupportedScheme(
        /// The URL's scheme.
        String,
    ),
    /// The base URL has a part that is not allowed, such as a query.
    #[error("the base URL has {0}: remove it; `/graphql` is appended to the rest")]
    UnexpectedPart(
        /// The part's name.
        &'static str,
    ),
    /// The base URL would send the token over the network without encryption; see
    /// [`BaseUrl::dangerously_allow_http`](super::BaseUrl::dangerously_allow_http).
    #[error(
        "plain http would expose the access token on the way to `{host}`: use https, or allow it with \
         `BaseUrl::dangerously_allow_http`"
    )]
    PlainHttp {
        /// The URL's host.
        host: String,
    },
    /// TLS cannot be set up.
    #[error(
        "TLS cannot be set up: check that the operating system's certificates are installed (on Debian, the package \
         `ca-certificates`)"
    )]
    Tls(
        /// The error of the TLS library.
        #[source]
        BoxError,
    ),
}

impl From<Infallible> for AdminConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
