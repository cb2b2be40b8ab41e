//! The plan of a GitLab job, for its job process: which stages run, in which order, after which news
//! (build §1). A state machine; it starts nothing, waits for nothing and looks at the file system by
//! `lstat` only. What a stage prints or runs is made when its turn comes.
//!
//! A stage with nothing to do has no section; a stage that only prints costs no process.

mod artifacts;
mod cache;
mod call;
mod carry;
mod cleanup;
mod compose;
#[allow(dead_code, reason = "the slots for caches and artifacts use all of it once they are filled")]
mod context;
mod custom;
mod demands;
mod driver;
mod durations;
mod expand;
mod flags;
mod git;
mod gitconfig;
mod inputs;
mod news;
mod paths;
mod quote;
mod refused;
mod remote;
mod say;
mod sources;
mod stages;
mod submodules;
mod timeouts;
mod tries;
mod variables;
mod wishes;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::clock::Timing;
use crate::cloud::Store;
use crate::forge::{
    End, Format, Framing, Ladder, LogId, News, Next, Plan, Run, Script, Signal, Stage, StageId, Streams, Wipe,
};
use crate::gitlab::wire::Payload;
use crate::model::{Job, Outcome, Settings, Why};

use compose::{Body, Composer};
use context::On;
use custom::Preparing;
use driver::Driver;
use flags::{Flag, Flags};
use paths::Paths;
use quote::Quoting;
use refused::Refused;
use remote::Remote;
use stages::BODY;
use timeouts::Timeouts;
use tries::Tries;
use variables::{Variables, given};
use wishes::{Strategy, Wishes};

/// The plan, the masks and the log's format of one job. The error is one line for the job's log.
pub fn script(job: &Job) -> Result<Script, String> {
    let mut payload = Payload::read(&job.payload)?;
    let flags = Flags::resolve(&job.settings.feature_flags, |key| given(job, &payload, key));
    let filled = match flags.on(Flag::FF_ENABLE_JOB_INPUTS_INTERPOLATION) {
        true => inputs::interpolate(&mut payload),
        false => Ok(()),
    };
    let settled = settle(job, &payload, &flags);
    let mut masks = settled.vars.masks();
    // Also where no variable names it: a URL with a password, a job file's.
    let logins = Remote::of(&payload, &job.settings, &settled.vars, false).logins;
    masks.extend(logins.into_iter().map(|l| l.password).filter(|p| p.reveal().len() >= LEAST_SECRET));
    masks.extend(job.settings.cache.store.iter().flat_map(Store::secrets).cloned());
    // A driver's files are elsewhere.
    let wipe = if job.settings.custom.is_some() { Wipe::default() } else { settled.wipe() };
    let mut format = Format {
        framing: if flags.on(Flag::FF_TIMESTAMPS) { Framing::Timestamps } else { Framing::Bare },
        lines: false,
        limit: Some(if job.settings.output_limit == 0 { OUTPUT_LIMIT } else { job.settings.output_limit }),
        url_parameters: true,
        token_prefixes: token_prefixes(&payload, &flags),
        repair_utf8: true,
    };
    let plan: Box<dyn Plan> = match (demands::illegal(&payload), filled) {
        (Some(text), _) => {
            format.framing = Framing::Bare;
            Box::new(Refused::bare(text))
        }
        (None, Err(why)) => Box::new(Refused::unfit(format!("failed to interpolate job inputs: {why}"))),
        (None, Ok(())) => Box::new(GitlabPlan::new(job, payload, flags, settled)),
    };
    Ok(Script { plan, tap: None, format, masks, wipe })
}

/// Where and how the job works; found out again when a driver has said where that is.
struct Settled {
    paths: Paths,
    vars: Variables,
    strategy: Strategy,
    /// Why the job's directory cannot be as the job wants it.
    misplaced: Option<String>,
}

impl Settled {
    /// What must not outlive the job, whatever ends it.
    fn wipe(&self) -> Wipe {
        let files = self.paths.leftovers().chain(self.vars.files().map(PathBuf::from));
        Wipe { below: self.paths.builds.clone(), files: files.collect() }
    }
}

fn settle(job: &Job, payload: &Payload, flags: &Flags) -> Settled {
    let mut paths = Paths::of(job, payload, false);
    let mut vars = Variables::of(job, payload, flags, &paths);
    let strategy = strategy(payload, &vars);
    let mut misplaced = None;
    if job.settings.custom.as_ref().is_some_and(|c| !c.is_placed) {
        return Settled { paths, vars, strategy, misplaced };
    }
    match vars.get("GIT_CLONE_PATH").filter(|place| !place.is_empty()) {
        None if strategy == Strategy::Empty => paths = Paths::of(job, payload, true),
        None => {}
        Some(_) if !job.settings.sources.custom_build_dir => {
            misplaced = Some("setting GIT_CLONE_PATH is not allowed, enable `custom_build_dir` feature".to_owned());
        }
        Some(place) => match paths.chosen(&place) {
            Ok(chosen) => paths = chosen,
            Err(text) => misplaced = Some(text),
        },
    }
    vars = Variables::of(job, payload, flags, &paths);
    Settled { paths, vars, strategy, misplaced }
}

