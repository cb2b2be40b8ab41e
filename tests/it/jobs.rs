//! One job from the queue to its final state: result, log, checksum (the fake compares it), and that
//! nothing is left. Cancels, faults and crashes have files of their own.

use std::time::Duration;

use serde_json::json;

use crate::support::binary::Host;
use crate::support::gitlab::{GitLab, Job, State};
use crate::support::payload::Payload;
use crate::support::{SOON, processes, root_or_skip};

/// Runs a job on a fresh host until nothing of it is left; the manager ends well afterwards.
fn run(payload: Payload) -> Job {
    run_with("", payload)
}

/// The same, with more keys in the entry.
fn run_with(entry: &str, payload: Payload) -> Job {
    let fake = GitLab::start();
    let host = Host::bare().entry(&fake, crate::support::gitlab::TOKEN, entry);
    let id = fake.queue(payload);
    let runner = host.start();
    let job = fake.finished(id, SOON);
    host.assert_idle(&runner);
    runner.finish();
    fake.job(job.id)
}

/// State, failure reason and exit code.
fn result(job: &Job) -> (State, Option<&str>, Option<i64>) {
    (job.state, job.failure_reason(), job.exit_code())
}

const SUCCESS: (State, Option<&str>, Option<i64>) = (State::Success, None, None);

/// That these stand in the log, one after the other.
#[track_caller]
fn assert_order(job: &Job, texts: &[&str]) {
    let log = job.text();
    let mut from = 0;
    for text in texts {
        let at = log[from..].find(text).unwrap_or_else(|| panic!("{text:?} is missing after {from} in\n{log}"));
        from += at + text.len();
    }
}

#[test]
fn a_job_that_succeeds_shows_its_log_and_its_checksum() {
    let job = run(Payload::script(&["echo hello from $CI_JOB_NAME"]));
    assert_eq!(result(&job), SUCCESS);
    assert_order(
        &job,
        &[
            "Running with ",
            "Preparing the \"shell\" executor",
            "Preparing environment",
            "Getting source from Git repository",
            "Executing \"step_script\" stage of the job script",
            "$ echo hello from $CI_JOB_NAME\n",
            "hello from unit\n",
            "Cleaning up project directory and file based variables",
            "Job succeeded\n",
        ],
    );
    assert_eq!(job.updates[0].1["state"], "running");
    assert_eq!(job.updates.len(), 2, "a short job needs two updates: {:?}", job.updates);
}

