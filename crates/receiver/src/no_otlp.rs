//! Without the feature `otlp`, nothing is exported.

use axum::Router;
use tower_webhook::RawDelivery;

use crate::args::Options;
use crate::log::Spans;

/// There is none.
pub(crate) enum Otlp {}

#[allow(clippy::unnecessary_wraps, reason = "that of the feature can fail")]
pub(crate) fn start(_: &Options) -> anyhow::Result<Option<Otlp>> {
    Ok(None)
}

pub(crate) fn spans(_: Option<&Otlp>) -> Option<Spans> {
    None
}

impl Otlp {
    pub(crate) fn traced(&self, _: Router, _: Vec<String>) -> Router {
        match *self {}
    }

    pub(crate) fn shutdown(self) {
        match self {}
    }
}

pub(crate) fn link(_: &RawDelivery) {}
