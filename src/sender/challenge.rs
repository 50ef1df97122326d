//! The deliveries by which a sender asks whether somebody with the secret is there.

use http::HeaderMap;
use serde_json::json;

use super::pointer::Pointer;
use super::scheme::{Place, only};

/// When a delivery is a challenge, and its answer. The signature was verified before.
pub(super) struct Challenge {
    pub(super) when: Vec<(Place, String)>,
    pub(super) field: Pointer,
    pub(super) answer: Answer,
}

pub(super) enum Answer {
    /// The field as text.
    Raw,
    /// The field in this member of an object.
    Json(String),
    /// The field, and its HMAC-SHA256 in hex.
    Hmac { plain: String, tag: String },
    /// This document.
    Constant(serde_json::Value),
}

/// The longest field that is echoed.
const LONGEST: usize = 512;

impl Challenge {
    pub(super) fn is(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        self.when.iter().all(|(place, value)| match place {
            Place::None => false,
            Place::Header(name) => only(headers, name) == Ok(value.as_bytes()),
            Place::Body(pointer) => {
                matches!(pointer.find(body), Ok(Some(found)) if found == *value)
            }
        })
    }

    /// The content type and the body of the answer. `None` if there is nothing that may be echoed. `hmac` returns the
    /// tag of a text under the secret that signed the challenge.
    pub(super) fn answer(
        &self,
        body: &[u8],
        hmac: impl FnOnce(&[u8]) -> Option<String>,
    ) -> Option<(&'static str, Vec<u8>)> {
        if let Answer::Constant(document) = &self.answer {
            return Some(("application/json", document.to_string().into_bytes()));
        }
        let field = self.field.find(body).ok()??;
        let may_be_echoed = (1..=LONGEST).contains(&field.len())
            && field.bytes().all(|byte| byte.is_ascii_graphic());
        if !may_be_echoed {
            return None;
        }
        let object = match &self.answer {
            Answer::Constant(_) => return None,
            Answer::Raw => return Some(("text/plain", field.into_bytes())),
            Answer::Json(name) => json!({ name.as_str(): field }),
            Answer::Hmac { plain, tag } => {
                let own = hmac(field.as_bytes())?;
                json!({ plain.as_str(): field, tag.as_str(): own })
            }
        };
        Some(("application/json", object.to_string().into_bytes()))
    }
}
