//! The job process, without manager and forge: this test binary starts itself again as a job process, with
//! a plan made for the test. What runs is the loop, pump, reaper and sweep that `runner job` runs.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runner::clock::{BootTime, Timing};
use runner::executor::manner::Manner;
use runner::forge::{
    Done, End, Format, How, Ladder, LogId, News, Next, Plan, Put, Record, Run, Script, Signal, Stage, StageId, Stop,
    Stream, Streams, Tap,
};
use runner::job::{self, Place};
use runner::jobdir::JobDir;
use runner::model::{ForgeKind, JobName, Outcome, Secret, Shell, ToJob, Why};
use runner::process::sweep;

use crate::support::processes;

/// How long a job process under test waits for what does not come.
const TIMING: &str = "hard_term=300,kill_wait=2000,host_shutdown=1500,sweep_term=200,drain_ended=200";

const LONG: Duration = Duration::from_secs(30);

// ---- The job process ---------------------------------------------------------------------------

/// What follows each piece of news.
type Reply = Box<dyn FnMut(News) -> Vec<Next> + Send>;

struct TestPlan {
    reply: Reply,
    next: VecDeque<Next>,
    outcome: Outcome,
    stopped: bool,
}

impl Plan for TestPlan {
    fn next(&mut self, news: News, _now: Instant) -> Next {
        if let News::Ended(done) = &news
            && !self.stopped
        {
            match &done.end {
                End::Exited(0) => {}
                End::Exited(code) => self.outcome = Outcome { exit_code: Some(*code), ..failed(Why::Script) },
                other => self.outcome = Outcome { message: format!("{other:?}"), ..failed(Why::System) },
            }
        }
        if let News::Stop(Stop { why, .. }) = &news {
            self.outcome = failed(*why);
            self.stopped = true;
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

/// Masks what `::mask::` names, like a forge that listens to commands; takes its time over `::slow::`.
struct TestTap;

impl Tap for TestTap {
    fn began(&mut self, _stage: &Stage) {}

    fn line(&mut self, _from: (StageId, Stream), line: &[u8], put: &mut Vec<Put>) {
        if line == b"::slow::" {
            std::thread::sleep(Duration::from_millis(4));
        }
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

/// One stage.
fn alone(text: &str) -> Reply {
    together(vec![script(1, text)])
}

/// One stage that a soft stop halts, after which another runs; the plan is patient, its stage's ladder too.
fn cancelable(text: &str) -> Reply {
    let patient = Ladder(vec![(Signal::Term, LONG), (Signal::Kill, LONG)]);
    let mut first = Some(Stage { ladder: patient, ..script(1, text) });
    Box::new(move |news| match news {
        News::Go => first.take().map(Next::Start).into_iter().collect(),
        News::Stop(Stop { how: How::Soft, .. }) => vec![Next::Halt(StageId(1))],
        News::Ended(Done { id: StageId(1), end, halted, .. }) => {
            vec![print(2, format!("ended {end:?} {halted:?}\n")), Next::Start(script(3, "echo after"))]
        }
        News::Ended(Done { id: StageId(3), .. }) => vec![Next::Over],
        _ => Vec::new(),
    })
}

/// Row 40: of two steps in the background one is halted; a third begins before that one has ended.
fn halt_one() -> Reply {
    let stubborn = "trap '' TERM; touch $JOB_DIR/$0.ready; echo up";
    let one = format!("set -- one; {} ; while :; do sleep 0.02; done", stubborn.replace("$0", "one"));
    let two =
        format!("{}; until [ -e $JOB_DIR/go ]; do sleep 0.02; done; echo two is done", stubborn.replace("$0", "two"));
    let ready = "until [ -e $JOB_DIR/one.ready ] && [ -e $JOB_DIR/two.ready ]; do sleep 0.02; done";
    let mut begin = Some(vec![script(1, &one), script(2, &two), script(9, ready)]);
    let mut left = 2;
    Box::new(move |news| match news {
        News::Go => begin.take().into_iter().flatten().map(Next::Start).collect(),
        News::Ended(Done { id: StageId(9), .. }) => {
            vec![Next::Halt(StageId(1)), Next::Start(script(3, "echo three"))]
        }
        News::Ended(Done { id: StageId(id @ 1..=3), end, halted, .. }) => {
            let mut next = vec![print(100 + id, format!("ended {id} {end:?} {halted:?}\n"))];
            if id == 1 {
                next.push(Next::Start(script(4, "touch $JOB_DIR/go")));
            }
            left -= i32::from(id < 3);
            if left == 0 {
                next.push(Next::Over);
            }
            next
        }
        _ => Vec::new(),
    })
}

/// Row 37: A masks a value, tells B by a pipe of their own, B prints it, and tells A. C keeps the pump busy
/// meanwhile, twice: first with B's noise coming in, so that the next look is at B and not at A, and then
/// with the mask and the value coming in before B is read.
fn mask_race(rounds: &str) -> Reply {
    let pipes = "exec 3<>$JOB_DIR/to-b 4<>$JOB_DIR/to-a 5<>$JOB_DIR/to-c 6<>$JOB_DIR/never;";
    let ready = format!("until [ -e $JOB_DIR/ready ]; do sleep 0.01; done; {pipes}");
    let a = format!(
        "mkfifo $JOB_DIR/to-a $JOB_DIR/to-b $JOB_DIR/to-c $JOB_DIR/never; {pipes} touch $JOB_DIR/ready; \
         for i in $(seq ROUNDS); do echo >&5; read -t 0.005 -u 6; echo ::mask::secret-$i-; echo $i >&3; \
         read -u 4 x; done; echo over >&5"
    );
    let b = format!(
        "{ready} while read -u 3 x; do if [ -z $x ]; then echo noise; else echo value secret-$x-; echo >&4; fi; \
         [ \"$x\" != ROUNDS ] || break; done"
    );
    let c = format!(
        "{ready} while read -u 5 x && [ -z $x ]; do echo ::slow::; echo >&3; read -t 0.002 -u 6; echo ::slow::; done"
    );
    let step =
        |id, text: &str| Stage { log: LogId(id), streams: Streams::Two, ..script(id, &text.replace("ROUNDS", rounds)) };
    // In the order in which their pipes are read.
    together(vec![step(1, &c), step(2, &b), step(3, &a)])
}

/// Row 38: three steps side by side, each with a log of its own, for ever.
fn three_steps() -> Reply {
    let step = |id: u32| Stage {
        log: LogId(id),
        ..script(id, &format!("i=0; while :; do echo step {id} line $i; i=$((i + 1)); done"))
    };
    together(vec![step(1), step(2), step(3)])
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
        "drain" => case(together(vec![Stage { drain: Some(Duration::from_millis(200)), ..script(1, text) }])),
        "limit" => case(together(vec![Stage { limit: Some(Duration::from_millis(200)), ..script(1, text) }])),
        "cancelable" => case(cancelable(text)),
        "halt one" => case(halt_one()),
        "mask race" => Case { lines: true, ..case(mask_race(text)) },
        "three steps" => case(three_steps()),
        "three steps in lines" => Case { lines: true, ..case(three_steps()) },
        "panic" => {
            let mut begin = Some(Next::Start(script(1, text)));
            case(Box::new(move |news| match news {
                News::Ended(_) => panic!("this plan knows hunter2"),
                _ => begin.take().into_iter().collect(),
            }))
        }
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
    if let Some(most) = std::env::var("JOB_DISK").ok().and_then(|n| n.parse().ok()) {
        // With a handler the signal ends nothing, and the write fails.
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).unwrap();
        let limit = rustix::process::Rlimit { current: Some(most), maximum: None };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    }
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
        manner: Manner::default(),
        keep_processes: case.keep_processes,
        timing: Timing::load(),
        dir: dir.again().unwrap(),
    };
    let tap: Option<Box<dyn Tap>> = if case.lines { Some(Box::new(TestTap)) } else { None };
    let plan = TestPlan { reply: case.reply, next: VecDeque::new(), outcome: Outcome::success(), stopped: false };
    let format = Format { lines: case.lines, ..Format::default() };
    let masks = vec![Secret::new("hunter2")];
    let outcome = job::run(place, Script { plan: Box::new(plan), tap, format, masks, wipe: Default::default() });
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
        Job::make(case, text, env, |_| ())
    }

    fn make(case: &str, text: &str, env: &[(&str, &str)], fill: impl FnOnce(&JobDir)) -> Job {
        let tmp = tempfile::tempdir().unwrap();
        let dir = JobDir::create(tmp.path(), &JobName::new(ForgeKind::Spool, "file:///x", "1"), |_| Ok(())).unwrap();
        fill(&dir);
        fs::write(dir.file("script"), text).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "job_process::becomes_a_job_process", "--nocapture"])
            .env("JOB_DIR", dir.path())
            .env("RUNNER_TIMING", TIMING)
            // A login shell reads the profile of whoever runs the tests.
            .env("HOME", tmp.path())
            .env("JOB_UNDER_TEST", format!("{case}={}", dir.path().display()))
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(dir.create_stderr().unwrap())
            .spawn()
            .unwrap();
        Job { _tmp: tmp, dir, child }
    }

