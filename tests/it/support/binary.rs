//! The real binary on a host of its own: a directory with configuration, state, builds and logs, and
//! a runner that is started, signalled, killed and started again. Nothing of it outlives the host.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::gitlab::{GitLab, TOKEN};
use super::{SOON, eventually, processes};

/// Waits of the runner, shortened. Names are those of `clock::Timing`.
const TIMING: &str = "first_output=20,update_interval=60,force_send=1000,backoff_min=20,backoff_max=300,\
     http_backoff_min=5,state_lock=2000,kill_wait=3000,config_check=200";

/// One machine. Made by its builder methods, then [`Host::start`].
pub(crate) struct Host {
    dir: TempDir,
    global: Vec<String>,
    entries: Vec<String>,
    timing: Vec<String>,
    env: Vec<(String, String)>,
    arguments: Vec<String>,
    binary: PathBuf,
    lives: Vec<Arc<AtomicU64>>,
    /// In the environment of everything that this host starts.
    marker: String,
    /// Managers lead a process group of their own, for [`Runner::kill_group`].
    pub(crate) own_group: bool,
    /// Words before the binary's own name: `setpriv …`, `unshare …`. They end in an exec.
    wrap: Vec<String>,
    config_owner: Option<u32>,
}

impl Host {
    /// A host with no entry yet.
    pub(crate) fn bare() -> Host {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // A release build has neither short waits nor points to stop at.
        if !cfg!(debug_assertions) {
            panic!("the integration tests need a build with debug assertions");
        }
        let dir = tempfile::Builder::new().prefix("runner-it-").tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let marker = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Host {
            dir,
            global: Vec::new(),
            entries: Vec::new(),
            timing: vec![TIMING.to_owned()],
            env: Vec::new(),
            arguments: Vec::new(),
            binary: PathBuf::from(env!("CARGO_BIN_EXE_runner")),
            lives: Vec::new(),
            marker,
            own_group: false,
            wrap: Vec::new(),
            config_owner: None,
        }
    }

    /// A host whose one entry asks this server.
    pub(crate) fn new(server: &GitLab) -> Host {
        Host::bare().entry(server, TOKEN, "")
    }

    /// One more entry; `lines` are more keys of its table.
    pub(crate) fn entry(mut self, server: &GitLab, token: &str, lines: &str) -> Host {
        self.lives.push(server.lives());
        let name = format!("entry-{}", self.entries.len());
        self.raw_entry(&name, &server.url(), token, lines)
    }

    /// An entry for any URL.
    pub(crate) fn raw_entry(mut self, name: &str, url: &str, token: &str, lines: &str) -> Host {
        let mut keys = vec![
            ("name", format!("{name:?}")),
            ("url", format!("{url:?}")),
            ("token", format!("{token:?}")),
            ("executor", "\"shell\"".to_owned()),
            ("shell", "\"bash\"".to_owned()),
            ("builds_dir", format!("{:?}", self.path("builds"))),
            ("cache_dir", format!("{:?}", self.path("cache"))),
        ];
        keys.retain(|(key, _)| !lines.lines().any(|l| l.split('=').next().is_some_and(|k| k.trim() == *key)));
        let keys: String = keys.iter().map(|(k, v)| format!("  {k} = {v}\n")).collect();
        self.entries.push(format!("[[runners]]\n{keys}{lines}\n"));
        self
    }

    /// A line at the top of the configuration; a later one with the same key replaces it.
    pub(crate) fn global(mut self, line: &str) -> Host {
        self.set_global(line);
        self
    }

    pub(crate) fn set_global(&mut self, line: &str) {
        let key = |l: &str| l.split('=').next().unwrap_or_default().trim().to_owned();
        let wanted = key(line);
        self.global.retain(|l| key(l) != wanted);
        self.global.push(line.to_owned());
    }

    pub(crate) fn forget_entries(&mut self) {
        self.entries.clear();
    }

