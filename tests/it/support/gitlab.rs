//! A strict fake of GitLab's runner endpoints (protocol §5): what the real server would refuse is
//! refused here, and noted as a violation that fails the test. It never forgives a runner for being
//! in a hurry: the rules of order are those of protocol §1.5–1.7, the tests' own faults excepted.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{Fault, Patience, Request, Response, Server, Site};
use super::payload::Payload;
use super::text;

/// The largest chunk of log that a request may carry (protocol §2.1).
const CHUNK: usize = 1024 * 1024;
/// The largest job request that the front proxy lets through (protocol §5.3).
const POLL_ROOM: usize = 32 * 1024;

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
    /// In which life the last chunk came: the next one may begin with a guess (kill point 15).
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

    fn life(&self) -> u64 {
        self.lives.load(Ordering::SeqCst)
    }
}

/// What a path of the API is about.
enum Target {
    Poll,
    Verify,
    Job(u64),
    Trace(u64),
    Unknown,
}

fn target(request: &Request) -> Target {
    let Some(path) = request.path.strip_prefix("/api/v4/") else { return Target::Unknown };
    let words: Vec<&str> = path.split('/').collect();
    match (request.method.as_str(), &words[..]) {
        ("POST", ["jobs", "request"]) => Target::Poll,
        ("POST", ["runners", "verify"]) => Target::Verify,
        ("PUT", ["jobs", id]) => id.parse().map_or(Target::Unknown, Target::Job),
        ("PATCH", ["jobs", id, "trace"]) => id.parse().map_or(Target::Unknown, Target::Trace),
        _ => Target::Unknown,
    }
}

impl Site for Inner {
    fn label(&self, request: &Request) -> String {
        let word = match target(request) {
            Target::Poll => "poll",
            Target::Verify => "verify",
            Target::Trace(_) => "trace",
            Target::Unknown => "unknown",
            Target::Job(id) => match request.json()["state"].as_str() {
                Some("success" | "failed") => "final",
                _ if self.world().jobs.get(&id).is_some_and(|j| j.updates.is_empty()) => "confirm",
                _ => "touch",
            },
        };
        word.to_owned()
    }

    fn answer(&self, request: &Request, patience: &Patience) -> Response {
        let response = match target(request) {
            Target::Poll => self.poll(request, patience),
            Target::Verify => self.verify(request),
            Target::Job(id) => self.update(request, id),
            Target::Trace(id) => self.patch(request, id),
            Target::Unknown => {
                self.world().violation(request, "no such endpoint");
                Response::json(404, &json!({"error": "404 Not Found"}))
            }
        };
        self.changed.notify_all();
        response
    }

    fn disturbed(&self, request: &Request, fault: &Fault) {
        let mut world = self.world();
        let (id, is_trace) = match target(request) {
            Target::Job(id) => (id, false),
            Target::Trace(id) => (id, true),
            _ => return,
        };
        let Some(job) = world.jobs.get_mut(&id) else { return };
        // 412 asks for all of the log again, which the site still has.
        if is_trace || matches!(fault, Fault::Status(412)) {
            job.trace_disturbed = true;
        }
        if !is_trace {
            job.final_disturbed = true;
            job.confirm_disturbed |= job.updates.is_empty();
            job.trace_disturbed |= matches!(fault, Fault::Status(412));
        }
        if let Fault::Range(size) = fault {
            job.stored.truncate(usize::try_from(*size).unwrap_or(usize::MAX));
        }
    }
}

// ---- The endpoints -----------------------------------------------------------------------------

impl Inner {
    /// Protocol §5.3.
    fn poll(&self, request: &Request, patience: &Patience) -> Response {
        let body = request.json();
        let mut world = self.world();
        world.expire();
        check_json(&mut world, request);
        if request.body.len() > POLL_ROOM {
            world.violation(request, format!("{} bytes are too much for the front proxy", request.body.len()));
            return Response::json(413, &json!({"message": "413 Payload Too Large"}));
        }
        let Some(token) = body["token"].as_str().map(str::to_owned) else {
            world.violation(request, "no token");
            return Response::json(400, &json!({"error": "token is missing"}));
        };
        check_info(&mut world, request, &body);
        if !world.options.tokens.contains(&token) {
            return forbidden();
        }
        if body["system_id"].as_str().is_none_or(|s| !is_system_id(s)) {
            world.violation(request, format!("system_id is {}", body["system_id"]));
        }
        if let Some(said) = body["last_update"].as_str()
            && said == world.value(&token)
        {
            // The front proxy holds it, and what it answers after a wait never carries a job.
            let hold = world.options.long_poll;
            if hold.is_zero() {
                let value = world.value(&token);
                return Response::empty(204).with("X-GitLab-Last-Update", value);
            }
            let end = Instant::now() + hold;
            while said == world.value(&token) && Instant::now() < end && !patience.stopped() {
                let left = end.saturating_duration_since(Instant::now()).min(Duration::from_millis(50));
                world = self.changed.wait_timeout(world, left).unwrap_or_else(PoisonError::into_inner).0;
                world.expire();
            }
            return Response::empty(204).with("Gitlab-Ci-Builds-Polling", "yes");
        }
        let value = world.value(&token);
        let Some(id) = world.next_pending(&token) else {
            return Response::empty(204).with("X-GitLab-Last-Update", value);
        };
        world.hand_out(id, &token)
    }

