//! The stages that get the sources (build §1.2, §4).

use std::time::Instant;

use crate::model::Why;

use super::paths::exists;
use super::wishes::Strategy;
use super::{Failure, GitlabPlan, Place, say};

impl GitlabPlan {
    pub(super) fn get_sources(&mut self, now: Instant) {
        let _ = now;
        self.at = Place::RestoreCache;
        self.open("get_sources", "Getting source from Git repository");
        match self.strategy {
            Strategy::None => self.notice(say::info("Skipping Git repository setup")),
            Strategy::Empty => {
                self.notice(say::info("Skipping Git repository setup and creating an empty build directory"));
            }
            Strategy::Clone | Strategy::Fetch => {
                self.failure = Some(Failure::new(
                    Why::Configuration,
                    "this version does not fetch sources yet: set the variable GIT_STRATEGY to \"none\" or \"empty\"",
                ));
                self.at = Place::Cleanup;
                return self.close("get_sources");
            }
        }
        self.notice(say::info("Skipping Git checkout"));
        self.notice(say::info("Skipping Git submodules setup"));
        if self.strategy == Strategy::Empty && exists(&self.paths.project) {
            let mut body = self.composer.body();
            body.remove(&[&self.paths.project]);
            self.start("get_sources", Place::GetSources, body, None);
        } else {
            self.close("get_sources");
        }
    }

    pub(super) fn clear_worktree(&mut self, now: Instant) {
        let _ = now;
        self.at = Place::GetSources;
    }

    pub(super) fn sources_timed_out(&mut self) {
        self.tries.reset();
        self.failure = Some(Failure::new(Why::TimedOut, "get sources timeout"));
        self.at = Place::Finish;
    }
}
