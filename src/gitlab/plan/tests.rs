//! The plan driven by hand: what it prints and starts after which news. The scripts run in the shells of
//! this host, so that what is expected is what a job's log shows.

mod caches;
mod refusals;
mod scripts;
mod sources;

use std::collections::VecDeque;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::forge::{Done, End, Halted, How, News, Next, Run, Stage, Stop, Streams};
use crate::model::{ForgeKind, Job, Outcome, Settings, Shell, VERSION, Verdict, Why};

/// A job that works below `dir`; `more` is laid over a payload that has the script alone.
pub(super) fn job(dir: &Path, more: Value) -> Job {
    let mut payload = json!({
        "id": 7, "token": "t", "features": {"trace_sections": true},
        "job_info": {"project_id": 3}, "git_info": {"repo_url": "http://h/group/demo.git"},
        "variables": [{"key": "GIT_STRATEGY", "value": "none"}],
        "steps": [],
    });
    for (key, value) in more.as_object().unwrap() {
        match (payload[key].as_array_mut(), value.as_array()) {
            (Some(have), Some(add)) => have.extend(add.iter().cloned()),
            _ => payload[key] = value.clone(),
        }
    }
    Job {
        version: VERSION,
        forge: ForgeKind::Gitlab,
        id: "7".to_owned(),
        project: "3".to_owned(),
        name: "job".to_owned(),
        timeout: Duration::from_secs(600),
        slot: 1,
        project_slot: 0,
        settings: Settings {
            entry: "entry-0".to_owned(),
            url: "http://h".to_owned(),
            short_token: "golden-to".to_owned(),
            system_id: "s_1".to_owned(),
            executor: "shell".to_owned(),
            builds_dir: dir.join("builds"),
            cache_dir: dir.join("cache"),
            output_limit: 1 << 20,
            cancel_timeout: Duration::from_secs(5),
            ..Settings::default()
        },
        server: Default::default(),
        payload: serde_json::value::to_raw_value(&payload).unwrap(),
    }
}

fn script(lines: &[&str]) -> Value {
    json!({"name": "script", "script": lines})
}

fn after(lines: &[&str]) -> Value {
    json!({"name": "after_script", "script": lines})
}

/// What came of a job: the log as people see it, and how many processes it took.
struct Ran {
    log: String,
    outcome: Outcome,
    processes: usize,
}