    fn verify(&self, request: &Request) -> Response {
        let body = request.json();
        let mut world = self.world();
        check_json(&mut world, request);
        check_info(&mut world, request, &body);
        match body["token"].as_str() {
            Some(token) if world.options.tokens.iter().any(|t| t == token) => {
                Response::json(200, &json!({"id": 12, "token": token, "token_expires_at": null}))
            }
            _ => forbidden(),
        }
    }

    /// Protocol §5.5.
    fn update(&self, request: &Request, id: u64) -> Response {
        let body = request.json();
        let mut world = self.world();
        world.expire();
        check_json(&mut world, request);
        check_info(&mut world, request, &body);
        let token = body["token"].as_str().or(request.header("JOB-TOKEN")).unwrap_or_default().to_owned();
        if body["token"].as_str() != request.header("JOB-TOKEN") {
            world.violation(request, "token and JOB-TOKEN differ");
        }
        let is_final = matches!(body["state"].as_str(), Some("success" | "failed"));
        if let Some(refusal) = self.refuse(&mut world, request, id, &token, is_final) {
            return refusal;
        }
        if !body["output"].is_object() {
            world.violation(request, "output is no object");
        }
        match body["state"].as_str() {
            Some("running") => running(&mut world, request, id, body),
            Some("success" | "failed") => {
                if world.options.two_phase && matches!(world.job(id).state, State::Waiting(_)) {
                    if !world.job(id).confirm_disturbed {
                        world.violation(request, "a final state before the first update");
                    }
                    return Response::new(400, "text/plain", "400");
                }
                finish(&mut world, request, id, body, self.life())
            }
            other => {
                world.violation(request, format!("state is {other:?}"));
                Response::new(400, "text/plain", "400")
            }
        }
    }

    /// Protocol §5.6.
    fn patch(&self, request: &Request, id: u64) -> Response {
        let mut world = self.world();
        world.expire();
        let token = request.header("JOB-TOKEN").unwrap_or_default();
        if let Some(refusal) = self.refuse(&mut world, request, id, token, false) {
            return refusal;
        }
        if matches!(world.job(id).state, State::Waiting(_)) && !world.job(id).confirm_disturbed {
            world.violation(request, "log before the first update");
        }
        if !matches!(request.query.as_str(), "debug_trace=false" | "debug_trace=true") {
            world.violation(request, format!("query is {:?}", request.query));
        }
        if request.header("Content-Type").is_none_or(|t| !t.starts_with("text/plain")) {
            world.violation(request, format!("Content-Type is {:?}", request.header("Content-Type")));
        }
        if request.header("Content-Length").is_none() {
            world.violation(request, "no Content-Length");
        }
        let len = request.body.len();
        let range = request.header("Content-Range").and_then(|r| r.split_once('-'));
        let Some((Ok(start), Ok(end))) = range.map(|(a, b)| (a.parse::<usize>(), b.parse::<usize>())) else {
            world.violation(request, format!("Content-Range is {:?}", request.header("Content-Range")));
            return Response::json(400, &json!({"message": "400 Missing header Content-Range"}));
        };
        if len == 0 || len > CHUNK || end + 1 != start + len {
            world.violation(request, format!("{len} bytes as {start}-{end}"));
        }
        let (limit, interval) = (world.options.trace_limit, world.options.interval.clone());
        let life = self.life();
        let job = world.job(id);
        let size = job.stored.len();
        let first_of_life = std::mem::replace(&mut job.trace_life, life) != life;
        if start != size {
            let expected = std::mem::take(&mut job.trace_disturbed) || first_of_life;
            if !expected {
                world.violation(request, format!("starts at {start}, {size} bytes are stored"));
            }
            return Response::new(416, "text/plain", "416 Range Not Satisfiable").with("Range", format!("0-{size}"));
        }
        if size + len > limit {
            job.state = State::Failed;
            return forbidden();
        }
        job.stored.extend_from_slice(&request.body);
        job.chunks.push((request.at, start, len));
        let word = job.state.word();
        let mut response = Response::new(202, "text/plain", format!("0-{}", size + len))
            .with("Job-Status", word)
            .with("Range", format!("0-{}", size + len));
        if let Some(interval) = interval {
            response = response.with("X-GitLab-Trace-Update-Interval", interval);
        }
        response
    }

