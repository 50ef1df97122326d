//! The events in progress that have crashed before: how many of them run side by side.

use std::collections::BTreeMap;

use super::super::rules::Rules;

/// The suspects in progress.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// Their number, by their crashes.
    running: BTreeMap<u32, usize>,
    /// One was refused, because it has to run beside fewer others. Until these have ended, no other one begins.
    has_refused: bool,
}

impl Suspects {
    /// How many suspects may be taken now.
    pub(super) fn room(&self, rules: &Rules) -> usize {
        match (self.has_refused, self.running()) {
            // The refused suspect may begin now.
            (true, 0) => 1,
            (true, _) => 0,
            (false, running) => self.most(rules).saturating_sub(running),
        }
    }

    /// Begins one with so many crashes, if it may run beside the others.
    pub(super) fn begin(&mut self, crashes: u32, rules: &Rules) -> bool {
        let beside = rules.suspects_beside(crashes);
        let may_begin = self.running() < beside.min(self.most(rules));
        self.has_refused = !may_begin || (self.has_refused && beside == 1);
        if may_begin {
            *self.running.entry(crashes).or_default() += 1;
        }
        may_begin
    }

    pub(super) fn ended(&mut self, crashes: u32) {
        if let Some(running) = self.running.get_mut(&crashes) {
            *running -= 1;
            self.running.retain(|_, running| *running > 0);
        }
    }

    fn running(&self) -> usize {
        self.running.values().sum()
    }

    /// How many may run side by side, the running ones included.
    fn most(&self, rules: &Rules) -> usize {
        let beside = self
            .running
            .keys()
            .map(|crashes| rules.suspects_beside(*crashes));
        beside.min().unwrap_or_else(|| rules.suspects_beside(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_run_side_by_side_by_their_crashes() {
        let rules = Rules {
            max_crashes: 9,
            ..Rules::default()
        };
        let beside = [1, 2, 3, 4, 8, 99].map(|crashes| rules.suspects_beside(crashes));
        assert_eq!(beside, [8, 4, 2, 1, 1, 8], "99 are too many to be tried");
        let of_default = [1, 2].map(|crashes| Rules::default().suspects_beside(crashes));
        assert_eq!(of_default, [8, 1], "the last attempt is made alone");
        let alone = Rules {
            concurrency: 3,
            ..Rules::default()
        };
        assert_eq!(alone.suspects_beside(1), 1);
    }

    #[test]
    fn one_that_is_refused_begins_before_others_join() {
        let (rules, mut suspects) = (Rules::default(), Suspects::default());
        assert_eq!(suspects.room(&rules), 8);
        assert!(suspects.begin(1, &rules) && suspects.begin(1, &rules));
        assert_eq!(suspects.room(&rules), 6);
        assert!(!suspects.begin(2, &rules), "it has to be alone");
        assert_eq!(suspects.room(&rules), 0);
        suspects.ended(1);
        assert_eq!(suspects.room(&rules), 0);
        suspects.ended(1);
        assert_eq!(suspects.room(&rules), 1);
        assert!(suspects.begin(2, &rules));
        assert_eq!(suspects.room(&rules), 0);
        suspects.ended(2);
        assert_eq!(suspects.room(&rules), 1, "there may be more of them");
        assert!(suspects.begin(1, &rules));
        assert_eq!(suspects.room(&rules), 7);
    }
}
