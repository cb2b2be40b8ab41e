//! SIGKILL at random instants over jobs of mixed kinds, the manager started again each time, against a
//! server with two-phase commit that queues again what nobody acknowledged. Every job ends exactly
//! once, in a state that its kind allows, with the local log's bytes.
//!
//! `RUNNER_CHAOS=300` kills so often; `RUNNER_CHAOS_SEED` repeats a run. The seed is printed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::binary::{Host, Runner};
use crate::support::gitlab::{GitLab, Job, State};
use crate::support::http::{Fault, ONCE};
use crate::support::payload::Payload;
use crate::support::{SOON, processes, tick};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Quick,
    Loud,
    Slow,
    Fails,
    Stubborn,
    After,
    Daemons,
}

const KINDS: [Kind; 7] = [Kind::Quick, Kind::Loud, Kind::Slow, Kind::Fails, Kind::Stubborn, Kind::After, Kind::Daemons];

impl Kind {
    fn payload(self, sleep: &str) -> Payload {
        let daemons = format!("setsid sleep {sleep} >/dev/null 2>&1 & sleep 0.1");
        match self {
            Kind::Quick => Payload::script(&["echo quick"]),
            Kind::Loud => Payload::script(&["seq 1 20000"]),
            Kind::Slow => Payload::script(&["for i in $(seq 1 25); do echo tick $i; sleep 0.04; done"]),
            Kind::Fails => Payload::script(&["echo failing", "exit 9"]),
            Kind::Stubborn => {
                Payload::script(&["trap '' TERM", "for i in $(seq 1 12); do echo round $i; sleep 0.05; done"])
            }
            Kind::After => Payload::script(&["echo main", "sleep 0.2"]).after(&["echo after"]),
            Kind::Daemons => Payload::script(&[&daemons, "echo spawned"]),
        }
    }

    /// What the script prints, when nothing kills it.
    fn output(self) -> String {
        let lines = |word: &str, n: u32| (1..=n).map(|i| format!("{word}{i}\n")).collect::<String>();
        match self {
            Kind::Quick => "quick\n".to_owned(),
            Kind::Loud => lines("", 20_000),
            Kind::Slow => lines("tick ", 25),
            Kind::Fails => "failing\n".to_owned(),
            Kind::Stubborn => lines("round ", 12),
            Kind::After => "main\n".to_owned(),
            Kind::Daemons => "spawned\n".to_owned(),
        }
    }
}

/// xorshift: the same instants for the same seed, as far as a busy machine lets them be.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn every_job_ends_exactly_once_whatever_is_killed() {
    let kills = number("RUNNER_CHAOS", 15);
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    let seed = number("RUNNER_CHAOS_SEED", u64::from(nanos) | 1);
    eprintln!("chaos: RUNNER_CHAOS={kills} RUNNER_CHAOS_SEED={seed}");
    let mut dice = Dice(seed.max(1));

    let fake = GitLab::with(|o| o.acknowledge_within = Duration::from_millis(1200));
    let host = Host::new(&fake).global("concurrent = 3").timing("state_lock=10000");
    let sleep = processes::unique_sleep();
    let mut jobs: BTreeMap<u64, Kind> = BTreeMap::new();
    let mut harm = Harm::default();
    let mut queue = |fake: &GitLab, dice: &mut Dice| {
        let kind = KINDS[usize::try_from(dice.below(KINDS.len() as u64)).unwrap()];
        jobs.insert(fake.queue(kind.payload(&sleep)), kind);
    };
    (0..4).for_each(|_| queue(&fake, &mut dice));
    let mut runner = host.start();
    for round in 0..kills {
        let open = fake.jobs().iter().filter(|j| !j.state.is_final()).count();
        (open..5).for_each(|_| queue(&fake, &mut dice));
        // Half of the instants soon after the last start, where the most happens.
        let span = if dice.below(2) == 0 { 40_000 } else { 400_000 };
        harm.disturb(&fake, &mut dice);
        tick(Duration::from_micros(dice.below(span)));
        match dice.below(4) {
            0 => harm.kill_job_process(&host, &mut dice),
            1 => {
                runner.kill();
                harm.kill_job_process(&host, &mut dice);
            }
            2 => {
                harm.kill_job_process(&host, &mut dice);
                runner.kill();
            }
            _ => runner.kill(),
        }
        if !runner.is_alive() {
            runner = host.start();
        }
        assert!(runner.is_alive(), "round {round} of seed {seed}");
    }
    fake.server.heal();
    check_all(&fake, &host, runner, &jobs, &harm, seed);
    let left = processes::with_command(&sleep);
    assert!(left.is_empty(), "seed {seed}: {left:?}");
}

