//! What a job's plan makes of its news: a stage has ended, somebody wants the job to stop (build §1.5–1.8).

use std::time::Instant;

use crate::forge::{Done, End, Halted, How, Next, StageId, Stop};
use crate::model::Why;

use super::{Failure, GitlabPlan, Place, Running, say};

impl GitlabPlan {
    /// Stages that only print may be told of or not; the plan waits for none of them.
    pub(super) fn ended(&mut self, done: &Done, now: Instant) {
        let Some(running) = self.running.take_if(|r| r.id == done.id) else { return };
        if self.driver.is_some() && matches!(running.place, Place::PrepareExecutor | Place::Finish) {
            return self.driver_ended(running.place, done, now);
        }
        self.close(&running.section);
        if let Some(why) = self.hard {
            self.cut_short(&running, why);
            return;
        }
        match running.place {
            place if self.canceled && place < Place::Steps => self.at = Place::Finish,
            Place::PrepareScript => self.prepared(done),
            Place::ClearWorktree | Place::GetSources if done.halted == Some(Halted::Limit) => {
                self.voice(say::cut_short(&running.section));
                self.sources_timed_out();
            }
            // Half a try: the other half follows.
            Place::ClearWorktree if done.end == End::Exited(0) => {}
            Place::ClearWorktree | Place::GetSources => self.tried(Place::GetSources, self.verdict(done), now),
            place @ (Place::RestoreCache | Place::DownloadArtifacts) => self.tried(place, self.verdict(done), now),
            Place::Step(_) => self.step_ended(&running.section, done),
            Place::AfterScript => self.after_script_ended(done),
            Place::ArchiveCache | Place::UploadArtifacts => self.kept(self.verdict(done)),
            // What cleanup leaves behind, the next job's prepare_script removes.
            _ => {}
        }
    }

    fn step_ended(&mut self, section: &str, done: &Done) {
        if self.canceled {
            self.voice(say::warning("script canceled externally (UI, API)"));
            self.at = Place::AfterScript;
        } else if done.halted == Some(Halted::Limit) {
            self.voice(say::cut_short(section));
            self.script_timed_out();
        } else if let Some(f) = self.verdict(done) {
            self.failure = Some(f);
            self.at = Place::AfterScript;
        }
    }

    pub(super) fn script_timed_out(&mut self) {
        self.failure = Some(Failure::new(Why::TimedOut, "script timeout: context deadline exceeded"));
        self.at = Place::AfterScript;
    }

    fn after_script_ended(&mut self, done: &Done) {
        if done.halted == Some(Halted::Limit) {
            self.voice(say::cut_short("after_script"));
        }
        let Some(f) = self.verdict(done) else { return };
        if self.wishes.after_script_ignore_errors {
            self.voice(say::warning(&format!("after_script failed, but job will continue unaffected: {}", f.text)));
        } else {
            self.failure.get_or_insert(f);
        }
    }

    pub(super) fn stop(&mut self, stop: Stop, now: Instant) {
        match stop.how {
            // Before the user steps a cancel ends the job, in them the script; after them it is too late.
            How::Soft => {
                let resting = self.tries.resting().is_some();
                let late = match &self.running {
                    Some(running) => running.place >= Place::AfterScript,
                    None => self.at > Place::Header && !resting,
                };
                if late || self.canceled || self.hard.is_some() {
                    return;
                }
                self.canceled = true;
                if resting {
                    self.tries.reset();
                    self.at = Place::Finish;
                }
                match self.unstart() {
                    Some(id) => self.ended(&never_ran(id), now),
                    None => self.todo.extend(self.running.as_ref().map(|r| Next::Halt(r.id))),
                }
            }
            How::Hard => {
                if self.at == Place::Over || self.hard.is_some() {
                    return;
                }
                self.hard = Some(stop.why);
                self.tries.reset();
                if let Some(id) = self.unstart() {
                    self.ended(&never_ran(id), now);
                } else if self.running.is_none() && self.at > Place::Header {
                    self.at = Place::Finish;
                }
            }
        }
    }

    /// Take back a stage that the loop was not yet told to start: a stop came between.
    fn unstart(&mut self) -> Option<StageId> {
        let id = self.running.as_ref()?.id;
        let at = self.todo.iter().position(|n| matches!(n, Next::Start(stage) if stage.id == id))?;
        self.todo.remove(at);
        Some(id)
    }

    /// A stage met a hard stop: only words are left.
    fn cut_short(&mut self, running: &Running, why: Why) {
        self.at = Place::Finish;
        match why {
            Why::TimedOut => self.voice(say::cut_short(&running.section)),
            // Known from the reference: said of after_script, whether there is one or not.
            Why::Aborted | Why::Terminated | Why::Interrupted if matches!(running.place, Place::Step(_)) => {
                self.voice(say::warning("after_script failed, but job will continue unaffected: context canceled"));
            }
            _ => {}
        }
    }
}

fn never_ran(id: StageId) -> Done {
    Done { id, end: End::Exited(0), halted: Some(Halted::Plan), collected: Vec::new(), said: Vec::new() }
}
