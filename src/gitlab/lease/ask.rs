//! The two requests of a lease: the update and the piece of log. Builds them, sends them, and takes up
//! what every answer may carry: a cancel, the interval, whether the server can be reached.

use std::time::Duration;

use crate::forge::{Contact, Wanted};
use crate::http::{Answer, Failure, Method, Request, pushback, request_id};
use crate::model::user_agent;

use super::GitlabLease;
use super::upload::Chunk;
use crate::gitlab::wire::answer::{Put, Words, in_words};
use crate::gitlab::wire::request::{Output, State, Update};

/// What an update says of the job.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) state: State,
    pub(super) failure_reason: &'static str,
    pub(super) exit_code: i64,
    /// Of the whole log; without it the size is left out, too.
    pub(super) checksum: String,
    pub(super) size: u64,
}

impl Report {
    pub(super) fn of(state: State) -> Report {
        Report { state, failure_reason: "", exit_code: 0, checksum: String::new(), size: 0 }
    }
}

/// An answer to an update.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) put: Put,
    /// For people.
    pub(super) line: String,
    /// The wait that the server asks for.
    pub(super) asked: Option<Duration>,
    /// Whether the same may succeed later.
    pub(super) may_pass: bool,
    pub(super) interval: Option<Duration>,
}

impl GitlabLease {
    /// `PUT jobs/:id`. Failures are logged here; what the server says of a cancel is taken up here.
    pub(super) fn put(&mut self, report: &Report) -> Result<Said, Failure> {
        let checksum = report.checksum.as_str();
        let bytesize = if checksum.is_empty() { 0 } else { report.size as i64 };
        let update = Update {
            info: &self.data.info,
            token: &self.data.token,
            state: report.state,
            failure_reason: report.failure_reason,
            checksum,
            output: Output { checksum, bytesize },
            exit_code: report.exit_code,
        };
        let body = serde_json::to_vec(&update).expect("an update has string keys");
        let url = format!("{}/api/v4/jobs/{}", self.data.url, self.data.id);
        let answer = self.send(Method::Put, &url, &[("Content-Type", "application/json")], &body)?;
        let words = Words::of(&answer);
        let put = words.put();
        let line = self.in_words(Method::Put, &answer);
        if matches!(put, Put::Failed | Put::TraceInvalid) {
            log::warn!("{}: {line}", self.name);
        }
        Ok(Said {
            put,
            line,
            asked: pushback::wait(&answer),
            may_pass: words.may_pass(),
            interval: self.pace.interval(answer.header("X-GitLab-Trace-Update-Interval")),
        })
    }

    pub(super) fn patch(&mut self, chunk: &Chunk) -> Result<Answer, Failure> {
        let (data, first) = (&self.data, chunk.offset);
        let url = format!("{}/api/v4/jobs/{}/trace?debug_trace={}", data.url, data.id, data.debug_trace);
        // Inclusive: four bytes at 0 are `0-3`.
        let range = format!("{first}-{}", first + chunk.bytes.len() as u64 - 1);
        let headers = [("Content-Type", "text/plain"), ("Content-Range", range.as_str())];
        let answer = self.send(Method::Patch, &url, &headers, &chunk.bytes)?;
        self.pace.interval(answer.header("X-GitLab-Trace-Update-Interval"));
        Ok(answer)
    }

    fn send(
        &mut self,
        method: Method,
        url: &str,
        more: &[(&'static str, &str)],
        body: &[u8],
    ) -> Result<Answer, Failure> {
        let (agent, id) = (user_agent(), request_id());
        let mut headers = vec![("User-Agent", agent.as_str()), ("X-Request-Id", &id)];
        headers.push(("JOB-TOKEN", self.data.token.reveal()));
        headers.extend_from_slice(more);
        let request = Request { method, url, headers: &headers, body, deadline: self.timing.request_deadline };
        let sent = self.client.send(&request);
        self.contact = match &sent {
            Ok(answer) if !Words::of(answer).may_pass() => Contact::Fine,
            _ => Contact::Failing,
        };
        let answer = sent.inspect_err(|e| log::warn!("{}: {method} {e}", self.name))?;
        self.take_up(&answer);
        Ok(answer)
    }

    /// A cancel comes with any status; it only rises to an abort.
    fn take_up(&mut self, answer: &Answer) {
        if Words::of(answer).is_canceling() && self.wanted == Wanted::Run {
            log::info!("{}: canceled at the server", self.name);
            // The job's own time limit goes on; a cancel gives no less than what may be left of it.
            self.wanted = Wanted::Cancel { within: Duration::from_secs(self.data.timeout.max(60)) };
        }
    }

    pub(super) fn in_words(&self, method: Method, answer: &Answer) -> String {
        let path = if method == Method::Patch { "/trace" } else { "" };
        let url = format!("{}/api/v4/jobs/{}{path}", self.data.url, self.data.id);
        in_words(method, &url, answer)
    }
}
