//! What a response must be, for the tests of each room that answers.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{HeaderMap, RETRY_AFTER};
use http_body_util::{BodyExt, Full};

use super::respond::{refuse, respond_with};
use super::{Answer, Decision};
use crate::outcome::Outcome;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Part of errors, which only the log may show.
pub(crate) const CONFIDENTIAL: &str = "what only the log may tell";

/// A row as it is documented: status, name, and a header besides the content type.
pub(crate) type Documented = (u16, &'static str, Option<(&'static str, &'static str)>);

/// Asserts that a refusal is answered as the table says.
pub(crate) async fn assert_refused<R>(refusal: R, documented: Documented)
where
    R: Answer + Error + Send + Sync + 'static,
{
    let detail = refusal.row().detail;
    let response = refuse(refusal, None, false, HeaderMap::new());
    let decision = Decision::of(&response).unwrap();
    assert!(decision.outcome().is_none());
    assert!(decision.refusal().unwrap().is::<R>());
    assert_eq!(decision.name(), documented.1);
    assert_row(response, documented, detail).await;
}

/// Asserts that a response is what the table says.
pub(super) async fn assert_row(
    response: Response<Full<Bytes>>,
    (status, name, header): Documented,
    detail: &str,
) {
    assert_eq!(response.status(), status, "{name}");

    let mut expected: HashMap<_, _> = header.into_iter().collect();
    if status != 200 {
        expected.insert("content-type", "application/problem+json");
    }
    let found = response.headers().iter();
    let found: HashMap<_, _> = found
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    assert_eq!(found, expected, "{name}");

    let title = response.status().canonical_reason().unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    if status == 200 {
        assert!(body.is_empty(), "{name}");
        return;
    }
    let text = str::from_utf8(&body).unwrap();
    assert!(!text.contains(CONFIDENTIAL), "{text}");
    let problem: HashMap<String, serde_json::Value> = serde_json::from_str(text).unwrap();
    assert_eq!(problem.len(), 4, "{text}");
    assert_eq!(problem["status"], status);
    assert!(
        problem["type"]
            .as_str()
            .unwrap()
            .ends_with(&format!("#{name}"))
    );
    assert_eq!(problem["title"], title);
    assert_eq!(problem["detail"], detail);
    assert!(detail.ends_with('.'));
}

#[test]
fn retry_after_is_rounded_up_to_a_second_at_least() {
    for (remaining, expected) in [
        (Duration::ZERO, "1"),
        (Duration::from_nanos(1), "1"),
        (SECOND, "1"),
        (SECOND + Duration::from_nanos(1), "2"),
        (Duration::MAX, "18446744073709551615"),
    ] {
        let response = respond_with(Outcome::InFlight { remaining });
        assert_eq!(response.headers()[RETRY_AFTER], expected);
    }
}
