//! Signals as design §9 decides them, the manager idle, polling and with a job.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::binary::{Host, Runner};
use crate::support::gitlab::{GitLab, State, TOKEN};
use crate::support::http::{Fault, ONCE};
use crate::support::payload::Payload;
use crate::support::{SOON, eventually, processes, root_or_skip};

/// A host with a job that has printed `begun` and ends when `file` appears.
fn with_job(global: &str) -> (GitLab, Host, Runner, u64) {
    let fake = GitLab::start();
    let host = Host::new(&fake).global(global);
    let id = fake.queue(Payload::script(&["echo begun", &until_file(&host, "go"), "echo over"]));
    let runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    (fake, host, runner, id)
}

/// A script line that waits for a file of the host.
pub(crate) fn until_file(host: &Host, name: &str) -> String {
    format!("until test -e {}; do sleep 0.02; done", host.path(name).display())
}

#[test]
fn an_idle_manager_leaves_at_once() {
    for signal in [Signal::QUIT, Signal::TERM, Signal::INT] {
        let fake = GitLab::with(|o| o.long_poll = Duration::from_secs(50));
        let host = Host::new(&fake);
        let mut runner = host.start();
        fake.server.request("poll", 1, SOON);
        let from = Instant::now();
        assert_eq!(runner.stop(signal, SOON), Some(0), "{signal:?}");
        assert!(from.elapsed() < Duration::from_secs(1), "{signal:?} took {:?}", from.elapsed());
    }
}

#[test]
fn quit_waits_for_the_job_and_takes_no_other() {
    let (fake, host, mut runner, id) = with_job("");
    let other = fake.queue(Payload::script(&["true"]));
    runner.signal(Signal::QUIT);
    runner.signal(Signal::QUIT);
    std::fs::write(host.path("go"), "").unwrap();
    assert_eq!(runner.wait(SOON).code(), Some(0));
    assert_eq!(fake.job(id).state, State::Success);
    assert_eq!(fake.job(other).state, State::Pending);
    assert!(host.jobs().is_empty());
}

#[test]
fn term_and_int_end_the_job_and_say_who_did_it() {
    for (signal, word) in [(Signal::TERM, "terminated"), (Signal::INT, "interrupt")] {
        let (fake, host, mut runner, id) = with_job("");
        assert_eq!(runner.stop(signal, SOON), Some(0));
        let job = fake.job(id);
        assert_eq!((job.state, job.failure_reason()), (State::Failed, Some("runner_interrupted")));
        assert!(job.text().ends_with(&format!("ERROR: Job failed: aborted: {word}\n")), "{}", job.text());
        assert!(host.jobs().is_empty() && host.left_over().is_empty());
    }
}

