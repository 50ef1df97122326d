//! Reads the files of secrets and senders again when they change, and on SIGHUP.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Bytes, HttpBody};
use axum::extract::Request;
use axum::http::Response;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tower::{BoxError, Service, ServiceExt, service_fn};
use tower_webhook::{ConfigError, Secrets, Sender};

use crate::route::Route;
use crate::senders::Which;
use crate::text::chain;

/// How often the files are looked at.
const EVERY: Duration = Duration::from_secs(2);

/// Replaces the sender and the secrets of a route.
pub(crate) type Reload = Box<dyn Fn(Sender, Secrets) -> Result<(), ConfigError> + Send + Sync>;

/// Serves a route with a service that can be replaced.
pub(crate) fn mount<S, B>(
    app: Router,
    path: &str,
    service: S,
    with_sender: fn(&S, Sender, Secrets) -> Result<S, ConfigError>,
) -> (Router, Reload)
where
    S: Service<Request, Response = Response<B>, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let current = Arc::new(RwLock::new(service));
    let serving = Arc::clone(&current);
    let service = service_fn(move |request: Request| {
        let current = serving.read().unwrap_or_else(PoisonError::into_inner);
        current.clone().oneshot(request)
    });
    let reload = move |sender, secrets| {
        let mut current = current.write().unwrap_or_else(PoisonError::into_inner);
        *current = with_sender(&current, sender, secrets)?;
        Ok(())
    };
    (app.route_service(path, service), Box::new(reload))
}

/// The files of a route, and what was last read.
#[derive(Clone)]
pub(crate) struct Files {
    paths: Vec<PathBuf>,
    read: Vec<Option<Stamp>>,
    /// At the last look.
    seen: Vec<Option<Stamp>>,
}

/// What changes with a file, behind all symlinks: Kubernetes leads one of them to another directory.
#[derive(Clone, Copy, PartialEq)]
struct Stamp {
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Files {
    /// Notes the files before they are read.
    pub(crate) fn of(secret_file: Option<&Path>, which: &Which) -> Self {
        let paths = secret_file.into_iter().chain(which.files());
        let paths: Vec<_> = paths.map(Path::to_owned).collect();
        let stamps = stamps(&paths);
        Self {
            paths,
            read: stamps.clone(),
            seen: stamps,
        }
    }

    /// Whether the files have changed since they were read, but not since the last look. A file that is being written
    /// may have half a secret.
    fn have_changed(&mut self) -> bool {
        let now = stamps(&self.paths);
        let have_settled = now == self.seen;
        self.seen.clone_from(&now);
        have_settled && now != self.read
    }

    fn note(&mut self) {
        self.read = stamps(&self.paths);
        self.seen.clone_from(&self.read);
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let file = fs::metadata(path).ok()?;
        Some(Stamp {
            file: (file.dev(), file.ino()),
            length: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    };
    paths.iter().map(stamp).collect()
}

/// Reads the files of a route again when they have changed, and those of all routes on SIGHUP.
pub(crate) fn watch(routes: Arc<Vec<(Route, Reload)>>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut files: Vec<_> = routes
        .iter()
        .map(|(route, _)| route.files.clone())
        .collect();
    tokio::spawn(async move {
        let mut look = interval(EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_asked = tokio::select! {
                Some(()) = hangup.recv() => true,
                _ = look.tick() => false,
            };
            for ((route, reload), files) in routes.iter().zip(&mut files) {
                if is_asked || files.have_changed() {
                    files.note();
                    again(route, reload);
                }
            }
        }
    });
    Ok(())
}

/// Replaces both or neither.
fn again(route: &Route, reload: &Reload) {
    let path = route.path.as_str();
    let what = match (route.which.is_reread(), &route.secret_file) {
        (false, None) => {
            tracing::warn!("there is no `--secret-file` to reload");
            return;
        }
        (false, Some(_)) => "the secrets",
        (true, Some(_)) => "the secrets and the sender",
        (true, None) => "the sender",
    };
    match read(route, reload) {
        Ok(secrets) => tracing::info!(
            path,
            file = route
                .secret_file
                .as_ref()
                .map(|it| tracing::field::display(it.display())),
            secrets = secrets.labels().len(),
            labels = secrets.labels().join(","),
            "{what} were reloaded"
        ),
        Err(error) => tracing::error!(
            path,
            reason = chain(error.as_ref()),
            "{what} could not be reloaded and are unchanged"
        ),
    }
}

fn read(route: &Route, reload: &Reload) -> anyhow::Result<Secrets> {
    let secrets = route.secrets.clone();
    let secrets = secrets.context("deliveries are not verified")?;
    let sender = match route.which.is_reread() {
        true => route.which.read()?,
        false => route.sender.clone(),
    };
    if let Some(file) = &route.secret_file {
        // Read once: a second reading could fail, or find others.
        let new = Secrets::from_file(file)?;
        // Refuses what is wrong before anything is changed.
        reload(sender.clone(), new.clone())?;
        // A body that is arriving is verified with the new ones, too.
        secrets.replace(new)?;
    }
    reload(sender, secrets.clone())?;
    Ok(secrets)
}
