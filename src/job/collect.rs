//! Reads what a stage left in files for its plan: bounded, and never waiting, whatever a script put there.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::forge::Collected;
use crate::process::user::User;

/// More than any forge takes.
const LONGEST: u64 = 16 << 20;

/// As long as a look at them takes at most.
const LOOK: Duration = Duration::from_secs(30);

/// With the rights of the stage's user: a directory on the way may have become a link (kill point 5).
pub(super) fn collect(paths: Vec<PathBuf>, user: Option<&User>) -> Vec<Collected> {
    let Some(user) = user.filter(|_| !paths.is_empty()) else { return read_all(paths) };
    let theirs = paths.clone();
    user.look(LOOK, move || read_all(theirs)).unwrap_or_else(|e| {
        let failed = |path| Collected { path, content: Err(io::Error::new(e.kind(), e.to_string())) };
        paths.into_iter().map(failed).collect()
    })
}

fn read_all(paths: Vec<PathBuf>) -> Vec<Collected> {
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
        let got = collect(["plain", "link", "pipe", "long", "none"].map(at).to_vec(), None);
        let read: Vec<_> = got.iter().map(|c| c.content.as_ref().ok().map(Vec::as_slice)).collect();
        assert_eq!(read, [Some(b"x".as_slice()), None, None, None, None]);
    }

    /// Kill point 5.
    #[test]
    fn a_users_files_are_read_with_the_users_rights() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can read as another user");
            return;
        }
        let user = User {
            name: "nobody".to_owned(),
            uid: 65534,
            gid: 65534,
            groups: vec![65534],
            home: "/".into(),
            shell: "/bin/sh".into(),
        };
        let tmp = tempfile::tempdir().unwrap();
        let open = tmp.path().join("open");
        std::fs::write(&open, "theirs").unwrap();
        let secret = tmp.path().join("secret");
        std::fs::create_dir(&secret).unwrap();
        std::fs::write(secret.join("file"), "ours").unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        };
        mode(tmp.path(), 0o755);
        mode(&secret, 0o700);
        // A directory on the way became a link into what only root may read.
        let planted = tmp.path().join("planted");
        std::os::unix::fs::symlink(&secret, &planted).unwrap();
        let got = collect(vec![open, planted.join("file")], Some(&user));
        let read: Vec<_> = got.iter().map(|c| c.content.as_ref().ok().map(Vec::as_slice)).collect();
        assert_eq!(read, [Some(b"theirs".as_slice()), None]);
    }
}
