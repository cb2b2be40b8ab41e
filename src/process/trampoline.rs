//! `runner stage KEY=VALUE… -- PROGRAM ARGUMENT…`: an instant between the job process and a stage's program
//! (design §2). It is a process with one thread, so that what it changes is changed for all of it: limits,
//! umask, groups, ids. Then it becomes the program. It reads no file and knows no job.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{Access, Mode, access};
use rustix::process::{Gid, Resource, Rlimit, Uid, chdir, getrlimit, nice, setrlimit, umask};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// A shell says these of a program that cannot run, and of one that is not there.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Where commands are found, too.
const PROGRAM: &str = "/proc/self/exe";

/// What is changed before a stage's program runs. Nothing of it: no trampoline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub ids: Option<Ids>,
    pub umask: Option<u32>,
    pub nice: Option<i32>,
    /// Bytes of memory that a process may write to, its own and what it maps.
    pub memory: Option<u64>,
    /// Of the user, all its processes counted.
    pub processes: Option<u64>,
    /// Seconds, of each process.
    pub cpu_time: Option<u64>,
    pub open_files: Option<u64>,
    /// The file that a process writes to in order to be in a cgroup.
    pub cgroup: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Change {
    pub fn is_none(&self) -> bool {
        *self == Change::default()
    }

    /// The command that makes the change and then is `argv`: the running image itself, even when its file was
    /// replaced (kill point 21).
    pub fn command(&self, argv: &[OsString]) -> Command {
        let mut command = super::command(PROGRAM);
        command.arg0("runner").arg("stage").args(self.words()).arg("--").args(argv);
        command
    }

    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(ids) = &self.ids {
            let groups: Vec<String> = ids.groups.iter().map(u32::to_string).collect();
            words.push(format!("uid={}", ids.uid).into());
            words.push(format!("gid={}", ids.gid).into());
            words.push(format!("groups={}", groups.join(",")).into());
        }
        words.extend(self.umask.map(|n| format!("umask={n:o}").into()));
        words.extend(self.nice.map(|n| format!("nice={n}").into()));
        let numbers = [
            ("memory", self.memory),
            ("processes", self.processes),
            ("cpu_time", self.cpu_time),
            ("open_files", self.open_files),
        ];
        words.extend(numbers.into_iter().filter_map(|(key, n)| Some(format!("{key}={}", n?).into())));
        if let Some(path) = &self.cgroup {
            let mut word = OsString::from("cgroup=");
            word.push(path);
            words.push(word);
        }
        words
    }

    /// The other direction; what is no word of ours is `None`.
    fn read<'a>(words: impl Iterator<Item = &'a OsString>) -> Option<Change> {
        let mut change = Change::default();
        for word in words {
            let at = word.as_bytes().iter().position(|b| *b == b'=')?;
            let value = &word.as_bytes()[at + 1..];
            let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
            let path = || Some(PathBuf::from(OsStr::from_bytes(value)));
            match &word.as_bytes()[..at] {
                b"uid" => change.ids.get_or_insert_default().uid = u32::try_from(number()?).ok()?,
                b"gid" => change.ids.get_or_insert_default().gid = u32::try_from(number()?).ok()?,
                b"groups" => {
                    let text = std::str::from_utf8(value).ok()?;
                    let groups = text.split(',').filter(|g| !g.is_empty()).map(str::parse);
                    change.ids.get_or_insert_default().groups = groups.collect::<Result<_, _>>().ok()?;
                }
                b"umask" => change.umask = Some(u32::from_str_radix(std::str::from_utf8(value).ok()?, 8).ok()?),
                b"nice" => change.nice = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
                b"memory" => change.memory = Some(number()?),
                b"processes" => change.processes = Some(number()?),
                b"cpu_time" => change.cpu_time = Some(number()?),
                b"open_files" => change.open_files = Some(number()?),
                b"cgroup" => change.cgroup = path(),
                _ => return None,
            }
        }
        Some(change)
    }

    /// In an order in which each is still allowed: the ids last.
    fn make(&self) -> Result<(), String> {
        let said = |what: &str, e: io::Error| format!("{what}: {e}");
        if let Some(path) = &self.cgroup {
            // 0 is who writes it.
            std::fs::write(path, "0").map_err(|e| said(&path.display().to_string(), e))?;
        }
        for (what, resource, most) in [
            ("memory", Resource::Data, self.memory),
            ("processes", Resource::Nproc, self.processes),
            ("cpu_time", Resource::Cpu, self.cpu_time),
            ("open_files", Resource::Nofile, self.open_files),
        ] {
            if let Some(most) = most {
                limit(resource, most).map_err(|e| said(what, e))?;
            }
        }
        if let Some(n) = self.nice {
            nice(n).map_err(|e| said("nice", e.into()))?;
        }
        if let Some(mode) = self.umask {
            umask(Mode::from_raw_mode(mode));
        }
        self.ids.as_ref().map_or(Ok(()), |ids| ids.take().map_err(|e| said("user", e)))
    }
}

impl Ids {
    /// All three of each, so that there is no way back.
    fn take(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        // The runner may have been started where this user may not look.
        if access(".", Access::EXEC_OK).is_err() {
            chdir("/")?;
        }
        Ok(())
    }
}

/// `runner stage`. Comes back only when something went wrong.
pub fn main(args: impl Iterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.collect();
    let cut = args.iter().position(|a| a == "--").unwrap_or(args.len());
    let (Some(change), Some(program)) = (Change::read(args[..cut].iter()), args.get(cut + 1)) else {
        return fail(CANNOT_RUN, "`runner stage` is started by the runner alone");
    };
    if let Err(e) = change.make() {
        return fail(CANNOT_RUN, &e);
    }
    #[expect(clippy::disallowed_methods, reason = "what the program inherits was decided when this process began")]
    let e = Command::new(program).args(&args[cut + 2..]).exec();
    let code = if e.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
    fail(code, &format!("{}: {e}", program.display()))
}

/// Never more than the hard limit where that is lower: only root may raise it.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let new = Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(resource, new).or_else(|e| match getrlimit(resource).maximum {
        Some(hard) if hard < most => Ok(()),
        _ => Err(e.into()),
    })
}

fn fail(code: u8, text: &str) -> u8 {
    let _ = writeln!(io::stderr(), "runner: the stage cannot run: {text}");
    code
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn what_is_written_as_words_is_read_again() {
        let whole = Change {
            ids: Some(Ids { uid: 1000, gid: 100, groups: vec![100, 27] }),
            umask: Some(0o027),
            nice: Some(-5),
            memory: Some(1 << 40),
            processes: Some(7),
            cpu_time: Some(60),
            open_files: Some(1024),
            cgroup: Some(OsString::from_vec(b"/sys/fs/cgroup/a b/\xff".to_vec()).into()),
        };
        let alone = Change { ids: Some(Ids { uid: 1, gid: 2, groups: vec![] }), ..Change::default() };
        for change in [whole, alone, Change::default()] {
            assert_eq!(Change::read(change.words().iter()), Some(change.clone()));
        }
        for words in ["uid=x", "uid", "memory=-1", "groups=1,x", "other=1"] {
            assert_eq!(Change::read([OsString::from(words)].iter()), None, "{words}");
        }
    }
}
