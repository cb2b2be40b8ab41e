//! How the stages of one entry run: as whom, with which umask and limits. Found out once, before the first
//! stage; what cannot be is the job's end, never less than was asked for. Starts nothing.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::model::{Limits, Settings};
use crate::process::cgroup::Leaf;
use crate::process::is_ours;
use crate::process::trampoline::{Change, Ids};
use crate::process::user::{User, is_root, may_work_in};

/// A look at a directory takes no longer, or the job is not run.
const LOOK: Duration = Duration::from_secs(10);
/// The umask that the job process has itself.
const UMASK: u32 = 0o022;

#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// `None`: the runner's own.
    pub user: Option<User>,
    /// Where all stages of the job run.
    pub leaf: Option<Leaf>,
    /// Names of the runner's environment, or their beginnings with a `*`; `None`: all.
    inherit: Option<Vec<String>>,
    /// Where the runner was started without one.
    home: Option<PathBuf>,
    limits: Limits,
    /// Empty: the stage's program starts at once, without a trampoline.
    pub change: Change,
}

impl Manner {
    /// `state`: the runner's own directory, which is closed to others unless the workspace lies in it. `name`:
    /// of a cgroup, different for every run of every job.
    pub fn of(settings: &Settings, state: &Path, name: &str) -> Result<Manner, String> {
        let user = match settings.user.as_str() {
            "" => None,
            name => User::for_stages(name)?,
        };
        if let Some(user) = &user {
            for (key, dir) in [("builds_dir", &settings.builds_dir), ("cache_dir", &settings.cache_dir)] {
                room(dir, user, state).map_err(|e| format!("{key} {}: {e}", dir.display()))?;
            }
        }
        let ids = user.as_ref().map(|u| Ids { uid: u.uid, gid: u.gid, groups: u.groups.clone() });
        let umask = settings.umask.filter(|m| *m != UMASK);
        let limits = settings.limits.clone();
        let leaf = leaf(&limits, name)?;
        // What the cgroup counts needs no other count.
        let counts = |f: fn(&Leaf) -> bool| leaf.as_ref().is_some_and(f);
        let change = Change {
            ids,
            umask,
            nice: limits.nice.filter(|n| *n != 0),
            memory: limits.memory.filter(|_| !counts(|l| l.memory)),
            processes: limits.processes.filter(|_| !counts(|l| l.processes)),
            cpu_time: limits.cpu_time,
            open_files: limits.open_files,
            cgroup: leaf.as_ref().map(Leaf::door),
        };
        let home = std::env::home_dir().filter(|_| std::env::vars_os().all(|(name, _)| name != "HOME"));
        Ok(Manner { user, leaf, inherit: settings.inherit_environment.clone(), home, limits, change })
    }

    /// What limits the job, and how, for its log; nothing where nothing does.
    pub fn notes(&self) -> Vec<String> {
        let leaf = self.leaf.as_ref();
        let by = |counted: bool| if counted { "the whole job, by its cgroup" } else { "each process, by rlimit" };
        let mut said: Vec<String> = Vec::new();
        if let Some(n) = self.limits.memory {
            said.push(format!("memory {} MiB for {}", n >> 20, by(leaf.is_some_and(|l| l.memory))));
        }
        if let Some(n) = self.limits.processes {
            let whose = match leaf {
                Some(leaf) if leaf.processes => "for the whole job, by its cgroup",
                _ if self.user.is_none() && is_root() => "without effect: root has no rlimit, and there is no cgroup",
                _ => "for all of the user, by rlimit",
            };
            said.push(format!("processes {n} {whose}"));
        }
        said.extend(self.limits.cpu_time.map(|n| format!("cpu_time {n} s for {}", by(false))));
        said.extend(self.limits.open_files.map(|n| format!("open_files {n} for {}", by(false))));
        if said.is_empty() { Vec::new() } else { vec![format!("Limits: {}", said.join("; "))] }
    }

    /// The program and its arguments as they are started.
    pub(super) fn command(&self, argv: &[OsString]) -> std::process::Command {
        let mut command = if self.change.is_none() {
            let mut command = crate::process::command(&argv[0]);
            command.args(&argv[1..]);
            command
        } else {
            self.change.command(argv)
        };
        if let Some(names) = &self.inherit {
            command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_listed(name, names)));
        }
        command.envs(self.home.iter().map(|home| ("HOME", home)));
        if let Some(user) = &self.user {
            command.envs(user.environment());
            // What these lead to is the runner's own.
            for name in ["XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "MAIL"] {
                command.env_remove(name);
            }
        }
        command
    }
}

/// What no script can do without is, always; what is the manager's never is.
fn is_listed(name: &OsStr, names: &[String]) -> bool {
    let is = |pattern: &str| match pattern.strip_suffix('*') {
        Some(beginning) => name.as_bytes().starts_with(beginning.as_bytes()),
        None => name == pattern,
    };
    !is_ours(name) && (["HOME", "PATH"].into_iter().any(is) || names.iter().any(|n| is(n)))
}

/// Where a limit needs one, or the entry wants one.
fn leaf(limits: &Limits, name: &str) -> Result<Option<Leaf>, String> {
    let needs = limits.memory.is_some() || limits.processes.is_some();
    if !limits.cgroup.unwrap_or(needs) {
        return Ok(None);
    }
    match (Leaf::make(name, limits.memory, limits.processes), limits.cgroup) {
        (Ok(leaf), None) if !leaf.memory && !leaf.processes => {
            leaf.remove(Duration::ZERO);
            Ok(None)
        }
        (Ok(leaf), _) => Ok(Some(leaf)),
        (Err(e), Some(true)) => Err(format!("the entry wants a cgroup for its jobs, and none can be made: {e}")),
        (Err(_), _) => Ok(None),
    }
}

/// A directory that the user can work in. One that is not there is made and given to the user; one that is
/// there and empty is given, too. What others have put there is left alone.
fn room(dir: &Path, user: &User, state: &Path) -> io::Result<()> {
    if dir.starts_with(state) {
        // What lies in it is closed for itself.
        let mode = fs::metadata(state)?.permissions().mode();
        if mode & 0o001 == 0 {
            fs::set_permissions(state, fs::Permissions::from_mode(mode & 0o7777 | 0o001))?;
        }
    }
    let is_new = match dir.symlink_metadata() {
        Ok(meta) => meta.uid() == 0 && meta.is_dir() && fs::read_dir(dir)?.next().is_none(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
            true
        }
        Err(e) => return Err(e),
    };
    if is_new {
        // Not through a link that took its place.
        std::os::unix::fs::lchown(dir, Some(user.uid), Some(user.gid))?;
    }
    let inside = dir.to_owned();
    user.look(LOOK, move || may_work_in(&inside))?.map_err(|e| {
        io::Error::new(e.kind(), format!("the user {} cannot work there: {e}; give it to that user", user.name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_lists_what_its_jobs_inherit() {
        let names = ["LANG", "LC_*", "CI_*", "NOTIFY_SOCKET"].map(str::to_owned);
        for (name, want) in [
            ("HOME", true),
            ("PATH", true),
            ("LANG", true),
            ("LANGUAGE", false),
            ("LC_ALL", true),
            ("SECRET", false),
            ("CI_SERVER_URL", true),
            ("CI_SERVER_TOKEN", false),
            ("NOTIFY_SOCKET", false),
        ] {
            assert_eq!(is_listed(OsStr::new(name), &names), want, "{name}");
        }
    }
}
