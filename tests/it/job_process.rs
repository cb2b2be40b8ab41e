//! The job process, without manager and forge: this test binary starts itself again as a job process, with
//! a plan made for the test. What runs is the loop, pump, reaper and sweep that `runner job` runs.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use runner::clock::{BootTime, Timing};
use runner::forge::{
    End, Format, Ladder, LogId, News, Next, Plan, Put, Run, Script, Signal, Stage, StageId, Stop, Stream, Streams, Tap,
};
use runner::job::{self, Place};
use runner::jobdir::JobDir;
use runner::model::{ForgeKind, JobName, Outcome, Secret, Shell, Why};
use runner::process::sweep;

use crate::support::processes;

const LONG: Duration = Duration::from_secs(30);

// ---- The job process ---------------------------------------------------------------------------

/// What follows each piece of news.
type Reply = Box<dyn FnMut(News) -> Vec<Next> + Send>;

struct TestPlan {
    reply: Reply,
    next: VecDeque<Next>,
    outcome: Outcome,
}

impl Plan for TestPlan {
    fn next(&mut self, news: News, _now: Instant) -> Next {
        if let News::Ended(done) = &news {
            match &done.end {
                End::Exited(0) => {}
                End::Exited(code) => self.outcome = Outcome { exit_code: Some(*code), ..failed(Why::Script) },
                other => self.outcome = Outcome { message: format!("{other:?}"), ..failed(Why::System) },
            }
        }
        if let News::Stop(Stop { why, .. }) = &news {
            self.outcome = failed(*why);
        }
        // `Go` with nothing left to say is no news, but for the first.
        let more = match news {
            News::Go if !self.next.is_empty() => Vec::new(),
            news => (self.reply)(news),
        };
        self.next.extend(more);
        self.next.pop_front().unwrap_or(Next::Wait { until: None })
    }

    fn outcome(&mut self) -> Outcome {
        self.outcome.clone()
    }
}

fn failed(why: Why) -> Outcome {
    Outcome::failed(why, "")
}

/// Masks what `::mask::` names, like a forge that listens to commands.
struct TestTap;

impl Tap for TestTap {
    fn began(&mut self, _stage: &Stage) {}

    fn line(&mut self, _from: (StageId, Stream), line: &[u8], put: &mut Vec<Put>) {
        match line.strip_prefix(b"::mask::") {
            Some(value) => put.push(Put::Mask(Secret::new(String::from_utf8_lossy(value)))),
            None => put.push(Put::Line(line.to_vec())),
        }
    }

    fn ended(&mut self, _stage: StageId) {}
}

fn script(id: u32, text: &str) -> Stage {
    Stage {
        id: StageId(id),
        log: LogId(0),
        name: format!("stage {id}"),
        run: Run::Script(text.as_bytes().to_vec()),
        limit: None,
        ladder: Ladder(vec![(Signal::Term, Duration::from_millis(300)), (Signal::Kill, Duration::from_secs(5))]),
        drain: None,
        streams: Streams::One,
        collect: Vec::new(),
    }
}

fn print(id: u32, text: impl Into<String>) -> Next {
    let run = Run::Print(vec![text.into().into_bytes()]);
    Next::Start(Stage { run, streams: Streams::Voice(0), ..script(id, "") })
}

/// Starts these together, and is over when all have ended.
fn together(stages: Vec<Stage>) -> Reply {
    let mut left = stages.len();
    let mut stages = Some(stages);
    Box::new(move |news| {
        if let Some(stages) = stages.take() {
            return stages.into_iter().map(Next::Start).collect();
        }
        left -= usize::from(matches!(news, News::Ended(_)));
        if left == 0 { vec![Next::Over] } else { Vec::new() }
    })
}

/// One stage; a stop ends it or, when it is soft, lets another follow.
fn alone(text: &str) -> Reply {
    together(vec![script(1, text)])
}

struct Case {
    reply: Reply,
    lines: bool,
    keep_processes: bool,
}

fn case(name: &str, text: &str) -> Case {
    let case = |reply| Case { reply, lines: false, keep_processes: false };
    match name {
        "script" => case(alone(text)),
        "keep" => Case { keep_processes: true, ..case(alone(text)) },
        other => panic!("no case is called {other}"),
    }
}

