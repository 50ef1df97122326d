//! Reads the files of secrets and senders again on SIGHUP.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Context;
use axum::Router;
use axum::body::{Bytes, HttpBody};
use axum::extract::Request;
use axum::http::Response;
use tokio::signal::unix::{SignalKind, signal};
use tower::{BoxError, Service, ServiceExt, service_fn};
use tower_webhook::{ConfigError, Secrets, Sender};

use crate::route::Route;
use crate::text::chain;

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

pub(crate) fn on_hangup(routes: Arc<Vec<(Route, Reload)>>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            for (route, reload) in &*routes {
                again(route, reload);
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
