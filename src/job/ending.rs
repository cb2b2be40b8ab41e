//! The end of a job in its process: nothing that it started lives on (invariant 5), everything is stored.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::crew::Event;
use super::log::Source;
use super::pump::Order;
use super::{Loop, OWN, ended, wipe};
use crate::clock::BootTime;
use crate::forge::{Done, LogId, StageId};
use crate::model::Outcome;
use crate::process::sweep;

/// The stage that the last sweep is.
const LAST_SWEEP: StageId = StageId(u32::MAX);

impl Loop {
    pub(super) fn sweep(&mut self, id: StageId, lines: (LogId, Source)) -> Option<Done> {
        self.sweeps.insert(id, lines);
        let by = BootTime::now().after(self.timing.sweep_limit);
        let sweep_by = Arc::new(Mutex::new(by.min(*self.sweep_by.lock())));
        self.sweep_by = sweep_by.clone();
        match self.crew.sweep(id, self.timing.sweep_term, sweep_by, self.stages.leaf().cloned()) {
            Ok(()) => None,
            Err(e) => self.swept(id, vec![format!("unknown: the sweep could not start: {e}")]),
        }
    }

    /// What could not be ended is named in the log and in the outcome (kill point 22).
    pub(super) fn swept(&mut self, id: StageId, survivors: Vec<String>) -> Option<Done> {
        let (log, from) = self.sweeps.remove(&id).unwrap_or((LogId(0), OWN));
        if !survivors.is_empty() {
            let names = survivors.join(", ");
            self.say(log, from, format!("\x1b[0;33mWARNING: these processes could not be ended: {names}\x1b[0;m\n"));
        }
        let code = i32::from(!survivors.is_empty());
        self.survivors = survivors;
        Some(ended(id, code))
    }

    pub(super) fn say(&self, log: LogId, from: Source, line: String) {
        self.crew.pump.order(Order::Print { log, from, parts: vec![line.into_bytes()], at: SystemTime::now() });
    }

    /// Nothing that the job started lives on (invariant 5), no login of it stays, and everything is stored.
    pub(super) fn end(mut self, mut outcome: Outcome) -> Outcome {
        if !self.keep_processes && sweep::has_children() {
            self.sweep(LAST_SWEEP, (LogId(0), OWN));
        }
        while self.sweeps.contains_key(&LAST_SWEEP)
            && let Ok(event) = self.crew.events.recv()
        {
            // A bug elsewhere has no say any more; a host that goes down has.
            if !matches!(event, Event::Broken(_)) {
                let _ = self.heed(event);
            }
        }
        if let Some(leaf) = self.stages.leaf().filter(|_| !self.keep_processes) {
            leaf.remove(self.timing.drain_ended);
        }
        // Nobody is left who could write them again.
        wipe::wipe(&self.wipe);
        outcome.survivors = self.survivors;
        outcome.lost = self.crew.finish().or_else(|| self.records.lost());
        outcome
    }
}
