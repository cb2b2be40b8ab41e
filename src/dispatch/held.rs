//! What a thread holds of a job, and the words in which it speaks of it. Decides nothing.

use std::fmt;
use std::io;

use crate::forge::Lease;
use crate::jobdir::{JobDir, Phase};
use crate::model::{Job, Outcome, Verdict, Why};
use crate::monitor::{Holding, Slot};

use super::Desk;
use super::sides::Sides;

/// A line of our own log about one job.
macro_rules! say {
    ($level:expr, $who:expr, $($text:tt)+) => {{
        let who: &crate::dispatch::held::Who = &$who;
        log::log!(
            $level, job = who.job.as_str(), project = who.project.as_str(), entry = who.entry.as_str();
            $($text)+
        );
    }};
}
pub(super) use say;

/// A job directory with its lease: what a thread owns.
pub struct Held {
    pub dir: JobDir,
    _holding: Holding,
    pub(super) lease: Box<dyn Lease>,
    pub(super) sides: Sides,
    pub(super) who: Who,
    /// The entry's key: its slots and limits.
    pub(super) entry: String,
    pub(super) slot: Option<Slot>,
    /// In the names of its threads.
    pub label: String,
    pub(super) phase: Phase,
    /// What it was told to end for.
    pub(super) told: Option<Why>,
    /// Why this manager killed its process.
    pub(super) killed: Option<String>,
    /// Its crash was to be said in its log; once.
    pub(super) reported: bool,
    /// The server wants no more of it.
    pub(super) settled: bool,
}

impl Held {
    pub fn new(desk: &Desk, dir: JobDir, lease: Box<dyn Lease>, entry: &str, label: &str) -> Held {
        Held {
            who: lease.job().map_or_else(|| Who::unknown(&dir), Who::of),
            phase: lease.record().phase,
            _holding: desk.registry.hold(dir.name()),
            dir,
            lease,
            sides: Sides::default(),
            entry: entry.to_owned(),
            slot: None,
            label: label.to_owned(),
            told: None,
            killed: None,
            reported: false,
            settled: false,
        }
    }

    /// With what its `job.json` says.
    pub fn with_job(mut self, desk: &Desk, job: &Job) -> Held {
        self.who = Who::of(job);
        self.slot = Some(desk.registry.resume(&self.entry, &job.project, job.slot, job.project_slot));
        self
    }

    /// After `confirm`: the phase, and the job where it became known only now.
    pub(super) fn complete(&mut self, desk: &Desk) -> io::Result<()> {
        let record = self.lease.record();
        if record.phase != self.phase {
            self.dir.write_lease(&record)?;
            self.phase = record.phase;
        }
        if let (None, Some(job)) = (&self.slot, self.lease.job()) {
            let slot = desk.registry.claim(&self.entry, &job.project);
            self.who = Who::of(job);
            self.dir.write_job(&numbered(job, &slot))?;
            self.slot = Some(slot);
        }
        Ok(())
    }
}

pub(super) fn numbered(job: &Job, slot: &Slot) -> Job {
    Job { slot: slot.number, project_slot: slot.project_number, ..job.clone() }
}

/// Names a job in our log lines. What is not known is empty.
#[derive(Clone, Debug, Default)]
pub struct Who {
    pub(super) job: String,
    pub(super) project: String,
    pub(super) entry: String,
}

impl Who {
    pub(super) fn of(job: &Job) -> Who {
        Who { job: job.id.clone(), project: job.project.clone(), entry: job.settings.entry.clone() }
    }

    fn unknown(dir: &JobDir) -> Who {
        Who { job: dir.name().to_string(), ..Who::default() }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("dir", &self.dir).field("phase", &self.phase).finish_non_exhaustive()
    }
}

/// Only the runner's own faults are worth a warning: a failed job is data.
pub(super) fn level_of(outcome: &Outcome) -> log::Level {
    match outcome.why {
        Some(Why::System | Why::Crashed | Why::HostRestarted | Why::Orphaned) => log::Level::Warn,
        _ => log::Level::Info,
    }
}

pub(super) fn said(outcome: &Outcome) -> String {
    let verdict = match outcome.verdict {
        Verdict::Success => "job succeeded",
        Verdict::Failed => "job failed",
        Verdict::Canceled => "job canceled",
    };
    match outcome.message.as_str() {
        "" => verdict.to_owned(),
        message => format!("{verdict} ({message})"),
    }
}
