//! One attempt to handle an event under a lease, with or without HTTP.
//!
//! - [`attempt`]: races the work against its time limit and the loss of its lease.
//! - [`Leases`] and [`HeldLease`]: claim, renew and settle a lease on a key.
//! - [`Tries`]: records the end of an attempt, while its lease lasts.
//! - [`Runs`]: attempts that continue after their client disconnected.
//! - [`Limits`]: the settings that all of this shares, checked together.

mod attempt;
mod clock;
mod detached;
mod lease;
mod limits;
mod renewal;
mod settle;

pub(crate) use self::attempt::attempt;
pub(crate) use self::clock::Clocks;
pub use self::detached::{DrainTimeout, Runs};
pub(crate) use self::lease::{Claimed, HeldLease, Leases};
pub(crate) use self::limits::{Defaults, Given, Lent, Limits, time_for};
pub(crate) use self::settle::Tries;
