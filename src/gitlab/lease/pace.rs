//! When what is due: the log, a touch, or nothing (protocol §2.5). Data and arithmetic; sends nothing.
//!
//! Better than the reference on two counts: what lies more than a chunk behind goes out back to back, and
//! an interval of the server's delays no word from it beyond [`Timing::force_send`], so that a cancel is
//! heard in time.

use std::time::{Duration, Instant};

use crate::clock::Timing;
use crate::forge::Due;
use crate::retry::Backoff;

use super::upload::CHUNK;

#[derive(Debug)]
pub(super) struct Pace {
    timing: Timing,
    /// Between two pieces of log, as the server says.
    interval: Duration,
    /// The last time the server answered well.
    contact: Option<Instant>,
    last_log: Option<Instant>,
    /// When there was something to send for the first time.
    first_output: Option<Instant>,
    pub(super) log: Retry,
    pub(super) state: Retry,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Log,
    Touch,
    Wait(Due),
}

/// When something that failed may be tried again.
#[derive(Debug)]
pub(super) struct Retry {
    backoff: Backoff,
    cap: Duration,
    until: Option<Instant>,
}

impl Pace {
    pub(super) fn new(timing: &Timing) -> Pace {
        let retry = || Retry {
            backoff: Backoff::new(timing.http_backoff_min, timing.backoff_max),
            cap: timing.backoff_max,
            until: None,
        };
        Pace {
            timing: *timing,
            interval: timing.update_interval,
            contact: None,
            last_log: None,
            first_output: None,
            log: retry(),
            state: retry(),
        }
    }

    /// What is most urgent while the job runs, with so many bytes not sent yet.
    pub(super) fn next(&mut self, behind: u64, is_at_start: bool, now: Instant) -> Step {
        let interval = self.interval.min(self.timing.force_send);
        let regular = match self.last_log {
            _ if behind >= CHUNK => now,
            _ if behind > 0 && is_at_start => *self.first_output.get_or_insert(now) + self.timing.first_output,
            Some(last) => last + interval,
            None => now,
        };
        let log_at = self.log.no_sooner(regular);
        let touch_at = self.state.no_sooner(self.contact.map_or(now, |c| c + self.timing.force_send));
        if behind > 0 && log_at <= now {
            Step::Log
        } else if touch_at <= now {
            Step::Touch
        } else {
            let at = if behind > 0 { log_at.min(touch_at) } else { touch_at };
            Step::Wait(Due { soonest: log_at.max(now), at })
        }
    }

    /// The server answered well: it knows that we live.
    pub(super) fn heard(&mut self, now: Instant) {
        self.contact = Some(now);
    }

    pub(super) fn logged(&mut self, now: Instant) {
        self.last_log = Some(now);
        self.contact = Some(now);
        self.log.succeeded();
    }

    /// `X-GitLab-Trace-Update-Interval`, wherever it stands. What is no whole number of seconds is not
    /// heeded.
    pub(super) fn interval(&mut self, header: Option<&str>) -> Option<Duration> {
        let seconds = header?.parse().ok().filter(|&s: &u64| s > 0)?;
        self.interval = Duration::from_secs(seconds).min(self.timing.update_interval_max);
        Some(self.interval)
    }

    /// The job has ended: nothing that failed before holds its report back.
    pub(super) fn ending(&mut self) {
        self.log.succeeded();
        self.state.succeeded();
    }

    /// Nothing is to be done until somebody asks again, and nobody need soon.
    pub(super) fn idle(&self, now: Instant) -> Due {
        Due { soonest: now + self.timing.force_send, at: now + self.timing.force_send }
    }
}

impl Retry {
    pub(super) fn succeeded(&mut self) {
        self.backoff.reset();
        self.until = None;
    }

    /// Wait as the server asks, else a step longer than the last time; never more than the cap.
    pub(super) fn failed(&mut self, now: Instant, asked: Option<Duration>) {
        let wait = asked.map_or_else(|| self.backoff.next(), |a| a.min(self.cap));
        self.until = Some(now + wait);
    }