#[test]
fn a_stop_that_takes_too_long_leaves_the_rest_to_the_next_start() {
    let (fake, host, mut runner, id) = with_job("shutdown_timeout = 1");
    fake.fail("final", crate::support::http::ALWAYS, Fault::Status(500));
    assert_eq!(runner.stop(Signal::TERM, SOON), Some(1));
    assert_eq!(host.jobs().len(), 1);
    fake.server.heal();
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!((job.state, job.failure_reason()), (State::Failed, Some("runner_interrupted")));
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn a_second_term_leaves_at_once() {
    let fake = GitLab::start();
    let host = Host::new(&fake).global("shutdown_timeout = 60");
    let stubborn = ["trap '' TERM", "echo begun", "while true; do sleep 0.2; done"];
    let id = fake.queue(Payload::script(&stubborn));
    let mut runner = host.start();
    fake.says(id, "\nbegun\n", SOON);
    runner.signal(Signal::TERM);
    runner.says("TERM", SOON);
    let from = Instant::now();
    assert_eq!(runner.stop(Signal::TERM, SOON), Some(1));
    assert!(from.elapsed() < Duration::from_secs(2), "{:?}", from.elapsed());
}

#[test]
fn quit_then_term_ends_the_job() {
    let (fake, _host, mut runner, id) = with_job("");
    runner.signal(Signal::QUIT);
    crate::support::tick(Duration::from_millis(100));
    assert_eq!(runner.stop(Signal::TERM, SOON), Some(0));
    assert_eq!(fake.job(id).failure_reason(), Some("runner_interrupted"));
}

#[test]
fn hup_reads_the_configuration_again_and_leaves_jobs_alone() {
    let (fake, mut host, runner, id) = with_job("");
    let other = GitLab::start();
    let second = other.queue(Payload::script(&["true"]));
    host = host.entry(&other, TOKEN, "").global("concurrent = 2");
    host.write_config();
    runner.signal(Signal::HUP);
    assert_eq!(other.finished(second, SOON).state, State::Success);
    assert_eq!(fake.job(id).state, State::Running);
    std::fs::write(host.path("go"), "").unwrap();
    assert_eq!(fake.finished(id, SOON).state, State::Success);
    runner.finish();
}

#[test]
fn fewer_jobs_at_a_time_leave_a_worker_for_each() {
    let fake = GitLab::start();
    let mut host = Host::new(&fake).global("concurrent = 3");
    let runner = host.start();
    fake.server.request("poll", 1, SOON);
    host.set_global("concurrent = 1");
    host.write_config();
    runner.signal(Signal::HUP);
    runner.says("read again", SOON);
    for _ in 0..3 {
        let id = fake.queue(Payload::script(&["true"]));
        assert_eq!(fake.finished(id, SOON).state, State::Success);
    }
    runner.finish();
}

#[test]
fn a_changed_file_is_read_without_a_signal_and_a_broken_one_is_said() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let mut runner = host.start();
    fake.server.request("poll", 1, SOON);
    std::fs::write(host.path("config.toml"), "concurrent = \"many\"\n").unwrap();
    runner.says("concurrent", SOON);
    assert!(runner.is_alive());
    let id = fake.queue(Payload::script(&["true"]));
    assert_eq!(fake.finished(id, SOON).state, State::Success, "the old one stays in force");
    let other = GitLab::start();
    let second = other.queue(Payload::script(&["true"]));
    let host = host.entry(&other, TOKEN, "");
    host.write_config();
    assert_eq!(other.finished(second, SOON).state, State::Success);
    runner.finish();
}

#[test]
fn a_hand_over_keeps_pid_and_job() {
    let (fake, host, mut runner, id) = with_job("");
    let job = host.job_process();
    let before = runner.log().matches(" configuration ").count();
    runner.signal(Signal::USR2);
    // The new image polls, so it has adopted; what it says first is not this test's business.
    let polls = fake.server.count("poll");
    eventually("the next image has begun", SOON, || {
        let started = processes::read(runner.pid())?;
        (!started.is_zombie() && runner.log().contains("hand")).then_some(())
    });
    let _ = (before, polls);
    assert!(runner.is_alive());
    assert!(processes::is_alive(job), "the job process goes on");
    std::fs::write(host.path("go"), "").unwrap();
    let ended = fake.finished(id, SOON);
    assert_eq!(ended.state, State::Success);
    assert!(ended.text().contains("\nover\n"));
    host.assert_idle(&runner);
    let zombies: Vec<_> = processes::children(runner.pid()).into_iter().filter(processes::Process::is_zombie).collect();
    assert!(zombies.is_empty(), "{zombies:?}");
    let next = fake.queue(Payload::script(&["true"]));
    assert_eq!(fake.finished(next, SOON).state, State::Success, "the new image polls");
    runner.finish();
}

#[test]
fn a_hand_over_to_a_broken_configuration_does_not_happen() {
    let (fake, host, mut runner, id) = with_job("");
    std::fs::write(host.path("config.toml"), "concurrent = [\n").unwrap();
    runner.signal(Signal::USR2);
    crate::support::tick(Duration::from_millis(300));
    assert!(runner.is_alive());
    std::fs::write(host.path("go"), "").unwrap();
    assert_eq!(fake.finished(id, SOON).state, State::Success);
    runner.finish();
}

// ---- Kill points 2 and 34: a stop while a poll is under way ------------------------------------

