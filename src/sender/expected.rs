//! What a request should have had that proves nothing, in words for the log.

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderName};

use super::Described;
use super::error::SignatureError;
use super::rare::Elsewhere;
use super::scheme::{Algorithm, At, Coding, Made, Piece, Place, Scheme, Unit, only};

impl Described {
    /// What was expected of the head of a request whose signature was refused, as far as the error does not say it.
    pub(crate) fn expected(&self, error: SignatureError, headers: &HeaderMap) -> Option<String> {
        let scheme = self.scheme(headers);
        let signatures = || scheme.places_of_tags();
        Some(match error {
            // Any family counts.
            SignatureError::Missing => one_of(self.schemes.iter().flat_map(Scheme::places_of_tags)),
            SignatureError::Doubled => format!("{} once", one_of(signatures())),
            SignatureError::Malformed => format!("{} with {}", one_of(signatures()), scheme.form()),
            SignatureError::Incomplete => one_of(scheme.incomplete(headers)),
            SignatureError::Timestamp => scheme.time_form()?,
            SignatureError::Stale { .. } | SignatureError::Wrong | SignatureError::Other(_) => {
                return None;
            }
        })
    }
}

impl Place {
    /// Where it stands, such as "the header `x-github-event`".
    pub(crate) fn described(&self) -> String {
        match self {
            Self::None => "no place that its description names".to_owned(),
            Self::Header(name) => format!("the header {}", quoted(name)),
            Self::Body(pointers) => format!("{pointers} of the body"),
            Self::Made(made) => made.described(),
        }
    }
}

impl Made {
    fn described(&self) -> String {
        let parts: Vec<_> = self.parts.iter().map(Place::described).collect();
        parts.join(" and ")
    }
}

impl Scheme {
    /// The headers that may have a tag, and other places. Of many, the first alone.
    fn places_of_tags(&self) -> impl Iterator<Item = String> {
        let elsewhere = self.elsewhere().map(|it| match it {
            Elsewhere::Query(name) => format!("the query parameter `{name}`"),
            Elsewhere::Body(pointers) => format!("{pointers} of the body"),
            Elsewhere::Each { array, token } => {
                format!("`{token}` of each element of `{array}` of the body")
            }
        });
        self.headers.iter().take(8).map(quoted).chain(elsewhere)
    }

    /// How the tag is written, with what stands around it.
    pub(super) fn form(&self) -> String {
        let bytes = match self.algorithm {
            Algorithm::HmacSha256 => 32,
            Algorithm::HmacSha1 => 20,
            Algorithm::HmacSha512 | Algorithm::Ed25519 => 64,
            Algorithm::Token => return "the token".to_owned(),
            Algorithm::EcdsaP256 => return "a signature in DER, in base64 or hex".to_owned(),
            Algorithm::RsaSha256 | Algorithm::RsaSha512 | Algorithm::RsaPssSha512 => {
                return "a signature as long as the key, in base64 or hex".to_owned();
            }
        };
        let tag = match self.coding {
            Some(Coding::Base64) => format!("{bytes} bytes in base64"),
            Some(Coding::Base64url) => format!("{bytes} bytes in base64 of the alphabet of URLs"),
            Some(Coding::HexAnyCase) => format!("{} hex digits", 2 * bytes),
            Some(Coding::Hex) | None => format!("{} lowercase hex digits", 2 * bytes),
        };
        let mut form = match self.prefix.as_str() {
            "" => tag,
            prefix => format!("{prefix:?} and {tag}"),
        };
        for element in self.elements().collect::<BTreeSet<_>>() {
            form += &format!(", `{element}=…`");
        }
        if let Some(split) = self.split {
            form += &format!(", separated by {:?}", char::from(split));
        }
        form
    }

    /// The headers that are signed or required, and are not there once with the right value.
    fn incomplete(&self, headers: &HeaderMap) -> impl Iterator<Item = String> {
        let required = self.require.iter().filter(|(name, value)| {
            let found = only(headers, name);
            found.ok() != Some(value.as_bytes())
        });
        let required =
            required.map(|(name, value)| format!("`{name}: {}`", value.as_bytes().escape_ascii()));
        let pieces = self.before.iter().chain(&self.after);
        let signed = pieces.filter_map(|piece| match piece {
            Piece::Header(name) if only(headers, name).is_err() => Some(quoted(name)),
            _ => None,
        });
        required.chain(signed)
    }

    fn time_form(&self) -> Option<String> {
        let time = self.timestamp.as_ref()?;
        let place = match &time.at {
            At::Header(name) => quoted(name),
            At::Element(name) => {
                format!("`{name}=…` in {}", one_of(self.headers.iter().map(quoted)))
            }
            At::Body(pointers) => format!("{pointers} of the body"),
        };
        let form = match time.unit {
            Unit::Seconds | Unit::Milliseconds if matches!(time.at, At::Body(_)) => "a number",
            Unit::Seconds => "seconds since 1970, as digits alone",
            Unit::Milliseconds => "milliseconds since 1970, as digits alone",
            Unit::Rfc3339 => "a time such as `2026-01-31T23:59:59Z`",
            Unit::Iso8601 => "a time such as `2026-01-31T23:59:59`, in UTC without an offset",
        };
        Some(format!("{place} with {form}"))
    }
}

fn quoted(name: &HeaderName) -> String {
    format!("`{name}`")
}

fn one_of(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(" or ")
}
