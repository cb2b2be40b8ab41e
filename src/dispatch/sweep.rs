//! After a job process that left no outcome: ends what is left of its tree, then has it said in the job's
//! log and in an outcome. Invariant 5 hangs on its order: nothing of the job lives when it is reported.

use log::Level;

use crate::clock::boot_id;
use crate::jobdir::{Crash, CrashNote, Lock};
use crate::model::{Outcome, VERSION, Why};
use crate::process::cgroup::Leaf;
use crate::process::sweep;

use super::held::say;
use super::{Desk, Held, Step, spawn};

/// The log is written by who holds the lock, through the job's masks: a process of the directory that
/// finds `crash.json` does that and no more. If it fails, the outcome stands without words in the log.
pub(super) fn crashed(desk: &Desk, held: &mut Held, crash: Crash, lock: Lock) -> Step {
    let (why, message) = verdict(held, crash);
    say!(Level::Debug, held.who, "{message}");
    let survivors = survivors(desk, held);
    let outcome = Outcome { survivors: survivors.clone(), ..Outcome::failed(why, message.clone()) };
    if std::mem::replace(&mut held.reported, true) {
        return Step::Outcome(outcome);
    }
    let note = CrashNote { version: VERSION, why, message, survivors };
    let reported = held.dir.write_crash(&note).and_then(|()| spawn::start(&held.dir, lock));
    match reported {
        Ok(process) => {
            if !process.wait(desk.timing.channel_timeout) {
                let _ = process.kill();
                process.wait(desk.timing.kill_wait);
            }
            Step::Look
        }
        Err(e) => {
            say!(Level::Warn, held.who, "the log does not say how the job ended: {e}");
            Step::Outcome(outcome)
        }
    }
}

/// What carries the job's tag, ended; what could not be.
fn survivors(desk: &Desk, held: &Held) -> Vec<String> {
    let keeps = held.dir.job().is_ok_and(|job| job.settings.keep_processes);
    match held.dir.started() {
        // After a restart of the host there is none, and looking costs nothing.
        Ok(started) if !keeps => {
            let leaf = started.cgroup.as_deref().map(Leaf::at);
            leaf.iter().for_each(Leaf::kill);
            // A script of our own user may have put another `lock` in the place of the held one.
            let root = (started.pid, started.start_time);
            let roots = if started.boot_id == boot_id() { vec![root] } else { Vec::new() };
            let left = sweep::tagged(Some(&started.tag), &roots, desk.timing.sweep_limit);
            leaf.iter().for_each(|l| l.remove(desk.timing.drain_ended));
            for process in &left {
                say!(Level::Error, held.who, "a process of a crashed job cannot be ended: {process}");
            }
            left
        }
        _ => Vec::new(),
    }
}

/// One that had been told to end is what it was told.
fn verdict(held: &Held, crash: Crash) -> (Why, String) {
    let (why, text) = match crash {
        Crash::Died => (Why::Crashed, "the job process was killed or crashed"),
        Crash::HostRestarted => (Why::HostRestarted, "the host restarted while the job ran"),
    };
    let text = match &held.killed {
        Some(reason) => format!("the job process was killed by the runner: {reason}"),
        None => text.to_owned(),
    };
    (held.told.unwrap_or(why), text)
}
