//! The measured binary on a host of its own, and what the kernel knows of it: memory, threads, processor
//! time. Judges nothing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::fake::Fake;

/// A directory with configuration and state, and a manager while there is one.
pub(crate) struct Host {
    dir: tempfile::TempDir,
    binary: PathBuf,
    manager: Option<Child>,
}

impl Host {
    /// The release binary, polling `fake` with so many workers.
    pub(crate) fn new(binary: &Path, fake: &Fake, concurrent: usize, check_interval: u32) -> Host {
        let dir = tempfile::Builder::new().prefix("runner-bench-").tempdir().expect("a temporary directory");
        let at = |name: &str| dir.path().join(name);
        // The limit of the log is out of the way: its 4 MiB would be all that is measured.
        let config = format!(
            "concurrent = {concurrent}\ncheck_interval = {check_interval}\nlog_level = \"warn\"\nstate_dir = {:?}\n\
             [[runners]]\nname = \"bench\"\nurl = \"http://{}\"\ntoken = \"glrt-benchbench\"\nexecutor = \"shell\"\n\
             builds_dir = {:?}\ncache_dir = {:?}\noutput_limit = 100000000\n\
             request_concurrency = {concurrent}\n",
            at("state"),
            fake.address(),
            at("builds"),
            at("cache"),
        );
        fs::write(at("config.toml"), config).expect("the directory is writable");
        Host { binary: binary.to_owned(), dir, manager: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark starts the binary as a supervisor does")]
    pub(crate) fn start(&mut self) {
        let log = File::create(self.path("runner.log")).expect("the directory is writable");
        let mut command = Command::new(&self.binary);
        self.environment(command.arg("--config").arg(self.path("config.toml")));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor")).stderr(log);
        self.manager = Some(command.spawn().expect("the binary starts"));
    }

    /// That of a service: nobody's profile slows the login shell of a job.
    pub(crate) fn environment(&self, command: &mut Command) {
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.dir.path());
    }

    /// Something else meanwhile, with the manager stopped in its polls: it must not take the other's jobs.
    pub(crate) fn pause(&self, meanwhile: impl FnOnce()) {
        let pid = Pid::from_child(self.manager.as_ref().expect("the manager was started"));
        kill_process(pid, Signal::STOP).expect("it is our child");
        // A poll that was on its way is answered meanwhile.
        let _ = crossbeam_channel::never::<()>().recv_timeout(Duration::from_millis(5));
        meanwhile();
        kill_process(pid, Signal::CONT).expect("it is our child");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.manager.as_ref().expect("the manager was started").id()
    }

    /// TERM, and wait.
    pub(crate) fn stop(&mut self) {
        let Some(mut child) = self.manager.take() else { return };
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::TERM).expect("it is our child");
        child.wait().expect("it is our child");
    }

    /// What the manager said, for the message of a benchmark that fails.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.path("runner.log")).unwrap_or_default()
    }

    /// The manager's children with the binary's name: job processes.
    pub(crate) fn job_processes(&self) -> Vec<u32> {
        let name = self.binary.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let children = tasks.filter_map(|t| fs::read_to_string(t.path().join("children")).ok()).collect::<String>();
        let pids = children.split_whitespace().filter_map(|p| p.parse().ok());
        pids.filter(|p| {
            // The name of a process whose main thread named itself is that thread's.
            fs::read_to_string(format!("/proc/{p}/cmdline")).is_ok_and(|c| c.contains(&name) || c.contains("job"))
        })
        .collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(child) = &mut self.manager {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Proportional set size in bytes; `None` where the kernel does not tell (an undumpable process of a user
/// without privilege).
pub(crate) fn pss(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("Pss:"))?;
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

pub(crate) fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Processor time of all living threads.
pub(crate) fn cpu(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let times = tasks.filter_map(|t| fs::read_to_string(t.path().join("schedstat")).ok());
    Duration::from_nanos(times.filter_map(|t| t.split(' ').next()?.parse::<u64>().ok()).sum())
}

/// Processor time of the process and of all children that it has waited for, and theirs.
pub(crate) fn cpu_of_all(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let ticks: u64 = fields.skip(11).take(4).filter_map(|f| f.parse::<u64>().ok()).sum();
    // The kernel shows hundredths of a second, whatever it counts in.
    Duration::from_millis(ticks * 10)
}
