//! The signals that end a program.

use std::future::pending;

use tokio::signal;

/// Completes when the process is asked to end: on SIGTERM, which service managers and orchestrators send, or on
/// Ctrl-C. On other systems than Unix, on Ctrl-C only.
///
/// It is meant for a server's graceful shutdown, as in [`Webhooks`](crate::Webhooks). The signals are caught from the
/// first poll until the process ends, so a second one does not end the process by itself. To stop waiting at a second
/// signal, pass another call to [`Running::drain_until`](crate::Running::drain_until):
///
/// ```no_run
/// # async fn end(running: tower_webhook::Running) -> Result<(), tower_webhook::idempotency::DrainTimeout> {
/// running.drain_until(tower_webhook::shutdown()).await?;
/// # Ok(())
/// # }
/// ```
///
/// The signal is logged at `INFO`. If a signal cannot be caught, an error is logged, and only the other one counts.
///
/// # Panics
///
/// When it is polled outside of a tokio runtime whose I/O is enabled.
pub async fn shutdown() {
    let name = tokio::select! {
        () = interrupted() => "Ctrl-C",
        () = terminated() => "SIGTERM",
    };
    tracing::info!("{name}: stopping");
}

async fn interrupted() {
    if let Err(error) = signal::ctrl_c().await {
        not_caught("Ctrl-C", &error).await;
    }
}

#[cfg(unix)]
async fn terminated() {
    match signal::unix::signal(signal::unix::SignalKind::terminate()) {
        // It returns `None` when the runtime ends, and this task with it.
        Ok(mut signals) => _ = signals.recv().await,
        Err(error) => not_caught("SIGTERM", &error).await,
    }
}

#[cfg(not(unix))]
async fn terminated() {
    pending::<()>().await;
}

async fn not_caught(signal: &str, error: &std::io::Error) {
    tracing::error!(
        reason = error as &dyn std::error::Error,
        "{signal} cannot be caught, and does not end this program gracefully"
    );
    pending::<()>().await;
}
