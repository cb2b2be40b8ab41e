//! One integration binary: the real runner against fake coordinators on loopback. A file per subject;
//! `support` holds what they stand on. Nothing here needs the network, root or a fixed port.

#![expect(
    clippy::disallowed_methods,
    reason = "the tests start the binary, threads of their own and read the environment; the bans guard the runner"
)]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a failed test is the message")]
#![allow(dead_code, reason = "the support is whole: a subject may use only a part of it")]

mod adopt;
mod artifacts;
mod cache;
mod cancel;
mod chaos;
mod commands;
mod custom;
mod fakes;
mod faults;
mod git;
mod hostile;
mod job_process;
mod jobs;
mod kill_points;
mod limits;
mod log;
mod signals;
mod spool;
mod support;
mod tidy;
mod users;
