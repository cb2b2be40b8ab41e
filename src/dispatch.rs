//! A job's life as the manager sees it, top to bottom: its directory, confirmed, started, tended, swept
//! when it crashed, reported, removed. The same code takes up the directories of an earlier manager. Each
//! turn asks [`JobDir::inspect`] what is there and does the next thing; nothing else remembers.
//!
//! **Invariant 2**: whoever confirmed a lease comes to `finish` exactly once, through a panic, a kill and
//! a shutdown too, because what to do next is read from the directory and only `finish` removes it.
//! Never runs a script, never polls.

pub mod control;
pub mod deliver;
mod held;
mod sides;
mod spawn;
mod sweep;
mod tend;

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use crossbeam_channel::{Sender, select};
use log::Level;

use crate::clock::Timing;
use crate::diag;
use crate::forge::{Attended, Confirm, Contact, Due, Lease};
use crate::forges::Ground;
use crate::jobdir::{JobDir, Lock, Phase, State};
use crate::model::{Outcome, Why};
use crate::monitor::Registry;
use crate::shutdown::{self, By, Stop};

pub use held::{Held, Who};
use held::{level_of, numbered, said, say};
pub use sides::News;

/// What every job of this manager stands on.
#[derive(Clone, Debug)]
pub struct Desk {
    /// `STATE/jobs`.
    pub jobs: PathBuf,
    /// `STATE/broken`.
    pub broken: PathBuf,
    pub timing: Timing,
    pub ground: Ground,
    pub stop: Stop,
    pub registry: Registry,
    pub news: Sender<News>,
}

impl Desk {
    /// The supervisor may be gone: then nobody needs to know.
    fn tell(&self, news: News) {
        let _ = self.news.send(news);
    }
}

/// What became of a job, as its thread reports it.
#[derive(Debug)]
pub enum Fate {
    /// Reported and removed, or never ours.
    Done,
    /// The directory stays as it is, for the next image or the next start.
    Left,
    /// It has ended, but its server cannot be reported to.
    Undelivered(Box<deliver::Delivery>),
}

/// What comes next in a job's life.
enum Step {
    /// See what the directory says now.
    Look,
    Outcome(Outcome),
    Over(Fate),
}

/// How often a job process may end before its first stage, and its threads may panic.
const TRIES: u32 = 3;

/// A job that a poll gave.
pub fn fresh(desk: &Desk, entry: &str, lease: Box<dyn Lease>, label: &str) -> Fate {
    let name = lease.name();
    let slot = lease.job().map(|job| desk.registry.claim(entry, &job.project));
    let made = JobDir::create(&desk.jobs, &name, |dir| {
        dir.write_lease(&lease.record())?;
        if let (Some(job), Some(slot)) = (lease.job(), &slot) {
            dir.write_job(&numbered(job, slot))?;
        }
        Ok(())
    });
    let dir = match made {
        Ok(dir) => dir,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            log::warn!("{name}: given again while it is held here; the second one is dropped");
            return Fate::Done;
        }
        Err(e) => {
            log::error!("{name}: cannot be held, so it is not confirmed and its server gives it to another: {e}");
            // What cannot hold this job cannot hold the next: its server's queue is not emptied into nothing.
            select! {
                recv(desk.stop.watch().changed()) -> _ => {}
                default(desk.timing.backoff_min) => {}
            }
            return Fate::Done;
        }
    };
    let mut held = Held::new(desk, dir, lease, entry, label);
    held.slot = slot;
    say!(Level::Info, held.who, "job taken");
    carry(desk, &mut held).unwrap_or_else(|outcome| finish(desk, held, outcome))
}

/// A directory of an earlier manager, or one whose thread panicked.
pub fn again(desk: &Desk, mut held: Held) -> Fate {
    carry(desk, &mut held).unwrap_or_else(|outcome| finish(desk, held, outcome))
}

/// From what the directory says to the job's outcome; or out of our hands before.
fn carry(desk: &Desk, held: &mut Held) -> Result<Fate, Outcome> {
    let mut starts = 0;
    let mut tended = 0;
    loop {
        let step = match held.dir.inspect() {
            Ok(State::Ended(outcome, _lock)) => return Err(*outcome),
            Ok(State::Crashed(crash, lock)) => sweep::crashed(desk, held, crash, lock),
            Ok(State::Running) => {
                tended += 1;
                if tended > TRIES {
                    held.killed = Some("its threads failed again and again".to_owned());
                    control::kill(&held.dir, None, desk.timing);
                }
                tend::tend(desk, held, None)
            }
            Ok(State::NeverStarted(_)) if starts == TRIES => {
                let text = "the job process ended again and again before its first stage";
                Step::Outcome(Outcome::failed(Why::System, text))
            }
            Ok(State::NeverStarted(lock)) => {
                starts += 1;
                start(desk, held, lock)
            }
            Err(e) => Step::Outcome(Outcome::failed(Why::System, format!("the job's directory cannot be read: {e}"))),
        };
        match step {
            Step::Look => {}
            Step::Over(fate) => return Ok(fate),
            Step::Outcome(outcome) => {
                // So that the next start delivers it. Without it (a full disk) that start finds it anew.
                if let Err(e) = held.dir.write_outcome(&outcome) {
                    say!(Level::Warn, held.who, "{e}");
                }
                return Err(outcome);
            }
        }
    }
}

