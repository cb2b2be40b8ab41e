//! The sweep (design §5.7): ends every process of a job. In the job process that is every descendant of
//! its own, since it is a subreaper; after the job process was killed the manager does it, led by the tag
//! in the environment and by parentage. Invariant 5 hangs on this file. It never signals a bare pid.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use super::cgroup::Leaf;
use super::table::{self, Stat};
use super::{Process, wait_any};

/// The longest wait before the table is read again.
const PASS: Duration = Duration::from_millis(200);

/// In the job process: TERM, then after `grace` KILL, for every descendant, until there is none or no time
/// is `left`. Returns what still lives, as `PID NAME`.
/// `leaf`: the cgroup that they are in, which also ends those that we may not signal.
pub fn descendants(grace: Duration, left: &dyn Fn() -> Duration, leaf: Option<&Leaf>) -> Vec<String> {
    // Nearly every job ends here: no child means no descendant, without reading the table.
    if !has_children() {
        return Vec::new();
    }
    let me = std::process::id();
    let find = || below(&table::all(), |s| s.parent == me);
    let told = Held::take(&find(), Signal::TERM);
    // One that is stopped does not see the TERM.
    told.signal(Signal::CONT);
    told.wait(grace.min(left() / 2));
    if let Some(leaf) = leaf {
        leaf.kill();
    }
    end(&find, left)
}

/// As the manager, when the job process is gone or to be ended itself: everything that carries `tag`
/// (`NAME=VALUE`, where it is known) or is one of `roots` (pid and start time), with all descendants, which also finds a
/// child without the tag as long as its parent lives (kill point 4).
pub fn tagged(tag: Option<&str>, roots: &[(u32, u64)], limit: Duration) -> Vec<String> {
    let until = Instant::now() + limit;
    let me = std::process::id();
    let find = || {
        let root = |s: &Stat| roots.contains(&(s.pid, s.start_time));
        let mut found =
            below(&table::all(), |s| root(s) || tag.is_some_and(|tag| table::has_in_environment(s.pid, tag)));
        found.retain(|s| s.pid != me && s.pid != 1);
        found
    };
    end(&find, &|| until.saturating_duration_since(Instant::now()))
}

/// Whether this process has any child, ended ones included.
pub fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, options), Err(rustix::io::Errno::CHILD))
}

/// Stop all, so that none can fork away, then kill all; again until two passes in a row find nothing (a
/// single one may miss a child whose parent ended while the table was read).
fn end(find: &dyn Fn() -> Vec<Stat>, left: &dyn Fn() -> Duration) -> Vec<String> {
    let mut held = Held::default();
    let mut empty = 0;
    loop {
        let found = held.stop_all(find, left);
        empty = if found == 0 { empty + 1 } else { 0 };
        if empty == 2 {
            return Vec::new();
        }
        held.signal(Signal::KILL);
        let over = left().is_zero();
        // The last KILL gets its moment, too.
        let patience = if over { PASS } else { PASS.min(left()) };
        if held.0.is_empty() && found > 0 {
            // None could be opened: they are on their way out, or there is no descriptor left for them.
            wait_any(&[], patience);
        }
        held.wait(patience);
        held.forget_gone();
        if over {
            return find().iter().map(|s| format!("{} {}", s.pid, s.comm)).collect();
        }
    }
}

/// The processes that are being ended.
#[derive(Default)]
struct Held(BTreeMap<(u32, u64), Process>);

impl Held {
    fn take(found: &[Stat], signal: Signal) -> Held {
        let mut held = Held::default();
        for stat in found {
            held.add(stat, signal);
        }
        held
    }

    /// Whether it is new. One that may not be signalled is held too: it may end with its parent.
    fn add(&mut self, stat: &Stat, signal: Signal) -> bool {
        let key = (stat.pid, stat.start_time);
        if self.0.contains_key(&key) {
            return false;
        }
        let Ok(Some(process)) = Process::open(stat.pid, stat.start_time) else { return false };
        let _ = process.signal(signal);
        self.0.insert(key, process);
        true
    }

