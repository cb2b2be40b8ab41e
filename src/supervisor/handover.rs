//! The hand-over (USR2, kill point 6): the binary at argv[0] is asked whether it can read the
//! configuration, then this process becomes it. The jobs run on and are adopted by it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::{self, Process, signals, table};

/// `check-config` of the new binary. Blocks: it has a thread of its own.
pub(super) fn check(config: &Path, limit: Duration) -> Result<(), String> {
    let program = std::env::args_os().next().unwrap_or_default();
    let said = |e: io::Error| format!("{}: {e}", program.display());
    let mut command = next_image(&program);
    command.args(["check-config", "--config"]).arg(config);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(said)?;
    // Not reaped before `wait`, so its pid is its own.
    let start = table::stat(child.id()).map(|s| s.start_time).unwrap_or_default();
    let ended = match Process::open(child.id(), start) {
        Ok(Some(process)) => process::wait_any(&[process.fd()], limit),
        Ok(None) | Err(_) => false,
    };
    if !ended {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("{} check-config did not end within {limit:?}", program.display()));
    }
    let mut words = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(8192).read_to_string(&mut words);
    }
    match child.wait().map_err(said)? {
        status if status.success() => Ok(()),
        status => Err(format!("{} check-config: {status}: {}", program.display(), words.trim())),
    }
}

/// Become the binary at argv[0] with the same arguments and pid; else at least a fresh image of this one.
/// Comes back only with an error. The lock of the state directory goes along as stdin; signals that come meanwhile are the
/// next image's.
pub(super) fn become_next(lock: &File) -> io::Error {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    let mut last = io::Error::other("no program");
    for program in [program, "/proc/self/exe".into()] {
        let stdin = match lock.try_clone().and_then(|lock| signals::hold().map(|()| lock)) {
            Ok(lock) => lock,
            Err(e) => return e,
        };
        last = next_image(&program).args(&args).stdin(stdin).exec();
        if let Err(e) = signals::let_in() {
            log::error!("signals are not heard any more: {e}");
        }
        log::error!("the hand-over to {} failed: {last}", program.display());
    }
    last
}

#[expect(clippy::disallowed_methods, reason = "the next image is us: it inherits all that we have")]
fn next_image(program: &OsString) -> Command {
    Command::new(program)
}