/// Confirm it, start its process, and stay with it until that is gone.
fn start(desk: &Desk, held: &mut Held, lock: Lock) -> Step {
    match confirm(desk, held) {
        Confirmed::Run => {}
        Confirmed::Ended(why) => return Step::Outcome(Outcome::failed(why, "the job ended before it was started")),
        Confirmed::Left => return Step::Over(Fate::Left),
        Confirmed::Gone(why) => {
            say!(Level::Warn, held.who, "the server says that this job is not ours: {why}");
            remove(&held.dir);
            return Step::Over(Fate::Done);
        }
    }
    if let Err(e) = held.complete(desk) {
        return Step::Outcome(Outcome::failed(Why::System, format!("the job cannot be stored: {e}")));
    }
    match spawn::start(&held.dir, lock) {
        Ok(process) => tend::tend(desk, held, Some(process)),
        Err(e) => Step::Outcome(Outcome::failed(Why::System, format!("the job process cannot be started: {e}"))),
    }
}

enum Confirmed {
    Run,
    Ended(Why),
    Gone(String),
    Left,
}

/// Until the server has said what shall be done. One that came while the runner stops is not run.
fn confirm(desk: &Desk, held: &mut Held) -> Confirmed {
    let watch = desk.stop.watch();
    loop {
        match watch.level() {
            shutdown::Level::Run | shutdown::Level::Drain => {}
            shutdown::Level::Handing | shutdown::Level::HandOver | shutdown::Level::Leave => return Confirmed::Left,
            shutdown::Level::Abort { by, .. } => return Confirmed::Ended(why(by)),
        }
        if let Some(why) = held.told {
            return Confirmed::Ended(why);
        }
        let said = held.lease.confirm(&held.dir, Instant::now());
        held.open_sides();
        match said {
            Confirm::Run => {
                diag::point("confirmed");
                return Confirmed::Run;
            }
            Confirm::Ended { why } => return Confirmed::Ended(why),
            Confirm::Gone { why } => return Confirmed::Gone(why),
            Confirm::Again { at } => {
                select! {
                    recv(watch.changed()) -> _ => {}
                    recv(held.sides.heard) -> heard => heard.into_iter().for_each(|h| held.hear(desk, h)),
                    default(at.saturating_duration_since(Instant::now())) => {}
                }
            }
        }
    }
}

/// Report the outcome until the server has taken it, or hand it to a deliverer (kill point 10).
fn finish(desk: &Desk, mut held: Held, outcome: Outcome) -> Fate {
    held.dir.forget_job();
    held.slot = None;
    say!(level_of(&outcome), held.who, "{}", said(&outcome));
    let watch = desk.stop.watch();
    let mut failing: Option<Instant> = None;
    loop {
        let Some((due, contact)) = attempt(&mut held, &outcome) else { return Fate::Done };
        let now = Instant::now();
        match contact {
            Contact::Fine => failing = None,
            Contact::Failing => {
                let since = *failing.get_or_insert(now);
                if now.saturating_duration_since(since) >= desk.timing.deliver_after {
                    say!(Level::Warn, held.who, "the server takes no report: the slot is freed, and it is tried again");
                    return Fate::Undelivered(Box::new(deliver::Delivery::new(held, outcome)));
                }
            }
        }
        let mut until = due.at;
        if let Some(since) = failing {
            until = until.min(since + desk.timing.deliver_after).max(due.soonest);
        }
        select! {
            recv(watch.changed()) -> _ => {}
            recv(held.sides.heard) -> heard => heard.into_iter().for_each(|h| held.hear(desk, h)),
            default(until.saturating_duration_since(now)) => {}
        }
        if watch.level().lets_go() {
            return Fate::Left;
        }
    }
}

/// One request with the outcome; `None` once it was taken, and then the directory is gone too.
fn attempt(held: &mut Held, outcome: &Outcome) -> Option<(Due, Contact)> {
    if !held.settled {
        let attended = held.lease.attend(&held.dir, Some(outcome), Instant::now());
        held.open_sides();
        match attended {
            Attended::Held { due, contact, .. } => return Some((due, contact)),
            Attended::Settled => diag::point("settled"),
        }
    }
    let mut record = held.lease.record();
    record.phase = Phase::Delivered;
    if let Err(e) = held.dir.write_lease(&record) {
        say!(Level::Warn, held.who, "{e}");
    }
    diag::point("delivered");
    say!(Level::Debug, held.who, "reported");
    remove(&held.dir);
    None
}

fn remove(dir: &JobDir) {
    if let Err(e) = dir.remove() {
        log::warn!("a finished job cannot be removed: {e}");
    }
}

pub(in crate::dispatch) fn why(by: By) -> Why {
    match by {
        By::Term => Why::Terminated,
        By::Int => Why::Interrupted,
    }
}

#[cfg(test)]
mod tests;
