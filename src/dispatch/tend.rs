//! The job's renewal thread while its process runs: it alone owns the lease. It attends when that is due,
//! tells `job-N` what the server wants, and never touches the process itself, so that a server that hangs
//! delays no cancel and no kill.

use std::time::{Duration, Instant};

use crossbeam_channel::select;
use log::Level;

use crate::forge::{Attended, Due, Wanted};
use crate::model::{Outcome, Why};
use crate::process::Process;
use crate::shutdown::Watch;

use super::control::{self, Ended, Hands};
use super::held::say;
use super::{Desk, Fate, Held, Step};

/// When a settled lease is due.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// Until the process is gone. `process`: the one that was just started; else the directory's.
pub(super) fn tend(desk: &Desk, held: &mut Held, process: Option<Process>) -> Step {
    let hands = match Hands::take(desk, held, process) {
        Ok(hands) => hands,
        Err(e) => {
            control::kill(&held.dir);
            return Step::Outcome(Outcome::failed(Why::System, format!("the job cannot be watched over: {e}")));
        }
    };
    let watch = desk.stop.watch();
    let mut wanted = Wanted::Run;
    loop {
        let due = attend(held, &mut wanted, &hands);
        match wait(&hands, &watch, due) {
            Woken::Due => {}
            Woken::Ended(ended) => {
                held.told = ended.told.or(held.told);
                held.killed = ended.killed.or(held.killed.take());
                hands.join();
                return Step::Look;
            }
            Woken::LetGo => {
                hands.join();
                return Step::Over(Fate::Left);
            }
        }
    }
}

/// One request, if one is due. What is wanted only rises.
fn attend(held: &mut Held, wanted: &mut Wanted, hands: &Hands) -> Due {
    let now = Instant::now();
    let never = Due { soonest: now + NEVER, at: now + NEVER };
    if held.settled {
        return never;
    }
    let (wants, due) = match held.lease.attend(&held.dir, None, now) {
        Attended::Held { wanted, due, .. } => (wanted, due),
        Attended::Settled => {
            // Nobody waits for its result: it ends, and its directory goes.
            held.settled = true;
            (Wanted::Abort(Why::Aborted), never)
        }
    };
    if wants > *wanted {
        say!(Level::Info, held.who, "the server wants the job to end ({wants:?})");
        *wanted = wants;
        hands.want(wants);
    }
    due
}

enum Woken {
    Due,
    Ended(Ended),
    LetGo,
}

fn wait(hands: &Hands, watch: &Watch, due: Due) -> Woken {
    let mut wrote = false;
    loop {
        if watch.level().lets_go() {
            return Woken::LetGo;
        }
        let until = if wrote { due.soonest.min(due.at) } else { due.at };
        let left = until.saturating_duration_since(Instant::now());
        select! {
            // A panic of job-N shows as a dropped sender: the directory is looked at again.
            recv(hands.ended) -> ended => return Woken::Ended(ended.unwrap_or_default()),
            recv(hands.wrote) -> edge => match edge {
                Ok(()) => wrote = true,
                // `ctl-N` has ended, so `job-N` is about to.
                Err(_) => return Woken::Ended(hands.ended.recv().unwrap_or_default()),
            },
            recv(watch.changed()) -> _ => {}
            default(left) => return Woken::Due,
        }
    }
}