#[test]
fn kp02_a_job_that_arrives_during_a_stop_is_not_lost() {
    for signal in [Signal::QUIT, Signal::TERM, Signal::USR2] {
        // Without two-phase commit nobody gives a lost job again.
        let fake = GitLab::with(|o| o.two_phase = false);
        let host = Host::new(&fake);
        fake.fail("poll", ONCE, Fault::Late(Duration::from_millis(700)));
        let id = fake.queue(Payload::script(&["echo ran"]));
        let mut runner = host.start();
        fake.wait(id, "it is handed out", SOON, |job| (!job.deliveries.is_empty()).then_some(()));
        crate::support::tick(Duration::from_millis(300));
        runner.signal(signal);
        let job = fake.finished(id, SOON);
        if signal == Signal::TERM {
            assert_eq!(job.failure_reason(), Some("runner_interrupted"));
        } else {
            assert_eq!(job.state, State::Success, "{signal:?}: {}", job.text());
            assert_eq!(job.text().matches("\nran\n").count(), 1);
        }
        if signal == Signal::USR2 {
            runner.finish();
        } else {
            assert_eq!(runner.wait(SOON).code(), Some(0), "{signal:?}");
        }
        assert!(host.jobs().is_empty());
    }
}

#[test]
fn kp02_a_parked_long_poll_is_cut_without_loss() {
    for signal in [Signal::QUIT, Signal::TERM] {
        let fake = GitLab::with(|o| o.long_poll = Duration::from_secs(50));
        let host = Host::new(&fake).timing("parked_after=300");
        let mut runner = host.start();
        // The second poll names the value that the first was given, and is held.
        fake.server.request("poll", 2, SOON);
        crate::support::tick(Duration::from_millis(400));
        let from = Instant::now();
        assert_eq!(runner.stop(signal, SOON), Some(0));
        assert!(from.elapsed() < Duration::from_secs(1), "{:?}", from.elapsed());
    }
}

#[test]
fn kp34_an_idle_manager_whose_server_is_not_reached_leaves_at_once() {
    // An address of the documentation range swallows the connection attempt or is refused at once
    // (no route); a listener whose queue is full swallows it in any case.
    let full = full_listener();
    let host = Host::bare().raw_entry("swallowed", &format!("http://{}", full.1), TOKEN, "");
    let mut runner = host.start();
    crate::support::tick(Duration::from_millis(300));
    let from = Instant::now();
    assert_eq!(runner.stop(Signal::TERM, SOON), Some(0));
    assert!(from.elapsed() < Duration::from_secs(1), "{:?}", from.elapsed());
}

/// A listener that accepts nobody, and connections that fill its queue.
fn full_listener() -> (Vec<std::net::TcpStream>, std::net::SocketAddr, std::os::fd::OwnedFd) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap()).unwrap();
    listen(&fd, 0).unwrap();
    let address: std::net::SocketAddr = getsockname(&fd).unwrap().try_into().unwrap();
    let within = Duration::from_millis(100);
    let fill = (0..8).map_while(|_| std::net::TcpStream::connect_timeout(&address, within).ok()).collect();
    (fill, address, fd)
}

#[test]
fn kp34_a_name_that_is_never_resolved_does_not_hold_up_a_stop() {
    const NAME: &str = "kp34_a_name_that_is_never_resolved_does_not_hold_up_a_stop";
    if !root_or_skip(NAME, "it gives the runner a network of its own, with a name server that says nothing") {
        return;
    }
    let host = Host::bare().raw_entry("nowhere", "http://no-such-host.example", TOKEN, "");
    std::fs::write(host.path("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    let sink = std::env::current_exe().unwrap();
    let inside = format!(
        "ip link set lo up && mount --bind {} /etc/resolv.conf || exit 99
         {} --ignored --exact signals::name_server_that_says_nothing & exec \"$0\" \"$@\"",
        host.path("resolv.conf").display(),
        sink.display()
    );
    let host = host.wrap(&["unshare", "-n", "-m", "sh", "-c", &inside]);
    let mut runner = host.start();
    crate::support::tick(Duration::from_millis(700));
    if !runner.is_alive() && runner.wait(SOON).code() == Some(99) {
        eprintln!("skipped: {NAME}: no network namespace can be made here");
        return;
    }
    let from = Instant::now();
    assert_eq!(runner.stop(Signal::TERM, SOON), Some(0));
    assert!(from.elapsed() < Duration::from_secs(1), "{:?}", from.elapsed());
}

/// No test: what the test above starts beside the runner.
#[test]
#[ignore = "a part of kp34, started by it"]
fn name_server_that_says_nothing() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:53").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut query = [0; 512];
    while socket.recv(&mut query).is_ok() {}
}
