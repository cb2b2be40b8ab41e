//! Zip archives: all entries are looked at first, then files are unpacked by all processors, then entries
//! of a name that was there before, in their order, then links, then the directories' marks.

mod directory;
mod inflate;

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use super::tree::{Last, Tree};
use super::{check_room, parts, show, special, warn_of_git};
use crate::transfer::ordered::{in_order, workers};
use directory::{Directory, Item, Kind, Method};
use inflate::Unpacker;

/// Small files share a task.
const TASK: u64 = 256 << 10;
/// No path is longer.
const MAX_TARGET: u64 = 4096;

pub(super) fn extract(archive: &File, root: &Path) -> Result<(), String> {
    let directory = Directory::find(archive)?;
    check(&directory, root)?;
    let tree = Tree::open(root)?;
    let mut phases = Phases {
        tree: &tree,
        root,
        items: directory.items(),
        seen: HashSet::new(),
        hash: RandomState::new(),
        twice: Vec::new(),
        links: Vec::new(),
    };
    in_order(
        workers(),
        || (Unpacker::new(archive, directory.at), Last::default()),
        |(unpacker, last), task: Vec<Item>| task.iter().try_for_each(|item| unpack(item, root, &tree, unpacker, last)),
        || phases.next(),
        |done: Result<(), String>| done,
    )?;
    let (mut unpacker, mut last) = (Unpacker::new(archive, directory.at), Last::default());
    for item in &phases.twice {
        unpack(item, root, &tree, &mut unpacker, &mut last)?;
    }
    for item in &phases.links {
        let target = unpacker.small(item).map_err(|e| format!("{}: {e}", show(&item.name)))?;
        tree.link(&parts(&item.name, root)?, &target, item.marks.mtime)?;
    }
    tree.finish();
    Ok(())
}

/// Whether all of it can be extracted, before anything is.
fn check(directory: &Directory<'_>, root: &Path) -> Result<(), String> {
    let (mut raw, mut packed, mut git, mut largest) = (0u64, 0u64, false, (0, Vec::new()));
    for item in directory.items() {
        let item = item?;
        let entry = parts(&item.name, root)?;
        git |= entry.first() == Some(&&b".git"[..]);
        let wrong = match (item.kind, item.method) {
            (Kind::Dir | Kind::Other, _) => continue,
            _ if item.encrypted => Some("it is encrypted"),
            (_, Method::Unknown(_)) => Some("it is compressed by a method that is not known here"),
            (Kind::Link, _) if item.raw > MAX_TARGET => Some("the link's target is too long"),
            _ if entry.is_empty() => Some("no file can have this name"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            return Err(format!("{}: {wrong}", show(&item.name)));
        }
        if item.raw > largest.0 {
            largest = (item.raw, item.name.clone());
        }
        raw = raw.saturating_add(item.raw);
        // Data that is used by several entries makes a small archive endless.
        packed = packed.saturating_add(item.packed).saturating_add(30 + item.name.len() as u64);
        if packed > directory.at {
            return Err(format!("{}: the archive's entries overlap", show(&item.name)));
        }
    }
    check_room(root, &largest.1, raw)?;
    if git {
        warn_of_git();
    }
    Ok(())
}

struct Phases<'a> {
    tree: &'a Tree,
    root: &'a Path,
    items: directory::Items<'a>,
    /// Hashes of the names so far: a false repetition costs only its place in the order.
    seen: HashSet<u64>,
    hash: RandomState,
    twice: Vec<Item>,
    links: Vec<Item>,
}

impl Phases<'_> {
    /// The next files to unpack. Directories are made here, links are kept for later.
    fn next(&mut self) -> Result<Option<Vec<Item>>, String> {
        let (mut task, mut bytes) = (Vec::new(), 0);
        while bytes < TASK && task.len() < 64 {
            let Some(item) = self.items.next() else { break };
            let item = item?;
            let entry = parts(&item.name, self.root)?;
            match item.kind {
                Kind::Dir => self.tree.dir(&entry, item.marks)?,
                Kind::Other => special(&item.name),
                Kind::Link => self.links.push(item),
                Kind::File if !self.seen.insert(self.hash.hash_one(&entry)) => self.twice.push(item),
                Kind::File => {
                    bytes += item.raw;
                    task.push(item);
                }
            }
        }
        Ok((!task.is_empty()).then_some(task))
    }
}

fn unpack(item: &Item, root: &Path, tree: &Tree, unpacker: &mut Unpacker<'_>, last: &mut Last) -> Result<(), String> {
    let file = tree.file(&parts(&item.name, root)?, last)?;
    let file = unpacker.fill(item, file).map_err(|e| format!("{}: {e}", show(&item.name)))?;
    tree.mark(&file, item.marks).map_err(|e| format!("{}: {e}", show(&item.name)))
}

#[cfg(test)]
mod tests;
