//! One per entry: asks GitLab for jobs. Runs none, and never waits on its own.
//!
//! **Invariant 1**: asking is taking. A poll is cut only as [`crate::http::Line`] allows, and counts as
//! one that may have a job until the job has its directory (`Found`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::config::Entry;
use crate::forge::{Coordinator, HangUp, Lease, Refusal};
use crate::forges::Ground;
use crate::http::{self, Answer, Client, Failure, Line, Method, Request, pushback};
use crate::model::{ForgeKind, Job, Server, VERSION, user_agent};
use crate::retry::Backoff;

use super::lease::{Data, GitlabLease};
use super::wire::answer::in_words;
use super::wire::request::{JobRequest, info};
use super::wire::{Head, Variable};

/// A line is renewed after so long, so that a server behind a balancer may go (`connection_max_age`).
const LINE_LIFE: Duration = Duration::from_secs(15 * 60);

pub struct Gitlab {
    entry: Arc<Entry>,
    ground: Ground,
    info: Value,
    client: Client,
    ca_file: Option<PathBuf>,
    lines: Mutex<Lines>,
    /// The server's word for how its queue was; never shared between entries.
    last_update: Mutex<String>,
    failures: Mutex<Backoff>,
    /// Jobs taken that have no directory yet.
    found: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Lines {
    idle: Vec<Arc<Line>>,
    busy: Vec<Arc<Line>>,
    /// The runner stops: nothing is asked any more.
    is_leaving: bool,
}

/// A job on its way from a poll into its directory.
#[derive(Debug)]
pub(super) struct Found(Arc<AtomicUsize>);

impl Gitlab {
    pub fn new(entry: &Arc<Entry>, ground: &Ground) -> Gitlab {
        let ca_file = entry.tls_ca_file.clone().or_else(|| default_ca(&entry.url));
        Gitlab {
            info: info(entry),
            client: ground.web.client(&entry.url, ca_file.as_deref()),
            ca_file,
            entry: entry.clone(),
            ground: ground.clone(),
            lines: Mutex::default(),
            last_update: Mutex::default(),
            failures: Mutex::new(Backoff::new(ground.timing.http_backoff_min, ground.timing.backoff_max)),
            found: Arc::default(),
        }
    }
}

impl Coordinator for Gitlab {
    fn poll(&self, patience: Duration) -> Result<Option<Box<dyn Lease>>, Refusal> {
        let Some(line) = self.take_line() else { return Ok(None) };
        let polled = self.ask(&line, patience);
        line.rest();
        self.give_back(line);
        polled.map(|lease| lease.map(|l| Box::new(l) as Box<dyn Lease>))
    }

    fn hang_up(&self, which: HangUp) {
        let mut lines = self.lines.lock();
        match which {
            HangUp::Longest => {
                if let Some(line) = lines.busy.iter().max_by_key(|l| l.parked()) {
                    line.cut_if_parked();
                }
            }
            HangUp::All => {
                lines.is_leaving = true;
                lines.idle.clear();
                lines.busy.iter().for_each(|l| l.leave());
            }
        }
    }

    fn may_have_a_job(&self) -> bool {
        // In this order: a job is found before its line rests.
        self.lines.lock().busy.iter().any(|l| l.may_bring()) || self.found.load(Ordering::SeqCst) > 0
    }
}

// ---- One poll --------------------------------------------------------------------------------

impl Gitlab {
    fn ask(&self, line: &Line, patience: Duration) -> Result<Option<GitlabLease>, Refusal> {
        // An entry that leaves when there is nothing to do must hear at once that there is nothing.
        let parks = !patience.is_zero() && !self.entry.exit_when_empty;
        let last_update = if parks { self.last_update.lock().clone() } else { String::new() };
        let parks = !last_update.is_empty();
        let ask = JobRequest {
            info: &self.info,
            token: &self.entry.token,
            system_id: &self.entry.system_id,
            last_update: &last_update,
        };
        let body = serde_json::to_vec(&ask).expect("a job request has string keys");
        let (url, agent, id) = (format!("{}/api/v4/jobs/request", self.entry.url), user_agent(), http::request_id());
        let headers = [
            ("User-Agent", agent.as_str()),
            ("X-Request-Id", &id),
            ("Accept", "application/json"),
            ("Content-Type", "application/json"),
            ("RUNNER-TOKEN", self.entry.token.reveal()),
        ];
        let timing = &self.ground.timing;
        let deadline = if parks { timing.poll_deadline } else { timing.request_deadline };
        let request = Request { method: Method::Post, url: &url, headers: &headers, body: &body, deadline };
        match line.send(&request, parks) {
            Ok(answer) => self.hear(&url, &id, answer),
            Err(Failure::Cut) => Ok(None),
            Err(Failure::Url(why)) => Err(again(Duration::ZERO, false, why)),
            Err(Failure::Transport(why)) => Err(again(self.failures.lock().next(), true, format!("POST {why}"))),
        }
    }

