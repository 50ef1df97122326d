//! Where claims begin to read.
//!
//! The indexes of what is due contain deleted rows, too, until they are vacuumed. While a transaction of anybody stays
//! open they cannot be, and each claim would read all of them again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgRow;
use tokio::time::Instant;

use crate::inbox::event::Kinds;
use crate::storage::Error;
use crate::storage::postgres::{List, Value, column};

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
            Value::List(List::Numbers(
                self.kinds.iter().copied().map(Some).collect(),
            )),
            Value::Number(self.ready),
            Value::Number(self.crashed),
            Value::Number(self.leased),
        ]
    }

    /// Of a claim's last row, in the columns from `at` on.
    pub(super) fn read(row: &PgRow, at: usize) -> Result<Self, Error> {
        Ok(Self {
            kinds: column(row, at)?,
            ready: column(row, at + 1)?,
            crashed: column(row, at + 2)?,
            leased: column(row, at + 3)?,
        })
    }

    fn is_known(&self) -> bool {
        self.ready > 0
    }
}

/// The floors of the sets of kinds that this process claims.
#[derive(Default)]
pub(super) struct Floors(Mutex<Vec<Known>>);

struct Known {
    of: Kinds,
    floor: Floor,
    /// The last claim that began without a floor, and how long it took.
    whole: (Instant, Duration),
}

impl Floors {
    /// Where a claim of these kinds begins. An event may have become due below the floor since it was known. So there is
    /// none where a claim without one takes little time, and elsewhere only for some time.
    pub(super) fn of(&self, kinds: &Kinds) -> Floor {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.iter().find(|known| known.of == *kinds);
        let known = known.filter(|known| {
            let (at, took) = known.whole;
            took >= SLOW && at.elapsed() < VALID
        });
        known.map(|known| known.floor.clone()).unwrap_or_default()
    }

    /// Notes what a claim has found that began at a floor, and took so long in the database.
    pub(super) fn learn(&self, kinds: &Kinds, from: &Floor, found: Floor, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = (Instant::now(), took);
        match all.iter_mut().find(|known| known.of == *kinds) {
            Some(known) => {
                known.floor = found;
                if !from.is_known() {
                    known.whole = whole;
                }
            }
            None => {
                if all.len() == MOST {
                    all.remove(0);
                }
                all.push(Known {
                    of: kinds.clone(),
                    floor: found,
                    whole,
                });
            }
        }
    }
}

/// The time of a claim that has read many deleted rows, at half a microsecond each.
const SLOW: Duration = Duration::from_millis(20);

/// After this long, a claim begins without a floor.
const VALID: Duration = Duration::from_secs(30);

/// A worker has one set of kinds at a time, and another one while a kind is tripped.
const MOST: usize = 32;

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::event::EventKind;

    fn floor(ready: i64) -> Floor {
        Floor {
            kinds: vec![1],
            ready,
            crashed: ready,
            leased: ready,
        }
    }

    fn learnt(took: Duration) -> Floors {
        let floors = Floors::default();
        floors.learn(&Kinds::all(), &Floor::default(), floor(7), took);
        floors
    }

    #[test]
    fn quick_claims_have_no_floor() {
        assert!(!learnt(SLOW / 2).of(&Kinds::all()).is_known());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_claims_have_a_floor_for_some_time() {
        let floors = learnt(SLOW);
        assert_eq!(floors.of(&Kinds::all()).ready, 7);
        // What a claim with a floor takes says nothing of one without.
        floors.learn(&Kinds::all(), &floor(7), floor(8), Duration::ZERO);
        assert_eq!(floors.of(&Kinds::all()).ready, 8);
        advance(VALID).await;
        assert!(!floors.of(&Kinds::all()).is_known());
    }

    #[test]
    fn each_set_of_kinds_has_a_floor_of_its_own() {
        let floors = learnt(SLOW);
        let only = |number: usize| {
            let name = format!("kind_{number}");
            Kinds::only([EventKind::from_bytes(name.as_bytes()).unwrap()])
        };
        assert!(!floors.of(&only(0)).is_known());
        for number in 0..MOST {
            floors.learn(&only(number), &Floor::default(), floor(9), SLOW);
        }
        assert!(!floors.of(&Kinds::all()).is_known());
        assert_eq!(floors.of(&only(0)).ready, 9);
    }
}
