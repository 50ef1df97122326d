//! Makes up a delivery, with type and key where its sender has them.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use super::media::Media;
use super::query::encode;
use super::rare::Elsewhere;
use super::scheme::{Place, Scheme};
use super::{Algorithm, Sender};
use crate::config::ConfigError;
use crate::delivery::{IdempotencyKey, RawDelivery};
use crate::event::{EventKind, sample};

impl Sender {
    /// Returns a made-up delivery for [`sign`](Self::sign): a JSON object, or a form for a sender of forms, with event type, key and time where this sender has
    /// them in the body, or else as `type` and `id`, and the headers of a joined key. A sender of [batches](crate::docs::senders#batches) has one item, with these. Bodies of different keys differ, except for the chat platform's kinds, which
    /// have the payload of [`sample`].
    ///
    /// ```
    /// use tower_webhook::{EventKind, Sender};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let key = "evt_1".parse()?;
    /// let delivery = Sender::stripe().sample(&EventKind::from_static("invoice.paid"), &key)?;
    /// assert_eq!(delivery.json()?, r#"{"id":"evt_1","type":"invoice.paid"}"#);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Sender`] when type and key cannot stand in one object where the description has them, or the key, which a
    /// sender may have in the body, is not UTF-8.
    pub fn sample(
        &self,
        kind: &EventKind,
        key: &IdempotencyKey,
    ) -> Result<RawDelivery, ConfigError> {
        let scheme = &self.described().schemes()[0];
        if let Some(payload) = sample(kind).filter(|_| self.is_chat_platform()) {
            return Ok(RawDelivery::new(kind.clone(), payload).with_key(key.clone()));
        }
        let text = str::from_utf8(key.as_bytes());
        let text = text.map_err(|_| self.is_wrong("a key in its body is UTF-8: use another"))?;
        let item = self.described().batch.as_deref().map(|batch| {
            batch.sample(kind, text).ok_or_else(|| {
                self.is_wrong("no item has this event type and key: a type that is joined has all of its parts")
            })
        });
        let is_batch = item.is_some();
        let mut body = item
            .transpose()?
            .unwrap_or_else(|| Value::Object(Map::new()));
        let mut headers = HeaderMap::new();
        let mut put = |place: &Place, value: Value| match place {
            Place::Body(pointers) => pointers.put(&mut body, value),
            _ => Some(()),
        };
        let mut placed = match &scheme.kind {
            Place::Made(made) => {
                let texts: Vec<_> = match &*made.with {
                    "" => vec![kind.as_str()],
                    with => kind.as_str().splitn(made.parts.len(), with).collect(),
                };
                if texts.len() < made.parts.len() {
                    return Err(self.is_wrong(
                        "its event types are joined of several texts: give such a type",
                    ));
                }
                let parts = made.parts.iter().zip(texts);
                parts.map(|(part, text)| put(part, json!(text))).collect()
            }
            place => put(place, json!(kind.as_str())),
        };
        for part in &scheme.key {
            placed = placed.and(put(part, json!(text)));
            if let Place::Header(name) = part {
                headers.insert(name, key.value().clone());
            }
        }
        if let Some((pointers, now)) = scheme.time_in_body(self.now()) {
            placed = placed.and(pointers.put(&mut body, now));
        }
        placed.ok_or_else(|| {
            self.is_wrong("one of its pointers leads through another, so that no object has both")
        })?;
        if let (Value::Object(fields), false) = (&mut body, is_batch) {
            // Equal bodies under different keys are a replay.
            fields.entry("id").or_insert_with(|| json!(text));
            fields.entry("type").or_insert_with(|| json!(kind.as_str()));
        }
        let body = match self.described().content_types() {
            Some(types) if !types.contains(&Media::Json) && types.contains(&Media::Form) => {
                form(&body)
            }
            _ => body.to_string(),
        };
        let delivery = RawDelivery::new(kind.clone(), body).with_key(key.clone());
        Ok(delivery.with_headers(headers))
    }

