//! Makes the application of a receiver, with a store or with an inbox.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use axum::http::HeaderName;
use axum::routing::get;
#[cfg(feature = "console")]
use tower_webhook::console::Console;
#[cfg(feature = "sqlite")]
use tower_webhook::inbox::Records;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use tower_webhook::inbox::{Inbox, OnFailure, Queue, Retry};
use tower_webhook::memory::MokaStore;
#[cfg(feature = "sqlite")]
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::store::Store;
use tower_webhook::{EventRouter, Running, Secrets, Webhooks};

use crate::args::Options;
use crate::cli::misused;
use crate::event::{Action, Events};
use crate::exec::Exec;
use crate::forward::Forward;
use crate::handling::Handling;
use crate::output::Output;
use crate::store::Place;
use crate::telemetry::Telemetry;
#[cfg(feature = "metrics")]
use crate::text::chain;

/// What a receiver is made of.
pub(crate) struct Setup<'a> {
    pub(crate) args: &'a Options,
    pub(crate) secrets: Option<&'a Secrets>,
    pub(crate) events: &'a Arc<Events>,
    pub(crate) telemetry: Telemetry,
}

/// A receiver before it is served.
pub(crate) struct Built {
    pub(crate) app: Router,
    pub(crate) handling: Handling,
    #[cfg(feature = "console")]
    pub(crate) console: Console,
}

pub(crate) fn events(args: &Options) -> anyhow::Result<Events> {
    let limits = args.handling.of_events();
    let action = match (&args.handling.exec, &args.handling.forward) {
        (Some(command), _) => Action::Exec(Exec::new(command.clone())),
        (None, Some(url)) => Action::Forward(Forward::new(url.clone(), limits.concurrency)),
        (None, None) => Action::Print,
    };
    let output = Output::start().context("the thread for standard output cannot be started")?;
    Ok(Events::new(action, limits, output))
}

/// Where keys or events are kept, and whether that is an inbox.
pub(crate) fn place(args: &Options) -> (Place, bool) {
    let (place, is_inbox) = match (&args.kept.inbox, &args.kept.store) {
        (Some(_), Some(_)) => misused(
            "`--inbox` (or WEBHOOK_INBOX) replaces `--store` (or WEBHOOK_STORE): pass or set only one of them",
        ),
        (Some(inbox), None) => (Place::parse_inbox(inbox), true),
        (None, Some(store)) => (Place::parse(store), false),
        (None, None) => (Ok(Place::Memory), false),
    };
    (place.unwrap_or_else(|error| misused(error)), is_inbox)
}

/// Returns the application that answers an event when it is handled.
pub(crate) async fn inline(setup: &Setup<'_>, place: Place) -> anyhow::Result<Built> {
    match place {
        Place::Memory => {
            let store = MokaStore::new();
            #[cfg(feature = "metrics")]
            {
                let store = store.clone();
                setup.telemetry.before_scrapes(move || {
                    store.record_metrics();
                    std::future::ready(())
                });
            }
            with_store(setup, store)
        }
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path) => {
            let store = crate::store::sqlite(path)?;
            warn_of_inbox(&SqliteQueue::with_store(&store)).await?;
            with_store(setup, store)
        }
        #[cfg(feature = "redis")]
        Place::Redis(server) => with_store(setup, crate::store::redis(server).await?),
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => with_store(setup, crate::store::postgres(server).await?),
    }
}

/// Nobody else would notice events that an inbox in the same file has accepted.
#[cfg(feature = "sqlite")]
async fn warn_of_inbox(queue: &SqliteQueue) -> anyhow::Result<()> {
    let unsettled = queue.stats().await?.unsettled();
    if unsettled > 0 {
        tracing::warn!(
            unsettled,
            "this file is also an inbox, whose accepted events are not handled by a receiver with `--store`: start one \
             with `--inbox` and this file"
        );
    }
    Ok(())
}