/// Something that happens when the stage of this name has been started.
type Event = (&'static str, What);

#[derive(Clone, Copy)]
enum What {
    Stop(How, Why),
    /// Its own limit ends it.
    Limit,
}

fn run(job: &Job) -> Ran {
    run_with(job, &[])
}

/// The job process's loop in small: scripts run in the real shell, unless an event is due.
fn run_with(job: &Job, events: &[Event]) -> Ran {
    let mut script = crate::forges::plan(job).unwrap();
    let (mut bytes, mut processes, mut news) = (Vec::new(), 0, VecDeque::new());
    let mut open: Option<Stage> = None;
    loop {
        let next = script.plan.next(news.pop_front().unwrap_or(News::Go), Instant::now());
        match next {
            Next::Start(Stage { run: Run::Print(writes), .. }) => bytes.extend(writes.concat()),
            Next::Start(stage) => {
                processes += 1;
                match events.iter().find(|(name, _)| stage.name == *name) {
                    None => {
                        let end = shell(job.settings.shell, &stage, &mut bytes);
                        news.push_back(News::Ended(done(&stage, end, None)));
                    }
                    Some((_, What::Limit)) => {
                        assert!(stage.limit.is_some());
                        news.push_back(News::Ended(done(&stage, End::Exited(1), Some(Halted::Limit))));
                    }
                    Some((_, What::Stop(how, why))) => {
                        news.push_back(News::Stop(Stop { how: *how, why: *why }));
                        if *how == How::Hard {
                            news.push_back(News::Ended(done(&stage, End::Exited(1), Some(Halted::Stop))));
                        }
                        open = Some(stage);
                    }
                }
            }
            Next::Halt(id) => {
                let stage = open.take().filter(|s| s.id == id).expect("only what runs is halted");
                news.push_back(News::Ended(done(&stage, End::Exited(1), Some(Halted::Plan))));
            }
            Next::Wait { until } => assert!(until.is_none() && !news.is_empty(), "it waits for nothing that comes"),
            Next::Record(_) => panic!("GitLab keeps no records"),
            Next::Over => break,
        }
    }
    Ran { log: readable(&bytes), outcome: script.plan.outcome(), processes }
}

fn done(stage: &Stage, end: End, halted: Option<Halted>) -> Done {
    Done { id: stage.id, end, halted, collected: Vec::new(), said: Vec::new() }
}

/// As the executor does, but without the profiles of this host: the script is the shell's stdin, both streams
/// are one file.
#[expect(clippy::disallowed_methods, reason = "a test runs the real shells")]
fn shell(shell: Shell, stage: &Stage, bytes: &mut Vec<u8>) -> End {
    let Run::Script(text) = &stage.run else { panic!("{:?}", stage.run) };
    assert_eq!(stage.streams, Streams::One);
    let file = || tempfile::tempfile().unwrap();
    let (mut stdin, mut output) = (file(), file());
    stdin.write_all(text).unwrap();
    stdin.rewind().unwrap();
    let status = std::process::Command::new(shell.as_str())
        .stdin(stdin)
        .stdout(output.try_clone().unwrap())
        .stderr(output.try_clone().unwrap())
        .process_group(0)
        .status()
        .unwrap();
    output.rewind().unwrap();
    output.read_to_end(bytes).unwrap();
    status.code().map_or_else(|| End::Signaled(status.signal().unwrap()), End::Exited)
}

/// Without colours; section markers as `<start NAME>`, each on a line of its own.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace("\r\x1b[0K", "\n");
    let mut out = String::new();
    for line in text.lines() {
        let mut plain = String::new();
        let mut rest = line;
        while let Some(at) = rest.find("\x1b[") {
            plain.push_str(&rest[..at]);
            rest = rest[at..].split_once(['m', 'K']).map_or("", |(_, r)| r);
        }
        plain.push_str(rest);
        let marker = plain.strip_prefix("section_").and_then(|m| m.split_once(':'));
        match marker.and_then(|(what, m)| Some((what, m.split_once(':')?.1))) {
            Some((what, name)) => out.push_str(&format!("<{what} {name}>\n")),
            None => out.push_str(&format!("{plain}\n")),
        }
    }
    out
}

fn after_marker<'a>(log: &'a str, marker: &str) -> &'a str {
    log.split_once(marker).unwrap_or_else(|| panic!("no {marker} in {log}")).1
}

/// The log from the user steps on.
fn steps(log: &str) -> &str {
    after_marker(log, "<end get_sources>\n")
}

const CLEANUP: &str = "<start cleanup_file_variables>\nCleaning up project directory and file based variables\n\
                       <end cleanup_file_variables>\n";

fn check(job: &Job, events: &[Event], want: &str) -> Ran {
    let ran = run_with(job, events);
    assert_eq!(steps(&ran.log), want.replace("<cleanup>\n", CLEANUP), "{}", ran.log);
    ran
}

#[test]
fn an_empty_job_says_what_it_does_and_starts_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run(&job(dir.path(), json!({"steps": [script(&["echo hello", "echo two"])]})));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let want = format!(
        "Running with runner {}
  on entry-0 golden-to, system ID: s_1
<start prepare_executor>
Preparing the \"shell\" executor
Using Shell (bash) executor...
<end prepare_executor>
<start prepare_script>
Preparing environment
Running on {}...
<end prepare_script>
<start get_sources>
Getting source from Git repository
Skipping Git repository setup
Skipping Git checkout
Skipping Git submodules setup
<end get_sources>
<start step_script>
Executing \"step_script\" stage of the job script
$ echo hello
hello
$ echo two
two
<end step_script>
{CLEANUP}Job succeeded
",
        super::variables::version(),
        host.trim()
    );
    assert_eq!(ran.log, want);
    assert_eq!((ran.outcome.verdict, ran.processes), (Verdict::Success, 1));
    assert!(dir.path().join("builds/golden-to/0/group/demo.tmp").is_dir());
}

