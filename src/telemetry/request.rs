//! What is kept of a request that is refused.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};

use super::span::REQUEST_ID;
use super::tally::Sample;

/// The parts of a request's head that say who sent it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// The address that the server has added to the request's extensions.
    peer: Option<SocketAddr>,
    forwarded_for: Option<HeaderValue>,
    request_id: Option<HeaderValue>,
    length: Option<HeaderValue>,
    pub(super) key: Option<HeaderValue>,
    /// Which secret of another route would have matched, in words.
    pub(super) would_match: Option<String>,
}

/// Set by proxies, and by anybody else.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The longest text of a sample, in characters after escaping.
const LONGEST: usize = 100;

impl Asked {
    pub(crate) fn of(headers: &HeaderMap, extensions: &Extensions) -> Self {
        Self {
            peer: peer(extensions),
            forwarded_for: headers.get(FORWARDED_FOR).cloned(),
            request_id: headers.get(REQUEST_ID).cloned(),
            // A verified delivery knows its key and the size of its body.
            length: None,
            key: None,
            would_match: None,
        }
    }

    /// Those of a request without a delivery. `key` is the name of the header with its key.
    pub(crate) fn refused(
        headers: &HeaderMap,
        extensions: &Extensions,
        key: Option<&HeaderName>,
    ) -> Self {
        Self {
            // The body may never have been read, so only the header tells its size.
            length: headers.get(CONTENT_LENGTH).cloned(),
            key: key.and_then(|key| headers.get(key)).cloned(),
            ..Self::of(headers, extensions)
        }
    }

    /// Adds which secret of another route would have matched.
    pub(crate) fn matched_by(self, would_match: Option<String>) -> Self {
        Self {
            would_match,
            ..self
        }
    }

    /// Where the request came from. Empty if that is not known.
    pub(super) fn address(&self) -> String {
        match (self.peer, &self.forwarded_for) {
            (Some(peer), None) => peer.ip().to_string(),
            // Anybody can set the header, so the address of the connection is beside it.
            (Some(peer), Some(of)) => format!("{} for {}", peer.ip(), short(of.as_bytes())),
            (None, of) => text(of.as_ref()),
        }
    }

    /// `size` is that of a body that was received.
    pub(super) fn sample(&self, size: Option<usize>, key: Option<Bytes>) -> Sample {
        let address = self.address();
        let size = match size {
            Some(size) => size.to_string(),
            None => text(self.length.as_ref()),
        };
        let request = text(self.request_id.as_ref());
        // One that is cut off could not be forgotten.
        let key = key.filter(|key| key.escape_ascii().count() <= LONGEST);
        let shown = key.as_deref().map(short).unwrap_or_default();
        Sample {
            lines: format!("{address}\n{size}\n{request}\n{shown}"),
            key,
        }
    }
}

/// The address of the connection: put there by an application, or by axum's server if it is asked to.
fn peer(extensions: &Extensions) -> Option<SocketAddr> {
    let peer = extensions.get().copied();
    #[cfg(feature = "axum")]
    let peer = peer.or_else(|| {
        let info = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>();
        Some(info?.0)
    });
    peer
}

fn text(value: Option<&HeaderValue>) -> String {
    value
        .map(|value| short(value.as_bytes()))
        .unwrap_or_default()
}

fn short(text: &[u8]) -> String {
    // A sample is split at its line ends, so a header must not contain one. Nor may it control a terminal.
    text.escape_ascii().map(char::from).take(LONGEST).collect()
}
