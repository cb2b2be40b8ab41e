//! The stages of a job in their order: what each says, what it gives to the shell, where the plan goes on
//! (build §1.2). What comes of them is in `plan.rs`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::forge::{Done, Halted, Streams};
use crate::gitlab::wire::PolicyOptions;
use crate::model::{Outcome, Why};

use super::compose::Body;
use super::timeouts::Timeouts;
use super::{Failure, GitlabPlan, Place, demands, durations, say, variables};

const HEADER: Streams = Streams::Voice(0);
pub(super) const BODY: Streams = Streams::Voice(1);
const ENDING: Streams = Streams::Voice(2);

impl GitlabPlan {
    // ---- The order -----------------------------------------------------------------------------

    /// The next stage's beginning. Each either starts a process or is closed at once.
    pub(super) fn go_on(&mut self, now: Instant) {
        let at = self.at;
        match at {
            Place::Header => self.header(),
            Place::PrepareExecutor if self.driver.is_some() => self.prepare_driver(now),
            Place::PrepareExecutor => self.prepare_executor(),
            Place::PrepareScript => self.prepare_script(),
            Place::ClearWorktree => self.clear_worktree(now),
            Place::GetSources => self.get_sources(now),
            Place::RestoreCache => self.restore_cache(now),
            Place::DownloadArtifacts => self.download_artifacts(now),
            Place::Steps => self.before_steps(now),
            Place::Step(n) => self.step(n, now),
            Place::AfterScript => self.after_script(),
            Place::ArchiveCache => self.archive_cache(),
            Place::UploadArtifacts => self.upload_artifacts(),
            Place::Cleanup => self.cleanup(),
            Place::Finish => self.finish(),
            Place::Over => {}
        }
    }

    fn header(&mut self) {
        let e = &self.settings;
        let mut lines = vec![say::plain(&format!("Running with runner {}", variables::version()))];
        if !e.short_token.is_empty() {
            let id = if e.system_id.is_empty() { String::new() } else { format!(", system ID: {}", e.system_id) };
            lines.push(say::plain(&format!("  on {} {}{id}", e.entry, e.short_token)));
        }
        let changed = self.flags.changed();
        if !changed.is_empty() {
            lines.push(say::plain(&format!("  feature flags: {changed}")));
        }
        self.print(HEADER, lines);
        if self.canceled || self.hard.is_some() {
            self.at = Place::Finish;
            return;
        }
        let refused = demands::impossible(&self.payload, &self.vars).and(self.misplaced.take().map_or(Ok(()), Err));
        if let Err(text) = refused {
            self.failure = Some(Failure::new(Why::Configuration, text));
            self.at = Place::Finish;
            return;
        }
        if !self.wishes.problems.is_empty() {
            self.voice(say::warning(&self.wishes.problems.join("\n")));
        }
        for text in demands::left_out(&self.payload, &self.settings.url) {
            self.voice(say::warning(text));
        }
        self.at = Place::PrepareExecutor;
    }

    fn prepare_executor(&mut self) {
        self.open("prepare_executor", "Preparing the \"shell\" executor");
        self.voice(say::plain(&format!("Using Shell ({}) executor...", self.composer.shell.as_str())));
        for line in std::mem::take(&mut self.settings.notes) {
            self.voice(say::plain(&line));
        }
        self.close("prepare_executor");
        self.at = Place::PrepareScript;
    }

    /// What the last job in this directory was to hand on must not reach this one, its login least of all.
    fn prepare_script(&mut self) {
        self.at = Place::GetSources;
        self.open("prepare_script", "Preparing environment");
        let mut body = self.composer.body();
        match &self.driver {
            Some(driver) => body.running_on(&driver.hostname),
            None => self.notice(format!("Running on {}...\n", host_name()).into_bytes()),
        }
        let left: Vec<PathBuf> = self.paths.leftovers().filter(|p| self.may_be_there(p)).collect();
        if left.is_empty() {
            self.close("prepare_script");
        } else {
            body.remove(&left.iter().map(PathBuf::as_path).collect::<Vec<_>>());
            let limit = self.own_limit(self.settings.sources.prepare_timeout);
            self.start("prepare_script", Place::PrepareScript, body, limit);
        }
    }

    pub(super) fn prepared(&mut self, done: &Done) {
        let Some(mut failure) = self.verdict(done) else { return };
        self.at = Place::Finish;
        if done.halted == Some(Halted::Limit) {
            let limit = durations::show(self.settings.sources.prepare_timeout);
            self.voice(say::cut_short("prepare_script"));
            failure = Failure::new(Why::TimedOut, format!("prepare timeout: exceeded timeout of {limit}"));
        } else {
            failure.text = format!(
                "prepare environment: {}. Check https://docs.gitlab.com/runner/shells/#shell-profile-loading for more \
                 information",
                failure.text
            );
        }
        self.failure = Some(failure);
    }

