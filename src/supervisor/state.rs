//! The state directory: whose it is, and that nobody else uses it (kill points 17 and 32). Touches nothing
//! of a directory that is not ours.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select};

use crate::clock::Timing;
use crate::config::Config;
use crate::jobdir;
use crate::space;

use super::signals::Signal;

/// How often a held lock is tried again.
const STEP: Duration = Duration::from_millis(50);

/// `STATE`, locked.
#[derive(Debug)]
pub(super) struct State {
    pub(super) jobs: PathBuf,
    pub(super) broken: PathBuf,
    pub(super) lock: File,
}

/// Why this manager may not use it.
#[derive(Debug)]
pub(super) enum Refused {
    /// Exit 75.
    InUse(String),
    /// Exit 78.
    Unfit(String),
    /// A signal came meanwhile: exit 0.
    Stopped,
}

impl State {
    pub(super) fn open(config: &Config, timing: &Timing, signals: &Receiver<Signal>) -> Result<State, Refused> {
        let root = &config.state_dir;
        let unfit = |e: io::Error| Refused::Unfit(format!("state_dir {}: {e}", root.display()));
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(unfit)?;
        if let (Some(kind), false) = (space::network(root).map_err(unfit)?, config.allow_network_state) {
            return Err(Refused::Unfit(format!(
                "state_dir {} is on {kind}, where locks and sockets may not hold; name a local directory, or set \
                 allow_network_state = true",
                root.display()
            )));
        }
        of_this_machine(root)?;
        let lock = lock(root, timing, signals)?;
        let made = |name: &str| {
            let path = root.join(name);
            match DirBuilder::new().recursive(true).mode(0o700).create(&path) {
                Ok(()) => Ok(path),
                Err(e) => Err(Refused::Unfit(format!("{}: {e}", path.display()))),
            }
        };
        Ok(State { jobs: made("jobs")?, broken: root.join("broken"), lock })
    }
}

/// A directory that another machine has written is never adopted: its jobs run, or are lost, over there.
fn of_this_machine(root: &Path) -> Result<(), Refused> {
    let Some(ours) = machine_id() else { return Ok(()) };
    let file = root.join("machine-id");
    match fs::read_to_string(&file) {
        Ok(theirs) if theirs.trim() == ours => Ok(()),
        Ok(_) => Err(Refused::InUse(format!(
            "state_dir {} belongs to another machine; name another directory, or remove {} when that machine no \
             longer uses it",
            root.display(),
            file.display()
        ))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            jobdir::replace(&file, format!("{ours}\n").as_bytes()).map_err(|e| Refused::Unfit(e.to_string()))
        }
        Err(e) => Err(Refused::Unfit(format!("{}: {e}", file.display()))),
    }
}

/// Not every host has one.
fn machine_id() -> Option<String> {
    ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .map(|text| text.trim().to_owned())
        .find(|id| !id.is_empty() && id != "uninitialized")
}

/// A predecessor that was just killed may hold it for an instant, by a child that it was forking.
fn lock(root: &Path, timing: &Timing, signals: &Receiver<Signal>) -> Result<File, Refused> {
    let path = root.join("lock");
    let unfit = |e: io::Error| Refused::Unfit(format!("{}: {e}", path.display()));
    let mut options = OpenOptions::new();
    let mut file =
        options.create(true).truncate(false).read(true).write(true).mode(0o600).open(&path).map_err(unfit)?;
    if let Some(inherited) = inherited(&file) {
        return Ok(inherited);
    }
    let until = Instant::now() + timing.state_lock;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(e)) => return Err(unfit(e)),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = holder.trim();
                let holder = if holder.is_empty() { String::new() } else { format!(" (pid {holder})") };
                return Err(Refused::InUse(format!("state_dir {} is used by another runner{holder}", root.display())));
            }
            Err(TryLockError::WouldBlock) => {}
        }
        select! {
            recv(signals) -> signal => match signal {
                Ok(Signal::Quit | Signal::Term | Signal::Int) => return Err(Refused::Stopped),
                Ok(Signal::Hup | Signal::Usr2) | Err(_) => {}
            },
            default(STEP) => {}
        }
    }
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(unfit)?;
    Ok(file)
}

/// The image before this one hands its lock over as stdin, so that no other manager gets between.
fn inherited(lock: &File) -> Option<File> {
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let (ours, theirs) = (lock.metadata().ok()?, stdin.metadata().ok()?);
    if (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino()) {
        return None;
    }
    // Ours already, by the same open file; refused where that was not the case.
    stdin.try_lock().ok()?;
    Some(stdin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::never;

    fn timing(ms: u64) -> Timing {
        Timing { state_lock: Duration::from_millis(ms), ..Timing::default() }
    }

    #[test]
    fn a_second_manager_is_told_who_holds_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let _held = lock(dir.path(), &timing(0), &never()).unwrap();
        let Err(Refused::InUse(text)) = lock(dir.path(), &timing(100), &never()) else { panic!() };
        assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
    }

    #[test]
    fn a_predecessor_that_is_just_ending_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path(), &timing(0), &never()).unwrap();
        let (go, gone) = crossbeam_channel::bounded::<()>(0);
        let ends = crate::process::threads::named("ends", move || {
            let _ = gone.recv_timeout(Duration::from_millis(150));
            drop(held);
        });
        lock(dir.path(), &timing(10_000), &never()).unwrap();
        drop(go);
        ends.unwrap().join().unwrap();
    }

    #[test]
    fn the_directory_of_another_machine_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("machine-id"), "0123\n").unwrap();
        if machine_id().is_some() {
            assert!(matches!(of_this_machine(dir.path()), Err(Refused::InUse(_))));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
