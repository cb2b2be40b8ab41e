//! The directory that is extracted into, and the only way to make something in it. Every name is opened
//! from its directory's descriptor; a link on the way is followed only where the kernel vouches that it
//! stays below the root, so nothing that changes meanwhile can lead outside.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_OMIT, Uid, fchmod, fchown, futimens, linkat,
    mkdirat, openat, openat2, readlinkat, symlinkat, unlinkat,
};
use rustix::io::Errno;

/// What is restored of an entry beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub(super) mode: u32,
    /// Seconds since 1970; `None` leaves the time of the extraction.
    pub(super) mtime: Option<i64>,
    /// Only root can give files away, and tries.
    pub(super) owner: Option<(u32, u32)>,
}

#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    is_root: bool,
    /// Directories get their marks when nothing more is put into them.
    dirs: Mutex<Vec<(Vec<u8>, Marks)>>,
}

/// A directory that is open, so that the next file in it need not walk there again.
#[derive(Debug, Default)]
pub(super) struct Last(Option<(Vec<u8>, Arc<OwnedFd>)>);

impl Tree {
    pub(super) fn open(root: &Path) -> Result<Tree, String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root =
            rustix::fs::open(root, flags, Mode::empty()).map_err(|e| format!("{}: {}", root.display(), words(e)))?;
        Ok(Tree { root, is_root: rustix::process::geteuid().is_root(), dirs: Mutex::default() })
    }

    /// A new, empty file, in the place of one that is there.
    pub(super) fn file(&self, parts: &[&[u8]], last: &mut Last) -> Result<File, String> {
        let (name, parent) = self.parent(parts, last)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let make = || openat(&parent, name, flags, Mode::from_raw_mode(0o600));
        let made = match make() {
            Err(Errno::EXIST) => {
                remove(&parent, name).map_err(|e| failed(parts, e))?;
                make()
            }
            other => other,
        };
        made.map(File::from).map_err(|e| failed(parts, e))
    }

    /// Owner, mode and time of a file that was written, in this order: each of the first changes the next.
    pub(super) fn mark(&self, file: impl AsFd, marks: Marks) -> io::Result<()> {
        if let (true, Some((uid, gid))) = (self.is_root, marks.owner) {
            let _ = fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        }
        // An archive of another job must not make what runs as somebody else.
        fchmod(&file, Mode::from_raw_mode(marks.mode & 0o1777))?;
        if let Some(mtime) = marks.mtime {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec: mtime, tv_nsec: 0 },
            };
            futimens(&file, &times)?;
        }
        Ok(())
    }

    /// Make the directory, and remember its marks.
    pub(super) fn dir(&self, parts: &[&[u8]], marks: Marks) -> Result<(), String> {
        if !parts.is_empty() {
            self.walk(parts)?;
            self.dirs.lock().push((parts.join(&b'/'), marks));
        }
        Ok(())
    }

    /// A symbolic link, in the place of a file or link that is there. Its target may be anything.
    pub(super) fn link(&self, parts: &[&[u8]], target: &[u8], mtime: Option<i64>) -> Result<(), String> {
        let (name, parent) = self.parent(parts, &mut Last::default())?;
        let target = OsStr::from_bytes(target);
        let made = match symlinkat(target, &parent, name) {
            Err(Errno::EXIST)
                if readlinkat(&parent, name, Vec::new()).is_ok_and(|t| t.as_bytes() == target.as_bytes()) =>
            {
                Ok(())
            }
            Err(Errno::EXIST) => remove(&parent, name).and_then(|()| symlinkat(target, &parent, name)),
            other => other,
        };
        made.map_err(|e| failed(parts, e))?;
        if let Some(mtime) = mtime {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec: mtime, tv_nsec: 0 },
            };
            // Some file systems keep no time of a link.
            let _ = rustix::fs::utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW);
        }
        Ok(())
    }

    /// One more name for a file of the same archive.
    pub(super) fn hard_link(&self, parts: &[&[u8]], to: &[&[u8]]) -> Result<(), String> {
        let (old, from) = self.parent(to, &mut Last::default())?;
        let (new, into) = self.parent(parts, &mut Last::default())?;
        let make = || linkat(&from, old, &into, new, AtFlags::empty());
        let made = match make() {
            Err(Errno::EXIST) if parts == to => Ok(()),
            Err(Errno::EXIST) => remove(&into, new).and_then(|()| make()),
            other => other,
        };
        made.map_err(|e| failed(parts, e))
    }

    /// The directories' marks, those below first: a mode may close the way.
    pub(super) fn finish(&self) {
        let mut dirs = std::mem::take(&mut *self.dirs.lock());
        // The last of equal names counts.
        dirs.sort_by(|a, b| b.0.cmp(&a.0));
        let mut done: Option<Vec<u8>> = None;
        let mut kept = Vec::new();
        for dir in dirs {
            if done.as_ref() == Some(&dir.0) {
                kept.pop();
            }
            done = Some(dir.0.clone());
            kept.push(dir);
        }
        for (path, marks) in kept {
            let parts: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let marked = self.parent(&parts, &mut Last::default()).and_then(|(name, parent)| {
                let dir = openat(&parent, name, flags, Mode::empty()).map_err(|e| failed(&parts, e))?;
                self.mark(dir, marks).map_err(|e| format!("{}: {e}", super::show(&path)))
            });
            // A directory that is somebody else's was of use all the same.
            if let Err(why) = marked {
                log::debug!("marks of a directory: {why}");
            }
        }
    }

    fn parent<'n>(&self, parts: &[&'n [u8]], last: &mut Last) -> Result<(&'n OsStr, Arc<OwnedFd>), String> {
        let Some((name, above)) = parts.split_last() else {
            return Err("an entry has the name of the directory itself".to_owned());
        };
        let key = above.join(&b'/');
        if let Some((known, fd)) = &last.0
            && *known == key
        {
            return Ok((OsStr::from_bytes(name), fd.clone()));
        }
        let fd = Arc::new(self.walk(above)?);
        last.0 = Some((key, fd.clone()));
        Ok((OsStr::from_bytes(name), fd))
    }

    /// Down to a directory, made where it is missing.
    fn walk(&self, parts: &[&[u8]]) -> Result<OwnedFd, String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = self.root.try_clone().map_err(|e| e.to_string())?;
        for (i, part) in parts.iter().enumerate() {
            let name = OsStr::from_bytes(part);
            let next = match openat(&at, name, flags, Mode::empty()) {
                Err(Errno::NOENT) => {
                    match mkdirat(&at, name, Mode::from_raw_mode(0o777)) {
                        // Another thread was faster.
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(e) => return Err(failed(&parts[..=i], e)),
                    }
                    openat(&at, name, flags, Mode::empty())
                }
                other => other,
            };
            at = match next {
                Ok(fd) => fd,
                Err(Errno::NOTDIR | Errno::LOOP) => self.through_link(&parts[..=i])?,
                Err(e) => return Err(failed(&parts[..=i], e)),
            };
        }
        Ok(at)
    }

    /// A link of the workspace to another directory of it is as good as a directory.
    fn through_link(&self, parts: &[&[u8]]) -> Result<OwnedFd, String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = parts.join(&b'/');
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, OsStr::from_bytes(&path), flags, Mode::empty(), inside).map_err(|e| match e {
            Errno::NOTDIR => format!("{}: it is not a directory, and the archive has files in it", super::show(&path)),
            Errno::XDEV | Errno::NOSYS | Errno::PERM | Errno::LOOP => {
                format!("{}: it is a link that leads outside, and the archive has files behind it", super::show(&path))
            }
            e => failed(parts, e),
        })
    }
}

/// Whatever is no directory.
fn remove(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    unlinkat(parent, name, AtFlags::empty())
}

fn failed(parts: &[&[u8]], e: Errno) -> String {
    let name = super::show(&parts.join(&b'/'));
    match e {
        Errno::ISDIR => format!("{name}: a directory of this name is in the way"),
        e => format!("{name}: {}", words(e)),
    }
}

fn words(e: Errno) -> io::Error {
    io::Error::from(e)
}
