//! The custom executor's order (build §9.2): configuration and preparation with their tries, every stage by
//! `run_exec`, and `cleanup_exec` after each failed try and at the end, whatever became of the job. What a
//! call is given is made in `driver`.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::clock::Timing;
use crate::forge::{Call, Done, Halted, Ladder, Next, Run, Signal, Streams};
use crate::model::{Program, Shell, Why};

use super::compose::Body;
use super::driver::{self, CLEANUP_FILE, CONFIG_FILE, Configuration};
use super::quote::Quoting;
use super::{Failure, Flag, GitlabPlan, Place, Running, Settled, durations, say, settle};

/// So often the preparation is tried.
const TRIES: u32 = 3;
const SECTION: &str = "prepare_executor";

/// How far the preparation is.
#[derive(Default)]
pub(super) struct Preparing {
    at: Step,
    /// Tries that failed.
    failed: u32,
    /// Its section is open.
    is_open: bool,
    /// Until when `prepare_timeout` allows it.
    until: Option<Instant>,
    /// Of the try that is being cleaned up after.
    failure: Option<Failure>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Configure,
    Announce,
    Prepare,
    CleanUp,
}

impl GitlabPlan {
    /// Called until it has started something, or the executor is prepared.
    pub(super) fn prepare_driver(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.preparing.is_open, true) {
            self.open(SECTION, "Preparing the \"custom\" executor");
            self.preparing.until = self.own_limit(self.settings.sources.prepare_timeout).map(|limit| now + limit);
        }
        let Some(custom) = self.driver.as_ref().map(|d| d.custom.clone()) else { return };
        match self.preparing.at {
            Step::Configure => match &custom.config {
                Some(program) => self.start_preparing(program, now),
                None => self.preparing.at = Step::Announce,
            },
            Step::Announce => self.announce(),
            Step::Prepare => match &custom.prepare {
                Some(program) => self.start_preparing(program, now),
                None => self.driver_is_prepared(),
            },
            Step::CleanUp => match self.clean_up(Place::PrepareExecutor) {
                true => {}
                false => self.after_try(now),
            },
        }
    }

    fn start_preparing(&mut self, program: &Program, now: Instant) {
        let left = self.preparing.until.map(|until| until.saturating_duration_since(now));
        let limit = left.map_or(program.timeout, |left| left.min(program.timeout));
        let Some(mut call) = self.call(program) else { return };
        let mut collect = Vec::new();
        if self.preparing.at == Step::Configure {
            call.stdout = Some(CONFIG_FILE.into());
            collect.push(call.dir.join(CONFIG_FILE));
        }
        self.start_call(SECTION, Place::PrepareExecutor, call, Some(limit), collect);
    }

    /// One of the calls that are no stage of the job has ended.
    pub(super) fn driver_ended(&mut self, place: Place, done: &Done, now: Instant) {
        if place == Place::Finish || self.preparing.at == Step::CleanUp {
            self.cleaned_up(done);
        }
        if place == Place::Finish {
            return;
        }
        if self.hard.is_some() || self.canceled {
            self.at = Place::Finish;
            return;
        }
        if self.preparing.at == Step::CleanUp {
            return self.after_try(now);
        }
        let failure = match (done.halted, self.preparing.until) {
            (Some(Halted::Limit), Some(until)) if until <= now => {
                let limit = durations::show(self.settings.sources.prepare_timeout);
                Some(Failure::new(Why::TimedOut, format!("prepare timeout: exceeded timeout of {limit}")))
            }
            (Some(Halted::Limit), _) => {
                Some(Failure::new(Why::System, "the driver did not end in the time that its entry gives it"))
            }
            _ => driver::failure(done),
        };
        match (failure, self.preparing.at) {
            (Some(failure), _) => self.try_failed(failure),
            (None, Step::Configure) => match self.driver.as_mut().map(|d| d.configured(done)) {
                Some(Ok(said)) => self.configure(&said),
                Some(Err(text)) => self.try_failed(Failure::new(Why::System, text)),
                None => {}
            },
            (None, _) => self.driver_is_prepared(),
        }
    }

    /// What the driver has changed goes into the job's paths, variables and scripts.
    fn configure(&mut self, said: &Configuration) {
        let Some(driver) = &mut self.driver else { return };
        let settings = &mut driver.job.settings;
        settings.builds_dir = said.builds_dir.clone().unwrap_or_else(|| settings.builds_dir.clone());
        settings.cache_dir = said.cache_dir.clone().unwrap_or_else(|| settings.cache_dir.clone());
        if let Some(custom) = &mut settings.custom {
            custom.shared = said.builds_dir_is_shared.unwrap_or(false);
        }
        self.preparing.at = Step::Announce;
        if let Some(name) = said.shell.as_deref().filter(|s| !s.is_empty()) {
            match [Shell::Bash, Shell::Sh, Shell::Dash].into_iter().find(|s| s.as_str() == name) {
                Some(shell) => settings.shell = shell,
                None => self.try_failed(Failure::new(Why::Configuration, format!("shell {name} not found"))),
            }
        }
    }

    fn announce(&mut self) {
        let Some(driver) = &mut self.driver else { return };
        let line = match driver.name.as_str() {
            "" => "Using Custom executor...".to_owned(),
            name => format!("Using Custom executor with driver {name}..."),
        };
        if let Some(custom) = &mut driver.job.settings.custom {
            custom.is_placed = true;
        }
        let settings = driver.job.settings.clone();
        let Settled { paths, vars, strategy, misplaced } = settle(&driver.job, &self.payload, &self.flags);
        (self.paths, self.vars, self.strategy) = (paths, vars, strategy);
        self.composer.shell = settings.shell;
        self.composer.quoting = Quoting::of(settings.shell, self.flags.on(Flag::FF_POSIXLY_CORRECT_ESCAPES));
        self.voice(say::plain(&line));
        for line in std::mem::take(&mut self.settings.notes) {
            self.voice(say::plain(&line));
        }
        let missing = [(&settings.builds_dir, "builds_dir"), (&settings.cache_dir, "cache_dir")];
        let missing = missing.into_iter().find(|(dir, _)| dir.as_os_str().is_empty());
        let text = missing.map(|(_, key)| format!("the {key} is not configured")).or(misplaced);
        self.settings = settings;
        self.preparing.at = Step::Prepare;
        if let Some(text) = text {
            self.try_failed(Failure::new(Why::Configuration, text));
        }
    }

    fn driver_is_prepared(&mut self) {
        self.close_preparing();
        self.at = Place::PrepareScript;
    }

    fn close_preparing(&mut self) {
        if std::mem::take(&mut self.preparing.is_open) {
            self.close(SECTION);
        }
    }

    fn try_failed(&mut self, failure: Failure) {
        self.preparing.failure = Some(failure);
        self.preparing.at = Step::CleanUp;
    }

    /// What is the job's or the configuration's fault does not get better by another try.
    fn after_try(&mut self, now: Instant) {
        let Some(failure) = self.preparing.failure.take() else { return };
        let is_final = matches!(failure.why, Why::Script | Why::Configuration | Why::TimedOut);
        if !is_final {
            self.preparing.failed += 1;
            self.voice(say::error(&format!("Preparation failed: {}", failure.text)));
        }
        if is_final || self.preparing.failed >= TRIES {
            self.failure = Some(failure);
            self.at = Place::Finish;
            return;
        }
        let rest = Timing::load().prepare_retry;
        self.voice(say::info(&format!("Will be retried in {} ...", durations::show(rest))));
        self.preparing.at = Step::Configure;
        self.tries.rest(now + rest);
    }

    /// One stage of the job by the driver.
    pub(super) fn start_by_driver(&mut self, section: &str, place: Place, body: Body, limit: Option<Duration>) {
        if section == "step_script" {
            self.voice(say::warning(
                "Starting with version 17.0 the 'build_script' stage will be replaced with 'step_script': \
                 https://gitlab.com/groups/gitlab-org/-/epics/6112",
            ));
        }
        let Some(driver) = &mut self.driver else { return };
        let call = driver.run(section, body.finish(), &self.payload, &self.vars);
        let collect = vec![driver.exit_code_file()];
        self.start_call(section, place, call, limit, collect);
    }

    /// The last call, once, before the job's last line. Whether it was started.
    pub(super) fn free_driver(&mut self) -> bool {
        self.close_preparing();
        self.clean_up(Place::Finish)
    }

    /// In its own time, which a hard stop shortens: the manager waits no longer for a job that it has told to
    /// end.
    fn clean_up(&mut self, place: Place) -> bool {
        let Some(driver) = self.driver.as_mut().filter(|d| d.is_used) else { return false };
        let call = driver.last_call(&self.payload, &self.vars);
        let Some((program, mut call)) = call else { return false };
        call.stdout = Some("cleanup.out".into());
        call.stderr = Some(CLEANUP_FILE.into());
        let collect = vec![call.dir.join(CLEANUP_FILE)];
        let most = match self.hard {
            None | Some(Why::TimedOut | Why::Orphaned) => program.timeout,
            Some(Why::HostShutdown) => return false,
            Some(Why::Aborted) => Duration::from_secs(30),
            Some(_) => Duration::from_secs(8),
        };
        self.start_call("cleanup", place, call, Some(most.min(program.timeout)), collect);
        true
    }

    fn cleaned_up(&mut self, done: &Done) {
        let failure = match done.halted {
            Some(Halted::Limit) => Some("it did not end in its time".to_owned()),
            _ => driver::failure(done).map(|f| f.text),
        };
        let Some(text) = failure else { return };
        self.voice(say::warning(&format!("Cleanup script failed: {text}")));
        // Its words are the host's, and stay out of the log unless they explain something.
        if let Some(Ok(said)) = done.collected.first().map(|c| &c.content) {
            let said = String::from_utf8_lossy(said);
            let last = said.lines().filter(|l| !l.trim().is_empty()).rev().take(3).collect::<Vec<_>>();
            for line in last.into_iter().rev() {
                self.voice(say::plain(line));
            }
        }
    }

    fn call(&mut self, program: &Program) -> Option<Call> {
        let driver = self.driver.as_mut()?;
        Some(driver.call(program, &self.payload, &self.vars))
    }

    fn start_call(
        &mut self,
        section: &str,
        place: Place,
        call: Call,
        limit: Option<Duration>,
        collect: Vec<std::path::PathBuf>,
    ) {
        let streams = if place == Place::PrepareExecutor { super::stages::BODY } else { Streams::One };
        let mut stage = self.stage(section, Run::Driver(Box::new(call)), streams);
        if let Some(driver) = &self.driver {
            let times = (driver.custom.graceful_kill_timeout, driver.custom.force_kill_timeout);
            stage.ladder = Ladder(vec![(Signal::Term, times.0), (Signal::Kill, times.1)]);
        }
        (stage.limit, stage.collect) = (limit, collect);
        self.running = Some(Running { id: stage.id, section: section.to_owned(), place });
        self.todo.push_back(Next::Start(stage));
    }

    /// Whether a path may be there: a driver's files are elsewhere.
    pub(super) fn may_be_there(&self, path: &Path) -> bool {
        self.driver.is_some() || super::paths::exists(path)
    }

    /// What became of a stage's process.
    pub(super) fn verdict(&self, done: &Done) -> Option<Failure> {
        if self.driver.is_some() { driver::failure(done) } else { Failure::of(&done.end) }
    }
}
