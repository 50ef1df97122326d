//! Tells persons what a worker notices of its routes: events that nobody handles, and routes without events.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::sleep;

use super::super::records::LATE;
use super::pool::Pool;

/// The task that looks after the routes.
pub(super) async fn watch(pool: Arc<Pool>) {
    let mut told = BTreeSet::new();
    loop {
        sleep(LATE).await;
        unattended(&pool).await;
        for route in pool.shared.idle_routes() {
            if pool.place(&route).is_some() && told.insert(route.clone()) {
                tracing::warn!(
                    %route,
                    "this worker has had no event of the route since it was started: check that another process accepts its \
                     deliveries, under the same name"
                );
            }
        }
    }
}

/// Tells of routes whose events wait although other workers could have begun them.
async fn unattended(pool: &Pool) {
    // An error is reported by other calls.
    let Ok(stats) = pool
        .shared
        .call("stats", pool.shared.queue.count.stats())
        .await
    else {
        return;
    };
    for (route, waiting) in stats.unattended() {
        if pool.place(&route).is_none() {
            tracing::warn!(
                %route, waiting,
                "events of this route wait, and no worker seems to handle it: start one with a route of this name, or discard \
                 its events"
            );
        }
    }
}
