//! The platform's rules.
