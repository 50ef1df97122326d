//! Decodes all payloads of the npm package `@octokit/webhooks-examples` with octocrab's models, through a router, and counts
//! them: `cargo run --bin decode -- package/api.github.com/index.json`.

use std::collections::BTreeMap;
use std::{env, fs};

use anyhow::Context;
use octocrab::models::webhook_events::WebhookEvent;
use serde::Deserialize;
use serde_json::value::RawValue;
use tower_webhook::{EventRouter, Outcome, RawDelivery};

/// An event type in a file of the package.
#[derive(Deserialize)]
struct Examples {
    name: String,
    examples: Vec<Box<RawValue>>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let files: Vec<_> = env::args().skip(1).collect();
    anyhow::ensure!(!files.is_empty(), "usage: decode FILE...");
    let router = EventRouter::new().fallback(async |delivery: RawDelivery| {
        WebhookEvent::try_from_header_and_body(delivery.kind().as_str(), delivery.body())?;
        Ok(())
    });
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| file.clone())?;
        let types: Vec<Examples> = serde_json::from_str(&text).with_context(|| file.clone())?;
        let (mut decoded, mut failed) = (0, BTreeMap::<_, Vec<_>>::new());
        for Examples { name, examples } in types {
            for example in examples {
                let body = example.get().to_owned();
                match router.handle(RawDelivery::new(name.parse()?, body)).await {
                    Outcome::Handled => decoded += 1,
                    Outcome::Failed { reason, .. } => {
                        failed
                            .entry(name.clone())
                            .or_default()
                            .push(reason.to_string());
                    }
                    other => anyhow::bail!("{file}: {name}: {other:?}"),
                }
            }
        }
        for (name, reasons) in &failed {
            println!("{name}: {} not decoded: {}", reasons.len(), reasons[0]);
        }
        let others: usize = failed.values().map(Vec::len).sum();
        println!(
            "{file}: {decoded} of {} payloads were decoded",
            decoded + others
        );
    }
    Ok(())
}
