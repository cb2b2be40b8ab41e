//! Removes the files that must not outlive a job, after the last process of it is gone. A script may have
//! put anything in their place, and this process may be root's: no link is followed, nothing but these
//! names is removed, and what is not there is no matter.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, Mode, OFlags, open, openat, unlinkat};

use crate::forge::Wipe;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

pub(super) fn wipe(wipe: &Wipe) {
    for file in &wipe.files {
        // What a job made unreachable for us is out of the next job's reach, too.
        let _ = remove(&wipe.below, file);
    }
}

fn remove(below: &Path, file: &Path) -> io::Result<()> {
    let inside = file.strip_prefix(below).map_err(io::Error::other)?;
    let name = inside.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut directory = open(below, DIRECTORY, Mode::empty())?;
    for part in inside.parent().into_iter().flat_map(Path::components) {
        let Component::Normal(part) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
        directory = enter(&directory, part)?;
    }
    unlinkat(&directory, name, AtFlags::empty())?;
    Ok(())
}

fn enter(directory: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    Ok(openat(directory, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_go_and_what_links_lead_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (below, other) = (dir.path().join("builds"), dir.path().join("other"));
        fs::create_dir_all(below.join("a/p.tmp")).unwrap();
        fs::create_dir_all(&other).unwrap();
        for file in [below.join("a/p.tmp/token"), below.join("kept"), other.join("token"), dir.path().join("token")] {
            fs::write(file, "secret").unwrap();
        }
        symlink(&other, below.join("link")).unwrap();
        symlink(other.join("token"), below.join("a/p.tmp/planted")).unwrap();
        let files = ["a/p.tmp/token", "a/p.tmp/planted", "a/p.tmp/none", "link/token", "../token", "a"];
        let mut files: Vec<_> = files.iter().map(|f| below.join(f)).collect();
        files.push(other.join("token"));
        wipe(&Wipe { below: below.clone(), files });
        assert_eq!(fs::read_dir(below.join("a/p.tmp")).unwrap().count(), 0);
        assert!(other.join("token").exists() && dir.path().join("token").exists() && below.join("kept").exists());
    }
}
