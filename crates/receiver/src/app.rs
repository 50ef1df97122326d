//! Makes the application of a receiver, of routes with a store or with an inbox.

#[cfg(all(feature = "postgres", feature = "sqlite"))]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use axum::http::HeaderName;
use axum::routing::get;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use tower_webhook::Receiver;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use tower_webhook::inbox::{Inbox, OnFailure, Queue, Retry};
use tower_webhook::memory::MokaStore;
use tower_webhook::signature::{Neighbours, Signature};
#[cfg(all(feature = "postgres", feature = "sqlite"))]
use tower_webhook::spool::Spool;
#[cfg(feature = "sqlite")]
use tower_webhook::sqlite::SqliteQueue;
use tower_webhook::store::Store;
use tower_webhook::telemetry::Recent;
use tower_webhook::{ConfigError, EventRouter, Running, Webhooks};
#[cfg(feature = "console")]
use tower_webhook_console::Console;
use tracing::subscriber::{NoSubscriber, with_default};

use crate::args::Options;
use crate::event::{Action, Events};
use crate::exec::Exec;
use crate::forward::Forward;
use crate::handling::Handling;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
use crate::hosts::Hosts;
use crate::learn::Learn;
use crate::output::Output;
use crate::place::Place;
use crate::ready::{self, Readiness};
use crate::reload::{Reload, mount};
use crate::route::Route;
use crate::telemetry::Telemetry;
#[cfg(feature = "metrics")]
use crate::text::chain;

/// What a receiver is made of.
pub(crate) struct Setup<'a> {
    pub(crate) args: &'a Options,
    pub(crate) output: &'a Arc<Output>,
    pub(crate) telemetry: Telemetry,
    /// All routes, whatever database they have.
    pub(crate) neighbours: Neighbours,
}

/// A receiver before it is served.
pub(crate) struct Built {
    pub(crate) app: Router,
    pub(crate) readiness: Readiness,
    pub(crate) handling: Handling,
    /// The routes, with what changes them while they are served.
    pub(crate) routes: Vec<(Route, Reload)>,
    /// One for each database, with its name.
    #[cfg(feature = "console")]
    pub(crate) consoles: Vec<(String, Console)>,
}

/// Opens each database once, for all routes that use it.
pub(crate) async fn build(setup: &Setup<'_>, mut rest: Vec<Route>) -> anyhow::Result<Built> {
    let mut built = Built {
        app: Router::new().route("/healthz", get(async || {})),
        readiness: Readiness::default(),
        handling: Handling::default(),
        routes: Vec::new(),
        #[cfg(feature = "console")]
        consoles: Vec::new(),
    };
    while !rest.is_empty() {
        let first = rest.remove(0);
        let (place, is_inbox) = (first.place.clone(), first.is_inbox);
        let (mut same, others): (Vec<_>, _) =
            rest.into_iter().partition(|route| route.is_beside(&first));
        rest = others;
        same.insert(0, first);
        built = match is_inbox {
            true => inbox(setup, built, same, place).await?,
            false => inline(setup, built, same, place).await?,
        };
    }
    Ok(built)
}

fn events(setup: &Setup<'_>, route: &Route) -> Arc<Events> {
    let limits = setup.args.handling.of_events();
    let action = match (&route.exec, &route.forward) {
        (Some(command), _) => Action::Exec(Exec::new(command.clone())),
        (None, Some(url)) => Action::Forward(Forward::new(url.clone(), limits.concurrency)),
        (None, None) => Action::Print,
    };
    let is_one_of_several = setup.args.listening.config.is_some();
    let name = is_one_of_several.then(|| route.path.clone());
    let output = (Arc::clone(setup.output), setup.args.handling.quiet);
    let sender = route.sender.clone();
    Arc::new(Events::new(action, limits, output, name, sender))
}

/// Adds routes that answer an event when it is handled.
async fn inline(
    setup: &Setup<'_>,
    built: Built,
    routes: Vec<Route>,
    place: Place,
) -> anyhow::Result<Built> {
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
            with_store(setup, built, routes, &store)
        }
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path) => {
            let store = crate::store::sqlite(path)?;
            warn_of_inbox(SqliteQueue::with_store(&store).into()).await?;
            with_store(setup, built, routes, &store)
        }
        #[cfg(feature = "redis")]
        Place::Redis(server) => {
            with_store(setup, built, routes, &crate::store::redis(server).await?)
        }
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => {
            with_store(setup, built, routes, &crate::store::postgres(server).await?)
        }
    }
}

