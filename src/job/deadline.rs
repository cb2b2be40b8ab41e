//! Where everything that ends a job before its time meets: its time limit, what the manager says, the
//! operating system, and a manager that never came back. Arithmetic only: it is told the time, on the
//! clock that goes on in suspend and is never set (kill point 18), and starts, stops and waits for nothing.

use std::time::Duration;

use crate::clock::{BootTime, Timing};
use crate::model::{ToJob, Why};

/// What the loop shall do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The plan is asked to end; it may go on.
    Soft(Why),
    /// Everything is halted; what still runs after `grace` is killed.
    Hard { why: Why, grace: Duration },
}

#[derive(Debug)]
pub(super) struct Deadlines {
    timing: Timing,
    /// The job's time limit.
    end: Option<BootTime>,
    /// How long the job may run with no manager, as far as the file was last read.
    orphan: Option<BootTime>,
    /// The kill timer of a soft stop.
    kill: Option<BootTime>,
    /// Why the job was told to end.
    why: Option<Why>,
}

impl Deadlines {
    pub(super) fn new(timing: Timing, started: BootTime, timeout: Duration, orphan: Option<BootTime>) -> Deadlines {
        Deadlines { timing, end: Some(started.after(timeout)), orphan, kill: None, why: None }
    }

    /// What the manager says. It may say it again, or another manager may: the earliest kill timer wins
    /// (kill point 24).
    pub(super) fn told(&mut self, message: &ToJob, now: BootTime) -> Option<Order> {
        match *message {
            ToJob::Cancel { why, kill_after } => {
                let kill = now.after(Duration::from_millis(kill_after));
                self.kill = Some(self.kill.map_or(kill, |k| k.min(kill)));
                if self.why.is_some() {
                    return None;
                }
                self.why = Some(why);
                Some(Order::Soft(why))
            }
            ToJob::Abort { why } => Some(self.hard(why, self.timing.hard_term)),
            ToJob::RunnerShutdown { why, kill_after } => Some(self.hard(why, Duration::from_millis(kill_after))),
            ToJob::OperatingSystemShutdown => Some(self.hard(Why::HostShutdown, self.timing.host_shutdown / 3)),
        }
    }

    /// What a deadline says that has passed. `renewed` reads how long the job may now run with no manager.
    pub(super) fn due(&mut self, now: BootTime, renewed: impl FnOnce() -> Option<BootTime>) -> Option<Order> {
        let passed = |at: Option<BootTime>| at.is_some_and(|at| at <= now);
        if passed(self.kill) {
            return Some(self.hard(self.why.unwrap_or(Why::Canceled), Duration::ZERO));
        }
        if passed(self.end) {
            return Some(self.hard(Why::TimedOut, self.timing.hard_term));
        }
        if passed(self.orphan) {
            self.orphan = renewed();
            if passed(self.orphan) {
                return Some(self.hard(Why::Orphaned, self.timing.hard_term));
            }
        }
        None
    }

    /// When to ask again.
    pub(super) fn next(&self) -> Option<BootTime> {
        [self.end, self.orphan, self.kill].into_iter().flatten().min()
    }

    /// After a hard stop no deadline has more to say; a sharper word of manager or system still has.
    fn hard(&mut self, why: Why, grace: Duration) -> Order {
        (self.end, self.orphan, self.kill) = (None, None, None);
        self.why = Some(why);
        Order::Hard { why, grace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);
    const TERM: Duration = Duration::from_secs(5);

    fn cancel(seconds: u64) -> ToJob {
        ToJob::Cancel { why: Why::Canceled, kill_after: seconds * 1000 }
    }

    fn hard(why: Why, grace: Duration) -> Option<Order> {
        Some(Order::Hard { why, grace })
    }

    /// A job with an hour to run; each row: the second, what is told, what shall come of it.
    fn check(what: &str, orphan: Option<u64>, rows: &[(u64, Option<ToJob>, Option<Order>)]) {
        let start = BootTime::now();
        let at = |s: u64| start.after(SEC * s as u32);
        let mut deadlines = Deadlines::new(Timing::default(), start, SEC * 3600, orphan.map(at));
        for (second, told, want) in rows {
            let got = match told {
                Some(message) => deadlines.told(message, at(*second)),
                None => deadlines.due(at(*second), || orphan.map(|s| at(s + 100))),
            };
            assert_eq!(got, *want, "{what}: second {second}");
        }
    }

    #[test]
    fn a_job_ends_at_the_first_of_its_deadlines() {
        use Why::{Aborted, Canceled, HostShutdown, Orphaned, Terminated, TimedOut};
        let timed_out = hard(TimedOut, TERM);
        check("time limit", None, &[(3599, None, None), (3600, None, timed_out), (3601, None, None)]);
        check("a renewed orphan goes on", Some(50), &[(50, None, None), (149, None, None)]);
        check("one that is not renewed ends", Some(50), &[(60, None, None), (151, None, hard(Orphaned, TERM))]);
        check(
            "a cancel kills in the end",
            None,
            &[
                (10, Some(cancel(60)), Some(Order::Soft(Canceled))),
                (69, None, None),
                (70, None, hard(Canceled, Duration::ZERO)),
                (71, None, None),
            ],
        );
        check(
            "five cancels of three managers: one stop, and the earliest timer",
            None,
            &[
                (10, Some(cancel(60)), Some(Order::Soft(Canceled))),
                (11, Some(cancel(5)), None),
                (12, Some(cancel(60)), None),
                (16, None, hard(Canceled, Duration::ZERO)),
            ],
        );
        check(
            "an abort overtakes a cancel",
            None,
            &[
                (10, Some(cancel(60)), Some(Order::Soft(Canceled))),
                (11, Some(ToJob::Abort { why: Aborted }), hard(Aborted, TERM)),
                (70, None, None),
            ],
        );
        check(
            "the runner stops and gives the rest its time",
            None,
            &[(10, Some(ToJob::RunnerShutdown { why: Terminated, kill_after: 15_000 }), hard(Terminated, SEC * 15))],
        );
        check(
            "the host goes down while the job is being ended",
            None,
            &[(3600, None, timed_out), (3601, Some(ToJob::OperatingSystemShutdown), hard(HostShutdown, SEC))],
        );
    }
}
