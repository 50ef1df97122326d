//! Runs the receiver until it is stopped.

use std::env;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal as OsSignal;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use crate::activity;
use crate::app::{self, Built, Setup};
use crate::args::Options;
use crate::cli::misused;
use crate::connections::{Connections, bind};
#[cfg(feature = "console")]
use crate::console;
use crate::demo;
use crate::handling::Handling;
use crate::log::say;
use crate::output::Output;
use crate::reload::{Reload, watch};
use crate::route::{Route, routes};
use crate::store::{self, Place};
use crate::telemetry::Telemetry;

/// Pipes, and the process itself.
const FILES_OF_A_COMMAND: usize = 8;

pub(crate) async fn run(args: &Options) -> anyhow::Result<ExitCode> {
    // Beyond a limit on the size of files, SQLite gets an error, as on a full disk. Without a handler, this signal ends
    // the process.
    drop(signal(SignalKind::from_raw(OsSignal::SIGXFSZ as i32))?);
    let routes = routes(args);
    let output = Output::start().context("the thread for standard output cannot be started")?;
    let output = Arc::new(output);
    refuse_missing(args);
    let setup = Setup {
        args,
        output: &output,
        telemetry: Telemetry::start(args).await?,
    };
    let Built {
        app,
        handling,
        routes,
        #[cfg(feature = "console")]
        consoles,
    } = app::build(&setup, routes).await?;
    #[cfg(feature = "console")]
    if let Some(address) = args.console.console {
        console::serve(consoles, address, args)?;
    }

    let stop = Stop::new()?;
    let routes = Arc::new(routes);
    watch(Arc::clone(&routes))?;
    let listener = bind(args.listening.listen, "--listen 127.0.0.1:3001")?;
    let address = listener.local_addr()?;
    let limits = connection_limits(args, routes.len())?;
    for (route, _) in &*routes {
        say(format_args!("listening on http://{address}{}", route.path));
        announce(args, route, limits.max_connections);
    }
    warn(args, &routes);
    if args.secrets.demo {
        let program = env::args().next().unwrap_or("receiver".to_owned());
        let which = args.listening.which.options();
        let url = format!("http://{address}{}", args.listening.path);
        say(format_args!(
            "anybody knows the secret of `--demo`; send a first event with\n\n  \
             {program} send --url {url} --secret {}{which}\n",
            demo::SECRET
        ));
    }
    serve(
        listener,
        Connections::new("webhooks", app, limits),
        handling,
        stop,
        &output,
        Duration::from_secs(args.handling.grace),
    )
    .await;
    Ok(ExitCode::SUCCESS)
}

/// Exits if this build lacks what an option asks for.
pub(crate) fn refuse_missing(args: &Options) {
    let missing = [
        (
            args.console.console.is_some() && !cfg!(feature = "console"),
            "the console",
            "console,sqlite",
        ),
        (
            args.kept.spool.is_some() && !cfg!(all(feature = "postgres", feature = "sqlite")),
            "a spool",
            "postgres,sqlite",
        ),
        (
            args.monitoring.metrics.is_some() && !cfg!(feature = "metrics"),
            "metrics",
            "metrics",
        ),
    ];
    for (is_missing, what, features) in missing {
        if is_missing {
            misused(store::rebuilt(what, features));
        }
    }
}

/// Warns of what an operator may not expect.
fn warn(args: &Options, routes: &[(Route, Reload)]) {
    if args.secrets.dangerously_unsigned {
        tracing::warn!(
            "deliveries are not verified: anybody who reaches this address can make events up"
        );
    }
    if args.secrets.learn_secret {
        tracing::warn!(
            "the first secret that anybody brings to this address is kept: leave out `--learn-secret` once one was learned"
        );
    }
    let any = |is_so: fn(&Route) -> bool| routes.iter().any(|(route, _)| is_so(route));
    if any(|route| route.exec.is_some()) && std::process::id() == 1 {
        tracing::warn!(
            "this process is the first one of its container, where each `--exec` leaves an ended process behind: start \
             the container with an init process, such as `docker run --init`"
        );
    }
    if any(|route| matches!(route.place, Place::Memory)) && !args.secrets.demo {
        tracing::warn!(
            "keys are kept in memory: after a restart, an event that the platform retries is handled \
             again; `--store` names a store that lasts"
        );
    }
}