#[test]
fn the_server_has_the_local_log_byte_for_byte() {
    let fake = GitLab::start();
    let mut host = Host::new(&fake);
    let pause = host.pause("settled");
    let id = fake.queue(Payload::script(&["seq 1 30000", "printf '\\x00\\xff\\r no end'", "exit 3"]));
    let runner = host.start();
    pause.reached();
    let local = std::fs::read(host.job_dir().join("log")).unwrap();
    let job = fake.job(id);
    assert!(job.stored == local, "{} bytes are stored, {} are in the local log", job.stored.len(), local.len());
    assert_eq!(result(&job), (State::Failed, Some("script_failure"), Some(3)));
    pause.release();
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn an_exit_code_is_the_jobs() {
    let job = run(Payload::script(&["echo before", "exit 37", "echo after"]));
    assert_eq!(result(&job), (State::Failed, Some("script_failure"), Some(37)));
    assert_order(&job, &["before\n", "ERROR: Job failed: exit status 37\n"]);
    assert!(!job.text().contains("\nafter\n"));
}

#[test]
fn the_first_command_that_fails_ends_a_script() {
    let job = run(Payload::script(&["echo one", "false", "echo never"]));
    assert_eq!(result(&job), (State::Failed, Some("script_failure"), Some(1)));
    assert!(!job.text().contains("\nnever\n"));
}

#[test]
fn a_script_that_is_killed_reports_the_signal() {
    let job = run(Payload::script(&["kill -9 $$"]));
    assert_eq!(result(&job), (State::Failed, Some("script_failure"), Some(-1)));
    assert_order(&job, &["ERROR: Job failed: signal: killed\n"]);
}

#[test]
fn a_script_of_several_lines_keeps_its_state_from_line_to_line() {
    let lines = ["mkdir -p sub && cd sub", "x=7", "for i in 1 2\ndo echo \"round $i $x\"\ndone", "basename $PWD"];
    let job = run(Payload::script(&lines));
    assert_eq!(result(&job), SUCCESS);
    assert_order(
        &job,
        &["$ x=7\n", "$ for i in 1 2 # collapsed multi-line command\n", "round 1 7\nround 2 7\n", "\nsub\n"],
    );
}

#[test]
fn output_without_a_last_newline_and_in_two_streams_is_all_there() {
    let job = run(Payload::script(&["printf 'no newline'", "echo to stderr >&2", "printf 'bad \\377 byte\\n'"]));
    assert_eq!(result(&job), SUCCESS);
    assert_order(&job, &["no newline", "to stderr\n", "bad \u{fffd} byte\n", "Job succeeded"]);
}

#[test]
fn after_script_runs_whatever_became_of_the_script() {
    for (script, status, state) in [("true", "success", State::Success), ("false", "failed", State::Failed)] {
        let job = run(Payload::script(&[script]).after(&["echo after: $CI_JOB_STATUS"]));
        assert_eq!(job.state, state);
        assert_order(&job, &["Running after_script", "Running after script...", &format!("after: {status}\n")]);
    }
}

#[test]
fn a_failing_after_script_changes_nothing() {
    let job = run(Payload::script(&["true"]).after(&["exit 3"]));
    assert_eq!(result(&job), SUCCESS);
    assert_order(
        &job,
        &["WARNING: after_script failed, but job will continue unaffected: exit status 3\n", "Job succeeded"],
    );
}

#[test]
fn after_script_may_not_take_longer_than_its_limit() {
    let sleep = processes::unique_sleep();
    let payload = Payload::script(&["true"]).after(&[&format!("echo begun; sleep {sleep}")]);
    let job = run(payload.var("RUNNER_AFTER_SCRIPT_TIMEOUT", "1s"));
    assert_eq!(result(&job), SUCCESS);
    assert_order(&job, &["begun\n", "WARNING: after_script could not run to completion", "Job succeeded"]);
    assert!(processes::with_command(&sleep).is_empty());
}

#[test]
fn a_job_that_takes_too_long_is_ended_without_after_script() {
    let sleep = processes::unique_sleep();
    let payload = Payload::script(&["echo begun", &format!("sleep {sleep}")]).after(&["echo never"]);
    let job = run(payload.timeout(1));
    assert_eq!(result(&job), (State::Failed, Some("job_execution_timeout"), None));
    assert_order(
        &job,
        &[
            "begun\n",
            "WARNING: step_script could not run to completion because the timeout was exceeded.",
            "ERROR: Job failed: execution took longer than 1s seconds\n",
        ],
    );
    assert!(!job.text().contains("\nnever\n"));
    assert!(processes::with_command(&sleep).is_empty());
}

#[test]
fn a_script_that_takes_too_long_is_followed_by_after_script() {
    let sleep = processes::unique_sleep();
    let payload = Payload::script(&[&format!("sleep {sleep}")]).after(&["echo after: $CI_JOB_STATUS"]);
    let job = run(payload.var("RUNNER_SCRIPT_TIMEOUT", "1s"));
    assert_eq!(result(&job), (State::Failed, Some("job_execution_timeout"), None));
    assert_order(&job, &["after: timedout\n", "ERROR: Job failed: script timeout: context deadline exceeded\n"]);
    assert!(processes::with_command(&sleep).is_empty());
}

#[test]
fn masked_values_never_reach_the_server() {
    let script = [
        "echo whole: $SECRET",
        "printf 'split: hunter2-'; sleep 0.1; printf 'hunter2\\n'",
        "echo url: 'https://x/?private_token=abcdef123456&y=1'",
        "echo token: glpat-abcdefghijklmnop done",
        "echo short: $SHORT",
    ];
    let job = run(Payload::script(&script).masked("SECRET", "hunter2-hunter2").masked("SHORT", "tiny-but-mine"));
    assert_eq!(result(&job), SUCCESS);
    let log = job.text();
    assert_order(
        &job,
        &[
            "whole: [MASKED]\n",
            "split: [MASKED]\n",
            "private_token=[MASKED]&y=1\n",
            "token: glpat-[MASKED] done\n",
            "short: [MASKED]\n",
        ],
    );
    for secret in ["hunter2-hunter2", "abcdef123456", "abcdefghijklmnop", "tiny-but-mine"] {
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
    }
}

#[test]
fn variables_are_expanded_in_order_raw_ones_and_files_as_they_are() {
    let script = [
        "echo \"a=$A b=$B raw=$RAW last=$TWICE\"",
        "echo file=$(cat \"$FILE\") name=$(basename \"$FILE\")",
        "echo project=$CI_PROJECT_DIR pwd=$PWD",
        "echo status=$CI_JOB_STATUS server=$CI_SERVER",
    ];
    let payload = Payload::script(&script)
        .var("A", "one")
        .var("B", "$A-two-$$-${NONE}x")
        .raw("RAW", "$A")
        .var("TWICE", "first")
        .var("TWICE", "second")
        .file("FILE", "content of $A");
    let job = run(payload);
    assert_eq!(result(&job), SUCCESS);
    assert_order(
        &job,
        &["a=one b=one-two-$-x raw=$A last=second\n", "file=content of one name=FILE\n", "status=running server=yes\n"],
    );
    let line = job.text().lines().find(|l| l.starts_with("project=")).unwrap().to_owned();
    let (dir, pwd) = line.trim_start_matches("project=").split_once(" pwd=").unwrap();
    assert_eq!(dir, pwd);
}

#[test]
fn values_with_every_kind_of_quote_arrive_byte_for_byte() {
    let odd = "it's \"quoted\" `ticked` \\ back\\\\slash !bang *star ~ # ; & | <a> ünï\ttab\nline two";
    for shell in ["bash", "sh", "dash"] {
        if processes_find(shell).is_none() {
            eprintln!("skipped: {shell} is not installed");
            continue;
        }
        let payload = Payload::script(&["printf %s \"$ODD\" | od -An -tx1 | tr -d ' \\n'; echo"]).raw("ODD", odd);
        let job = run_with(&format!("  shell = \"{shell}\""), payload);
        assert_eq!(result(&job), SUCCESS, "{shell}:\n{}", job.text());
        let hex: String = odd.bytes().map(|b| format!("{b:02x}")).collect();
        assert!(job.text().contains(&hex), "{shell}: {hex} is not in\n{}", job.text());
    }
}

/// Where a program lies on the PATH.
fn processes_find(program: &str) -> Option<std::path::PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|d| d.join(program)).find(|p| p.exists())
}

