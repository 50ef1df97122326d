// Rustdoc copies no files: the first definition of a picture's label counts, and that of the file is for GitHub.
#![cfg_attr(
    doc,
    doc = concat!(
        "[picture-drained]: data:image/webp;base64,",
        include_str!("../pictures/drained.b64")
    )
)]
#![cfg_attr(
    doc,
    doc = concat!(
        "[picture-event]: data:image/webp;base64,",
        include_str!("../pictures/event.b64")
    )
)]
#![cfg_attr(
    doc,
    doc = concat!(
        "[picture-overview]: data:image/webp;base64,",
        include_str!("../pictures/overview.b64")
    )
)]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    warn(
        clippy::expect_used,
        clippy::unwrap_used,
        clippy::print_stderr,
        clippy::print_stdout
    )
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod actions;
mod ask;
mod bulk;
mod counts;
mod done;
mod export;
mod forget;
mod guard;
mod history;
mod lately;
mod page;
mod problem;
mod reading;
mod request;
mod routes;
mod scan;
mod settings;

pub use self::settings::Console;

/// The data stay consistent when a thread panics while it holds them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