/// Nobody else would notice events that an inbox in the same file has accepted.
#[cfg(feature = "sqlite")]
async fn warn_of_inbox(inbox: Inbox) -> anyhow::Result<()> {
    let unsettled = inbox.stats().await?.unsettled();
    if unsettled > 0 {
        tracing::warn!(
            unsettled,
            "this file is also an inbox, whose accepted events are not handled by a receiver with `--store`: start one \
             with `--inbox` and this file"
        );
    }
    Ok(())
}

fn with_store<St>(
    setup: &Setup<'_>,
    mut built: Built,
    routes: Vec<Route>,
    store: &St,
) -> anyhow::Result<Built>
where
    St: Store + Clone,
{
    if let Some(route) = routes
        .first()
        .filter(|route| !matches!(route.place, Place::Memory))
    {
        let store = store.clone();
        let name = route.place.to_string();
        built
            .readiness
            .add(name, move || ready::stores(store.clone()));
    }
    let recent = Recent::new();
    #[cfg(feature = "console")]
    {
        let console = setup.telemetry.console().recent(recent.clone());
        built.consoles.push((name(&routes), console));
    }
    for route in routes {
        let (service, running) = webhooks(setup.args, &route)
            .neighbours(&setup.neighbours)
            .store(store.clone())
            .observer((setup.telemetry.observer(), recent.clone()))
            .in_flight_wait(in_flight_wait(setup.args))
            .start(router(&events(setup, &route)))?;
        let (app, reload) = mount(built.app, &route.path, service, Signature::with_sender);
        built.app = app;
        built.handling.inline.push(recorded(setup, running));
        built.routes.push((route, reload));
    }
    Ok(built)
}

/// Adds routes that answer an event when it is stored.
#[allow(clippy::unused_async, reason = "only Postgres is connected to")]
async fn inbox(
    setup: &Setup<'_>,
    built: Built,
    routes: Vec<Route>,
    place: Place,
) -> anyhow::Result<Built> {
    match place {
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path) => {
            refuse_spool(setup.args)?;
            with_queue(setup, built, routes, crate::store::sqlite_queue(path)?)
        }
        #[cfg(all(feature = "postgres", feature = "sqlite"))]
        Place::Postgres(server) if setup.args.kept.spool.is_some() => {
            spooled(setup, built, routes, server).await
        }
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => with_queue(
            setup,
            built,
            routes,
            crate::store::postgres_queue(server).await?,
        ),
        // `Place::parse_inbox` makes no others.
        other => {
            let _ = (setup, built, routes);
            anyhow::bail!("{other} cannot be an inbox")
        }
    }
}

/// Adds routes whose events go to a spool while the server is away.
#[cfg(all(feature = "postgres", feature = "sqlite"))]
async fn spooled(
    setup: &Setup<'_>,
    mut built: Built,
    routes: Vec<Route>,
    server: Hosts,
) -> anyhow::Result<Built> {
    let kept = &setup.args.kept;
    anyhow::ensure!(
        built.handling.spools.is_empty(),
        "`--spool` is for one database: run a receiver for each one"
    );
    let mut spool = Spool::new(kept.spool.as_deref().unwrap_or(Path::new("")));
    spool = spool.limit(kept.spool_limit);
    if kept.spool_on_any_disk {
        spool = spool.on_any_disk();
    }
    let queue = crate::store::postgres_queue_or_later(server).await?;
    let queue = spool.open(queue).await?;
    #[cfg(feature = "metrics")]
    {
        let queue = queue.clone();
        setup.telemetry.before_scrapes(move || {
            queue.record_metrics();
            std::future::ready(())
        });
    }
    setup.telemetry.watch_spool(queue.clone());
    built.handling.spools.push(queue.clone());
    #[cfg(feature = "console")]
    {
        let spool = queue.clone();
        let mut built = with_queue(setup, built, routes, queue)?;
        if let Some((name, console)) = built.consoles.pop() {
            built.consoles.push((name, console.spool(spool)));
        }
        Ok(built)
    }
    #[cfg(not(feature = "console"))]
    with_queue(setup, built, routes, queue)
}