    /// Stop what is found until a look finds nothing new; returns how many the last look found.
    fn stop_all(&mut self, find: &dyn Fn() -> Vec<Stat>, left: &dyn Fn() -> Duration) -> usize {
        loop {
            let found = find();
            let new = found.iter().filter(|s| self.add(s, Signal::STOP)).count();
            if new == 0 || left().is_zero() {
                return found.len();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        for process in self.0.values() {
            let _ = process.signal(signal);
        }
    }

    /// Until all have ended, for at most `limit`. Reaps none: each has its own parent for that.
    fn wait(&self, limit: Duration) {
        let until = Instant::now() + limit;
        for process in self.0.values() {
            if !wait_any(&[process.fd()], until.saturating_duration_since(Instant::now())) {
                return;
            }
        }
    }

    fn forget_gone(&mut self) {
        self.0.retain(|_, process| {
            let fd: BorrowedFd<'_> = process.fd();
            !wait_any(&[fd], Duration::ZERO)
        });
    }
}

/// Those that `is_root` names and all their descendants, without the ended ones.
fn below(all: &[Stat], is_root: impl Fn(&Stat) -> bool) -> Vec<Stat> {
    let mut inside: HashSet<u32> = all.iter().filter(|s| is_root(s)).map(|s| s.pid).collect();
    if inside.is_empty() {
        return Vec::new();
    }
    loop {
        let before = inside.len();
        inside.extend(all.iter().filter(|s| inside.contains(&s.parent)).map(|s| s.pid).collect::<Vec<_>>());
        if inside.len() == before {
            break;
        }
    }
    all.iter().filter(|s| !s.zombie && inside.contains(&s.pid)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    fn stat(pid: u32, parent: u32, zombie: bool) -> Stat {
        Stat { pid, comm: String::new(), parent, group: 0, session: 0, start_time: 0, zombie }
    }

    #[test]
    fn descendants_are_found_in_any_order_and_through_zombies() {
        let all = [stat(9, 7, false), stat(7, 5, true), stat(5, 2, false), stat(2, 1, false), stat(8, 1, false)];
        let pids = |root: u32| below(&all, |s| s.parent == root).iter().map(|s| s.pid).collect::<Vec<_>>();
        assert_eq!(pids(2), [9, 5]);
        assert_eq!(pids(5), [9]);
        assert_eq!(pids(9), [] as [u32; 0]);
    }

    /// Kill point 22: what cannot be signalled is named, in time.
    #[test]
    fn a_sweep_ends_and_names_what_it_could_not_end() {
        let stuck = Stat { comm: "stuck".to_owned(), ..stat(std::process::id(), 1, false) };
        let looks = std::cell::Cell::new(0);
        let until = Instant::now() + Duration::from_millis(500);
        let find = || {
            looks.set(looks.get() + 1);
            vec![stuck.clone()]
        };
        let left = end(&find, &|| until.saturating_duration_since(Instant::now()));
        assert_eq!(left, [format!("{} stuck", stuck.pid)]);
        assert!(Instant::now() < until + Duration::from_secs(2));
        assert!(looks.get() < 20, "it waits between its looks: {}", looks.get());
    }

    /// Kill point 4: sessions of their own, double forks, and a child without the tag.
    #[test]
    fn the_manager_ends_what_carries_the_tag_and_what_descends_from_it() {
        let tag = format!("RUNNER_JOB=test-{}", std::process::id());
        let (name, value) = tag.split_once('=').unwrap();
        // Nobody else on this host sleeps for just so long.
        let n = std::process::id();
        let script = format!(
            "setsid sleep 300.{n} & (setsid bash -c 'sleep 301.{n} & sleep 302.{n}' &) & \
             setsid env -i sleep 303.{n} & echo ready; wait"
        );
        let mut child = super::super::command("bash")
            .args(["-c", &script])
            .env(name, value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(tagged(Some(&tag), &[], Duration::from_secs(20)), [] as [String; 0]);
        child.wait().unwrap();
        let left = table::all();
        let sleeps = |s: &&Stat| command_line(s.pid).ends_with(&format!(".{n}"));
        assert_eq!(left.iter().find(sleeps), None);
    }

    fn command_line(pid: u32) -> String {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ")
    }
}