#[test]
fn after_script_runs_in_a_shell_of_its_own_and_knows_how_the_script_ended() {
    let dir = tempfile::tempdir().unwrap();
    let after = after(&["echo [$X] $CI_JOB_STATUS"]);
    let job = |line| job(dir.path(), json!({"steps": [script(&[line]), after]}));
    let log = |line: &str, out: &str, said: &str, status: &str, end: &str| {
        format!(
            "<start step_script>
Executing \"step_script\" stage of the job script
$ {line}
{out}<end step_script>
{said}<start after_script>
Running after_script
Running after script...
$ echo [$X] $CI_JOB_STATUS
[] {status}
<end after_script>
<cleanup>
{end}
"
        )
    };
    let ran = check(&job("X=1; echo a"), &[], &log("X=1; echo a", "a\n", "", "success", "Job succeeded"));
    assert_eq!((ran.outcome.verdict, ran.outcome.exit_code), (Verdict::Success, None));

    let ran = check(&job("exit 4"), &[], &log("exit 4", "", "", "failed", "ERROR: Job failed: exit status 4"));
    assert_eq!((ran.outcome.why, ran.outcome.exit_code), (Some(Why::Script), Some(4)));
    assert_eq!(ran.outcome.message, "exit status 4");

    let long = job("sleep 9");
    let cancel = ("step_script", What::Stop(How::Soft, Why::Canceled));
    let mut said = "WARNING: script canceled externally (UI, API)\n".to_owned();
    let mut want = log("sleep 9", "", &said, "canceled", "ERROR: Job failed: canceled");
    want = want.replace("$ sleep 9\n", "");
    let ran = check(&long, &[cancel], &want);
    assert_eq!((ran.outcome.verdict, ran.outcome.why), (Verdict::Canceled, Some(Why::Canceled)));
    assert_eq!(ran.outcome.exit_code, None);

    let mut long: Job = long;
    long.settings.environment = vec!["RUNNER_SCRIPT_TIMEOUT=2s".to_owned()];
    said = String::from_utf8(super::say::cut_short("step_script")).unwrap();
    said = said.replace("\x1b[0;33m", "").replace("\x1b[0;m", "");
    let end = "ERROR: Job failed: script timeout: context deadline exceeded";
    want = log("sleep 9", "", &said, "timedout", end).replace("$ sleep 9\n", "");
    let ran = check(&long, &[("step_script", What::Limit)], &want);
    assert_eq!((ran.outcome.verdict, ran.outcome.why), (Verdict::Failed, Some(Why::TimedOut)));
}

#[test]
fn a_hard_stop_leaves_only_words() {
    let dir = tempfile::tempdir().unwrap();
    let job = job(dir.path(), json!({"steps": [script(&["sleep 9"]), after(&["echo never"])]}));
    let cut = "WARNING: step_script could not run to completion because the timeout was exceeded. For more control over \
               job and script timeouts see: https://docs.gitlab.com/ci/runners/configure_runners/#set-script-and-after_\
               script-timeouts\n";
    let lost = "WARNING: after_script failed, but job will continue unaffected: context canceled\n";
    for (why, said, end, system) in [
        (Why::TimedOut, cut, "execution took longer than 10m0s seconds", false),
        (Why::Aborted, lost, "canceled", false),
        (Why::Terminated, lost, "aborted: terminated", false),
        (Why::Interrupted, lost, "aborted: interrupt", false),
        (Why::HostShutdown, "", "the host is shutting down", true),
        (Why::Orphaned, "", "no runner came back to report the job, so it was ended", true),
    ] {
        let prefix = if system { "Job failed (system failure)" } else { "Job failed" };
        let want = format!(
            "<start step_script>
Executing \"step_script\" stage of the job script
<end step_script>
{said}ERROR: {prefix}: {end}
"
        );
        let ran = check(&job, &[("step_script", What::Stop(How::Hard, why))], &want);
        assert_eq!((ran.outcome.why, ran.outcome.exit_code), (Some(why), None));
        assert_eq!(ran.outcome.message, end);
    }
}

