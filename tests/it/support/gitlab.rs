//! A strict fake of GitLab's runner endpoints (protocol §5): what the real server would refuse is
//! refused here, and noted as a violation that fails the test. It never forgives a runner for being
//! in a hurry: the rules of order are those of protocol §1.5–1.7, the tests' own faults excepted.

mod checks;
mod endpoints;
mod form;

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{Fault, Request, Server};
use super::payload::Payload;
use super::text;

pub(crate) use checks::crc32;
pub(crate) use form::Artifact;

/// The token of the entry that tests have unless they say otherwise.
pub(crate) const TOKEN: &str = "glrt-t1_testTestTest";

/// How this server behaves; changed by tests at any time through [`GitLab::options`].
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// A job is pending until the first update; without that it goes back to the queue.
    pub(crate) two_phase: bool,
    pub(crate) acknowledge_within: Duration,
    /// How long a poll that names the queue's present value is held.
    pub(crate) long_poll: Duration,
    /// `X-GitLab-Trace-Update-Interval` of every PATCH and running PUT.
    pub(crate) interval: Option<String>,
    /// So many final updates of each job are answered 202 first, as while log chunks are moved.
    pub(crate) accepted_first: u32,
    /// So many final updates of each job are answered 412, and its log is forgotten.
    pub(crate) invalid_first: u32,
    /// The interval header of those answers.
    pub(crate) accepted_interval: Option<String>,
    pub(crate) trace_limit: usize,
    /// Tokens of runners that are let in; others meet 403.
    pub(crate) tokens: Vec<String>,
    /// Ask every job request for these features (protocol §7.1).
    pub(crate) required_features: Vec<&'static str>,
    /// A final update may lack checksum and size (kill point 14).
    pub(crate) checksum_optional: bool,
    /// A person cancels each job in the instant in which it is acknowledged.
    pub(crate) cancel_when_acknowledged: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            two_phase: true,
            acknowledge_within: Duration::from_secs(120),
            long_poll: Duration::ZERO,
            interval: None,
            accepted_first: 0,
            invalid_first: 0,
            accepted_interval: None,
            trace_limit: 100 << 20,
            tokens: vec![TOKEN.to_owned()],
            required_features: vec![
                "trace_reset",
                "trace_checksum",
                "trace_size",
                "cancelable",
                "cancel_gracefully",
                "two_phase_job_commit",
                "variables",
                "masking",
                "raw_variables",
                "return_exit_code",
            ],
            checksum_optional: false,
            cancel_when_acknowledged: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Pending,
    /// Handed out; waits for the first update until then.
    Waiting(Instant),
    Running,
    Canceling,
    Canceled,
    Success,
    Failed,
    /// Its project is gone: 403 without a word.
    Erased,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Pending | State::Waiting(_) => "pending",
            State::Running => "running",
            State::Canceling => "canceling",
            State::Canceled => "canceled",
            State::Success => "success",
            State::Failed | State::Erased => "failed",
        }
    }

    pub(crate) fn is_final(self) -> bool {
        matches!(self, State::Canceled | State::Success | State::Failed | State::Erased)
    }
}

/// One job as the server sees it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) token: String,
    pub(crate) payload: Value,
    /// In place of the payload, byte for byte: for answers that are no job.
    raw: Option<Vec<u8>>,
    pub(crate) state: State,
    pub(crate) stored: Vec<u8>,
    /// When it was handed out; more than one is a redelivery.
    pub(crate) deliveries: Vec<Instant>,
    /// Bodies of the updates that were let through, in their order.
    pub(crate) updates: Vec<(Instant, Value)>,
    /// Chunks that were stored: when, from where, how many bytes.
    pub(crate) chunks: Vec<(Instant, usize, usize)>,
    pub(crate) artifacts: Vec<Artifact>,
    /// The final update that was accepted.
    pub(crate) last: Option<Value>,
    pub(crate) ended: Option<Instant>,
    accepted: u32,
    invalidated: u32,
    /// A fault or a restart may have hidden an answer: one mismatch is the server's doing.
    trace_disturbed: bool,
    final_disturbed: bool,
    /// A fault hit the first update: the runner may go on without it (protocol §1.5.5).
    confirm_disturbed: bool,
    /// In which life it was handed out, or last began a chunk at the wrong place. One that is another
    /// may begin with a guess (kill point 15), also after a chunk of its predecessor that came late.
    trace_life: u64,
    /// In which life its final update was accepted.
    ended_in: u64,
    told: Told,
}

/// How often the managers of one life asked about a job that was over already.
#[derive(Clone, Debug, Default)]
struct Told {
    life: u64,
    finals: u32,
    others: u32,
}

impl Job {
    /// Times that it was handed out again.
    pub(crate) fn redeliveries(&self) -> usize {
        self.deliveries.len().saturating_sub(1)
    }

