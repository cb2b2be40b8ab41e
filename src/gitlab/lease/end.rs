//! The end of a GitLab job: the rest of its log, then its final state, until the server has taken it
//! (protocol §2.7). Each call makes one request at most.

use std::time::Instant;

use crate::clock::Timing;
use crate::diag;
use crate::forge::{Attended, Due};
use crate::jobdir::{JobDir, Phase};
use crate::model::Outcome;

use super::ask::{Report, Said};
use super::reason;
use super::{GitlabLease, log_length};
use crate::gitlab::wire::answer::{Known, Put};

/// Refusals without a word that are believed: one may be a passing fault (kill point 33).
const REFUSALS: u32 = 3;

/// How far the end is.
#[derive(Debug, Default)]
pub(super) struct End {
    since: Option<Instant>,
    /// The log was refused for so long that the state is asked for, to learn whether it would be taken.
    is_log_in_doubt: bool,
    /// The rest of the log goes nowhere; the final state is sent without it.
    is_log_given_up: bool,
    refusals: u32,
}

impl End {
    /// The server, or the disk, refused a piece of log. With `for_good` there is no second try once the
    /// job has ended; otherwise the final state is held back for a while only.
    pub(super) fn log_failed(&mut self, timing: &Timing, for_good: bool) {
        let Some(since) = self.since else { return };
        if for_good {
            self.is_log_given_up = true;
        } else if since.elapsed() > timing.hold_back {
            self.is_log_in_doubt = true;
        }
    }
}

impl GitlabLease {
    pub(super) fn finish(&mut self, dir: &JobDir, outcome: &Outcome, now: Instant) -> Attended {
        if self.phase == Phase::Delivered {
            return Attended::Settled;
        }
        if self.end.since.is_none() {
            self.end.since = Some(now);
            self.pace.ending();
        }
        let length = log_length(dir);
        let has_log = self.has_log(length);
        let retry = if has_log && !self.is_asking() { &self.pace.log } else { &self.pace.state };
        if !retry.is_ready(now) {
            return self.held(dir);
        }
        if self.is_asking() {
            self.touch(dir, length);
            // An update was taken while the log was not: it is not the server that is down.
            let is_well = self.pace.state.is_ready(Instant::now());
            if std::mem::take(&mut self.end.is_log_in_doubt) && is_well {
                log::warn!("{}: the server takes no more log; the job is reported without the rest", self.name);
                self.end.is_log_given_up = true;
            }
        } else if has_log {
            self.send_log(dir, length);
        } else if self.report(dir, outcome, length) {
            diag::point("final-accepted");
            self.phase = Phase::Delivered;
            return Attended::Settled;
        }
        self.held(dir)
    }

    /// An update that is no final one must come first: without the first one the server takes nothing.
    fn is_asking(&self) -> bool {
        !self.is_over && (!self.is_acknowledged || self.end.is_log_in_doubt)
    }

    fn has_log(&self, length: u64) -> bool {
        !self.is_over && !self.end.is_log_given_up && self.upload.behind(length) > 0
    }

    /// The final state; true when the server wants to hear no more of the job.
    fn report(&mut self, dir: &JobDir, outcome: &Outcome, length: u64) -> bool {
        let report = Report {
            state: reason::state(outcome),
            failure_reason: reason::told(outcome, &self.data.failure_reasons),
            exit_code: reason::exit_code(outcome),
            checksum: self.checksum(dir, length),
            size: length,
        };
        let said = self.put(&report);
        let now = Instant::now();
        match said {
            Ok(Said { put: Put::Done | Put::Abort(Known::State), .. }) => return true,
            Ok(Said { put: Put::Abort(Known::Nothing), line, .. }) => {
                self.end.refusals += 1;
                log::warn!("{}: {line}", self.name);
                if self.end.refusals >= REFUSALS {
                    return true;
                }
                // The second try soon, the third shortly before the time is up.
                let within = self.timing.forbidden_within;
                self.pace.state.wait(now, if self.end.refusals == 1 { within / 12 } else { within * 3 / 4 });
            }
            // The server works on it, for as long as it takes; it is no failure.
            Ok(Said { put: Put::Accepted, interval, .. }) => {
                self.pace.heard(now);
                self.renew(dir);
                self.pace.state.wait_or_fail(now, interval);
            }
            Ok(Said { put: Put::TraceInvalid, interval, .. }) => {
                self.upload.rewind();
                self.pace.log.wait_or_fail(now, interval);
                self.pace.state.wait_or_fail(now, interval);
            }
            Ok(said) => self.pace.state.failed(now, said.asked),
            Err(_) => self.pace.state.failed(now, None),
        }
        false
    }

    fn held(&self, dir: &JobDir) -> Attended {
        let now = Instant::now();
        let is_log = self.has_log(log_length(dir)) && !self.is_asking();
        let at = if is_log { self.pace.log.no_sooner(now) } else { self.pace.state.no_sooner(now) };
        Attended::Held { wanted: self.wanted, due: Due { soonest: at, at }, contact: self.contact }
    }
}
