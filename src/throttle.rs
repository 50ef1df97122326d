//! Limits how often the log shows the same.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// Allows one line in so many seconds for each reason, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle<const SECONDS: u64 = 1> {
    /// By reason: when its last line was logged, and how often it occurred since.
    lines: Mutex<BTreeMap<String, (Instant, u64)>>,
}

/// The number of reasons beyond which all others are one.
const MOST: usize = 64;

impl<const SECONDS: u64> Throttle<SECONDS> {
    /// Returns whether to log a line for this reason: if so, with the number of lines that were left out since the
    /// last one.
    pub(crate) fn admit(&self, reason: &str) -> Option<u64> {
        let now = Instant::now();
        let mut lines = lock(&self.lines);
        let reason = match lines.len() < MOST || lines.contains_key(reason) {
            true => reason,
            false => "",
        };
        let Some((last, left_out)) = lines.get_mut(reason) else {
            lines.insert(reason.to_owned(), (now, 0));
            return Some(0);
        };
        if now.saturating_duration_since(*last) < Duration::from_secs(SECONDS) {
            *left_out += 1;
            return None;
        }
        *last = now;
        Some(std::mem::take(left_out))
    }
}

/// Does not copy what was logged.
impl<const SECONDS: u64> Clone for Throttle<SECONDS> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn each_reason_has_one_line_per_second() {
        let throttle = Throttle::<1>::default();
        assert_eq!(throttle.admit("a"), Some(0));
        assert_eq!(throttle.admit("b"), Some(0));
        for _ in 0..3 {
            assert_eq!(throttle.admit("a"), None);
        }
        tokio::time::advance(SECOND - Duration::from_millis(1)).await;
        assert_eq!(throttle.admit("a"), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(throttle.admit("a"), Some(4));
        assert_eq!(throttle.admit("a"), None);
        assert_eq!(throttle.admit("b"), Some(0));
    }
}