    pub(crate) fn failure_reason(&self) -> Option<&str> {
        self.last.as_ref()?.get("failure_reason")?.as_str()
    }

    pub(crate) fn exit_code(&self) -> Option<i64> {
        self.last.as_ref()?.get("exit_code")?.as_i64()
    }

    /// The log as a person reads it: framing, colours and section markers taken off.
    pub(crate) fn text(&self) -> String {
        text::plain(&self.stored)
    }

    /// The log without its framing.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        text::unframe(&self.stored)
    }
}

#[derive(Default)]
struct World {
    options: Options,
    jobs: BTreeMap<u64, Job>,
    /// By runner token.
    queues: BTreeMap<String, VecDeque<u64>>,
    /// `X-GitLab-Last-Update` of each token: changed whenever a job appears.
    values: BTreeMap<String, u64>,
    violations: Vec<String>,
    next_id: u64,
}

struct Inner {
    world: Mutex<World>,
    changed: Condvar,
    /// Counts the managers that were seen to die or leave: what one of them did not hear, the next asks again.
    lives: Arc<AtomicU64>,
}

/// Fails the test when it is dropped with violations.
pub(crate) struct GitLab {
    inner: Arc<Inner>,
    pub(crate) server: Server,
}

impl GitLab {
    pub(crate) fn start() -> GitLab {
        GitLab::with(|_| ())
    }

    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> GitLab {
        let mut world = World { next_id: 1000, ..World::default() };
        change(&mut world.options);
        let inner = Arc::new(Inner { world: Mutex::new(world), changed: Condvar::new(), lives: Arc::default() });
        GitLab { server: Server::start(inner.clone()), inner }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) fn options(&self, change: impl FnOnce(&mut Options)) {
        change(&mut self.inner.world().options);
        self.inner.changed.notify_all();
    }

    /// What a host tells when one of its managers dies or leaves.
    pub(crate) fn lives(&self) -> Arc<AtomicU64> {
        self.inner.lives.clone()
    }

    /// Queue a job for the usual entry; its id.
    pub(crate) fn queue(&self, payload: Payload) -> u64 {
        self.queue_for(TOKEN, payload)
    }

    pub(crate) fn queue_for(&self, token: &str, payload: Payload) -> u64 {
        self.put(token, payload, None)
    }

    /// Queue an answer that is no job, under an id of its own.
    pub(crate) fn queue_raw(&self, raw: impl FnOnce(u64, &str) -> Vec<u8>) -> u64 {
        let id = self.inner.world().next_id + 1;
        let raw = raw(id, &job_token(id));
        self.put(TOKEN, Payload::script(&["true"]).id(id), Some(raw))
    }

    fn put(&self, runner: &str, payload: Payload, raw: Option<Vec<u8>>) -> u64 {
        let mut world = self.inner.world();
        let id = payload.wanted_id().unwrap_or(world.next_id + 1);
        world.next_id = world.next_id.max(id);
        let token = job_token(id);
        let job = Job {
            id,
            payload: payload.build(id, &token, &self.url()),
            token,
            raw,
            state: State::Pending,
            stored: Vec::new(),
            deliveries: Vec::new(),
            updates: Vec::new(),
            chunks: Vec::new(),
            artifacts: Vec::new(),
            last: None,
            ended: None,
            accepted: 0,
            invalidated: 0,
            trace_disturbed: false,
            trace_life: 0,
            final_disturbed: false,
            confirm_disturbed: false,
            ended_in: 0,
            told: Told::default(),
        };
        assert!(world.jobs.insert(id, job).is_none(), "a test gave the job id {id} twice");
        world.enqueue(runner, id);
        drop(world);
        self.inner.changed.notify_all();
        id
    }

    pub(crate) fn job(&self, id: u64) -> Job {
        self.inner.world().jobs[&id].clone()
    }

    pub(crate) fn jobs(&self) -> Vec<Job> {
        self.inner.world().jobs.values().cloned().collect()
    }

    /// Artifacts that a job of earlier has left.
    pub(crate) fn store(&self, id: u64, data: Vec<u8>) {
        let artifact = Artifact { kind: "archive".to_owned(), data, ..Artifact::default() };
        self.inner.world().job(id).artifacts.push(artifact);
    }

    /// A person cancels: `canceling` for a runner that can end gracefully (protocol §5.7).
    pub(crate) fn cancel(&self, id: u64) {
        self.set_state(id, State::Canceling);
    }

    /// The same, but only of a job that runs; whether it did.
    pub(crate) fn cancel_running(&self, id: u64) -> bool {
        let mut world = self.inner.world();
        let job = world.job(id);
        let runs = job.state == State::Running;
        if runs {
            job.state = State::Canceling;
        }
        runs
    }

