//! The endpoints of the fake GitLab: which request is which, who may make it, and what is answered
//! (protocol §5.3–5.6).

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::checks::{check_info, check_json, is_system_id, result_errors};
use super::{Inner, State, Told, World};
use crate::support::http::{Fault, Patience, Request, Response, Site};

/// The largest chunk of log that a request may carry (protocol §2.1).
const CHUNK: usize = 1024 * 1024;
/// The largest job request that the front proxy lets through (protocol §5.3).
const POLL_ROOM: usize = 32 * 1024;

/// What a path of the API is about.
enum Target {
    Poll,
    Verify,
    Job(u64),
    Trace(u64),
    Upload(u64),
    Download(u64),
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
        ("POST", ["jobs", id, "artifacts"]) => id.parse().map_or(Target::Unknown, Target::Upload),
        ("GET", ["jobs", id, "artifacts"]) => id.parse().map_or(Target::Unknown, Target::Download),
        _ => Target::Unknown,
    }
}

impl Site for Inner {
    fn label(&self, request: &Request) -> String {
        let word = match target(request) {
            Target::Poll => "poll",
            Target::Verify => "verify",
            Target::Trace(_) => "trace",
            Target::Upload(_) => "upload",
            Target::Download(_) => "download",
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
            Target::Upload(id) => self.upload(request, id),
            Target::Download(id) => self.download(request, id),
            Target::Unknown => {
                self.world().violation(request, "no such endpoint");
                Response::json(404, &json!({"error": "404 Not Found"}))
            }
        };
        self.changed.notify_all();
        response
    }

    fn life(&self) -> u64 {
        self.lives.load(Ordering::SeqCst)
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
        let life = self.life();
        world.job(id).trace_life = life;
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
                finish(&mut world, request, id, body)
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
        let life = request.life;
        let job = world.job(id);
        let size = job.stored.len();
        if start != size {
            let first_of_life = std::mem::replace(&mut job.trace_life, life) != life;
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

    /// Protocol §1.8, §5.9.
    fn upload(&self, request: &Request, id: u64) -> Response {
        let mut world = self.world();
        world.expire();
        let token = request.header("JOB-TOKEN").unwrap_or_default();
        if let Some(refusal) = self.refuse(&mut world, request, id, token, false) {
            return refusal;
        }
        match super::form::artifact(request) {
            Ok(artifact) => {
                world.job(id).artifacts.push(artifact);
                Response::new(201, "application/json", "201").with("X-Request-Id", format!("up-{id}"))
            }
            Err(what) => {
                world.violation(request, what);
                Response::json(400, &json!({"message": "400 Bad request"}))
            }
        }
    }

    /// Protocol §1.9: any token of a job of the project will do.
    fn download(&self, request: &Request, id: u64) -> Response {
        let mut world = self.world();
        if !matches!(request.query.as_str(), "" | "direct_download=true") {
            world.violation(request, format!("query is {:?}", request.query));
        }
        let token = request.header("JOB-TOKEN").unwrap_or_default().to_owned();
        if !world.jobs.values().any(|j| j.token == token) {
            world.violation(request, "no job's token");
            return Response::json(401, &json!({"message": "401 Unauthorized"}));
        }
        match world.jobs.get(&id).and_then(|job| job.artifacts.iter().find(|a| a.kind == "archive")) {
            Some(archive) => Response::new(200, "application/octet-stream", archive.data.clone()),
            None => Response::json(404, &json!({"message": "404 Not found"})),
        }
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
        let life = request.life;
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

fn finish(world: &mut World, request: &Request, id: u64, body: Value) -> Response {
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
    job.ended_in = request.life;
    let word = job.state.word();
    wrong.into_iter().for_each(|w| world.violation(request, w));
    Response::new(200, "text/plain", "200").with("Job-Status", word)
}

fn forbidden() -> Response {
    Response::json(403, &json!({"message": "403 Forbidden"}))
}
