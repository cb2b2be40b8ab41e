//! The stages that carry files into a job and out of it: caches and artifacts, with their tries (build
//! §1.2, §1.4). What they run is made in `artifacts` and `cache`.

use std::time::Instant;

use crate::model::Why;

use super::compose::Body;
use super::context::{Context, On};
use super::{Failure, GitlabPlan, Place, artifacts, cache, say};

impl GitlabPlan {
    pub(super) fn restore_cache(&mut self, now: Instant) {
        self.at = Place::DownloadArtifacts;
        let script = cache::restore_script(&self.context());
        self.carry_in(Place::RestoreCache, "restore_cache", "Restoring cache", script, now);
    }

    pub(super) fn download_artifacts(&mut self, now: Instant) {
        self.at = Place::Steps;
        let script = artifacts::download_script(&self.context());
        self.carry_in(Place::DownloadArtifacts, "download_artifacts", "Downloading artifacts", script, now);
    }

    /// Whether the job failed is known for good now: what fails from here on changes nothing of what is kept.
    pub(super) fn archive_cache(&mut self) {
        self.at = Place::UploadArtifacts;
        self.on = if self.canceled || self.failure.is_some() { On::Failure } else { On::Success };
        let script = cache::archive_script(&self.context(), self.on);
        let (section, banner) = match self.on {
            On::Success => ("archive_cache", "Saving cache for successful job"),
            On::Failure => ("archive_cache_on_failure", "Saving cache for failed job"),
        };
        self.carry_out(Place::ArchiveCache, section, banner, script);
    }

    /// Runs whatever became of the cache.
    pub(super) fn upload_artifacts(&mut self) {
        self.at = Place::Cleanup;
        let script = artifacts::upload_script(&self.context(), self.on);
        let (section, banner) = match self.on {
            On::Success => ("upload_artifacts_on_success", "Uploading artifacts for successful job"),
            On::Failure => ("upload_artifacts_on_failure", "Uploading artifacts for failed job"),
        };
        self.carry_out(Place::UploadArtifacts, section, banner, script);
    }

    /// One try of a stage that may be repeated has ended: it is over, or repeated, or the job has failed.
    pub(super) fn tried(&mut self, place: Place, failure: Option<Failure>, now: Instant) {
        let Some(failure) = failure else {
            self.tries.reset();
            return;
        };
        let allowed = match place {
            Place::GetSources => self.wishes.get_sources_attempts,
            Place::RestoreCache => self.wishes.restore_cache_attempts,
            _ => self.wishes.artifact_download_attempts,
        };
        match self.tries.again(allowed, now) {
            Some(n) => {
                self.voice(say::warning("Retrying..."));
                self.at = if place == Place::GetSources && n == 1 { Place::ClearWorktree } else { place };
                if let Some(end) = self.sources_until.filter(|_| place == Place::GetSources) {
                    self.tries.not_beyond(end);
                }
            }
            None => {
                self.failure = Some(failure);
                self.at = Place::ArchiveCache;
            }
        }
    }

    /// The first failure is the job's: the script's before the cache's, the cache's before an upload's.
    pub(super) fn kept(&mut self, failure: Option<Failure>) {
        if let Some(failure) = failure {
            self.failure.get_or_insert(failure);
        }
    }

    fn carry_in(
        &mut self,
        place: Place,
        section: &str,
        banner: &str,
        script: Result<Option<Body>, String>,
        now: Instant,
    ) {
        match script {
            Ok(Some(body)) => {
                self.open(section, banner);
                self.start(section, place, body, None);
            }
            Ok(None) => self.tries.reset(),
            Err(text) => self.tried(place, Some(Failure::new(Why::System, text)), now),
        }
    }

    fn carry_out(&mut self, place: Place, section: &str, banner: &str, script: Result<Option<Body>, String>) {
        match script {
            Ok(Some(body)) => {
                self.open(section, banner);
                self.start(section, place, body, None);
            }
            Ok(None) => {}
            Err(text) => self.kept(Some(Failure::new(Why::System, text))),
        }
    }

    pub(super) fn context(&self) -> Context<'_> {
        Context {
            payload: &self.payload,
            settings: &self.settings,
            request_id: &self.request_id,
            flags: &self.flags,
            paths: &self.paths,
            vars: &self.vars,
            wishes: &self.wishes,
            composer: self.composer,
        }
    }
}
