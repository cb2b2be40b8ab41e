//! One GitLab job: its confirmation, its log, its final state. Every call makes one request at most and
//! says when the next is due; nothing here waits or retries in a loop.
//!
//! **Invariant 2**: whatever the server does not say to be final is tried again, after a restart too,
//! from `lease.json`, `sent` and `log` alone. **Invariant 3**: as long as there is no outcome, the server
//! hears of the job at least every `Timing::force_send`.

mod ask;
mod end;
mod pace;
mod reason;
mod upload;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::{BootTime, Timing};
use crate::diag;
use crate::forge::{Attended, Confirm, Contact, Due, Lease, Wanted};
use crate::forges::Ground;
use crate::http::{Client, Method, pushback};
use crate::jobdir::{JobDir, LeaseRecord, Phase};
use crate::model::{ForgeKind, Job, JobName, Outcome, Secret, VERSION, Why};

use super::coordinator::Found;
use super::wire::answer::{Patch, Put, Words};
use super::wire::request::State;
use ask::{Report, Said};
use end::End;
use pace::{Pace, Step};
use upload::Upload;

/// Tries of the first update before the job runs without an answer to it: those of the reference's
/// HTTP client (protocol §3.1).
const CONFIRM_TRIES: u32 = 5;
/// Mismatches in a row that are followed at once.
const PROMPT_MISMATCHES: u32 = 3;

/// `data` of `lease.json`: what the lease needs to go on without its entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Data {
    pub(super) url: String,
    pub(super) id: i64,
    pub(super) token: Secret,
    pub(super) system_id: String,
    pub(super) info: Value,
    #[serde(default)]
    pub(super) ca_file: Option<PathBuf>,
    #[serde(default)]
    pub(super) failure_reasons: Vec<String>,
    #[serde(default)]
    pub(super) debug_trace: bool,
    /// The job's time limit, in seconds.
    pub(super) timeout: u64,
    /// How long the job may run with no manager, in milliseconds.
    pub(super) orphan: u64,
}

#[derive(Debug)]
pub(super) struct GitlabLease {
    data: Data,
    name: JobName,
    entry: String,
    phase: Phase,
    job: Option<Job>,
    client: Client,
    timing: Timing,
    /// Counts as a poll that may have a job until the job has its directory.
    found: Option<Found>,
    wanted: Wanted,
    /// How the last request went.
    contact: Contact,
    pace: Pace,
    upload: Upload,
    /// The server has answered the first update, so it takes log and final state.
    is_acknowledged: bool,
    confirm_tries: u32,
    /// Answers to the first update that were neither yes nor no.
    refusals: u32,
    mismatches: u32,
    /// The server took the job away: no more log.
    is_over: bool,
    end: End,
    renewed: Option<Instant>,
}

/// The lease of a directory of an earlier run.
pub fn adopt(dir: &JobDir, record: LeaseRecord, ground: &Ground) -> io::Result<Box<dyn Lease>> {
    let data: Data = serde_json::from_value(record.data).map_err(|e| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", dir.file("lease.json").display()))
    })?;
    let mut lease = GitlabLease::new(data, dir.name().clone(), record.entry, ground);
    lease.phase = record.phase;
    lease.is_acknowledged = record.phase != Phase::Taken;
    lease.job = dir.job().ok();
    lease.upload = Upload::resumed(&dir.sent(), log_length(dir));
    if lease.upload.is_shifted() {
        lease.say_shifted();
    }
    Ok(Box::new(lease))
}

impl GitlabLease {
    /// A job just taken. `found` is let go once the job has its directory.
    pub(super) fn taken(data: Data, entry: String, job: Job, found: Found, ground: &Ground) -> GitlabLease {
        let name = JobName::new(ForgeKind::Gitlab, &data.url, &data.id.to_string());
        GitlabLease { job: Some(job), found: Some(found), ..GitlabLease::new(data, name, entry, ground) }
    }

