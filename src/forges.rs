//! The one place that names every forge: opens coordinators, takes up leases, makes plans.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timing;
use crate::config::Entry;
use crate::forge::{Coordinator, Lease, Script};
use crate::gitlab;
use crate::http::Web;
use crate::jobdir::JobDir;
use crate::model::{ForgeKind, Job};
use crate::spool;

/// What every forge stands on. Cloning it shares the connections.
#[derive(Clone, Debug)]
pub struct Ground {
    pub timing: Timing,
    pub state_dir: PathBuf,
    /// Shortens how long a job may run with no manager.
    pub adoption_timeout: Option<Duration>,
    pub web: Web,
}

impl Ground {
    pub fn new(timing: Timing, state_dir: PathBuf, adoption_timeout: Option<Duration>) -> Ground {
        Ground { timing, state_dir, adoption_timeout, web: Web::new(&timing) }
    }
}

/// The coordinator of an entry; makes no request.
pub fn open(entry: &Arc<Entry>, ground: &Ground) -> io::Result<Arc<dyn Coordinator>> {
    match entry.forge {
        ForgeKind::Gitlab => Ok(Arc::new(gitlab::coordinator::Gitlab::new(entry, ground))),
        ForgeKind::Spool => spool::open(entry, ground),
    }
}

/// The lease of a job directory of an earlier run, from `lease.json` alone: its entry may be gone.
/// Makes no request.
pub fn adopt(dir: &JobDir, ground: &Ground) -> io::Result<Box<dyn Lease>> {
    let record = dir.lease()?;
    match record.forge {
        ForgeKind::Gitlab => gitlab::lease::adopt(dir, record, ground),
        ForgeKind::Spool => spool::adopt(dir, ground),
    }
}

/// The plan of a job, for its job process. The error is a line for the job's log.
pub fn plan(job: &Job) -> Result<Script, String> {
    match job.forge {
        // A spool's job is a GitLab job with everything optional but the script.
        ForgeKind::Gitlab | ForgeKind::Spool => gitlab::plan::script(job),
    }
}
