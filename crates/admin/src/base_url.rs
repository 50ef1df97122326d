//! The base URL of the Admin API.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use url::{Host, Url};

use super::config::AdminConfigError;

/// The base URL of the Admin API, whose only endpoint is `/graphql` below it
/// ([Spec 4.1](https://docs.rs/tower-webhook/latest/tower_webhook/docs/platform/index.html#spec-4-1)).
///
/// It may have a path, with or without a trailing slash. `https` is allowed for any host, and plain `http` only for
/// this machine: `127.0.0.0/8`, `::1` and `localhost`. It is parsed from text:
///
/// ```
/// use tower_webhook_admin::BaseUrl;
///
/// let base_url: BaseUrl = "https://api.example.com/v1/".parse()?;
/// assert_eq!(base_url.endpoint(), "https://api.example.com/v1/graphql");
///
/// assert!("http://api.example.com".parse::<BaseUrl>().is_err());
/// # Ok::<_, tower_webhook_admin::AdminConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct BaseUrl {
    endpoint: Uri,
    is_local: bool,
}

impl BaseUrl {
    /// Parses a base URL that may use plain `http` for any host.
    ///
    /// Anyone on the network path can then read and use the [`AccessToken`](super::AccessToken). Use it
    /// only for a test system in an isolated network.
    ///
    /// ```
    /// use tower_webhook_admin::BaseUrl;
    ///
    /// let base_url = BaseUrl::dangerously_allow_http("http://10.0.0.1:4000")?;
    /// assert_eq!(base_url.endpoint(), "http://10.0.0.1:4000/graphql");
    /// # Ok::<_, tower_webhook_admin::AdminConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the same errors as parsing, except [`AdminConfigError::PlainHttp`].
    pub fn dangerously_allow_http(text: &str) -> Result<Self, AdminConfigError> {
        Self::parse(text, true)
    }

    /// Returns the URL that requests are sent to.
    #[must_use]
    pub fn endpoint(&self) -> &Uri {
        &self.endpoint
    }

    /// Whether the host is this machine.
    pub(super) fn is_local(&self) -> bool {
        self.is_local
    }

    fn parse(text: &str, allow_http: bool) -> Result<Self, AdminConfigError> {
        let mut url =
            Url::parse(text).map_err(|error| AdminConfigError::InvalidUrl(error.into()))?;
        if !matches!(url.scheme(), "https" | "http") {
            return Err(AdminConfigError::UnsupportedScheme(url.scheme().to_owned()));
        }
        let parts = [
            (
                !url.username().is_empty() || url.password().is_some(),
                "a user name or password",
            ),
            (url.query().is_some(), "a query"),
            (url.fragment().is_some(), "a fragment"),
        ];
        if let Some((_, part)) = parts.iter().find(|(present, _)| *present) {
            return Err(AdminConfigError::UnexpectedPart(part));
        }
        // Decided by the parsed host, because the text misleads: `127.0.0.1.example` is another
        // machine, and `127.1` is this one. Any name but `localhost` depends on a name server.
        let is_local = match url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        if url.scheme() == "http" && !is_local && !allow_http {
            return Err(AdminConfigError::PlainHttp {
                host: url.host_str().unwrap_or_default().to_owned(),
            });
        }
        let path = format!("{}/graphql", url.path().trim_end_matches('/'));
        url.set_path(&path);
        let endpoint = Uri::try_from(url.as_str())
            .map_err(|error| AdminConfigError::InvalidUrl(error.into()))?;
        Ok(Self { endpoint, is_local })
    }
}

impl FromStr for BaseUrl {
    type Err = AdminConfigError;

    fn from_str(text: &str) -> Result<Self, AdminConfigError> {
        Self::parse(text, false)
    }
}

macro_rules! try_from {
    ($($Text:ty)+) => {$(
        impl TryFrom<$Text> for BaseUrl {
            type Error = AdminConfigError;

            fn try_from(text: $Text) -> Result<Self, AdminConfigError> {
                text.parse()
            }
        }
    )+};
}

