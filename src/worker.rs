//! A worker: polls for a job and stays with it. A panic in either is caught and reported; the
//! worker lives on (invariant 8). Decides neither whom to poll nor when.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use crate::config::Entry;
use crate::dispatch::deliver::Gone;
use crate::dispatch::{self, Desk, Fate};
use crate::forge::{Coordinator, Lease, Refusal};
use crate::model::JobName;
use crate::space;
use crate::supervisor::feeder::{Answer, EntryId, Patience, PollId};

/// An entry that can be polled.
pub struct Poller {
    pub id: EntryId,
    pub entry: Arc<Entry>,
    /// Entries with the same key share their limit and their slots' numbers.
    pub key: String,
    pub min_free_disk: u64,
    pub coordinator: Arc<dyn Coordinator>,
}

/// Given over a rendezvous channel: it is taken by a worker that is ready, or by none.
#[derive(Debug)]
pub enum Work {
    Poll {
        poller: Arc<Poller>,
        poll: PollId,
        patience: Patience,
    },
    /// There are more workers than `concurrent`.
    End,
}

/// What threads tell the supervisor.
#[derive(Debug)]
pub enum Report {
    Answered {
        poller: Arc<Poller>,
        poll: PollId,
        answer: Answer,
        /// Why there was no job, and the exit code of an entry that retires.
        refusal: Option<Refusal>,
    },
    /// A job's slot is free.
    Ended {
        key: String,
        end: End,
    },
    /// What was adopted has no more use for this thread.
    AdoptedGone(u32),
    WorkerGone(u32),
    /// Of the deliverer with this number.
    Delivered(u32, Gone),
    /// What the new binary says of the configuration.
    Checked(Result<(), String>),
}

#[derive(Debug)]
pub enum End {
    Fate(Fate),
    /// It is to be taken up again; so often it has panicked.
    Panicked {
        name: JobName,
        times: u32,
    },
}

/// `worker-N`, until it is told to end or the supervisor is gone.
pub fn work(number: u32, desk: &Desk, work: &Receiver<Work>, reports: &Sender<Report>) {
    for work in work {
        match work {
            Work::Poll { poller, poll, patience } => one_poll(number, desk, &poller, poll, patience, reports),
            Work::End => break,
        }
    }
    let _ = reports.send(Report::WorkerGone(number));
}

fn one_poll(
    number: u32,
    desk: &Desk,
    poller: &Arc<Poller>,
    poll: PollId,
    patience: Patience,
    reports: &Sender<Report>,
) {
    let wait = match patience {
        Patience::Long => desk.timing.poll_deadline,
        Patience::None => Duration::ZERO,
    };
    let polled = ask(desk, poller, wait);
    let (answer, refusal, lease) = match polled {
        Ok(Some(lease)) => (Answer::Job, None, Some(lease)),
        Ok(None) => (Answer::Nothing, None, None),
        Err(refusal) => (answer_of(&refusal), Some(refusal), None),
    };
    // Before the job's own work, so that the next worker can poll at once.
    let _ = reports.send(Report::Answered { poller: Arc::clone(poller), poll, answer, refusal });
    if let Some(lease) = lease {
        let name = lease.name();
        let end = guarded(name, 0, || dispatch::fresh(desk, &poller.key, lease, &number.to_string()));
        let _ = reports.send(Report::Ended { key: poller.key.clone(), end });
    }
}

fn ask(desk: &Desk, poller: &Poller, wait: Duration) -> Result<Option<Box<dyn Lease>>, Refusal> {
    let rest = |why| Refusal::Again { after: desk.timing.config_check, healthy: true, why };
    room(desk, poller).map_err(rest)?;
    catch_unwind(AssertUnwindSafe(|| poller.coordinator.poll(wait)))
        .unwrap_or_else(|_| Err(rest("the poll failed by a fault of the runner".to_owned())))
}

/// Whether a job may be asked for: the state directory is there, and has room (kill point 9).
fn room(desk: &Desk, poller: &Poller) -> Result<(), String> {
    let lost = |e| format!("no job is asked for, the state directory is lost: {}: {e}", desk.jobs.display());
    std::fs::metadata(&desk.jobs).map_err(lost)?;
    if poller.min_free_disk == 0 {
        return Ok(());
    }
    // A directory that cannot be looked at says nothing of its space; the job names what is wrong with it.
    let low = |dir: &Path| match space::free(dir) {
        Ok(free) if free < poller.min_free_disk => {
            let least = poller.min_free_disk;
            Err(format!("no job is asked for, less than min_free_disk ({least} bytes) is free at {}", dir.display()))
        }
        // What cannot be looked at is the job's to fail on.
        Ok(_) | Err(_) => Ok(()),
    };
    low(&desk.jobs)?;
    low(&poller.entry.builds_dir)
}

fn answer_of(refusal: &Refusal) -> Answer {
    match refusal {
        Refusal::Again { after, healthy, .. } => Answer::Again { after: *after, healthy: *healthy },
        Refusal::Retire { .. } => Answer::Retire,
    }
}

/// A panic is a report like another (invariant 8).
pub fn guarded(name: JobName, times: u32, work: impl FnOnce() -> Fate) -> End {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(fate) => End::Fate(fate),
        Err(_) => End::Panicked { name, times: times + 1 },
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("id", &self.id).field("key", &self.key).finish_non_exhaustive()
    }
}