    /// `name=milliseconds` pairs of `clock::Timing`.
    pub(crate) fn timing(mut self, pairs: &str) -> Host {
        self.timing.push(pairs.to_owned());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Host {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn binary(mut self, path: &Path) -> Host {
        self.binary = path.to_owned();
        self
    }

    /// Starts everything through these words, which end in an exec of what follows.
    pub(crate) fn wrap(mut self, words: &[&str]) -> Host {
        self.wrap = words.iter().map(ToString::to_string).collect();
        self
    }

    /// These words before those that are there.
    pub(crate) fn wrap_again(mut self, words: &[&str]) -> Host {
        self.wrap.splice(0..0, words.iter().map(ToString::to_string));
        self
    }

    /// Everything runs as `nobody`: for root, whom no permission stops. `None` where that cannot be.
    pub(crate) fn unprivileged(self) -> Option<Host> {
        const NOBODY: u32 = 65534;
        if !rustix::process::geteuid().is_root() {
            return Some(self);
        }
        let binary = self.path("runner-of-nobody");
        fs::copy(&self.binary, &binary).unwrap();
        std::os::unix::fs::chown(self.dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let id = NOBODY.to_string();
        let words = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
        let works = Command::new(words[0]).args(&words[1..]).arg("true").status().is_ok_and(|s| s.success());
        let mut host = self.binary(&binary).wrap(&words);
        host.config_owner = Some(NOBODY);
        works.then_some(host)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// The job directories that are there, hidden ones left out.
    pub(crate) fn jobs(&self) -> Vec<PathBuf> {
        let Ok(dirs) = fs::read_dir(self.state().join("jobs")) else { return Vec::new() };
        let mut dirs: Vec<PathBuf> = dirs.filter_map(|d| Some(d.ok()?.path())).collect();
        dirs.retain(|d| d.file_name().is_some_and(|n| !n.to_string_lossy().starts_with('.')));
        dirs.sort();
        dirs
    }

    /// The one job directory.
    pub(crate) fn job_dir(&self) -> PathBuf {
        eventually("one job directory", SOON, || match &self.jobs()[..] {
            [dir] => Some(dir.clone()),
            _ => None,
        })
    }

    /// The pid of the one job process, once it has started.
    pub(crate) fn job_process(&self) -> u32 {
        eventually("one started job process", SOON, || {
            let alive: Vec<u32> = processes::started_jobs(&self.state())
                .into_iter()
                .filter(|(pid, start)| processes::read(*pid).is_some_and(|p| p.start_time == *start && !p.is_zombie()))
                .map(|(pid, _)| pid)
                .collect();
            (alive.len() == 1).then(|| alive[0])
        })
    }

    pub(crate) fn write_config(&self) -> PathBuf {
        let mut global = vec![
            format!("state_dir = {:?}", self.state()),
            "concurrent = 1".to_owned(),
            "check_interval = 1".to_owned(),
            "log_level = \"debug\"".to_owned(),
            "log_format = \"text\"".to_owned(),
        ];
        let key = |l: &str| l.split('=').next().unwrap_or_default().trim().to_owned();
        global.retain(|l| !self.global.iter().any(|g| key(g) == key(l)));
        let text = format!("{}\n{}\n\n{}", global.join("\n"), self.global.join("\n"), self.entries.join("\n"));
        let path = self.path("config.toml");
        let temp = self.path("config.toml.new");
        fs::write(&temp, text).unwrap();
        fs::set_permissions(&temp, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&temp, self.config_owner, None).unwrap();
        fs::rename(&temp, &path).unwrap();
        path
    }

    /// The next runners stop at this point (`diag::point`), once.
    pub(crate) fn pause(&mut self, point: &str) -> Pause {
        let file = self.path(&format!("pause-{point}"));
        for old in [file.clone(), file.with_extension("was")] {
            let _ = fs::remove_file(old);
        }
        self.env.retain(|(name, _)| name != "RUNNER_PAUSE");
        self.env.push(("RUNNER_PAUSE".to_owned(), format!("{point}={}", file.display())));
        Pause { point: point.to_owned(), file }
    }

    pub(crate) fn no_pause(&mut self) {
        self.env.retain(|(name, _)| name != "RUNNER_PAUSE");
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let binary = self.binary.display().to_string();
        let words: Vec<&str> = self.wrap.iter().map(String::as_str).chain([binary.as_str()]).collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("LANG", "C.UTF-8")
            .env("RUNNER_TIMING", self.timing.join(","))
            .env("RUNNER_TEST_HOST", &self.marker)
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        if self.own_group {
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
        }
        command
    }

    /// Writes the configuration and starts a manager.
    pub(crate) fn start(&self) -> Runner {
        let config = self.write_config();
        let log = self.path("runner.log");
        let from = fs::metadata(&log).map_or(0, |m| m.len());
        let out = OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let mut arguments = vec!["--config".to_owned(), config.display().to_string()];
        arguments.extend(self.arguments.iter().cloned());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let child = self
            .command(&arguments)
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {}: {e}", self.binary.display()));
        Runner { child, log, from, lives: self.lives.clone(), ended: None }
    }

    /// Processes that this host's runners started and that still live: job processes by their
    /// `started` file, their descendants, whoever carries the host's marker or works in its directory.
    pub(crate) fn left_over(&self) -> Vec<processes::Process> {
        let jobs = processes::started_jobs(&self.state());
        let all = processes::all();
        let mut ours: Vec<u32> = all
            .iter()
            .filter(|p| {
                jobs.contains(&(p.pid, p.start_time))
                    || processes::environment(p.pid, "RUNNER_TEST_HOST").is_some_and(|m| m == self.marker)
                    || fs::read_link(format!("/proc/{}/cwd", p.pid)).is_ok_and(|d| d.starts_with(self.dir.path()))
            })
            .map(|p| p.pid)
            .collect();
        loop {
            let more: Vec<u32> =
                all.iter().filter(|p| ours.contains(&p.parent) && !ours.contains(&p.pid)).map(|p| p.pid).collect();
            if more.is_empty() {
                break;
            }
            ours.extend(more);
        }
        all.into_iter().filter(|p| ours.contains(&p.pid) && !p.is_zombie() && p.pid != std::process::id()).collect()
    }

    /// Nothing of a finished job is left: no directory, no process beside the manager.
    pub(crate) fn assert_idle(&self, runner: &Runner) {
        eventually("no job directory is left", SOON, || self.jobs().is_empty().then_some(()));
        let left: Vec<_> = self.left_over().into_iter().filter(|p| p.pid != runner.pid()).collect();
        assert!(left.is_empty(), "left over: {left:?}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for _ in 0..50 {
            let left = self.left_over();
            if left.is_empty() {
                break;
            }
            left.iter().for_each(|p| processes::signal(p.pid, Signal::KILL));
            super::tick(Duration::from_millis(5));
        }
    }
}

/// A named point at which the binary waits for the test.
pub(crate) struct Pause {
    point: String,
    file: PathBuf,
}

impl Pause {
    /// Waits until a process is there; its pid.
    pub(crate) fn reached(&self) -> u32 {
        eventually(&format!("a process at the point {}", self.point), SOON, || {
            fs::read_to_string(&self.file).ok()?.trim().parse().ok()
        })
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.file.exists()
    }

    pub(crate) fn release(&self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// A manager. Dropping it kills it; its jobs go with their host.
pub(crate) struct Runner {
    child: Child,
    log: PathBuf,
    /// Where this manager's lines begin.
    from: u64,
    lives: Vec<Arc<AtomicU64>>,
    ended: Option<ExitStatus>,
}

impl Runner {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let from = usize::try_from(self.from).unwrap_or(0).min(bytes.len());
        String::from_utf8_lossy(&bytes[from..]).into_owned()
    }

    /// Waits for a text in the manager's own log; the line.
    pub(crate) fn says(&self, text: &str, within: Duration) -> String {
        eventually(&format!("{text:?} in the manager's log, as it follows"), within, || {
            self.log().lines().find(|l| l.contains(text)).map(str::to_owned)
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.ended.is_none(), "the manager has ended already");
        processes::signal(self.pid(), signal);
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap();
        }
        self.ended.is_none()
    }

    /// Waits for the end, however it comes.
    pub(crate) fn wait(&mut self, within: Duration) -> ExitStatus {
        let end = Instant::now() + within;
        while self.is_alive() {
            assert!(Instant::now() < end, "the manager did not end within {within:?}; its log:\n{}", self.log());
            super::tick(Duration::from_millis(2));
        }
        for life in &self.lives {
            life.fetch_add(1, Ordering::SeqCst);
        }
        self.ended.expect("it has just ended")
    }

    /// SIGKILL, as the OOM killer sends it.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait(SOON);
    }

    /// SIGKILL to the whole group that the manager leads.
    pub(crate) fn kill_group(&mut self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        rustix::process::kill_process_group(pid, Signal::KILL).unwrap();
        self.wait(SOON);
    }

    /// A signal, then the exit code.
    pub(crate) fn stop(&mut self, signal: Signal, within: Duration) -> Option<i32> {
        self.signal(signal);
        self.wait(within).code()
    }

    /// The orderly end of a test: TERM, and exit code 0.
    pub(crate) fn finish(mut self) {
        let code = self.stop(Signal::TERM, SOON);
        assert_eq!(code, Some(0), "exit code after TERM; the log:\n{}", self.log());
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let from = log.floor_char_boundary(log.len().saturating_sub(6000));
            eprintln!("---- the manager's log\n{}", &log[from..]);
        }
        if self.is_alive() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A file system of a given size, for tests that fill a disk. Only root can make one.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, and a word, where it cannot be mounted (a container without the capability).
    pub(crate) fn mount(at: &Path, kib: u32) -> Option<SmallDisk> {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={kib}k,mode=0755");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).status();
        if done.is_ok_and(|s| s.success()) {
            return Some(SmallDisk(at.to_owned()));
        }
        eprintln!("skipped: a tmpfs cannot be mounted here");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}
