//! The spool's directories and the renames that move a job through them. Each step is one rename or can
//! be done again; which step comes next is decided elsewhere, and no file is read for its meaning here.
//!
//! ```text
//! pending/NAME.json  → running/NAME@OWNER.json → done/NAME/{result.json,log}, and the claim is deleted
//!                    ← (stale)                 → failed/NAME.json beside failed/NAME.reason
//! ```

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::diag;
use crate::jobdir;

/// The longest name of a job file, in bytes: owner, endings and numbers come to it.
pub(super) const LONGEST_NAME: usize = 200;
/// No job file is larger.
const LONGEST: u64 = 64 << 20;

/// A spool directory, and in whose name we claim its jobs.
#[derive(Clone, Debug)]
pub(super) struct Spool {
    root: PathBuf,
    owner: String,
}

/// A file in `running/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claimed {
    pub(super) name: String,
    pub(super) owner: String,
    /// Only ever compared with itself: two hosts' clocks need not agree.
    pub(super) touched: SystemTime,
}

/// What a person asks of a running job by a file beside its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wish {
    Run,
    /// `running/NAME.cancel`.
    Cancel,
    /// `running/NAME.abort`.
    Abort,
}

impl Spool {
    pub(super) fn open(root: &Path, owner: &str) -> io::Result<Spool> {
        for dir in ["pending", "running", "done", "failed"] {
            let dir = root.join(dir);
            fs::create_dir_all(&dir).map_err(|e| said(&dir, e))?;
        }
        Ok(Spool { root: root.to_owned(), owner: owner.to_owned() })
    }

    /// Takes up an earlier run's: its directories are there, or the steps say what is missing.
    pub(super) fn reopen(root: PathBuf, owner: String) -> Spool {
        Spool { root, owner }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    /// Jobs that wait, in the order of their names.
    pub(super) fn pending(&self) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = list(&self.root.join("pending"))?
            .iter()
            .filter_map(|f| f.strip_suffix(".json"))
            .map(str::to_owned)
            .collect();
        names.sort();
        Ok(names)
    }

    pub(super) fn claims(&self) -> io::Result<Vec<Claimed>> {
        let dir = self.root.join("running");
        let mut claims = Vec::new();
        for file in list(&dir)? {
            let Some((name, owner)) = file.strip_suffix(".json").and_then(|f| f.rsplit_once('@')) else { continue };
            // One that goes away meanwhile is none.
            let Ok(touched) = fs::metadata(dir.join(&file)).and_then(|m| m.modified()) else { continue };
            claims.push(Claimed { name: name.to_owned(), owner: owner.to_owned(), touched });
        }
        claims.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(claims)
    }

    /// `false` when another was faster.
    pub(super) fn claim(&self, name: &str) -> io::Result<bool> {
        // A wish that came after an earlier job's end is not this one's.
        for wish in ["cancel", "abort"] {
            let _ = fs::remove_file(self.wish_file(name, wish));
        }
        let claimed = moved(&self.pending_file(name), &self.claim_file(name, &self.owner))?;
        if claimed {
            diag::point("spool-claimed");
        }
        Ok(claimed)
    }

