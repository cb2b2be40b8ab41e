//! What an archive keeps of a file beside its bytes. Looks and opens; never follows the last link.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::{Error, unreadable};

#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    /// Type and permissions as the system has them.
    pub(super) mode: u32,
    /// Seconds since 1970.
    pub(super) mtime: i64,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// With its size.
    File(u64),
    Dir,
    /// With what it points to.
    Link(Vec<u8>),
    /// A socket, a pipe, a device: no archive takes it.
    Other,
}

/// `None`: it is gone.
pub(super) fn look(root: &Path, name: &Path) -> Result<Option<(Meta, Kind)>, Error> {
    let path = root.join(name);
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(unreadable(name, &e)),
    };
    let meta = Meta { mode: found.mode(), mtime: found.mtime(), uid: found.uid(), gid: found.gid() };
    let kind = if found.is_file() {
        Kind::File(found.len())
    } else if found.is_dir() {
        Kind::Dir
    } else if found.is_symlink() {
        Kind::Link(std::fs::read_link(&path).map_err(|e| unreadable(name, &e))?.into_os_string().into_vec())
    } else {
        Kind::Other
    };
    Ok(Some((meta, kind)))
}

/// Without waiting for a pipe's writer, should one have taken the file's place.
pub(super) fn open(root: &Path, name: &Path) -> Result<File, Error> {
    #[expect(clippy::cast_possible_wrap, reason = "the flags are small")]
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(root.join(name)).map_err(|e| unreadable(name, &e))
}
