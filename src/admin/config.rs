//! Errors in the settings of a client.

use std::convert::Infallible;
use std::env::VarError;
use std::io;
use std::path::PathBuf;

use crate::error::BoxError;

/// The error of creating an [`AccessToken`](super::AccessToken), a [`BaseUrl`](super::BaseUrl), a
/// [`Transport`](super::Transport) or an [`AdminClient`](super::AdminClient).
///
/// It shows neither the token nor a password.
///
/// ```
/// use tower_webhook::admin::{AccessToken, AdminConfigError};
///
/// assert!(matches!(AccessToken::new(""), Err(AdminConfigError::EmptyToken)));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AdminConfigError {
    /// The access token is empty.
    EmptyToken,
    /// The access token contains a character that is not allowed in a token.
    InvalidToken,
    /// The environment variable with the token is not set, or is not Unicode.
    TokenVariable {
        /// The variable's name.
        name: String,
        /// Why it cannot be read.
        source: VarError,
    },
    /// The file with the token cannot be read.
    TokenFile {
        /// The file's path.
        path: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// The base URL is not a URL.
    InvalidUrl(
        /// The error of the URL parser.
        BoxError,
    ),
    /// The scheme of the base URL is neither `https` nor `http`.
    UnsupportedScheme(
        /// The URL's scheme.
        String,
    ),
    /// The base URL has a part that is not allowed, such as a query.
    UnexpectedPart(
        /// The part's name.
        &'static str,
    ),
    /// The base URL would send the token over the network without encryption; see
    /// [`BaseUrl::dangerously_allow_http`](super::BaseUrl::dangerously_allow_http).
    PlainHttp {
        /// The URL's host.
        host: String,
    },
    /// TLS cannot be set up.
    Tls(
        /// The error of the TLS library.
        BoxError,
    ),
}

errors! {
    AdminConfigError {
        Self::EmptyToken => "the access token is empty: create an API key in the partner portal, under Settings, \
            Developer";
        Self::InvalidToken => "the access token must consist of visible ASCII characters, without spaces, line breaks, \
            quotation marks and backslashes: copy the API key exactly as the partner portal shows it";
        Self::TokenVariable { name, source } => "the environment variable `{name}` holds no access token: set it to an API \
            key from the partner portal" => source;
        Self::TokenFile { path, source } => "the access token in `{}` cannot be read: give the path of a file that this \
            user can read, with an API key from the partner portal in it", path.display() => source;
        Self::InvalidUrl(source) => "the base URL is not a URL: use an absolute one, such as https://api.example.com" => &**source;
        Self::UnsupportedScheme(scheme) => "the base URL has the scheme `{scheme}`: use one that starts with https://";
        Self::UnexpectedPart(part) => "the base URL has {part}: remove it; `/graphql` is appended to the rest";
        Self::PlainHttp { host } => "plain http would expose the access token on the way to `{host}`: use https, or \
            allow it with `BaseUrl::dangerously_allow_http`";
        Self::Tls(source) => "TLS cannot be set up: check that the operating system's certificates are installed (on \
            Debian, the package `ca-certificates`)" => &**source;
    }
}

impl From<Infallible> for AdminConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
