//! The test suite that every [`Queue`] must pass. [`run`] takes a [`Harness`] that opens handles on the queue.
//!
//! # Time
//!
//! The suite waits with [`tokio::time`], for about ten seconds altogether. A queue that uses that clock, as the one in
//! memory does, may be tested in paused time; a queue with a server may not. On a slow machine, the suite passes as
//! long as a handful of operations takes less than two seconds.
//!
//! # Data
//!
//! Every rule uses kinds, keys, chats and lanes that were never used before, so it may run against a queue that holds
//! other events. It leaves events behind, some of them unsettled. The rules of [`run_alone`] affect other events, too:
//! they pause everything, and delete the bodies of all events that were handled. So run the suite against a separate
//! queue.

mod accept;
mod actions;
mod alone;
mod attempts;
mod batches;
mod bulk;
mod causes;
mod changes;
mod counts;
mod crashes;
mod endings;
mod handlers;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod inline;
mod kept;
mod lanes;
mod leases;
mod make;
mod records;
mod routes;
mod steps;
mod views;
mod workers;

use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;

pub(crate) use self::accept::{
    abandoned_accepts_lose_nothing, accepted_events_are_taken, bodies_are_guarded,
    deliveries_return_unchanged, events_arrive_dead, keys_are_accepted_once, keys_are_remembered,
    one_accept_wins,
};
pub(crate) use self::actions::{actions_are_forgotten, changes_are_recorded, pauses_are_recorded};
pub(crate) use self::alone::{
    bodies_are_deleted, failures_are_forgotten, kinds_end_with_their_events, numbers_are_used_once,
    pause_stops_everything, size_grows,
};
pub(crate) use self::attempts::{
    delays_are_kept, durations_have_no_limits, failures_are_counted, failures_are_listed,
    first_due_is_taken_first, wanted_events_are_taken,
};
pub(crate) use self::batches::{
    claims_are_limited_by_bytes, first_items_are_taken, items_are_accepted_once, items_are_events,
    largest_batches_are_accepted, refused_batches_leave_nothing, unreadable_items_are_dead,
};
pub(crate) use self::bulk::{
    bulk_changes_are_cancelled, steps_change_events_in_every_place,
    steps_lead_on_from_their_positions,
};
pub(crate) use self::causes::causes_are_grouped;
pub(crate) use self::changes::{
    chats_are_forgotten, chats_are_forgotten_in_steps, handles_share_everything,
    redriven_events_stand_in_no_line, retried_events_are_redriven_in_place,
    settled_events_are_redriven, unsettled_events_are_discarded,
};
pub(crate) use self::counts::{
    counts_of_processes_add_up, newest_counts_come_first, old_counts_are_put_together,
    samples_are_forgotten,
};
pub(crate) use self::crashes::{
    crashes_are_counted, nothing_ends_with_its_handle, suspects_are_limited, suspects_come_first,
};
pub(crate) use self::endings::{
    abandoned_settlements_lose_nothing, attempts_end_once, changes_by_hand_end_attempts,
    expired_attempts_may_end, late_finishers_change_nothing,
};
pub(crate) use self::handlers::{
    absence_is_counted_while_others_are_there, handlers_are_noted, handlers_are_retired,
};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::inline::{
    batches_wait_for_what_is_handled_inline, full_inboxes_know_what_was_handled_inline,
};
pub(crate) use self::kept::other_kinds_leave_nothing;
pub(crate) use self::lanes::{
    dead_letters_free_or_hold_lanes, kinds_that_are_left_hold_lanes, lanes_are_independent,
    lanes_keep_their_order, retries_keep_their_place, skipped_events_return,
};
pub(crate) use self::leases::{fences_protect, leases_are_extended, one_end_wins};
pub(crate) use self::records::{
    blocked_lanes_are_listed, bodies_are_found, changes_compare_the_state,
    chats_are_listed_without_a_search, errors_are_found, failures_are_found_by_time,
    failures_keep_their_durations, headers_are_kept, last_failures_are_shown, searches_end_in_time,
};
pub(crate) use self::routes::{
    chats_of_other_routes_block_nothing, claims_are_shared, claims_are_shared_by_kinds,
    pauses_are_for_their_routes, routes_are_apart, routes_have_their_leases,
};
use self::steps::named;
pub(crate) use self::views::{
    events_are_counted, events_are_found_by_key, lists_are_complete, paused_kinds_wait,
};
pub(crate) use self::workers::{lanes_run_one_at_a_time, no_lane_starves_another};
use tower_webhook::inbox::Queue;
use tower_webhook::memory::MemoryQueue;

#[cfg(feature = "postgres")]
use support::database::Database;
#[cfg(feature = "sqlite")]
use support::scratch::Scratch;

/// A lease, a delay, or a retention, whose end is waited for.
const SHORT: Duration = Duration::from_millis(400);

/// A lease, or a delay, that must not end while a rule works with it.
const HELD: Duration = Duration::from_secs(60);

/// A retention that must not end.
const RETAIN: Duration = Duration::from_secs(24 * 60 * 60);

/// How late a queue may notice that something ended, before that counts as never.
const PATIENCE: Duration = Duration::from_secs(15);

