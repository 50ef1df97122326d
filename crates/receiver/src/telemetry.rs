//! The failure budget, the silence watch, and metrics for Prometheus.

use std::sync::Arc;
use std::time::Duration;

use tower_webhook::EventType;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use tower_webhook::inbox::Inbox;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
use tower_webhook::spool::Spooled;
use tower_webhook::telemetry::{FailureBudget, Observer, Silence};
#[cfg(feature = "console")]
use tower_webhook_console::Console;

use crate::args::Options;
use crate::notices::Notices;
use crate::otlp::Otlp;

#[cfg(feature = "otlp")]
pub(crate) use self::metrics::buckets;

/// Sees every delivery and attempt.
pub(crate) struct Telemetry {
    observer: Arc<dyn Observer>,
    #[cfg(feature = "console")]
    budget: FailureBudget,
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    notices: Arc<Notices>,
    #[cfg(feature = "console")]
    silence: Silence,
    #[cfg(feature = "metrics")]
    server: Option<metrics::Server>,
}

impl Telemetry {
    /// Starts to watch for silence, and to serve metrics if that is asked for.
    pub(crate) async fn start(args: &Options, otlp: Option<&Otlp>) -> anyhow::Result<Self> {
        let silence = args
            .monitoring
            .expect
            .iter()
            .cloned()
            .fold(Silence::new().learn(), |silence, (of, within)| {
                silence.expect(of, within)
            });
        tokio::spawn(silence.clone().watch());
        let budget = FailureBudget::new();
        let notices = Notices::start(args, &budget, &silence);
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        let watches = Arc::clone(&notices);
        #[cfg(feature = "console")]
        let shown = silence.clone();
        #[cfg(feature = "metrics")]
        let server = metrics::Server::start(args, otlp, &budget, &silence).await?;
        #[cfg(not(feature = "metrics"))]
        let _ = otlp;
        #[cfg(feature = "metrics")]
        let observer = {
            let metrics = server
                .is_some()
                .then(tower_webhook::telemetry::Metrics::new);
            Arc::new((budget.clone(), silence, notices, metrics))
        };
        #[cfg(not(feature = "metrics"))]
        let observer = Arc::new((budget.clone(), silence, notices));
        Ok(Self {
            observer,
            #[cfg(feature = "console")]
            budget,
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            notices: watches,
            #[cfg(feature = "console")]
            silence: shown,
            #[cfg(feature = "metrics")]
            server,
        })
    }

    /// Sees all routes.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.observer)
    }

    /// Tells of a spool that is nearly full, or not emptied.
    #[cfg(all(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn watch_spool(&self, spool: Spooled) {
        self.notices.watch_spool(spool);
    }

    /// Tells of workers that cannot claim.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn watch_inbox(&self, inbox: Inbox) {
        self.notices.watch_inbox(inbox);
    }

    /// A console with what was seen of all routes.
    #[cfg(feature = "console")]
    pub(crate) fn console(&self) -> Console {
        let (budget, silence) = (self.budget.clone(), self.silence.clone());
        Console::new().budget(budget).silence(silence)
    }

    /// Calls `record` before each scrape.
    #[cfg(feature = "metrics")]
    pub(crate) fn before_scrapes<F>(&self, record: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(server) = &self.server {
            server.before_scrapes(record);
        }
    }
}

/// Parses `TYPE=HOURS`.
pub(crate) fn expected(text: &str) -> Result<(EventType, Duration), String> {
    let expected = || {
        let (of, hours) = text.split_once('=')?;
        let hours: u64 = hours
            .parse()
            .ok()
            .filter(|hours| (1..=8_760).contains(hours))?;
        Some((of.parse().ok()?, Duration::from_secs(hours * 60 * 60)))
    };
    expected().ok_or_else(|| {
        "use an event type and a number of hours up to 8760, such as message-created=4 or github/push=4".to_owned()
    })
}

#[cfg(feature = "metrics")]
mod metrics {
    use std::future::Future;
    use std::net::SocketAddr;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    use ::metrics::describe_counter;
    use anyhow::Context;
    use axum::Router;
    use axum::extract::{Request, State};
    use axum::http::StatusCode;
    use axum::http::header::{CONTENT_TYPE, HOST};
    use axum::middleware::{self, Next};
    use axum::response::{IntoResponse, Response};
    use axum::routing::get;
    use metrics_exporter_prometheus::{
        Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
    };
    use tokio::time::{sleep, timeout};
    use tower_webhook::telemetry::{FailureBudget, Silence};

    use crate::activity::Limits;
    use crate::args::Options;
    use crate::connections::Connections;
    use crate::listen::bind;
    use crate::otlp::Otlp;
    use crate::refusals::Refusals;
    use crate::{host, process};

    /// The server of `/metrics`.
    pub(crate) struct Server {
        sources: Arc<Mutex<Vec<Source>>>,
    }

    type Source = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

