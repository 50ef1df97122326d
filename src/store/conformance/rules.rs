//! The rules.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::time::{Instant, sleep};

use super::harness::{BRIEF, HELD, Harness, PATIENCE, RIVALS, SHORT};
use super::steps::{
    Keys, abandon, acquired, assert_free, attempt_is, done, ends, free_before_long, handles,
    in_flight, joined, named, ok, one_winner, refuses, unique,
};
use crate::store::{Claim, EventKey, Fence, KeyState, Lease, Store};

/// Runs every rule, all at once.
///
/// # Panics
///
/// When a rule is broken, or the store fails. The message names the rule.
pub async fn run<H: Harness>(harness: &H) {
    macro_rules! rules {
        ($($rule:ident)*) => {
            // At once, since a rule mostly waits, and no two rules use the same key.
            tokio::join!($(named("store", stringify!($rule), $rule(harness))),*);
        };
    }
    rules! {
        one_claim_wins
        no_claim_wins_after_completion
        claims_hold_until_settled
        peeking_changes_nothing
        bodies_are_compared
        fences_protect
        fences_never_repeat
        leases_end
        renewal_counts_from_now
        completion_is_remembered
        attempts_are_counted
        handles_share_everything
        keys_never_meet
        durations_have_no_limits
        abandoned_claims_end
    }
}

/// Of many claims on one key at one time, over several handles, exactly one is acquired and all
/// others find it in flight: when the key is new, when it was released, and when its lease ended.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn one_claim_wins<H: Harness>(harness: &H) {
    let handles = handles(harness, 4).await;
    let id = Keys::new("one claim wins").next();

    let first = one_winner(&handles, id, "a new key").await;
    ok(handles[0].release(&first).await, "release");

    let second = one_winner(&handles, id, "a released key").await;
    attempt_is(&second, 2, "after a release");
    let began = Instant::now();
    ok(handles[0].renew(&second, SHORT).await, "renew");
    ends(&*handles[0], &id, began, "a lease").await;

    let third = one_winner(&handles, id, "a key whose lease ended").await;
    attempt_is(&third, 3, "after a lease ended");
}

/// While a run completes, no other claim slips in between: claims find the key in flight, and from
/// some moment on done.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn no_claim_wins_after_completion<H: Harness>(harness: &H) {
    let handles = handles(harness, 4).await;
    let mut keys = Keys::new("no claim wins after completion");
    // The race is short: one round would rarely hit it.
    for _ in 0..64 {
        let id = keys.next();
        let lease = acquired(&*handles[0], &id, HELD, HELD).await;
        // One more for the completion, which races with the claims.
        let start = Arc::new(Barrier::new(handles.len() + 1));
        let rivals: Vec<_> = handles
            .iter()
            .cloned()
            .map(|store| {
                let start = Arc::clone(&start);
                tokio::spawn(async move {
                    start.wait().await;
                    loop {
                        match ok(store.claim(&id, HELD, HELD).await, "claim") {
                            // A single thread would otherwise never come to the completion.
                            Claim::InFlight { .. } => tokio::task::yield_now().await,
                            Claim::Done { .. } => break,
                            Claim::Acquired(_) => panic!("a key was claimed while it completed"),
                        }
                    }
                    match ok(store.claim(&id, HELD, HELD).await, "claim") {
                        Claim::Done { .. } => {}
                        other => panic!("a key that was done was not any more: {other:?}"),
                    }
                })
            })
            .collect();
        start.wait().await;
        ok(handles[0].complete(&lease, HELD).await, "complete");
        joined(rivals).await;
    }
}