    fn before_steps(&mut self, now: Instant) {
        let spent = self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        let timeouts = Timeouts::read(|name| self.vars.get(name), self.timeout.saturating_sub(spent));
        for line in policy_lines(&self.payload.policy_options) {
            self.voice(say::info(&line));
        }
        for text in &timeouts.warnings {
            self.voice(say::warning(text));
        }
        self.script_until = timeouts.script.map(|limit| now + limit);
        self.timeouts = Some(timeouts);
        self.at = Place::Step(0);
    }

    fn step(&mut self, n: usize, now: Instant) {
        let Some(step) = self.payload.steps.get(n) else {
            self.at = Place::AfterScript;
            return;
        };
        self.at = Place::Step(n + 1);
        if step.name == "after_script" {
            return;
        }
        let limit = self.script_until.map(|until| until.saturating_duration_since(now));
        if limit.is_some_and(|left| left.is_zero()) {
            self.script_timed_out();
            return;
        }
        let section = format!("step_{}", step.name.to_lowercase().replace(|c: char| c.is_control(), "_"));
        let mut body = self.composer.body();
        body.begin(&self.vars, &self.paths);
        around(&mut body, &self.settings.pre_build_script, "section_pre_build_script_0");
        for (i, text) in step.script.iter().enumerate() {
            let name = format!("section_script_step_{i}");
            match step.name.as_str() {
                "release" => body.command(&self.vars.expand(text), &name),
                _ => body.command(text, &name),
            }
        }
        around(&mut body, &self.settings.post_build_script, "section_post_build_script_0");
        self.open(&section, &format!("Executing \"{section}\" stage of the job script"));
        self.start(&section, Place::Step(n), body, limit);
    }

    fn after_script(&mut self) {
        self.at = Place::ArchiveCache;
        let Some(step) = self.payload.steps.iter().find(|s| s.name == "after_script" && !s.script.is_empty()) else {
            return;
        };
        self.vars.set_status(match &self.failure {
            _ if self.canceled => "canceled",
            None => "success",
            Some(f) if f.why == Why::TimedOut => "timedout",
            Some(_) => "failed",
        });
        let mut body = self.composer.body();
        body.begin(&self.vars, &self.paths);
        body.notice("Running after script...");
        for (i, text) in step.script.iter().enumerate() {
            body.command(text, &format!("section_after_script_step_{i}"));
        }
        let limit = self.timeouts.as_ref().map(|t| t.after_script);
        self.open("after_script", "Running after_script");
        self.start("after_script", Place::AfterScript, body, limit);
    }

    fn finish(&mut self) {
        if self.free_driver() {
            return;
        }
        self.at = Place::Over;
        let failure = match (self.canceled, self.hard) {
            (true, _) => Some(Failure::new(Why::Canceled, "canceled")),
            (false, Some(why)) => Some(self.stopped(why)),
            (false, None) => self.failure.take(),
        };
        let Some(f) = failure else {
            self.print(ENDING, vec![say::info("Job succeeded")]);
            self.outcome = Some(Outcome::success());
            return;
        };
        let of_the_host =
            matches!(f.why, Why::System | Why::HostShutdown | Why::Orphaned | Why::Crashed | Why::HostRestarted);
        let line = match of_the_host {
            true => format!("Job failed (system failure): {}", f.text),
            false => format!("Job failed: {}", f.text),
        };
        self.print(ENDING, vec![say::error(&line)]);
        self.outcome = Some(Outcome { exit_code: f.exit_code, ..Outcome::failed(f.why, f.text) });
    }

    /// The words of a job that was ended from outside.
    fn stopped(&self, why: Why) -> Failure {
        let text = match why {
            Why::TimedOut => format!("execution took longer than {} seconds", durations::show(self.timeout)),
            Why::Canceled | Why::Aborted => "canceled".to_owned(),
            Why::Terminated => "aborted: terminated".to_owned(),
            Why::Interrupted => "aborted: interrupt".to_owned(),
            Why::HostShutdown => "the host is shutting down".to_owned(),
            Why::Orphaned => "no runner came back to report the job, so it was ended".to_owned(),
            Why::HostRestarted => "the host restarted while the job ran".to_owned(),
            Why::Crashed | Why::System | Why::Script | Why::Configuration => "the job was ended".to_owned(),
        };
        Failure::new(why, text)
    }
}

/// The entry's script before or after the job's, one command.
fn around(body: &mut Body, text: &str, section: &str) {
    if !text.trim().is_empty() {
        body.command(text, section);
    }
}

fn policy_lines(policy: &PolicyOptions) -> Vec<String> {
    if !policy.execution_policy_job {
        return Vec::new();
    }
    let except = match policy.policy_variables_override_exceptions.as_slice() {
        [] => String::new(),
        names => format!(" (except for {})", names.join(", ")),
    };
    let variables = match policy.policy_variables_override_allowed {
        None => {
            "Variables defined in the policy take precedence over matching user-defined CI/CD variables for this job."
                .to_owned()
        }
        Some(allowed) => {
            let word = if allowed { "allowed" } else { "ignored" };
            format!("User-defined CI/CD variables are {word} in this job{except} according to the policy.")
        }
    };
    vec![format!("Job triggered by policy \"{}\".", policy.policy_name), variables]
}

/// From the kernel, as `hostname` prints it, without a process.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}
