//! Forwards what is left in a spool.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::ctrl_c;
use tower_webhook::postgres::PostgresQueue;
use tower_webhook::spool::Spool;

use super::print;

pub(crate) async fn flush(
    queue: PostgresQueue,
    path: &Path,
    within: u64,
    drop_refused: bool,
) -> anyhow::Result<ExitCode> {
    // It would be created, and look like an empty spool.
    anyhow::ensure!(path.exists(), "there is no file `{}`", path.display());
    // Nothing is stored there any more, so it needs no room, and may be on any disk.
    let spooled = Spool::new(path).limit(0).on_any_disk().open(queue).await?;
    let before = spooled.flush(Duration::ZERO).await;
    tokio::select! {
        _ = spooled.flush(Duration::from_secs(within)) => {}
        _ = ctrl_c() => {}
    }
    let dropped = match drop_refused {
        true => {
            spooled
                .drop_refused(|it| anyhow::Ok(print::record_line(it)?))
                .await?
        }
        false => 0,
    };
    let all = spooled.flush(Duration::ZERO).await;
    let refused = spooled.status().refused.min(all);
    let left = all - refused;
    eprintln!(
        "forwarded: {}, left: {left}, refused by the inbox: {}, dropped: {dropped}",
        before.saturating_sub(all + dropped),
        refused + dropped
    );
    Ok(match all {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
