//! After a job process that left no outcome: ends what is left of its tree, then says in an outcome what
//! happened. Invariant 5 hangs on its order: nothing of the job lives when it is reported.

use log::Level;

use crate::jobdir::{Crash, Lock};
use crate::model::{Outcome, Why};
use crate::process::sweep;

use super::held::say;
use super::{Desk, Held, Step};

pub(super) fn crashed(desk: &Desk, held: &Held, crash: Crash, lock: Lock) -> Step {
    let outcome = Outcome { survivors: survivors(desk, held, crash), ..verdict(held, crash) };
    drop(lock);
    Step::Outcome(outcome)
}

/// What carries the job's tag, ended; what could not be.
fn survivors(desk: &Desk, held: &Held, crash: Crash) -> Vec<String> {
    let keeps = held.dir.job().is_ok_and(|job| job.settings.keep_processes);
    match (crash, held.dir.started()) {
        (Crash::Died, Ok(started)) if !keeps => {
            let left = sweep::tagged(&started.tag, &[], desk.timing.sweep_limit);
            for process in &left {
                say!(Level::Error, held.who, "a process of a crashed job cannot be ended: {process}");
            }
            left
        }
        _ => Vec::new(),
    }
}

/// One that had been told to end is what it was told.
fn verdict(held: &Held, crash: Crash) -> Outcome {
    let (why, text) = match crash {
        Crash::Died => (Why::Crashed, "the job process was killed or crashed"),
        Crash::HostRestarted => (Why::HostRestarted, "the host restarted while the job ran"),
    };
    let text = match &held.killed {
        Some(reason) => format!("the job process was killed by the runner: {reason}"),
        None => text.to_owned(),
    };
    Outcome::failed(held.told.unwrap_or(why), text)
}
