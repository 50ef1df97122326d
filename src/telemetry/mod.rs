//! The telemetry of a delivery.

mod span;

pub(crate) use self::span::DeliverySpan;