/// No test: the entry point of the job process under test.
#[test]
fn becomes_a_job_process() {
    let Ok(spec) = std::env::var("JOB_UNDER_TEST") else { return };
    let (name, path) = spec.split_once('=').unwrap();
    let dir = JobDir::open(Path::new(path)).unwrap();
    rustix::process::setsid().unwrap();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    dir.reserve_outcome().unwrap();
    let _lock = dir.try_lock().unwrap().expect("nobody else runs this job");
    let text = fs::read_to_string(dir.file("script")).unwrap_or_default();
    let case = case(name, &text);
    let place = Place {
        control: Some(dir.bind_control().unwrap()),
        term: None,
        oom: None,
        started: BootTime::now(),
        tag: format!("RUNNER_JOB={}", dir.path().display()),
        timeout: env_seconds("JOB_TIMEOUT").unwrap_or(LONG),
        shell: Shell::Bash,
        keep_processes: case.keep_processes,
        timing: Timing::load(),
        dir: dir.again().unwrap(),
    };
    let tap: Option<Box<dyn Tap>> = if case.lines { Some(Box::new(TestTap)) } else { None };
    let plan = TestPlan { reply: case.reply, next: VecDeque::new(), outcome: Outcome::success() };
    let format = Format { lines: case.lines, ..Format::default() };
    let masks = vec![Secret::new("hunter2")];
    let outcome = job::run(place, Script { plan: Box::new(plan), tap, format, masks });
    dir.write_outcome(&outcome).unwrap();
    std::process::exit(0);
}

fn env_seconds(name: &str) -> Option<Duration> {
    Some(Duration::from_secs_f64(std::env::var(name).ok()?.parse().ok()?))
}

// ---- The test's side ---------------------------------------------------------------------------

struct Job {
    _tmp: tempfile::TempDir,
    dir: JobDir,
    child: Child,
}

impl Job {
    fn start(case: &str, text: &str) -> Job {
        Job::start_with(case, text, &[])
    }

    fn start_with(case: &str, text: &str, env: &[(&str, &str)]) -> Job {
        let tmp = tempfile::tempdir().unwrap();
        let dir = JobDir::create(tmp.path(), &JobName::new(ForgeKind::Spool, "file:///x", "1"), |_| Ok(())).unwrap();
        fs::write(dir.file("script"), text).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "job_process::becomes_a_job_process", "--nocapture"])
            .env("JOB_UNDER_TEST", format!("{case}={}", dir.path().display()))
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(dir.create_stderr().unwrap())
            .spawn()
            .unwrap();
        Job { _tmp: tmp, dir, child }
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.file("log")).unwrap_or_default()).into_owned()
    }

    fn says(&self, text: &str) {
        let wait = Instant::now();
        while !self.log().contains(text) {
            assert!(wait.elapsed() < LONG, "the job never said {text:?}: {}", self.words());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn words(&self) -> String {
        format!("{:?}, stderr {:?}", self.log(), fs::read_to_string(self.dir.file("stderr")).unwrap_or_default())
    }

    /// Waits for its end, and asserts that nothing of it lives.
    fn ends(&mut self) -> Outcome {
        self.child.wait().unwrap();
        let outcome = self.dir.outcome().unwrap();
        let outcome = outcome.unwrap_or_else(|| panic!("no outcome: {}", self.words()));
        assert_eq!(self.alive(), [] as [String; 0], "{}", self.words());
        outcome
    }

    /// What carries the job's tag.
    fn alive(&self) -> Vec<String> {
        let tag = format!("RUNNER_JOB={}", self.dir.path().display());
        let tagged = |p: &processes::Process| runner::process::table::has_in_environment(p.pid, &tag);
        processes::all().into_iter().filter(|p| !p.is_zombie() && tagged(p)).map(|p| p.command).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        sweep::tagged(&format!("RUNNER_JOB={}", self.dir.path().display()), &[], LONG);
    }
}

fn check(text: &str, log: &str, exit_code: Option<i32>) {
    let mut job = Job::start("script", text);
    let outcome = job.ends();
    assert_eq!((job.log().as_str(), outcome.exit_code), (log, exit_code), "{text}: {outcome:?}");
}

#[test]
fn a_script_runs_and_its_status_and_output_are_kept() {
    check("echo hi; echo oops >&2; exit 37", "hi\noops\n", Some(37));
    check("cat; echo $0", "bash\n", None);
    check("echo a hunter2 b", "a [MASKED] b\n", None);
    check("printf half", "half", None);
    // What this test was itself started with, a stage has too; nothing of the job process.
    let usual = Command::new("bash").args(["-c", "ls /proc/self/fd | xargs"]).output().unwrap();
    check("ls /proc/self/fd | xargs", &String::from_utf8_lossy(&usual.stdout), None);
    check(
        "[ -t 0 ] || echo none; [ \"$(cut -d\" \" -f5 /proc/$$/stat)\" = $$ ] && echo leader",
        "none\nleader\n",
        None,
    );
}
