//! Starts the job process of a directory whose lock we hold. Decides nothing about the job.

use std::io;

use crate::diag;
use crate::jobdir::{JobDir, Lock};
use crate::process::{Process, start_job};

/// The lock goes to the new process with the fork, so that it is held without a gap from here to the
/// process's end (kill point 1).
pub(super) fn start(dir: &JobDir, lock: Lock) -> io::Result<Process> {
    let control = dir.bind_control()?;
    let stderr = dir.create_stderr()?;
    diag::point("before-spawn");
    let process = start_job(dir.path(), lock.into_file(), control, stderr)?;
    diag::point("spawned");
    Ok(process)
}
