//! The job directory `STATE/jobs/NAME/`: the interface between manager and job process, and all that
//! outlives either (design §2). Reads and writes its files; decides nothing about a job.
//!
//! **Invariant 2** hangs on this file: names appear and vanish by rename, the outcome is published by
//! rename over a file that already has its blocks, and the state of a directory is told by one function,
//! [`JobDir::inspect`], which tries the lock first and looks for the outcome after.

mod files;
mod keys;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::{BootTime, boot_id};
use crate::diag;
use crate::model::{ForgeKind, Job, JobName, Outcome, VERSION, Why};

use files::{LONGEST, to_json};
pub use files::{plain, replace};

/// Room that `outcome.json` has from the start, in bytes (kill point 9).
pub const OUTCOME_ROOM: usize = 4096;

/// An open job directory. Cloning opens nothing.
#[derive(Debug)]
pub struct JobDir {
    path: PathBuf,
    name: JobName,
    /// For socket paths: `/proc/self/fd/N/control` fits where the path would not (kill point 20).
    fd: OwnedFd,
}

/// `lease.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeaseRecord {
    pub version: u32,
    pub forge: ForgeKind,
    /// The directory below `STATE/entries/`; the entry itself may be gone.
    pub entry: String,
    pub phase: Phase,
    /// What the forge's lease needs to go on without its entry.
    pub data: serde_json::Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The job is not ours yet; there is no `job.json`.
    Acquiring,
    Taken,
    Confirmed,
    /// The final state was accepted; only the completion hook and the removal are left.
    Delivered,
}

/// `started`: written by the job process before its first stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Started {
    pub version: u32,
    pub boot_id: String,
    pub at: BootTime,
    pub pid: u32,
    /// `/proc/PID/stat` field 22, in clock ticks: with the pid it names one process of this boot.
    pub start_time: u64,
    /// `NAME=VALUE` in the environment of every stage (design §5.7).
    pub tag: String,
    /// The cgroup that all stages run in, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
}

/// `crash.json`, by the manager: the job process is gone without an outcome. The directory's next one runs
/// nothing: it says this in log and outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CrashNote {
    pub version: u32,
    pub why: Why,
    pub message: String,
    pub survivors: Vec<String>,
}

/// The flock on `lock`. Dropping it releases the lock; a job process inherits it instead.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// For handing over: the descriptor that carries the lock.
    pub fn into_file(self) -> File {
        self.0
    }

    /// The lock that a job process was given as a descriptor.
    pub fn from_inherited(file: File) -> Lock {
        Lock(file)
    }
}

/// What a job directory says of its job. Whoever gets the lock keeps it.
#[derive(Debug)]
pub enum State {
    /// Somebody holds the lock: the job process lives.
    Running,
    Ended(Box<Outcome>, Lock),
    /// No `started`: confirm again and run.
    NeverStarted(Lock),
    /// Started, no outcome, nobody there.
    Crashed(Crash, Lock),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Died,
    HostRestarted,
}