    fn new(data: Data, name: JobName, entry: String, ground: &Ground) -> GitlabLease {
        GitlabLease {
            client: ground.web.client(&data.url, data.ca_file.as_deref()),
            name,
            entry,
            data,
            phase: Phase::Taken,
            job: None,
            timing: ground.timing,
            found: None,
            wanted: Wanted::Run,
            contact: Contact::Fine,
            pace: Pace::new(&ground.timing),
            upload: Upload::new(),
            is_acknowledged: false,
            confirm_tries: 0,
            refusals: 0,
            mismatches: 0,
            is_over: false,
            end: End::default(),
            renewed: None,
        }
    }
}

impl Lease for GitlabLease {
    fn name(&self) -> JobName {
        self.name.clone()
    }

    fn record(&self) -> LeaseRecord {
        LeaseRecord {
            version: VERSION,
            forge: ForgeKind::Gitlab,
            entry: self.entry.clone(),
            phase: self.phase,
            data: serde_json::to_value(&self.data).expect("the data has string keys and finite numbers"),
        }
    }

    fn job(&self) -> Option<&Job> {
        self.job.as_ref()
    }

    /// Only what the server says to be final keeps the job from running (protocol §1.5.5, kill point
    /// 25). Where nothing else can be had of it, the job runs, and this is asked again before anything
    /// else is said.
    fn confirm(&mut self, dir: &JobDir, _: Instant) -> Confirm {
        self.found = None;
        let said = self.put(&Report::of(State::Running));
        diag::point("confirm-answered");
        let may_pass = match said {
            Ok(Said { put: Put::Abort(_), line, .. }) => return Confirm::Gone { why: line },
            Ok(said) => {
                self.acknowledge(&said);
                said.may_pass
            }
            Err(_) => {
                self.pace.state.failed(Instant::now(), None);
                true
            }
        };
        self.confirm_tries += 1;
        if !self.is_acknowledged && may_pass && self.confirm_tries < CONFIRM_TRIES {
            return Confirm::Again { at: self.pace.state.no_sooner(Instant::now()) };
        }
        if self.wanted != Wanted::Run {
            return Confirm::Ended { why: Why::Canceled };
        }
        self.renew(dir);
        Confirm::Run
    }

    fn attend(&mut self, dir: &JobDir, ended: Option<&Outcome>, now: Instant) -> Attended {
        if let Some(outcome) = ended {
            return self.finish(dir, outcome, now);
        }
        let length = log_length(dir);
        let due = match self.urgent(length, now) {
            Step::Wait(due) => due,
            Step::Log => {
                self.send_log(dir, length);
                self.next_due(dir)
            }
            Step::Touch => {
                self.touch(dir, length);
                self.next_due(dir)
            }
        };
        Attended::Held { wanted: self.wanted, due, contact: self.contact }
    }
}

// ---- While the job runs ----------------------------------------------------------------------

impl GitlabLease {
    fn urgent(&mut self, length: u64, now: Instant) -> Step {
        if self.is_over {
            return Step::Wait(self.pace.idle(now));
        }
        if !self.is_acknowledged {
            let at = self.pace.state.no_sooner(now);
            return if at <= now { Step::Touch } else { Step::Wait(Due { soonest: at, at }) };
        }
        self.pace.next(self.upload.behind(length), self.upload.is_at_start(), now)
    }

    fn next_due(&mut self, dir: &JobDir) -> Due {
        let now = Instant::now();
        match self.urgent(log_length(dir), now) {
            Step::Wait(due) => due,
            Step::Log | Step::Touch => Due { soonest: now, at: now },
        }
    }

    /// One `PUT running`: the job lives. With checksum and size where the server has all of the log.
    fn touch(&mut self, dir: &JobDir, length: u64) {
        let has_all = self.is_acknowledged && self.upload.behind(length) == 0;
        let checksum = if has_all { self.checksum(dir, length) } else { String::new() };
        let said = self.put(&Report { checksum, size: length, ..Report::of(State::Running) });
        let now = Instant::now();
        match said {
            Ok(Said { put: Put::Abort(_), line, .. }) => self.taken_away(&line),
            Ok(said) => {
                self.acknowledge(&said);
                if said.put == Put::Done {
                    self.pace.heard(now);
                    self.renew(dir);
                }
            }
            Err(_) => self.pace.state.failed(now, None),
        }
    }

