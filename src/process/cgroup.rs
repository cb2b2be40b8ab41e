//! A cgroup of its own for the stages of one job (cgroup v2): counts what all of them take together, and
//! ends all of them at once, whoever they run as. Made only where the host has given this process a part
//! of the tree to itself; moves no process but the one that asks for it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use super::wait_any;

/// The name of the cgroup that a service manager starts us in, below the one that is ours
/// (`DelegateSubgroup=manager` of systemd): only then has that one no processes, and may have limits below.
const OURS: &str = "manager";
/// How long between two tries to remove what the kernel still counts as in use.
const STEP: Duration = Duration::from_millis(10);

/// One job's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    path: PathBuf,
    /// What the kernel counts there.
    pub memory: bool,
    pub processes: bool,
}

impl Leaf {
    /// The error says why there is none.
    pub fn make(name: &str, memory: Option<u64>, processes: Option<u64>) -> io::Result<Leaf> {
        let base = base()?;
        let mut leaf = Leaf { path: base.join(name), memory: false, processes: false };
        // In the service's own cgroup this fails while there are processes in it, and the limits are others'.
        for (controller, wanted) in [("+memory", memory.is_some()), ("+pids", processes.is_some())] {
            if wanted {
                let _ = fs::write(base.join("cgroup.subtree_control"), controller);
            }
        }
        fs::create_dir(&leaf.path).map_err(|e| at(&leaf.path, &e))?;
        leaf.memory = leaf.set("memory.max", memory);
        leaf.processes = leaf.set("pids.max", processes);
        Ok(leaf)
    }

    /// One that was made before.
    pub fn at(path: &Path) -> Leaf {
        Leaf { path: path.to_owned(), memory: false, processes: false }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who writes its number there, or 0, is in it, and so is all that it starts.
    pub fn door(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Every process in it, also those that fork meanwhile and those that we may not signal.
    pub fn kill(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Within `limit`; what is in it may take a moment to end. One that is still in use stays.
    pub fn remove(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while let Err(e) = fs::remove_dir(&self.path) {
            let gone = e.kind() == io::ErrorKind::NotFound;
            if gone || Instant::now() >= until {
                return;
            }
            wait_any(&[], STEP);
        }
    }

    fn set(&self, file: &str, most: Option<u64>) -> bool {
        most.is_some_and(|n| fs::write(self.path.join(file), n.to_string()).is_ok())
    }
}

/// Where jobs' cgroups may be made.
fn base() -> io::Result<PathBuf> {
    let none = |why: &str| io::Error::new(io::ErrorKind::Unsupported, why.to_owned());
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = mount_point(&mounts).ok_or_else(|| none("cgroup v2 is not mounted here"))?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|l| l.strip_prefix("0::/")).ok_or_else(|| none("there is no cgroup v2 here"))?;
    let own = mount.join(own);
    if own.file_name().is_some_and(|name| name == OURS)
        && let Some(parent) = own.parent().filter(|p| is_writable(p))
    {
        return Ok(parent.to_owned());
    }
    // Without limits, but what is in it can be ended.
    if is_writable(&own) && is_given(&own) {
        return Ok(own);
    }
    Err(none(&format!("the cgroup {} is not the runner's to divide", own.display())))
}

fn is_writable(dir: &Path) -> bool {
    let may = Access::WRITE_OK;
    access(dir, may).is_ok() && access(dir.join("cgroup.procs"), may).is_ok()
}

/// Root may write everywhere, but what systemd has made is systemd's, unless it says otherwise.
fn is_given(dir: &Path) -> bool {
    let me = geteuid();
    if !me.is_root() {
        return fs::metadata(dir).is_ok_and(|m| m.uid() == me.as_raw());
    }
    let says = |name: &str| {
        let mut value = [0; 8];
        rustix::fs::getxattr(dir, name, &mut value).is_ok_and(|n| value.starts_with(b"1") && n == 1)
    };
    !Path::new("/run/systemd/system").exists() || says("user.delegate") || says("trusted.delegate")
}

/// Of the whole tree that this process sees.
fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (root == "/" && right.starts_with("cgroup2 ")).then(|| point.replace("\\040", " ").into())
    })
}

fn at(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_found_where_it_is_mounted() {
        let v1 = "30 24 0:26 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let v2 = "29 24 0:25 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let part = "31 24 0:25 /docker/x /mnt rw - cgroup2 cgroup2 rw\n";
        for (text, want) in [
            (format!("{v1}{v2}"), Some("/sys/fs/cgroup")),
            (format!("{part}{v1}"), None),
            (v2.replace("/sys/fs/cgroup", "/a\\040b"), Some("/a b")),
        ] {
            assert_eq!(mount_point(&text).as_deref(), want.map(Path::new), "{text}");
        }
    }
}