    /// Protocol §1.5.4. Only 403 and an unusable URL are unhealthy.
    fn hear(&self, url: &str, id: &str, answer: Answer) -> Result<Option<GitlabLease>, Refusal> {
        // An answer without it leaves the old one standing, or long polls would end for good.
        if let Some(update) = answer.header("X-GitLab-Last-Update") {
            update.clone_into(&mut self.last_update.lock());
        }
        let why = || in_words(Method::Post, url, &answer);
        match answer.status {
            201 => {
                self.failures.lock().reset();
                self.take(id, answer).map(Some).map_err(|e| {
                    let lost = format!("POST {}: the server handed out what is no job: {e}", http::for_people(url));
                    again(Duration::ZERO, true, lost)
                })
            }
            204 => {
                self.failures.lock().reset();
                if self.entry.exit_when_empty {
                    return Err(Refusal::Retire { exit: 0, why: "there is no job left".to_owned() });
                }
                Ok(None)
            }
            403 => Err(again(Duration::ZERO, false, why())),
            // The queue moved meanwhile: nothing failed.
            409 => Err(again(Duration::ZERO, true, why())),
            status => {
                let asked = pushback::wait(&answer).filter(|_| pushback::is_retriable(status));
                let wait = asked.map(|a| a.min(self.ground.timing.backoff_max));
                Err(again(wait.unwrap_or_else(|| self.failures.lock().next()), true, why()))
            }
        }
    }

    /// The lease of what a server handed out. What is malformed beyond the lease's own needs is left to
    /// the job process, which fails the job with a line in its log.
    fn take(&self, id: &str, answer: Answer) -> Result<GitlabLease, String> {
        if !answer.is_json() {
            return Err("it is not declared as JSON".to_owned());
        }
        let request_id = answer.header("X-Request-Id").unwrap_or(id).to_owned();
        let text = String::from_utf8(answer.body).map_err(|e| e.to_string())?;
        let payload = RawValue::from_string(text).map_err(|e| e.to_string())?;
        let head = Head::read(&payload)?;
        let (entry, ground) = (&self.entry, &self.ground);
        let orphan =
            ground.adoption_timeout.map_or(ground.timing.orphan_gitlab, |a| a.min(ground.timing.orphan_gitlab));
        let data = Data {
            url: entry.url.clone(),
            id: head.id,
            token: head.token.clone(),
            system_id: entry.system_id.clone(),
            info: self.info.clone(),
            ca_file: self.ca_file.clone(),
            debug_trace: !entry.debug_trace_disabled && head.debug_trace.unwrap_or_else(|| wants_trace(entry)),
            timeout: head.timeout,
            orphan: u64::try_from(orphan.as_millis()).unwrap_or(u64::MAX),
            failure_reasons: head.failure_reasons,
        };
        let project = match head.job_info.project_full_path.as_str() {
            "" => head.job_info.project_id.to_string(),
            path => path.to_owned(),
        };
        let job = Job {
            version: VERSION,
            forge: ForgeKind::Gitlab,
            id: head.id.to_string(),
            project,
            name: head.job_info.name,
            timeout: Duration::from_secs(head.timeout),
            slot: 0,
            project_slot: 0,
            settings: entry.settings(),
            server: Server { request_id, ca: self.ca() },
            payload,
        };
        Ok(GitlabLease::taken(data, entry.key(), job, Found::new(&self.found), ground))
    }
}

// ---- Certificates ---------------------------------------------------------------------------

impl Gitlab {
    /// Read anew for each job, because it may be renewed while the manager runs.
    fn ca(&self) -> String {
        let file = self.ca_file.as_deref().filter(|_| self.entry.url.starts_with("https://"));
        file.and_then(|f| std::fs::read_to_string(f).ok()).unwrap_or_default()
    }
}

// ---- Lines -----------------------------------------------------------------------------------

impl Gitlab {
    /// `None` when the runner stops.
    fn take_line(&self) -> Option<Arc<Line>> {
        let mut lines = self.lines.lock();
        if lines.is_leaving {
            return None;
        }
        lines.idle.retain(|l| l.age() < LINE_LIFE);
        let line = lines.idle.pop().unwrap_or_else(|| Arc::new(self.ground.web.line(&self.client)));
        lines.busy.push(line.clone());
        Some(line)
    }

    fn give_back(&self, line: Arc<Line>) {
        let mut lines = self.lines.lock();
        lines.busy.retain(|l| !Arc::ptr_eq(l, &line));
        if !lines.is_leaving && !line.is_cut() {
            lines.idle.push(line);
        }
    }
}

impl Found {
    fn new(count: &Arc<AtomicUsize>) -> Found {
        count.fetch_add(1, Ordering::SeqCst);
        Found(count.clone())
    }

    #[cfg(test)]
    pub(super) fn none() -> Found {
        Found::new(&Arc::default())
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn again(after: Duration, healthy: bool, why: String) -> Refusal {
    Refusal::Again { after, healthy, why }
}

/// Whether the entry's own environment asks for a debug trace; the job's variables go before it.
fn wants_trace(entry: &Entry) -> bool {
    let set = entry.environment.iter().filter_map(|e| e.split_once('='));
    let variables: Vec<Variable> =
        set.map(|(k, v)| Variable { key: k.to_owned(), value: v.to_owned(), ..Variable::default() }).collect();
    super::wire::debug_trace(&variables).unwrap_or(false)
}

/// The certificate that administrators put beside gitlab-runner's default configuration (§3.3).
fn default_ca(url: &str) -> Option<PathBuf> {
    let host = url.split_once("://")?.1.rsplit('@').next()?.split(['/', ':']).next()?.to_owned();
    let home = std::env::home_dir().map(|h| h.join(".gitlab-runner"));
    let places = [Some(Path::new("/etc/gitlab-runner").to_owned()), home];
    places.into_iter().flatten().map(|p| p.join("certs").join(format!("{host}.crt"))).find(|p| p.is_file())
}

impl fmt::Debug for Gitlab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gitlab").field("entry", &self.entry.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
