//! Opens what `run` would open, and handles nothing.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use tower_webhook::inbox::Inbox;

use crate::app;
use crate::args::Options;
use crate::cli::misused;
use crate::listen::bind;
use crate::place::Place;
use crate::route::{Route, routes};
use crate::run::{connection_limits, refuse_missing};
use crate::secrets::labels;
use crate::text::chain;

pub(crate) async fn check(args: &Options) -> anyhow::Result<ExitCode> {
    refuse_missing(args);
    let routes = routes(args);
    let count = routes.len();
    for route in routes {
        if args.listening.config.is_some() {
            let (path, sender) = (&route.path, route.sender.name());
            let name = &route.name;
            say("route", format!("{path}, for {sender}, named `{name}`"))?;
        }
        match &route.secrets {
            None => say("secrets", "none: deliveries are not verified")?,
            Some(secrets) => say("secrets", labels(secrets))?,
        }
        check_route(args, route).await?;
    }

    let listeners = [
        (
            "webhooks",
            Some(args.listening.listen),
            "--listen 127.0.0.1:3001",
        ),
        ("console", args.console.console, "--console 127.0.0.1:3002"),
        (
            "metrics",
            args.monitoring.metrics,
            "--metrics 127.0.0.1:9465",
        ),
    ];
    let mut bound = Vec::new();
    for (what, address, other) in listeners {
        if let Some(address) = address {
            let listener = bind(address, other)?;
            say(what, listener.local_addr()?)?;
            bound.push(listener);
        }
    }
    say(
        "connections",
        connection_limits(args, count)?.max_connections,
    )?;
    Ok(ExitCode::SUCCESS)
}

async fn check_route(args: &Options, route: Route) -> anyhow::Result<()> {
    if let Err(error) = app::check(args, &route) {
        misused(chain(&error));
    }
    #[cfg(feature = "sqlite")]
    if route.is_inbox && matches!(route.place, Place::Sqlite(_)) {
        app::refuse_spool(args)?;
    }
    let what = if route.is_inbox { "inbox" } else { "store" };
    let name = route.place.to_string();
    match open(route.place, route.is_inbox).await? {
        Some(unsettled) => say(what, format!("{name}, with {unsettled} unsettled events"))?,
        None => say(what, name)?,
    }
    Ok(())
}

/// Opens a store, or an inbox, and returns how many unsettled events that has.
async fn open(place: Place, is_inbox: bool) -> anyhow::Result<Option<u64>> {
    Ok(match place {
        Place::Memory => {
            let _ = is_inbox;
            None
        }
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path) if is_inbox => {
            Some(unsettled(crate::store::sqlite_queue(path)?.into()).await?)
        }
        #[cfg(feature = "sqlite")]
        Place::Sqlite(path) => crate::store::sqlite(path).map(|_| None)?,
        #[cfg(feature = "redis")]
        Place::Redis(server) => crate::store::redis(server).await.map(|_| None)?,
        #[cfg(feature = "postgres")]
        Place::Postgres(server) if is_inbox => {
            Some(unsettled(crate::store::postgres_queue(server).await?.into()).await?)
        }
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => crate::store::postgres(server).await.map(|_| None)?,
    })
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn unsettled(inbox: Inbox) -> anyhow::Result<u64> {
    Ok(inbox.stats().await?.unsettled())
}

fn say(what: &str, text: impl fmt::Display) -> io::Result<()> {
    writeln!(io::stdout(), "{what:11}  {text}")
}
