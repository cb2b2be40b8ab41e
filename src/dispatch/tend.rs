//! The job's renewal thread while its process runs: it alone owns the lease. It attends when that is due,
//! tells `job-N` what the server wants, and never touches the process itself, so that a server that hangs
//! delays no cancel and no kill.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::select;
use log::Level;

use crate::forge::{Attended, Due, Heard, Wanted};
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
    let process = process.map(Arc::new);
    let hands = match Hands::take(desk, held, process.clone()) {
        Ok(hands) => hands,
        Err(e) => {
            control::kill(&held.dir, process.as_deref(), desk.timing);
            return Step::Outcome(Outcome::failed(Why::System, format!("the job cannot be watched over: {e}")));
        }
    };
    let watch = desk.stop.watch();
    let mut wanted = Wanted::Run;
    let mut next = Next { due: attend(held, &mut wanted, &hands), wrote: false, sync_at: None };
    next.sync_at = Some(Instant::now() + desk.timing.sync_after);
    loop {
        match wait(held, &hands, &watch, &mut next) {
            Woken::Due => {
                next.wrote = false;
                next.due = attend(held, &mut wanted, &hands);
            }
            Woken::Sync => {
                // A short job never comes here, so none waits for the disk.
                next.sync_at = None;
                if let Err(e) = held.dir.sync() {
                    say!(Level::Warn, held.who, "a power loss may lose this job: {e}");
                }
            }
            Woken::Heard(heard) => {
                // To the process at once: it does not wait for the lease's next request.
                if let Heard::Wanted(wants) = heard {
                    want(held, &mut wanted, wants, &hands);
                }
                held.hear(desk, heard);
            }
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

/// One request, unless the lease is settled.
fn attend(held: &mut Held, wanted: &mut Wanted, hands: &Hands) -> Due {
    let now = Instant::now();
    let never = Due { soonest: now + NEVER, at: now + NEVER };
    if held.settled {
        return never;
    }
    let attended = held.lease.attend(&held.dir, None, now);
    held.open_sides();
    let (wants, due) = match attended {
        Attended::Held { wanted, due, .. } => (wanted, due),
        Attended::Settled => {
            // Nobody waits for its result: it ends, and its directory goes.
            held.settled = true;
            (Wanted::Abort(Why::Aborted), never)
        }
    };
    want(held, wanted, wants, hands);
    due
}

/// What is wanted only rises.
fn want(held: &Held, wanted: &mut Wanted, wants: Wanted, hands: &Hands) {
    if wants > *wanted {
        say!(Level::Info, held.who, "the server wants the job to end ({wants:?})");
        *wanted = wants;
        hands.want(wants);
    }
}

/// What the thread waits for.
struct Next {
    due: Due,
    /// There is output since the last request.
    wrote: bool,
    sync_at: Option<Instant>,
}

enum Woken {
    Due,
    Sync,
    Heard(Heard),
    Ended(Ended),
    LetGo,
}

fn wait(held: &Held, hands: &Hands, watch: &Watch, next: &mut Next) -> Woken {
    loop {
        if watch.level().lets_go() {
            return Woken::LetGo;
        }
        let due = if next.wrote { next.due.soonest.min(next.due.at) } else { next.due.at };
        let (until, woken) = match next.sync_at {
            Some(at) if at < due => (at, Woken::Sync),
            _ => (due, Woken::Due),
        };
        let left = until.saturating_duration_since(Instant::now());
        select! {
            // A panic of job-N shows as a dropped sender: the directory is looked at again.
            recv(hands.ended) -> ended => return Woken::Ended(ended.unwrap_or_default()),
            recv(hands.wrote) -> edge => match edge {
                Ok(()) => next.wrote = true,
                // `ctl-N` has ended, so `job-N` is about to.
                Err(_) => return Woken::Ended(hands.ended.recv().unwrap_or_default()),
            },
            recv(held.sides.heard) -> heard => return heard.map_or(Woken::Due, Woken::Heard),
            recv(watch.changed()) -> _ => {}
            default(left) => return woken,
        }
    }
}
