//! Where claims begin to read.
//!
//! The indexes of what is due contain deleted rows, too, until they are vacuumed. While a transaction of anybody stays
//! open they cannot be, and each claim would read all of them again.

use std::sync::Mutex;
use std::time::Duration;

use sqlx::postgres::PgRow;
use tokio::time::Instant;

use crate::inbox::event::Share;
use crate::lock::lock;
use crate::postgres::engine::{Value, column};
use crate::store::OpenError as Error;

/// What a claim knows from an earlier one: that there was nothing to take before these times. Zeros know nothing.
#[derive(Clone, Default)]
pub(super) struct Floor {
    /// The numbers of the kinds for which this is known.
    kinds: Vec<i64>,
    ready: i64,
    crashed: i64,
    leased: i64,
}

impl Floor {
    pub(super) fn values(&self) -> [Value; 4] {
        [
            Value::numbers(self.kinds.iter().copied()),
            Value::Number(self.ready),
            Value::Number(self.crashed),
            Value::Number(self.leased),
        ]
    }

    /// Of a claim's last row, in the columns from `at` on.
    pub(super) fn read(row: &PgRow, at: usize) -> Result<Self, Error> {
        let kinds: Vec<i32> = column(row, at)?;
        Ok(Self {
            kinds: kinds.into_iter().map(i64::from).collect(),
            ready: column(row, at + 1)?,
            crashed: column(row, at + 2)?,
            leased: column(row, at + 3)?,
        })
    }

    fn is_known(&self) -> bool {
        self.ready > 0
    }

    fn is_below(&self, other: &Self) -> bool {
        self.ready < other.ready || self.crashed < other.crashed || self.leased < other.leased
    }
}

/// The floors of the sets of kinds that this process claims, each with the kinds of all its routes.
#[derive(Default)]
pub(super) struct Floors(Mutex<Vec<Known>>);

struct Known {
    of: Vec<Share>,
    floor: Floor,
    /// The last claim that began without a floor, and how long it took.
    whole: (Instant, Duration),
    /// When the one in progress began.
    look: Option<Instant>,
}

impl Known {
    fn is_of(&self, of: &[Share]) -> bool {
        let mut pairs = self.of.iter().zip(of);
        self.of.len() == of.len() && pairs.all(|(a, b)| a.take.kinds == b.take.kinds)
    }
}

impl Floors {
    /// Where a claim of these kinds begins. There is no floor where a claim without one takes little time.
    pub(super) fn of(&self, of: &[Share]) -> Floor {
        let known = lock(&self.0);
        let known = known.iter().find(|known| known.is_of(of));
        let known = known.filter(|known| known.whole.1 >= SLOW);
        known.map(|known| known.floor.clone()).unwrap_or_default()
    }

    /// Whether somebody has to look for events below the floor now: they may have become due there since it was known.
    /// That is true once, until the look has ended.
    pub(super) fn begin_look(&self, of: &[Share]) -> bool {
        let mut all = lock(&self.0);
        let known = all.iter_mut().find(|known| known.is_of(of));
        let Some(known) = known else { return false };
        let (at, took) = known.whole;
        let looks = known
            .look
            .is_some_and(|began| began.elapsed() < LONGEST_LOOK);
        if looks || took < SLOW || at.elapsed() < VALID {
            return false;
        }
        known.look = Some(Instant::now());
        true
    }

    /// The next look is after [`VALID`].
    pub(super) fn look_failed(&self, of: &[Share]) {
        let mut all = lock(&self.0);
        if let Some(known) = all.iter_mut().find(|known| known.is_of(of)) {
            known.look = None;
            known.whole.0 = Instant::now();
        }
    }

    /// Notes what a claim has found that began at a floor, and took so long in the database.
    pub(super) fn learn(&self, of: &[Share], from: &Floor, found: Floor, took: Duration) {
        let mut all = lock(&self.0);
        let whole = (Instant::now(), took);
        match all.iter_mut().find(|known| known.is_of(of)) {
            Some(known) if from.is_known() => {
                // A look that ended during this claim may have found something below where the claim began.
                if !known.floor.is_below(from) {
                    known.floor = found;
                }
            }
            Some(known) => {
                known.floor = found;
                known.whole = whole;
                known.look = None;
            }
            None => {
                if all.len() == MOST {
                    all.remove(0);
                }
                all.push(Known {
                    of: of.to_vec(),
                    floor: found,
                    whole,
                    look: None,
                });
            }
        }
    }
}