try_from! { &str String &String }

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BaseUrl").field(&self.endpoint).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_graphql_below_the_base_url() {
        for (text, endpoint) in [
            ("https://a.example", "https://a.example/graphql"),
            ("https://a.example/", "https://a.example/graphql"),
            ("https://a.example//", "https://a.example/graphql"),
            ("https://a.example/v1", "https://a.example/v1/graphql"),
            ("https://a.example/v1/", "https://a.example/v1/graphql"),
            (
                "https://a.example/a/b%20c/",
                "https://a.example/a/b%20c/graphql",
            ),
            ("https://a.example/a/../b", "https://a.example/b/graphql"),
            (
                "https://a.example:8443/v1",
                "https://a.example:8443/v1/graphql",
            ),
            ("https://a.example:443", "https://a.example/graphql"),
            ("HTTPS://A.EXAMPLE/V1", "https://a.example/V1/graphql"),
            (" https://a.example\n", "https://a.example/graphql"),
            (
                "https://bücher.example",
                "https://xn--bcher-kva.example/graphql",
            ),
            ("https://10.0.0.1", "https://10.0.0.1/graphql"),
            ("https://[2001:db8::1]:1", "https://[2001:db8::1]:1/graphql"),
            ("http://localhost:4000", "http://localhost:4000/graphql"),
            ("http://LocalHost", "http://localhost/graphql"),
            ("http://127.0.0.1:4000/", "http://127.0.0.1:4000/graphql"),
            ("http://127.255.255.254", "http://127.255.255.254/graphql"),
            ("http://127.1", "http://127.0.0.1/graphql"),
            ("http://2130706433", "http://127.0.0.1/graphql"),
            ("http://[::1]:4000/x/", "http://[::1]:4000/x/graphql"),
        ] {
            let base_url: BaseUrl = text.parse().expect(text);
            assert_eq!(base_url.endpoint().to_string(), endpoint, "{text}");
        }
    }

    #[test]
    fn plain_http_to_other_hosts_must_be_allowed_explicitly() {
        for (text, refused) in [
            ("http://a.example", "a.example"),
            ("http://10.0.0.1:4000/v1", "10.0.0.1"),
            ("http://128.0.0.1", "128.0.0.1"),
            ("http://0.0.0.0", "0.0.0.0"),
            ("http://[::]", "[::]"),
            ("http://[::2]", "[::2]"),
            ("http://[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
            ("http://localhost.", "localhost."),
            ("http://localhost.example", "localhost.example"),
            ("http://127.0.0.1.example", "127.0.0.1.example"),
            ("http://127.0.0.1\u{3002}example", "127.0.0.1.example"),
            ("http:\\\\a.example\\localhost", "a.example"),
        ] {
            let error = text.parse::<BaseUrl>().expect_err(text);
            assert!(
                matches!(&error, AdminConfigError::PlainHttp { host } if host == refused),
                "{text}: {error:?}"
            );
            assert!(error.to_string().contains("dangerously_allow_http"));
            let allowed = BaseUrl::dangerously_allow_http(text).expect(text);
            assert_eq!(allowed.endpoint().host(), Some(refused));
        }
    }

    #[test]
    fn invalid_base_url_is_refused_without_repeating_it() {
        for (text, says) in [
            ("", "not a URL"),
            ("hunter2", "not a URL"),
            ("hunter2.example:443", "scheme `hunter2.example`"),
            ("//hunter2.example", "not a URL"),
            ("/hunter2", "not a URL"),
            ("https://", "not a URL"),
            ("https://:443", "not a URL"),
            ("https://a.example:99999", "not a URL"),
            ("https://a b.example", "not a URL"),
            ("https://[::1", "not a URL"),
            ("ftp://a.example", "scheme `ftp`"),
            ("file:///hunter2", "scheme `file`"),
            ("https://a.example?key=hunter2", "has a query"),
            ("https://a.example/?", "has a query"),
            ("https://a.example#hunter2", "has a fragment"),
            ("https://a.example/#", "has a fragment"),
            ("https://user@a.example", "has a user name or password"),
            (
                "https://user:hunter2@a.example",
                "has a user name or password",
            ),
            ("https://:hunter2@a.example", "has a user name or password"),
            (
                "http://127.0.0.1:hunter2@a.example",
                "has a user name or password",
            ),
        ] {
            for result in [text.parse(), BaseUrl::dangerously_allow_http(text)] {
                let error: AdminConfigError = result.expect_err(text);
                assert!(error.to_string().contains(says), "{text}: {error}");
                if !text.starts_with("hunter2.") {
                    assert!(!format!("{error:?} {error}").contains("hunter2"), "{text}");
                }
            }
        }
    }
}