/// A claim holds the key until it is released, which frees it at once, or completed. The time that
/// remains is more than nothing, at most the lease, and becomes less.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn claims_hold_until_settled<H: Harness>(harness: &H) {
    let store = harness.open().await;
    let mut keys = Keys::new("claims hold until settled");
    let id = keys.next();

    let first = acquired(&store, &id, HELD, HELD).await;
    assert_eq!(*first.id(), id, "a lease tells what was claimed");
    let before = in_flight(&store, &id).await;
    sleep(SHORT / 2).await;
    let after = in_flight(&store, &id).await;
    assert!(
        after < before,
        "the time that remains did not become less: {before:?}, then {after:?}"
    );

    ok(store.release(&first).await, "release");
    assert_free(&store, &id, "a released key").await;
    let second = acquired(&store, &id, HELD, HELD).await;
    ok(store.complete(&second, HELD).await, "complete");
    done(&store, &id).await;
}

/// Peeking returns the state that a claim would find, and does not change it.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn peeking_changes_nothing<H: Harness>(harness: &H) {
    let store = harness.open().await;
    let id = Keys::new("peeking changes nothing").next();

    assert_free(&store, &id, "a new key").await;
    assert_free(&store, &id, "a key that was peeked at").await;
    let first = acquired(&store, &id, HELD, HELD).await;
    attempt_is(&first, 1, "after peeking");

    in_flight(&store, &id).await;
    ok(store.renew(&first, HELD).await, "renew after peeking");
    ok(store.release(&first).await, "release after peeking");

    assert_free(&store, &id, "a released key").await;
    let began = Instant::now();
    let second = acquired(&store, &id, SHORT, HELD).await;
    attempt_is(&second, 2, "after peeking");
    // Peeks all the while, which must not extend the lease.
    ends(&store, &id, began, "a lease").await;

    let third = acquired(&store, &id, HELD, HELD).await;
    let began = Instant::now();
    ok(store.complete(&third, SHORT).await, "complete");
    ends(&store, &id, began, "the record of a completed key").await;
}

/// `same_body` compares with the body of the delivery that has the key, or was handled: not with
/// that of a run that failed before.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn bodies_are_compared<H: Harness>(harness: &H) {
    let store = harness.open().await;
    let mut keys = Keys::new("bodies are compared");
    let (id, other) = keys.two_bodies();

    // A body whose run failed must not be compared later.
    let failed = acquired(&store, &other, HELD, HELD).await;
    ok(store.release(&failed).await, "release");

    let lease = acquired(&store, &id, HELD, HELD).await;
    for (claimed, expected) in [(&id, true), (&other, false)] {
        match ok(store.claim(claimed, HELD, HELD).await, "claim") {
            Claim::InFlight { same_body, .. } => {
                assert_eq!(same_body, expected, "`same_body` of a key in flight");
            }
            claim => panic!("a key in flight was not found so: {claim:?}"),
        }
    }

    ok(store.complete(&lease, HELD).await, "complete");
    for (claimed, expected) in [(&id, true), (&other, false), (&id, true)] {
        match ok(store.claim(claimed, HELD, HELD).await, "claim") {
            Claim::Done { same_body } => {
                assert_eq!(same_body, expected, "`same_body` of a key that is done");
            }
            claim => panic!("a key that is done was not found so: {claim:?}"),
        }
    }
}

/// Renewing or settling with a fence that is not the key's is refused as
/// [`LeaseExpired`](crate::store::SettleError::LeaseExpired), and changes nothing: a fence that never was, that of an
/// earlier claim, and that of another key.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn fences_protect<H: Harness>(harness: &H) {
    let store = harness.open().await;
    let mut keys = Keys::new("fences protect");
    let (id, other) = (keys.next(), keys.next());

    let released = acquired(&store, &id, HELD, HELD).await;
    ok(store.release(&released).await, "release");
    refuses(&store, &released, "a lease that was released").await;
    assert_free(&store, &id, "a released key").await;

    let lease = acquired(&store, &id, HELD, HELD).await;
    let others = acquired(&store, &other, HELD, HELD).await;
    let Fence(fence) = lease.fence();
    for foreign in [
        released.fence(),
        others.fence(),
        Fence(!fence),
        Fence(fence.wrapping_add(1)),
        // A store that compares only the lower 64 bits would accept these two.
        Fence(fence ^ (1 << 127)),
        Fence(fence ^ (1 << 64)),
    ] {
        let forged = Lease::new(id, foreign, lease.attempt());
        refuses(&store, &forged, "a foreign fence").await;
        in_flight(&store, &id).await;
    }
    in_flight(&store, &other).await;

    ok(store.renew(&lease, HELD).await, "renew");
    ok(store.complete(&lease, HELD).await, "complete");
    refuses(&store, &lease, "a lease that was completed").await;
    refuses(&store, &released, "an old lease of a completed key").await;
    done(&store, &id).await;
}

