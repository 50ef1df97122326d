//! Decides what becomes of an event when an attempt has ended. Nothing is read or changed here.

use std::time::Duration;

use super::event::TakenEvent;
use super::rules::Rules;
use crate::outcome::{Outcome, Settlement};

/// An attempt that has ended, with all that the decision depends on.
#[derive(Clone, Copy)]
pub(super) struct Ended<'a> {
    pub(super) event: &'a TakenEvent,
    pub(super) outcome: &'a Outcome,
    pub(super) took: Duration,
    /// Whether attempts of its type are slowed down, so that its failures do not count.
    pub(super) is_slowed: bool,
    /// Whether its type is short of credit.
    pub(super) is_short: bool,
    /// How much of the delay is subtracted: from 0 for nothing to 1 for a quarter.
    pub(super) jitter: f64,
}

/// What becomes of the event, and the line that is logged.
pub(super) struct Decision {
    /// `None` if the lease was lost: then nothing may be recorded.
    pub(super) settlement: Option<Settlement>,
    pub(super) line: Line,
}

/// The line that is logged for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Handled,
    Ignored,
    Discarded,
    DeadLetter,
    LastFailure { failures: u32 },
    Crashed { crashes: u32 },
    Retried { after: Duration },
    Snoozed { delay: Duration },
    Interrupted,
    LeaseLost,
}

pub(super) fn decide(ended: Ended<'_>, rules: &Rules) -> Decision {
    let Ended { event, outcome, .. } = ended;
    let took = Some(ended.took);
    let decided = |settlement, line| Decision {
        settlement: Some(settlement),
        line,
    };
    match outcome {
        Outcome::Handled | Outcome::Replayed | Outcome::Accepted => {
            decided(Settlement::Handled, Line::Handled)
        }
        Outcome::Ignored | Outcome::Filtered => decided(Settlement::Ignored, Line::Ignored),
        Outcome::Discarded(_) => {
            let failure = outcome.failure(took);
            decided(Settlement::Discarded(failure), Line::Discarded)
        }
        Outcome::DeadLetter(_) | Outcome::Undecodable(_) | Outcome::Unhandled => {
            decided(dead(outcome, took, rules), Line::DeadLetter)
        }
        Outcome::Crashed { crashes } => {
            let line = Line::Crashed { crashes: *crashes };
            decided(dead(outcome, None, rules), line)
        }
        Outcome::Snoozed { delay } => decided(
            Settlement::Retry {
                after: *delay,
                failure: None,
                counts: false,
                is_slowed: false,
                blocks_lane: rules.blocks_lane(&event.delivery),
            },
            Line::Snoozed { delay: *delay },
        ),
        Outcome::Interrupted => decided(Settlement::Released, Line::Interrupted),
        Outcome::LeaseLost => Decision {
            settlement: None,
            line: Line::LeaseLost,
        },
        Outcome::Failed { retry_after, .. } => failed(ended, true, *retry_after, rules),
        Outcome::Panicked(_) | Outcome::TimedOut { .. } | Outcome::Incomplete { .. } => {
            failed(ended, true, None, rules)
        }
        // Not the event's fault.
        Outcome::InFlight { remaining } => failed(ended, false, Some(*remaining), rules),
        Outcome::Unavailable { .. } | Outcome::NotRecorded(_) | Outcome::NotCommitted { .. } => {
            failed(ended, false, None, rules)
        }
    }
}

/// The limits of failures that do not count.
const MOST_UNCOUNTED: u32 = 100;
const LONGEST_UNCOUNTED: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Decides whether a failure is the last one, and otherwise when the event is tried again. While attempts of its type are slowed
/// down, a failure does not count, as the whole type fails.
fn failed(ended: Ended<'_>, counts: bool, asked: Option<Duration>, rules: &Rules) -> Decision {
    let Ended { event, outcome, .. } = ended;
    let took = Some(ended.took);
    let counts = counts && !ended.is_slowed;
    let is_last = match counts {
        true => rules.retry.is_last(event.failures, event.tried_for),
        false => {
            // The whole type fails, so only an event that was tried for weeks may be the cause.
            let most = if ended.is_slowed {
                2 * MOST_UNCOUNTED
            } else {
                MOST_UNCOUNTED
            };
            let is_long = !ended.is_slowed && event.tried_for >= Some(LONGEST_UNCOUNTED);
            event.uncounted >= most - 1 || is_long
        }
    };
    if is_last {
        let failures = event.failures.saturating_add(1);
        return Decision {
            settlement: Some(dead(outcome, took, rules)),
            line: Line::LastFailure { failures },
        };
    }
    // Its type has a pace of its own.
    let failures = match counts || ended.is_slowed {
        true => event.failures,
        false => event.failures.max(event.uncounted),
    };
    let mut delay = rules.retry.delay(failures, ended.jitter);
    if ended.is_short {
        delay = delay.max(rules.retry.delay_when_short(ended.jitter));
    }
    let after = delay.max(asked.unwrap_or_default());
    Decision {
        settlement: Some(Settlement::Retry {
            after,
            failure: Some(outcome.failure(took)),
            counts,
            is_slowed: ended.is_slowed,
            blocks_lane: rules.blocks_lane(&event.delivery),
        }),
        line: Line::Retried { after },
    }
}

