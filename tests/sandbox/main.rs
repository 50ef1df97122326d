//! The simulated platform, and receivers against it.

#[cfg(feature = "admin")]
mod admin_client;
mod dark_days;
mod lookup;
mod platform;
mod seven_days;
mod strict;
