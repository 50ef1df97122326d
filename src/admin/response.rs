//! What GraphQL answers.

use std::fmt;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The answer to a query as it came: data, errors, or some of both.
///
/// `Debug` leaves the data out.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct GraphQlResponse {
    /// What was asked for. With [`errors`](Self::errors), the fields that failed are `null`.
    #[serde(default)]
    pub data: Option<Value>,
    /// What went wrong.
    #[serde(default, deserialize_with = "or_default")]
    pub errors: Vec<GraphQlError>,
    /// What the server adds of its own.
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

/// Something that went wrong with a query. Where it repeats the access token, that is redacted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct GraphQlError {
    /// What it is.
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
    /// Which field of the answer it is about; empty when it is about the whole query.
    #[serde(default, deserialize_with = "or_default")]
    pub path: Vec<PathSegment>,
    /// Where in the query's text it is, if it is known.
    #[serde(default, deserialize_with = "or_default")]
    pub locations: Vec<Location>,
    /// What the server adds of its own, such as a code.
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

/// A step on the way to a field of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum PathSegment {
    /// The name of a field, or its alias.
    Field(String),
    /// A place in a list, counted from 0.
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

/// A place in the text of a query, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Location {
    /// The line.
    pub line: u64,
    /// The character of the line.
    pub column: u64,
}

/// Servers write `null` where the specification of GraphQL leaves a member out.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}
