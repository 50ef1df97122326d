//! Pages that are longer than the documentation of one item.

#[doc = include_str!("answers.md")]
pub mod answers {}

#[doc = include_str!("guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("operations.md")]
pub mod operations {}

#[doc = include_str!("threat_model.md")]
pub mod threat_model {}
