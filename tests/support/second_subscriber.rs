//! What lets a test read its own thread's log while others run.

use std::sync::LazyLock;

/// With a single subscriber alive, tracing asks the thread that first reaches an event whether anybody
/// listens, instead of that subscriber: another test's thread would answer for all.
static SECOND: LazyLock<tracing::Dispatch> =
    LazyLock::new(|| tracing::Dispatch::new(tracing_subscriber::registry()));

/// Lets there be a second subscriber from now on.
pub(crate) fn keep() {
    LazyLock::force(&SECOND);
}
