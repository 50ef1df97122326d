//! The senders that a receiver can verify.

use std::process::ExitCode;
use std::{io, iter};

use tower_webhook::SenderPolicy;

use crate::inbox::print::write_rows;

pub(crate) fn print() -> anyhow::Result<ExitCode> {
    let head = ["SENDER", "EVENT", "SIGNATURE", "KEY", "RETRIES"].map(str::to_owned);
    let policy = SenderPolicy::default();
    let platform = [
        "chat platform".to_owned(),
        "x-service-event".to_owned(),
        "x-service-hmac-sha256".to_owned(),
        "idempotency-key".to_owned(),
        format!(
            "every {} min for {} days, disabled after {} failures within an hour",
            policy.retry_every.as_secs() / 60,
            policy.retry_for.as_secs() / (24 * 60 * 60),
            policy.disable_after
        ),
    ];
    let rows = iter::once(head).chain([platform]).collect();
    write_rows(&mut io::stdout().lock(), rows)?;
    Ok(ExitCode::SUCCESS)
}
