//! The rows of the kill-point list that no other file has: pause the real binary at a named point or
//! between two requests, kill it, start it again, and look at server, directory and process table.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::signals::until_file;
use crate::support::binary::{Host, Runner, SmallDisk};
use crate::support::gitlab::{GitLab, State, TOKEN};
use crate::support::http::{ALWAYS, Fault, ONCE, Response};
use crate::support::payload::Payload;
use crate::support::{SOON, at_once, eventually, processes, root_or_skip, tick};

/// A script that notes each run in the host's directory.
fn noting(host: &Host, more: &[&str]) -> Payload {
    let note = format!("echo ran >> {}", host.path("ran").display());
    Payload::script(&[&[note.as_str()], more].concat())
}

#[track_caller]
fn assert_ran_once(host: &Host) {
    assert_eq!(fs::read_to_string(host.path("ran")).unwrap_or_default(), "ran\n");
}

/// A host whose job has printed `begun` and ends when `go` appears.
fn begun(host: Host, fake: &GitLab) -> (Host, Runner, u64) {
    let id = fake.queue(noting(&host, &["echo begun", &until_file(&host, "go"), "echo over"]));
    let runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    (host, runner, id)
}

#[test]
fn kp01_a_manager_killed_between_directory_and_spawn_runs_the_job_once() {
    let points = ["directory-filled", "directory-renamed", "confirm-answered", "confirmed", "before-spawn", "spawned"];
    at_once(points.to_vec(), |point| {
        let fake = GitLab::with(|o| o.acknowledge_within = Duration::from_millis(1000));
        let mut host = Host::new(&fake);
        let pause = host.pause(point);
        let id = fake.queue(noting(&host, &["seq 1 50"]));
        let mut runner = host.start();
        let pid = pause.reached();
        assert_eq!(pid, runner.pid(), "{point} is a point of the manager");
        runner.kill();
        host.no_pause();
        let runner = host.start();
        let job = fake.finished(id, SOON);
        assert_eq!(job.state, State::Success, "{point}:\n{}", job.text());
        assert_ran_once(&host);
        host.assert_idle(&runner);
        runner.finish();
    });
}

#[test]
fn kp03_a_job_whose_answer_was_on_the_wire_is_given_again() {
    let fake = GitLab::with(|o| o.acknowledge_within = Duration::from_millis(700));
    let host = Host::new(&fake);
    fake.fail("poll", ONCE, Fault::Slow(Duration::from_secs(5)));
    let id = fake.queue(noting(&host, &[]));
    let mut runner = host.start();
    fake.wait(id, "it is handed out", SOON, |job| (!job.deliveries.is_empty()).then_some(()));
    runner.kill();
    fake.server.release();
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!((job.state, job.redeliveries()), (State::Success, 1));
    assert_ran_once(&host);
    runner.finish();
}

#[test]
fn kp07_an_end_is_never_taken_for_a_crash() {
    use runner::jobdir::{JobDir, Started, State};
    use runner::model::{ForgeKind, JobName, Outcome, VERSION};
    let tmp = tempfile::tempdir().unwrap();
    let started = Started {
        version: VERSION,
        boot_id: runner::clock::boot_id(),
        at: runner::clock::BootTime::now(),
        pid: 1,
        start_time: 1,
        tag: "x=y".into(),
        cgroup: None,
    };
    for n in 0..10_000 {
        let name = JobName::new(ForgeKind::Spool, "", &n.to_string());
        let dir = JobDir::create(tmp.path(), &name, |d| d.write_started(&started)).unwrap();
        let lock = dir.try_lock().unwrap().expect("nobody else knows it");
        let other = dir.again().unwrap();
        std::thread::scope(|scope| {
            let looks = scope.spawn(move || {
                loop {
                    match other.inspect().unwrap() {
                        State::Running => std::thread::yield_now(),
                        State::Ended(..) => return true,
                        State::NeverStarted(_) | State::Crashed(..) => return false,
                    }
                }
            });
            dir.write_outcome(&Outcome::success()).unwrap();
            drop(lock);
            assert!(looks.join().unwrap(), "end number {n} was taken for a crash");
        });
        fs::remove_dir_all(dir.path()).unwrap();
    }
}