/// No two claims have the same fence: not on different keys, and not on one key after its release,
/// the end of its lease, or the end of its retention.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn fences_never_repeat<H: Harness>(harness: &H) {
    let handles = handles(harness, 2).await;
    let mut keys = Keys::new("fences never repeat");
    let id = keys.next();
    let mut fences = HashSet::new();
    let mut remember = |lease: &Lease| {
        assert!(
            fences.insert(lease.fence()),
            "a fence was used twice: {:?}",
            lease.fence()
        );
    };

    let claims: Vec<_> = (0..RIVALS)
        .map(|at| {
            let (store, id) = (Arc::clone(&handles[at % handles.len()]), keys.next());
            tokio::spawn(async move { acquired(&*store, &id, SHORT, SHORT).await })
        })
        .collect();
    joined(claims).await.iter().for_each(&mut remember);

    for round in 0..4 {
        for store in &handles {
            // Remembered for `SHORT` only: a store that counts fences in the key's record would begin again.
            let lease = acquired(&**store, &id, HELD, SHORT).await;
            remember(&lease);
            ok(store.release(&lease).await, "release");
        }
        let store = &*handles[round % handles.len()];
        let began = Instant::now();
        if round % 2 == 0 {
            remember(&acquired(store, &id, SHORT, SHORT).await);
            ends(store, &id, began, "a lease").await;
        } else {
            let lease = acquired(store, &id, HELD, SHORT).await;
            remember(&lease);
            ok(store.complete(&lease, SHORT).await, "complete");
            ends(store, &id, began, "the record of a completed key").await;
        }
        // Whatever is remembered of the attempts is forgotten too.
        sleep(SHORT).await;
    }
}

/// A lease expires without a call: not before its time, and permanently. An expired lease can neither be
/// renewed nor settled, whether or not another run has claimed the key since.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn leases_end<H: Harness>(harness: &H) {
    let store = harness.open().await;
    let id = Keys::new("leases end").next();

    let began = Instant::now();
    let first = acquired(&store, &id, SHORT, HELD).await;
    ends(&store, &id, began, "a lease").await;
    refuses(&store, &first, "a lease that has ended").await;
    assert_free(&store, &id, "a key whose lease has ended").await;

    let second = acquired(&store, &id, HELD, HELD).await;
    attempt_is(&second, first.attempt().get() + 1, "after a lease ended");
    assert_ne!(first.fence(), second.fence(), "fence after a lease ended");
    refuses(
        &store,
        &first,
        "a lease that has ended, and has a successor",
    )
    .await;
    in_flight(&store, &id).await;

    ok(store.complete(&second, HELD).await, "complete");
    refuses(&store, &first, "a lease whose successor was completed").await;
    done(&store, &id).await;
}

/// Renewal lets a claim last for the given time from then on, be that longer or shorter than it
/// would have lasted.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn renewal_counts_from_now<H: Harness>(harness: &H) {
    let store = harness.open().await;
    let mut keys = Keys::new("renewal counts from now");

    let longer = keys.next();
    let lease = acquired(&store, &longer, BRIEF, HELD).await;
    ok(store.renew(&lease, HELD).await, "renew");
    // Longer than the lease that was claimed, which the renewal has replaced.
    sleep(BRIEF + SHORT).await;
    in_flight(&store, &longer).await;
    ok(
        store.renew(&lease, HELD).await,
        "renew a lease that was renewed",
    );
    ok(
        store.complete(&lease, HELD).await,
        "complete a lease that was renewed",
    );

    let shorter = keys.next();
    let lease = acquired(&store, &shorter, HELD, HELD).await;
    let began = Instant::now();
    ok(store.renew(&lease, SHORT).await, "renew");
    ends(&store, &shorter, began, "a lease that was renewed").await;
    refuses(&store, &lease, "a lease that was renewed and has ended").await;
}

