//! Limits how often the log shows a refusal that anybody can cause.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Allows one line per second and reason, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// By reason: when its last line was logged, and how often it occurred since.
    lines: Mutex<BTreeMap<&'static str, (Instant, u64)>>,
}

const INTERVAL: Duration = Duration::from_secs(1);

impl Throttle {
    /// Returns whether to log a line for this reason: if so, with the number of lines that were left out since the
    /// last one.
    pub(crate) fn admit(&self, reason: &'static str) -> Option<u64> {
        let now = Instant::now();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((last, left_out)) = lines.get_mut(reason) else {
            lines.insert(reason, (now, 0));
            return Some(0);
        };
        if now.saturating_duration_since(*last) < INTERVAL {
            *left_out += 1;
            return None;
        }
        *last = now;
        Some(std::mem::take(left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_reason_has_one_line_per_second() {
        let throttle = Throttle::default();
        assert_eq!(throttle.admit("a"), Some(0));
        assert_eq!(throttle.admit("b"), Some(0));
        for _ in 0..3 {
            assert_eq!(throttle.admit("a"), None);
        }
        tokio::time::advance(INTERVAL - Duration::from_millis(1)).await;
        assert_eq!(throttle.admit("a"), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(throttle.admit("a"), Some(4));
        assert_eq!(throttle.admit("a"), None);
        assert_eq!(throttle.admit("b"), Some(0));
    }
}
