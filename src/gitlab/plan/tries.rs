//! How often a stage was tried, and the rest before its next try (build §1.4). Waits for nothing: it says
//! until when.

use std::time::{Duration, Instant};

use crate::clock::Timing;

#[derive(Clone, Debug)]
pub(super) struct Tries {
    first: Duration,
    longest: Duration,
    /// Of the stage that is at hand, those that failed.
    failed: u32,
    until: Option<Instant>,
}

impl Tries {
    /// `long`: FF_USE_EXPONENTIAL_BACKOFF_STAGE_RETRY.
    pub(super) fn new(timing: &Timing, long: bool) -> Tries {
        let (first, longest) = match long {
            true => (timing.stage_retry, timing.stage_retry_max),
            false => (timing.stage_retry_short, timing.stage_retry_short_max),
        };
        Tries { first, longest, failed: 0, until: None }
    }

    /// Another one failed. `Some`: the how-manyth that was, and the next may begin after a rest.
    pub(super) fn again(&mut self, allowed: u32, now: Instant) -> Option<u32> {
        self.failed += 1;
        if self.failed >= allowed {
            self.reset();
            return None;
        }
        let rest = self.first.saturating_mul(1 << (self.failed - 1).min(16)).min(self.longest);
        self.until = Some(now + rest);
        Some(self.failed)
    }

    /// Whatever is counted: nothing before then.
    pub(super) fn rest(&mut self, until: Instant) {
        self.until = Some(until);
    }

    /// The stage went well, or is given up.
    pub(super) fn reset(&mut self) {
        (self.failed, self.until) = (0, None);
    }

    pub(super) fn resting(&self) -> Option<Instant> {
        self.until
    }

    /// Rest no longer than until `end`.
    pub(super) fn not_beyond(&mut self, end: Instant) {
        self.until = self.until.map(|until| until.min(end));
    }

    /// Whether nothing is waited for, or no longer.
    pub(super) fn rested(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| until <= now) {
            self.until = None;
        }
        self.until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_up_to_their_limit() {
        let timing = Timing { stage_retry: Duration::from_secs(5), ..Timing::default() };
        for (long, want) in [(true, [5, 10, 20, 40, 80, 160, 300, 300]), (false, [1, 2, 4, 5, 5, 5, 5, 5])] {
            let mut tries = Tries::new(&timing, long);
            let mut now = Instant::now();
            let mut rests = Vec::new();
            while tries.again(9, now).is_some() {
                let until = tries.resting().unwrap();
                assert!(!tries.rested(now) && tries.clone().rested(until));
                rests.push((until - now).as_secs());
                now = until;
            }
            assert_eq!(rests, want);
            assert!(tries.rested(now), "the last one that fails is not waited for");
        }
        assert_eq!(Tries::new(&timing, true).again(1, Instant::now()), None);
    }
}
