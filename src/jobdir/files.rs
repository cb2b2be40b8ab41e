//! Files as such: written whole beside their place, then renamed over it; opened only where they are plain
//! ones. Knows nothing of what they hold.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;

/// The most that is read of a document; a job has variables of a megabyte.
pub(super) const LONGEST: u64 = 64 << 20;

/// How an open fails for what is no plain file: a link, a pipe without a reader, a directory.
const NOT_PLAIN: [Errno; 3] = [Errno::LOOP, Errno::NXIO, Errno::ISDIR];

/// Open a plain file, and nothing else: a named pipe would wait for its other end, a device may never end.
pub fn plain(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let other = || io::Error::new(io::ErrorKind::InvalidInput, "this is no plain file");
    let file = options.custom_flags(flags.bits() as i32).open(path).map_err(|e| match e.raw_os_error() {
        Some(code) if NOT_PLAIN.contains(&Errno::from_raw_os_error(code)) => other(),
        _ => e,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(other()) }
}

/// Write a whole file beside `path`, then rename over it: a full disk leaves the old one (kill point 9).
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let said = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let mut temp = path.as_os_str().to_owned();
    temp.push(".tmp");
    let temp = PathBuf::from(temp);
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temp).map_err(said)?;
    let written = file.write_all(bytes);
    drop(file);
    if let Err(e) = written {
        let _ = fs::remove_file(&temp);
        return Err(said(e));
    }
    fs::rename(&temp, path).map_err(said)
}

pub(super) fn to_json<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::other)
}
