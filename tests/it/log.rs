//! The log on its way to the server: limits, ranges, intervals, latency. Every test ends with the fake
//! comparing the checksum of the final update with the bytes that it stored.

use std::time::{Duration, Instant};

use crate::support::binary::Host;
use crate::support::gitlab::{GitLab, Job, State, TOKEN};
use crate::support::http::{Fault, ONCE};
use crate::support::payload::Payload;
use crate::support::{SOON, text};

/// The numbers from 1 to `n`, one a line, as `seq` prints them.
fn numbers(n: u32) -> String {
    (1..=n).map(|i| format!("{i}\n")).collect()
}

#[track_caller]
fn assert_has_numbers(job: &Job, n: u32) {
    let log = job.text();
    let from = log.find("\n1\n2\n").unwrap_or_else(|| panic!("no numbers in {log}")) + 1;
    let want = numbers(n);
    let got = log[from..].get(..want.len());
    if got != Some(&want) {
        let got = log[from..].lines();
        let (at, line) = got.zip(1..).find(|(l, i)| *l != i.to_string()).map_or((0, ""), |(l, i)| (i, l));
        panic!("number {at} is {line:?}");
    }
}

#[test]
fn fifty_megabytes_of_output_are_cut_at_the_limit_and_the_job_goes_on() {
    let fake = GitLab::start();
    let host = Host::bare().entry(&fake, TOKEN, "  output_limit = 1024");
    // 7 bytes a line or 8.
    let id = fake.queue(Payload::script(&["seq 1000000 7500000", "touch reached", "test -e reached"]));
    let runner = host.start();
    let job = fake.finished(id, Duration::from_secs(60));
    assert_eq!(job.state, State::Success);
    let notice = "\x1b[33;1m\nJob's log exceeded limit of 1048576 bytes.\nJob execution will continue but no more output will be collected.\x1b[0;m\n";
    let notice = notice.trim_start_matches("\x1b[33;1m\n");
    let stored = String::from_utf8_lossy(&job.stored);
    assert!(stored.ends_with(notice), "{:?}", &stored[stored.len() - 300..]);
    let limit = 1024 * 1024;
    assert!((limit - 8..limit + 200).contains(&job.stored.len()), "{} bytes are stored", job.stored.len());
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn ten_megabytes_without_a_limit_arrive_whole_and_back_to_back() {
    let fake = GitLab::with(|o| o.interval = Some("30".to_owned()));
    let host = Host::bare().entry(&fake, TOKEN, "  output_limit = 100000");
    let id = fake.queue(Payload::script(&["seq 1 400000", "sleep 1"]));
    let from = Instant::now();
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success);
    assert_has_numbers(&job, 400_000);
    assert!(job.chunks.len() > 3, "{} bytes came in {} chunks", job.stored.len(), job.chunks.len());
    assert!(
        from.elapsed() < Duration::from_secs(25),
        "an interval of 30 s held up what was there: {:?}",
        from.elapsed()
    );
    runner.finish();
}

#[test]
fn chunks_follow_each_other_at_once_when_the_log_is_behind() {
    let fake = GitLab::with(|o| o.interval = Some("1".to_owned()));
    let host = Host::bare().entry(&fake, TOKEN, "  output_limit = 100000");
    let id = fake.queue(Payload::script(&["seq 1 200000", "sleep 4"]));
    let runner = host.start();
    // The job still runs when the last of several chunks is there.
    fake.wait(id, "the last number", Duration::from_secs(20), |job| {
        String::from_utf8_lossy(&job.stored).contains("O 200000\n").then_some(())
    });
    let job = fake.job(id);
    assert_eq!(job.state, State::Running);
    let big: Vec<Instant> = job.chunks.iter().filter(|c| c.2 > 500_000).map(|c| c.0).collect();
    assert!(big.len() >= 3, "{:?}", job.chunks);
    let took = *big.last().unwrap() - big[0];
    assert!(took < Duration::from_millis(900) * u32::try_from(big.len() - 1).unwrap(), "{took:?} for {}", big.len());
    fake.finished(id, SOON);
    runner.finish();
}

#[test]
fn the_first_output_is_on_the_wire_within_a_second() {
    let fake = GitLab::with(|o| o.interval = Some("60".to_owned()));
    // The default waits of the runner, not the tests' short ones.
    let host = Host::new(&fake).timing("first_output=200,update_interval=3000");
    let id = fake.queue(Payload::script(&["date +at:%s%N", "sleep 3"]));
    let runner = host.start();
    let (arrived, printed) = fake.wait(id, "the time in the log", SOON, |job| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let text = job.text();
        let nanos = text.lines().find_map(|l| l.strip_prefix("at:"))?.parse::<u64>().ok()?;
        Some((now, Duration::from_nanos(nanos)))
    });
    let took = arrived.saturating_sub(printed);
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    fake.finished(id, SOON);
    runner.finish();
}