/// A completed key is done for its retention and free afterwards, and its attempts are counted from 1 again.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn completion_is_remembered<H: Harness>(harness: &H) {
    let store = harness.open().await;
    let mut keys = Keys::new("completion is remembered");

    let id = keys.next();
    let first = acquired(&store, &id, HELD, HELD).await;
    ok(store.release(&first).await, "release");
    let second = acquired(&store, &id, HELD, HELD).await;
    let began = Instant::now();
    ok(store.complete(&second, SHORT).await, "complete");
    ends(&store, &id, began, "the record of a completed key").await;
    let third = acquired(&store, &id, HELD, HELD).await;
    attempt_is(&third, 1, "after the retention");

    // The end of the lease, and of what the claim asked to have known, are no end of the record.
    let id = keys.next();
    let lease = acquired(&store, &id, BRIEF, SHORT).await;
    ok(store.complete(&lease, HELD).await, "complete");
    sleep(BRIEF + SHORT).await;
    done(&store, &id).await;
}

/// Attempts are counted across releases and leases that ended, and are forgotten after the time for
/// which the claim asked to have them known.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn attempts_are_counted<H: Harness>(harness: &H) {
    let store = harness.open().await;
    let mut keys = Keys::new("attempts are counted");

    let id = keys.next();
    for attempt in [1, 2, 3] {
        let lease = acquired(&store, &id, HELD, HELD).await;
        attempt_is(&lease, attempt, "after releases");
        ok(store.release(&lease).await, "release");
    }
    for attempt in [4, 5] {
        let began = Instant::now();
        let lease = acquired(&store, &id, SHORT, HELD).await;
        attempt_is(&lease, attempt, "after releases and leases that ended");
        ends(&store, &id, began, "a lease").await;
    }
    let lease = acquired(&store, &id, HELD, HELD).await;
    attempt_is(&lease, 6, "after leases that ended");

    let (released, expired) = (keys.next(), keys.next());
    let lease = acquired(&store, &released, HELD, SHORT).await;
    ok(store.release(&lease).await, "release");
    acquired(&store, &expired, SHORT, SHORT).await;
    // Enough whether the time counts from the claim or from the end of the lease.
    sleep(2 * SHORT).await;
    for id in [released, expired] {
        free_before_long(&store, &id, "a lease").await;
        let lease = acquired(&store, &id, HELD, HELD).await;
        attempt_is(&lease, 1, "after earlier ones were to be forgotten");
    }
}

/// Every handle sees what another handle did, even before it was opened: claims, completions and attempts. A lease is
/// as good on another handle as on its own.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn handles_share_everything<H: Harness>(harness: &H) {
    let mut keys = Keys::new("handles share everything");
    let (id, failed) = (keys.next(), keys.next());
    // The handle ends with the block, so that nothing is kept in it alone.
    let (lease, release) = {
        let store = harness.open().await;
        let lease = acquired(&store, &id, HELD, HELD).await;
        let release = acquired(&store, &failed, HELD, HELD).await;
        (lease, release)
    };

    let store = harness.open().await;
    in_flight(&store, &id).await;
    ok(store.renew(&lease, HELD).await, "renew on another handle");
    ok(
        store.complete(&lease, HELD).await,
        "complete on another handle",
    );
    ok(store.release(&release).await, "release on another handle");
    drop(store);

    let store = harness.open().await;
    done(&store, &id).await;
    let second = acquired(&store, &failed, HELD, HELD).await;
    attempt_is(&second, 2, "after a release on another handle");
}

