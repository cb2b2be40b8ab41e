//! What a file system says of itself: its free space, and whether it is on another host. Looks only.

use std::io;
use std::path::Path;

use rustix::fs::{statfs, statvfs};

/// Names of file systems that flock and sockets may not work on, by the magic number of `statfs`.
const ELSEWHERE: [(u32, &str); 13] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x7375_7245, "Coda"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
];

/// The kind of file system, where it is one that is on another host.
pub fn network(path: &Path) -> io::Result<Option<&'static str>> {
    let magic = statfs(path)?.f_type;
    // The type of the field differs by architecture; the numbers are of 32 bits.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only the low 32 bits name it")]
    let magic = magic as u32;
    Ok(ELSEWHERE.iter().find(|(n, _)| *n == magic).map(|(_, name)| *name))
}

/// Bytes that an unprivileged process may still write where `path` is, or will be.
pub fn free(path: &Path) -> io::Result<u64> {
    let mut at = path;
    loop {
        match statvfs(at) {
            Ok(stat) => return Ok(stat.f_bavail.saturating_mul(stat.f_frsize)),
            Err(rustix::io::Errno::NOENT) => at = at.parent().ok_or(io::ErrorKind::NotFound)?,
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_yet_has_the_space_of_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free(&dir.path().join("a/b")).unwrap() > 0);
    }

    #[test]
    fn proc_is_on_this_host() {
        assert_eq!(network(Path::new("/proc")).unwrap(), None);
    }
}
