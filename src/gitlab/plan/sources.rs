//! The stages that get the sources: their tries, their time limit, what is said where no git is needed
//! (build §1.2, §4). The scripts are made in `git`.

use std::time::{Duration, Instant};

use crate::model::Why;

use super::remote::Remote;
use super::wishes::Strategy;
use super::{Failure, GitlabPlan, Place, durations, git, say};

impl GitlabPlan {
    pub(super) fn get_sources(&mut self, now: Instant) {
        let Ok(limit) = self.left_for_sources(now) else { return self.sources_timed_out() };
        self.at = Place::RestoreCache;
        match self.strategy {
            Strategy::Clone | Strategy::Fetch => self.get_by_git(limit, now),
            Strategy::None | Strategy::Empty => self.get_nothing(limit),
        }
    }

    fn get_by_git(&mut self, limit: Option<Duration>, now: Instant) {
        let context = self.context();
        match git::get_sources(&context, &self.remote(), self.strategy) {
            Ok(body) => {
                self.open("get_sources", "Getting source from Git repository");
                self.start("get_sources", Place::GetSources, body, limit);
            }
            Err(text) => self.tried(Place::GetSources, Some(Failure::new(Why::System, text)), now),
        }
    }

    fn get_nothing(&mut self, limit: Option<Duration>) {
        self.open("get_sources", "Getting source from Git repository");
        let mut body = self.composer.body();
        let first = match self.strategy {
            Strategy::Empty => "Skipping Git repository setup and creating an empty build directory",
            _ => "Skipping Git repository setup",
        };
        for line in [first, "Skipping Git checkout", "Skipping Git submodules setup"] {
            match &self.driver {
                // Each stage is a call of the driver, also one that only says something.
                Some(_) => body.notice(line),
                None => self.notice(say::info(line)),
            }
        }
        let is_full = self.strategy == Strategy::Empty && self.may_be_there(&self.paths.project);
        if is_full {
            body.remove(&[&self.paths.project]);
        }
        if self.composer.git_seed {
            body.make_directories(&[&self.paths.temp]);
            git::seed(&mut body, &self.context(), &self.remote());
        }
        match is_full || self.composer.git_seed || self.driver.is_some() {
            true => self.start("get_sources", Place::GetSources, body, limit),
            false => self.close("get_sources"),
        }
    }

    /// Before the second try only: what a broken first one left behind may be why it failed.
    pub(super) fn clear_worktree(&mut self, now: Instant) {
        let Ok(limit) = self.left_for_sources(now) else { return self.sources_timed_out() };
        self.at = Place::GetSources;
        self.open("clear_worktree", "Deleting all tracked and untracked files due to source fetch failure");
        let body = git::clear_worktree(&self.context());
        self.start("clear_worktree", Place::ClearWorktree, body, limit);
    }

    /// Nothing of the job follows, as when the job's own time is up.
    pub(super) fn sources_timed_out(&mut self) {
        let limit = durations::show(self.settings.sources.get_sources_timeout);
        let text = format!("get sources timeout: exceeded timeout of {limit}");
        self.tries.reset();
        self.failure = Some(Failure::new(Why::TimedOut, text));
        self.at = Place::Finish;
    }

    /// What is left for all tries together: `None` without a limit of their own, an error when it is up.
    fn left_for_sources(&mut self, now: Instant) -> Result<Option<Duration>, ()> {
        let Some(limit) = self.own_limit(self.settings.sources.get_sources_timeout) else { return Ok(None) };
        let until = *self.sources_until.get_or_insert(now + limit);
        let left = until.saturating_duration_since(now);
        if left.is_zero() { Err(()) } else { Ok(Some(left)) }
    }

    /// A limit of the entry for a part of the job; `None` where it is none or no shorter than the job's.
    pub(super) fn own_limit(&self, limit: Duration) -> Option<Duration> {
        (!limit.is_zero() && limit <= self.timeout).then_some(limit)
    }

    pub(super) fn remote(&self) -> Remote {
        Remote::of(&self.payload, &self.settings, &self.vars, self.wishes.git.force_https)
    }
}