#[test]
fn the_entrys_settings_reach_the_job() {
    let entry =
        "  environment = [\"FROM_ENTRY=yes\"]\n  pre_build_script = \"echo pre\"\n  post_build_script = \"echo post\"";
    let job = run_with(entry, Payload::script(&["echo entry=$FROM_ENTRY"]));
    assert_eq!(result(&job), SUCCESS);
    assert_order(&job, &["$ echo pre\n", "entry=yes\n", "$ echo post\n"]);
}

#[test]
fn an_empty_checkout_is_a_fresh_directory() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let runner = host.start();
    for _ in 0..2 {
        let id = fake.queue(Payload::script(&["ls -A | wc -l", "touch left"]).strategy(Some("empty")));
        let job = fake.finished(id, SOON);
        assert_eq!(result(&job), SUCCESS);
        assert_order(&job, &["$ ls -A | wc -l\n0\n"]);
    }
    runner.finish();
}

// ---- Bad input ---------------------------------------------------------------------------------

/// That this job fails with exactly this in its log, and that the manager takes the next one.
#[track_caller]
fn check_bad(entry: &str, queue: impl FnOnce(&GitLab) -> u64, line: &[&str]) {
    let fake = GitLab::start();
    let host = Host::bare().entry(&fake, crate::support::gitlab::TOKEN, entry);
    let id = queue(&fake);
    let mut runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Failed, "{}", job.text());
    let log = job.text();
    let said: Vec<&str> = log.lines().filter(|l| line.iter().all(|w| l.contains(w))).collect();
    assert_eq!(said.len(), 1, "one line with {line:?} is wanted in\n{log}");
    host.assert_idle(&runner);
    assert!(runner.is_alive());
    runner.finish();
}

