//! What can be wrong with the settings of a client.

use std::convert::Infallible;
use std::env::VarError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::error::BoxError;

/// A setting that was refused when the client was made. Shows no token and no password.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdminConfigError {
    /// The access token has no characters.
    EmptyToken,
    /// The access token holds something that a header cannot carry, or no token contains.
    InvalidToken,
    /// The environment variable that should hold the token is not set, or is not Unicode.
    TokenVariable {
        /// The variable's name.
        name: String,
        /// Why it cannot be read.
        source: VarError,
    },
    /// The file that should hold the token cannot be read.
    TokenFile {
        /// Where the file was looked for.
        path: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// The base URL is not a URL.
    InvalidUrl(
        /// What is wrong with it.
        BoxError,
    ),
    /// The base URL is neither `https` nor `http`.
    UnsupportedScheme(
        /// The URL's scheme.
        String,
    ),
    /// The base URL has a part that it must not have.
    UnexpectedPart(
        /// The part's name.
        &'static str,
    ),
    /// The base URL would send the token over the network without encryption.
    PlainHttp {
        /// The URL's host.
        host: String,
    },
    /// TLS cannot be set up.
    Tls(
        /// Why not.
        BoxError,
    ),
}

impl fmt::Display for AdminConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyToken => f.write_str(
                "the access token is empty: create an API key in the partner portal, under \
                 Settings, Developer",
            ),
            Self::InvalidToken => f.write_str(
                "the access token must be visible ASCII characters, without spaces, line breaks, \
                 quotation marks and backslashes: copy the API key exactly as the partner portal \
                 shows it",
            ),
            Self::TokenVariable { name, .. } => write!(
                f,
                "the environment variable `{name}` holds no access token: set it to an API key \
                 from the partner portal"
            ),
            Self::TokenFile { path, .. } => {
                write!(f, "the access token in `{}` cannot be read", path.display())
            }
            Self::InvalidUrl(_) => f.write_str(
                "the base URL is not a URL: give a whole one, such as https://api.example.com",
            ),
            Self::UnsupportedScheme(scheme) => write!(
                f,
                "the base URL has the scheme `{scheme}`: give one that starts with https://"
            ),
            Self::UnexpectedPart(part) => write!(
                f,
                "the base URL has {part}: leave it out, `/graphql` is added to the rest"
            ),
            Self::PlainHttp { host } => write!(
                f,
                "plain http would show the access token to everybody between here and `{host}`: \
                 use https, or ask for it with `BaseUrl::dangerously_allow_http`"
            ),
            Self::Tls(_) => f.write_str(
                "TLS cannot be set up: are the certificates of the operating system installed? \
                 (Debian's package is `ca-certificates`)",
            ),
        }
    }
}

impl std::error::Error for AdminConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::TokenVariable { source, .. } => Some(source),
            Self::TokenFile { source, .. } => Some(source),
            Self::InvalidUrl(source) | Self::Tls(source) => Some(&**source),
            _ => None,
        }
    }
}

impl From<Infallible> for AdminConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
