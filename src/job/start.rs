//! The first acts of the job process: takes over what the manager handed it, and becomes a session, a
//! subreaper and undumpable, with signals as its stages shall find them. No signal is dealt with
//! elsewhere in the job process.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, set_child_subreaper, set_dumpable_behavior, setsid};
use signal_hook::consts::signal::*;

use crate::jobdir::{JobDir, Lock};
use crate::process::stage::Oom;

/// What was handed over.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) control: UnixListener,
    /// Readable once TERM came.
    pub(super) term: OwnedFd,
    pub(super) oom: Option<Oom>,
}

/// Whatever else fails: nothing of the supervisor's or the manager's group reaches this process after it.
pub(super) fn leave_session() {
    let _ = setsid();
}

/// Descriptors that the manager was started with (a supervisor's pipes, a shell's files) and passed on
/// unknowing: no stage may have them (invariant 9). Nothing of ours is open yet beyond 0, 1 and 2.
pub(super) fn close_strays() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let strays: Vec<RawFd> =
        open.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).filter(|n| *n > 2).collect();
    for fd in strays {
        // One of them was the listing's own, and is closed already.
        let _ = nix::unistd::close(fd);
    }
}

/// The lock, which is held as long as this process lives and given to nobody, and the rest. An error means
/// that no manager started this process.
pub(super) fn take_over(dir: &JobDir) -> io::Result<(Lock, Handed)> {
    // The copies are closed by an exec; what stages get at 0, 1 and 2 is theirs.
    let lock = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let there = std::fs::metadata(dir.file("lock"))?;
    let here = lock.metadata()?;
    if (here.dev(), here.ino()) != (there.dev(), there.ino()) {
        return Err(io::Error::other("`runner job` is started by the runner, with the lock of its job"));
    }
    let control = UnixListener::from(io::stdout().as_fd().try_clone_to_owned()?);
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    let handed = Handed { control, term: signals()?, oom: Oom::open() };
    // Stages get the usual one, whatever the supervisor's is; our own files say their modes.
    rustix::process::umask(Mode::from(0o022));
    set_child_subreaper(Some(rustix::process::getpid()))?;
    // After what is opened of our own /proc: a script of the same user cannot look in (kill point 29).
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok((Lock::from_inherited(lock), handed))
}

/// A signal that has a handler is back at its default in a stage; one that is ignored stays ignored. So
/// what shall not end us, and what the supervisor left ignored, gets a handler that does nothing.
fn signals() -> io::Result<OwnedFd> {
    let (term, write) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGTERM, write)?;
    let ignored = ignored();
    let quiet = [SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
    let others = [SIGCHLD, SIGALRM, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF];
    let rest = [SIGWINCH, SIGIO, SIGCONT, SIGSYS];
    let left = others.into_iter().chain(rest).filter(|n| ignored & (1 << (n - 1)) != 0);
    for signal in quiet.into_iter().chain(left) {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(term.into())
}

/// The signals that this process was started to ignore, as bits.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or_default()
}

/// What the manager shows when there is no outcome; the exit code that says so.
pub(super) fn last_words(text: &str) -> u8 {
    // The file may be full, too: a print would panic.
    let _ = writeln!(io::stderr(), "{text}");
    1
}
