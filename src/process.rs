//! Processes: what starts, watches and ends them. A process is named by its pid and start time and held
//! by a pidfd, so that a pid that was given to another is never signalled (invariant 7). Knows nothing of
//! jobs but how their process is started; decides nothing.

pub mod cgroup;
pub mod signals;
pub mod stage;
pub mod sweep;
pub mod table;
pub mod threads;
pub mod trampoline;
pub mod user;
pub mod wake;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal,
    set_dumpable_behavior, waitid,
};

/// What no process of a job inherits: the manager's secrets, and what its supervisor meant for it alone
/// (invariant 9).
const OURS: [&str; 21] = [
    "CI_SERVER_TOKEN",
    "REGISTRATION_TOKEN",
    "RUNNER_TOKEN",
    "RUNNER_CFG_TOKEN",
    "RUNNER_CFG_PAT",
    "CACHE_S3_ACCESS_KEY",
    "CACHE_S3_SECRET_KEY",
    "CACHE_S3_SESSION_TOKEN",
    "CACHE_GCS_ACCESS_ID",
    "CACHE_GCS_PRIVATE_KEY",
    "CACHE_AZURE_ACCOUNT_NAME",
    "CACHE_AZURE_ACCOUNT_KEY",
    "CREDENTIALS_DIRECTORY",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "STATE_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
];

/// A command that inherits this process's environment without the manager's secrets, no stdin, and of
/// its descriptors only what the caller sets.
#[expect(clippy::disallowed_methods, reason = "the one place that makes commands")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in OURS {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Whether a variable of the environment is meant for the manager alone.
pub fn is_ours(name: &OsStr) -> bool {
    OURS.iter().any(|ours| name == *ours)
}

/// Start `runner job DIR`: the running image itself, even when its file was replaced (kill point 21).
/// It is given the held lock, the bound control socket and a file for its last words; its first act is
/// `setsid`.
pub fn start_job(dir: &Path, lock: File, control: UnixListener, stderr: File) -> io::Result<Process> {
    // What our supervisor left open is ours: a lock of `flock`, a pipe to say that we are ready. Our own
    // descriptors are closed by an exec already.
    close_fds::set_fds_cloexec_threadsafe(3, &[]);
    let mut command = command("/proc/self/exe");
    command.arg0("runner").arg("job").arg(dir);
    command.stdin(lock).stdout(OwnedFd::from(control)).stderr(stderr);
    let mut child = command.spawn()?;
    // Its pid stays its own until it is reaped, which only `Process` does.
    let pid = child.id();
    let fd = pidfd_open(known(pid), PidfdFlags::empty()).inspect_err(|_| {
        // Better none than one that nobody can end.
        let _ = child.kill();
        let _ = child.wait();
    })?;
    Ok(Process { pid, start_time: table::stat(pid).map(|s| s.start_time).unwrap_or_default(), fd })
}

/// Scripts of the same user can read neither this process's memory nor its environment (kill point 29).
pub fn undumpable() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(io::Error::from)
}

/// One process, held by a pidfd: all that is done to it is done to no other.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    start_time: u64,
    fd: OwnedFd,
}

impl Process {
    /// `None` when that process is gone.
    pub fn open(pid: u32, start_time: u64) -> io::Result<Option<Process>> {
        let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let fd = match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(e) => return Err(io::Error::new(io::Error::from(e).kind(), format!("pidfd of process {pid}: {e}"))),
        };
        // Looked up after the pidfd was opened: if it is still the same, the pidfd is of the same.
        match table::stat(pid) {
            Ok(stat) if stat.start_time == start_time => Ok(Some(Process { pid, start_time, fd })),
            _ => Ok(None),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// `/proc/PID/stat` field 22: with the pid it names one process of this boot.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Readable in `poll` once the process has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn kill(&self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// One that is gone counts as signalled.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether it ended within `limit`. A child of ours is reaped then; its status is of no interest,
    /// as a job's outcome is a file.
    pub fn wait(&self, limit: Duration) -> bool {
        let gone = wait_any(&[self.fd()], limit);
        if gone {
            let _ = waitid(WaitId::PidFd(self.fd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        gone
    }
}

/// Whether one of these became readable within `limit`.
pub(crate) fn wait_any(fds: &[BorrowedFd<'_>], limit: Duration) -> bool {
    let end = Instant::now() + limit;
    let mut polls: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = timespec(end.saturating_duration_since(Instant::now()));
        match poll(&mut polls, Some(&left)) {
            Ok(n) => return n > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// For `poll`, which counts what is under a millisecond too.
pub(crate) fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: d.subsec_nanos().into() }
}

fn known(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a child has a pid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_by_pid_and_start_time() {
        let mut child = command("sleep").arg("60").spawn().unwrap();
        let stat = table::stat(child.id()).unwrap();
        assert!(Process::open(child.id(), stat.start_time + 1).unwrap().is_none());
        let process = Process::open(child.id(), stat.start_time).unwrap().unwrap();
        assert!(!process.wait(Duration::ZERO));
        process.kill().unwrap();
        assert!(process.wait(Duration::from_secs(10)));
        assert!(Process::open(child.id(), stat.start_time).unwrap().is_none());
        process.kill().unwrap();
        assert!(child.wait().is_err(), "it was reaped");
    }
}
