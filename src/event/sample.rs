//! Sample payloads.

use super::EventKind;

/// Returns a sample payload of the given kind as minified JSON, for tests and for trying a receiver by
/// hand, or `None` if the kind is not in [`EventKind::ALL`].
///
/// The seven samples belong to one chat and contain every field of
/// [Spec 2.1](crate::docs::platform#spec-2-1), [2.2](crate::docs::platform#spec-2-2) and
/// [2.3](crate::docs::platform#spec-2-3) that fits the kind; `chat-rated` has all of 2.3. The values of
/// `status` and `type`, which the spec does not list, are invented.
///
/// ```
/// use tower_webhook::event::{ChatLifecycle, EventKind, sample};
///
/// let json = sample(&EventKind::CHAT_RATED).expect("a kind of the platform");
/// let chat: ChatLifecycle = serde_json::from_str(json)?;
/// assert_eq!(chat.rating, Some(1.0));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn sample(kind: &EventKind) -> Option<&'static str> {
    SAMPLES
        .iter()
        .find(|(of, _)| of == kind)
        .map(|(_, json)| *json)
}

/// Joins the fields of all kinds of Spec 2.3 with the fields of some of them.
macro_rules! lifecycle {
    ($status:literal, $last_opened_at:literal) => {
        lifecycle!($status, "", "", $last_opened_at)
    };
    ($status:literal, $outcome:literal, $ended:literal, $last_opened_at:literal) => {
        concat!(
            r#"{"id":"c-7Kq2mXw9","#,
            r#""user":{"id":"u-58213","name":"Ada Jensen","email":"ada.jensen@example.com","locale":"DK"},"#,
            r#""expert":{"id":"e-1042","name":"Noor Haddad","email":"noor.haddad@example.com"},"#,
            r#""category":{"id":"billing","title":"Billing"},"#,
            r#""question":"Why was my card charged twice for my last order?","languageCode":"en","#,
            $status,
            $outcome,
            r#""createdAt":1718182800123,"acceptedAt":1718182861507,"#,
            $ended,
            $last_opened_at,
            r#""referer":"https://shop.example.com/checkout","#,
            r#""customMeta":{"plan":"premium","orderId":"A-20981"}}"#,
        )
    };
}

const SAMPLES: [(EventKind, &str); 7] = [
    (
        EventKind::CHAT_ASSIGNED,
        concat!(
            r#"{"id":"c-7Kq2mXw9","requestedExperts":["e-1042","e-2077"],"#,
            r#""category":{"id":"billing","title":"Billing"},"#,
            r#""user":{"id":"u-58213","name":"Ada Jensen","email":"ada.jensen@example.com","locale":"DK"},"#,
            r#""question":"Why was my card charged twice for my last order?","languageCode":"en","#,
            r#""createdAt":1718182800123,"referer":"https://shop.example.com/checkout","#,
            r#""customMeta":{"plan":"premium","orderId":"A-20981"},"assignedAt":1718182801940}"#,
        ),
    ),
    (
        EventKind::CHAT_OPENED,
        lifecycle!(r#""status":"opened","#, r#""lastOpenedAt":1718182861507,"#),
    ),
    (
        EventKind::CHAT_CLOSED,
        lifecycle!(
            r#""status":"closed","#,
            r#""transcriptURL":"https://chat.example.com/transcripts/c-7Kq2mXw9","#,
            r#""closedAt":1718184195230,"#,
            r#""lastOpenedAt":1718182861507,"#
        ),
    ),
    (
        EventKind::CHAT_REOPENED,
        lifecycle!(
            r#""status":"reopened","#,
            r#""lastOpenedAt":1718186402871,"#
        ),
    ),
    (
        EventKind::CHAT_TRANSFERRED,
        lifecycle!(
            r#""status":"transferred","#,
            r#""transcriptURL":"https://chat.example.com/transcripts/c-7Kq2mXw9","#,
            r#""closedAt":1718187733019,"#,
            r#""lastOpenedAt":1718186402871,"#
        ),
    ),
    (
        EventKind::CHAT_RATED,
        lifecycle!(
            r#""status":"rated","#,
            r#""rating":1,"transcriptURL":"https://chat.example.com/transcripts/c-7Kq2mXw9","#,
            r#""closedAt":1718187733019,"ratedAt":1718191266440,"#,
            r#""lastOpenedAt":1718186402871,"#
        ),
    ),
    (
        EventKind::MESSAGE_CREATED,
        concat!(
            r#"{"chat":{"id":"c-7Kq2mXw9"},"id":"m-90314","user":{"id":"u-58213"},"#,
            r#""expert":{"id":"e-1042"},"isUser":true,"text":"Here is the receipt 🧾","#,
            r#""type":"message","hideForUser":false,"hideForExpert":false,"#,
            r#""createdAt":1718182905688,"#,
            r#""attachment":{"url":"https://files.example.com/m-90314/receipt.pdf","#,
            r#""filename":"receipt.pdf","mimetype":"application/pdf"}}"#,
        ),
    ),
];
