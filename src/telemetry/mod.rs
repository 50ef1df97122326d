//! What is reported of each delivery.

mod span;

pub(crate) use self::span::DeliverySpan;
