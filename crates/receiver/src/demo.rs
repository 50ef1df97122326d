//! The values that examples share with `--demo`.

/// A public secret, so that two programs on one machine need no configuration.
pub(crate) const SECRET: &str = "the-public-demo-secret";
