//! The response to a delivery: a row of the table of responses, as a problem document (RFC 9457).
//!
//! Each room says how its refusals are answered by implementing [`Answer`].

mod body;
mod decision;
#[cfg(feature = "axum")]
mod extract;
mod respond;
mod router;
mod row;
mod statuses;
#[cfg(test)]
pub(crate) mod tests;

pub use self::body::ResponseBody;
pub use self::decision::Decision;
#[cfg(feature = "axum")]
pub use self::extract::DeliveryRejection;
pub use self::router::RouterResponseFuture;
pub(crate) use self::row::{Answer, Row, SharedError, insert_retry_after, log_refusal, row};
