//! What a job process was told, and by when it must be done: the kill timer (design §4.4), the answer to
//! a message, the job's own limit. A pure state machine over `now`; sends and kills nothing.

use std::time::Duration;

use crate::clock::{BootTime, Timing};
use crate::dispatch::why;
use crate::forge::Wanted;
use crate::model::{ToJob, Why};
use crate::shutdown::Level;

#[derive(Debug)]
pub(super) struct Orders {
    timing: Timing,
    told: Option<Told>,
    /// The end of a cancel, an abort or a shutdown.
    kill_at: Option<BootTime>,
    /// A message must be answered by then.
    answer_by: Option<BootTime>,
    /// The job process ends the job at its limit; this is when it has failed to.
    limit: Option<BootTime>,
    killed: Option<String>,
}

/// A job that is being canceled can be aborted, not the other way round.
#[derive(Clone, Copy, Debug)]
enum Told {
    Cancel(Why),
    End(Why),
}

impl Orders {
    pub(super) fn new(timing: Timing, limit: Option<BootTime>) -> Orders {
        Orders { timing, told: None, kill_at: None, answer_by: None, limit, killed: None }
    }

    /// What the server wants; `Some`: to be sent.
    pub(super) fn wanted(&mut self, wanted: Wanted, now: BootTime) -> Option<ToJob> {
        match wanted {
            Wanted::Run => None,
            Wanted::Cancel { within } => self.cancel(within, now),
            Wanted::Abort(why) => self.rise(Told::End(why), self.timing.cancel_least, ToJob::Abort { why }, now),
        }
    }

    /// How far the runner is stopping.
    pub(super) fn level(&mut self, level: Level, now: BootTime) -> Option<ToJob> {
        match level {
            Level::Run | Level::Drain | Level::Handing | Level::HandOver | Level::Leave => None,
            Level::Abort { by, kill_after } => {
                let why = why(by);
                let message = ToJob::RunnerShutdown { why, kill_after: millis(kill_after) };
                self.rise(Told::End(why), kill_after + self.timing.kill_lead, message, now)
            }
        }
    }

    /// The job process kills its stages some time before its own end, to sweep and write the outcome.
    fn cancel(&mut self, within: Duration, now: BootTime) -> Option<ToJob> {
        let within = within.max(self.timing.cancel_least);
        let kill_after = millis(within.saturating_sub(self.timing.kill_lead));
        let why = Why::Canceled;
        self.rise(Told::Cancel(why), within, ToJob::Cancel { why, kill_after }, now)
    }

    fn rise(&mut self, told: Told, within: Duration, message: ToJob, now: BootTime) -> Option<ToJob> {
        if self.told.is_some_and(|before| rank(before) >= rank(told)) {
            return None;
        }
        self.told = Some(told);
        let end = now.after(within);
        self.kill_at = Some(self.kill_at.map_or(end, |before| before.min(end)));
        let answer = now.after(self.timing.channel_timeout);
        self.answer_by = Some(self.answer_by.map_or(answer, |before| before.min(answer)));
        Some(message)
    }

    /// A message was answered.
    pub(super) fn heard(&mut self) {
        self.answer_by = None;
    }

    /// When to ask [`Orders::overdue`] again.
    pub(super) fn next(&self) -> Option<BootTime> {
        [self.kill_at, self.answer_by, self.limit].into_iter().flatten().min()
    }

    /// Why the process is to be killed now.
    pub(super) fn overdue(&self, now: BootTime) -> Option<String> {
        let over = |at: Option<BootTime>| at.is_some_and(|at| at <= now);
        if over(self.answer_by) {
            return Some(format!("it did not answer for {:?}", self.timing.channel_timeout));
        }
        if over(self.kill_at) {
            return Some("it did not end in the time that it was given".to_owned());
        }
        over(self.limit).then(|| "it did not end at the job's time limit".to_owned())
    }

