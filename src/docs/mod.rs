//! Pages on more than one item.
//!
//! - **Tutorial**: [`getting_started`]
//! - **Guides**: [`inbox`], [`stores`] and queues, [`senders`], [`recipes`], [`testing`]
//! - **Operations**: [`production`], [`troubleshooting`] with the alerts, [`console`]
//! - **Reference**: [`responses`], [`guarantees`] and limits, [`metrics`], [`platform`], [`threat_model`], [`glossary`]

/// A page from a file beside this one. Its links have labels, which each page defines for readers of the
/// file; the definitions here are for rustdoc, and the first definition of a label counts.
///
/// A page whose doctests need a feature names it. Without the feature it is shown, and not tested.
///
/// A page names its pictures. Rustdoc does not copy files, so the page embeds them as data URLs.
macro_rules! page {
    ($name:ident, $file:literal $(, tested_with = $feature:tt)? $(, pictures = [$($picture:literal),*])?) => {
        #[doc = "[`ConfigError`]: crate::ConfigError"]
        #[doc = "[`Decision`]: crate::Decision"]
        #[doc = "[`Delivery::attempt`]: crate::Delivery::attempt"]
        #[doc = "[`Delivery::is_redriven`]: crate::Delivery::is_redriven"]
        #[doc = "[`EventRouter`]: crate::EventRouter"]
        #[doc = "[`FailureBudget`]: crate::telemetry::FailureBudget"]
        #[doc = "[`HandlerError::dead_letter`]: crate::HandlerError::dead_letter"]
        #[doc = "[`HandlerError::discard`]: crate::HandlerError::discard"]
        #[doc = "[`HandlerError::retry_after`]: crate::HandlerError::retry_after"]
        #[doc = "[`HandlerError::retry`]: crate::HandlerError::retry"]
        #[doc = "[`HandlerError::snooze`]: crate::HandlerError::snooze"]
        #[doc = "[`HandlerError`]: crate::HandlerError"]
        #[doc = "[`IdempotencyLayer`]: crate::IdempotencyLayer"]
        #[doc = "[`Outcome`]: crate::Outcome"]
        #[doc = "[`RawDelivery::of`]: crate::RawDelivery::of"]
        #[doc = "[`Running::drain`]: crate::Running::drain"]
        #[doc = "[`Running`]: crate::Running"]
        #[doc = "[`Secret::from_env`]: crate::Secret::from_env"]
        #[doc = "[`Secrets::from_file`]: crate::Secrets::from_file"]
        #[doc = "[`Secrets::replace`]: crate::Secrets::replace"]
        #[doc = "[`SenderPolicy`]: crate::SenderPolicy"]
        #[doc = "[`SignatureLayer`]: crate::SignatureLayer"]
        #[doc = "[`Silence`]: crate::telemetry::Silence"]
        #[doc = "[`Store`]: crate::store::Store"]
        #[doc = "[`Verified`]: crate::Verified"]
        #[doc = "[`event`]: crate::event"]
        #[doc = "[`namespace`]: crate::Webhooks::namespace"]
        #[doc = "[`sample`]: crate::event::sample"]
        #[doc = "[console#security]: crate::docs::console#security"]
        #[doc = "[console]: crate::docs::console"]
        #[doc = "[event-trait]: crate::event::Event"]
        #[doc = "[examples/README.md#the-receiver]: https://docs.rs/crate/tower-webhook/latest/source/examples/README.md#the-receiver"]
        #[doc = "[guarantees#limits]: crate::docs::guarantees#limits"]
        #[doc = "[inbox]: crate::docs::inbox"]
        #[doc = "[inbox#commands]: crate::docs::inbox#commands"]
        #[doc = "[inbox#crashes]: crate::docs::inbox#crashes"]
        #[doc = "[inbox#order]: crate::docs::inbox#order"]
        #[doc = "[inbox#personal-data]: crate::docs::inbox#personal-data"]
        #[doc = "[inbox#tripped-event-types]: crate::docs::inbox#tripped-event-types"]
        #[doc = "[inbox#when-an-attempt-fails]: crate::docs::inbox#when-an-attempt-fails"]
        #[doc = "[metrics]: crate::docs::metrics"]
        #[doc = "[namespace]: crate::Webhooks::namespace"]
        #[doc = "[platform#spec-2-2]: crate::docs::platform#spec-2-2"]
        #[doc = "[platform#spec-2-3]: crate::docs::platform#spec-2-3"]
        #[doc = "[platform#spec-4-2]: crate::docs::platform#spec-4-2"]
        #[doc = "[platform#spec-5-2]: crate::docs::platform#spec-5-2"]
        #[doc = "[platform#spec-5-2-rule-1]: crate::docs::platform#spec-5-2-rule-1"]
        #[doc = "[platform#spec-6]: crate::docs::platform#spec-6"]
        #[doc = "[platform#spec-6-rule-4]: crate::docs::platform#spec-6-rule-4"]
        #[doc = "[platform#spec-6-rule-5]: crate::docs::platform#spec-6-rule-5"]
        #[doc = "[production]: crate::docs::production"]
        #[doc = "[production#back-up-and-restore]: crate::docs::production#back-up-and-restore"]
        #[doc = "[production#monitoring]: crate::docs::production#monitoring"]
        #[doc = "[production#proxies-and-tls]: crate::docs::production#proxies-and-tls"]
        #[doc = "[production#run-the-receiver]: crate::docs::production#run-the-receiver"]
        #[doc = "[production#secrets]: crate::docs::production#secrets"]
        #[doc = "[production#time-limits]: crate::docs::production#time-limits"]
        #[doc = "[recipes#the-newest-event-wins]: crate::docs::recipes#the-newest-event-wins"]
        #[doc = "[responses]: crate::docs::responses"]
        #[doc = "[responses#event-router]: crate::docs::responses#event-router"]
        #[doc = "[responses#invalid-challenge]: crate::docs::responses#invalid-challenge"]
        #[doc = "[responses#invalid-signature]: crate::docs::responses#invalid-signature"]
        #[doc = "[senders#discord]: crate::docs::senders#discord"]
        #[doc = "[senders]: crate::docs::senders"]
        #[doc = "[stores]: crate::docs::stores"]
        #[doc = "[stores#memory]: crate::docs::stores#memory"]
        #[doc = "[stores#several-receivers-on-one-store]: crate::docs::stores#several-receivers-on-one-store"]
        #[doc = "[testing]: crate::docs::testing"]
        #[doc = "[testing#by-hand]: crate::docs::testing#by-hand"]
        #[doc = "[threat_model]: crate::docs::threat_model"]
        #[doc = "[threat_model#connections]: crate::docs::threat_model#connections"]
        #[doc = "[threat_model#links-in-payloads]: crate::docs::threat_model#links-in-payloads"]
        #[doc = "[threat_model#payloads-at-rest]: crate::docs::threat_model#payloads-at-rest"]
        #[doc = "[troubleshooting]: crate::docs::troubleshooting"]
        #[doc = "[troubleshooting#alerts]: crate::docs::troubleshooting#alerts"]
        #[doc = "[troubleshooting#dead-letters]: crate::docs::troubleshooting#dead-letters"]
        #[doc = "[troubleshooting#the-500-failures]: crate::docs::troubleshooting#the-500-failures"]
        $($(
            #[cfg_attr(
                doc,
                doc = concat!(
                    "[picture-", $picture, "]: data:image/webp;base64,",
                    include_str!(concat!("pictures/", $picture, ".b64"))
                )
            )]
        )*)?
        #[cfg_attr(feature = "console", doc = "[`Console`]: crate::console::Console")]
        #[cfg_attr(feature = "console", doc = "[`Console::actor_header`]: crate::console::Console::actor_header")]
        #[cfg_attr(feature = "console", doc = "[`Console::hide_payloads`]: crate::console::Console::hide_payloads")]
        #[cfg_attr(feature = "console", doc = "[`Console::hosts`]: crate::console::Console::hosts")]
        #[cfg_attr(feature = "console", doc = "[`Console::read_only`]: crate::console::Console::read_only")]
        #[doc = "[inbox-retention]: crate::inbox::Inbox::retention"]
        #[doc = "[`Inbox::forget`]: crate::inbox::Inbox::forget"]
        #[doc = "[`Inbox`]: crate::inbox::Inbox"]
        #[doc = "[`MemoryQueue`]: crate::memory::MemoryQueue"]
        #[doc = "[`Queue`]: crate::inbox::Queue"]
        #[doc = "[`backlog_limit`]: crate::inbox::Inbox::backlog_limit"]
        #[doc = "[`chat_by`]: crate::inbox::Inbox::chat_by"]
        #[doc = "[`hold_lane_on_dead`]: crate::inbox::Worker::hold_lane_on_dead"]
        #[doc = "[`keep_bodies`]: crate::inbox::Inbox::keep_bodies"]
        #[doc = "[`keep_headers`]: crate::inbox::Inbox::keep_headers"]
        #[doc = "[`max_crashes`]: crate::inbox::Worker::max_crashes"]
        #[doc = "[`only`]: crate::inbox::Worker::only"]
        #[doc = "[`poll_every`]: crate::inbox::Worker::poll_every"]
        #[doc = "[`trip_after`]: crate::inbox::Worker::trip_after"]
        #[cfg_attr(feature = "metrics", doc = "[`Metrics`]: crate::telemetry::Metrics")]
        #[cfg_attr(feature = "moka", doc = "[`MokaStore`]: crate::memory::MokaStore")]
        #[cfg_attr(
            feature = "postgres",
            doc = "[`PostgresStore`]: crate::postgres::PostgresStore"
        )]
        #[cfg_attr(feature = "postgres", doc = "[`transactional`]: crate::transactional")]
        #[cfg_attr(feature = "redis", doc = "[`RedisStore`]: crate::redis::RedisStore")]
        #[cfg_attr(feature = "sandbox", doc = "[`sandbox`]: crate::sandbox")]
        #[cfg_attr(feature = "sqlite", doc = "[`SqliteStore`]: crate::sqlite::SqliteStore")]
        #[cfg_attr(feature = "sqlite", doc = "[sqlite-module]: crate::sqlite")]
        #[cfg_attr(
            any(not(doctest), all($(feature = $feature)?)),
            doc = include_str!($file)
        )]
        pub mod $name {}
    };
}

page!(
    console,
    "console.md",
    pictures = ["overview", "event", "lanes", "drained"]
);
page!(
    getting_started,
    "getting_started.md",
    tested_with = "signal"
);
page!(glossary, "glossary.md");
page!(guarantees, "guarantees.md");
page!(inbox, "inbox.md");
page!(metrics, "metrics.md");
page!(platform, "platform.md");
page!(production, "production.md");
page!(recipes, "recipes.md");
page!(responses, "responses.md");
page!(senders, "senders.md");
page!(stores, "stores.md");
page!(testing, "testing.md");
page!(threat_model, "threat_model.md");
page!(troubleshooting, "troubleshooting.md");