fn with_store<St>(setup: &Setup<'_>, store: St) -> anyhow::Result<Built>
where
    St: Store + Clone,
{
    let (service, running) = webhooks(setup.args, setup.secrets)
        .store(store)
        .observer(setup.telemetry.observer())
        .in_flight_wait(Duration::from_secs(5).min(Duration::from_secs(setup.args.kept.lease) / 2))
        .start(router(setup.events))?;
    Ok(Built {
        app: mount().route_service(&setup.args.listening.path, service),
        handling: Handling {
            running: recorded(setup, running),
            rest: "the platform retries the events that were running",
        },
        #[cfg(feature = "console")]
        console: Console::new(),
    })
}

/// Returns the application that answers an event when it is stored.
#[allow(clippy::unused_async, reason = "only Postgres is connected to")]
pub(crate) async fn inbox(setup: &Setup<'_>, place: Place) -> anyhow::Result<Built> {
    match place {
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path) => with_queue(setup, crate::store::sqlite_queue(path)?),
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => with_queue(setup, crate::store::postgres_queue(server).await?),
        // `Place::parse_inbox` makes no others.
        other => {
            let _ = setup;
            anyhow::bail!("{other} cannot be an inbox")
        }
    }
}

/// Those that link an attempt to its delivery, and those that the operator names.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn kept_headers(args: &Options) -> impl Iterator<Item = HeaderName> {
    let trace = ["traceparent", "tracestate"].map(HeaderName::from_static);
    trace
        .into_iter()
        .chain(args.kept.keep_header.iter().cloned())
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn with_queue<Q: Queue>(setup: &Setup<'_>, queue: Q) -> anyhow::Result<Built> {
    let args = setup.args;
    // The namespace and the observer are those of the console's clone, too.
    let inbox = Inbox::new(queue)
        .namespace(namespace(args))
        .keep_headers(kept_headers(args))
        .observer(setup.telemetry.observer());
    #[cfg(feature = "console")]
    let console = Console::new().inbox(inbox.clone());
    let on_failure = match args.handling.on_failure {
        crate::args::OnFailure::Block => OnFailure::Block,
        crate::args::OnFailure::Skip => OnFailure::Skip,
    };
    let (service, running) = webhooks(setup.args, setup.secrets)
        .inbox(inbox)
        .worker(|worker| {
            worker
                .concurrency(args.handling.of_events().concurrency)
                .retry(Retry::default().give_up_after(Duration::from_secs(args.handling.retry_for)))
                .on_failure(on_failure)
        })
        .start(router(setup.events))?;
    Ok(Built {
        app: mount().route_service(&args.listening.path, service),
        handling: Handling {
            running: recorded(setup, running),
            rest: "the events that were running stay in the inbox",
        },
        #[cfg(feature = "console")]
        console,
    })
}

/// The namespace of the keys: that of the options, or the sender's.
pub(crate) fn namespace(args: &Options) -> String {
    let given = args.kept.namespace.clone();
    given.unwrap_or_else(|| args.listening.which.namespace())
}

/// The settings for a store and for an inbox.
pub(crate) fn webhooks(args: &Options, secrets: Option<&Secrets>) -> Webhooks {
    let mut webhooks = match secrets {
        Some(secrets) => Webhooks::new(secrets.clone()),
        None => Webhooks::dangerously_unsigned(),
    };
    if args.secrets.replay_guard {
        webhooks = webhooks.replay_guard();
    }
    if args.secrets.reject_changed_bodies {
        webhooks = webhooks.reject_changed_bodies();
    }
    if args.secrets.require_key {
        webhooks = webhooks.require_key();
    }
    webhooks
        .sender(args.listening.which.sender())
        .max_body(args.limits.max_body as usize)
        .max_buffered(args.limits.max_buffered.max(args.limits.max_body) as usize)
        .namespace(namespace(args))
        .handler_timeout(Duration::from_secs(args.handling.handler_timeout))
        .lease(Duration::from_secs(args.kept.lease))
}

/// Has the metrics of what is running recorded.
fn recorded(setup: &Setup<'_>, running: Running) -> Arc<Running> {
    let running = Arc::new(running);
    #[cfg(feature = "metrics")]
    {
        let running = Arc::clone(&running);
        setup.telemetry.before_scrapes(move || {
            let running = Arc::clone(&running);
            async move {
                if let Err(error) = running.record_metrics().await {
                    tracing::warn!(
                        reason = chain(&error),
                        "the metrics of the inbox could not be recorded"
                    );
                }
            }
        });
    }
    #[cfg(not(feature = "metrics"))]
    let _ = setup;
    running
}

fn router(events: &Arc<Events>) -> EventRouter {
    let events = Arc::clone(events);
    EventRouter::new().fallback(move |delivery| {
        let events = Arc::clone(&events);
        async move { events.handle(delivery).await }
    })
}

fn mount() -> Router {
    Router::new().route("/healthz", get(async || {}))
}
