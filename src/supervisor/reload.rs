//! The configuration file while the manager runs: noticed when it changed, read anew. A broken one is
//! said once, and the old one stays in force.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::config;
use crate::diag::logging;
use crate::shutdown::Level;

use super::Supervisor;

/// The file, and how it was when it was last read.
#[derive(Debug)]
pub(super) struct Watched {
    path: PathBuf,
    every: Duration,
    next: Instant,
    seen: Option<(SystemTime, u64)>,
}

impl Watched {
    pub(super) fn new(path: &Path, every: Duration, now: Instant) -> Watched {
        Watched { path: path.to_owned(), every, next: now + every, seen: stamp(path) }
    }

    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Whether it is another than the one that was read; said once. A file that is not there is no
    /// change: an editor may be replacing it.
    pub(super) fn changed(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + self.every;
        let stamp = stamp(&self.path);
        if stamp.is_none() || stamp == self.seen {
            return false;
        }
        self.seen = stamp;
        true
    }

    fn read_now(&mut self) {
        self.seen = stamp(&self.path);
    }
}

fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

impl Supervisor {
    /// Running jobs keep the settings that they were handed out with.
    pub(super) fn reload(&mut self) {
        if self.desk.stop.level() != Level::Run {
            return;
        }
        self.watched.read_now();
        let new = match config::load_as(&self.config.path, self.config.user.clone()) {
            Ok(new) => new,
            Err(e) => {
                log::error!("{e}: the configuration stays as it was");
                return;
            }
        };
        logging::apply(new.log_level, new.log_format);
        for warning in &new.warnings {
            log::warn!("{warning}");
        }
        if new.state_dir != self.config.state_dir {
            log::warn!("another state_dir takes effect at the next start");
        }
        log::info!("{}: read again", new.path.display());
        let state_dir = std::mem::take(&mut self.config.state_dir);
        self.config = config::Config { state_dir, ..new };
        self.exit = 0;
        if let Err(e) = self.crew.grow(self.config.concurrent) {
            log::error!("fewer jobs at a time than `concurrent` says, no more threads can be started: {e}");
        }
        self.open_entries(Instant::now());
    }
}
