//! Scripts, files, servers and operators that mean no good, or act at odd moments: each costs its own job
//! at most (invariant 8).

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::signals::until_file;
use crate::support::binary::{Host, Runner};
use crate::support::gitlab::{GitLab, State, TOKEN};
use crate::support::http::{Fault, ONCE};
use crate::support::payload::Payload;
use crate::support::{SOON, eventually, processes, tick};

/// A manager that is well: it takes the next job and ends it.
#[track_caller]
fn assert_well(fake: &GitLab) {
    let next = fake.queue(Payload::script(&["true"]));
    assert_eq!(fake.finished(next, SOON).state, State::Success, "the manager goes on");
}

/// A job that has printed `begun` and ends when `go` appears.
fn with_job(host: &Host, fake: &GitLab) -> (Runner, u64) {
    let id = fake.queue(Payload::script(&["echo begun", &until_file(host, "go")]));
    let runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    (runner, id)
}

#[test]
fn an_orphan_without_the_tag_dies_with_its_stuck_job_process() {
    let fake = GitLab::start();
    let sleep = processes::unique_sleep();
    let host = Host::bare()
        .entry(&fake, TOKEN, "  cancel_timeout = 1")
        .timing("channel_timeout=500,channel_write=200,force_send=100,kill_lead=100");
    // Its parent ends at once: only the job process, a subreaper, leads to it.
    let orphan = format!("(setsid env -i /bin/sleep {sleep} >/dev/null 2>&1 &)");
    let stop = until_file(&host, "stop");
    let id = fake.queue(Payload::script(&[&orphan, "echo begun", &stop, "kill -STOP $PPID; sleep 600"]));
    let runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    eventually("the orphan", SOON, || (processes::with_command(&sleep).len() == 1).then_some(()));
    let job = host.job_process();
    fs::write(host.path("stop"), "").unwrap();
    let stopped = || fs::read_to_string(format!("/proc/{job}/stat")).is_ok_and(|s| s.contains(") T "));
    eventually("it is stopped", SOON, || stopped().then_some(()));
    fake.cancel(id);
    fake.finished(id, SOON);
    assert!(processes::with_command(&sleep).is_empty(), "it lives after the final update");
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn a_script_that_breaks_its_job_directory_costs_its_own_job_only() {
    let fake = GitLab::start();
    let host = Host::new(&fake).timing("orphan_gitlab=600000");
    let jobs = host.state().join("jobs");
    let replaced = |name: &str, make: &str| {
        format!("for d in {}/*/; do rm -rf \"$d/{name}\"; {make} \"$d/{name}\"; done; sleep 0.3", jobs.display())
    };
    let mut scripts = vec![format!("rm -rf {}/*; sleep 0.3", jobs.display())];
    for name in ["log", "lock", "outcome.json", "lease.json", "sent", "started", "control", "outcome.tmp", "job.json"] {
        scripts.push(replaced(name, "mkfifo"));
        scripts.push(replaced(name, "ln -s /dev/zero"));
        scripts.push(replaced(name, "mkdir"));
    }
    let runner = host.start();
    for script in scripts {
        let id = fake.queue(Payload::script(&["echo begun", &script]));
        let what = format!("after {script}");
        fake.wait(id, &what, SOON, |job| job.state.is_final().then_some(()));
        assert_well(&fake);
        let memory = processes::memory(runner.pid()).unwrap().0;
        assert!(memory < 64 << 20, "{what}: {memory} bytes");
        for dir in host.jobs() {
            let _ = fs::remove_dir_all(dir);
        }
    }
    fake.take_violations();
    runner.finish();
}

#[test]
fn a_server_that_says_nonsense_of_the_log_costs_no_job() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let runner = host.start();
    for size in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 50] {
        fake.fail("trace", ONCE, Fault::Range(size));
        let id = fake.queue(Payload::script(&["seq 1 100", "sleep 0.3", "echo over"]));
        let job = fake.finished(id, SOON);
        assert_eq!(job.state, State::Success, "{size}: {}", job.text());
        assert!(job.text().contains("\nover\n"), "{size}: {}", job.text());
    }
    assert!(!runner.log().contains("internal error"), "{}", runner.log());
    runner.finish();
}

#[test]
fn what_lies_in_a_spool_stops_no_other_job() {
    let spool = tempfile::tempdir().unwrap();
    let url = format!("file://{}", spool.path().display());
    let host = Host::bare().raw_entry("spool", &url, "", "");
    let pending = spool.path().join("pending");
    fs::create_dir_all(&pending).unwrap();
    let job = json!({ "script": ["echo hi"] }).to_string();
    fs::write(pending.join(format!("{}.json", "a".repeat(249))), &job).unwrap();
    fs::create_dir(pending.join("b.json")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(pending.join("c.json")).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("/no/such/file", pending.join("d.json")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", pending.join("e.json")).unwrap();
    fs::write(pending.join("z.json"), &job).unwrap();
    let runner = host.start();
    eventually("z ends", SOON, || spool.path().join("done/z/result.json").exists().then_some(()));
    for name in ["b", "c", "d", "e"] {
        let reason = spool.path().join(format!("failed/{name}.reason"));
        eventually(&format!("{name} is refused"), SOON, || reason.exists().then_some(()));
    }
    runner.finish();
}

#[test]
fn a_started_file_that_cannot_be_read_never_runs_the_script_again() {
    for text in ["", "garbage"] {
        let fake = GitLab::start();
        let host = Host::new(&fake);
        let ran = format!("echo x >> {}", host.path("ran").display());
        let id = fake.queue(Payload::script(&[&ran, "echo begun", "sleep 600"]));
        let mut runner = host.start();
        fake.says(id, "\nbegun\n", SOON);
        let job = host.job_process();
        runner.kill();
        processes::signal(job, Signal::KILL);
        fs::write(host.job_dir().join("started"), text).unwrap();
        let runner = host.start();
        let job = fake.finished(id, SOON);
        assert_eq!(job.failure_reason(), Some("runner_system_failure"), "{}", job.text());
        assert_eq!(fs::read_to_string(host.path("ran")).unwrap(), "x\n");
        runner.finish();
    }
}
