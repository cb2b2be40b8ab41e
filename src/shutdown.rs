//! How far the runner has come in stopping, told to every thread that waits for something. Decides
//! nothing: the supervisor alone raises the level.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

/// Ordered; it only rises, but for a hand-over that could not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Run,
    /// No new job; the ones there run to their end.
    Drain,
    /// No new job; one that a poll still brings is left for the next image.
    Handing,
    /// Let go of every job, which goes on running for the next image (USR2).
    HandOver,
    /// End the jobs, with so much time for each.
    Abort {
        by: By,
        kill_after: Duration,
    },
    /// Stop waiting; the jobs have been told to end and are delivered at the next start.
    Leave,
}

/// The signal that ends the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    Term,
    Int,
}

impl Level {
    /// Whether a job's threads let go of it, as it is.
    pub fn lets_go(self) -> bool {
        matches!(self, Level::HandOver | Level::Leave)
    }

    /// Whether a job may be left as it is to the next image or the next start.
    pub fn leaves_jobs(self) -> bool {
        matches!(self, Level::Handing | Level::HandOver | Level::Leave)
    }
}

/// The level, shared by all threads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    level: Level,
    watchers: BTreeMap<u64, Sender<()>>,
    next: u64,
}

impl Default for Stop {
    fn default() -> Stop {
        Stop(Arc::new(Mutex::new(Shared { level: Level::Run, watchers: BTreeMap::new(), next: 0 })))
    }
}

impl Stop {
    pub fn level(&self) -> Level {
        self.0.lock().level
    }

    /// A lower level than the one reached is ignored.
    pub fn raise(&self, level: Level) {
        let mut shared = self.0.lock();
        if level > shared.level {
            shared.set(level);
        }
    }

    /// A hand-over that is not to be: back to this level.
    pub fn resume(&self, level: Level) {
        self.0.lock().set(level);
    }

    /// A subscription: its channel is ready once after each change.
    pub fn watch(&self) -> Watch {
        let (tell, changed) = bounded(1);
        let mut shared = self.0.lock();
        let id = shared.next;
        shared.next += 1;
        shared.watchers.insert(id, tell);
        Watch { stop: self.clone(), id, changed }
    }
}

impl Shared {
    fn set(&mut self, level: Level) {
        self.level = level;
        for watcher in self.watchers.values() {
            // Full: it has not yet looked after the last change, and will see this one too.
            let _ = watcher.try_send(());
        }
    }
}

/// One thread's view of the level.
#[derive(Debug)]
pub struct Watch {
    stop: Stop,
    id: u64,
    changed: Receiver<()>,
}

impl Watch {
    pub fn level(&self) -> Level {
        self.stop.level()
    }

    /// For `select!`.
    pub fn changed(&self) -> &Receiver<()> {
        &self.changed
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.0.lock().watchers.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABORT: Level = Level::Abort { by: By::Term, kill_after: Duration::from_secs(15) };

    #[test]
    fn the_level_only_rises_and_every_watcher_hears_of_it() {
        let stop = Stop::default();
        let watch = stop.watch();
        stop.raise(ABORT);
        stop.raise(Level::Drain);
        assert_eq!(watch.level(), ABORT);
        assert!(watch.changed().try_recv().is_ok());
        assert!(watch.changed().try_recv().is_err(), "once for each change");
        stop.raise(Level::Leave);
        assert!(watch.changed().try_recv().is_ok());
    }

    #[test]
    fn a_signal_to_end_comes_after_a_hand_over() {
        assert!(ABORT > Level::HandOver && Level::HandOver > Level::Drain);
        assert!(Level::HandOver.lets_go() && Level::Leave.lets_go() && !ABORT.lets_go());
    }

    #[test]
    fn a_watcher_that_is_gone_is_forgotten() {
        let stop = Stop::default();
        drop(stop.watch());
        assert!(stop.0.lock().watchers.is_empty());
    }
}
