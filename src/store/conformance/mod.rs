//! The test suite that every [`Store`](super::Store) must pass.
//!
//! [`run`] takes a [`Harness`] that opens handles on the store. Each rule is also a function, which can be
//! called alone.
//!
#![cfg_attr(feature = "moka", doc = "```")]
#![cfg_attr(not(feature = "moka"), doc = "```ignore")]
//! use tower_webhook::store::conformance::{self, Harness};
//! use tower_webhook::memory::MokaStore;
//!
//! struct Memory(MokaStore);
//!
//! impl Harness for Memory {
//!     type Store = MokaStore;
//!
//!     async fn open(&self) -> MokaStore {
//!         self.0.clone()
//!     }
//! }
//!
//! // In a test of your own: `#[tokio::test]`.
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
//! #     .block_on(async {
//! conformance::run(&Memory(MokaStore::new())).await;
//! # });
//! ```
//!
//! # Time
//!
//! Waiting is done with [`tokio::time`], some seconds altogether. A store that goes by that clock,
//! as the memory store does, may be tested in paused time; one with a server may not. A slow machine
//! breaks no rule, as long as a handful of operations takes less than two seconds.
//!
//! # Data
//!
//! Every rule uses keys that were never used before, so it may run against a store that holds
//! others. What is left behind has expired within a minute, apart from the keys of
//! [`durations_have_no_limits`].

mod harness;
mod rules;

/// For the suites of this crate.
#[doc(hidden)]
pub mod steps;

pub use self::harness::Harness;
pub use self::rules::{
    abandoned_claims_end, attempts_are_counted, bodies_are_compared, claims_hold_until_settled,
    completion_is_remembered, durations_have_no_limits, fences_never_repeat, fences_protect,
    handles_share_everything, keys_never_meet, leases_end, no_claim_wins_after_completion,
    one_claim_wins, peeking_changes_nothing, renewal_counts_from_now, run,
};