/// The time of a claim that has read many deleted rows, at half a microsecond each.
const SLOW: Duration = Duration::from_millis(20);

/// After this long, somebody looks for events below the floor.
const VALID: Duration = Duration::from_secs(30);

/// The time limit of a look. One that has not ended by then, as its runtime was shut down, counts as ended.
pub(super) const LONGEST_LOOK: Duration = Duration::from_secs(60);

/// A worker has one set of kinds at a time, and another one when other workers come or go.
const MOST: usize = 32;

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::event::EventKind;
    use crate::inbox::event::{Kinds, Take};

    fn floor(ready: i64) -> Floor {
        Floor {
            kinds: vec![1],
            ready,
            crashed: ready,
            leased: ready,
        }
    }

    fn share(kinds: Kinds) -> Share {
        let lease = Duration::from_secs(60);
        Take { lease, kinds }.into()
    }

    fn all() -> [Share; 1] {
        [share(Kinds::all())]
    }

    fn learnt(took: Duration) -> Floors {
        let floors = Floors::default();
        floors.learn(&all(), &Floor::default(), floor(7), took);
        floors
    }

    #[test]
    fn quick_claims_have_no_floor() {
        assert!(!learnt(SLOW / 2).of(&all()).is_known());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_claims_have_a_floor_and_somebody_looks_below_it() {
        let (all, nothing) = (all(), Floor::default());
        let floors = learnt(SLOW);
        assert_eq!(floors.of(&all).ready, 7);
        floors.learn(&all, &floor(7), floor(8), SLOW / 2);
        assert_eq!(floors.of(&all).ready, 8);
        assert!(!floors.begin_look(&all));

        advance(VALID).await;
        assert!(floors.begin_look(&all));
        assert!(!floors.begin_look(&all), "one at a time");
        // Claims continue during a look.
        assert_eq!(floors.of(&all).ready, 8);
        floors.learn(&all, &nothing, floor(8), SLOW);
        assert!(!floors.begin_look(&all));
        advance(VALID).await;
        assert!(floors.begin_look(&all));
        floors.look_failed(&all);
        assert!(!floors.begin_look(&all));
        advance(VALID).await;
        assert!(floors.begin_look(&all));
        advance(LONGEST_LOOK).await;
        assert!(floors.begin_look(&all), "the other one was lost");
        floors.learn(&all, &nothing, floor(8), SLOW);

        // What was deleted is not there any more.
        advance(VALID).await;
        assert!(floors.begin_look(&all));
        floors.learn(&all, &nothing, floor(9), SLOW / 2);
        assert!(!floors.of(&all).is_known());
        advance(VALID).await;
        assert!(!floors.begin_look(&all));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_look_has_found_is_not_passed_by_a_claim_that_began_above_it() {
        let (all, nothing) = (all(), Floor::default());
        let floors = learnt(SLOW);
        advance(VALID).await;
        let began = floors.of(&all);
        assert!(floors.begin_look(&all));
        floors.learn(&all, &nothing, floor(3), SLOW);
        floors.learn(&all, &began, floor(9), SLOW / 2);
        assert_eq!(floors.of(&all).ready, 3);
        floors.learn(&all, &floors.of(&all), floor(9), SLOW / 2);
        assert_eq!(floors.of(&all).ready, 9);
    }

    #[test]
    fn each_set_of_kinds_has_a_floor_of_its_own() {
        let floors = learnt(SLOW);
        let only = |number: usize| {
            let name = format!("kind_{number}");
            [share(Kinds::only([
                EventKind::from_bytes(name.as_bytes()).unwrap()
            ]))]
        };
        assert!(!floors.of(&only(0)).is_known());
        for number in 0..MOST {
            floors.learn(&only(number), &Floor::default(), floor(9), SLOW);
        }
        assert!(!floors.of(&all()).is_known());
        assert_eq!(floors.of(&only(0)).ready, 9);
    }
    #[test]
    fn a_floor_is_that_of_all_routes_however_busy_they_are() {
        let [one] = all();
        let both = [one.clone(), share(Kinds::all().at("crm".parse().unwrap()))];
        let floors = learnt(SLOW);
        assert!(!floors.of(&both).is_known());
        assert!(!floors.of(&both[1..]).is_known());
        floors.learn(&both, &Floor::default(), floor(9), SLOW);
        assert_eq!(floors.of(&[one]).ready, 7);
        let busy = both.map(|share| Share {
            busy: 3,
            most: 3,
            ..share
        });
        assert_eq!(floors.of(&busy).ready, 9);
    }
}
