//! What the examples agree on when they are told `--demo`.

/// A secret that everybody knows, so that two programs on one desk need no configuration.
pub(crate) const SECRET: &str = "the-public-demo-secret";