    /// It did not fail, but is to be asked again.
    pub(super) fn wait(&mut self, now: Instant, time: Duration) {
        self.until = Some(now + time);
    }

    /// Wait as long as the server said; where it said nothing, as after a failure.
    pub(super) fn wait_or_fail(&mut self, now: Instant, said: Option<Duration>) {
        match said {
            Some(time) => self.wait(now, time),
            None => self.failed(now, None),
        }
    }

    /// The moment from which on it may be tried.
    pub(super) fn no_sooner(&self, than: Instant) -> Instant {
        self.until.map_or(than, |u| u.max(than))
    }

    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.no_sooner(now) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The step in words, with the seconds from `now` of what is waited for.
    fn check(pace: &mut Pace, behind: u64, is_at_start: bool, now: Instant) -> String {
        match pace.next(behind, is_at_start, now) {
            Step::Log => "log".to_owned(),
            Step::Touch => "touch".to_owned(),
            Step::Wait(due) => {
                let after = |at: Instant| (at - now).as_millis();
                format!("wait {}/{}", after(due.soonest), after(due.at))
            }
        }
    }

    fn pace(now: Instant) -> Pace {
        let mut pace = Pace::new(&Timing::default());
        pace.heard(now);
        pace
    }

    #[test]
    fn the_first_output_is_sent_soon_and_the_next_after_the_interval() {
        let now = Instant::now();
        let mut pace = pace(now);
        assert_eq!(check(&mut pace, 0, true, now), "wait 0/30000");
        let seen = now + SECOND;
        assert_eq!(check(&mut pace, 10, true, seen), "wait 600/600");
        assert_eq!(check(&mut pace, 20, true, seen + Duration::from_millis(600)), "log");
        pace.logged(seen);
        assert_eq!(check(&mut pace, 0, false, seen), "wait 3000/30000");
        assert_eq!(check(&mut pace, 5, false, seen + SECOND), "wait 2000/2000");
        assert_eq!(check(&mut pace, 5, false, seen + 3 * SECOND), "log");
        assert_eq!(check(&mut pace, CHUNK, false, seen), "log");
    }

    #[test]
    fn a_silent_job_is_touched_and_a_long_interval_delays_no_cancel() {
        let now = Instant::now();
        let mut pace = pace(now);
        pace.logged(now);
        assert_eq!(pace.interval(Some("60")), Some(60 * SECOND));
        assert_eq!(check(&mut pace, 0, false, now + 30 * SECOND), "touch");
        assert_eq!(check(&mut pace, 5, false, now + SECOND), "wait 29000/29000");
        assert_eq!(check(&mut pace, 5, false, now + 30 * SECOND), "log");
    }

    #[test]
    fn an_adopted_job_is_reported_at_once() {
        let now = Instant::now();
        let mut pace = Pace::new(&Timing::default());
        assert_eq!(check(&mut pace, 5, false, now), "log");
        assert_eq!(check(&mut pace, 0, false, now), "touch");
    }

    #[test]
    fn failures_hold_back_what_failed_and_not_the_other() {
        let now = Instant::now();
        let mut pace = pace(now);
        pace.logged(now);
        pace.log.failed(now + 4 * SECOND, Some(100 * SECOND));
        assert_eq!(check(&mut pace, 5, false, now + 4 * SECOND), "wait 60000/26000");
        assert_eq!(check(&mut pace, 5, false, now + 30 * SECOND), "touch");
        pace.state.failed(now + 30 * SECOND, None);
        assert_eq!(check(&mut pace, 5, false, now + 30 * SECOND), "wait 34000/100");
        pace.ending();
        assert!(pace.log.is_ready(now) && pace.state.is_ready(now));
    }

    #[test]
    fn only_whole_positive_seconds_change_the_interval() {
        let mut pace = Pace::new(&Timing::default());
        for (header, want) in [
            (Some("1"), Some(1)),
            (Some("5000"), Some(900)),
            (Some("0"), None),
            (Some("-1"), None),
            (Some("0.5"), None),
            (Some("x"), None),
            (None, None),
        ] {
            assert_eq!(pace.interval(header), want.map(Duration::from_secs), "{header:?}");
        }
    }
}