/// How far the queue's clock may run ahead of ours while we wait for `SHORT`, rounding included.
const DRIFT: Duration = Duration::from_millis(50);

/// How many accepts compete for one key.
const RIVALS: usize = 64;

/// How many rules run at once. Each has a few handles, and each of those may have connections.
const AT_ONCE: usize = 8;

/// Opens handles on the queue under test.
pub(crate) trait Harness: Sync {
    /// Opens a handle on the same data as all other handles of this harness. It is as independent of them as the queue
    /// allows: another connection, if the queue has connections.
    fn open(&self) -> impl Future<Output = Queue> + Send;
}

impl Harness for MemoryQueue {
    async fn open(&self) -> Queue {
        self.clone().into()
    }
}

#[cfg(feature = "postgres")]
impl Harness for Database {
    async fn open(&self) -> Queue {
        self.queue().await.into()
    }
}

#[cfg(feature = "sqlite")]
impl Harness for Scratch {
    async fn open(&self) -> Queue {
        self.queue().into()
    }
}

/// A rule, whose future is made when it is run.
type Rule<H> = for<'a> fn(&'a H) -> BoxFuture<'a, ()>;

fn rule<H>(rule: Rule<H>) -> Rule<H> {
    rule
}

/// Runs rules one after another.
macro_rules! in_turn {
    ($harness:ident, $($rule:ident)*) => {$(
        named("queue", stringify!($rule), $rule($harness)).await;
    )*};
}

/// Runs every rule, several at the same time, and those of [`run_alone`] at the end.
///
/// # Panics
///
/// When a rule is broken, or the queue fails. The message names the rule.
pub(crate) async fn run<H: Harness>(harness: &H) {
    macro_rules! rules {
        ($($rule:ident)*) => {
            // Each is made in a frame of its own: the futures of all of them are more than a stack has.
            [$(rule::<H>(|harness| Box::pin(named("queue", stringify!($rule), $rule(harness))))),*]
        };
    }
    let rules = rules! {
        keys_are_accepted_once
        one_accept_wins
        bodies_are_guarded
        deliveries_return_unchanged
        accepted_events_are_taken
        events_arrive_dead
        items_are_events
        items_are_accepted_once
        refused_batches_leave_nothing
        first_items_are_taken
        unreadable_items_are_dead
        other_kinds_leave_nothing
        abandoned_accepts_lose_nothing
        lanes_keep_their_order
        lanes_run_one_at_a_time
        lanes_are_independent
        no_lane_starves_another
        retries_keep_their_place
        skipped_events_return
        dead_letters_free_or_hold_lanes
        kinds_that_are_left_hold_lanes
        routes_are_apart
        chats_of_other_routes_block_nothing
        pauses_are_for_their_routes
        claims_are_shared
        claims_are_shared_by_kinds
        routes_have_their_leases
        attempts_end_once
        expired_attempts_may_end
        late_finishers_change_nothing
        changes_by_hand_end_attempts
        fences_protect
        leases_are_extended
        one_end_wins
        abandoned_settlements_lose_nothing
        crashes_are_counted
        nothing_ends_with_its_handle
        suspects_are_limited
        suspects_come_first
        failures_are_counted
        failures_are_listed
        delays_are_kept
        first_due_is_taken_first
        wanted_events_are_taken
        durations_have_no_limits
        settled_events_are_redriven
        redriven_events_stand_in_no_line
        retried_events_are_redriven_in_place
        unsettled_events_are_discarded
        chats_are_forgotten
        lists_are_complete
        events_are_found_by_key
        events_are_counted
        paused_kinds_wait
        handles_share_everything
    };
    stream::iter(rules.map(|rule| rule(harness)))
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<()>>()
        .await;
    // They make many calls, which would delay the rules that measure time.
    in_turn! { harness,
        largest_batches_are_accepted
        claims_are_limited_by_bytes
        headers_are_kept
        last_failures_are_shown
        failures_keep_their_durations
        errors_are_found
        causes_are_grouped
        bodies_are_found
        failures_are_found_by_time
        searches_end_in_time
        chats_are_listed_without_a_search
        chats_are_forgotten_in_steps
        blocked_lanes_are_listed
        changes_compare_the_state
        changes_are_recorded
        pauses_are_recorded
        actions_are_forgotten
        steps_lead_on_from_their_positions
        bulk_changes_are_cancelled
        steps_change_events_in_every_place
        counts_of_processes_add_up
        newest_counts_come_first
        old_counts_are_put_together
        samples_are_forgotten
        handlers_are_noted
        absence_is_counted_while_others_are_there
        handlers_are_retired
    }
    run_alone(harness).await;
}

/// Runs the rules that affect all events of the queue, one after another.
///
/// # Panics
///
/// When a rule is broken, or the queue fails. The message names the rule.
pub(crate) async fn run_alone<H: Harness>(harness: &H) {
    in_turn! { harness,
        pause_stops_everything
        keys_are_remembered
        bodies_are_deleted
        failures_are_forgotten
        kinds_end_with_their_events
        numbers_are_used_once
        size_grows
    }
}