#[test]
fn kp08_two_servers_may_use_the_same_job_id() {
    let (one, two) = (GitLab::start(), GitLab::start());
    let host = Host::new(&one).entry(&two, TOKEN, "").global("concurrent = 2");
    let script = ["echo begun", &until_file(&host, "go")];
    for fake in [&one, &two] {
        fake.queue(Payload::script(&script).id(77));
    }
    let runner = host.start();
    for fake in [&one, &two] {
        fake.says(77, "\nbegun\n", SOON);
    }
    assert_eq!(host.jobs().len(), 2);
    fs::write(host.path("go"), "").unwrap();
    for fake in [&one, &two] {
        assert_eq!(fake.finished(77, SOON).state, State::Success);
    }
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp08_a_job_that_is_held_already_is_not_run_again() {
    let fake = GitLab::with(|o| o.acknowledge_within = Duration::from_millis(600));
    let host = Host::new(&fake).global("concurrent = 2");
    // The first update does not get through until the server has given the job again.
    fake.fail("confirm", 1..=6, Fault::Status(500));
    let id = fake.queue(noting(&host, &["sleep 1"]));
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success, "{}", job.text());
    assert_ran_once(&host);
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp09_a_disk_that_the_log_fills_does_not_change_the_result() {
    if !root_or_skip("kp09_a_disk_that_the_log_fills_does_not_change_the_result", "it mounts a small tmpfs") {
        return;
    }
    for (last, state, code) in [("true", State::Success, None), ("exit 5", State::Failed, Some(5))] {
        let fake = GitLab::start();
        let host = Host::bare().entry(&fake, TOKEN, "  output_limit = 100000").global("min_free_disk = 0");
        let Some(_disk) = SmallDisk::mount(&host.state(), 1024) else { return };
        fs::set_permissions(host.state(), fs::Permissions::from_mode(0o700)).unwrap();
        let id = fake.queue(Payload::script(&["seq 1 1000000", last]));
        let mut runner = host.start();
        let job = fake.finished(id, SOON);
        assert_eq!((job.state, job.exit_code()), (state, code), "{:.500}", job.text());
        assert!(runner.is_alive());
        host.assert_idle(&runner);
        let next = fake.queue(Payload::script(&["echo next"]));
        assert_eq!(fake.finished(next, SOON).state, State::Success);
        runner.finish();
    }
}

#[test]
fn kp09_no_job_is_asked_for_while_the_disk_is_nearly_full() {
    let fake = GitLab::start();
    let host = Host::new(&fake).global("min_free_disk = 1000000000000000");
    let mut runner = host.start();
    runner.says("free", SOON);
    tick(Duration::from_millis(1200));
    assert_eq!(fake.server.count("poll"), 0);
    assert!(runner.is_alive());
    runner.finish();
}

#[test]
fn kp10_a_dead_servers_finished_job_does_not_hold_the_slot() {
    let (dead, alive) = (GitLab::start(), GitLab::start());
    let host = Host::new(&dead).entry(&alive, TOKEN, "").timing("deliver_after=500");
    dead.fail("final", ALWAYS, Fault::Status(503));
    let id = dead.queue(Payload::script(&["echo first"]));
    let runner = host.start();
    dead.server.request("final", 1, SOON);
    let from = Instant::now();
    let second = alive.queue(Payload::script(&["echo second"]));
    assert_eq!(alive.finished(second, SOON).state, State::Success);
    assert!(from.elapsed() < Duration::from_secs(8), "{:?}", from.elapsed());
    assert_eq!(dead.job(id).state, State::Running);
    dead.server.heal();
    assert_eq!(dead.finished(id, SOON).state, State::Success);
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp12_a_killed_job_process_shows_its_last_words_and_hands_on_no_descriptor() {
    let fake = GitLab::start();
    // Neither its own nor what a supervisor left open in the manager.
    let host = Host::new(&fake).wrap(&["sh", "-c", "exec 7</dev/null 8>/dev/null; exec \"$0\" \"$@\""]);
    let id = fake.queue(Payload::script(&["ls /proc/self/fd | tr '\\n' ' '; echo are open", "echo begun", "sleep 60"]));
    let mut runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    let log = fake.job(id).text();
    // 3 is the directory that ls itself reads.
    assert!(log.contains("\n0 1 2 3 are open\n"), "{log}");
    let job = host.job_process();
    runner.kill();
    use std::io::Write as _;
    let mut stderr = fs::OpenOptions::new().append(true).open(host.job_dir().join("stderr")).unwrap();
    stderr.write_all(b"thread 'main' panicked: these are the last words\n").unwrap();
    processes::signal(job, Signal::KILL);
    let runner = host.start();
    let ended = fake.finished(id, SOON);
    assert_eq!(ended.failure_reason(), Some("runner_system_failure"));
    assert!(ended.text().contains("these are the last words"), "{}", ended.text());
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp13_a_crash_text_does_not_quote_a_secret() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["echo begun", "sleep 60"]).masked("SECRET", "hunter2-hunter2"));
    let runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    use std::io::Write as _;
    let append = |name: &str, text: &[u8]| {
        let path = host.job_dir().join(name);
        fs::OpenOptions::new().create(true).append(true).open(path).and_then(|mut f| f.write_all(text)).unwrap();
    };
    append("masks", b"\"found-at-run-time\"\n\"half a li");
    append("stderr", b"panicked at 'hunter2-hunter2 and found-at-run-time'\n");
    processes::signal(host.job_process(), Signal::KILL);
    let job = fake.finished(id, SOON);
    let log = String::from_utf8_lossy(&job.stored).into_owned();
    assert!(log.contains("[MASKED] and [MASKED]"), "{log}");
    assert!(!log.contains("hunter2") && !log.contains("run-time"), "{log}");
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp14_a_server_with_more_log_than_we_have_gets_the_rest_and_no_checksum() {
    let fake = GitLab::with(|o| o.checksum_optional = true);
    let (host, mut runner, id) = begun(Host::new(&fake), &fake);
    let job = host.job_process();
    eventually("all that was printed is sent", SOON, || {
        let local = fs::read(host.job_dir().join("log")).ok()?;
        (fake.job(id).stored == local).then_some(())
    });
    runner.kill();
    processes::signal(job, Signal::KILL);
    let stored = fake.job(id).stored;
    let log = host.job_dir().join("log");
    fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(stored.len() as u64 / 2).unwrap();
    let runner = host.start();
    let ended = fake.finished(id, SOON);
    assert_eq!(ended.state, State::Failed);
    assert_eq!(ended.stored[..stored.len()], stored, "what the server had is untouched");
    assert!(ended.last.as_ref().unwrap()["output"].get("checksum").is_none());
    assert!(ended.text().contains("system failure"), "{}", ended.text());
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp15_a_wrong_note_of_what_was_sent_is_repaired_by_the_server() {
    for note in [&0_u64.to_le_bytes()[..], &(u64::MAX / 2).to_le_bytes(), b"garbage", b"", b"\xff"] {
        let fake = GitLab::start();
        let (host, mut runner, id) = begun(Host::new(&fake), &fake);
        runner.kill();
        fs::write(host.job_dir().join("sent"), note).unwrap();
        let runner = host.start();
        tick(Duration::from_millis(100));
        fs::write(host.path("go"), "").unwrap();
        let job = fake.finished(id, SOON);
        assert_eq!(job.state, State::Success);
        assert_eq!(job.text().matches("\nbegun\n").count(), 1, "{note:?}: {}", job.text());
        assert!(job.text().contains("\nover\n"));
        host.assert_idle(&runner);
        runner.finish();
    }
}

#[test]
fn kp16_broken_directories_are_put_aside_and_polling_begins() {
    let fake = GitLab::start();
    let (host, mut runner, _) = begun(Host::new(&fake), &fake);
    let job = host.job_process();
    runner.kill();
    processes::signal(job, Signal::KILL);
    let good = host.job_dir();
    let files = ["job.json", "lease.json", "started", "sent", "orphan_until", "lock", "log", "stderr", "outcome.json"];
    let mut n = 0;
    for file in files {
        for content in [None, Some(&b""[..]), Some(b"\0garbage{\xff")] {
            n += 1;
            let bad = host.state().join("jobs").join(format!("gitlab-0badf00d-{n}"));
            copy_dir(&good, &bad);
            let _ = fs::remove_file(bad.join(file));
            content.into_iter().for_each(|c| fs::write(bad.join(file), c).unwrap());
        }
    }
    for hidden in [".new-gitlab-00000000-1", ".gone-gitlab-00000000-2"] {
        copy_dir(&good, &host.state().join("jobs").join(hidden));
    }
    fs::create_dir(host.state().join("jobs/gitlab-00000000-3")).unwrap();
    fs::write(host.state().join("jobs/a-file"), "x").unwrap();
    let polls = fake.server.count("poll");
    let from = Instant::now();
    let mut runner = host.start();
    // The last directories are reported beside the polling: twenty-nine of them at one server.
    eventually("a directory with no lease is put aside", SOON, || {
        let broken = fs::read_dir(host.state().join("broken")).ok()?.count();
        (broken >= 4).then_some(())
    });
    assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
    let next = fake.queue(Payload::script(&["true"]));
    assert_eq!(fake.finished(next, SOON).state, State::Success);
    assert!(fake.server.count("poll") > polls && runner.is_alive());
    assert!(!host.state().join("jobs/.new-gitlab-00000000-1").exists());
    runner.stop(Signal::TERM, SOON);
    // Copies of one job say its end many times over: that is this test's doing.
    fake.take_violations();
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn kp18_a_time_limit_is_the_same_after_a_restart_of_the_manager() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["echo begun", "sleep 60"]).timeout(3));
    let mut runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    let from = Instant::now();
    tick(Duration::from_millis(1500));
    runner.kill();
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.failure_reason(), Some("job_execution_timeout"));
    let took = from.elapsed();
    assert!(took > Duration::from_millis(2000) && took < Duration::from_millis(6000), "{took:?}");
    runner.finish();
}

