//! The telemetry of a delivery.

mod short;
mod span;
mod throttle;

pub(crate) use self::short::Short;
pub(crate) use self::span::DeliverySpan;
pub(crate) use self::throttle::Throttle;
