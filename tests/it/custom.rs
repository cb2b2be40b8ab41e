//! The custom executor: what a driver is called with, what its exit codes mean, that it is asked to clean up
//! whatever happens. The driver is a shell script that does what the job's variables say.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::support::binary::{Host, Runner};
use crate::support::gitlab::{GitLab, Job, State, TOKEN};
use crate::support::payload::Payload;
use crate::support::{SOON, eventually, processes};

const DRIVER: &str = r#"#!/bin/sh
call=$1; shift
echo "$call${2:+ $2}" >> "$CALLS"
env | sed -n 's/^\(TMPDIR\|[A-Z_]*FILE\|[A-Z_]*EXIT_CODE\|CUSTOM_ENV_[A-Z_]*\|FROM_CONFIG\)=/\1=/p' > "$CALLS.$call.env"
pwd >> "$CALLS.dirs"
case $call in
config) cat "$CALLS.json" 2> /dev/null; echo "config words" >&2; exit ${CUSTOM_ENV_CONFIG_EXIT:-0};;
prepare) echo "prepare words"; eval "$CUSTOM_ENV_ON_PREPARE"; exit ${CUSTOM_ENV_PREPARE_EXIT:-0};;
run)
    echo "run: $2"
    if [ "$2" = "${CUSTOM_ENV_AT:-build_script}" ] && [ -n "$CUSTOM_ENV_RUN_EXIT" ]; then
        [ -z "$CUSTOM_ENV_CODE" ] || echo "$CUSTOM_ENV_CODE" > "$BUILD_EXIT_CODE_FILE"
        exit $CUSTOM_ENV_RUN_EXIT
    fi
    bash "$1" || exit $BUILD_FAILURE_EXIT_CODE;;
cleanup) echo "cleanup words"; echo "cleanup errors" >&2; eval "$CUSTOM_ENV_ON_CLEANUP"; exit ${CUSTOM_ENV_CLEANUP_EXIT:-0};;
esac
"#;

const TIMING: &str = "prepare_retry=30";

/// A host with the driver above; `lines` are keys of `[runners.custom]`, `entry` those of its entry.
fn host(fake: &GitLab, entry: &str, lines: &str) -> Host {
    let host = Host::bare().timing(TIMING);
    let driver = host.path("driver");
    fs::write(&driver, DRIVER).unwrap();
    fs::set_permissions(&driver, fs::Permissions::from_mode(0o755)).unwrap();
    let mut table = String::from("[runners.custom]\n");
    for call in ["config", "prepare", "run", "cleanup"] {
        table += &format!("{call}_exec = {driver:?}\n{call}_args = [\"{call}\"]\n");
    }
    let calls = host.path("calls").display().to_string();
    host.env("CALLS", &calls).entry(fake, TOKEN, &format!("executor = \"custom\"\n{entry}\n{table}{lines}"))
}

fn configure(host: &Host, value: &serde_json::Value) {
    fs::write(host.path("calls.json"), value.to_string()).unwrap();
}

/// What the driver was called for, since the last time this was asked.
/// The driver's calls since the last look; asked when none is under way.
fn calls(host: &Host) -> Vec<String> {
    let seen = calls_yet(host);
    let _ = fs::remove_file(host.path("calls"));
    seen
}