    /// What is claimed; `None` when the claim is gone. Whatever lies there, a link too, it is a file that can
    /// be read to its end, or an error.
    pub(super) fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let file = self.claim_file(name, &self.owner);
        let read = || -> io::Result<Vec<u8>> {
            // The kind before the open: a named pipe would wait for its other end.
            if !fs::metadata(&file)?.is_file() {
                return Err(io::Error::other("this is no file"));
            }
            let mut bytes = Vec::new();
            File::open(&file)?.take(LONGEST).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) if file.symlink_metadata().is_err() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Renew our claim. `false` when it is ours no more.
    pub(super) fn touch(&self, name: &str) -> io::Result<bool> {
        let file = self.claim_file(name, &self.owner);
        match File::options().append(true).open(&file).and_then(|f| f.set_modified(SystemTime::now())) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(said(&file, e)),
        }
    }

    /// Put back a claim that its owner does not renew. Where a new job of the same name waits already, it
    /// gets a name of its own, because neither may be lost.
    pub(super) fn give_back(&self, claim: &Claimed) -> io::Result<bool> {
        let name = self.free_name("pending", &claim.name);
        moved(&self.claim_file(&claim.name, &claim.owner), &self.pending_file(&name))
    }

    /// What `done/NAME` says it is the result of, when it is there.
    pub(super) fn result(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.done_dir(name).join("result.json")).ok()
    }

    /// First step of the end: the result under a hidden name, whole.
    pub(super) fn write_result(&self, name: &str, log: &Path, result: &[u8]) -> io::Result<()> {
        let hidden = self.hidden_dir(name);
        let _ = fs::remove_dir_all(&hidden);
        fs::create_dir(&hidden).map_err(|e| said(&hidden, e))?;
        // The same bytes under a second name, where one file system holds both.
        let to = hidden.join("log");
        match fs::hard_link(log, &to).or_else(|_| fs::copy(log, &to).map(drop)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && !log.exists() => File::create(&to).map(drop),
            other => other,
        }
        .map_err(|e| said(&to, e))?;
        jobdir::replace(&hidden.join("result.json"), result)?;
        diag::point("spool-result-written");
        Ok(())
    }

    /// Second step: show it. `false` when `done/NAME` is there already; then that one counts.
    pub(super) fn show_result(&self, name: &str) -> io::Result<bool> {
        let (hidden, done) = (self.hidden_dir(name), self.done_dir(name));
        match fs::rename(&hidden, &done) {
            Ok(()) => {
                diag::point("spool-done");
                Ok(true)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => {
                fs::remove_dir_all(&hidden)?;
                Ok(false)
            }
            Err(e) => Err(said(&done, e)),
        }
    }

    /// Last step: the claim goes, and what was wished of it.
    pub(super) fn release(&self, name: &str) -> io::Result<()> {
        for file in [self.wish_file(name, "cancel"), self.wish_file(name, "abort"), self.claim_file(name, &self.owner)]
        {
            match fs::remove_file(&file) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(said(&file, e)),
                _ => {}
            }
        }
        diag::point("spool-released");
        Ok(())
    }

    /// A claim that cannot be run: the reason first, so that no job stands in `failed/` without one.
    pub(super) fn refuse(&self, name: &str, reason: &str) -> io::Result<PathBuf> {
        self.put_aside(&self.claim_file(name, &self.owner), name, reason)
    }

    /// A name that has no room for what we add to it cannot even be claimed.
    pub(super) fn refuse_long(&self, name: &str) -> io::Result<PathBuf> {
        let reason = format!("its name is longer than {LONGEST_NAME} bytes");
        self.put_aside(&self.pending_file(name), &name[..name.floor_char_boundary(LONGEST_NAME)], &reason)
    }

    fn put_aside(&self, from: &Path, name: &str, reason: &str) -> io::Result<PathBuf> {
        let failed = self.root.join("failed");
        let free = self.free_name("failed", name);
        jobdir::replace(&failed.join(format!("{free}.reason")), format!("{reason}\n").as_bytes())?;
        let to = failed.join(format!("{free}.json"));
        moved(from, &to)?;
        Ok(to)
    }

    pub(super) fn wish(&self, name: &str) -> Wish {
        let has = |what: &str| self.wish_file(name, what).symlink_metadata().is_ok();
        match (has("abort"), has("cancel")) {
            (true, _) => Wish::Abort,
            (_, true) => Wish::Cancel,
            _ => Wish::Run,
        }
    }

    /// Copies of the job files of `from` into an empty spool; results of an earlier round are removed.
    pub(super) fn fill(&self, from: &Path) -> io::Result<()> {
        let own = |c: &Claimed| c.owner == self.owner;
        if !self.pending()?.is_empty() || self.claims()?.iter().any(own) {
            return Ok(());
        }
        for file in list(from).map_err(|e| said(from, e))? {
            let Some(name) = file.strip_suffix(".json") else { continue };
            let _ = fs::remove_dir_all(self.done_dir(name));
            let bytes = fs::read(from.join(&file)).map_err(|e| said(&from.join(&file), e))?;
            jobdir::replace(&self.pending_file(name), &bytes)?;
        }
        Ok(())
    }

    pub(super) fn done_dir(&self, name: &str) -> PathBuf {
        self.root.join("done").join(name)
    }

    fn hidden_dir(&self, name: &str) -> PathBuf {
        self.root.join("done").join(format!(".{name}@{}", self.owner))
    }

    fn pending_file(&self, name: &str) -> PathBuf {
        self.root.join("pending").join(format!("{name}.json"))
    }

    fn claim_file(&self, name: &str, owner: &str) -> PathBuf {
        self.root.join("running").join(format!("{name}@{owner}.json"))
    }

    fn wish_file(&self, name: &str, wish: &str) -> PathBuf {
        self.root.join("running").join(format!("{name}.{wish}"))
    }

    /// `name`, or with a number where a job of that name lies in `dir` already.
    fn free_name(&self, dir: &str, name: &str) -> String {
        let taken = |n: &String| self.root.join(dir).join(format!("{n}.json")).symlink_metadata().is_ok();
        std::iter::once(name.to_owned())
            .chain((2..).map(|n| format!("{name}-{n}")))
            .find(|n| !taken(n))
            .expect("some number is free")
    }
}

/// `false` when there is nothing to move: another was faster.
fn moved(from: &Path, to: &Path) -> io::Result<bool> {
    match fs::rename(from, to) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(said(from, e)),
    }
}

/// File names that are not hidden; those that are no text are no jobs.
fn list(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| said(dir, e))? {
        names.extend(entry?.file_name().into_string().ok().filter(|n| !n.starts_with('.')));
    }
    Ok(names)
}