fn dead(outcome: &Outcome, took: Option<Duration>, rules: &Rules) -> Settlement {
    Settlement::Dead {
        failure: outcome.failure(took),
        hold_lane: rules.hold_lane_on_dead,
    }
}

impl Line {
    pub(super) fn log(self, outcome: &Outcome) {
        let reason = || outcome.describe();
        match self {
            Self::Handled => tracing::debug!("the event was handled"),
            // The router says so.
            Self::Ignored => {}
            Self::Discarded => tracing::warn!(
                reason = reason(),
                "the handler gave the event up; it is not handled again"
            ),
            Self::DeadLetter => tracing::error!(
                reason = reason(),
                "the event is now a dead letter, which waits for a person"
            ),
            Self::LastFailure { failures } => tracing::error!(
                reason = reason(),
                failures,
                "the event failed for the last time: it is now a dead letter, which waits for a person"
            ),
            Self::Crashed { crashes } => tracing::error!(
                crashes,
                "the event is now a dead letter: in each of its last attempts, the process died or the lease expired"
            ),
            Self::Retried { after } => tracing::warn!(
                reason = reason(),
                retry_after = ?after,
                "the attempt failed; the event is tried again"
            ),
            Self::Snoozed { delay } => tracing::debug!(?delay, "the handler snoozed the event"),
            Self::Interrupted => tracing::info!(
                "the attempt was interrupted because the worker stops; it does not count"
            ),
            Self::LeaseLost => tracing::error!(
                "the lease on the event was lost, and the handler was dropped or its transaction rolled back: the \
                 database was unavailable for longer than the lease, or the event was discarded"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::RawDelivery;
    use crate::error::BoxError;
    use crate::event::EventKind;
    use crate::handler::{HandlerError, HandlerResult};
    use crate::inbox::event::{EventId, EventLease, Lane};
    use crate::inbox::{OnFailure, Retry};
    use crate::store::Fence;

    const HOUR: Duration = Duration::from_secs(60 * 60);
    const SECOND: Duration = Duration::from_secs(1);

    fn event(failures: u32, tried_for: Option<Duration>) -> TakenEvent {
        TakenEvent {
            lease: EventLease {
                id: EventId(1),
                fence: Fence(1),
                place: 1,
            },
            delivery: RawDelivery::new(EventKind::CHAT_RATED, "{}"),
            lane: Some(Lane(1)),
            failures,
            crashes: 0,
            tried_for,
            uncounted: 0,
        }
    }

    fn decided(outcome: &Outcome, event: &TakenEvent, rules: &Rules) -> Option<Settlement> {
        let ended = Ended {
            event,
            outcome,
            took: SECOND,
            is_slowed: false,
            is_short: false,
            jitter: 0.0,
        };
        decide(ended, rules).settlement
    }

    fn outcome(result: HandlerResult) -> Outcome {
        result.into()
    }

    /// What a row of the page says of an event after this outcome.
    fn on_page(outcome: &Outcome) -> String {
        let page = include_str!("../docs/responses.md");
        let (name, mut found) = (format!("`{}`", outcome.name()), Vec::new());
        for row in page.lines().filter(|line| line.starts_with('|')) {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            if let [row, _, _, becomes] = cells[..]
                && row.ends_with(&name)
            {
                found.push(becomes.to_owned());
            }
        }
        let [becomes] = &found[..] else {
            panic!("{name} is not in one row of the page: {found:?}");
        };
        becomes.clone()
    }

    #[test]
    fn the_page_says_what_becomes_of_an_event() {
        let error = || BoxError::from("error").into();
        let undecodable =
            RawDelivery::new(EventKind::CHAT_RATED, "[]").decode::<serde_json::Map<_, _>>();
        let retried = |after, counts| format!("retried {after:?}, counts: {counts}");
        let usual = retried(5 * SECOND, true);
        let uncounted = retried(5 * SECOND, false);
        for (outcome, becomes, expected) in [
            (Outcome::Handled, "is handled", "handled"),
            (Outcome::Replayed, "is handled", "handled"),
            (
                Outcome::InFlight { remaining: SECOND },
                "is retried, which does not count",
                &uncounted,
            ),
            (Outcome::Ignored, "is ignored", "ignored"),
            (Outcome::Unhandled, "is a dead letter", "dead"),
            (
                Outcome::Undecodable(undecodable.unwrap_err()),
                "is a dead letter",
                "dead",
            ),
            (
                outcome(Err(HandlerError::discard("error"))),
                "is discarded",
                "discarded",
            ),
            (
                outcome(Err(HandlerError::dead_letter("error"))),
                "is a dead letter",
                "dead",
            ),
            (
                outcome(Err(HandlerError::retry("error"))),
                "is retried, after that delay at the earliest",
                &usual,
            ),
            (
                outcome(Err(HandlerError::retry_after(9 * HOUR, "error"))),
                "is retried, after that delay at the earliest",
                &retried(9 * HOUR, true),
            ),
            (Outcome::Panicked(error()), "is retried", &usual),
            (
                Outcome::TimedOut { limit: 30 * SECOND },
                "is retried",
                &usual,
            ),
            (
                outcome(Err(HandlerError::snooze(9 * HOUR))),
                "is tried again after that delay, any number of times",
                &retried(9 * HOUR, false),
            ),
            (
                Outcome::unavailable("error", HOUR),
                "is retried, which does not count",
                &uncounted,
            ),
            (
                Outcome::NotCommitted {
                    reason: error(),
                    retry_after: HOUR,
                },
                "is retried, which does not count",
                &uncounted,
            ),
            (
                Outcome::LeaseLost,
                "is tried again, as after a crash, unless it was discarded",
                "not settled",
            ),
            (Outcome::Crashed { crashes: 3 }, "is a dead letter", "dead"),
            (
                Outcome::Interrupted,
                "is tried again by the next worker",
                "released",
            ),
        ] {
            let settled = match decided(&outcome, &event(0, None), &Rules::default()) {
                Some(Settlement::Handled) => "handled".to_owned(),
                Some(Settlement::Ignored) => "ignored".to_owned(),
                Some(Settlement::Discarded(_)) => "discarded".to_owned(),
                Some(Settlement::Dead { .. }) => "dead".to_owned(),
                Some(Settlement::Retry { after, counts, .. }) => retried(after, counts),
                Some(Settlement::Released) => "released".to_owned(),
                None => "not settled".to_owned(),
            };
            assert_eq!(settled, expected, "{outcome}");
            assert_eq!(on_page(&outcome), becomes, "{outcome}");
        }
    }

    #[test]
    fn the_last_failure_makes_a_dead_letter_that_may_hold_its_lane() {
        let error = outcome(Err(HandlerError::retry("the CRM is down")));
        let rules = Rules {
            retry: Retry::default().max_attempts(3),
            hold_lane_on_dead: true,
            ..Rules::default()
        };
        for (event, is_last) in [
            (event(1, Some(SECOND)), false),
            (event(2, Some(SECOND)), true),
            (event(0, Some(7 * 24 * HOUR)), false),
            (event(1, Some(7 * 24 * HOUR)), true),
        ] {
            match decided(&error, &event, &rules) {
                Some(Settlement::Dead { failure, hold_lane }) => {
                    assert!(is_last && hold_lane);
                    assert_eq!(failure.outcome, "failed");
                    assert_eq!(failure.reason, "the CRM is down");
                    assert_eq!(failure.took, Some(SECOND));
                }
                Some(Settlement::Retry { counts: true, .. }) => assert!(!is_last),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn failures_that_do_not_count_have_an_end() {
        let away = Outcome::unavailable("the database is away", HOUR);
        let interrupted = Outcome::Interrupted;
        let snoozed = outcome(Err(HandlerError::snooze(SECOND)));
        let rules = Rules {
            retry: Retry::default().max_attempts(1),
            ..Rules::default()
        };
        let week = 7 * 24 * HOUR;
        for (uncounted, tried_for, is_last, is_last_slowed) in [
            (0, None, false, false),
            (98, Some(week - SECOND), false, false),
            (99, Some(SECOND), true, false),
            (1, Some(week), true, false),
            (99, Some(week), true, false),
            (99, Some(2 * week), true, false),
            // While attempts of the type are slowed down, one adds little.
            (198, Some(2 * week), true, false),
            (199, None, true, true),
        ] {
            let event = TakenEvent {
                uncounted,
                ..event(0, tried_for)
            };
            for (is_slowed, is_last) in [(false, is_last), (true, is_last_slowed)] {
                let ended = Ended {
                    event: &event,
                    outcome: &away,
                    took: SECOND,
                    is_slowed,
                    is_short: false,
                    jitter: 0.0,
                };
                let decision = decide(ended, &rules);
                match decision.settlement {
                    Some(Settlement::Dead { failure, .. }) => {
                        assert!(is_last);
                        assert_eq!(failure.outcome, "database-unavailable");
                        assert_eq!(decision.line, Line::LastFailure { failures: 1 });
                    }
                    Some(Settlement::Retry { counts: false, .. }) => assert!(!is_last),
                    other => panic!("{other:?}"),
                }
            }
            // Nothing has failed.
            let settlement = decided(&snoozed, &event, &rules);
            assert!(matches!(settlement, Some(Settlement::Retry { .. })));
            let settlement = decided(&interrupted, &event, &rules);
            assert_eq!(settlement, Some(Settlement::Released));
        }
    }

    #[test]
    fn delays_grow_with_the_failures_of_their_sort_and_are_longer_without_credit() {
        let error = outcome(Err(HandlerError::retry("error")));
        let away = Outcome::unavailable("the database is away", SECOND);
        let after_with = |outcome: &Outcome, is_slowed, is_short, uncounted, jitter| {
            let event = TakenEvent {
                uncounted,
                ..event(1, Some(SECOND))
            };
            let ended = Ended {
                event: &event,
                outcome,
                took: SECOND,
                is_slowed,
                is_short,
                jitter,
            };
            let decision = decide(ended, &Rules::default());
            let Some(Settlement::Retry { after, counts, .. }) = decision.settlement else {
                panic!("not retried");
            };
            assert_eq!(decision.line, Line::Retried { after });
            assert_eq!(
                counts,
                !is_slowed && matches!(outcome, Outcome::Failed { .. })
            );
            after
        };
        for (is_slowed, jitter, expected) in [(false, 0.0, 120), (true, 0.0, 120), (true, 1.0, 90)]
        {
            let after = after_with(&error, is_slowed, true, 9, jitter);
            assert_eq!(after, expected * SECOND, "short of credit");
        }
        let after = |outcome: &Outcome, is_slowed, uncounted, jitter| {
            after_with(outcome, is_slowed, false, uncounted, jitter)
        };
        assert_eq!(after(&error, false, 9, 0.0), 10 * SECOND);
        // A handler may ask for a longer delay, and not for a shorter one.
        for (asked, expected) in [(SECOND, 10 * SECOND), (HOUR, HOUR)] {
            let asks = outcome(Err(HandlerError::retry_after(asked, "error")));
            assert_eq!(after(&asks, false, 0, 0.0), expected);
        }
        assert_eq!(after(&error, true, 9, 0.0), 10 * SECOND);
        assert_eq!(after(&away, false, 0, 0.0), 10 * SECOND);
        assert_eq!(after(&away, false, 3, 0.0), 40 * SECOND);
        assert_eq!(after(&away, false, 3, 1.0), 30 * SECOND, "a quarter less");
    }

    #[test]
    fn kinds_may_block_or_skip() {
        let rules = Rules {
            on_failure: OnFailure::Skip,
            on_failure_of: [(EventKind::CHAT_RATED.into(), OnFailure::Block)].into(),
            ..Rules::default()
        };
        let snoozed = outcome(Err(HandlerError::snooze(SECOND)));
        for (kind, blocks) in [
            (EventKind::CHAT_RATED, true),
            (EventKind::CHAT_CLOSED, false),
        ] {
            let event = TakenEvent {
                delivery: RawDelivery::new(kind, "{}"),
                ..event(0, None)
            };
            let settlement = decided(&snoozed, &event, &rules);
            assert!(
                matches!(settlement, Some(Settlement::Retry { blocks_lane, .. }) if blocks_lane == blocks)
            );
        }
    }
}
