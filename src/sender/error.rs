//! Why a signature is refused.

/// The reason why a signature was refused. It is logged, and is not part of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureError {
    /// There is no signature header.
    Missing,
    /// There are several signature headers.
    Doubled,
    /// The header's value is not in the sender's form: for the chat platform, 64 lowercase hex digits.
    Malformed,
    /// Another header that the sender signs or always sends is missing, empty, repeated or different.
    Incomplete,
    /// The timestamp is missing, or not in the sender's form.
    Timestamp,
    /// The timestamp is too old, or too far ahead.
    Stale {
        /// How old it is, in seconds. It is negative if the timestamp is ahead of this machine's clock.
        age: i64,
        /// The most that is accepted in this direction, in seconds.
        most: i64,
    },
    /// The value is wrong for every secret.
    Wrong,
    /// Another reason, which a [`Verifier`](crate::signature::Verifier) gives.
    Other(&'static str),
}

impl SignatureError {
    /// The same text for all values of a variant.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "the signature header is missing",
            Self::Doubled => "there are several signature headers",
            Self::Malformed => {
                "the signature is not in the sender's form, by default 64 lowercase hex digits"
            }
            Self::Incomplete => "a header that the sender signs is missing, empty or repeated",
            Self::Timestamp => "the timestamp is missing or not in the sender's form",
            Self::Stale { .. } => "the timestamp is too old or too far ahead",
            Self::Wrong => "the signature is wrong for every secret",
            Self::Other(reason) => reason,
        }
    }
}

messages! {
    SignatureError {
        // 3,000 years. Read as seconds, milliseconds of today are in the year 58,000.
        Self::Stale { age: ..-100_000_000_000, .. } => "the timestamp is in milliseconds, and not in seconds";
        Self::Stale { age: age @ ..0, most } => "the timestamp is {} s ahead of this machine's clock, and {most} s at most are \
            accepted", age.unsigned_abs();
        Self::Stale { age, most } => "the timestamp is {age} s old, and {most} s at most are accepted";
        other => "{}", other.as_str();
    }
}

impl std::error::Error for SignatureError {}
