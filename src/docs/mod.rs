//! Pages on more than one item.
//!
//! To use the crate:
//!
//! - [`getting_started`]: from the example receiver to a receiver of your own
//! - [`stores`]: which store to choose
//! - [`tower_http`]: the order of tower-http's layers and those of this crate
//! - [`testing`]: tests of your handlers, and the platform on your own machine
//! - [`operations`]: running a receiver, and solving problems with it
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
macro_rules! page {
    ($name:ident, $file:literal) => {
        #[doc = include_str!("links.md")]
        #[cfg_attr(feature = "admin", doc = "[`admin`]: crate::admin")]
        #[cfg_attr(feature = "admin", doc = "[`AdminClient`]: crate::admin::AdminClient")]
        #[cfg_attr(feature = "moka", doc = "[`MokaStore`]: crate::store::MokaStore")]
        #[cfg_attr(
            feature = "moka",
            doc = "[`MokaStore::with_capacity`]: crate::store::MokaStore::with_capacity"
        )]
        #[cfg_attr(
            feature = "postgres",
            doc = "[`PostgresStore`]: crate::store::PostgresStore"
        )]
        #[cfg_attr(feature = "postgres", doc = "[`transactional`]: crate::transactional")]
        #[cfg_attr(feature = "redis", doc = "[`RedisStore`]: crate::store::RedisStore")]
        #[cfg_attr(feature = "sandbox", doc = "[`sandbox`]: crate::sandbox")]
        #[cfg_attr(feature = "sqlite", doc = "[`SqliteStore`]: crate::store::SqliteStore")]
        #[doc = include_str!($file)]
        pub mod $name {}
    };
}

page!(answers, "answers.md");
page!(architecture, "architecture.md");
page!(getting_started, "getting_started.md");
page!(guarantees, "guarantees.md");
page!(operations, "operations.md");
page!(platform, "platform.md");
page!(stores, "stores.md");
page!(testing, "testing.md");
page!(threat_model, "threat_model.md");
page!(tower_http, "tower_http.md");