    /// It was; if that had no effect, again later.
    pub(super) fn killed(&mut self, reason: String, now: BootTime) {
        if self.told.is_none() && self.limit.is_some_and(|at| at <= now) {
            self.told = Some(Told::End(Why::TimedOut));
        }
        self.killed.get_or_insert(reason);
        self.answer_by = None;
        self.limit = None;
        self.kill_at = Some(now.after(self.timing.kill_wait));
    }

    pub(super) fn told(&self) -> Option<Why> {
        self.told.map(|(Told::Cancel(why) | Told::End(why))| why)
    }

    pub(super) fn why_killed(&self) -> Option<String> {
        self.killed.clone()
    }
}

/// Of one rank the first reason stays.
fn rank(told: Told) -> u8 {
    match told {
        Told::Cancel(_) => 1,
        Told::End(_) => 2,
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shutdown::By;

    fn orders() -> (Orders, BootTime) {
        (Orders::new(Timing::default(), None), BootTime::now())
    }

    fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_cancel_gives_a_minute_at_least_and_kills_fifteen_seconds_before_its_end() {
        for (within, kill_after, end) in [(1, 45_000, 60), (300, 285_000, 300)] {
            let (mut orders, now) = orders();
            let sent = orders.wanted(Wanted::Cancel { within: s(within) }, now);
            assert_eq!(sent, Some(ToJob::Cancel { why: Why::Canceled, kill_after }));
            orders.heard();
            assert_eq!(orders.next(), Some(now.after(s(end))));
            assert!(orders.overdue(now.after(s(end - 1))).is_none());
            assert!(orders.overdue(now.after(s(end))).is_some());
        }
    }

    #[test]
    fn what_is_wanted_only_rises_and_the_earliest_end_stays() {
        let (mut orders, now) = orders();
        assert!(orders.wanted(Wanted::Cancel { within: s(300) }, now).is_some());
        assert!(orders.wanted(Wanted::Cancel { within: s(300) }, now.after(s(10))).is_none(), "sent twice");
        let abort = orders.wanted(Wanted::Abort(Why::Aborted), now.after(s(10)));
        assert_eq!(abort, Some(ToJob::Abort { why: Why::Aborted }));
        orders.heard();
        assert_eq!(orders.next(), Some(now.after(s(70))));
        assert!(orders.wanted(Wanted::Cancel { within: s(1) }, now.after(s(20))).is_none());
        assert_eq!(orders.told(), Some(Why::Aborted));
    }

    #[test]
    fn a_shutdown_is_told_once_with_its_kill_timer() {
        let (mut orders, now) = orders();
        let level = Level::Abort { by: By::Int, kill_after: s(15) };
        let sent = orders.level(level, now);
        assert_eq!(sent, Some(ToJob::RunnerShutdown { why: Why::Interrupted, kill_after: 15_000 }));
        assert!(orders.level(level, now).is_none());
        assert_eq!(orders.told(), Some(Why::Interrupted));
    }

    #[test]
    fn a_message_that_is_not_answered_is_the_end() {
        let (mut orders, now) = orders();
        orders.wanted(Wanted::Abort(Why::Aborted), now);
        assert_eq!(orders.next(), Some(now.after(s(30))));
        let reason = orders.overdue(now.after(s(30))).unwrap();
        assert!(reason.contains("30s"), "{reason}");
        orders.killed(reason, now.after(s(30)));
        assert_eq!(orders.next(), Some(now.after(s(40))), "killed again if it lives on");
        assert_eq!(orders.told(), Some(Why::Aborted));
    }

    #[test]
    fn a_job_process_that_misses_the_limit_is_killed_and_timed_out() {
        let now = BootTime::now();
        let mut orders = Orders::new(Timing::default(), Some(now.after(s(60))));
        assert!(orders.overdue(now.after(s(59))).is_none());
        let reason = orders.overdue(now.after(s(60))).unwrap();
        orders.killed(reason, now.after(s(60)));
        assert_eq!(orders.told(), Some(Why::TimedOut));
    }
}