    fn tell(&self, messages: &[ToJob]) -> UnixStream {
        let mut stream = self.dir.connect_control().unwrap();
        for message in messages {
            writeln!(stream, "{}", serde_json::to_string(message).unwrap()).unwrap();
        }
        stream
    }

    /// Without what bash says of its children.
    fn log(&self) -> String {
        let log = fs::read(self.dir.file("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).replace("Terminated\n", "")
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
        sweep::tagged(Some(&format!("RUNNER_JOB={}", self.dir.path().display())), &[], LONG);
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

#[test]
fn a_stage_lasts_as_long_as_its_pipes_unless_it_has_a_drain() {
    check("(sleep 0.3; echo late) & echo soon", "soon\nlate\n", None);
    let mut job = Job::start("drain", "(sleep 30.1; echo late) & echo soon");
    let begun = Instant::now();
    job.ends();
    assert_eq!(job.log(), "soon\n");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn what_a_script_leaves_running_is_ended_however_it_hides() {
    let n = std::process::id();
    let script = format!(
        "quiet() {{ \"$@\" >/dev/null 2>&1 </dev/null & }}; quiet setsid sleep 310.{n}; quiet env -i setsid sleep 311.{n}
         (quiet setsid bash -c 'trap \"\" TERM; (sleep 312.{n} & sleep 313.{n}) & while :; do sleep 0.05; done')
         sleep 0.2; echo done"
    );
    let mut job = Job::start("script", &script);
    let outcome = job.ends();
    assert_eq!((job.log().as_str(), outcome.survivors.len()), ("done\n", 0));
    for seconds in 310..314 {
        assert_eq!(processes::with_command(&format!("sleep {seconds}.{n}")), []);
    }
    let mut job = Job::start("keep", &format!("setsid sleep 314.{n} >/dev/null 2>&1 & echo done"));
    job.child.wait().unwrap();
    assert_eq!(processes::with_command(&format!("sleep 314.{n}")).len(), 1, "keep_processes opts out");
}

#[test]
fn a_stage_over_its_limit_climbs_its_ladder() {
    let n = std::process::id();
    let script = format!("setsid sleep 320.{n} & echo up; sleep 321.{n}; sleep 1");
    // The last one's leader has ended before: only its pipes hold it open.
    let after = format!("setsid sleep 322.{n} & sleep 323.{n} & echo up");
    let scripts = [script.clone(), format!("trap '' TERM; {script}"), format!("trap 'exit 1' TERM; {script}"), after];
    for script in scripts {
        let mut job = Job::start("limit", &script);
        let begun = Instant::now();
        job.ends();
        assert_eq!(job.log(), "up\n");
        assert!(begun.elapsed() < Duration::from_secs(4), "{script}");
        for seconds in 320..324 {
            assert_eq!(processes::with_command(&format!("sleep {seconds}.{n}")), [], "{script}");
        }
    }
}

#[test]
fn kp24_cancels_of_three_managers_are_one_term_and_one_kill() {
    let mut job = Job::start("cancelable", "trap 'echo TERM' TERM; echo ready; while :; do sleep 0.05; done");
    job.says("ready");
    let cancel = |kill_after| ToJob::Cancel { why: Why::Canceled, kill_after };
    let begun = Instant::now();
    let mut first = job.tell(&[cancel(60_000), cancel(500)]);
    first.write_all(b"{\"cancel\":{\"why\":").unwrap();
    let _second = job.tell(&[cancel(60_000), cancel(60_000)]);
    let third = job.tell(&[cancel(60_000)]);
    let mut line = String::new();
    let mut heard = BufReader::new(third);
    while line != "\"heard\"\n" {
        line.clear();
        heard.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "no answer: {}", job.words());
    }
    let outcome = job.ends();
    assert!(begun.elapsed() > Duration::from_millis(450) && begun.elapsed() < Duration::from_secs(10));
    // The kill timer was hard: nothing follows.
    assert_eq!(job.log(), "ready\nTERM\nended Signaled(9) Some(Plan)\n");
    assert_eq!(outcome.why, Some(Why::Canceled), "{outcome:?}");
}

#[test]
fn a_soft_stop_lets_the_plan_go_on() {
    let mut job = Job::start("cancelable", "trap 'echo TERM; exit 1' TERM; echo ready; while :; do sleep 0.05; done");
    job.says("ready");
    let _stream = job.tell(&[ToJob::Cancel { why: Why::Canceled, kill_after: 30_000 }]);
    job.ends();
    assert_eq!(job.log(), "ready\nTERM\nended Exited(1) Some(Plan)\nafter\n");
}

#[test]
fn a_hard_stop_ends_everything_in_bounded_time() {
    let text = "trap '' TERM; (trap '' TERM; setsid sleep 30.2) & echo ready; while :; do sleep 0.05; done";
    let stops = [
        (Some(ToJob::Abort { why: Why::Aborted }), Why::Aborted),
        (Some(ToJob::RunnerShutdown { why: Why::Terminated, kill_after: 300 }), Why::Terminated),
        (Some(ToJob::OperatingSystemShutdown), Why::HostShutdown),
        (None, Why::TimedOut),
    ];
    for (message, why) in stops {
        let timeout = if message.is_none() { "1" } else { "60" };
        let mut job = Job::start_with("cancelable", text, &[("JOB_TIMEOUT", timeout)]);
        job.says("ready");
        let begun = Instant::now();
        let _stream = job.tell(message.as_slice());
        let outcome = job.ends();
        assert_eq!(outcome.why, Some(why), "{}", job.words());
        assert!(begun.elapsed() < Duration::from_secs(3), "{why:?} took {:?}", begun.elapsed());
        assert!(!job.log().contains("after"), "{}", job.words());
    }
}

#[test]
fn kp11_a_job_ends_when_no_manager_comes_back() {
    let mut job = Job::make("script", "echo ready; sleep 30.3", &[], |dir| {
        dir.set_orphan_until(BootTime::now().after(Duration::from_millis(1000))).unwrap();
    });
    job.says("ready");
    let renewed = BootTime::now().after(Duration::from_millis(1500));
    job.dir.set_orphan_until(renewed).unwrap();
    let outcome = job.ends();
    assert!(renewed.has_passed());
    assert_eq!(outcome.why, Some(Why::Orphaned), "{}", job.words());
}

#[test]
fn kp13_a_panic_quotes_no_secret_and_leaves_nothing_running() {
    let mut job = Job::start("panic", "setsid sleep 30.4 >/dev/null 2>&1 & echo ready");
    let outcome = job.ends();
    assert_eq!((outcome.why, outcome.message.as_str()), (Some(Why::System), "panic: this plan knows [MASKED]"));
    let want = "ready\n\x1b[31;1mERROR: Job failed (system failure): panic: this plan knows [MASKED]\x1b[0;m\n";
    assert_eq!(job.log(), want);
}

#[test]
fn kp09_a_full_disk_costs_log_and_nothing_else() {
    // No file of it may grow beyond 64 KiB: a write fails as on a full disk, for any user.
    let mut job = Job::start_with("script", "head -c 300000 /dev/zero | tr '\\0' x; exit 7", &[("JOB_DISK", "65536")]);
    let outcome = job.ends();
    assert_eq!(outcome.exit_code, Some(7), "{}", job.words());
    let kept = fs::metadata(job.dir.file("log")).unwrap().len();
    let lost = format!("{} bytes", 300_000 - kept);
    assert!(outcome.lost.as_deref().is_some_and(|l| l.contains(&lost)), "{kept}: {outcome:?}");
}

#[test]
fn kp40_halting_one_step_leaves_the_others_alone() {
    let mut job = Job::start("halt one", "");
    job.ends();
    let log = job.log();
    let at = |text: &str| log.find(text).unwrap_or_else(|| panic!("no {text:?} in {log:?}"));
    assert!(at("three\n") < at("ended 1 Signaled(9) Some(Plan)\n"), "{log}");
    assert!(at("ended 3 Exited(0) None\n") < at("ended 1 "), "{log}");
    assert!(at("ended 1 ") < at("two is done\n"), "{log}");
    assert!(at("two is done\n") < at("ended 2 Exited(0) None\n"), "{log}");
}

#[test]
fn kp37_a_value_that_one_step_masked_is_never_in_the_log_of_another() {
    // In two jobs, as every new mask costs more than the one before.
    const ROUNDS: usize = 250;
    for _ in 0..2 {
        let mut job = Job::start("mask race", &ROUNDS.to_string());
        job.ends();
        let log = job.log();
        let leaks: Vec<&str> = log.lines().filter(|l| l.contains("secret-")).collect();
        assert_eq!((leaks, log.matches("value [MASKED]").count()), (Vec::new(), ROUNDS));
        assert_eq!(job.dir.masks().len(), ROUNDS);
    }
}

#[test]
fn kp38_ranges_tell_the_steps_apart_wherever_the_job_process_is_killed() {
    let mut seen = [0; 4];
    for round in 0..40 {
        let case = if round % 2 == 0 { "three steps" } else { "three steps in lines" };
        let mut job = Job::start(case, "");
        for step in 1..=3 {
            job.says(&format!("step {step} line 0"));
        }
        // Instants that no loop of the job process keeps step with.
        std::thread::sleep(Duration::from_micros(round * 1337 % 20_000));
        job.child.kill().unwrap();
        job.child.wait().unwrap();
        for (step, text) in logs(&job) {
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            for (n, line) in whole.lines().enumerate() {
                assert_eq!(line, format!("step {step} line {n}"), "round {round}");
            }
            seen[step as usize] += usize::from(!whole.is_empty());
        }
    }
    assert!(seen[0] == 0 && seen[1..].iter().all(|n| *n == 40), "{seen:?}");
}

/// The log of each step, put together of its ranges.
fn logs(job: &Job) -> BTreeMap<u32, String> {
    let log = job.log();
    let rows = fs::read_to_string(job.dir.file("records.jsonl")).unwrap();
    let rows: Vec<Record> = rows.lines().filter_map(|row| serde_json::from_str(row).ok()).collect();
    let mut logs: BTreeMap<u32, String> = BTreeMap::new();
    let ends = rows.iter().skip(1).map(|r| range(r).0).chain([log.len()]);
    for (row, end) in rows.iter().zip(ends) {
        let (from, step, line) = range(row);
        let text = logs.entry(step).or_default();
        // Where a range begins inside a line, that line is the one that the range before has begun.
        assert_eq!(line, text.matches('\n').count() as u64 + 1, "the row knows its line");
        // A row whose bytes never came.
        text.push_str(&log[from.min(log.len())..end.min(log.len())]);
    }
    logs
}

fn range(record: &Record) -> (usize, u32, u64) {
    match record {
        Record::Log { offset, step, line } => (usize::try_from(*offset).unwrap(), step.0, *line),
        other => panic!("only ranges are expected: {other:?}"),
    }
}
