//! GraphQL's response envelope.

use std::fmt;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The response to a query: data, errors, or both. See
/// [`AdminClient::execute`](super::AdminClient::execute).
///
/// `Debug` omits the data.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct GraphQlResponse {
    /// The requested fields. If there are [`errors`](Self::errors), the failed fields are `null`.
    #[serde(default)]
    pub data: Option<Value>,
    /// The errors, empty on success.
    #[serde(default, deserialize_with = "or_default")]
    pub errors: Vec<GraphQlError>,
    /// Additional entries of the server.
    #[serde(default, deserialize_with = "or_default")]
    pub extensions: Map<String, Value>,
}

impl fmt::Debug for GraphQlResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphQlResponse")
            .field("data", &self.data.as_ref().map(|_| format_args!("..")))
            .field("errors", &self.errors)
            .finish_non_exhaustive()
    }
}

/// An error in a [`GraphQlResponse`], in which the [`AccessToken`](super::AccessToken) is redacted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct GraphQlError {
    /// A description of the error.
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
    /// The path of the field that failed; empty if the whole query failed.
    #[serde(default, deserialize_with = "or_default")]
    pub path: Vec<PathSegment>,
    /// The places in the query's text, if they are known.
    #[serde(default, deserialize_with = "or_default")]
    pub locations: Vec<Location>,
    /// Additional entries of the server, such as a code.
    #[serde(default, deserialize_with = "or_default")]
    pub extensions: Map<String, Value>,
}

impl fmt::Display for GraphQlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.message.as_str() {
            "" => "an error without a message",
            message => message,
        })?;
        for (index, segment) in self.path.iter().enumerate() {
            let before = if index == 0 { " (at " } else { "." };
            write!(f, "{before}{segment}")?;
        }
        if !self.path.is_empty() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// A segment of [`GraphQlError::path`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum PathSegment {
    /// The name of a field, or its alias.
    Field(String),
    /// An index into a list, counted from 0.
    Index(u64),
}

impl fmt::Display for PathSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => f.write_str(name),
            Self::Index(index) => index.fmt(f),
        }
    }
}

/// A place in the text of a query, counted from 1: see [`GraphQlError::locations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Location {
    /// The line.
    pub line: u64,
    /// The character in the line.
    pub column: u64,
}

/// Reads `null` as omitted: some servers write it where GraphQL's specification omits the member.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}
