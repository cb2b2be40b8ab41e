//! The process table, read from /proc: who lives, whose child it is, what it was started as. Ends
//! only processes that a test's own host started.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    /// `Z` for one that nobody has waited for.
    pub(crate) state: char,
    pub(crate) start_time: u64,
    /// Words of the command line, joined by spaces.
    pub(crate) command: String,
}

impl Process {
    pub(crate) fn is_zombie(&self) -> bool {
        self.state == 'Z'
    }
}

pub(crate) fn all() -> Vec<Process> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(read).collect()
}

/// `None` when it is gone.
pub(crate) fn read(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(Process {
        pid,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
        command: String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned(),
    })
}

/// Living processes (zombies are none) whose command line has this text.
pub(crate) fn with_command(text: &str) -> Vec<Process> {
    all().into_iter().filter(|p| !p.is_zombie() && p.command.contains(text)).collect()
}

pub(crate) fn children(parent: u32) -> Vec<Process> {
    all().into_iter().filter(|p| p.parent == parent).collect()
}

pub(crate) fn is_alive(pid: u32) -> bool {
    read(pid).is_some_and(|p| !p.is_zombie())
}

/// The value of a variable in a process's environment, where it may be read.
pub(crate) fn environment(pid: u32, name: &str) -> Option<String> {
    let all = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let prefix = format!("{name}=");
    all.split(|b| *b == 0).find_map(|v| Some(String::from_utf8_lossy(v.strip_prefix(prefix.as_bytes())?).into_owned()))
}

/// Resident memory in bytes: now, and at most so far.
pub(crate) fn memory(pid: u32) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    Some((field("VmRSS:")?, field("VmHWM:")?))
}

/// A number of seconds that no other test uses: `sleep` with it is found in the process table.
pub(crate) fn unique_sleep() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}.{:03}", 100_000 + std::process::id() % 800_000, n)
}

/// Sends a signal to a process that a test started; that it is gone already is no error.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    match rustix::process::kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(e) => panic!("cannot signal {pid:?}: {e}"),
    }
}

/// What `started` says of the job processes of a state directory: pid and start time.
pub(crate) fn started_jobs(state: &Path) -> Vec<(u32, u64)> {
    let Ok(dirs) = fs::read_dir(state.join("jobs")) else { return Vec::new() };
    dirs.filter_map(|dir| {
        let file = dir.ok()?.path().join("started");
        // A hostile script may have put a pipe or a device there.
        let text = fs::metadata(&file).ok()?.is_file().then(|| fs::read_to_string(file))?.ok()?;
        let started: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some((u32::try_from(started["pid"].as_u64()?).ok()?, started["start_time"].as_u64()?))
    })
    .collect()
}