#[test]
fn kp20_a_state_directory_with_a_very_long_path_works() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let state = host.path(&"s".repeat(150));
    let host = host.global(&format!("state_dir = {state:?}"));
    let id = fake.queue(Payload::script(&["echo begun", "sleep 60"]));
    let runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    fake.cancel(id);
    assert_eq!(fake.finished(id, SOON).state, State::Canceled);
    runner.finish();
}

#[test]
fn kp21_a_binary_that_is_replaced_or_deleted_goes_on_running_jobs() {
    for replace in [false, true] {
        let fake = GitLab::start();
        let host = Host::new(&fake);
        let binary = host.path("runner-copy");
        fs::copy(env!("CARGO_BIN_EXE_runner"), &binary).unwrap();
        let host = host.binary(&binary);
        let runner = host.start();
        fake.server.request("poll", 1, SOON);
        fs::remove_file(&binary).unwrap();
        if replace {
            fs::write(&binary, "#!/bin/sh\nexit 1\n").unwrap();
            fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let id = fake.queue(Payload::script(&["echo hi"]));
        assert_eq!(fake.finished(id, SOON).state, State::Success);
        runner.finish();
    }
}

#[test]
fn kp21_directories_of_the_release_before_are_taken_up() {
    use runner::model::{ForgeKind, JobName};
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let ended = fake.queue(Payload::script(&[]).id(1001));
    fake.was_confirmed(ended);
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/jobdir-1");
    // All of its log had been sent, as its note says.
    fake.append(ended, &fs::read(data.join("ended/log")).unwrap());
    let taken = fake.queue(Payload::script(&[]).id(1002));
    fake.set_state(taken, State::Waiting(Instant::now() + SOON));
    fs::create_dir_all(host.state().join("jobs")).unwrap();
    fs::set_permissions(host.state(), fs::Permissions::from_mode(0o700)).unwrap();
    for (kind, id) in [("ended", ended), ("taken", taken)] {
        let name = JobName::new(ForgeKind::Gitlab, &fake.url(), &id.to_string());
        let to = host.state().join("jobs").join(name.as_str());
        copy_dir(&data.join(kind), &to);
        for file in ["lease.json", "job.json"].map(|f| to.join(f)).into_iter().filter(|f| f.exists()) {
            let text = fs::read_to_string(&file).unwrap();
            let text = text.replace("@URL@", &fake.url()).replace("@HOST@", &host.path("").display().to_string());
            fs::write(file, text).unwrap();
        }
    }
    let runner = host.start();
    for id in [ended, taken] {
        let job = fake.finished(id, SOON);
        assert_eq!(job.state, State::Success, "{}", job.text());
        assert!(job.text().contains("\nof the release before\n"), "{}", job.text());
    }
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp23_a_job_process_that_stopped_answering_is_killed_with_its_tree() {
    for adopted in [false, true] {
        let fake = GitLab::start();
        let sleep = processes::unique_sleep();
        let host = Host::bare()
            .entry(&fake, TOKEN, "  cancel_timeout = 1")
            .timing("channel_timeout=500,channel_write=200,force_send=100,kill_lead=100");
        let id = fake.queue(Payload::script(&["echo begun", &format!("sleep {sleep}")]));
        let mut runner = host.start();
        fake.says(id, "\nbegun\n", SOON);
        let job = host.job_process();
        processes::signal(job, Signal::STOP);
        if adopted {
            runner.kill();
            runner = host.start();
        }
        let from = Instant::now();
        fake.cancel(id);
        fake.finished(id, SOON);
        assert!(from.elapsed() < Duration::from_secs(15), "adopted: {adopted}: {:?}", from.elapsed());
        assert!(!processes::is_alive(job) && processes::with_command(&sleep).is_empty());
        host.assert_idle(&runner);
        runner.finish();
    }
}

#[test]
fn kp24_a_cancel_that_three_managers_repeat_is_one_term_and_one_deadline() {
    let fake = GitLab::start();
    let host = Host::bare().entry(&fake, TOKEN, "  cancel_timeout = 3").timing("force_send=100");
    let script = ["trap 'echo got TERM' TERM", "echo begun", "while true; do sleep 0.05 || true; done"];
    let id = fake.queue(Payload::script(&script));
    let mut runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    let from = Instant::now();
    fake.cancel(id);
    fake.says(id, "\ngot TERM\n", SOON);
    for _ in 0..2 {
        runner.kill();
        runner = host.start();
        let touches = fake.server.count("touch");
        fake.server.request("touch", touches + 2, SOON);
    }
    let job = fake.finished(id, SOON);
    let took = from.elapsed();
    assert_eq!(job.state, State::Canceled);
    assert_eq!(job.text().matches("\ngot TERM\n").count(), 1, "{}", job.text());
    assert!(took > Duration::from_millis(2500) && took < Duration::from_secs(8), "killed after {took:?}");
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp25_only_what_the_server_says_is_final_drops_a_job() {
    let with_status = |status: u16, word: &str| Fault::Answer(Response::empty(status).with("Job-Status", word));
    let goes_on = vec![
        Fault::Status(202),
        Fault::Status(400),
        Fault::Status(401),
        Fault::Status(409),
        Fault::Status(412),
        Fault::Status(422),
        Fault::Status(500),
        Fault::Html,
        Fault::Reset,
        with_status(200, "whatever"),
    ];
    let drops = vec![Fault::Status(403), Fault::Status(404), with_status(200, "canceled"), with_status(200, "failed")];
    let cases = goes_on.into_iter().map(|f| (f, true)).chain(drops.into_iter().map(|f| (f, false)));
    at_once(cases.collect(), |(fault, runs)| {
        let word = format!("{fault:?}");
        let fake = GitLab::with(|o| o.two_phase = false);
        let host = Host::new(&fake);
        fake.fail("confirm", ONCE, fault);
        let id = fake.queue(noting(&host, &[]));
        let runner = host.start();
        if runs {
            assert_eq!(fake.finished(id, SOON).state, State::Success, "{word}");
            assert_ran_once(&host);
        } else {
            fake.server.request("poll", 2, SOON);
            assert!(!host.path("ran").exists(), "{word}: it ran");
            assert_eq!(fake.server.count("final"), 0, "{word}");
        }
        host.assert_idle(&runner);
        runner.finish();
        let bad = fake.take_violations();
        assert!(bad.is_empty(), "{word}: {bad:?}");
    });
}

#[test]
fn kp25_a_job_that_was_taken_and_killed_hears_the_same_answers() {
    for (fault, runs) in [(Fault::Status(500), true), (Fault::Status(403), false), (Fault::Status(404), false)] {
        let word = format!("{fault:?}");
        let fake = GitLab::start();
        let mut host = Host::new(&fake);
        let pause = host.pause("directory-renamed");
        let id = fake.queue(noting(&host, &[]));
        let mut runner = host.start();
        pause.reached();
        runner.kill();
        host.no_pause();
        fake.fail("confirm", ONCE, fault);
        let runner = host.start();
        if runs {
            assert_eq!(fake.finished(id, SOON).state, State::Success, "{word}");
        } else {
            fake.server.request("confirm", 1, SOON);
        }
        host.assert_idle(&runner);
        assert_eq!(host.path("ran").exists(), runs, "{word}");
        runner.finish();
    }
}

#[test]
fn kp28_an_operating_systems_shutdown_leaves_an_outcome_within_seconds() {
    let fake = GitLab::start();
    let (host, mut runner, id) = begun(Host::new(&fake).global("shutdown_timeout = 1"), &fake);
    let job = host.job_process();
    processes::signal(job, Signal::INT);
    tick(Duration::from_millis(200));
    assert!(processes::is_alive(job), "INT is not meant for it");
    // The server is not reached any more: the network goes first.
    fake.fail("final", ALWAYS, Fault::Reset);
    let from = Instant::now();
    runner.signal(Signal::TERM);
    processes::signal(job, Signal::TERM);
    let dir = host.job_dir();
    eventually("the outcome", SOON, || dir.join("outcome.json").exists().then_some(()));
    assert!(from.elapsed() < Duration::from_secs(4), "{:?}", from.elapsed());
    runner.wait(SOON);
    fake.server.heal();
    let runner = host.start();
    let ended = fake.finished(id, SOON);
    assert_eq!((ended.state, ended.failure_reason()), (State::Failed, Some("runner_interrupted")));
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp28_a_shutdown_that_reaches_only_the_job_process_is_reported() {
    let fake = GitLab::start();
    let (host, runner, id) = begun(Host::new(&fake), &fake);
    processes::signal(host.job_process(), Signal::TERM);
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Failed);
    assert_ne!(job.failure_reason(), Some("script_failure"));
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp29_no_token_of_an_entry_lies_in_the_state_directory() {
    let fake = GitLab::start();
    let (host, runner, id) = begun(Host::new(&fake), &fake);
    let found = grep(&host.state(), b"glrt-");
    assert!(found.is_empty(), "{found:?}");
    fs::write(host.path("go"), "").unwrap();
    fake.fail("final", 1..=3, Fault::Status(500));
    let dir = host.job_dir();
    eventually("the outcome", SOON, || (dir.join("outcome.json").exists() || !dir.exists()).then_some(()));
    eventually("job.json is gone", SOON, || (!dir.join("job.json").exists()).then_some(()));
    assert_eq!(fake.finished(id, SOON).state, State::Success);
    runner.finish();
}

/// Files below a directory that hold these bytes.
fn grep(dir: &Path, bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else if fs::read(entry.path()).is_ok_and(|t| t.windows(bytes.len()).any(|w| w == bytes)) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    found
}

#[test]
fn kp29_a_script_cannot_read_the_environment_of_manager_or_job_process() {
    let fake = GitLab::start();
    let Some(host) = Host::new(&fake).env("MANAGER_SECRET", "the-managers-own").unprivileged() else {
        eprintln!("skipped: kp29_a_script_cannot_read_… shows nothing as root, and setpriv is not here");
        return;
    };
    let script = [
        "cat /proc/$PPID/environ && echo READ || true",
        "m=$(awk '/^PPid/ {print $2}' /proc/$PPID/status)",
        "echo the manager is $m",
        "cat /proc/$m/environ && echo READ || true",
        "env | grep MANAGER_SECRET || echo not in mine",
    ];
    let id = fake.queue(Payload::script(&script));
    let runner = host.start();
    let job = fake.finished(id, SOON);
    let log = job.text();
    assert_eq!(job.state, State::Success, "{log}");
    assert!(log.contains(&format!("the manager is {}\n", runner.pid())), "{log}");
    assert!(!log.contains("\nREAD\n"), "{log}");
    runner.finish();
}

#[test]
fn kp30_a_group_kill_at_the_spawn_loses_no_job() {
    let fake = GitLab::with(|o| o.acknowledge_within = Duration::from_millis(600));
    let mut host = Host::new(&fake);
    host.own_group = true;
    let ids: Vec<u64> = (0..12).map(|_| fake.queue(Payload::script(&["echo ran"]))).collect();
    let mut runner = host.start();
    for (n, id) in ids.iter().enumerate() {
        fake.wait(*id, "it is handed out", SOON, |job| (!job.deliveries.is_empty()).then_some(()));
        tick(Duration::from_micros(500 * n as u64));
        if !fake.job(*id).state.is_final() {
            runner.kill_group();
            runner = host.start();
        }
    }
    for id in ids {
        let job = fake.finished(id, SOON);
        assert_eq!(job.state, State::Success, "{}", job.text());
        assert_eq!(job.text().matches("\nran\n").count(), 1, "{}", job.text());
    }
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn kp31_orphans_are_reaped_as_they_die() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["echo begun", "for i in $(seq 1 5000); do ( : & ); done", "exit 7"]));
    let runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    let job = host.job_process();
    let mut most = 0;
    let mut before = Vec::new();
    while !fake.job(id).state.is_final() {
        let children = processes::children(job);
        let zombies: Vec<u32> = children.iter().filter(|p| p.is_zombie()).map(|p| p.pid).collect();
        // Those of the look before, too: on a busy host the reaper may have to wait for its turn.
        most = most.max(zombies.iter().filter(|pid| before.contains(*pid)).count());
        before = zombies;
        tick(Duration::from_millis(20));
    }
    let ended = fake.finished(id, Duration::from_secs(60));
    assert_eq!(ended.exit_code(), Some(7), "the stage's own status is not stolen");
    assert!(most < 10, "{most} zombies at a time");
    runner.finish();
}

#[test]
fn kp32_the_state_of_another_machine_is_left_alone() {
    let fake = GitLab::start();
    let (host, mut runner, _) = begun(Host::new(&fake), &fake);
    let job = host.job_process();
    runner.kill();
    processes::signal(job, Signal::KILL);
    let file = host.state().join("machine-id");
    let own = fs::read(&file).expect("the state directory says whose it is");
    fs::write(&file, "00000000000000000000000000000000\n").unwrap();
    let before = listing(&host.state());
    let mut second = host.start();
    assert_eq!(second.wait(SOON).code(), Some(75));
    assert_eq!(listing(&host.state()), before);
    fs::write(&file, own).unwrap();
    let runner = host.start();
    host.assert_idle(&runner);
    runner.finish();
}

/// Every file below a directory with its content.
fn listing(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else if entry.file_type().unwrap().is_file() && entry.file_name() != "lock" {
                all.insert(entry.path().display().to_string(), fs::read(entry.path()).unwrap());
            }
        }
    }
    all
}

