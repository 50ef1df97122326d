//! The routes of a receiver: one from the options, or several from a file.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use axum::http::Uri;
use tower_webhook::{EventKind, RouteName, Secrets, Sender};

use crate::args::{OnFailure, Options, RETRY_FOR};
use crate::cli::misused;
use crate::config;
use crate::kinds;
use crate::place::Place;
use crate::reload::Files;
use crate::secrets::secrets;
use crate::senders::Which;

/// A path that one sender delivers to.
pub(crate) struct Route {
    pub(crate) path: String,
    pub(crate) which: Which,
    pub(crate) sender: Sender,
    /// Without any, nothing is verified.
    pub(crate) secrets: Option<Secrets>,
    pub(crate) secret_file: Option<PathBuf>,
    /// Whether equal bodies under different keys are different events, whatever the sender's description says.
    pub(crate) equal_bodies: bool,
    /// What is read again when it changes.
    pub(crate) files: Files,
    pub(crate) name: RouteName,
    /// The kinds that are kept: all without any.
    pub(crate) keep_only: Vec<EventKind>,
    pub(crate) place: Place,
    pub(crate) is_inbox: bool,
    pub(crate) exec: Option<String>,
    pub(crate) forward: Option<Uri>,
}

impl Route {
    /// Whether it keeps its events where another does.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.is_inbox == other.is_inbox && self.place.identity() == other.place.identity()
    }

    pub(crate) fn action(&self) -> &'static str {
        match (&self.exec, &self.forward) {
            (Some(_), _) => "exec",
            (None, Some(_)) => "forward",
            (None, None) => "print",
        }
    }
}

/// Returns the routes. Exits if they cannot be served together.
pub(crate) fn routes(args: &Options) -> Vec<Route> {
    let routes = match &args.listening.config {
        None => vec![of_options(args)],
        Some(file) => {
            let routes = config::routes(file, args).and_then(|routes| {
                check(&routes, args)?;
                Ok(routes)
            });
            let name = file.display();
            routes.unwrap_or_else(|error| misused(format!("`{name}`: {error}")))
        }
    };
    check_types(args, &routes);
    let mut routes_that_print = routes.iter().filter(|it| it.action() == "print");
    if let Some(route) = routes_that_print.next().filter(|_| args.handling.quiet) {
        misused(format!(
            "`--quiet` is for events that a command (`--exec`) or a server (`--forward`) handles, and those of `{}` are handled \
             by being printed",
            route.path
        ));
    }
    routes
}

/// Exits if an event type is expected at another route. Warns of kinds to expect, or to keep, that the platform does not
/// have. Those of other senders are not known.
fn check_types(args: &Options, routes: &[Route]) {
    let unknown = |kind| kinds::unknown(kind, BTreeSet::new());
    for (of, _) in &args.monitoring.expect {
        let Some(route) = routes.iter().find(|route| route.name == of.route) else {
            let names: Vec<_> = routes.iter().map(|it| format!("`{}`", it.name)).collect();
            misused(format!(
                "`--expect` names the type `{of}` of the route `{}`, and the receiver has {}: write the name of a route in \
                 front of the type, such as `{}/{}`",
                of.route,
                names.join(", "),
                routes[0].name,
                of.kind
            ))
        };
        if let Some(unknown) = unknown(&of.kind).filter(|_| route.which.is_platform()) {
            tracing::warn!("--expect: {unknown}");
        }
    }
    for route in routes.iter().filter(|route| route.which.is_platform()) {
        for unknown in route.keep_only.iter().filter_map(unknown) {
            tracing::warn!(path = route.path, "--keep-only: {unknown}");
        }
    }
}

fn of_options(args: &Options) -> Route {
    let which = args.listening.which.clone();
    let files = Files::of(args.secrets.secret_file.as_deref(), &which);
    let sender = which.sender();
    let given = args.kept.name.clone();
    let (place, is_inbox) = place(args);
    // Last, so that what is wrong in the other options is said first.
    let secrets = secrets(args);
    Route {
        path: args.listening.path.clone(),
        name: given.unwrap_or_else(|| default_name(&sender)),
        keep_only: args.kept.keep_only.clone(),
        which,
        sender,
        secrets,
        secret_file: args.secrets.secret_file.clone(),
        equal_bodies: args.secrets.equal_bodies,
        files,
        place,
        is_inbox,
        exec: args.handling.exec.clone(),
        forward: args.handling.forward.clone(),
    }
}

/// The name of a sender can be that of a route.
pub(crate) fn default_name(sender: &Sender) -> RouteName {
    sender.name().parse().unwrap_or_default()
}

/// Where keys or events are kept by the options, and whether that is an inbox.
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

/// Whether the routes can be served together.
fn check(routes: &[Route], args: &Options) -> Result<(), String> {
    let mut paths = HashMap::new();
    let mut names = HashMap::new();
    for (index, route) in routes.iter().enumerate() {
        let (number, path) = (index + 1, &route.path);
        if let Some(other) = paths.insert(path, number) {
            return Err(format!(
                "the routes {other} and {number} have the same `path`, `{path}`"
            ));
        }
        let name = &route.name;
        // Two URLs of a server may be one.
        let place = match &route.place {
            place if place.is_server() => String::new(),
            place => place.identity(),
        };
        if let Some(other) = names.insert((place, name), path) {
            return Err(format!(
                "the routes `{other}` and `{path}` have the same name, `{name}`, in {}: keys of one would be duplicates for \
                 the other, so set another `name`",
                route.place
            ));
        }
    }
    let handling = &args.handling;
    let rules = [
        ("keep-header", !args.kept.keep_header.is_empty()),
        ("retry-for", handling.retry_for != RETRY_FOR),
        ("on-failure", handling.on_failure != OnFailure::Block),
    ];
    if let Some((rule, _)) = rules.iter().find(|(_, is_given)| *is_given)
        && !routes.iter().any(|route| route.is_inbox)
    {
        return Err(format!(
            "`--{rule}` is for an `inbox`, and no route has one"
        ));
    }
    Ok(())
}