/// Bytes of log, where the entry says nothing.
const OUTPUT_LIMIT: u64 = 4096 * 1024;
/// A shorter password would hide half of the log.
const LEAST_SECRET: usize = 6;
/// Prefixes of GitLab's own tokens.
const TOKENS: [&str; 13] = [
    "gloas-",
    "gldt-",
    "glrt-",
    "glcbt-",
    "glrtr-",
    "glptt-",
    "glft-",
    "glimt-",
    "glagent-",
    "glsoat-",
    "glffct-",
    "_gitlab_session=",
    "gltok-",
];

/// All of them: the reference stops at fifteen, so that a few of the server's own push out the session's.
fn token_prefixes(payload: &Payload, flags: &Flags) -> Vec<String> {
    let mut all: Vec<String> = payload.features.token_mask_prefixes.iter().map(|p| p.trim().to_owned()).collect();
    all.push("glpat-".to_owned());
    if flags.on(Flag::FF_MASK_ALL_DEFAULT_TOKENS) {
        all.extend(TOKENS.iter().map(|p| (*p).to_owned()));
    }
    all.retain(|p| !p.is_empty());
    all.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    all.dedup();
    all
}

/// A job without a repository (a spool's) has no sources to fetch.
fn strategy(payload: &Payload, vars: &Variables) -> Strategy {
    let default = match (payload.git_info.repo_url.is_empty(), payload.allow_git_fetch) {
        (true, _) => Strategy::None,
        (false, true) => Strategy::Fetch,
        (false, false) => Strategy::Clone,
    };
    vars.get("GIT_STRATEGY").and_then(|text| Strategy::parse(&text)).unwrap_or(default)
}

struct GitlabPlan {
    settings: Settings,
    request_id: String,
    /// Why the job's directory cannot be as the job wants it.
    misplaced: Option<String>,
    /// With the executor `custom`.
    driver: Option<Driver>,
    preparing: Preparing,
    /// The whole job's time.
    timeout: Duration,
    ladder: Ladder,
    payload: Payload,
    flags: Flags,
    paths: Paths,
    vars: Variables,
    strategy: Strategy,
    wishes: Wishes,
    /// `None` until the user steps begin.
    timeouts: Option<Timeouts>,
    composer: Composer,
    /// Where the plan goes on when nothing runs.
    at: Place,
    /// Decided, not yet said to the loop.
    todo: VecDeque<Next>,
    running: Option<Running>,
    stages: u32,
    began: Option<Instant>,
    /// Of the stage that may be tried again.
    tries: Tries,
    /// Until when the sources must be there; `None` before the first try.
    sources_until: Option<Instant>,
    /// Until when the user steps may run.
    script_until: Option<Instant>,
    /// Asked for by a person before the user steps ended; a later one is ignored.
    canceled: bool,
    hard: Option<Why>,
    failure: Option<Failure>,
    /// How the job stood when its script was over: decides what is kept, whatever fails later.
    on: On,
    outcome: Option<Outcome>,
}

/// In the order of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Header,
    PrepareExecutor,
    PrepareScript,
    /// Before the second try to get the sources.
    ClearWorktree,
    GetSources,
    RestoreCache,
    DownloadArtifacts,
    /// What is said and measured before the first user step.
    Steps,
    Step(usize),
    AfterScript,
    ArchiveCache,
    UploadArtifacts,
    Cleanup,
    Finish,
    Over,
}

/// The stage that the loop was told to start.
struct Running {
    id: StageId,
    section: String,
    place: Place,
}

/// What the job fails with.
#[derive(Clone, Debug)]
struct Failure {
    why: Why,
    text: String,
    exit_code: Option<i32>,
}

impl Failure {
    fn new(why: Why, text: impl Into<String>) -> Failure {
        Failure { why, text: text.into(), exit_code: None }
    }

    /// `None`: the stage went well (build §1.8).
    fn of(end: &End) -> Option<Failure> {
        Some(match end {
            End::Exited(0) => return None,
            End::Exited(n) => Failure { exit_code: Some(*n), ..Failure::new(Why::Script, format!("exit status {n}")) },
            End::Signaled(n) => Failure { exit_code: Some(-1), ..Failure::new(Why::Script, say::signal(*n)) },
            End::NotStarted(e) => Failure::new(Why::System, format!("failed to start process: {e}")),
            End::Unkillable => Failure::new(Why::System, "failed to kill process, likely process is dormant"),
        })
    }
}