#[test]
fn a_variable_whose_name_is_no_identifier_fails_its_job() {
    for name in ["1ST", "with space", "a-b", "x;touch /tmp/owned", "a=b"] {
        let payload = Payload::script(&["echo never"]).var(name, "x");
        check_bad("", |fake| fake.queue(payload), &["ERROR: Job failed", name]);
    }
}

#[test]
fn a_megabyte_in_one_variable_fails_its_job() {
    let payload = Payload::script(&["/bin/true"]).var("BIG", &"x".repeat(1024 * 1024));
    check_bad("", |fake| fake.queue(payload), &["ERROR: Job failed", "BIG"]);
}

#[test]
fn a_nul_byte_in_a_value_fails_its_job() {
    let payload = Payload::script(&["echo never"]).var("NUL", "a\0b");
    check_bad("", |fake| fake.queue(payload), &["ERROR: Job failed", "NUL"]);
}

#[test]
fn a_job_without_steps_fails() {
    let payload = Payload::script(&[]).set("steps", json!(null));
    check_bad("", |fake| fake.queue(payload), &["The job has no \"steps\""]);
}

#[test]
fn a_builds_dir_that_cannot_be_written_fails_its_job() {
    // A file stands where a directory is wanted: that stops root, too.
    let payload = Payload::script(&["echo never"]);
    check_bad("  builds_dir = \"/proc/version/builds\"", |fake| fake.queue(payload), &["ERROR: Job failed"]);
}

#[test]
fn a_job_whose_parts_have_the_wrong_types_fails() {
    for broken in
        [json!({"variables": "oops"}), json!({"steps": [{"name": 7}]}), json!({"runner_info": {"timeout": "soon"}})]
    {
        let queue = |fake: &GitLab| {
            fake.queue_raw(|id, token| {
                let mut job = json!({"id": id, "token": token, "job_info": {"name": "x", "project_id": 1},
                    "variables": [], "steps": [], "features": {"failure_reasons": []}});
                broken.as_object().unwrap().iter().for_each(|(k, v)| job[k] = v.clone());
                job.to_string().into_bytes()
            })
        };
        let key = broken.as_object().unwrap().keys().next().unwrap().clone();
        check_bad("", queue, &[&key]);
    }
}

#[test]
fn an_answer_that_is_no_job_at_all_leaves_the_manager_polling() {
    for raw in [&b"{\"id\": 7, \"tok"[..], b"[]", b"null", b"<html>", b"\xff\xfe"] {
        let fake = GitLab::with(|o| o.two_phase = false);
        let host = Host::new(&fake);
        fake.queue_raw(|_, _| raw.to_vec());
        let runner = host.start();
        fake.server.request("poll", 2, SOON);
        let next = fake.queue(Payload::script(&["true"]));
        assert_eq!(fake.finished(next, SOON).state, State::Success);
        runner.finish();
    }
}

#[test]
fn a_full_disk_fails_or_shortens_the_job_and_never_stops_the_manager() {
    if !root_or_skip("a_full_disk_fails_or_shortens_the_job_and_never_stops_the_manager", "it mounts a small tmpfs") {
        return;
    }
    let fake = GitLab::start();
    let host = Host::new(&fake).global("min_free_disk = 0");
    let builds = host.path("builds");
    let Some(_small) = crate::support::binary::SmallDisk::mount(&builds, 256) else { return };
    let id = fake.queue(Payload::script(&["head -c 2000000 /dev/zero > big", "echo never"]));
    let mut runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Failed, "{}", job.text());
    assert_order(&job, &["No space left on device", "ERROR: Job failed"]);
    assert!(runner.is_alive());
    runner.finish();
}

#[test]
fn ten_jobs_follow_each_other_without_waiting_for_the_next_poll() {
    let fake = GitLab::start();
    let host = Host::new(&fake).global("check_interval = 3");
    let ids: Vec<u64> = (0..10).map(|_| fake.queue(Payload::script(&["true"]))).collect();
    let from = std::time::Instant::now();
    let runner = host.start();
    ids.iter().for_each(|id| assert_eq!(fake.finished(*id, SOON).state, State::Success));
    assert!(from.elapsed() < Duration::from_secs(20), "ten short jobs took {:?}", from.elapsed());
    runner.finish();
}
