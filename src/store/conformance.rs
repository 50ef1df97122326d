//! The test suite that every [`Store`](super::Store) must pass.
