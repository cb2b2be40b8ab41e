//! How the manager ends (design §3, §9): signals raise the level; it is over when nothing is left to wait
//! for, or when the time is up. Cuts no poll that may have a job (invariant 1).

use std::time::{Duration, Instant};

use crate::clock::BootTime;
use crate::process::threads;
use crate::shutdown::{By, Level};
use crate::worker::Report;

use super::signals::Signal;
use super::{Supervisor, handover};

/// While polls are under way at a stop, they are looked at this often: one that has parked can be cut.
const GLANCE: Duration = Duration::from_millis(20);
/// Polls that may not have a job are given up after that: the last step from an answer read to its
/// report is seen by then.
const GRACE: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Stopping {
    /// The end of `shutdown_timeout`.
    leave_at: Option<BootTime>,
    /// Since when no poll under way may have a job.
    quiet_since: Option<Instant>,
    hand_over: HandOver,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum HandOver {
    #[default]
    No,
    /// The new binary reads the configuration.
    Checking,
    /// Answers in flight are awaited.
    Draining,
    /// The jobs' threads let go, until then at most.
    LettingGo(Instant),
}

impl Stopping {
    /// When to look again.
    pub(super) fn next(&self, now: Instant, polls: usize) -> Option<Instant> {
        let leave = self.leave_at.map(|at| now + at.left());
        let glance = (polls > 0 && self.quiet_since.is_some()).then_some(now + GLANCE);
        let let_go = match self.hand_over {
            HandOver::LettingGo(until) => Some(until),
            _ => None,
        };
        [leave, glance, let_go].into_iter().flatten().min()
    }
}

impl Supervisor {
    pub(super) fn signal(&mut self, signal: Signal, now: Instant) -> Option<u8> {
        let level = self.desk.stop.level();
        match signal {
            Signal::Hup => self.reload(),
            Signal::Usr2 if level == Level::Run => self.begin_hand_over(),
            Signal::Usr2 => log::info!("USR2: already ending"),
            Signal::Quit if matches!(level, Level::Handing | Level::HandOver) => {
                log::info!("QUIT: no hand-over; ending when {} jobs have ended", self.feeder.jobs());
                self.stopping.hand_over = HandOver::No;
                self.desk.stop.resume(Level::Drain);
                self.stop(Level::Drain, now);
                // Those that were let go of run to their end here.
                self.take_up();
            }
            Signal::Quit if level >= Level::Drain => log::info!("QUIT: already ending"),
            Signal::Quit => {
                log::info!("QUIT: no new jobs; ending when {} have ended", self.feeder.jobs());
                self.stop(Level::Drain, now);
            }
            Signal::Term | Signal::Int if matches!(level, Level::Abort { .. }) => {
                log::warn!("a second signal: leaving {} jobs to the next start", self.left());
                self.desk.stop.raise(Level::Leave);
                return Some(1);
            }
            Signal::Term => self.abort(By::Term, now),
            Signal::Int => self.abort(By::Int, now),
        }
        None
    }

    fn abort(&mut self, by: By, now: Instant) {
        let timeout = self.config.shutdown_timeout;
        match by {
            By::Term => log::info!("TERM: {} jobs are terminated within {timeout:?}", self.feeder.jobs()),
            By::Int => log::info!("INT: {} jobs are interrupted within {timeout:?}", self.feeder.jobs()),
        }
        let lead = self.desk.timing.kill_lead;
        let kill_after = timeout.saturating_sub(lead).max(lead);
        self.stopping.leave_at = Some(BootTime::now().after(timeout));
        let handing_over = matches!(self.desk.stop.level(), Level::Handing | Level::HandOver);
        self.stopping.hand_over = HandOver::No;
        self.stop(Level::Abort { by, kill_after }, now);
        if handing_over {
            // Those that were let go of are ended too.
            self.take_up();
        }
    }

    fn stop(&mut self, level: Level, now: Instant) {
        self.desk.stop.raise(level);
        self.entries.hang_up();
        self.stopping.quiet_since.get_or_insert(now);
    }

    /// The exit code, once nothing is left to do or to wait for.
    pub(super) fn over(&mut self, now: Instant) -> Option<u8> {
        let level = self.desk.stop.level();
        let idle = self.feeder.jobs() == 0 && self.crew.deliveries() == 0;
        match level {
            Level::Run => (idle && self.feeder.all_retired() && self.feeder.polls() == 0).then_some(self.exit),
            Level::Handing | Level::HandOver => self.hand_over(now),
            Level::Drain | Level::Abort { .. } | Level::Leave => {
                let quiet = self.quiet(now);
                if idle && quiet {
                    return Some(0);
                }
                if self.stopping.leave_at.is_some_and(BootTime::has_passed) {
                    log::warn!("shutdown_timeout is over: leaving {} jobs to the next start", self.left());
                    self.desk.stop.raise(Level::Leave);
                    return Some(1);
                }
                None
            }
        }
    }

    fn left(&self) -> usize {
        self.feeder.jobs() + self.crew.deliveries()
    }

    /// No poll is under way that may have a job, or is about to say that it has one.
    fn quiet(&mut self, now: Instant) -> bool {
        if self.feeder.polls() == 0 {
            return true;
        }
        // One that has parked meanwhile is cut.
        self.entries.hang_up();
        if self.entries.may_have_a_job() {
            self.stopping.quiet_since = Some(now);
            return false;
        }
        let since = *self.stopping.quiet_since.get_or_insert(now);
        now.saturating_duration_since(since) >= GRACE
    }

    // ---- The hand-over -------------------------------------------------------------------------

    fn begin_hand_over(&mut self) {
        if self.stopping.hand_over != HandOver::No {
            log::info!("USR2: a hand-over is under way");
            return;
        }
        let (path, limit) = (self.config.path.clone(), self.desk.timing.hand_over_check);
        let reports = self.crew.reports();
        let check = move || drop(reports.send(Report::Checked(handover::check(&path, limit))));
        match threads::named("check", check) {
            Ok(thread) => {
                self.stopping.hand_over = HandOver::Checking;
                self.crew.check = Some(thread);
            }
            Err(e) => log::error!("no hand-over: {e}"),
        }
    }

    pub(super) fn checked(&mut self, checked: Result<(), String>) {
        if let Some(thread) = self.crew.check.take() {
            let _ = thread.join();
        }
        if self.stopping.hand_over != HandOver::Checking || self.desk.stop.level() != Level::Run {
            self.stopping.hand_over = HandOver::No;
            return;
        }
        match checked {
            Ok(()) => {
                log::info!("handing over: {} jobs run on", self.feeder.jobs());
                self.stopping.hand_over = HandOver::Draining;
                self.stop(Level::Handing, Instant::now());
            }
            Err(why) => {
                log::error!("no hand-over, this runner goes on: {why}");
                self.stopping.hand_over = HandOver::No;
            }
        }
    }

    fn hand_over(&mut self, now: Instant) -> Option<u8> {
        if self.stopping.hand_over == HandOver::Draining && self.quiet(now) {
            self.stopping.hand_over = HandOver::LettingGo(now + self.desk.timing.hand_over);
            self.desk.stop.raise(Level::HandOver);
        }
        match self.stopping.hand_over {
            HandOver::LettingGo(until) if self.left() == 0 || until <= now => {
                // What this image was told it obeys: the next one does not hear of it.
                if let Ok(signal) = self.signals.try_recv() {
                    return self.signal(signal, now);
                }
                crate::diag::point("hand-over");
                let e = handover::become_next(&self.lock);
                log::error!("no hand-over, this runner goes on: {e}");
                self.stopping = Stopping::default();
                self.desk.stop.resume(Level::Run);
                // Coordinators that have hung up stay so.
                self.entries = super::Entries::default();
                self.take_up();
                self.open_entries(now);
                None
            }
            _ => None,
        }
    }
}
