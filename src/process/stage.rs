//! What a stage is given at its start: pipes, a script in memory, and a high place on the kernel's list
//! of whom to end when memory runs out.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{Gid, MemfdFlags, OFlags, Uid, fchown, fcntl_setfl, memfd_create};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::user::User;

/// Room of a pipe where the system allows it, so that a script that prints much rarely waits.
pub const PIPE: usize = 1 << 20;

/// `oom_score_adj` of stages: the kernel shall pick them before the job process or the manager.
const OOM_SCORE: i32 = 300;

/// Our end, which does not block, and the stage's. It belongs to the stage's user, who may then open it
/// as `/dev/stdout`, too.
pub fn pipe(user: Option<&User>) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    if let Some(user) = user {
        fchown(&write, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
    }
    fcntl_setfl(&read, OFlags::NONBLOCK)?;
    let _ = fcntl_setpipe_size(&write, PIPE);
    Ok((read, write))
}

/// A file in memory that holds `bytes` and is read from its start: nothing to clean up, nothing for
/// another job to read.
pub fn in_memory(name: &str, bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// `/proc/self/oom_score_adj`, opened while that was still allowed: raised around a spawn, so that the
/// stage has it from its first instant, and taken back (kill point 36). Failures are ignored.
#[derive(Debug)]
pub struct Oom {
    file: File,
    own: i32,
    /// Of stages.
    theirs: i32,
}

impl Oom {
    pub fn open() -> Option<Oom> {
        let path = "/proc/self/oom_score_adj";
        let own = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        let file = OpenOptions::new().write(true).open(path).ok()?;
        Some(Oom { file, own, theirs: own.max(OOM_SCORE) })
    }

    /// With the score that an entry names. Where the system does not allow it, nothing changes.
    pub fn with(self, theirs: Option<i32>) -> Oom {
        Oom { theirs: theirs.unwrap_or(self.theirs), ..self }
    }

    /// Until what it returns is dropped.
    pub fn raise(&self) -> Raised<'_> {
        self.set(self.theirs);
        Raised(self)
    }

    fn set(&self, score: i32) {
        let _ = self.file.write_all_at(score.to_string().as_bytes(), 0);
    }
}

#[derive(Debug)]
pub struct Raised<'a>(&'a Oom);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.own);
    }
}