/// Keys that differ never meet, whatever bytes they are of and however long they are, nor do equal
/// keys of different namespaces.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn keys_never_meet<H: Harness>(harness: &H) {
    let store = harness.open().await;
    let run = unique();
    let namespaces = [
        format!("keys never meet {run}"),
        format!("keys never meet {run} too"),
    ];
    // Bytes that end, escape or are not text, and lengths around those of columns and buffers.
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let lengths = (1..=16).flat_map(|power| {
        let length = 1 << power;
        [vec![b'k'; length], vec![0; length + 1]]
    });
    let ids: Vec<_> = bytes
        .chain(lengths)
        .chain([vec![]])
        .flat_map(|key| {
            namespaces
                .iter()
                .map(move |namespace| EventKey::new(namespace, &key, b"{}"))
                .collect::<Vec<_>>()
        })
        .collect();

    let mut leases = Vec::new();
    for id in &ids {
        leases.push(acquired(&store, id, HELD, HELD).await);
    }
    let (completed, released) = leases.split_at(leases.len() / 2);
    for lease in completed {
        ok(store.complete(lease, HELD).await, "complete");
    }
    for lease in released {
        ok(store.release(lease).await, "release");
    }
    for lease in completed {
        done(&store, lease.id()).await;
    }
    for lease in released {
        assert_free(&store, lease.id(), "a released key").await;
    }
}

/// Leases and retentions may be of any length above zero, from a nanosecond to [`Duration::MAX`].
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn durations_have_no_limits<H: Harness>(harness: &H) {
    const INSTANT: Duration = Duration::from_nanos(1);

    let store = harness.open().await;
    let mut keys = Keys::new("durations have no limits");
    // Added to the present, the second one exceeds every type of time: a store has to limit it.
    for long in [Duration::from_secs(u32::MAX.into()), Duration::MAX] {
        let id = keys.next();
        let first = acquired(&store, &id, long, long).await;
        ok(store.renew(&first, long).await, "renew for very long");
        match ok(store.peek(&id).await, "peek") {
            KeyState::InFlight { remaining } => assert!(
                remaining > HELD,
                "a lease of {long:?} remains for {remaining:?} only"
            ),
            state => panic!("a lease of {long:?} is {state:?}"),
        }
        ok(store.release(&first).await, "release");
        let second = acquired(&store, &id, long, long).await;
        attempt_is(&second, 2, "when known for very long");
        ok(
            store.complete(&second, long).await,
            "complete for very long",
        );
        done(&store, &id).await;
    }

    let id = keys.next();
    acquired(&store, &id, INSTANT, INSTANT).await;
    free_before_long(&store, &id, "a lease of a nanosecond").await;
    let lease = acquired(&store, &id, HELD, INSTANT).await;
    ok(store.complete(&lease, INSTANT).await, "complete");
    free_before_long(&store, &id, "a retention of a nanosecond").await;
}

/// A claim whose future was dropped, at whichever of its awaits, leaves the key claimed for no
/// longer than its lease.
///
/// # Panics
///
/// When the rule is broken, or the store fails.
pub async fn abandoned_claims_end<H: Harness>(harness: &H) {
    const POLLS: u32 = 16;

    let store = harness.open().await;
    let mut keys = Keys::new("abandoned claims end");
    let mut abandoned = Vec::new();
    for polls in 0..POLLS {
        let id = keys.next();
        abandon(store.claim(&id, SHORT, HELD), polls).await;
        abandoned.push(id);
    }
    for id in abandoned {
        let give_up = Instant::now() + PATIENCE;
        loop {
            match ok(store.claim(&id, HELD, HELD).await, "claim") {
                Claim::Acquired(_) => break,
                Claim::InFlight { .. } => assert!(
                    Instant::now() < give_up,
                    "a claim whose future was dropped never ended"
                ),
                Claim::Done { .. } => panic!("a claim whose future was dropped is done"),
            }
            sleep(SHORT / 20).await;
        }
    }
}
