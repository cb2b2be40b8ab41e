//! Reads what a stage left in files for its plan: bounded, and never waiting, whatever a script put there.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::forge::Collected;

/// More than any forge takes.
const LONGEST: u64 = 16 << 20;

pub(super) fn collect(paths: Vec<PathBuf>) -> Vec<Collected> {
    paths.into_iter().map(|path| Collected { content: read(&path), path }).collect()
}

/// A link or a pipe in its place is an error: it was not the runner who put it there.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).expect("open flags are an int");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{}: not a plain file", path.display())));
    }
    let mut content = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LONGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{}: over 16 MiB", path.display())));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_files_are_read() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        std::fs::write(at("plain"), "x").unwrap();
        std::os::unix::fs::symlink(at("plain"), at("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        std::fs::File::create(at("long")).unwrap().set_len(LONGEST + 1).unwrap();
        let got = collect(["plain", "link", "pipe", "long", "none"].map(at).to_vec());
        let read: Vec<_> = got.iter().map(|c| c.content.as_ref().ok().map(Vec::as_slice)).collect();
        assert_eq!(read, [Some(b"x".as_slice()), None, None, None, None]);
    }
}
