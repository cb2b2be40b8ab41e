//! Whole files: written beside their place, then renamed over it. Knows nothing of what they hold.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

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