#[test]
fn kp33_a_403_on_the_final_update_is_believed_after_three_tries() {
    // Once, in passing: the job is reported all the same.
    let fake = GitLab::start();
    let host = Host::new(&fake);
    fake.fail("final", ONCE, Fault::Status(403));
    let id = fake.queue(Payload::script(&["true"]));
    let runner = host.start();
    assert_eq!(fake.finished(id, SOON).state, State::Success);
    host.assert_idle(&runner);
    runner.finish();

    // For ever: three tries, and the slot is free again.
    let fake = GitLab::start();
    let host = Host::new(&fake).timing("forbidden_within=600");
    fake.fail("final", ALWAYS, Fault::Status(403));
    fake.queue(Payload::script(&["true"]));
    let runner = host.start();
    fake.server.request("final", 3, Duration::from_secs(90));
    host.assert_idle(&runner);
    assert_eq!(fake.server.count("final"), 3);
    runner.finish();
}

#[test]
fn kp33_a_manager_killed_after_the_final_answer_finds_the_job_done() {
    for point in ["settled", "delivered"] {
        let fake = GitLab::start();
        let mut host = Host::new(&fake);
        let pause = host.pause(point);
        let id = fake.queue(noting(&host, &[]));
        let mut runner = host.start();
        pause.reached();
        assert_eq!(fake.job(id).state, State::Success, "{point}");
        runner.kill();
        host.no_pause();
        let runner = host.start();
        host.assert_idle(&runner);
        assert_ran_once(&host);
        runner.finish();
    }
}

#[test]
fn kp36_a_stage_is_the_first_to_go_when_memory_is_short() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let script = ["echo stage $(cat /proc/self/oom_score_adj)", "echo parent $(cat /proc/$PPID/oom_score_adj)"];
    let id = fake.queue(Payload::script(&script));
    let runner = host.start();
    let own = fs::read_to_string(format!("/proc/{}/oom_score_adj", runner.pid())).unwrap();
    let job = fake.finished(id, SOON);
    assert!(job.text().contains("\nstage 300\n"), "{}", job.text());
    assert!(job.text().contains(&format!("\nparent {}\n", own.trim())), "{}", job.text());
    runner.finish();
}
