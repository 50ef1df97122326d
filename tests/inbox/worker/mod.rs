//! Accepting and handling, in paused time.

mod accepting;
mod attempts;
mod crashes;
mod credit;
mod order;
mod stopping;

use tower_webhook::inbox::{Filter, Inbox, Page};

/// The numbers of the events that match, in the order of the page.
async fn listed(inbox: &Inbox, filter: &Filter, page: Page) -> Vec<i64> {
    let listed = inbox.list(filter, page).await.unwrap();
    assert_eq!(listed.searched, None);
    listed.events.iter().map(|event| event.id.0).collect()
}
