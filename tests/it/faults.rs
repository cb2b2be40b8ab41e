//! What a server and a network can do to each request, and what must come out all the same: the final
//! state, the log byte for byte, the checksum, and no process left. One table per endpoint.

use std::time::Duration;

use crate::support::binary::Host;
use crate::support::gitlab::{GitLab, State};
use crate::support::http::{Fault, Response};
use crate::support::payload::Payload;
use crate::support::{SOON, at_once};

const SCRIPT: &[&str] = &["for i in 1 2 3 4 5; do echo line $i; sleep 0.06; done"];
const WANTED: &str = "\nline 1\nline 2\nline 3\nline 4\nline 5\n";

/// Every fault that may hit any request and pass again.
fn passing() -> Vec<Fault> {
    let mut faults: Vec<Fault> =
        [400, 401, 408, 409, 422, 429, 500, 501, 502, 503, 504, 520].map(Fault::Status).to_vec();
    faults.extend([
        Fault::Html,
        Fault::Reset,
        Fault::Lost,
        Fault::Cut,
        Fault::Late(Duration::from_millis(150)),
        Fault::Slow(Duration::from_millis(150)),
        Fault::Answer(Response::empty(302).with("Location", "http://127.0.0.1:1/elsewhere")),
        Fault::Answer(Response::empty(429).with("Retry-After", "1")),
        Fault::Answer(Response::new(500, "text/html", "<h1>500</h1>".repeat(20_000))),
    ]);
    faults
}

/// One job under this fault at the `nth` requests of this kind: it succeeds all the same.
#[track_caller]
fn check(label: &str, nth: std::ops::RangeInclusive<u32>, fault: Fault) {
    let fake = GitLab::with(|o| o.acknowledge_within = Duration::from_millis(1500));
    let host = Host::new(&fake).timing("force_send=100");
    let word = format!("{label} {nth:?} {:.60}", format!("{fault:?}"));
    fake.fail(label, nth, fault);
    let id = fake.queue(Payload::script(SCRIPT));
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success, "{word}:\n{}", job.text());
    assert!(job.text().contains(WANTED), "{word}:\n{}", job.text());
    assert_eq!(job.text().matches("\nline 1\n").count(), 1, "{word}: the script ran twice");
    host.assert_idle(&runner);
    runner.finish();
    let violations = fake.take_violations();
    assert!(violations.is_empty(), "{word}: {violations:?}\n{}", fake.server.story());
}

#[test]
fn a_job_request_that_fails_is_made_again() {
    at_once(passing(), |fault| check("poll", 1..=1, fault));
}

#[test]
fn a_first_update_that_fails_does_not_stop_the_job() {
    at_once(passing(), |fault| check("confirm", 1..=1, fault));
}

#[test]
fn a_log_upload_that_fails_is_made_again_from_where_the_server_stands() {
    at_once(passing(), |fault| check("trace", 2..=2, fault));
}

#[test]
fn a_touch_that_fails_is_forgotten() {
    at_once(passing(), |fault| check("touch", 1..=1, fault));
}

#[test]
fn a_final_update_that_fails_is_made_again() {
    at_once(passing(), |fault| check("final", 1..=1, fault));
}

#[test]
fn faults_in_a_row_are_lived_through() {
    let mut cases = Vec::new();
    for label in ["poll", "trace", "final"] {
        cases.push((label, 1..=7, Fault::Status(500)));
        cases.push((label, 1..=4, Fault::Reset));
    }
    cases.extend([
        ("trace", 2..=5, Fault::Lost),
        ("trace", 1..=3, Fault::Range(0)),
        ("final", 1..=2, Fault::Status(202)),
        ("final", 1..=2, Fault::Status(412)),
        ("trace", 2..=3, Fault::Status(200)),
        ("trace", 2..=2, Fault::Status(404)),
    ]);
    at_once(cases, |(label, nth, fault)| check(label, nth, fault));
}

#[test]
fn a_server_that_does_not_answer_is_left_at_the_deadline() {
    for label in ["poll", "confirm", "trace", "final"] {
        let fake = GitLab::with(|o| o.acknowledge_within = Duration::from_millis(1500));
        let host = Host::new(&fake).timing("request_deadline=300,poll_deadline=300");
        fake.fail(label, 1..=1, Fault::Hang);
        let id = fake.queue(Payload::script(SCRIPT));
        let runner = host.start();
        let job = fake.finished(id, SOON);
        assert_eq!(job.state, State::Success, "{label}");
        assert!(job.text().contains(WANTED), "{label}:\n{}", job.text());
        runner.finish();
        fake.server.heal();
    }
}

#[test]
fn polls_that_are_forbidden_are_said_and_made_again() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    fake.fail("poll", 1..=1, Fault::Status(403));
    let id = fake.queue(Payload::script(SCRIPT));
    let mut runner = host.start();
    runner.says("403", SOON);
    assert!(runner.is_alive());
    assert_eq!(fake.finished(id, SOON).state, State::Success);
    runner.finish();
}

#[test]
fn one_server_that_is_down_does_not_hold_up_another() {
    let (down, up) = (GitLab::start(), GitLab::start());
    down.fail("poll", crate::support::http::ALWAYS, Fault::Hang);
    let host = Host::new(&down).entry(&up, crate::support::gitlab::TOKEN, "").global("concurrent = 2");
    let ids: Vec<u64> = (0..3).map(|_| up.queue(Payload::script(&["true"]))).collect();
    let runner = host.start();
    ids.iter().for_each(|id| assert_eq!(up.finished(*id, SOON).state, State::Success));
    down.server.heal();
    runner.finish();
}