    /// One piece of log. What is sent is stored, and is noted only after the server has it.
    fn send_log(&mut self, dir: &JobDir, length: u64) {
        let chunk = match self.upload.next(&dir.file("log"), length) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return,
            Err(e) => {
                log::warn!("{}: the log cannot be read: {e}", self.name);
                self.end.log_failed(&self.timing, true);
                return self.pace.log.failed(Instant::now(), None);
            }
        };
        let size = chunk.bytes.len();
        let sent = self.patch(&chunk);
        self.upload.spare(chunk);
        let now = Instant::now();
        let Ok(answer) = sent else {
            self.upload.unanswered(size);
            return self.pace.log.failed(now, None);
        };
        let said = Words::of(&answer).patch();
        if said != Patch::Stored {
            log::warn!("{}: {}", self.name, self.in_words(Method::Patch, &answer));
        }
        match said {
            Patch::Stored => {
                self.upload.stored(size);
                self.mismatches = 0;
                diag::point("chunk-stored");
                // Errors are the server's to repair: it answers 416 to a wrong position.
                let _ = dir.note_sent(&self.upload.note());
                self.pace.logged(now);
                self.renew(dir);
            }
            Patch::Mismatch(at) => {
                self.pace.logged(now);
                if self.upload.resume(at) {
                    self.say_shifted();
                }
                self.mismatches += 1;
                if self.mismatches > PROMPT_MISMATCHES {
                    self.pace.log.failed(now, None);
                }
            }
            Patch::Abort => self.taken_away(&self.in_words(Method::Patch, &answer)),
            Patch::NotFound => {
                self.end.log_failed(&self.timing, true);
                self.pace.log.failed(now, None);
            }
            Patch::Failed => {
                self.upload.unanswered(size);
                self.end.log_failed(&self.timing, false);
                self.pace.log.failed(now, pushback::wait(&answer));
            }
        }
    }

    /// Whether the server has the first update. Until it has, it takes neither log nor final state; one
    /// that refuses it again and again is left to its own ways.
    fn acknowledge(&mut self, said: &Said) {
        let now = Instant::now();
        let has_it = matches!(said.put, Put::Done | Put::Accepted);
        if !has_it {
            self.pace.state.failed(now, said.asked);
            self.refusals += u32::from(!said.may_pass);
        }
        if has_it || self.refusals >= CONFIRM_TRIES {
            self.is_acknowledged = true;
            self.phase = Phase::Confirmed;
        }
        if has_it {
            self.pace.heard(now);
            self.pace.state.succeeded();
        }
    }

    fn taken_away(&mut self, line: &str) {
        log::warn!("{}: the server has taken the job away: {line}", self.name);
        self.is_over = true;
        self.wanted = self.wanted.max(Wanted::Abort(Why::Aborted));
    }

    /// Said once: the job's log at the server cannot be checked.
    fn say_shifted(&self) {
        log::warn!(
            "{}: the server holds more of the log than this host, as after a power loss; what is new is sent \
             behind it, without a checksum",
            self.name
        );
    }

    /// The job may go on without a manager from now. Written again when a twentieth of the time is gone,
    /// so that a busy log costs no write for each of its pieces.
    fn renew(&mut self, dir: &JobDir) {
        let span = Duration::from_millis(self.data.orphan);
        if self.renewed.is_some_and(|at| at.elapsed() < span / 20) {
            return;
        }
        match dir.set_orphan_until(BootTime::now().after(span)) {
            Ok(()) => self.renewed = Some(Instant::now()),
            Err(e) => log::warn!("{}: the job's time without a manager cannot be noted: {e}", self.name),
        }
    }

    fn checksum(&mut self, dir: &JobDir, length: u64) -> String {
        if self.upload.is_shifted() {
            return String::new();
        }
        self.upload.checksum(&dir.file("log"), length).unwrap_or_else(|e| {
            log::warn!("{}: the log cannot be read for its checksum: {e}", self.name);
            String::new()
        })
    }
}

/// What is there to be sent; nothing while there is no log.
fn log_length(dir: &JobDir) -> u64 {
    dir.file("log").metadata().map_or(0, |m| m.len())
}

#[cfg(test)]
mod tests;
