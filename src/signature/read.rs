//! What an authentic request is: an event, or a challenge.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::config::Config;
use super::headers::kind_and_key;
use super::refusal::Refusal;
use super::verifier::Verdict;
use super::verify::Matched;
use crate::delivery::RawDelivery;
use crate::sender::Reply;
use crate::telemetry::DeliverySpan;
use crate::verified::Verified;

/// What an authentic request is.
#[allow(
    clippy::large_enum_variant,
    reason = "the path of the chat platform takes no allocation"
)]
pub(super) enum Read {
    Event(Verified),
    Challenge(Reply),
    /// A secret was brought, and kept.
    Handshake(Reply),
}

/// Reads kind and key of an authentic request, unless it is a challenge.
#[inline]
pub(super) fn read(
    body: Bytes,
    secret: Option<Matched>,
    headers: &HeaderMap,
    config: &Config,
    span: &DeliverySpan,
) -> Result<Read, Refusal> {
    // Before kind and key are read, which a challenge may lack.
    if let Some(reply) = challenge(&body, secret.as_ref(), headers, config) {
        return reply.map(Read::Challenge);
    }
    let (kind, key) = kind_and_key(headers, &body, &config.sender, config.require_key)?;
    let delivery = RawDelivery::received(kind, key, body);
    let secret = secret.map(|it| (it.index, it.label));
    Ok(event(delivery, secret, config, span))
}

/// What a verifier of the application says of a request.
pub(super) fn judged(
    verdict: Verdict,
    body: Bytes,
    config: &Config,
    span: &DeliverySpan,
) -> Result<Read, Refusal> {
    let proof = match verdict {
        Verdict::Challenge(reply) => return Ok(Read::Challenge(reply)),
        Verdict::Event(proof) => proof,
    };
    if config.require_key && proof.key.is_none() {
        return Err(Refusal::MissingKey);
    }
    let mut delivery = RawDelivery::received(proof.kind, proof.key, proof.body.unwrap_or(body));
    delivery.note(proof.order, config.success.is_some());
    Ok(event(delivery, proof.secret, config, span))
}

/// The event of a delivery, which this secret of the set has proved.
#[inline]
fn event(
    delivery: RawDelivery,
    secret: Option<(usize, Option<Arc<str>>)>,
    config: &Config,
    span: &DeliverySpan,
) -> Read {
    let mut delivery = delivery.with_route(config.route.clone());
    if let Some(lent) = &config.lent {
        delivery.lend_settings(lent);
    }
    if config.sender.sends_forms() {
        delivery.allow_form();
    }
    let secret = secret.as_ref();
    span.verified(
        &delivery,
        secret.map(|(index, label)| (*index, label.as_deref())),
    );
    Read::Event(Verified::new(delivery))
}

/// The answer to a challenge, which never reaches the inner service.
#[inline]
fn challenge(
    body: &Bytes,
    secret: Option<&Matched>,
    headers: &HeaderMap,
    config: &Config,
) -> Option<Result<Reply, Refusal>> {
    let it = config.sender.described();
    let hmac = |text: &[u8]| {
        // Not any secret of the set: the sender compares the answer with its own.
        let secret = config.authentication.secret(secret?)?;
        secret.sign_as(it.scheme(headers).secret, text)
    };
    let answer = it.challenge(headers, body, hmac)?;
    Some(
        answer.ok_or_else(|| {
            Refusal::unreadable("there is nothing in the challenge that may be echoed")
        }),
    )
}
