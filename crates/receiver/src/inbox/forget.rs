//! Deletes the data of a chat.

use std::process::ExitCode;
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use tokio::signal::ctrl_c;
use tower_webhook::inbox::{Filter, Inbox};

use super::Pages;
use super::change::is_confirmed;
use super::user;

pub(crate) async fn forget(inbox: &Inbox, chat: String, yes: bool) -> anyhow::Result<ExitCode> {
    let filter = Filter::default().chat(&chat);
    let (mut events, mut unsettled) = (0, 0);
    let mut pages = Pages::new(inbox, &filter, false);
    while let Some(page) = pages.next().await? {
        events += page.len();
        unsettled += page
            .iter()
            .filter(|event| event.state.is_unsettled())
            .count();
    }
    if events == 0 {
        eprintln!("no event of this chat was found");
        return Ok(ExitCode::FAILURE);
    }
    let question = format!(
        "Delete the payloads, headers and errors of the chat's {events} events, of which {unsettled} were not handled?"
    );
    if !yes && !is_confirmed(&question)? {
        eprintln!("nothing was changed");
        return Ok(ExitCode::FAILURE);
    }
    let forgotten = tokio::select! {
        forgotten = inbox.forget(&chat) => forgotten,
        _ = ctrl_c() => anyhow::bail!("stopped: the same command forgets the rest"),
    };
    let bodies = forgotten.map_err(|error| {
        anyhow::Error::new(error)
            .context("not all was forgotten: the same command forgets the rest")
    })?;
    // For the record, which the chat's id must not outlive its data in.
    let digest = base16ct::lower::encode_string(&Sha256::digest(&chat));
    eprintln!(
        "forgotten on {} by {}: the chat whose id has the SHA-256 {}…, bodies: {bodies}",
        httpdate::fmt_http_date(SystemTime::now()),
        user(),
        &digest[..16],
    );
    Ok(ExitCode::SUCCESS)
}