    /// Puts the secret into the body of a [`sample`](Self::sample), for a sender that sends it there. Other deliveries stay.
    ///
    /// ```
    /// use tower_webhook::{EventKind, Sender};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let figma = Sender::named("figma", None)?;
    /// let sample = figma.sample(&EventKind::from_static("FILE_UPDATE"), &"1".parse()?)?;
    /// let body = figma.put_token(sample, "a secret").json()?.to_owned();
    /// assert!(body.contains(r#""passcode":"a secret""#));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn put_token(&self, delivery: RawDelivery, secret: &str) -> RawDelivery {
        let scheme = &self.described().schemes()[0];
        let Ok(mut body) = serde_json::from_slice::<Value>(delivery.body()) else {
            return delivery;
        };
        let written = scheme.written(secret.as_bytes()).unwrap_or_default();
        let token = json!(format!("{}{written}", scheme.prefix));
        let mut has_put = false;
        for place in scheme.elsewhere() {
            has_put |= match place {
                Elsewhere::Query(_) => false,
                Elsewhere::Body(pointers) => pointers.put(&mut body, token.clone()).is_some(),
                Elsewhere::Each { array, token: at } => {
                    let elements = body.pointer_mut(&array.to_string());
                    let elements = elements.and_then(Value::as_array_mut).into_iter();
                    let mut put = elements.flatten().map(|it| at.put(it, token.clone()));
                    put.any(|it| it.is_some())
                }
            };
        }
        match has_put {
            true => RawDelivery::new(delivery.kind().clone(), body.to_string())
                .with_key(delivery.key().cloned())
                .with_headers(delivery.headers().clone()),
            false => delivery,
        }
    }

    /// Whether it sends its secret in the body: see [`put_token`](Self::put_token).
    #[must_use]
    pub fn has_token_in_body(&self) -> bool {
        self.described().schemes()[0].has_token_in_body()
    }

    /// Returns the header in which this sender sends its secret as a token, which [`sign`](Self::sign) leaves out.
    /// `None` for a sender that signs, or if the secret cannot be the value of a header.
    ///
    /// ```
    /// use tower_webhook::Sender;
    ///
    /// let (name, value) = Sender::gitlab().token("a secret").unwrap();
    /// assert_eq!((name.as_str(), value.as_bytes()), ("x-gitlab-token", &b"a secret"[..]));
    /// assert!(Sender::github().token("a secret").is_none());
    /// ```
    #[must_use]
    pub fn token(&self, secret: &str) -> Option<(HeaderName, HeaderValue)> {
        let scheme: &Scheme = &self.described().schemes()[0];
        if scheme.algorithm != Algorithm::Token {
            return None;
        }
        let (name, mut value) = scheme.header(secret.as_bytes(), self.now())?;
        value.set_sensitive(true);
        Some((name.clone(), value))
    }

    /// Returns the query parameter in which this sender sends its secret as a token, such as `token=…`. `None` for a sender
    /// that signs, or sends its token elsewhere.
    ///
    /// ```
    /// use tower_webhook::Sender;
    ///
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// let acme = r#"{"name": "acme", "signature": {"headers": ["?token"], "algorithm": "token"}}"#;
    /// let acme = Sender::from_json(acme)?;
    /// assert_eq!(acme.token_query("a secret").as_deref(), Some("token=a+secret"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn token_query(&self, secret: &str) -> Option<String> {
        let scheme = &self.described().schemes()[0];
        let is_token = scheme.algorithm == Algorithm::Token;
        is_token
            .then(|| scheme.in_query(secret.as_bytes()))
            .flatten()
    }
}

/// The fields of an object as a form. A field that is an object becomes JSON.
fn form(object: &Value) -> String {
    let fields = object.as_object().into_iter().flatten();
    let fields = fields.map(|(name, value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        format!("{}={}", encode(name), encode(&value))
    });
    fields.collect::<Vec<_>>().join("&")
}