    /// Protocol §5.4; `None` when the request may go on.
    fn refuse(&self, world: &mut World, request: &Request, id: u64, token: &str, is_final: bool) -> Option<Response> {
        let Some(job) = world.jobs.get_mut(&id) else {
            world.violation(request, "an unknown job");
            return Some(forbidden());
        };
        if job.token != token {
            world.violation(request, "not this job's token");
            return Some(forbidden());
        }
        let life = self.life();
        match job.state {
            State::Waiting(_) | State::Running | State::Canceling => return None,
            State::Pending => {
                if job.deliveries.is_empty() {
                    world.violation(request, "a job that was not handed out");
                }
            }
            State::Success | State::Failed | State::Canceled | State::Erased => {
                if job.told.life != life {
                    job.told = Told { life, ..Told::default() };
                }
                let times = if is_final { &mut job.told.finals } else { &mut job.told.others };
                *times += 1;
                let times = *times;
                let allowed = match (job.last.is_some(), job.state) {
                    // The runner ended it: only one that did not hear the answer may ask again.
                    (true, _) => std::mem::take(&mut job.final_disturbed) || (job.ended_in != life && times == 1),
                    // Without a word it may be a passing fault of the server (kill point 33).
                    (false, State::Erased) => times <= if is_final { 3 } else { 1 },
                    // The server ended it: whoever asks is told, and may then say its final state.
                    (false, _) => times == 1,
                };
                if !allowed {
                    world.violation(request, format!("request {times} about a job that is over"));
                }
            }
        }
        let job = world.job(id);
        let refusal = forbidden();
        Some(if job.state == State::Erased { refusal } else { refusal.with("Job-Status", job.state.word()) })
    }
}

impl World {
    fn next_pending(&mut self, token: &str) -> Option<u64> {
        let queue = self.queues.get_mut(token)?;
        while let Some(id) = queue.pop_front() {
            if self.jobs[&id].state == State::Pending {
                return Some(id);
            }
        }
        None
    }

    fn hand_out(&mut self, id: u64, runner: &str) -> Response {
        let two_phase = self.options.two_phase;
        let until = Instant::now() + self.options.acknowledge_within;
        let job = self.job(id);
        job.state = if two_phase { State::Waiting(until) } else { State::Running };
        job.deliveries.push(Instant::now());
        job.payload["_runner"] = json!(runner);
        let mut payload = job.payload.clone();
        if let Some(object) = payload.as_object_mut() {
            object.retain(|key, _| !key.starts_with('_'));
        }
        let body = job.raw.clone().unwrap_or_else(|| payload.to_string().into_bytes());
        Response::new(201, "application/json", body)
    }
}

fn running(world: &mut World, request: &Request, id: u64, body: Value) -> Response {
    let interval = world.options.interval.clone();
    let two_phase = world.options.two_phase;
    let cancel = world.options.cancel_when_acknowledged;
    let job = world.job(id);
    let first = job.updates.is_empty();
    let has_checksum = body["output"].get("checksum").is_some() || body.get("checksum").is_some();
    if matches!(job.state, State::Waiting(_)) {
        job.state = State::Running;
    }
    if cancel && first {
        job.state = State::Canceling;
    }
    let waiting = two_phase && first;
    let empty = job.stored.is_empty();
    job.updates.push((request.at, body.clone()));
    let word = job.state.word();
    if waiting && has_checksum && empty {
        world.violation(request, "the first update has a checksum");
    }
    if body.get("failure_reason").is_some() || body.get("exit_code").is_some() {
        world.violation(request, "a running update has a result");
    }
    let mut response = Response::new(200, "text/plain", "200").with("Job-Status", word);
    if let Some(interval) = interval {
        response = response.with("X-GitLab-Trace-Update-Interval", interval);
    }
    response
}

