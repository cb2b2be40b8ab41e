//! Bounds that hold under load: slots, memory.

use std::time::Duration;

use crate::support::binary::Host;
use crate::support::gitlab::{GitLab, State, TOKEN};
use crate::support::payload::Payload;
use crate::support::{SOON, processes};

/// Job processes of a manager: its children whose command line says so.
fn job_processes(manager: u32) -> usize {
    processes::children(manager).iter().filter(|p| !p.is_zombie() && p.command.split(' ').nth(1) == Some("job")).count()
}

/// Runs `jobs` jobs and looks meanwhile: the most job processes at a time, and the manager's most memory.
fn run(global: &str, entry: &str, jobs: usize) -> (usize, u64) {
    let fake = GitLab::start();
    let host = Host::bare().entry(&fake, TOKEN, entry).global(global);
    let ids: Vec<u64> = (0..jobs).map(|_| fake.queue(Payload::script(&["seq 1 2000", "sleep 0.4"]))).collect();
    let runner = host.start();
    let (mut most, mut memory) = (0, 0);
    while !ids.iter().all(|id| fake.job(*id).state.is_final()) {
        most = most.max(job_processes(runner.pid()));
        memory = memory.max(processes::memory(runner.pid()).map_or(0, |m| m.0));
        crate::support::tick(Duration::from_millis(10));
    }
    ids.iter().for_each(|id| assert_eq!(fake.finished(*id, SOON).state, State::Success));
    host.assert_idle(&runner);
    runner.finish();
    (most, memory)
}

#[test]
fn twenty_jobs_at_four_slots_never_take_a_fifth() {
    let (most, memory) = run("concurrent = 4", "", 20);
    eprintln!("limits: at most {most} job processes, the manager at most {} KiB resident", memory / 1024);
    assert_eq!(most, 4);
    // The goal of the issue is 8 MB in a release build; a debug build on any host stays under this.
    assert!(memory < 32 << 20, "{memory} bytes");
}

#[test]
fn an_entrys_limit_holds_below_the_slots() {
    let (most, _) = run("concurrent = 4", "  limit = 1", 4);
    assert_eq!(most, 1);
}
