//! The last stage (build §2.5): what this job put beside its project is removed, the login first, and the
//! repository is left as the next job can take it. Its failure changes nothing of the job.

use std::path::{Path, PathBuf};

use super::compose::Body;
use super::flags::Flag;
use super::git;
use super::say;
use super::wishes::{Strategy, Submodules};
use super::{GitlabPlan, Place};

impl GitlabPlan {
    pub(super) fn cleanup(&mut self) {
        self.at = Place::Finish;
        self.open("cleanup_file_variables", "Cleaning up project directory and file based variables");
        let files = self.paths.leftovers().chain(self.vars.files().map(PathBuf::from));
        let mut left: Vec<PathBuf> = files.filter(|p| self.may_be_there(p)).collect();
        let by_git = matches!(self.strategy, Strategy::Clone | Strategy::Fetch);
        let cleans = self.flags.on(Flag::FF_ENABLE_JOB_CLEANUP);
        if cleans && matches!(self.strategy, Strategy::Clone | Strategy::Empty) {
            left.extend(Some(self.paths.project.clone()).filter(|p| self.may_be_there(p)));
        }
        let skips = cleans && self.strategy == Strategy::None;
        if skips && self.driver.is_none() {
            self.notice(say::info("Skipping build directory cleanup step"));
        }
        let untidy = by_git || self.has_locks();
        if left.is_empty() && !untidy {
            return self.close("cleanup_file_variables");
        }
        let mut body = self.composer.body();
        if skips && self.driver.is_some() {
            body.notice("Skipping build directory cleanup step");
        }
        body.remove(&left.iter().map(PathBuf::as_path).collect::<Vec<_>>());
        if by_git {
            git::forget_login(&mut body, &self.remote());
        }
        let kind = self.wishes.git.submodules.unwrap_or(Submodules::None);
        if cleans && self.strategy == Strategy::Fetch {
            reset(&mut body, &self.paths.project, &self.wishes.git.clean_flags, kind);
        }
        if untidy {
            // The configuration goes only where the next job makes it anew.
            let cleans_config = by_git && git::cleans_config(&self.context());
            git::tidy(&mut body, &self.paths.git_dir(), kind, cleans_config);
        }
        self.start("cleanup_file_variables", Place::Cleanup, body, None);
    }

    /// What a job without sources of its own may have left in a repository; seen without a process.
    fn has_locks(&self) -> bool {
        let names = ["index.lock", "shallow.lock", "HEAD.lock", "config.lock", "hooks/post-checkout"];
        let git_dir = self.paths.git_dir();
        self.may_be_there(&git_dir) && names.iter().any(|name| self.may_be_there(&git_dir.join(name)))
    }
}

/// The working tree as its commit has it.
fn reset(body: &mut Body, project: &Path, clean_flags: &[String], kind: Submodules) {
    let clean = format!("git clean{}", git::quoted(clean_flags));
    body.raw("if [ -d ").path(&project.join(".git")).raw(" ]; then\ncd ").path(project).raw("\n");
    if !clean_flags.is_empty() {
        body.raw(&clean).raw("\n");
    }
    body.raw("git reset --hard\n");
    let recursive = match kind {
        Submodules::None => None,
        Submodules::Normal => Some(""),
        Submodules::Recursive => Some(" --recursive"),
    };
    if let Some(recursive) = recursive {
        let clean = Some(clean.as_str()).filter(|_| !clean_flags.is_empty());
        for command in clean.into_iter().chain(["git reset --hard"]) {
            body.raw("git submodule foreach").raw(recursive).raw(" ").word(command.as_bytes()).raw("\n");
        }
    }
    body.raw("fi\n");
}