    /// The buckets of durations, in seconds. A sender gives up after some seconds.
    const SECONDS: [f64; 17] = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0,
        10.0, 30.0,
    ];

    /// The name of the delays.
    const DELAY: &str = "webhook_start_delay_seconds";

    /// Those of delays, which grow to days while a handler is down.
    const DELAYS: [f64; 17] = [
        0.001, 0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1_800.0, 3_600.0,
        21_600.0, 86_400.0, 259_200.0, 604_800.0,
    ];

    /// The time limit of what is recorded before a scrape, each.
    const LIMIT: Duration = Duration::from_secs(5);

    /// Has metrics recorded, and returns where those for Prometheus are.
    fn install(is_served: bool, otlp: Option<&Otlp>) -> anyhow::Result<Option<PrometheusHandle>> {
        let builder = PrometheusBuilder::new()
            .set_buckets(&SECONDS)?
            .set_buckets_for_metric(Matcher::Full(DELAY.to_owned()), &DELAYS)?;
        let prometheus = is_served.then(|| builder.build_recorder());
        let handle = prometheus.as_ref().map(PrometheusRecorder::handle);
        #[cfg(feature = "otlp")]
        if let Some(otlp) = otlp {
            let both = crate::recorder::Both::new(otlp.meter(), prometheus);
            ::metrics::set_global_recorder(both).context("metrics cannot be recorded")?;
            return Ok(handle);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = otlp;
        if let Some(prometheus) = prometheus {
            ::metrics::set_global_recorder(prometheus).context("metrics cannot be recorded")?;
        }
        Ok(handle)
    }

    impl Server {
        /// Has metrics recorded, and serves them, if that is asked for.
        pub(crate) async fn start(
            args: &Options,
            otlp: Option<&Otlp>,
            budget: &FailureBudget,
            silence: &Silence,
        ) -> anyhow::Result<Option<Self>> {
            let address = args.monitoring.metrics;
            if address.is_none() && otlp.is_none() {
                return Ok(None);
            }
            let prometheus = install(address.is_some(), otlp)?;
            let this = Self {
                sources: Arc::default(),
            };
            let (budget, silence) = (budget.clone(), silence.clone());
            this.before_scrapes(move || {
                budget.record_metrics();
                silence.record_metrics();
                process::record();
                std::future::ready(())
            });
            process::start();
            describe_counter!(
                "receiver_refusals_total",
                "Connections and requests that were refused before they were deliveries."
            );
            if otlp.is_some() {
                tokio::spawn(record_often(Arc::clone(&this.sources)));
            }
            if let (Some(address), Some(prometheus)) = (address, prometheus) {
                this.serve(address, prometheus, &args.monitoring.metrics_host)?;
            }
            Ok(Some(this))
        }

        fn serve(
            &self,
            address: SocketAddr,
            prometheus: PrometheusHandle,
            names: &[String],
        ) -> anyhow::Result<()> {
            let listener = bind(address, "--metrics 127.0.0.1:9465")?;
            let at = listener.local_addr()?;
            crate::log::say(format_args!("metrics on http://{at}/metrics"));
            tokio::spawn(upkeep(prometheus.clone()));
            let sources = Arc::clone(&self.sources);
            let scrape = move || scrape(Arc::clone(&sources), prometheus.clone());
            let names = Arc::from(names);
            let app = Router::new()
                .route("/metrics", get(scrape))
                .layer(middleware::from_fn_with_state(names, known_host));
            let connections = Connections::new(Refusals::new("metrics"), app, Limits::FEW);
            tokio::spawn(async move { connections.accept(listener, false).await });
            Ok(())
        }

        pub(crate) fn before_scrapes<F>(&self, record: impl Fn() -> F + Send + Sync + 'static)
        where
            F: Future<Output = ()> + Send + 'static,
        {
            lock(&self.sources).push(Box::new(move || Box::pin(record())));
        }
    }

    async fn known_host(
        State(names): State<Arc<[String]>>,
        request: Request,
        next: Next,
    ) -> Response {
        let host = request.headers().get(HOST);
        let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
        match host::is_known(host, &names) {
            true => next.run(request).await,
            false => {
                let reason =
                    "these metrics are not read under this host name: see `--metrics-host`\n";
                (StatusCode::MISDIRECTED_REQUEST, reason).into_response()
            }
        }
    }

    async fn scrape(
        sources: Arc<Mutex<Vec<Source>>>,
        prometheus: PrometheusHandle,
    ) -> ([(axum::http::HeaderName, &'static str); 1], String) {
        record(&sources).await;
        let text = "text/plain; version=0.0.4; charset=utf-8";
        ([(CONTENT_TYPE, text)], prometheus.render())
    }

    async fn record(sources: &Mutex<Vec<Source>>) {
        let recording: Vec<_> = lock(sources).iter().map(|record| record()).collect();
        for record in recording {
            if timeout(LIMIT, record).await.is_err() {
                tracing::warn!("some metrics were not recorded within {LIMIT:?}");
            }
        }
    }

    /// Nothing says when an export comes.
    async fn record_often(sources: Arc<Mutex<Vec<Source>>>) {
        const EVERY: Duration = Duration::from_secs(10);
        loop {
            record(&sources).await;
            sleep(EVERY).await;
        }
    }

    /// The buckets of a histogram.
    #[cfg(feature = "otlp")]
    pub(crate) fn buckets(name: &str) -> &'static [f64] {
        match name {
            DELAY => &DELAYS,
            _ => &SECONDS,
        }
    }

    /// Keeps memory bounded while nothing scrapes.
    async fn upkeep(prometheus: PrometheusHandle) {
        loop {
            sleep(Duration::from_secs(5)).await;
            prometheus.run_upkeep();
        }
    }

    fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
