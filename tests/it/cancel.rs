//! A job that is told to end: canceled by a person, taken away by the server, with scripts that do
//! not listen and children that hide. In each case nothing of it is alive when the final update comes.

use std::time::{Duration, Instant};

use crate::support::binary::{Host, Runner};
use crate::support::gitlab::{GitLab, State, TOKEN};
use crate::support::payload::Payload;
use crate::support::{SOON, eventually, processes};

/// A host with a job that has printed `begun`.
fn begun(entry: &str, payload: Payload) -> (GitLab, Host, Runner, u64) {
    let fake = GitLab::start();
    let host = Host::bare().entry(&fake, TOKEN, entry).timing("force_send=100");
    let id = fake.queue(payload);
    let runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    (fake, host, runner, id)
}

#[test]
fn a_canceled_job_runs_its_after_script_and_says_so() {
    let sleep = processes::unique_sleep();
    let payload = Payload::script(&["echo begun", &format!("sleep {sleep}")]).after(&["echo after: $CI_JOB_STATUS"]);
    let (fake, host, runner, id) = begun("", payload);
    fake.cancel(id);
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Canceled);
    assert_eq!(job.last.as_ref().unwrap()["state"], "failed");
    let log = job.text();
    assert!(log.contains("WARNING: script canceled externally (UI, API)\n"), "{log}");
    assert!(log.contains("after: canceled\n"), "{log}");
    assert!(log.ends_with("ERROR: Job failed: canceled\n"), "{log}");
    assert!(processes::with_command(&sleep).is_empty());
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn a_quiet_job_hears_of_its_cancel_by_the_next_touch() {
    let sleep = processes::unique_sleep();
    let (fake, _host, runner, id) = begun("", Payload::script(&["echo begun", &format!("sleep {sleep}")]));
    fake.server.request("touch", 1, SOON);
    let from = Instant::now();
    fake.cancel(id);
    assert_eq!(fake.finished(id, SOON).state, State::Canceled);
    assert!(from.elapsed() < Duration::from_secs(5), "it took {:?}", from.elapsed());
    runner.finish();
}

#[test]
fn a_job_that_the_server_took_away_is_ended_at_once() {
    let sleep = processes::unique_sleep();
    let payload = Payload::script(&["echo begun", &format!("sleep {sleep}")]).after(&["echo never"]);
    let (fake, host, runner, id) = begun("", payload);
    fake.force_cancel(id);
    eventually("the script is gone", SOON, || processes::with_command(&sleep).is_empty().then_some(()));
    host.assert_idle(&runner);
    let job = fake.job(id);
    assert_eq!(job.state, State::Canceled);
    assert!(!job.text().contains("\nnever\n"));
    let next = fake.queue(Payload::script(&["true"]));
    assert_eq!(fake.finished(next, SOON).state, State::Success);
    runner.finish();
}

#[test]
fn an_abort_overrides_a_cancel_that_is_under_way() {
    let sleep = processes::unique_sleep();
    let after = processes::unique_sleep();
    let payload = Payload::script(&["echo begun", &format!("sleep {sleep}")])
        .after(&[&format!("echo after: $CI_JOB_STATUS; sleep {after}")]);
    let (fake, host, runner, id) = begun("", payload);
    fake.cancel(id);
    fake.says(id, "\nafter: canceled\n", SOON);
    fake.force_cancel(id);
    eventually("after_script is gone", SOON, || processes::with_command(&after).is_empty().then_some(()));
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn a_script_that_ignores_term_is_killed_when_its_time_is_over() {
    let sleep = processes::unique_sleep();
    let script = ["trap '' TERM", "echo begun", &format!("while true; do sleep {sleep}; done")];
    let (fake, host, runner, id) = begun("  cancel_timeout = 1", Payload::script(&script));
    let from = Instant::now();
    fake.cancel(id);
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Canceled);
    let took = from.elapsed();
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(10), "it took {took:?}");
    assert!(processes::with_command(&sleep).is_empty());
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn daemonised_children_do_not_outlive_their_job() {
    let (a, b, c) = (processes::unique_sleep(), processes::unique_sleep(), processes::unique_sleep());
    let script = [
        format!("setsid sleep {a} >/dev/null 2>&1 &"),
        format!("(setsid env -i /bin/sleep {b} >/dev/null 2>&1 &)"),
        format!("nohup sh -c 'sleep {c} & exit 0' >/dev/null 2>&1"),
        "echo done".to_owned(),
    ];
    let lines: Vec<&str> = script.iter().map(String::as_str).collect();
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&lines));
    let runner = host.start();
    let job = fake.finished(id, SOON);
    for sleep in [&a, &b, &c] {
        assert!(processes::with_command(sleep).is_empty(), "sleep {sleep} lives after the final update");
    }
    assert_eq!(job.state, State::Success, "{}", job.text());
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn an_entry_may_leave_processes_alone() {
    let sleep = processes::unique_sleep();
    let fake = GitLab::start();
    let host = Host::bare().entry(&fake, TOKEN, "  keep_processes = true");
    let id = fake.queue(Payload::script(&[&format!("setsid sleep {sleep} >/dev/null 2>&1 &"), "echo done"]));
    let runner = host.start();
    assert_eq!(fake.finished(id, SOON).state, State::Success);
    eventually("no job directory is left", SOON, || host.jobs().is_empty().then_some(()));
    let left = processes::with_command(&sleep);
    left.iter().for_each(|p| processes::signal(p.pid, rustix::process::Signal::KILL));
    assert_eq!(left.len(), 1, "{left:?}");
    runner.finish();
}

#[test]
fn a_job_that_was_canceled_before_its_first_update_is_finished_without_running() {
    let fake = GitLab::with(|o| o.cancel_when_acknowledged = true);
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["echo never"]));
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Canceled);
    assert!(!job.text().contains("\nnever\n"), "{}", job.text());
    host.assert_idle(&runner);
    runner.finish();
}
