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
fn fewer_slots_while_idle_leave_as_many_workers() {
    let fake = GitLab::start();
    for (before, after) in [(2, 1), (6, 2)] {
        let mut host = Host::new(&fake).global(&format!("concurrent = {before}"));
        let runner = host.start();
        runner.says(" started: ", SOON);
        host.set_global(&format!("concurrent = {after}"));
        host.write_config();
        runner.signal(Signal::HUP);
        runner.says("read again", SOON);
        tick(Duration::from_millis(200));
        assert_well(&fake);
        // And more again.
        host.set_global(&format!("concurrent = {before}"));
        host.write_config();
        runner.signal(Signal::HUP);
        let ids: Vec<u64> = (0..before).map(|_| fake.queue(Payload::script(&[&until_file(&host, "go")]))).collect();
        for id in &ids {
            fake.wait(*id, "all of them run at once", SOON, |job| (job.state == State::Running).then_some(()));
        }
        fs::write(host.path("go"), "").unwrap();
        ids.iter().for_each(|id| assert_eq!(fake.finished(*id, SOON).state, State::Success));
        runner.finish();
    }
}

#[test]
fn a_term_or_quit_during_a_hand_over_is_obeyed() {
    for (signal, wait) in [(Signal::TERM, 0), (Signal::TERM, 30), (Signal::QUIT, 0), (Signal::QUIT, 30)] {
        let fake = GitLab::start();
        let host = Host::new(&fake).timing("hand_over=4000");
        let (mut runner, id) = with_job(&host, &fake);
        // The renewal thread is in a request, so that the hand-over has something to wait for.
        fake.fail("touch", ONCE, Fault::Late(Duration::from_millis(1500)));
        let touches = fake.server.count("touch");
        fake.server.request("touch", touches + 1, SOON);
        runner.signal(Signal::USR2);
        runner.says("handing over", SOON);
        tick(Duration::from_millis(wait));
        runner.signal(signal);
        if signal == Signal::QUIT {
            tick(Duration::from_millis(2500));
            assert!(runner.is_alive(), "the job is waited for");
            fs::write(host.path("go"), "").unwrap();
        }
        assert_eq!(runner.wait(SOON).code(), Some(0), "{signal:?} after {wait} ms");
        let job = fake.job(id);
        let want = if signal == Signal::TERM { Some("runner_interrupted") } else { None };
        assert!(job.state.is_final() && job.failure_reason() == want, "{signal:?} after {wait} ms: {:?}", job.state);
        assert!(host.left_over().is_empty() && host.jobs().is_empty());
    }
}

#[test]
fn hand_overs_without_pause_end_neither_manager_nor_job() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let (mut runner, id) = with_job(&host, &fake);
    let from = Instant::now();
    while from.elapsed() < Duration::from_secs(4) {
        runner.signal(Signal::USR2);
        runner.signal(Signal::HUP);
        tick(Duration::from_millis(2));
        assert!(runner.is_alive(), "{:?}", runner.wait(SOON));
    }
    eventually("the job is adopted", SOON, || runner.log().contains("from an earlier run").then_some(()));
    fs::write(host.path("go"), "").unwrap();
    assert_eq!(fake.finished(id, SOON).state, State::Success);
    assert_well(&fake);
    runner.finish();
}

#[test]
fn exec_never_becomes_another_image() {
    let host = Host::bare();
    let job = host.path("job.json");
    let script = [format!("echo x >> {}", host.path("ran").display()), until_file(&host, "go")];
    fs::write(&job, json!({ "script": script }).to_string()).unwrap();
    let path = job.display().to_string();
    let mut child = host.command(&["exec", &path]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("it runs", SOON, || host.path("ran").exists().then_some(()));
    for signal in [Signal::USR2, Signal::HUP] {
        processes::signal(child.id(), signal);
    }
    tick(Duration::from_millis(1500));
    fs::write(host.path("go"), "").unwrap();
    let status = eventually("exec ends", SOON, || child.try_wait().unwrap());
    assert_eq!((status.code(), fs::read_to_string(host.path("ran")).unwrap().as_str()), (Some(0), "x\n"));
}

#[test]
fn no_token_is_ever_in_the_managers_log() {
    let fake = GitLab::start();
    let host = Host::new(&fake).global("log_level = \"trace\"");
    let runner = host.start();
    for fault in [Fault::Status(500), Fault::Html, Fault::Reset] {
        fake.fail("trace", ONCE, fault);
        assert_well(&fake);
    }
    let (log, jobs) = (runner.log(), fake.jobs());
    let tokens = jobs.iter().map(|job| job.token.as_str()).chain([TOKEN]);
    for token in tokens {
        assert!(!token.is_empty() && !log.contains(token), "{token} is in the log:\n{log}");
    }
    assert!(log.contains("job taken"), "{log}");
    assert!(!log.to_lowercase().contains("job-token"), "{log}");
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