#[test]
fn the_servers_interval_is_kept() {
    let fake = GitLab::with(|o| o.interval = Some("1".to_owned()));
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["for i in $(seq 1 30); do echo $i; sleep 0.1; done"]));
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success);
    assert_has_numbers(&job, 30);
    // The first comes early, the last with the end; between them a second passes.
    let times: Vec<Instant> = job.chunks.iter().map(|c| c.0).collect();
    for pair in times[1..times.len() - 1].windows(2) {
        let gap = pair[1] - pair[0];
        assert!(gap > Duration::from_millis(900), "{gap:?} between two chunks: {:?}", job.chunks);
    }
    assert!(times.len() <= 6, "{} chunks in three seconds", times.len());
    runner.finish();
}

#[test]
fn an_interval_that_is_no_number_changes_nothing() {
    for interval in ["x", "0", "-3", "0.5", "99999999999999999999"] {
        let fake = GitLab::with(|o| o.interval = Some(interval.to_owned()));
        let host = Host::new(&fake);
        let id = fake.queue(Payload::script(&["echo a", "sleep 0.3", "echo b"]));
        let runner = host.start();
        assert_eq!(fake.finished(id, SOON).state, State::Success, "interval {interval}");
        runner.finish();
    }
}

#[test]
fn what_the_server_lost_is_sent_again() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["for i in $(seq 1 20); do echo $i; sleep 0.05; done"]));
    let runner = host.start();
    fake.says(id, "\n5\n", SOON);
    fake.truncate(id, 100);
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success);
    assert_has_numbers(&job, 20);
    runner.finish();
}

#[test]
fn a_416_without_a_range_begins_again_at_the_first_byte() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["for i in $(seq 1 20); do echo $i; sleep 0.05; done"]));
    let runner = host.start();
    fake.says(id, "\n3\n", SOON);
    let bare = crate::support::http::Response::empty(416);
    fake.fail("trace", ONCE, Fault::Answer(bare));
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success);
    assert_has_numbers(&job, 20);
    runner.finish();
}

#[test]
fn a_job_without_output_is_touched_so_that_the_server_knows_it_lives() {
    let fake = GitLab::start();
    let host = Host::new(&fake).timing("force_send=200");
    let id = fake.queue(Payload::script(&["sleep 1.5"]));
    let runner = host.start();
    fake.server.request("touch", 3, SOON);
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success);
    let touch = &job.updates[1].1;
    assert_eq!(touch["state"], "running");
    assert!(touch["output"]["checksum"].as_str().is_some_and(|c| c.starts_with("crc32:")), "{touch}");
    runner.finish();
}

#[test]
fn a_final_update_is_repeated_while_the_server_moves_the_log() {
    let fake = GitLab::with(|o| o.accepted_first = 3);
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["seq 1 100"]));
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success);
    assert_has_numbers(&job, 100);
    assert_eq!(fake.server.count("final"), 4);
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn the_interval_of_an_accepted_final_update_is_waited_for() {
    let fake = GitLab::with(|o| (o.accepted_first, o.accepted_interval) = (1, Some("1".to_owned())));
    let host = Host::new(&fake).timing("backoff_max=10000");
    let id = fake.queue(Payload::script(&["true"]));
    let runner = host.start();
    fake.finished(id, SOON);
    let (first, second) = (fake.server.request("final", 1, SOON).at, fake.server.request("final", 2, SOON).at);
    let gap = second - first;
    assert!(gap > Duration::from_millis(900) && gap < Duration::from_secs(4), "{gap:?}");
    runner.finish();
}

#[test]
fn a_log_that_the_server_found_invalid_is_sent_again_from_the_start() {
    let fake = GitLab::with(|o| o.invalid_first = 2);
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["seq 1 1000"]));
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success);
    assert_has_numbers(&job, 1000);
    assert_eq!(job.chunks.iter().filter(|c| c.1 == 0).count(), 3, "{:?}", job.chunks);
    runner.finish();
}

#[test]
fn a_debug_trace_is_marked_as_one() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["echo hi"]).var("CI_DEBUG_TRACE", "true"));
    let runner = host.start();
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success);
    let patch = fake.server.request("trace", 1, SOON);
    assert_eq!(patch.query, "debug_trace=true");
    runner.finish();
}

#[test]
fn the_stored_log_is_framed_line_by_line() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let id = fake.queue(Payload::script(&["echo out", "printf 'a\\rb\\n'"]));
    let runner = host.start();
    let job = fake.finished(id, SOON);
    let bytes = text::unframe(&job.stored);
    assert!(bytes.windows(5).any(|w| w == b"\nout\n"));
    let bare = job.stored.split(|b| *b == b'\n').filter(|l| !l.is_empty() && !l.starts_with(b"20")).count();
    assert_eq!(bare, 0, "{}", String::from_utf8_lossy(&job.stored));
    runner.finish();
}
