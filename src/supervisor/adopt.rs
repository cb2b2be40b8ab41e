//! The job directories that an earlier manager left: what is to be done with each. A directory that
//! cannot be read is put aside with one line, and a panic over one stops none of the others (kill
//! point 16).

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::dispatch::deliver::Delivery;
use crate::dispatch::{Desk, Held, control};
use crate::forges;
use crate::jobdir::{self, JobDir, Phase, State};

/// What was found.
#[derive(Debug)]
pub(super) enum Found {
    /// Its thread decides: attach, confirm and run, or sweep.
    Job { held: Box<Held>, key: String },
    /// It has ended, and is only to be reported.
    Ended(Box<Delivery>),
}

/// Every directory that no thread of this manager holds.
pub(super) fn all(desk: &Desk) -> Vec<Found> {
    match jobdir::list(&desk.jobs) {
        Ok(dirs) => {
            dirs.into_iter().filter(|d| !desk.registry.is_held(d.name())).filter_map(|d| one(desk, d)).collect()
        }
        Err(e) => {
            log::error!("the jobs of an earlier run cannot be listed: {e}");
            Vec::new()
        }
    }
}

pub(super) fn one(desk: &Desk, dir: JobDir) -> Option<Found> {
    let name = dir.name().clone();
    let spare = dir.again();
    match catch_unwind(AssertUnwindSafe(|| look(desk, dir))) {
        Ok(Ok(found)) => found,
        Ok(Err(broken)) => {
            put_aside(desk, &broken.dir, &broken.why);
            None
        }
        Err(_) => {
            match spare {
                Ok(dir) => put_aside(desk, &dir, "reading it failed by a fault of the runner"),
                Err(e) => log::error!(job = name.as_str(); "the job cannot be taken up: {e}"),
            }
            None
        }
    }
}

struct Broken {
    dir: JobDir,
    why: String,
}

fn look(desk: &Desk, dir: JobDir) -> Result<Option<Found>, Broken> {
    let name = dir.name().clone();
    let record = match dir.lease() {
        Ok(record) => record,
        Err(e) => return Err(Broken { dir, why: e.to_string() }),
    };
    if record.phase == Phase::Delivered {
        log::debug!(job = name.as_str(); "was reported before; its directory is removed");
        let _ = dir.remove();
        return Ok(None);
    }
    let state = match dir.inspect() {
        Ok(state) => state,
        Err(e) => return Err(Broken { dir, why: e.to_string() }),
    };
    let job = dir.job();
    let unreadable = match (&state, &job) {
        (State::NeverStarted(_), Err(e)) if record.phase != Phase::Acquiring => Some(e.to_string()),
        _ => None,
    };
    if let Some(why) = unreadable {
        return Err(Broken { dir, why });
    }
    let lease = match forges::adopt(&dir, &desk.ground) {
        Ok(lease) => lease,
        Err(e) => return Err(Broken { dir, why: e.to_string() }),
    };
    let mut held = Held::new(desk, dir, lease, &record.entry, "");
    if let Ok(job) = &job {
        held = held.with_job(desk, job);
    }
    let what = match &state {
        State::Running => "its process runs on",
        State::Ended(..) => "it has ended and is to be reported",
        State::NeverStarted(_) => "it was never started",
        State::Crashed(..) => "its process is gone without an outcome",
    };
    log::info!(job = name.as_str(); "adopted from an earlier run: {what}");
    Ok(Some(match state {
        State::Ended(outcome, _lock) => Found::Ended(Box::new(Delivery::new(held, *outcome))),
        _ => Found::Job { held: Box::new(held), key: record.entry },
    }))
}

/// Nothing of it may live on unwatched (invariant 5).
pub(super) fn put_aside(desk: &Desk, dir: &JobDir, why: &str) {
    for left in control::kill(dir, None, desk.timing) {
        log::error!(job = dir.name().as_str(); "a process of the job cannot be ended: {left}");
    }
    match dir.set_aside(&desk.broken) {
        Ok(to) => log::error!(job = dir.name().as_str(); "the job is put aside as {}: {why}", to.display()),
        Err(e) => log::error!(job = dir.name().as_str(); "the job cannot be put aside ({e}): {why}"),
    }
}
