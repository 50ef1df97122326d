//! Runs the receiver until it is stopped.

use std::env;
use std::io;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt;
use futures_util::future::join_all;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal as OsSignal;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tower_webhook::signature::Neighbours;

use crate::activity;
use crate::app::{self, Built, Setup};
use crate::args::Options;
use crate::cli::misused;
use crate::connections::Connections;
#[cfg(feature = "console")]
use crate::console;
use crate::demo;
use crate::doors;
use crate::handling::Handling;
use crate::learn;
use crate::listen::Listeners;
use crate::log::say;
use crate::otlp::Otlp;
use crate::output::Output;
use crate::place::Place;
use crate::ready::{self, Readiness};
use crate::refusals::Refusals;
use crate::reload::{Reload, watch};
use crate::route::{Route, routes};
use crate::store;
use crate::telemetry::Telemetry;
use crate::text::chain;

/// Pipes, and the process itself.
const FILES_OF_A_COMMAND: usize = 8;

/// `lent` are the sockets of systemd.
pub(crate) async fn run(
    args: &Options,
    lent: Vec<TcpListener>,
    otlp: Option<&Otlp>,
) -> anyhow::Result<ExitCode> {
    // Beyond a limit on the size of files, SQLite gets an error, as on a full disk. Without a handler, this signal ends
    // the process.
    drop(signal(SignalKind::from_raw(OsSignal::SIGXFSZ as i32))?);
    if let (true, Some(file)) = (args.secrets.learn_secret, &args.secrets.secret_file) {
        // Before it is looked at, so that this is no change of it.
        learn::create(file).unwrap_or_else(|error| misused(chain(&error)));
    }
    let routes = routes(args);
    let output = Output::start().context("the thread for standard output cannot be started")?;
    let output = Arc::new(output);
    refuse_missing(args);
    let setup = Setup {
        args,
        output: &output,
        telemetry: Telemetry::start(args, otlp).await?,
        neighbours: Neighbours::default(),
    };
    let Built {
        app,
        readiness,
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
    let readiness = Arc::new(readiness);
    let refusals = Refusals::new("webhooks");
    let paths: Vec<_> = routes.iter().map(|(route, _)| route.path.clone()).collect();
    let app = match otlp {
        Some(otlp) => otlp.traced(app, paths.clone()),
        None => app,
    };
    let app = doors::watch(ready::mount(app, &readiness), paths, Arc::clone(&refusals));
    let listeners = Listeners::open(lent, args.listening.listen)?;
    let addresses = listeners.addresses()?;
    let limits = connection_limits(args, routes.len())?;
    for (route, _) in &*routes {
        for address in &addresses {
            say(format_args!("listening on http://{address}{}", route.path));
        }
        announce(args, route, limits.max_connections);
    }
    if listeners.are_lent() {
        tracing::info!(
            "the sockets are systemd's, where connections wait while the receiver restarts"
        );
    }
    warn(args, &routes);
    if args.secrets.demo {
        let program = env::args().next().unwrap_or("receiver".to_owned());
        let which = args.listening.which.options();
        let url = format!("http://{}{}", addresses[0], args.listening.path);
        say(format_args!(
            "anybody knows the secret of `--demo`; send a first event with\n\n  \
             {program} send --url {url} --secret {}{which}\n",
            demo::SECRET
        ));
    }
    let serving = Serving {
        connections: Connections::new(refusals, app, limits),
        readiness,
        handling,
        output,
        drain_delay: Duration::from_secs(args.handling.drain_delay),
        grace: Duration::from_secs(args.handling.grace),
    };
    serving.serve(listeners, stop).await;
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
        (
            args.monitoring.otlp.is_some() && !cfg!(feature = "otlp"),
            "OTLP",
            "otlp",
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

/// A receiver that is served.
struct Serving {
    connections: Connections,
    readiness: Arc<Readiness>,
    handling: Handling,
    output: Arc<Output>,
    drain_delay: Duration,
    grace: Duration,
}

impl Serving {
    /// Serves until a signal arrives, then waits for the running events.
    async fn serve(self, listeners: Listeners, mut stop: Stop) {
        let (connections, handling) = (&self.connections, &self.handling);
        let are_lent = listeners.are_lent();
        let listeners = listeners.into_each();
        let accepting = listeners.map(|listener| connections.accept(listener, are_lent));
        let (_, is_cut) = tokio::join!(join_all(accepting), self.leave(&mut stop));

        tracing::info!("stopping after the running events have finished");
        let rest = handling.rest();
        let cut = async {
            if is_cut {
                return "stopped at once";
            }
            tokio::select! {
                () = sleep(self.grace) => "stopped at the deadline",
                () = stop.requested() => "stopped at once",
            }
        };
        let cut = cut.shared();
        // A worker begins nothing any more, while connections still store events.
        let (closing, draining) = tokio::join!(
            unless(cut.clone(), connections.shutdown()),
            handling.drain(cut.clone()),
        );
        // Runs may have been detached while connections were closed.
        let detached = handling.drain(cut.clone()).await;
        let mut cut_short = closing.or(draining).or(detached);
        #[cfg(all(feature = "postgres", feature = "sqlite"))]
        handling.flush(cut.clone()).await;
        if cut_short.is_none() {
            cut_short = unless(cut, self.output.flush()).await;
        }
        match cut_short {
            None => tracing::info!("stopped"),
            Some(why) => tracing::warn!("{why}: {rest}"),
        }
    }

    /// Waits for a signal and for the delay, and has no more connections accepted. Returns whether there was a second signal.
    async fn leave(&self, stop: &mut Stop) -> bool {
        stop.requested().await;
        self.readiness.stop();
        self.connections.leave();
        let mut is_cut = false;
        if !self.drain_delay.is_zero() {
            tracing::info!(
                drain_delay = ?self.drain_delay,
                "stopping: `/readyz` is answered with 503, and deliveries are accepted until the delay is over"
            );
            tokio::select! {
                () = sleep(self.drain_delay) => {}
                () = stop.requested() => is_cut = true,
            }
        }
        self.connections.close();
        is_cut
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
