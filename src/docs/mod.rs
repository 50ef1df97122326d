//! Pages on more than one item.
//!
//! To use the crate:
//!
//! - [`getting_started`]: from the example receiver to a receiver of your own
//! - [`stores`]: which store to choose
//! - [`inbox`]: acknowledging events when they are stored, and handling them later, in order
//! - [`tower_http`]: the order of tower-http's layers and those of this crate
//! - [`testing`]: tests of your handlers, and the platform on your own machine
//! - [`operations`]: running a receiver, and solving problems with it
//! - [`console`]: pages for operators
//! - [`metrics`]: metrics for dashboards and alarms
//! - [`alarms`]: alerts for Prometheus, and the remedy for each
//!
//! To rely on it:
//!
//! - [`guarantees`]: promises, conditions and limits
//! - [`answers`]: the answer to every delivery
//! - [`threat_model`]: attacks, and what stops them
//! - [`platform`]: the platform's interface, by the sections that "Spec" cites
//! - [`architecture`]: how a delivery is processed; source layout, threads and tasks

/// A page from a file beside this one. Its links have labels, which each page defines for readers of the
/// file; the definitions before it are for rustdoc, and the first definition of a label counts.
///
/// Rustdoc reports the doctests of all pages as those of `links.md`, with the module of the page.
///
/// A page whose doctests need a feature names it. Without the feature it is shown, and not tested.
///
/// A page names its pictures. Rustdoc does not copy files, so the page embeds them as data URLs.
macro_rules! page {
    ($name:ident, $file:literal $(, tested_with = $feature:tt)? $(, pictures = [$($picture:literal),*])?) => {
        #[doc = include_str!("links.md")]
        $($(
            #[cfg_attr(
                doc,
                doc = concat!(
                    "[picture-", $picture, "]: data:image/webp;base64,",
                    include_str!(concat!("pictures/", $picture, ".b64"))
                )
            )]
        )*)?
        #[cfg_attr(feature = "admin", doc = "[`admin`]: crate::admin")]
        #[cfg_attr(feature = "admin", doc = "[`AdminClient`]: crate::admin::AdminClient")]
        #[cfg_attr(feature = "console", doc = "[`Console`]: crate::console::Console")]
        #[cfg_attr(feature = "console", doc = "[`Console::actor_header`]: crate::console::Console::actor_header")]
        #[cfg_attr(feature = "console", doc = "[`Console::hide_payloads`]: crate::console::Console::hide_payloads")]
        #[cfg_attr(feature = "console", doc = "[`Console::hosts`]: crate::console::Console::hosts")]
        #[cfg_attr(feature = "console", doc = "[`Console::read_only`]: crate::console::Console::read_only")]
        #[doc = "[inbox-reject-changed-bodies]: crate::inbox::Inbox::reject_changed_bodies"]
        #[doc = "[inbox-replay-guard]: crate::inbox::Inbox::replay_guard"]
        #[doc = "[inbox-retention]: crate::inbox::Inbox::retention"]
        #[doc = "[inbox-module]: crate::inbox"]
        #[doc = "[worker-drain]: crate::inbox::WorkerHandle::drain"]
        #[doc = "[worker-lease]: crate::inbox::Worker::lease"]
        #[doc = "[`Inbox::forget`]: crate::inbox::Inbox::forget"]
        #[doc = "[`Inbox::pause`]: crate::inbox::Inbox::pause"]
        #[doc = "[`Inbox::resume`]: crate::inbox::Inbox::resume"]
        #[doc = "[`Inbox`]: crate::inbox::Inbox"]
        #[doc = "[`MemoryQueue`]: crate::memory::MemoryQueue"]
        #[doc = "[`OnFailure::Skip`]: crate::inbox::OnFailure::Skip"]
        #[doc = "[`Queue`]: crate::inbox::Queue"]
        #[doc = "[`Retry::max_attempts`]: crate::inbox::Retry::max_attempts"]
        #[doc = "[`Stats`]: crate::inbox::Stats"]
        #[doc = "[`backlog_limit`]: crate::inbox::Inbox::backlog_limit"]
        #[doc = "[`chat_by`]: crate::inbox::Inbox::chat_by"]
        #[doc = "[`except`]: crate::inbox::Worker::except"]
        #[doc = "[`hold_lane_on_dead`]: crate::inbox::Worker::hold_lane_on_dead"]
        #[doc = "[`keep_bodies`]: crate::inbox::Inbox::keep_bodies"]
        #[doc = "[`keep_headers`]: crate::inbox::Inbox::keep_headers"]
        #[doc = "[`max_crashes`]: crate::inbox::Worker::max_crashes"]
        #[doc = "[`only`]: crate::inbox::Worker::only"]
        #[doc = "[`poll_every`]: crate::inbox::Worker::poll_every"]
        #[doc = "[`trip_after`]: crate::inbox::Worker::trip_after"]
        #[doc = "[inbox-store-timeout]: crate::inbox::Inbox::store_timeout"]
        #[doc = "[worker-handler-timeout]: crate::inbox::Worker::handler_timeout"]
        #[doc = "[`Retry::delays`]: crate::inbox::Retry::delays"]
        #[doc = "[`Retry::give_up_after`]: crate::inbox::Retry::give_up_after"]
        #[doc = "[`concurrency`]: crate::inbox::Worker::concurrency"]
        #[cfg_attr(feature = "metrics", doc = "[`Metrics`]: crate::telemetry::Metrics")]
        #[cfg_attr(feature = "moka", doc = "[`MokaStore`]: crate::memory::MokaStore")]
        #[cfg_attr(
            feature = "moka",
            doc = "[`MokaStore::with_capacity`]: crate::memory::MokaStore::with_capacity"
        )]
        #[cfg_attr(
            feature = "postgres",
            doc = "[`PostgresStore`]: crate::postgres::PostgresStore"
        )]
        #[cfg_attr(feature = "postgres", doc = "[`transactional`]: crate::transactional")]
        #[cfg_attr(feature = "redis", doc = "[`RedisStore`]: crate::redis::RedisStore")]
        #[cfg_attr(feature = "sandbox", doc = "[`sandbox`]: crate::sandbox")]
        #[cfg_attr(feature = "sqlite", doc = "[`SqliteStore`]: crate::sqlite::SqliteStore")]
        #[cfg_attr(
            any(not(doctest), all($(feature = $feature)?)),
            doc = include_str!($file)
        )]
        pub mod $name {}
    };
}

page!(alarms, "alarms.md");
page!(answers, "answers.md");
page!(architecture, "architecture.md");
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
page!(guarantees, "guarantees.md");
page!(inbox, "inbox.md", tested_with = "signal");
page!(metrics, "metrics.md", tested_with = "metrics");
page!(operations, "operations.md");
page!(platform, "platform.md");
page!(stores, "stores.md");
page!(testing, "testing.md");
page!(threat_model, "threat_model.md", tested_with = "admin");
page!(tower_http, "tower_http.md", tested_with = "console");
