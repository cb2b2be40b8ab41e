//! Reaps: stage leaders for the loop, adopted orphans for nobody. A thread of its own, so that a
//! script's daemons are no zombies for the job's life (kill point 31).
//!
//! **Invariant 7**: a group is signalled only while its leader is not reaped. Starting, reaping and
//! signalling take the same lock, so that a group's number is never that of another.

use std::collections::BTreeMap;
use std::io;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process_group, wait, waitid};

use crate::forge::{End, Signal};
use crate::process::{Process, table};

/// One stage's leader; its pid may be another's once it is reaped, its serial number never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) pid: u32,
    serial: u64,
}

#[derive(Debug, Default)]
pub(super) struct Children {
    state: Mutex<State>,
    started: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Leaders of stages' groups that are not reaped.
    leaders: BTreeMap<u32, Leader>,
    /// How many were ever started.
    count: u64,
    over: bool,
}

impl Children {
    /// Start a leader: `start` returns its pid. It cannot be reaped before it is known as a leader.
    pub(super) fn start<T>(&self, start: impl FnOnce() -> io::Result<(u32, T)>) -> io::Result<(Leader, T)> {
        let mut state = self.state.lock();
        let (pid, rest) = start()?;
        state.count += 1;
        let leader = Leader { pid, serial: state.count };
        state.leaders.insert(pid, leader);
        self.started.notify_all();
        Ok((leader, rest))
    }

    /// To its group while it is not reaped; after that to each of the group's other members alone.
    pub(super) fn signal(&self, leader: Leader, signal: Signal) {
        let state = self.state.lock();
        if state.leaders.get(&leader.pid) == Some(&leader) {
            let group = i32::try_from(leader.pid).ok().and_then(Pid::from_raw).expect("a child has a pid");
            let _ = kill_process_group(group, raw(signal));
            return;
        }
        drop(state);
        for process in self.rest_of(leader) {
            let _ = process.signal(raw(signal));
        }
    }

    /// The members of a group whose leader was reaped. The number of the group is taken as long as there is
    /// one; only those of this job's session count.
    pub(super) fn rest_of(&self, leader: Leader) -> Vec<Process> {
        if self.state.lock().leaders.contains_key(&leader.pid) {
            // There was none, or it would not be another's pid.
            return Vec::new();
        }
        let session = table::stat(std::process::id()).map(|s| s.session).unwrap_or_default();
        let ours = |s: &table::Stat| s.group == leader.pid && s.session == session && !s.zombie;
        let members = table::all().into_iter().filter(ours);
        members.filter_map(|s| Process::open(s.pid, s.start_time).ok().flatten()).collect()
    }

    /// The thread's work. Ends when told to, once there is no child left.
    pub(super) fn reap(&self, tell: &dyn Fn(Leader, End)) {
        loop {
            let seen = self.state.lock().count;
            match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Ok(_) => self.reap_all(tell),
                Err(Errno::INTR) => {}
                // No child at all; orphans come only of stages.
                Err(_) => {
                    let mut state = self.state.lock();
                    while state.count == seen && !state.over {
                        self.started.wait(&mut state);
                    }
                    if state.count == seen {
                        return;
                    }
                }
            }
        }
    }

    pub(super) fn end(&self) {
        self.state.lock().over = true;
        self.started.notify_all();
    }

    fn reap_all(&self, tell: &dyn Fn(Leader, End)) {
        loop {
            let mut state = self.state.lock();
            let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) else { return };
            let pid = pid.as_raw_nonzero().get().unsigned_abs();
            if let Some(leader) = state.leaders.remove(&pid) {
                tell(leader, end_of(status));
            }
        }
    }
}

fn raw(signal: Signal) -> rustix::process::Signal {
    match signal {
        Signal::Int => rustix::process::Signal::INT,
        Signal::Term => rustix::process::Signal::TERM,
        Signal::Kill => rustix::process::Signal::KILL,
    }
}

fn end_of(status: WaitStatus) -> End {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => End::Exited(code),
        (None, Some(signal)) => End::Signaled(signal),
        (None, None) => unreachable!("only ended children are waited for"),
    }
}
