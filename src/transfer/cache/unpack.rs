//! Unpacking that is all or nothing: the archive's files come into being beside the project directory,
//! and are moved in when all of them are there. What cannot be unpacked leaves the project as it was.
//!
//! The moves are written down first. When they are interrupted, the next unpacking removes what they
//! brought: a cache that is there in part would be used, and saved, as if it were whole.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use crate::diag;
use crate::transfer::{extract, say};

/// In the temporary directory.
const STAGING: &str = "cache_restore";
const MOVES: &str = "moves";

pub(super) fn unpack(archive: &File, root: &Path, temp: Option<&Path>) -> Result<(), String> {
    let Some(temp) = temp.filter(|t| same_device(t, root)) else {
        return extract::extract(archive, root);
    };
    let staging = temp.join(STAGING);
    recover(&staging, root).map_err(|e| format!("{}: {e}", staging.display()))?;
    let tree = staging.join("tree");
    fs::create_dir_all(&tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    let unpacked = extract::extract(archive, &tree).and_then(|()| {
        diag::point("cache-unpacked");
        merge(&staging, &tree, root).map_err(|e| format!("the cache could not be put in its place: {e}"))
    });
    if unpacked.is_err() {
        // What was moved already goes, too.
        let _ = recover(&staging, root);
    }
    unpacked?;
    remove(&staging).map_err(|e| format!("{}: {e}", staging.display()))
}

fn same_device(a: &Path, b: &Path) -> bool {
    matches!((a.metadata(), b.metadata()), (Ok(a), Ok(b)) if a.is_dir() && a.dev() == b.dev())
}

/// What an unpacking that did not end has left.
fn recover(staging: &Path, root: &Path) -> io::Result<()> {
    if staging.symlink_metadata().is_err() {
        return Ok(());
    }
    let moves = fs::read(staging.join(MOVES)).unwrap_or_default();
    let mut gone = Vec::new();
    for name in moves.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let name = PathBuf::from(std::ffi::OsString::from_vec(name.to_vec()));
        let inside = name.components().all(|c| matches!(c, Component::Normal(_)));
        if inside && is_reached(root, &name) && remove(&root.join(&name)).is_ok() {
            gone.push(name.display().to_string());
        }
    }
    if let Some(first) = gone.first() {
        let more = if gone.len() > 1 { format!(" and {} more", gone.len() - 1) } else { String::new() };
        say::warn(format!("A cache was restored in part only, and is removed: {first}{more}"));
    }
    remove(staging)
}

/// Whether `name` is there, by directories alone: a link could lead anywhere.
fn is_reached(root: &Path, name: &Path) -> bool {
    let mut at = root.to_owned();
    for part in name.parent().into_iter().flat_map(Path::components) {
        at.push(part);
        if !at.symlink_metadata().is_ok_and(|m| m.is_dir()) {
            return false;
        }
    }
    root.join(name).symlink_metadata().is_ok()
}

/// Moves what is in `tree` to `root`, whole directories where they are new.
fn merge(staging: &Path, tree: &Path, root: &Path) -> io::Result<()> {
    let mut plan = Plan::default();
    plan.look(tree, root, Path::new(""))?;
    let mut names = Vec::new();
    for name in &plan.moves {
        names.extend_from_slice(name.as_os_str().as_bytes());
        names.push(0);
    }
    fs::write(staging.join(MOVES), names)?;
    for shared in &plan.dirs {
        for (at, meta) in [(tree, &shared.new), (root, &shared.old)] {
            fs::set_permissions(at.join(&shared.name), Permissions::from_mode(meta.mode() | 0o700))?;
        }
    }
    for (n, name) in plan.moves.iter().enumerate() {
        replace(&tree.join(name), &root.join(name))?;
        if n == 0 {
            diag::point("cache-moving");
        }
    }
    // The inner ones first: each change shows in the time of the directory around it.
    for Shared { name, new, old } in plan.dirs.iter().rev() {
        let at = root.join(name);
        File::open(&at)?.set_times(fs::FileTimes::new().set_modified(new.modified()?))?;
        fs::set_permissions(at, old.permissions())?;
    }
    fs::remove_file(staging.join(MOVES))
}

#[derive(Default)]
struct Plan {
    moves: Vec<PathBuf>,
    /// The outer before the inner ones.
    dirs: Vec<Shared>,
}

/// A directory that is on both sides. It gets the archive's time, so that a cache that nobody changed is
/// not saved again, and keeps its own mode, because the archive may not have had it as an entry.
struct Shared {
    name: PathBuf,
    new: Metadata,
    old: Metadata,
}

impl Plan {
    fn look(&mut self, tree: &Path, root: &Path, below: &Path) -> io::Result<()> {
        for entry in fs::read_dir(tree.join(below))? {
            let name = below.join(entry?.file_name());
            let new = tree.join(&name).symlink_metadata()?;
            let old = root.join(&name).symlink_metadata().ok().filter(|old| old.is_dir() && new.is_dir());
            match old {
                Some(old) => {
                    self.dirs.push(Shared { name: name.clone(), new, old });
                    self.look(tree, root, &name)?;
                }
                None => self.moves.push(name),
            }
        }
        Ok(())
    }
}

fn replace(from: &Path, to: &Path) -> io::Result<()> {
    let new = from.symlink_metadata()?;
    if to.symlink_metadata().is_ok_and(|old| old.is_dir() || new.is_dir()) {
        remove(to)?;
    }
    // A directory is written to when it gets another parent.
    let locked = new.is_dir() && new.mode() & 0o200 == 0;
    if locked {
        fs::set_permissions(from, Permissions::from_mode(new.mode() | 0o200))?;
    }
    fs::rename(from, to)?;
    if locked {
        fs::set_permissions(to, new.permissions())?;
    }
    Ok(())
}

/// A file or a whole tree, whatever its modes; links are not followed.
fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
        Ok(meta) if !meta.is_dir() => return fs::remove_file(path),
        Ok(_) => {}
    }
    if fs::remove_dir_all(path).is_ok() {
        return Ok(());
    }
    unlock(path)?;
    fs::remove_dir_all(path)
}

fn unlock(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.symlink_metadata()?.is_dir() {
            unlock(&path)?;
        }
    }
    Ok(())
}
