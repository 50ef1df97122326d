//! Leases: their fences, their extension, and rivals for one.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::make::lane;
use super::steps::{Trial, joined, lasted, ok};
use super::{HELD, Harness, SHORT};
use tower_webhook::inbox::Change;
use tower_webhook::inbox::internal::{EventLease, Settled, Settlement, TakenEvent};
use tower_webhook::store::Fence;

use support::queue::Calls;

/// Only its own fence ends an attempt: a fence that was never used does not, nor does that of another event. No two
/// attempts have the same fence.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn fences_protect<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let mut fences = HashSet::new();
    let mut remember = |taken: &TakenEvent| {
        let Fence(fence) = taken.lease.fence;
        assert!(fences.insert(fence), "a fence was used twice: {fence}");
    };
    let taken = trial.taken(trial.in_lane(lane()), HELD).await;
    let other = trial.taken(trial.in_lane(lane()), HELD).await;
    let Fence(fence) = taken.lease.fence;
    let other_fence = other.lease.fence;
    for foreign in [
        other_fence,
        Fence(0),
        Fence(!fence),
        Fence(fence.wrapping_add(1)),
        Fence(fence ^ (1 << 127)),
        Fence(fence ^ (1 << 64)),
    ] {
        let forged = EventLease {
            fence: foreign,
            ..taken.lease
        };
        trial
            .refuses(&forged, "an attempt by a foreign fence")
            .await;
    }
    trial.settle(&taken, &Settlement::Handled).await;
    trial.settle(&other, &Settlement::Handled).await;
    [&taken, &other].into_iter().for_each(&mut remember);

    let lane = lane();
    let mut taken = trial.taken(trial.in_lane(lane), HELD).await;
    for round in 0..12 {
        remember(&taken);
        let id = taken.lease.id;
        taken = match round % 4 {
            0 => {
                let next = trial.accept(trial.in_lane(lane)).await;
                trial.hands_over(&taken, &Settlement::Handled, next).await
            }
            1 => {
                trial.settle(&taken, &Settlement::Released).await;
                trial.claims(id, SHORT, "an event that was released").await
            }
            2 => trial.claims(id, HELD, "an event whose lease expired").await,
            _ => {
                trial.settle(&taken, &Settlement::Handled).await;
                trial
                    .redrive(id, Change::Made, "an event that was handled")
                    .await;
                trial.claims(id, HELD, "an event that was redriven").await
            }
        };
        if round % 4 == 3 {
            trial.settle(&taken, &Settlement::Handled).await;
            remember(&taken);
            taken = trial.taken(trial.in_lane(lane), HELD).await;
        }
    }
}

/// An extended lease lasts for the given time from then on, whether that is longer or shorter than its rest. The result
/// says for each lease, in their order, whether it was still held.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn leases_are_extended<H: Harness>(harness: &H) {
    let trial = Trial::open(harness).await;
    let other = &trial.handles(harness, 1).await[0];
    assert!(
        trial.extend(&[], HELD).await.is_empty(),
        "the result for no leases"
    );

    let brief = 5 * SHORT;
    let longer = trial.taken(trial.in_lane(lane()), brief).await;
    let ended = trial.taken(trial.event(), HELD).await;
    let alone = trial.taken(trial.event(), brief).await;
    trial.settle(&ended, &Settlement::Handled).await;
    let leases = [ended.lease, longer.lease, ended.lease, alone.lease];
    assert_eq!(
        other.extend(&leases, HELD).await,
        [false, true, false, true],
        "which leases were held"
    );
    sleep(brief + SHORT).await;
    other.nothing("the leases were extended").await;
    let leases = [alone.lease, longer.lease];
    assert_eq!(
        trial.extend(&leases, HELD).await,
        [true, true],
        "which leases were held"
    );
    trial.settle(&longer, &Settlement::Handled).await;

    let began = Instant::now();
    assert_eq!(
        trial.extend(&[alone.lease], SHORT).await,
        [true],
        "whether a lease was held"
    );
    let again = other
        .claims(
            alone.lease.id,
            HELD,
            "an event whose lease was extended and expired",
        )
        .await;
    lasted(began, "a lease that was extended");
    assert_eq!(
        again.crashes, 1,
        "crashes after a lease that was extended expired"
    );
    trial
        .refuses(&alone.lease, "an attempt whose event was taken again")
        .await;
    other.settle(&again, &Settlement::Handled).await;
}

/// When many calls end one attempt at the same time, over several handles, exactly one succeeds, and the lane's next
/// event is taken once. When the lease has expired and others claim the event, the attempt either ends, or the event is
/// taken again.
///
/// # Panics
///
/// When the rule is broken, or the queue fails.
pub(crate) async fn one_end_wins<H: Harness>(harness: &H) {
    const RIVALS: usize = 24;

    let trial = Trial::open(harness).await;
    let handles = trial.handles(harness, 4).await;
    for is_expired in [false, true] {
        let lane = lane();
        let event = trial.in_lane(lane);
        let taken = match is_expired {
            false => trial.taken(event, HELD).await,
            true => trial.expired(event).await,
        };
        let next = trial.accept(trial.in_lane(lane)).await;
        let lease = taken.lease;
        let rivals = (0..RIVALS).map(|at| {
            let handle = Arc::clone(&handles[at % handles.len()]);
            tokio::spawn(async move {
                if is_expired && at % 3 != 0 {
                    return (false, handle.try_claim(HELD).await);
                }
                let take = handle.take(HELD);
                let ending = Settlement::Handled;
                let settled = handle.queue.settle(&lease, &ending, Some(&take)).await;
                match ok(settled, "settle") {
                    Settled::Ended(next) => (true, next.map(|next| *next)),
                    Settled::Lost => (false, None),
                }
            })
        });
        let results = joined(rivals.collect()).await;
        let ended = results.iter().filter(|(ended, _)| *ended).count();
        let taken: Vec<_> = results
            .iter()
            .filter_map(|(_, taken)| taken.as_ref())
            .collect();
        let ids: Vec<_> = taken.iter().map(|taken| taken.lease.id).collect();
        match ended {
            1 => assert_eq!(
                ids,
                [next],
                "events that were taken when the attempt had ended"
            ),
            0 if is_expired => {
                assert_eq!(
                    ids,
                    [lease.id],
                    "events that were taken when the lease had expired"
                );
                assert_eq!(taken[0].crashes, 1, "crashes after a lease expired");
            }
            _ => panic!("of {RIVALS} ends of one attempt at one time, {ended} were made"),
        }
        trial.nothing("the lane is busy").await;
        for taken in taken {
            trial.settle(taken, &Settlement::Handled).await;
        }
        if ended == 0 {
            let next = trial.claims(next, HELD, "the next event of the lane").await;
            trial.settle(&next, &Settlement::Handled).await;
        }
    }
}
