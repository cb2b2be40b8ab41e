//! An archive into a directory, and nothing outside of it (build §6.7): names are checked before the first
//! byte is written, every directory is opened from the one above it without following links that lead
//! out, symbolic links are made last, and no entry gets more bytes than it declares. Files that are in the
//! way are replaced, others are left alone.

mod tar;
mod tree;
mod unpack;
mod zip;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::say;

/// Extract `archive`, whose format is told by its first bytes, into `root`. The error is a line for people
/// and names the entry.
pub fn extract(archive: &File, root: &Path) -> Result<(), String> {
    let mut magic = [0; 4];
    let n = archive.read_at(&mut magic, 0).map_err(|e| format!("the archive cannot be read: {e}"))?;
    match &magic[..n] {
        [0x28, 0xb5, 0x2f, 0xfd] => tar::extract(archive, root),
        // A skippable frame, as parallel compressors put first.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18] => tar::extract(archive, root),
        [0x1f, 0x8b, ..] => Err("a gzip file is no archive and cannot be extracted".to_owned()),
        _ => zip::extract(archive, root),
    }
}

/// The name's parts below the root; the error is said of a name that leads outside or is none.
fn parts<'n>(name: &'n [u8], root: &Path) -> Result<Vec<&'n [u8]>, String> {
    let mut parts = Vec::new();
    for part in name.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                if parts.pop().is_none() {
                    return Err(format!("{} cannot be extracted outside of chroot ({})", show(name), root.display()));
                }
            }
            part if part.contains(&0) => return Err(format!("{}: no file can have this name", show(name))),
            part => parts.push(part),
        }
    }
    Ok(parts)
}

/// A name for people: one line, whatever it holds.
fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).replace(|c: char| c.is_control(), "\u{fffd}")
}

fn special(name: &[u8]) {
    say::warn(format!("{}: this is no file, directory or link, and is left out", show(name)));
}

/// Of a repository's own directory, once.
fn warn_of_git() {
    say::warn("Part of .git directory is on the list of files to extract");
    say::warn("This may introduce unexpected problems");
}

/// Whether so much can still be written where `root` is: what an archive declares is believed only then.
fn check_room(root: &Path, name: &[u8], bytes: u64) -> Result<(), String> {
    match crate::space::free(root) {
        Ok(free) if bytes > free => Err(format!(
            "{}: the archive says that it holds {bytes} bytes up to here, and only {free} are free in {}",
            show(name),
            root.display()
        )),
        _ => Ok(()),
    }
}
