//! Pages on more than one item.
//!
//! - **Tutorial**: [`getting_started`]
//! - **Guides**: [`inbox`], [`stores`] and queues, [`senders`], [`recipes`], [`testing`]
//! - **Operations**: [`production`], [`scaling`], [`troubleshooting`] with the alerts
//! - **Reference**: [`responses`], [`guarantees`] and limits, [`metrics`], [`platform`], [`threat_model`], [`glossary`]

/// A page from a file beside this one. Its links have labels, which each page defines for readers of the
/// file; the definitions here and in `links.txt` are for rustdoc, and the first definition of a label counts.
///
/// A page whose doctests need a feature names it. Without the feature it is shown, and not tested.
macro_rules! page {
    ($name:ident, $file:literal $(, tested_with = $feature:tt)?) => {
        #[doc = include_str!("links.txt")]
        #[cfg_attr(feature = "metrics", doc = "[`Metrics`]: crate::telemetry::Metrics")]
        #[cfg_attr(feature = "moka", doc = "[`MokaStore`]: crate::memory::MokaStore")]
        #[cfg_attr(
            feature = "postgres",
            doc = "[`PostgresStore`]: crate::postgres::PostgresStore"
        )]
        #[cfg_attr(feature = "postgres", doc = "[`transactional`]: crate::transactional")]
        #[cfg_attr(feature = "redis", doc = "[`RedisStore`]: crate::redis::RedisStore")]
        #[cfg_attr(feature = "sqlite", doc = "[`SqliteStore`]: crate::sqlite::SqliteStore")]
        #[cfg_attr(feature = "sqlite", doc = "[sqlite-module]: crate::sqlite")]
        #[cfg_attr(feature = "sqlite", doc = "[spool-module]: crate::spool")]
        #[cfg_attr(
            any(not(doctest), all($(feature = $feature)?)),
            doc = include_str!($file)
        )]
        pub mod $name {}
    };
}

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
page!(scaling, "scaling.md");
page!(senders, "senders.md");
page!(stores, "stores.md");
page!(testing, "testing.md");
page!(threat_model, "threat_model.md");
page!(troubleshooting, "troubleshooting.md");

/// For coding agents: the programs of that page compile.
#[cfg(all(doctest, feature = "moka", feature = "signal", feature = "sqlite"))]
#[doc = include_str!("../../llms.txt")]
mod llms {}
