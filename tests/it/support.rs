//! What the tests stand on: fake coordinators on loopback, the real binary on a host of its own, the
//! process table, and what a job's log says. Nothing here knows a single test.

pub(crate) mod binary;
pub(crate) mod git;
pub(crate) mod gitlab;
pub(crate) mod http;
pub(crate) mod payload;
pub(crate) mod processes;
pub(crate) mod text;

use std::time::{Duration, Instant};

/// Looks every few milliseconds until `look` finds something; panics with `what` after `within`.
/// For what cannot be waited for otherwise: files of other processes and the process table.
pub(crate) fn eventually<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within {within:?}: {what}");
        tick(Duration::from_millis(5));
    }
}

/// Lets `time` pass. Only for tests whose subject is that nothing happens meanwhile.
pub(crate) fn tick(time: Duration) {
    let _ = crossbeam_channel::never::<()>().recv_timeout(time);
}

/// Runs every case, a few at a time: they wait more than they work. A panic in one is the test's.
pub(crate) fn at_once<T: Send>(cases: Vec<T>, run: impl Fn(T) + Sync) {
    let (put, take) = crossbeam_channel::unbounded();
    cases.into_iter().for_each(|case| put.send(case).unwrap());
    drop(put);
    std::thread::scope(|scope| {
        for _ in 0..5 {
            let take = take.clone();
            let run = &run;
            scope.spawn(move || take.iter().for_each(run));
        }
    });
}

/// The bound of waits that are expected to be over at once: generous, two busy cores share the tests.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Whether the tests run as root; prints why the named test is skipped when they do not.
pub(crate) fn root_or_skip(test: &str, why: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: {test} needs root: {why}");
    }
    root
}
