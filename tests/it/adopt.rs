//! What survives what: the manager killed, the job process killed, both, the host restarted, nobody
//! there when the job ends, nobody there for too long, and two managers at once.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::signals::until_file;
use crate::support::binary::{Host, Runner};
use crate::support::gitlab::{GitLab, Job, State, TOKEN};
use crate::support::payload::Payload;
use crate::support::{SOON, eventually, processes};

/// A host whose job has printed `begun` and goes on when `go` appears in the host's directory.
struct Scene {
    // Dropped in this order: the runner's log is in the host's directory.
    runner: Runner,
    host: Host,
    fake: GitLab,
    id: u64,
}

fn begun(timing: &str, more: &[&str]) -> Scene {
    let fake = GitLab::start();
    let mut host = Host::new(&fake);
    if !timing.is_empty() {
        host = host.timing(timing);
    }
    let wait = until_file(&host, "go");
    let ran = format!("echo ran >> {}", host.path("ran").display());
    let script = [&[ran.as_str()], more, &["echo begun", wait.as_str(), "seq 1 500", "echo over"]].concat();
    let id = fake.queue(Payload::script(&script));
    let runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    Scene { fake, host, runner, id }
}

impl Scene {
    fn go(&self) {
        fs::write(self.host.path("go"), "").unwrap();
    }

    /// The job ends well, with everything that it printed, and ran once.
    #[track_caller]
    fn assert_success(self) {
        let job = self.fake.finished(self.id, SOON);
        assert_eq!(job.state, State::Success, "{}", job.text());
        assert_whole(&job);
        assert_eq!(fs::read_to_string(self.host.path("ran")).unwrap(), "ran\n");
        self.host.assert_idle(&self.runner);
        self.runner.finish();
    }

    #[track_caller]
    fn assert_system_failure(self, text: &str) {
        let job = self.fake.finished(self.id, SOON);
        assert_eq!((job.state, job.failure_reason()), (State::Failed, Some("runner_system_failure")));
        assert!(job.text().contains(text), "{text:?} is not in\n{}", job.text());
        assert!(job.text().contains("\nbegun\n"), "{}", job.text());
        self.host.assert_idle(&self.runner);
        self.runner.finish();
    }
}

#[track_caller]
fn assert_whole(job: &Job) {
    let log = job.text();
    let want: String = (1..=500).map(|i| format!("{i}\n")).collect();
    assert!(log.contains(&format!("$ seq 1 500\n{want}")), "{log}");
    assert!(log.contains("\nover\n") && log.contains("\nbegun\n"));
}

#[test]
fn a_job_outlives_its_manager() {
    let mut scene = begun("", &[]);
    let job = scene.host.job_process();
    scene.runner.kill();
    assert!(processes::is_alive(job));
    scene.runner = scene.host.start();
    scene.runner.says("from an earlier run", SOON);
    assert!(processes::is_alive(job));
    scene.go();
    scene.assert_success();
}

#[test]
fn a_job_outlives_five_managers() {
    let mut scene = begun("", &[]);
    for n in 0..5 {
        scene.runner.kill();
        scene.runner = scene.host.start();
        scene.fake.server.request("poll", 1, SOON);
        crate::support::tick(Duration::from_millis(40 * n));
    }
    scene.go();
    scene.assert_success();
}

#[test]
fn a_job_that_ends_while_no_manager_is_there_is_reported_at_the_next_start() {
    let mut scene = begun("", &[]);
    scene.runner.kill();
    scene.go();
    let dir = scene.host.job_dir();
    eventually("the outcome", SOON, || dir.join("outcome.json").exists().then_some(()));
    assert_eq!(scene.fake.job(scene.id).state, State::Running);
    scene.runner = scene.host.start();
    scene.assert_success();
}

#[test]
fn a_job_whose_process_is_killed_is_a_system_failure_with_its_last_words() {
    let (a, b) = (processes::unique_sleep(), processes::unique_sleep());
    let children = format!("setsid sleep {a} >/dev/null 2>&1 & setsid env -i /bin/sleep {b} >/dev/null 2>&1 &");
    let scene = begun("", &[&children]);
    eventually("its children", SOON, || (processes::with_command(&b).len() == 1).then_some(()));
    fs::OpenOptions::new()
        .append(true)
        .open(scene.host.job_dir().join("stderr"))
        .and_then(|mut f| std::io::Write::write_all(&mut f, b"some last words\n"))
        .unwrap();
    processes::signal(scene.host.job_process(), Signal::KILL);
    scene.fake.finished(scene.id, SOON);
    for sleep in [&a, &b] {
        assert!(processes::with_command(sleep).is_empty(), "sleep {sleep} lives after the final update");
    }
    scene.assert_system_failure("some last words");
}

#[test]
fn manager_and_job_process_killed_together_are_a_system_failure() {
    let sleep = processes::unique_sleep();
    let mut scene = begun("", &[&format!("setsid sleep {sleep} >/dev/null 2>&1 &")]);
    let job = scene.host.job_process();
    scene.runner.kill();
    processes::signal(job, Signal::KILL);
    scene.runner = scene.host.start();
    scene.fake.finished(scene.id, SOON);
    assert!(processes::with_command(&sleep).is_empty());
    scene.assert_system_failure("ERROR: Job failed (system failure)");
}