impl Plan for GitlabPlan {
    fn next(&mut self, news: News, now: Instant) -> Next {
        self.began.get_or_insert(now);
        match news {
            News::Go | News::Time => {}
            News::Ended(done) => self.ended(&done, now),
            News::Stop(stop) => self.stop(stop, now),
        }
        // Everything up to the next process is decided at once, so that what is printed comes in few pieces.
        while self.running.is_none() && self.at != Place::Over && self.tries.rested(now) {
            self.go_on(now);
        }
        match (self.todo.pop_front(), &self.running) {
            (Some(next), _) => next,
            (None, Some(_)) => Next::Wait { until: None },
            (None, None) if self.at == Place::Over => Next::Over,
            (None, None) => Next::Wait { until: self.tries.resting() },
        }
    }

    fn outcome(&mut self) -> Outcome {
        self.outcome.clone().unwrap_or_else(|| Outcome::failed(Why::System, "the job's plan was not carried out"))
    }
}

impl GitlabPlan {
    fn new(job: &Job, payload: Payload, flags: Flags, settled: Settled) -> GitlabPlan {
        let Settled { paths, vars, strategy, misplaced } = settled;
        let settings = &job.settings;
        let timing = Timing::load();
        let wishes = Wishes::read(
            &vars,
            &flags,
            (payload.allow_git_fetch, payload.git_info.depth),
            settings.debug_trace_disabled,
        );
        let mut texts =
            payload.steps.iter().map(|s| &s.script).chain(payload.hooks.iter().map(|h| &h.script)).flatten();
        let speaks_of_env = |text: &String| text.contains("GITLAB_ENV");
        let composer = Composer {
            shell: settings.shell,
            quoting: Quoting::of(settings.shell, flags.on(Flag::FF_POSIXLY_CORRECT_ESCAPES)),
            trace: wishes.debug_trace,
            sections: flags.on(Flag::FF_SCRIPT_SECTIONS) && payload.features.trace_sections,
            check_status: flags.on(Flag::FF_ENABLE_BASH_EXIT_CODE_CHECK),
            touch_env: texts.any(speaks_of_env)
                || [
                    &settings.pre_build_script,
                    &settings.post_build_script,
                    &settings.sources.pre_get_sources_script,
                    &settings.sources.post_get_sources_script,
                ]
                .into_iter()
                .any(speaks_of_env),
            git_seed: flags.on(Flag::FF_GIT_URLS_WITHOUT_TOKENS),
            safe_directory: settings.sources.safe_directory_checkout,
        };
        GitlabPlan {
            settings: settings.clone(),
            request_id: job.server.request_id.clone(),
            misplaced,
            driver: Driver::of(job),
            preparing: Preparing::default(),
            timeout: job.timeout,
            ladder: Ladder(vec![(Signal::Term, settings.cancel_timeout), (Signal::Kill, timing.kill_wait)]),
            tries: Tries::new(&timing, flags.on(Flag::FF_USE_EXPONENTIAL_BACKOFF_STAGE_RETRY)),
            payload,
            flags,
            paths,
            vars,
            strategy,
            wishes,
            timeouts: None,
            composer,
            at: Place::Header,
            todo: VecDeque::new(),
            running: None,
            stages: 0,
            began: None,
            sources_until: None,
            script_until: None,
            canceled: false,
            hard: None,
            failure: None,
            on: On::Success,
            outcome: None,
        }
    }

    // ---- What is said and started --------------------------------------------------------------

    fn open(&mut self, section: &str, banner: &str) {
        if self.payload.features.trace_sections {
            self.voice(say::section_start(section));
        }
        self.voice(say::banner(banner));
    }

    fn close(&mut self, section: &str) {
        if self.payload.features.trace_sections {
            self.voice(say::section_end(section));
        }
    }

    /// A line of the runner's about the job.
    fn voice(&mut self, line: Vec<u8>) {
        self.print(BODY, vec![line]);
    }

    /// A line that belongs to a stage's own output.
    fn notice(&mut self, line: Vec<u8>) {
        self.print(Streams::One, vec![line]);
    }

    /// Lines of the same stream in a row are one stage: each has its own time all the same.
    fn print(&mut self, streams: Streams, mut lines: Vec<Vec<u8>>) {
        if let Some(Next::Start(Stage { streams: last, run: Run::Print(before), .. })) = self.todo.back_mut()
            && *last == streams
        {
            before.append(&mut lines);
            return;
        }
        let stage = self.stage("print", Run::Print(lines), streams);
        self.todo.push_back(Next::Start(stage));
    }

    fn start(&mut self, section: &str, place: Place, body: Body, limit: Option<Duration>) {
        if self.driver.is_some() {
            return self.start_by_driver(section, place, body, limit);
        }
        let mut stage = self.stage(section, Run::Script(body.finish()), Streams::One);
        stage.limit = limit;
        self.running = Some(Running { id: stage.id, section: section.to_owned(), place });
        self.todo.push_back(Next::Start(stage));
    }

    fn stage(&mut self, name: &str, run: Run, streams: Streams) -> Stage {
        self.stages += 1;
        Stage {
            id: StageId(self.stages),
            log: LogId::default(),
            name: name.to_owned(),
            run,
            limit: None,
            ladder: self.ladder.clone(),
            drain: None,
            streams,
            collect: Vec::new(),
        }
    }
}
