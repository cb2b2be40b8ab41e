//! Back-off as data: how long to wait after a failure. Never waits itself.

use std::time::Duration;

/// Doubles from its first step to its cap. It waits for nobody: the caller adds the answer to `now`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    step: Duration,
}

impl Backoff {
    pub fn new(min: Duration, max: Duration) -> Backoff {
        Backoff { min, max, step: min }
    }

    /// How long to wait after one more failure.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so it is no iterator")]
    pub fn next(&mut self) -> Duration {
        let wait = self.step.min(self.max);
        self.step = wait.saturating_mul(2);
        wait
    }

    /// After a success.
    pub fn reset(&mut self) {
        self.step = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backoff_doubles_to_its_cap_and_starts_again_after_a_success() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(700));
        let steps: Vec<_> = (0..5).map(|_| backoff.next()).collect();
        assert_eq!(steps, [100, 200, 400, 700, 700].map(ms));
        backoff.reset();
        assert_eq!(backoff.next(), ms(100));
    }
}