#[test]
fn a_host_that_restarted_under_a_job_is_said() {
    let mut scene = begun("", &[]);
    let job = scene.host.job_process();
    scene.runner.kill();
    processes::signal(job, Signal::KILL);
    let started = scene.host.job_dir().join("started");
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&started).unwrap()).unwrap();
    // A restart leaves no process, and this one is forged.
    scene.host.left_over().iter().for_each(|p| processes::signal(p.pid, Signal::KILL));
    text["boot_id"] = "00000000-0000-0000-0000-000000000000".into();
    fs::write(&started, text.to_string()).unwrap();
    scene.runner = scene.host.start();
    scene.assert_system_failure("restarted");
}

#[test]
fn kp11_a_job_without_a_manager_goes_on_until_its_time_and_no_longer() {
    // Long enough: adopted and successful, though the wait is longer than many a default.
    let mut scene = begun("orphan_gitlab=60000", &[]);
    scene.runner.kill();
    crate::support::tick(Duration::from_millis(1500));
    scene.runner = scene.host.start();
    scene.go();
    scene.assert_success();

    // Too long: the job process ends it, and the outcome waits for the next manager.
    let mut scene = begun("orphan_gitlab=700,force_send=100", &[]);
    scene.runner.kill();
    let dir = scene.host.job_dir();
    eventually("the outcome", SOON, || dir.join("outcome.json").exists().then_some(()));
    let outcome = fs::read_to_string(dir.join("outcome.json")).unwrap();
    assert!(outcome.contains("orphaned"), "{outcome}");
    scene.runner = scene.host.start();
    let job = scene.fake.finished(scene.id, SOON);
    assert_eq!(job.state, State::Failed, "{}", job.text());
    scene.host.assert_idle(&scene.runner);
    scene.runner.finish();
}

#[test]
fn adoption_timeout_shortens_how_long_a_job_may_be_alone() {
    let fake = GitLab::start();
    let host = Host::new(&fake).global("adoption_timeout = 1").timing("force_send=100");
    let id = fake.queue(Payload::script(&["echo begun", &until_file(&host, "never")]));
    let mut runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    runner.kill();
    let from = Instant::now();
    let dir = host.job_dir();
    eventually("the outcome", SOON, || dir.join("outcome.json").exists().then_some(()));
    assert!(from.elapsed() < Duration::from_secs(10), "{:?}", from.elapsed());
    let runner = host.start();
    assert_eq!(fake.finished(id, SOON).state, State::Failed);
    runner.finish();
}

#[test]
fn a_second_manager_on_the_same_state_leaves_with_75_and_names_the_first() {
    let scene = begun("state_lock=300", &[]);
    let mut second = scene.host.start();
    assert_eq!(second.wait(SOON).code(), Some(75));
    let said = second.log();
    assert!(said.contains(&scene.runner.pid().to_string()), "{said}");
    scene.go();
    // The second one's end was no restart of the first.
    scene.assert_success();
}

#[test]
fn kp17_a_state_directory_that_is_free_again_soon_is_waited_for() {
    use rustix::fs::{FlockOperation, flock};
    let fake = GitLab::start();
    let host = Host::new(&fake).timing("state_lock=5000");
    let first = host.start();
    fake.server.request("poll", 1, SOON);
    first.finish();
    let lock = fs::OpenOptions::new().write(true).open(host.state().join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let polls = fake.server.count("poll");
    let runner = host.start();
    crate::support::tick(Duration::from_millis(700));
    assert_eq!(fake.server.count("poll"), polls, "it polls while another holds the state");
    drop(lock);
    fake.server.request("poll", polls + 1, SOON);
    runner.finish();
}

#[test]
fn kp26_more_are_adopted_than_concurrent_allows_and_an_entry_that_left_is_not_needed() {
    let fake = GitLab::with(|o| o.tokens = vec![TOKEN.to_owned(), "glrt-other".to_owned()]);
    let mut host = Host::new(&fake).global("concurrent = 4");
    let script = ["echo begun", &until_file(&host, "go")];
    let ids: Vec<u64> = (0..4).map(|_| fake.queue(Payload::script(&script))).collect();
    let mut runner = host.start();
    ids.iter().for_each(|id| fake.says(*id, "\nbegun\n", SOON));
    runner.kill();
    host.forget_entries();
    let host = host.entry(&fake, "glrt-other", "").global("concurrent = 1");
    let polls = fake.server.count("poll");
    let next = fake.queue_for("glrt-other", Payload::script(&["true"]));
    let runner = host.start();
    fake.server.request("touch", 1, SOON);
    crate::support::tick(Duration::from_millis(1500));
    assert_eq!(fake.server.count("poll"), polls, "it polls although four jobs run at concurrent = 1");
    fs::write(host.path("go"), "").unwrap();
    ids.iter().for_each(|id| assert_eq!(fake.finished(*id, SOON).state, State::Success));
    assert_eq!(fake.finished(next, SOON).state, State::Success);
    host.assert_idle(&runner);
    runner.finish();
}