/// Logs the settings that decide what happens to an event.
fn announce(args: &Options, route: &Route, max_connections: usize) {
    let limits = args.handling.of_events();
    let (max_body, max_buffered) = args.limits.of_bodies(&route.sender);
    tracing::info!(
        path = route.path,
        inbox = route.is_inbox.then(|| display(&route.place)),
        store = (!route.is_inbox).then(|| display(&route.place)),
        sender = route.sender.name(),
        route = %route.name,
        keep_only = (!route.keep_only.is_empty()).then(|| debug(&route.keep_only)),
        action = route.action(),
        concurrency = limits.concurrency,
        max_attempts = limits.max_attempts,
        handler_timeout = ?limits.time,
        lease = ?Duration::from_secs(args.kept.lease),
        max_connections,
        max_body,
        max_buffered,
        "the receiver has started"
    );
}

/// Serves until a signal arrives, then waits for the running events.
async fn serve(
    listener: TcpListener,
    connections: Connections,
    handling: Handling,
    mut stop: Stop,
    output: &Output,
    grace: Duration,
) {
    tokio::select! {
        never = connections.accept(&listener) => match never {},
        () = stop.requested() => {}
    }
    drop(listener);

    tracing::info!("stopping after the running events have finished");
    let rest = handling.rest();
    let cut = async {
        tokio::select! {
            () = sleep(grace) => "stopped at the deadline",
            () = stop.requested() => "stopped at once",
        }
    };
    let cut = cut.shared();
    // A worker begins nothing any more, while connections still store events.
    let (closing, draining) = tokio::join!(
        unless(cut.clone(), connections.shutdown()),
        handling.drain(cut.clone()),
    );
    // Runs may have been detached meanwhile.
    let detached = handling.drain(cut.clone()).await;
    let mut cut_short = closing.or(draining).or(detached);
    #[cfg(all(feature = "postgres", feature = "sqlite"))]
    handling.flush(cut.clone()).await;
    if cut_short.is_none() {
        cut_short = unless(cut, output.flush()).await;
    }
    match cut_short {
        None => tracing::info!("stopped"),
        Some(why) => tracing::warn!("{why}: {rest}"),
    }
}

/// Waits until `end` is ready, or `cut`, whose output is returned then.
async fn unless<T>(cut: impl Future<Output = T>, end: impl Future<Output = ()>) -> Option<T> {
    tokio::select! {
        () = end => None,
        why = cut => Some(why),
    }
}

/// The signals that stop the receiver: SIGTERM and Ctrl-C.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Returns the limits of connections, which must leave files for commands and the store.
pub(crate) fn connection_limits(args: &Options, routes: usize) -> anyhow::Result<activity::Limits> {
    let mut limits = args.limits.of_connections();
    let (files, _) =
        getrlimit(Resource::RLIMIT_NOFILE).context("the limit of open files is unknown")?;
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let listeners = usize::from(args.console.console.is_some())
        + usize::from(args.monitoring.metrics.is_some());
    let others = 64
        + listeners * activity::Limits::FEW.max_connections
        + FILES_OF_A_COMMAND
            .saturating_mul(args.handling.of_events().concurrency)
            .saturating_mul(routes);
    let most = files.saturating_sub(others).max(files / 2).max(1);
    if limits.max_connections > most {
        tracing::warn!(
            max_connections = most,
            "`--max-connections` was lowered, because only {files} files may be open: see `ulimit -n`"
        );
        limits.max_connections = most;
    }
    Ok(limits)
}
