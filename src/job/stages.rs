//! The stages that run: starts them, ends those that shall end, and knows when one has ended: its leader
//! is reaped and its pipes are closed, or the stage's `drain` later. Signals a stage's own group and
//! nothing else (kill point 40); waits for nothing, the loop does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::collect::collect;
use super::ladder::{Climb, Step};
use super::pump::{Order, Pump};
use super::reaper::{Children, Leader};
use crate::clock::{BootTime, Timing};
use crate::executor::Executor;
use crate::forge::{Done, End, Halted, Ladder, Said, Signal, Stage, StageId};
use crate::process::cgroup::Leaf;

#[derive(Debug)]
pub(super) struct Stages {
    executor: Executor,
    children: Arc<Children>,
    timing: Timing,
    running: BTreeMap<StageId, Running>,
}

#[derive(Debug)]
struct Running {
    leader: Leader,
    ladder: Ladder,
    limit: Option<BootTime>,
    drain: Option<Duration>,
    collect: Vec<PathBuf>,
    halted: Option<Halted>,
    climb: Option<Climb>,
    /// When its pipes are given up.
    cut: Option<BootTime>,
    /// Known once the leader is reaped, or the ladder used up.
    end: Option<End>,
    /// Known once the pipes are closed.
    said: Option<Vec<Said>>,
}

impl Stages {
    pub(super) fn new(executor: Executor, children: Arc<Children>, timing: Timing) -> Stages {
        Stages { executor, children, timing, running: BTreeMap::new() }
    }

    /// The cgroup that stages run in.
    pub(super) fn leaf(&self) -> Option<&Leaf> {
        self.executor.manner.leaf.as_ref()
    }

    /// `Some` when it could not be started, which is its end.
    pub(super) fn start(&mut self, stage: Stage, pump: &Pump) -> Option<Done> {
        let id = stage.id;
        let started = self.children.start(|| {
            let spawned = self.executor.start(&stage)?;
            Ok((spawned.pid, spawned.pipes))
        });
        let (leader, pipes) = match started {
            Ok(started) => started,
            Err(e) => return Some(not_started(id, &e.to_string(), None)),
        };
        let running = Running {
            leader,
            ladder: stage.ladder.clone(),
            limit: stage.limit.map(|limit| BootTime::now().after(limit)),
            drain: stage.drain,
            collect: stage.collect.clone(),
            halted: None,
            climb: None,
            cut: None,
            end: None,
            said: None,
        };
        pump.order(Order::Begin { stage: Box::new(stage), pipes });
        self.running.insert(id, running);
        None
    }

    // ---- Ending --------------------------------------------------------------------------------

    /// Begin its ladder, once; a stage that has ended needs none.
    pub(super) fn halt(&mut self, id: StageId, why: Halted, now: BootTime) {
        if let Some(running) = self.running.get_mut(&id) {
            running.halt(why, &self.children, &self.timing, now);
        }
    }

    /// Begin all ladders; KILL comes no later than `kill_by`.
    pub(super) fn halt_all(&mut self, kill_by: BootTime, now: BootTime) {
        for running in self.running.values_mut() {
            running.halt(Halted::Stop, &self.children, &self.timing, now);
            if let Some(climb) = &mut running.climb {
                climb.hurry(kill_by);
            }
        }
    }

    /// What time brings: limits, rungs, pipes that stay open.
    pub(super) fn tick(&mut self, now: BootTime, pump: &Pump) {
        for (id, running) in &mut self.running {
            if running.limit.is_some_and(|limit| limit <= now) {
                running.halt(Halted::Limit, &self.children, &self.timing, now);
            }
            while let Some(step) = running.climb.as_mut().and_then(|climb| climb.due(now)) {
                match step {
                    Step::Signal(signal) => {
                        self.children.signal(running.leader, signal);
                        if signal == Signal::Kill && running.end.is_some() {
                            running.cut_by(now.after(self.timing.drain_ended));
                        }
                    }
                    Step::GiveUp => {
                        running.climb = None;
                        running.end.get_or_insert(End::Unkillable);
                        running.cut_by(now);
                    }
                }
            }
            if running.cut.is_some_and(|cut| cut <= now) {
                running.cut = None;
                pump.order(Order::Cut(*id));
            }
        }
    }

    /// When [`Stages::tick`] has something to do.
    pub(super) fn next(&self) -> Option<BootTime> {
        self.running.values().filter_map(Running::next).min()
    }

    // ---- What is heard ---------------------------------------------------------------------------

    /// A leader was reaped.
    pub(super) fn reaped(&mut self, leader: Leader, end: End, now: BootTime) -> Option<Done> {
        let (id, running) = self.running.iter_mut().find(|(_, r)| r.leader == leader && r.end.is_none())?;
        let id = *id;
        running.end = Some(end);
        if let Some(drain) = running.drain {
            running.cut_by(now.after(drain));
        }
        if running.halted.is_some() {
            running.last_of_the_group(&self.children, &self.timing, now);
        }
        self.done(id)
    }

    /// The pump has stored all that came out of it.
    pub(super) fn closed(&mut self, id: StageId, said: Vec<Said>) -> Option<Done> {
        self.running.get_mut(&id)?.said = Some(said);
        self.done(id)
    }

    fn done(&mut self, id: StageId) -> Option<Done> {
        let running = self.running.get(&id)?;
        if running.end.is_none() || running.said.is_none() {
            return None;
        }
        let running = self.running.remove(&id)?;
        Some(Done {
            id,
            end: running.end?,
            halted: running.halted,
            collected: collect(running.collect, self.executor.manner.user.as_ref()),
            said: running.said?,
        })
    }
}

impl Running {
    fn halt(&mut self, why: Halted, children: &Children, timing: &Timing, now: BootTime) {
        self.limit = None;
        if self.halted.is_some() {
            return;
        }
        self.halted = Some(why);
        self.climb = Some(Climb::new(&self.ladder, timing.kill_wait, now));
        if self.end.is_some() {
            self.last_of_the_group(children, timing, now);
        }
    }

    /// The leader of a halted stage is gone, and somebody may hold its pipes: what is left of the group has
    /// a little time more; what left the group is not waited for, the sweep will find it.
    fn last_of_the_group(&mut self, children: &Children, timing: &Timing, now: BootTime) {
        if self.said.is_some() {
            return;
        }
        let mut wait = timing.drain_ended;
        if children.rest_of(self.leader).is_empty() {
            self.climb = None;
        } else if let Some(climb) = &mut self.climb {
            climb.hurry(now.after(timing.hard_term));
            wait += timing.hard_term;
        }
        self.cut_by(now.after(wait));
    }

    fn cut_by(&mut self, at: BootTime) {
        if self.said.is_none() {
            self.cut = Some(self.cut.map_or(at, |cut| cut.min(at)));
        }
    }

    fn next(&self) -> Option<BootTime> {
        [self.limit, self.cut, self.climb.as_ref().map(Climb::next)].into_iter().flatten().min()
    }
}

/// A stage that is no more than its end.
pub(super) fn not_started(id: StageId, text: &str, halted: Option<Halted>) -> Done {
    Done { id, end: End::NotStarted(text.to_owned()), halted, collected: Vec::new(), said: Vec::new() }
}