/// What was done to which job.
#[derive(Default)]
struct Harm {
    /// Its job process was killed: it may be a system failure.
    killed: BTreeSet<u64>,
    /// It was running when a person canceled it.
    canceled: BTreeSet<u64>,
    faults: u32,
}

impl Harm {
    /// Now and then a fault of the network, now and then a cancel.
    fn disturb(&mut self, fake: &GitLab, dice: &mut Dice) {
        if dice.below(3) == 0 {
            let pick = |dice: &mut Dice, n: usize| usize::try_from(dice.below(n as u64)).unwrap();
            let label = ["poll", "confirm", "trace", "final"][pick(dice, 4)];
            let late = Duration::from_millis(30);
            let faults =
                [Fault::Status(500), Fault::Status(503), Fault::Reset, Fault::Lost, Fault::Cut, Fault::Late(late)];
            fake.fail(label, ONCE, faults[pick(dice, 6)].clone());
            self.faults += 1;
        }
        if dice.below(6) == 0
            && let Some(job) = fake.jobs().iter().rfind(|j| j.state == State::Running)
            && fake.cancel_running(job.id)
        {
            self.canceled.insert(job.id);
        }
    }

    /// One of those that live, if any does.
    fn kill_job_process(&mut self, host: &Host, dice: &mut Dice) {
        let mut living = Vec::new();
        for dir in host.jobs() {
            let Ok(text) = fs::read(dir.join("started")) else { continue };
            let Ok(started) = serde_json::from_slice::<serde_json::Value>(&text) else { continue };
            let (Some(pid), Some(start)) = (started["pid"].as_u64(), started["start_time"].as_u64()) else { continue };
            let pid = u32::try_from(pid).unwrap();
            let id = dir.file_name().unwrap().to_str().unwrap().rsplit('-').next().unwrap().parse::<u64>().unwrap();
            if processes::read(pid).is_some_and(|p| p.start_time == start) {
                living.push((id, pid));
            }
        }
        if living.is_empty() {
            return;
        }
        let (id, pid) = living[usize::try_from(dice.below(living.len() as u64)).unwrap()];
        processes::signal(pid, Signal::KILL);
        self.killed.insert(id);
    }
}

fn check_all(fake: &GitLab, host: &Host, runner: Runner, jobs: &BTreeMap<u64, Kind>, harm: &Harm, seed: u64) {
    let from = Instant::now();
    for (id, kind) in jobs {
        let job = fake.finished(*id, Duration::from_secs(60));
        check(&job, *kind, harm, seed);
    }
    let redelivered: usize = fake.jobs().iter().map(Job::redeliveries).sum();
    let (canceled, faults) = (harm.canceled.len(), harm.faults);
    eprintln!(
        "chaos: {} jobs, {canceled} canceled, {faults} faults, {redelivered} redeliveries; all ended {:?} after the last kill",
        jobs.len(),
        from.elapsed()
    );
    host.assert_idle(&runner);
    runner.finish();
    fake.assert_clean();
    assert!(from.elapsed() < SOON * 3);
}

/// The state that its kind allows, and its output: whole, or a beginning of it when it was killed.
fn check(job: &Job, kind: Kind, harm: &Harm, seed: u64) {
    let (killed, canceled) = (harm.killed.contains(&job.id), harm.canceled.contains(&job.id));
    let word = format!("seed {seed}: job {} ({kind:?}, killed: {killed})", job.id);
    let want = match kind {
        Kind::Fails => (State::Failed, Some("script_failure")),
        _ => (State::Success, None),
    };
    let got = (job.state, job.failure_reason());
    let crashed = got == (State::Failed, Some("runner_system_failure"));
    let stopped = canceled && job.state == State::Canceled;
    assert!(got == want || stopped || (killed && crashed), "{word}: {got:?}\n{}", job.text());
    let log = job.text();
    let output = kind.output();
    let first = output.lines().next().unwrap();
    let times = log.lines().filter(|l| *l == first).count();
    if crashed || stopped {
        assert!(times <= 1, "{word}: the script ran twice\n{log}");
        return;
    }
    assert_eq!(times, 1, "{word}: {first:?} stands {times} times in\n{log}");
    assert!(log.contains(&output), "{word}: its output is not whole:\n{log}");
}