/// The headers that link an attempt to its delivery, and the headers that the operator names.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn kept_headers(args: &Options) -> impl Iterator<Item = HeaderName> {
    let trace = ["traceparent", "tracestate"].map(HeaderName::from_static);
    trace
        .into_iter()
        .chain(args.kept.keep_header.iter().cloned())
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn with_queue(
    setup: &Setup<'_>,
    mut built: Built,
    routes: Vec<Route>,
    queue: impl Into<Queue>,
) -> anyhow::Result<Built> {
    let args = setup.args;
    let on_failure = match args.handling.on_failure {
        crate::args::OnFailure::Block => OnFailure::Block,
        crate::args::OnFailure::Skip => OnFailure::Skip,
    };
    let retry = Retry::default().give_up_after(Duration::from_secs(args.handling.retry_for));
    let inbox = Inbox::new(queue)
        .keep_headers(kept_headers(args))
        .worker(|worker| {
            worker
                .concurrency(args.handling.of_events().concurrency)
                .retry(retry)
                .on_failure(on_failure)
        });
    setup.telemetry.watch_inbox(inbox.clone());
    if let Some(route) = routes.first() {
        let asked = inbox.clone();
        let is_ready = move || {
            let inbox = asked.clone();
            async move { inbox.is_ready().await }
        };
        built.readiness.add(route.place.to_string(), is_ready);
    }
    let recent = Recent::new();
    #[cfg(feature = "console")]
    {
        let console = setup.telemetry.console();
        let console = console.inbox(inbox.clone()).recent(recent.clone());
        built.consoles.push((name(&routes), console));
    }
    let mut of_inbox = inbox.routes();
    // The first route sets it for all.
    let mut observer = Some((setup.telemetry.observer(), recent));
    for route in routes {
        let mut webhooks = webhooks(args, &route).neighbours(&setup.neighbours);
        if let Some(observer) = observer.take() {
            webhooks = webhooks.observer(observer);
        }
        let service = of_inbox.add(webhooks, router(&events(setup, &route)))?;
        let (app, reload) = mount(built.app, &route.path, service, Receiver::with_sender);
        built.app = app;
        built.routes.push((route, reload));
    }
    let running = of_inbox.start()?;
    built.handling.inboxes.push(recorded(setup, running));
    Ok(built)
}

/// Names a database by the paths of its routes, joined with `+`, which no path contains.
#[cfg(feature = "console")]
fn name(routes: &[Route]) -> String {
    let paths = routes.iter().map(|route| route.path.trim_matches('/'));
    paths.collect::<Vec<_>>().join("+").replace('/', "-")
}

/// Shorter than the lease, however short that is.
fn in_flight_wait(args: &Options) -> Duration {
    Duration::from_secs(5).min(Duration::from_secs(args.kept.lease) / 2)
}

/// Refuses a spool in front of an inbox in a file.
#[cfg(feature = "sqlite")]
pub(crate) fn refuse_spool(args: &Options) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.kept.spool.is_none(),
        "`--spool` is for an inbox in PostgreSQL: one in a file is on this machine itself"
    );
    Ok(())
}

/// Whether the settings of a route can be used.
pub(crate) fn check(args: &Options, route: &Route) -> Result<(), ConfigError> {
    let webhooks = webhooks(args, route).store(MokaStore::new());
    let webhooks = webhooks.in_flight_wait(in_flight_wait(args));
    // The layers that are used warn themselves, and an inbox is no such store.
    let layers = with_default(NoSubscriber::default(), || webhooks.into_layers());
    layers.map(drop)
}

/// The settings for a store and for an inbox.
fn webhooks(args: &Options, route: &Route) -> Webhooks {
    let mut webhooks = match &route.secrets {
        Some(secrets) => Webhooks::new(secrets.clone()),
        None => Webhooks::dangerously_unsigned(),
    };
    if args.secrets.replay_guard {
        webhooks = webhooks.replay_guard();
    }
    if route.equal_bodies {
        webhooks = webhooks.equal_bodies();
    }
    if args.secrets.reject_changed_bodies {
        webhooks = webhooks.reject_changed_bodies();
    }
    if args.secrets.require_key {
        webhooks = webhooks.require_key();
    }
    if !route.keep_only.is_empty() {
        webhooks = webhooks.keep_only(route.keep_only.iter().cloned());
    }
    if let (true, Some(file), Some(secrets)) = (
        args.secrets.learn_secret,
        &route.secret_file,
        &route.secrets,
    ) {
        let learn = Learn::new(file.clone(), secrets.clone());
        webhooks = webhooks.on_secret(move |secret| learn.keep(secret));
    }
    let (max_body, max_buffered) = args.limits.of_bodies(&route.sender);
    webhooks
        .sender(route.sender.clone())
        .max_body(max_body)
        .max_buffered(max_buffered)
        .name(route.name.clone())
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
        async move {
            crate::otlp::link(&delivery);
            events.handle(delivery).await
        }
    })
}