#[test]
fn a_cancel_before_the_user_steps_ends_the_job_and_one_after_them_is_too_late() {
    let dir = tempfile::tempdir().unwrap();
    let more = json!({
        "variables": [{"key": "GIT_STRATEGY", "value": "empty"}],
        "steps": [script(&["echo a"]), after(&["echo b"])],
    });
    let job = job(dir.path(), more);
    std::fs::create_dir_all(dir.path().join("builds/golden-to/0/group/demo-empty/old")).unwrap();
    let soft = What::Stop(How::Soft, Why::Canceled);
    let ran = run_with(&job, &[("get_sources", soft)]);
    assert!(steps(&ran.log).starts_with("ERROR: Job failed: canceled\n"), "{}", ran.log);
    assert_eq!((ran.outcome.verdict, ran.processes), (Verdict::Canceled, 1));

    let mut script = crate::forges::plan(&job).unwrap();
    let stop = News::Stop(Stop { how: How::Soft, why: Why::Canceled });
    let mut said = Vec::new();
    let mut next = script.plan.next(stop, Instant::now());
    while let Next::Start(Stage { run: Run::Print(writes), .. }) = next {
        said.extend(writes.concat());
        next = script.plan.next(News::Go, Instant::now());
    }
    assert!(matches!(next, Next::Over), "{next:?}");
    assert!(readable(&said).ends_with("system ID: s_1\nERROR: Job failed: canceled\n"));

    // Here the cancel is news while after_script runs: it is not halted, and ends by itself.
    let mut script = crate::forges::plan(&job).unwrap();
    let mut news = News::Go;
    loop {
        news = match script.plan.next(news, Instant::now()) {
            Next::Start(stage) if stage.name == "after_script" => {
                let stop = News::Stop(Stop { how: How::Soft, why: Why::Canceled });
                assert!(matches!(script.plan.next(stop, Instant::now()), Next::Wait { until: None }));
                News::Ended(done(&stage, End::Exited(0), None))
            }
            Next::Start(Stage { run: Run::Print(_), .. }) => News::Go,
            Next::Start(stage) => News::Ended(done(&stage, End::Exited(0), None)),
            Next::Over => break,
            next => panic!("{next:?}"),
        };
    }
    assert_eq!(script.plan.outcome().verdict, Verdict::Success);
}

#[test]
fn a_stop_that_comes_before_the_script_began_takes_it_back() {
    let dir = tempfile::tempdir().unwrap();
    for (how, why, want) in
        [(How::Hard, Why::Terminated, "aborted: terminated"), (How::Soft, Why::Canceled, "canceled")]
    {
        let mut script = crate::forges::plan(&job(dir.path(), json!({"steps": [script(&["echo a"])]}))).unwrap();
        // The header and all before the script are one decision; nothing of it was started yet.
        assert!(matches!(script.plan.next(News::Go, Instant::now()), Next::Start(_)));
        let mut news = News::Stop(Stop { how, why });
        loop {
            match script.plan.next(news, Instant::now()) {
                Next::Start(stage) => assert!(matches!(stage.run, Run::Print(_)), "{stage:?}"),
                Next::Over => break,
                next => panic!("{next:?}"),
            }
            news = News::Go;
        }
        assert_eq!(script.plan.outcome().message, want);
    }
}

#[test]
fn after_script_fails_alone_unless_the_job_wants_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let job = |ignore: &str| {
        let variables = json!([{"key": "AFTER_SCRIPT_IGNORE_ERRORS", "value": ignore}]);
        job(dir.path(), json!({"variables": variables, "steps": [script(&["true"]), after(&["exit 3"])]}))
    };
    let ran = run(&job(""));
    let said = "WARNING: after_script failed, but job will continue unaffected: exit status 3\n";
    assert!(after_marker(&ran.log, "<end after_script>\n").starts_with(said), "{}", ran.log);
    assert_eq!(ran.outcome.verdict, Verdict::Success);

    let ran = run(&job("false"));
    assert!(!ran.log.contains("WARNING") && ran.log.ends_with("ERROR: Job failed: exit status 3\n"), "{}", ran.log);
    assert_eq!(ran.outcome.exit_code, Some(3));

    let ran = run_with(&job(""), &[("after_script", What::Limit)]);
    assert!(ran.log.contains("WARNING: after_script could not run to completion"), "{}", ran.log);
    assert!(ran.log.ends_with("Job succeeded\n"));
}

