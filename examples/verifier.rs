//! Run with: cargo run --example verifier --features public-keys,signal -- --keys http://127.0.0.1:3009/keys.json
//!
//! Receives webhooks of a sender that signs with a private key and publishes its public keys, with a verifier that fetches
//! them. The URL returns `{"KEY-ID": "whpk_…"}`, and the header `x-acme-key` of a delivery names one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use async_trait::async_trait;
use axum::Router;
use bytes::Bytes;
use clap::Parser;
use http::{HeaderMap, Request, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tower_webhook::signature::{Proof, SignatureError, Verdict, Verifier, VerifierError};
use tower_webhook::{
    EventKind, EventRouter, IdempotencyKey, PublicKey, RawDelivery, Secrets, Sender, SenderPolicy,
    Webhooks,
};

#[derive(Parser)]
struct Args {
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: SocketAddr,
    /// Where the public keys are
    #[arg(long)]
    keys: Uri,
}

/// The keys are fetched at most so often, whatever requests name: also those that cannot be fetched.
const FETCH_EVERY: Duration = Duration::from_secs(60);
/// Less than a verifier has.
const FETCH_TIME: Duration = Duration::from_secs(3);
const LARGEST: usize = 64 * 1024;

struct Acme {
    url: Uri,
    client: Client<HttpConnector, Empty<Bytes>>,
    /// How it signs, with the keys left out.
    scheme: Sender,
    // Held during a fetch: others wait for it, instead of fetching the same.
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Keys {
    by_id: HashMap<String, PublicKey>,
    fetched: Option<Instant>,
    failure: Option<String>,
}

#[derive(serde::Deserialize)]
struct Event {
    id: String,
    r#type: String,
}

impl Acme {
    fn new(url: Uri) -> anyhow::Result<Self> {
        let scheme = r#"{
            "name": "acme",
            "signature": { "headers": ["x-acme-signature"], "algorithm": "ed25519", "coding": "base64" }
        }"#;
        Ok(Self {
            url,
            client: Client::builder(TokioExecutor::new()).build_http(),
            scheme: Sender::from_json(scheme)?,
            keys: Mutex::default(),
        })
    }

    async fn key(&self, id: &str) -> Result<PublicKey, VerifierError> {
        let mut keys = self.keys.lock().await;
        let is_due = keys.fetched.is_none_or(|it| it.elapsed() > FETCH_EVERY);
        if !keys.by_id.contains_key(id) && is_due {
            // Before it is fetched: the client may disconnect, and the future be dropped.
            keys.fetched = Some(Instant::now());
            keys.failure = Some("the fetch of its keys was given up".to_owned());
            let fetched = timeout(FETCH_TIME, self.fetch()).await;
            keys.failure = match fetched.context("it took too long").flatten() {
                Ok(by_id) => {
                    keys.by_id = by_id;
                    None
                }
                Err(error) => Some(format!("its keys cannot be fetched: {error:#}")),
            };
        }
        match (keys.by_id.get(id), &keys.failure) {
            (Some(key), _) => Ok(key.clone()),
            (None, Some(failure)) => Err(VerifierError::unavailable(failure.as_str())),
            (None, None) => Err(SignatureError::Other("there is no key of this id").into()),
        }
    }

    /// From the configured URL alone, and without following redirects.
    async fn fetch(&self) -> anyhow::Result<HashMap<String, PublicKey>> {
        let response = self.client.get(self.url.clone()).await?;
        ensure!(response.status() == 200, "status {}", response.status());
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(anyhow::Error::from_boxed)?.to_bytes();
        let texts: HashMap<String, String> = serde_json::from_slice(&body)?;
        let keys = texts.into_iter();
        let keys = keys.map(|(id, text)| Ok((id, PublicKey::new(text)?)));
        keys.collect()
    }
}

fn key_id(headers: &HeaderMap) -> Result<&str, SignatureError> {
    let mut ids = headers.get_all("x-acme-key").iter();
    match (ids.next().map(|it| it.to_str()), ids.next()) {
        (Some(Ok(id)), None) if !id.is_empty() => Ok(id),
        (None, _) => Err(SignatureError::Incomplete),
        _ => Err(SignatureError::Malformed),
    }
}

#[async_trait]
impl Verifier for Acme {
    fn name(&self) -> &'static str {
        "acme"
    }

    fn policy(&self) -> SenderPolicy {
        SenderPolicy::new(Duration::from_secs(60), Duration::from_secs(24 * 60 * 60))
    }

    fn needs_replay_guard(&self) -> bool {
        false // The key stands in the signed body.
    }

    fn admit(&self, head: &http::request::Parts) -> Result<(), SignatureError> {
        key_id(&head.headers).map(drop)
    }

    async fn verify(&self, request: &Request<Bytes>) -> Result<Verdict, VerifierError> {
        let (headers, body) = (request.headers(), request.body());
        let key = self.key(key_id(headers)?).await?;
        self.scheme.verify(&Secrets::from(key), headers, body)?;
        // Only now is it read.
        let event: Event = serde_json::from_slice(body).map_err(VerifierError::unreadable)?;
        let kind = event.r#type.parse::<EventKind>();
        let key: Result<IdempotencyKey, _> = event.id.parse();
        let proof = Proof::new(kind.map_err(VerifierError::unreadable)?);
        Ok(proof.key(key.map_err(VerifierError::unreadable)?).into())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    log.init();

    let events = EventRouter::new().fallback(async |delivery: RawDelivery| {
        println!("{} of {} bytes", delivery.kind(), delivery.body().len());
        Ok(())
    });
    let (webhooks, running) = Webhooks::verified_by(Acme::new(args.keys)?)?.start(events)?;
    let app = Router::new().route_service("/acme", webhooks);
    let listener = TcpListener::bind(args.listen).await?;
    eprintln!("listening on http://{}/acme", listener.local_addr()?);
    let server = |stop| axum::serve(listener, app).with_graceful_shutdown(stop);
    let serving = running.serve(tower_webhook::shutdown(), Duration::from_secs(30), server);
    Ok(serving.await?)
}