    /// A person insists: the job is over for the server.
    pub(crate) fn force_cancel(&self, id: u64) {
        self.set_state(id, State::Canceled);
    }

    pub(crate) fn set_state(&self, id: u64, state: State) {
        self.inner.world().job(id).state = state;
        self.inner.changed.notify_all();
    }

    /// The job was given to an earlier manager, which confirmed it.
    pub(crate) fn was_confirmed(&self, id: u64) {
        let mut world = self.inner.world();
        let job = world.job(id);
        job.state = State::Running;
        job.deliveries.push(Instant::now());
        job.updates.push((Instant::now(), json!({"state": "running"})));
        job.trace_disturbed = true;
    }

    /// The server loses what it had from `size` on.
    pub(crate) fn truncate(&self, id: u64, size: usize) {
        let mut world = self.inner.world();
        let job = world.job(id);
        job.stored.truncate(size);
        job.trace_disturbed = true;
    }

    /// The server is found with more than was sent.
    pub(crate) fn append(&self, id: u64, bytes: &[u8]) {
        let mut world = self.inner.world();
        let job = world.job(id);
        job.stored.extend_from_slice(bytes);
        job.trace_disturbed = true;
    }

    /// The fault script; labels are `poll`, `confirm`, `touch`, `final`, `trace`, `verify`.
    pub(crate) fn fail(&self, label: &str, nth: RangeInclusive<u32>, fault: Fault) {
        self.server.fail(label, nth, fault);
    }

    /// Waits until `look` finds something in the job.
    pub(crate) fn wait<T>(&self, id: u64, what: &str, within: Duration, mut look: impl FnMut(&Job) -> Option<T>) -> T {
        let end = Instant::now() + within;
        let mut world = self.inner.world();
        loop {
            if let Some(found) = look(&world.jobs[&id]) {
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let job = world.jobs[&id].clone();
                drop(world);
                let log = job.text();
                let tail = &log[log.floor_char_boundary(log.len().saturating_sub(2000))..];
                panic!(
                    "job {id}: not within {within:?}: {what}\nstate {:?}\nlog:\n{tail}\nrequests:\n{}",
                    job.state,
                    self.server.story()
                );
            }
            world = self.inner.changed.wait_timeout(world, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for a final state.
    pub(crate) fn finished(&self, id: u64, within: Duration) -> Job {
        self.wait(id, "a final state", within, |job| (job.state.is_final() && job.last.is_some()).then(|| job.clone()))
    }

    /// Waits until the job is over for the server, whoever ended it.
    pub(crate) fn over(&self, id: u64, within: Duration) -> Job {
        self.wait(id, "the end", within, |job| job.state.is_final().then(|| job.clone()))
    }

    /// Waits for a text in the job's log.
    pub(crate) fn says(&self, id: u64, text: &str, within: Duration) {
        self.wait(id, &format!("{text:?} in the log"), within, |job| job.text().contains(text).then_some(()));
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.inner.world().violations.clone()
    }

    /// For tests whose subject is a refusal.
    pub(crate) fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.world().violations)
    }

    pub(crate) fn assert_clean(&self) {
        let violations = self.take_violations();
        if !violations.is_empty() {
            let violations = violations.join("\n  ");
            panic!("GitLab would not have had this:\n  {violations}\nrequests:\n{}", self.server.story());
        }
    }
}

impl Drop for GitLab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_clean();
        }
    }
}

fn job_token(id: u64) -> String {
    format!("glcbt-64_{id}secretJobToken")
}

impl World {
    fn job(&mut self, id: u64) -> &mut Job {
        self.jobs.get_mut(&id).expect("the test made this job")
    }

    fn enqueue(&mut self, runner: &str, id: u64) {
        self.queues.entry(runner.to_owned()).or_default().push_back(id);
        *self.values.entry(runner.to_owned()).or_insert(1) += 1;
    }

    fn value(&self, runner: &str) -> String {
        format!("v{}", self.values.get(runner).copied().unwrap_or(1))
    }

    /// Jobs whose acknowledgement did not come go back to the front of their queue.
    fn expire(&mut self) {
        let now = Instant::now();
        let late: Vec<u64> = self
            .jobs
            .values()
            .filter(|j| matches!(j.state, State::Waiting(until) if until <= now))
            .map(|j| j.id)
            .collect();
        for id in late {
            let runner = self.job(id).payload["_runner"].as_str().unwrap_or(TOKEN).to_owned();
            self.job(id).state = State::Pending;
            self.enqueue(&runner, id);
        }
    }

    fn violation(&mut self, request: &Request, what: impl std::fmt::Display) {
        self.violations.push(format!("{} {}: {what}", request.method, request.path));
    }
}

impl Inner {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