fn said(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spool(root: &Path, owner: &str) -> Spool {
        Spool::open(root, owner).unwrap()
    }

    fn put(root: &Path, name: &str) {
        fs::write(root.join(format!("pending/{name}.json")), "{}").unwrap();
    }

    fn tree(root: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for dir in ["pending", "running", "done", "failed"] {
            for entry in fs::read_dir(root.join(dir)).unwrap() {
                found.push(format!("{dir}/{}", entry.unwrap().file_name().display()));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn a_job_moves_by_renames() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path();
        let (a, b) = (spool(root, "a"), spool(root, "b"));
        put(root, "x");
        put(root, ".half-written");
        fs::write(root.join("running/x.cancel"), "").unwrap();
        assert_eq!(a.pending().unwrap(), ["x"]);
        assert!(a.claim("x").unwrap());
        assert!(!b.claim("x").unwrap());
        assert!(a.touch("x").unwrap() && !b.touch("x").unwrap());
        assert_eq!((a.wish("x"), a.read("x").unwrap()), (Wish::Run, Some(b"{}".to_vec())));
        fs::write(root.join("running/x.cancel"), "").unwrap();
        assert_eq!(a.wish("x"), Wish::Cancel);
        fs::write(root.join("log"), "hello").unwrap();
        a.write_result("x", &root.join("log"), b"{}").unwrap();
        assert!(a.show_result("x").unwrap());
        a.release("x").unwrap();
        assert_eq!(tree(root), ["done/x", "pending/.half-written.json"]);
        assert_eq!(fs::read_to_string(root.join("done/x/log")).unwrap(), "hello");
    }

    /// Kill point 19: wherever the steps of the end were cut, doing them again ends the same.
    #[test]
    fn an_end_that_was_cut_short_is_ended_again() {
        for cut in 0..4 {
            let tmp = tempfile::tempdir().unwrap();
            let root = tmp.path();
            let spool = spool(root, "a");
            put(root, "x");
            spool.claim("x").unwrap();
            fs::write(root.join("log"), "hello").unwrap();
            for again in [false, true] {
                if again || cut > 0 {
                    spool.write_result("x", &root.join("log"), b"{}").unwrap();
                }
                if again || cut > 1 {
                    assert_eq!(spool.show_result("x").unwrap(), !again || cut < 2);
                }
                if again || cut > 2 {
                    spool.release("x").unwrap();
                }
            }
            assert_eq!(tree(root), ["done/x"], "cut after step {cut}");
        }
    }

    #[test]
    fn the_first_result_counts() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, b) = (spool(tmp.path(), "a"), spool(tmp.path(), "b"));
        let no_log = tmp.path().join("none");
        a.write_result("x", &no_log, b"1").unwrap();
        b.write_result("x", &no_log, b"2").unwrap();
        assert!(b.show_result("x").unwrap() && !a.show_result("x").unwrap());
        assert_eq!(a.result("x").unwrap(), b"2");
        assert_eq!(tree(tmp.path()), ["done/x"]);
    }

    #[test]
    fn a_stale_claim_goes_back_and_never_over_another_job() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path();
        let (a, b) = (spool(root, "a"), spool(root, "b"));
        put(root, "x");
        a.claim("x").unwrap();
        let claim = b.claims().unwrap().remove(0);
        assert_eq!((claim.name.as_str(), claim.owner.as_str()), ("x", "a"));
        put(root, "x");
        assert!(b.give_back(&claim).unwrap());
        assert!(!b.give_back(&claim).unwrap());
        assert_eq!(tree(root), ["pending/x-2.json", "pending/x.json"]);
        assert!(!a.touch("x").unwrap());
    }

    #[test]
    fn a_refused_job_has_its_reason_beside_it() {
        let tmp = tempfile::tempdir().unwrap();
        let a = spool(tmp.path(), "a");
        for _ in 0..2 {
            put(tmp.path(), "x");
            a.claim("x").unwrap();
            a.refuse("x", "no script").unwrap();
        }
        assert_eq!(tree(tmp.path()), ["failed/x-2.json", "failed/x-2.reason", "failed/x.json", "failed/x.reason"]);
        assert_eq!(fs::read_to_string(tmp.path().join("failed/x.reason")).unwrap(), "no script\n");
    }

    #[test]
    fn only_an_empty_spool_is_filled() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().join("s");
        let jobs = tmp.path().join("jobs");
        fs::create_dir(&jobs).unwrap();
        fs::write(jobs.join("x.json"), "{}").unwrap();
        let a = spool(&root, "a");
        fs::create_dir(root.join("done/x")).unwrap();
        a.fill(&jobs).unwrap();
        assert_eq!(tree(&root), ["pending/x.json"]);
        a.claim("x").unwrap();
        a.fill(&jobs).unwrap();
        assert_eq!(tree(&root), ["running/x@a.json"]);
    }
}