fn calls_yet(host: &Host) -> Vec<String> {
    let text = fs::read_to_string(host.path("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn given(host: &Host, call: &str) -> String {
    fs::read_to_string(host.path(&format!("calls.{call}.env"))).unwrap()
}

fn begin(host: &Host) -> Runner {
    host.start()
}

#[track_caller]
fn run(fake: &GitLab, payload: Payload) -> Job {
    let id = fake.queue(payload);
    fake.finished(id, SOON)
}

#[test]
fn a_driver_is_called_for_each_stage_and_told_all_that_it_may_need() {
    let fake = GitLab::start();
    let host = host(&fake, "environment = [\"OF_ENTRY=a\"]", "");
    let runner = begin(&host);
    let services = json!([{"name": "db:1", "alias": "db other", "command": ["run"], "variables": [
        {"key": "PASS", "value": "$GREETING", "public": true, "masked": false}]}]);
    let release = json!({"name": "release", "script": ["echo of-release"], "timeout": 60, "when": "on_success",
        "allow_failure": false});
    let script = json!({"name": "script", "script": ["echo \"$GREETING and $(cat \"$SECRET_FILE\")\"", "pwd"],
        "timeout": 60, "when": "on_success", "allow_failure": false});
    let payload = Payload::script(&[])
        .set("steps", json!([script, release]))
        .set("services", services)
        .var("GREETING", "hello")
        .file("SECRET_FILE", "line one\nline two")
        .var("GREETING", "hello again");
    let job = run(&fake, payload);
    let text = job.text();
    assert_eq!(job.state, State::Success, "{text}");
    assert_eq!(
        calls(&host),
        [
            "config",
            "prepare",
            "run prepare_script",
            "run get_sources",
            "run build_script",
            "run step_release",
            "run cleanup_file_variables",
            "cleanup"
        ],
        "trap 56: only step_script has another name"
    );
    for want in [
        "Preparing the \"custom\" executor\nconfig words\nUsing Custom executor...\nprepare words\n",
        "run: prepare_script\nRunning on ",
        "WARNING: Starting with version 17.0 the 'build_script' stage will be replaced with 'step_script'",
        "hello again and line one\nline two",
        &format!("{}/group/demo\n", host.path("builds").display()),
    ] {
        assert!(text.contains(want), "{want}: {text}");
    }
    assert!(!text.contains("cleanup words") && !text.contains("cleanup errors"), "{text}");
    let env = given(&host, "run");
    let work = env.lines().find_map(|l| l.strip_prefix("TMPDIR=")).unwrap().to_owned();
    for want in [
        "BUILD_FAILURE_EXIT_CODE=1\n",
        "SYSTEM_FAILURE_EXIT_CODE=2\n",
        &format!("BUILD_EXIT_CODE_FILE={work}/build_exit_code\n"),
        &format!("JOB_RESPONSE_FILE={work}/response.json\n"),
        "CUSTOM_ENV_OF_ENTRY=a\n",
        "CUSTOM_ENV_GREETING=hello again\n",
        // Trap 18: its content, not a path.
        "CUSTOM_ENV_SECRET_FILE=line one\n",
        r#"CUSTOM_ENV_CI_JOB_SERVICES=[{"alias":"db","command":["run"],"entrypoint":null,"name":"db:1","variables":{"PASS":"hello again"}}]"#,
    ] {
        assert!(env.contains(want), "{want}: {env}");
    }
    let config = given(&host, "config");
    assert!(
        config.contains("CUSTOM_ENV_CI_PROJECT_DIR=\n") && config.contains("CUSTOM_ENV_CI_BUILDS_DIR=\n"),
        "{config}"
    );
    let dirs = fs::read_to_string(host.path("calls.dirs")).unwrap();
    assert!(dirs.lines().all(|d| d == work), "each call runs in the driver's directory: {dirs}");
    host.assert_idle(&runner);
    assert!(!std::path::Path::new(&work).exists(), "it goes with the job");
    runner.finish();
    fake.assert_clean();
}

#[test]
fn acceptance_23_what_config_exec_prints_is_in_force() {
    let fake = GitLab::start();
    let host = host(&fake, "builds_dir = \"\"\ncache_dir = \"\"", "");
    let (builds, cache) = (host.path("b"), host.path("c"));
    let runner = begin(&host);
    let said = json!({"builds_dir": builds, "cache_dir": cache, "builds_dir_is_shared": true, "hostname": "far away",
        "driver": {"name": "d", "version": "1"}, "job_env": {"FROM_CONFIG": "yes"}, "shell": "sh", "other": [1]});
    configure(&host, &said);
    let text =
        run(&fake, Payload::script(&["echo \"dir $CI_PROJECT_DIR builds $CI_BUILDS_DIR\"", "echo $FROM_CONFIG."]))
            .text();
    let project = format!("{0}/testTestT/0/group/demo builds {0}\n", builds.display());
    for want in
        ["Using Custom executor with driver d 1...\n", " via far away...\n", &format!("dir {project}"), "yes.\n"]
    {
        assert!(text.contains(want), "{want}: {text}");
    }
    assert!(given(&host, "prepare").contains("FROM_CONFIG=yes\n"));
    // Trap 59: not divided by slots unless the driver says so.
    configure(&host, &json!({"builds_dir": builds, "cache_dir": cache}));
    let text = run(&fake, Payload::script(&["echo \"dir $CI_PROJECT_DIR.\""])).text();
    assert!(text.contains(&format!("dir {}/group/demo.\n", builds.display())), "{text}");
    runner.finish();
    fake.assert_clean();
}

#[test]
fn trap_59_both_directories_must_be_named() {
    let fake = GitLab::start();
    let host = host(&fake, "builds_dir = \"\"\ncache_dir = \"\"", "");
    let runner = begin(&host);
    for (said, (before, want)) in [
        (json!({}), ("Using Custom executor...\n", "ERROR: Job failed: the builds_dir is not configured\n")),
        (
            json!({"builds_dir": "/b"}),
            ("Using Custom executor...\n", "ERROR: Job failed: the cache_dir is not configured\n"),
        ),
        (json!({"shell": "fish"}), ("config words\n", "ERROR: Job failed: shell fish not found\n")),
    ] {
        configure(&host, &said);
        let job = run(&fake, Payload::script(&["true"]));
        assert!(job.text().contains(before) && job.text().ends_with(want), "{want}: {}", job.text());
        assert_eq!(job.failure_reason(), Some("runner_configuration_error"));
        assert_eq!(calls(&host), ["config", "cleanup"]);
    }
    runner.finish();
}

#[test]
fn acceptance_22_exit_codes_of_the_driver_in_its_script() {
    let fake = GitLab::start();
    let host = host(&fake, "", "");
    let runner = begin(&host);
    let unknown = |code: i32, exit: i32| {
        format!(
            "ERROR: Job failed (system failure): unknown Custom executor executable exit code {code}; executable execution \
             terminated with: exit status {exit}\n"
        )
    };
    for (exit, code, line, reason, reported) in [
        ("1", "", "ERROR: Job failed: exit status 1\n".to_owned(), "script_failure", Some(1)),
        ("1", "37", "ERROR: Job failed: exit status 37\n".to_owned(), "script_failure", Some(37)),
        ("1", "many", unknown(2, 1), "runner_system_failure", None),
        ("2", "", "ERROR: Job failed (system failure): exit status 2\n".to_owned(), "runner_system_failure", None),
        ("7", "", unknown(7, 7), "runner_system_failure", None),
    ] {
        let mut payload = Payload::script(&["true"]).var("RUN_EXIT", exit).after(&["echo after $CI_JOB_STATUS"]);
        if !code.is_empty() {
            payload = payload.var("CODE", code);
        }
        let job = run(&fake, payload);
        let text = job.text();
        assert!(text.ends_with(&line), "{line}: {text}");
        assert!(text.contains("after failed\n"), "{text}");
        assert_eq!((job.failure_reason(), job.exit_code()), (Some(reason), reported), "{exit} {code}");
        assert_eq!(calls(&host).last().map(String::as_str), Some("cleanup"));
    }
    runner.finish();
    fake.assert_clean();
}

/// Trap 57.
#[test]
fn acceptance_22_exit_codes_of_the_driver_in_its_preparation() {
    let fake = GitLab::start();
    let host = host(&fake, "", "");
    let runner = begin(&host);
    let job = run(&fake, Payload::script(&["true"]).var("PREPARE_EXIT", "1"));
    assert_eq!(calls(&host), ["config", "prepare", "cleanup"], "1 is the job's fault: no other try");
    assert!(job.text().ends_with("ERROR: Job failed: exit status 1\n"), "{}", job.text());
    assert_eq!(job.failure_reason(), Some("script_failure"));
    for (variable, exit, text) in [
        ("PREPARE_EXIT", "2", "exit status 2"),
        (
            "CONFIG_EXIT",
            "7",
            "unknown Custom executor executable exit code 7; executable execution terminated with: exit status 7",
        ),
    ] {
        let job = run(&fake, Payload::script(&["true"]).var(variable, exit));
        let one: &[&str] =
            if variable == "PREPARE_EXIT" { &["config", "prepare", "cleanup"] } else { &["config", "cleanup"] };
        assert_eq!(calls(&host), [one, one, one].concat(), "trap 60: cleaned up after each try");
        let log = job.text();
        assert_eq!(log.matches(&format!("ERROR: Preparation failed: {text}\n")).count(), 3, "{log}");
        assert_eq!(log.matches("Will be retried in ").count(), 2, "{log}");
        assert!(log.ends_with(&format!("ERROR: Job failed (system failure): {text}\n")), "{log}");
        assert_eq!(job.failure_reason(), Some("runner_system_failure"));
    }
    fs::write(host.path("calls.json"), "{not json").unwrap();
    let job = run(&fake, Payload::script(&["true"]));
    assert!(job.text().contains("Preparation failed: error while parsing JSON output: "), "{}", job.text());
    runner.finish();
    fake.assert_clean();
}

#[test]
fn trap_58_an_exit_code_of_an_earlier_stage_is_read_again() {
    let fake = GitLab::start();
    let host = host(&fake, "", "");
    let runner = begin(&host);
    let job = run(
        &fake,
        Payload::script(&["echo 41 > \"$BUILD_EXIT_CODE_FILE\"; true"])
            .after(&["false"])
            .var("AFTER_SCRIPT_IGNORE_ERRORS", "false"),
    );
    assert!(job.text().ends_with("ERROR: Job failed: exit status 41\n"), "{}", job.text());
    runner.finish();
}

#[test]
fn trap_60_a_driver_cleans_up_whatever_became_of_the_job() {
    let fake = GitLab::start();
    let host = host(&fake, "cancel_timeout = 1", "graceful_kill_timeout = 1");
    let host = host.timing("hard_term=300");
    let runner = begin(&host);
    let sleep = processes::unique_sleep();
    // Its own time is up.
    let job = run(&fake, Payload::script(&[&format!("echo begun; sleep {sleep}")]).timeout(2));
    assert!(job.text().ends_with("ERROR: Job failed: execution took longer than 2s seconds\n"), "{}", job.text());
    assert_eq!(job.failure_reason(), Some("job_execution_timeout"));
    assert_eq!(calls(&host).last().map(String::as_str), Some("cleanup"));
    assert!(processes::with_command(&sleep).is_empty());
    // A person canceled: the rest of the plan goes on by the driver.
    let id =
        fake.queue(Payload::script(&[&format!("echo begun; sleep {sleep}")]).after(&["echo after $CI_JOB_STATUS"]));
    fake.says(id, "begun\n", SOON);
    fake.cancel(id);
    let job = fake.over(id, SOON);
    assert!(job.text().contains("after canceled\n"), "{}", job.text());
    assert!(processes::with_command(&sleep).is_empty());
    let seen = calls(&host);
    assert_eq!(seen[seen.len() - 3..], ["run after_script", "run cleanup_file_variables", "cleanup"]);
    // The server took it away.
    let id = fake.queue(Payload::script(&[&format!("echo begun; sleep {sleep}")]));
    fake.says(id, "begun\n", SOON);
    fake.force_cancel(id);
    eventually("the driver cleans up", SOON, || calls_yet(&host).contains(&"cleanup".to_owned()).then_some(()));
    // It fails itself, and that is said and nothing else.
    let job = run(&fake, Payload::script(&["true"]).var("CLEANUP_EXIT", "3"));
    let want = "WARNING: Cleanup script failed: unknown Custom executor executable exit code 3; executable execution \
                terminated with: exit status 3\ncleanup errors\nJob succeeded\n";
    assert!(job.text().ends_with(want), "{}", job.text());
    runner.finish();
}

#[test]
fn a_driver_that_hangs_is_ended_in_the_time_that_its_entry_gives_it() {
    let fake = GitLab::start();
    let host = host(&fake, "", "prepare_exec_timeout = 1\ncleanup_exec_timeout = 1\ngraceful_kill_timeout = 1");
    let runner = begin(&host);
    let sleep = processes::unique_sleep();
    let begun = Instant::now();
    let hang = format!("sleep {sleep}");
    let job = run(&fake, Payload::script(&["true"]).var("ON_CLEANUP", &hang));
    assert_eq!(job.state, State::Success, "{}", job.text());
    assert!(job.text().contains("WARNING: Cleanup script failed: it did not end in its time\n"), "{}", job.text());
    let job = run(&fake, Payload::script(&["true"]).var("ON_PREPARE", &hang));
    let text = job.text();
    assert_eq!(text.matches("Preparation failed: the driver did not end in the time").count(), 3, "{text}");
    assert!(processes::with_command(&sleep).is_empty());
    assert!(begun.elapsed() < Duration::from_secs(20));
    runner.finish();
}

#[test]
fn prepare_timeout_bounds_configuration_and_preparation() {
    let fake = GitLab::start();
    let host = host(&fake, "prepare_timeout = \"1s\"", "graceful_kill_timeout = 1");
    let runner = begin(&host);
    let job = run(&fake, Payload::script(&["true"]).var("ON_PREPARE", "sleep 60"));
    assert!(job.text().ends_with("ERROR: Job failed: prepare timeout: exceeded timeout of 1s\n"), "{}", job.text());
    assert_eq!(job.failure_reason(), Some("job_execution_timeout"));
    runner.finish();
}

#[test]
fn a_cancel_while_a_driver_prepares_ends_the_job_there() {
    let fake = GitLab::start();
    let host = host(&fake, "", "");
    let runner = begin(&host);
    let id = fake.queue(Payload::script(&["true"]).var("ON_PREPARE", "echo hanging; sleep 60"));
    fake.says(id, "hanging\n", SOON);
    fake.cancel(id);
    let job = fake.over(id, SOON);
    assert!(job.text().ends_with("ERROR: Job failed: canceled\n"), "{}", job.text());
    assert_eq!(calls(&host), ["config", "prepare", "cleanup"]);
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn a_custom_entry_without_a_driver_or_with_a_user_takes_no_jobs() {
    let fake = GitLab::start();
    for (lines, why) in [
        ("executor = \"custom\"", "there is no [runners.custom]"),
        ("executor = \"custom\"\n[runners.custom]\nprepare_exec = \"x\"", "its [runners.custom] has no run_exec"),
        ("executor = \"custom\"\nuser = \"root\"\n[runners.custom]\nrun_exec = \"x\"", "`user` has no effect"),
    ] {
        let host = Host::new(&fake).entry(&fake, "glrt-other", lines);
        let mut runner = host.start();
        runner.says(why, SOON);
        runner.says("started: pid", SOON);
        assert_eq!(runner.stop(Signal::TERM, SOON), Some(0));
    }
}

/// The shipped driver, where bubblewrap is installed and may make sandboxes.
#[test]
fn a_job_in_the_bwrap_sandbox_sees_its_own_world_only() {
    let probe = ["--unshare-user", "--ro-bind", "/", "/", "true"];
    if !std::process::Command::new("bwrap").args(probe).output().is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: bubblewrap is not installed, or may not make a sandbox here");
        return;
    }
    let fake = GitLab::start();
    let host = Host::bare().timing(TIMING);
    let driver = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/custom/bwrap/driver");
    let base = host.path("sandboxes");
    let mut lines = String::from("executor = \"custom\"\nbuilds_dir = \"\"\ncache_dir = \"\"\n[runners.custom]\n");
    for (call, args) in [("config", ""), ("prepare", "--base"), ("run", "--base"), ("cleanup", "--base")] {
        let args = if args.is_empty() { format!("[{call:?}]") } else { format!("[{call:?}, {args:?}, {base:?}]") };
        lines += &format!("{call}_exec = {driver:?}\n{call}_args = {args}\n");
    }
    let host = host.entry(&fake, TOKEN, &lines).env("HOSTS_SECRET", "hidden");
    let runner = host.start();
    let sleep = processes::unique_sleep();
    let script = [
        "echo \"at $(pwd) as $(id -u) of $(hostname)\"".to_owned(),
        "echo \"value $OF_JOB; file $(cat \"$OF_FILE\"); secret ${HOSTS_SECRET-none}\"".to_owned(),
        format!("ls {} 2>/dev/null || echo \"no host\"", host.path("config.toml").display()),
        "[ $(ls /proc | grep -c '^[0-9]') -lt 20 ] && echo alone".to_owned(),
        "touch /usr/x 2>/dev/null || echo \"read only\"; echo kept > kept".to_owned(),
        format!("setsid sleep {sleep} > /dev/null 2>&1 & echo started"),
    ];
    let lines: Vec<&str> = script.iter().map(String::as_str).collect();
    let job = run(&fake, Payload::script(&lines).var("OF_JOB", "x y").file("OF_FILE", "content"));
    let text = job.text();
    assert_eq!(job.state, State::Success, "{text}");
    for want in [
        "Using Custom executor with driver bwrap ",
        "Running on sandbox via sandbox...\n",
        "at /builds/group/demo as 1000 of sandbox\n",
        "value x y; file content; secret none\n",
        "no host\n",
        "alone\n",
        "read only\n",
        "started\n",
    ] {
        assert!(text.contains(want), "{want}: {text}");
    }
    assert!(processes::with_command(&sleep).is_empty(), "the sandbox ends with its stage");
    let job = run(&fake, Payload::script(&["cat kept", "exit 37"]));
    assert!(job.text().contains("kept\n"), "the next job in the slot finds the builds: {}", job.text());
    assert_eq!((job.failure_reason(), job.exit_code()), (Some("script_failure"), Some(37)), "{}", job.text());
    host.assert_idle(&runner);
    runner.finish();
    fake.assert_clean();
}