fn finish(world: &mut World, request: &Request, id: u64, body: Value, life: u64) -> Response {
    let options = world.options.clone();
    let job = world.job(id);
    let say_again = |status: u16| {
        let response = Response::new(status, "text/plain", status.to_string()).with("Job-Status", "running");
        match &options.accepted_interval {
            Some(interval) => response.with("X-GitLab-Trace-Update-Interval", interval),
            None => response,
        }
    };
    if job.updates.is_empty() && !job.confirm_disturbed {
        world.violation(request, "a final state before the first update");
    }
    let job = world.job(id);
    job.updates.push((request.at, body.clone()));
    if job.accepted < options.accepted_first {
        job.accepted += 1;
        return say_again(202);
    }
    if job.invalidated < options.invalid_first {
        job.invalidated += 1;
        job.stored.clear();
        job.trace_disturbed = true;
        return say_again(412);
    }
    let wrong = result_errors(&job.stored, &job.payload, &body, &options);
    job.state = match (job.state, body["state"].as_str()) {
        (State::Canceling, _) => State::Canceled,
        (_, Some("success")) => State::Success,
        _ => State::Failed,
    };
    job.ended = Some(Instant::now());
    job.last = Some(body);
    job.ended_in = life;
    let word = job.state.word();
    wrong.into_iter().for_each(|w| world.violation(request, w));
    Response::new(200, "text/plain", "200").with("Job-Status", word)
}

/// What real GitLab only records, and a person wonders about later.
fn result_errors(stored: &[u8], payload: &Value, body: &Value, options: &Options) -> Vec<String> {
    let mut wrong = Vec::new();
    let output = &body["output"];
    let left_out = output.get("checksum").is_none() && output.get("bytesize").is_none();
    if !(left_out && options.checksum_optional) {
        let want = format!("crc32:{:08x}", crc32(stored));
        if output["checksum"] != want.as_str() {
            wrong.push(format!("checksum is {}, {} bytes are stored with {want}", output["checksum"], stored.len()));
        }
        let size = if stored.is_empty() { Value::Null } else { json!(stored.len()) };
        if output["bytesize"] != size {
            wrong.push(format!("bytesize is {}, {} bytes are stored", output["bytesize"], stored.len()));
        }
    }
    let reason = body.get("failure_reason").and_then(Value::as_str);
    match (body["state"].as_str(), reason) {
        (Some("success"), None) => {}
        (Some("success"), Some(reason)) => wrong.push(format!("a success with the failure reason {reason}")),
        (_, None) => wrong.push("a failure without a reason".to_owned()),
        (_, Some(reason)) => {
            let known = payload["features"]["failure_reasons"].as_array().cloned().unwrap_or_default();
            let always = ["script_failure", "runner_system_failure", "job_execution_timeout"];
            if !known.iter().any(|k| k == reason) && !always.contains(&reason) && reason != "unknown_failure" {
                wrong.push(format!("the failure reason {reason} is none that the job offered"));
            }
        }
    }
    if body.get("exit_code").is_some_and(|c| c == 0) {
        wrong.push("exit_code 0 is sent".to_owned());
    }
    wrong
}

// ---- Common checks -----------------------------------------------------------------------------

fn check_json(world: &mut World, request: &Request) {
    if request.header("Content-Type").is_none_or(|t| !t.starts_with("application/json")) {
        world.violation(request, format!("Content-Type is {:?}", request.header("Content-Type")));
    }
    if !request.json().is_object() {
        world.violation(request, "the body is no JSON object");
    }
    if request.header("User-Agent").is_none_or(str::is_empty) {
        world.violation(request, "no User-Agent");
    }
}

fn check_info(world: &mut World, request: &Request, body: &Value) {
    let info = &body["info"];
    for key in ["name", "version", "platform", "architecture", "executor", "shell"] {
        if info[key].as_str().is_none_or(str::is_empty) {
            world.violation(request, format!("info.{key} is {}", info[key]));
        }
    }
    for feature in world.options.required_features.clone() {
        if info["features"][feature] != true {
            world.violation(request, format!("info.features.{feature} is {}", info["features"][feature]));
        }
    }
    let switched: Vec<&String> = info["features"].as_object().into_iter().flatten().map(|(k, _)| k).collect();
    if switched.len() != FEATURES {
        world.violation(request, format!("info.features has {} of {FEATURES} keys", switched.len()));
    }
}

/// Keys of `info.features` (protocol §7.1): always all of them.
const FEATURES: usize = 31;

fn is_system_id(id: &str) -> bool {
    let Some(rest) = id.strip_prefix("s_").or_else(|| id.strip_prefix("r_")) else { return false };
    rest.len() == 12 && rest.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn forbidden() -> Response {
    Response::json(403, &json!({"message": "403 Forbidden"}))
}

/// IEEE, bit by bit: slow, and not the runner's own.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let mut table = [0_u32; 256];
    for (n, slot) in (0_u32..).zip(table.iter_mut()) {
        *slot = (0..8).fold(n, |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 });
    }
    !bytes.iter().fold(!0_u32, |c, b| table[((c ^ u32::from(*b)) & 0xff) as usize] ^ (c >> 8))
}