#[test]
fn a_stage_that_cannot_start_is_the_runners_fault() {
    let dir = tempfile::tempdir().unwrap();
    let mut script = crate::forges::plan(&job(dir.path(), json!({"steps": [script(&["true"])]}))).unwrap();
    let mut news = News::Go;
    loop {
        news = match script.plan.next(news, Instant::now()) {
            Next::Start(Stage { run: Run::Print(_), .. }) => News::Go,
            Next::Start(stage) => News::Ended(done(&stage, End::NotStarted("bash: not found".to_owned()), None)),
            Next::Over => break,
            next => panic!("{next:?}"),
        };
    }
    let outcome = script.plan.outcome();
    assert_eq!(
        (outcome.why, outcome.message.as_str()),
        (Some(Why::System), "failed to start process: bash: not found")
    );
}

#[test]
fn every_step_runs_in_order_until_one_fails_and_release_is_expanded() {
    let dir = tempfile::tempdir().unwrap();
    let release = json!({"name": "Release", "script": ["echo no expansion"]});
    let expanded = json!({"name": "release", "script": ["echo release of $CI_RUNNER_SHORT_TOKEN"]});
    let steps = json!([script(&["echo build"]), expanded, release, {"name": "x", "script": ["false"]}, {"name": "y", "script": []}]);
    let ran = run(&job(dir.path(), json!({"steps": steps})));
    assert!(ran.log.contains("$ echo release of golden-to\nrelease of golden-to\n<end step_release>\n"), "{}", ran.log);
    assert!(ran.log.contains("<start step_x>") && !ran.log.contains("step_y"), "{}", ran.log);
    assert_eq!(ran.processes, 4);
}

#[test]
fn policy_jobs_and_wrong_time_limits_are_told_before_the_script() {
    let dir = tempfile::tempdir().unwrap();
    let policy = json!({"execution_policy_job": true, "policy_name": "P", "policy_variables_override_allowed": false,
        "policy_variables_override_exceptions": ["A", "B"]});
    let variables = json!([{"key": "RUNNER_SCRIPT_TIMEOUT", "value": "2h"}]);
    let ran =
        run(&job(dir.path(), json!({"policy_options": policy, "variables": variables, "steps": [script(&["true"])]})));
    let want = "\
Job triggered by policy \"P\".
User-defined CI/CD variables are ignored in this job (except for A, B) according to the policy.
WARNING: RUNNER_SCRIPT_TIMEOUT timeout: 2h is longer than job timeout. Setting to job timeout
<start step_script>
";
    assert!(steps(&ran.log).starts_with(want), "{}", ran.log);
}

#[test]
fn settings_that_are_no_valid_value_are_one_warning_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let variables = json!([
        {"key": "GET_SOURCES_ATTEMPTS", "value": "many"}, {"key": "RESTORE_CACHE_ATTEMPTS", "value": "11"},
        {"key": "CI_DEBUG_TRACE", "value": "maybe"}, {"key": "CI_DEBUG_SERVICES", "value": "true"},
        {"key": "GIT_CHECKOUT", "value": ""}, {"key": "FF_USE_FASTZIP", "value": "x"},
        {"key": "GIT_SUBMODULE_STRATEGY", "value": "some"}, {"key": "AFTER_SCRIPT_IGNORE_ERRORS", "value": "yes"},
        {"key": "CACHE_REQUEST_TIMEOUT", "value": "1h"},
    ]);
    let mut job =
        job(dir.path(), json!({"variables": variables, "artifacts": [{"paths": ["x"]}], "cache": [{"paths": ["y"]}]}));
    job.settings.debug_trace_disabled = true;
    let ran = run(&job);
    let want = "\
WARNING: CI_DEBUG_TRACE: expected bool got \"maybe\", using default value: false
GIT_SUBMODULE_STRATEGY: expected either 'normal', 'recursive' or 'none' got \"some\"
GET_SOURCES_ATTEMPTS: expected int got \"many\", using default value: 1
AFTER_SCRIPT_IGNORE_ERRORS: expected bool got \"yes\", using default value: true
CACHE_REQUEST_TIMEOUT: expected int got \"1h\", using default value: 10
CI_DEBUG_SERVICES: usage is disabled on this Runner
RESTORE_CACHE_ATTEMPTS: number of attempts out of the range [1, 10], clamping to: 10
FF_USE_FASTZIP: could not parse feature flag, expected bool, got x
<start prepare_executor>
";
    assert!(ran.log.contains(want), "{}", ran.log);
}