impl JobDir {
    /// Make the directory under a hidden name, let `fill` write into it, and publish it by rename.
    /// `AlreadyExists` when the job is held already: a redelivery, which is dropped (kill point 8).
    pub fn create(jobs: &Path, name: &JobName, fill: impl FnOnce(&JobDir) -> io::Result<()>) -> io::Result<JobDir> {
        let path = jobs.join(name.as_str());
        if path.symlink_metadata().is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{}: this job is held already", path.display()),
            ));
        }
        let hidden = jobs.join(format!(".new-{name}"));
        let _ = fs::remove_dir_all(&hidden);
        fs::DirBuilder::new().mode(0o700).create(&hidden)?;
        let made = JobDir::at(hidden, name.clone()).and_then(|dir| {
            dir.open_file("lock", OpenOptions::new().create(true).write(true))?;
            fill(&dir)?;
            diag::point("directory-filled");
            fs::rename(&dir.path, &path)?;
            diag::point("directory-renamed");
            JobDir::at(path, name.clone())
        });
        if made.is_err() {
            let _ = fs::remove_dir_all(jobs.join(format!(".new-{name}")));
        }
        made
    }

    pub fn open(path: &Path) -> io::Result<JobDir> {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        JobDir::at(path.to_owned(), JobName::from_dir(name))
    }

    fn at(path: PathBuf, name: JobName) -> io::Result<JobDir> {
        let fd = rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(JobDir { path, name, fd })
    }

    pub fn name(&self) -> &JobName {
        &self.name
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A file of ours, or one that a script of the same user has put in its place: nothing that could hold
    /// us up is opened, and no link is followed (invariant 8).
    fn open_file(&self, name: &str, options: &mut OpenOptions) -> io::Result<File> {
        plain(&self.file(name), options.mode(0o600)).map_err(|e| self.said(name, e))
    }

    /// Never more of it than such a file has.
    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.open_file(name, OpenOptions::new().read(true))?;
        let read = file.take(LONGEST).read_to_end(&mut bytes);
        read.map(|_| bytes).map_err(|e| self.said(name, e))
    }

    fn said(&self, name: &str, e: io::Error) -> io::Error {
        io::Error::new(e.kind(), format!("{}: {e}", self.file(name).display()))
    }

    // ---- State ---------------------------------------------------------------------------------

    /// The one function that tells what became of the job: the lock first, then the outcome. The other
    /// order sees false crashes, when the job process writes and goes between the two (kill point 7).
    pub fn inspect(&self) -> io::Result<State> {
        let Some(lock) = self.try_lock()? else { return Ok(State::Running) };
        if let Some(outcome) = self.outcome()? {
            return Ok(State::Ended(Box::new(outcome), lock));
        }
        match self.started() {
            Ok(started) if started.boot_id != boot_id() => Ok(State::Crashed(Crash::HostRestarted, lock)),
            Ok(_) => Ok(State::Crashed(Crash::Died, lock)),
            Err(e) => match e.kind() {
                io::ErrorKind::NotFound => Ok(State::NeverStarted(lock)),
                // It is there, so a stage may have run, and none runs twice: a power loss empties files.
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Ok(State::Crashed(Crash::Died, lock)),
                _ => Err(e),
            },
        }
    }

    /// `None` when another holds it.
    pub fn try_lock(&self) -> io::Result<Option<Lock>> {
        let file = self.open_file("lock", OpenOptions::new().create(true).truncate(false).write(true))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(self.said("lock", e.into())),
        }
    }

    /// Waits until the holder is gone. The wait ends when the job process does.
    pub fn wait_lock(&self) -> io::Result<Lock> {
        let file = self.open_file("lock", OpenOptions::new().create(true).truncate(false).write(true))?;
        loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Lock(file)),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(self.said("lock", e.into())),
            }
        }
    }

    // ---- Documents -----------------------------------------------------------------------------

    pub fn job(&self) -> io::Result<Job> {
        self.read_json("job.json")
    }

    pub fn write_job(&self, job: &Job) -> io::Result<()> {
        self.write_cache(&job.settings.cache)?;
        self.replace("job.json", &to_json(job)?)
    }

    pub fn lease(&self) -> io::Result<LeaseRecord> {
        self.read_json("lease.json")
    }

    pub fn write_lease(&self, lease: &LeaseRecord) -> io::Result<()> {
        self.replace("lease.json", &to_json(lease)?)
    }

    pub fn started(&self) -> io::Result<Started> {
        self.read_json("started")
    }

    pub fn write_started(&self, started: &Started) -> io::Result<()> {
        self.replace("started", &to_json(started)?)
    }

    pub fn crash(&self) -> io::Result<CrashNote> {
        self.read_json("crash.json")
    }

    pub fn write_crash(&self, crash: &CrashNote) -> io::Result<()> {
        self.replace("crash.json", &to_json(crash)?)
    }

    /// `None` when there is none. One that cannot be parsed counts as none: only a rename publishes
    /// it, so it is the work of a broken disk.
    pub fn outcome(&self) -> io::Result<Option<Outcome>> {
        match self.read("outcome.json") {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Take the blocks of the outcome while there are some (kill point 9).
    pub fn reserve_outcome(&self) -> io::Result<()> {
        let file = self.open_file("outcome.tmp", OpenOptions::new().create(true).truncate(true).write(true))?;
        file.write_all_at(&[b' '; OUTCOME_ROOM], 0).map_err(|e| self.said("outcome.tmp", e))
    }

    /// Overwrite the reserved blocks and publish them. JSON may end in spaces, so nothing is cut.
    pub fn write_outcome(&self, outcome: &Outcome) -> io::Result<()> {
        let mut outcome = outcome.clone();
        outcome.version = VERSION;
        let mut bytes = to_json(&outcome)?;
        if bytes.len() > OUTCOME_ROOM {
            outcome.survivors.truncate(16);
            outcome.message = outcome.message.chars().take(512).collect();
            outcome.lost = outcome.lost.map(|l| l.chars().take(512).collect());
            bytes = to_json(&outcome)?;
        }
        bytes.resize(OUTCOME_ROOM.max(bytes.len()), b' ');
        let file = self.open_file("outcome.tmp", OpenOptions::new().create(true).truncate(false).write(true))?;
        file.write_all_at(&bytes, 0).map_err(|e| self.said("outcome.tmp", e))?;
        diag::point("outcome-written");
        fs::rename(self.file("outcome.tmp"), self.file("outcome.json")).map_err(|e| self.said("outcome.json", e))?;
        diag::point("outcome-renamed");
        Ok(())
    }

    /// `sent`: what the coordinator has accepted, as its forge writes it; empty when there is none.
    pub fn sent(&self) -> Vec<u8> {
        self.read("sent").unwrap_or_default()
    }

    /// Overwritten in place: it is a hint that the server's own answer repairs (kill point 15).
    pub fn note_sent(&self, bytes: &[u8]) -> io::Result<()> {
        let file = self.open_file("sent", OpenOptions::new().create(true).truncate(false).write(true))?;
        file.write_all_at(bytes, 0)
    }

    pub fn replace_sent(&self, bytes: &[u8]) -> io::Result<()> {
        self.replace("sent", bytes)
    }

    /// Until when the job may run with no manager; `None` when there is no word of this boot.
    pub fn orphan_until(&self) -> Option<BootTime> {
        let until: OrphanUntil = self.read_json("orphan_until").ok()?;
        (until.boot_id == boot_id()).then_some(until.at)
    }

    pub fn set_orphan_until(&self, at: BootTime) -> io::Result<()> {
        self.replace("orphan_until", &to_json(&OrphanUntil { boot_id: boot_id(), at })?)
    }

    /// Secrets that have no more use once the outcome is there (kill point 29).
    pub fn forget_job(&self) {
        for name in ["job.json", "cache.json", "masks"] {
            let _ = fs::remove_file(self.file(name));
        }
    }

    /// Append a value that became secret while the job runs, before it acts.
    pub fn append_mask(&self, value: &str) -> io::Result<()> {
        let mut line = to_json(&value)?;
        line.push(b'\n');
        self.open_file("masks", OpenOptions::new().create(true).append(true))?.write_all(&line)
    }

    /// The values of `masks`; an unfinished last line is ignored.
    pub fn masks(&self) -> Vec<String> {
        let text = self.read("masks").unwrap_or_default();
        text.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect()
    }

    pub fn open_log(&self) -> io::Result<File> {
        self.open_file("log", OpenOptions::new().create(true).append(true).read(true))
    }

    pub fn create_stderr(&self) -> io::Result<File> {
        self.open_file("stderr", OpenOptions::new().create(true).append(true))
    }

    /// Write `bytes` beside `name`, whole, then rename over it. Not synced: a kill needs none, and
    /// the lease's thread syncs beside the job's path (design §4.1).
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        replace(&self.file(name), bytes)
    }

    fn read_json<T: DeserializeOwned>(&self, name: &str) -> io::Result<T> {
        let bytes = self.read(name)?;
        serde_json::from_slice(&bytes).map_err(|e| self.said(name, io::Error::new(io::ErrorKind::InvalidData, e)))
    }

    // ---- The control socket --------------------------------------------------------------------

    fn control_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/control", self.fd.as_raw_fd()))
    }

    /// Bound by the manager before the fork, listened on by the job process.
    pub fn bind_control(&self) -> io::Result<UnixListener> {
        let _ = fs::remove_file(self.file("control"));
        UnixListener::bind(self.control_path()).map_err(|e| self.said("control", e))
    }

    pub fn connect_control(&self) -> io::Result<UnixStream> {
        UnixStream::connect(self.control_path()).map_err(|e| self.said("control", e))
    }

    /// What a power loss must not take. As slow as the disk, so never on the job's path (design §4.1).
    pub fn sync(&self) -> io::Result<()> {
        for name in ["lease.json", "job.json", "started"] {
            match self.open_file(name, OpenOptions::new().read(true)) {
                Ok(file) => file.sync_all().map_err(|e| self.said(name, e))?,
                // Not yet there, or gone with the job's end.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        self.path.ancestors().take(2).try_for_each(|dir| File::open(dir)?.sync_all())
    }

    // ---- The end -------------------------------------------------------------------------------

    /// Rename away, then remove: a half-removed directory is never taken for a job (kill point 16).
    pub fn remove(&self) -> io::Result<()> {
        let gone = self.path.with_file_name(format!(".gone-{}", self.name));
        let _ = fs::remove_dir_all(&gone);
        fs::rename(&self.path, &gone).map_err(|e| self.said("", e))?;
        diag::point("directory-gone");
        fs::remove_dir_all(&gone)
    }

    /// Put aside a directory whose lease or job cannot be read.
    pub fn set_aside(&self, broken: &Path) -> io::Result<PathBuf> {
        fs::DirBuilder::new().mode(0o700).recursive(true).create(broken)?;
        let to = (0..)
            .map(|n| broken.join(if n == 0 { self.name.to_string() } else { format!("{}.{n}", self.name) }))
            .find(|p| p.symlink_metadata().is_err())
            .expect("some number is free");
        fs::rename(&self.path, &to)?;
        Ok(to)
    }

    /// A second handle on the same directory.
    pub fn again(&self) -> io::Result<JobDir> {
        Ok(JobDir { path: self.path.clone(), name: self.name.clone(), fd: self.fd.as_fd().try_clone_to_owned()? })
    }
}

#[derive(Serialize, Deserialize)]
struct OrphanUntil {
    boot_id: String,
    at: BootTime,
}

/// The directories of `STATE/jobs`, after deleting what was half made and half removed.
pub fn list(jobs: &Path) -> io::Result<Vec<JobDir>> {
    let mut dirs = Vec::new();
    for entry in fs::read_dir(jobs)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(".new-") || name.starts_with(".gone-") {
            let _ = fs::remove_dir_all(entry.path());
        } else if !name.starts_with('.') && entry.file_type()?.is_dir() {
            dirs.push(JobDir::open(&entry.path())?);
        }
    }
    dirs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(dirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, JobDir) {
        let tmp = tempfile::tempdir().unwrap();
        let name = JobName::new(ForgeKind::Spool, "file:///x", "1");
        let dir = JobDir::create(tmp.path(), &name, |_| Ok(())).unwrap();
        (tmp, dir)
    }

    fn started(boot_id: String) -> Started {
        Started {
            version: VERSION,
            boot_id,
            at: BootTime::now(),
            pid: 1,
            start_time: 0,
            tag: String::new(),
            cgroup: None,
        }
    }

    #[test]
    fn a_directory_tells_its_state() {
        let (_tmp, dir) = dir();
        let State::NeverStarted(lock) = dir.inspect().unwrap() else { panic!() };
        assert!(matches!(dir.inspect().unwrap(), State::Running));
        drop(lock);
        dir.write_started(&started(boot_id())).unwrap();
        assert!(matches!(dir.inspect().unwrap(), State::Crashed(Crash::Died, _)));
        dir.write_started(&started("another".into())).unwrap();
        assert!(matches!(dir.inspect().unwrap(), State::Crashed(Crash::HostRestarted, _)));
        dir.reserve_outcome().unwrap();
        assert!(dir.outcome().unwrap().is_none());
        dir.write_outcome(&Outcome::failed(Why::Script, "x".repeat(9000))).unwrap();
        let State::Ended(outcome, _) = dir.inspect().unwrap() else { panic!() };
        assert_eq!(outcome.why, Some(Why::Script));
        assert!(fs::metadata(dir.file("outcome.json")).unwrap().len() <= OUTCOME_ROOM as u64);
    }

    #[test]
    fn a_held_job_is_not_made_twice() {
        let (tmp, dir) = dir();
        let again = JobDir::create(tmp.path(), dir.name(), |_| Ok(()));
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn what_was_half_made_or_half_removed_is_deleted_at_the_start() {
        let (tmp, dir) = dir();
        fs::create_dir(tmp.path().join(".new-a")).unwrap();
        fs::create_dir(tmp.path().join(".gone-b")).unwrap();
        assert_eq!(list(tmp.path()).unwrap().len(), 1);
        dir.remove().unwrap();
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_orphan_deadline_of_another_boot_says_nothing() {
        let (_tmp, dir) = dir();
        assert!(dir.orphan_until().is_none());
        let at = BootTime::now();
        dir.set_orphan_until(at).unwrap();
        assert_eq!(dir.orphan_until(), Some(at));
        fs::write(dir.file("orphan_until"), r#"{"boot_id":"x","at":1}"#).unwrap();
        assert!(dir.orphan_until().is_none());
    }

    #[test]
    fn a_long_path_still_has_a_control_socket() {
        let tmp = tempfile::tempdir().unwrap();
        let deep = tmp.path().join("d".repeat(150));
        fs::create_dir(&deep).unwrap();
        let dir = JobDir::create(&deep, &JobName::new(ForgeKind::Spool, "", "1"), |_| Ok(())).unwrap();
        let _listener = dir.bind_control().unwrap();
        dir.connect_control().unwrap();
    }
}
