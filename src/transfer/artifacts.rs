//! What `artifacts-uploader` and `artifacts-downloader` do inside a stage (build §6). Requests are repeated
//! on two levels, as the reference does it: a server that asks for patience gets the same request again
//! (`Coordinator::patiently`), a try that failed for good is a try of the command.

mod body;
pub mod download;
pub mod upload;

use std::path::PathBuf;
use std::time::Duration;

use crate::clock::Timing;
use crate::http::{Answer, Client, Failure, Method, Web, for_people, pushback, request_id};
use crate::model::Secret;

use super::say::{self, Level, Line};

/// Tries of one request that the server puts off.
const CALLS: u32 = 5;

/// Whose artifacts, and where.
#[derive(Clone, Debug)]
pub struct Coordinator {
    /// The GitLab server's URL, without a slash at its end.
    pub url: String,
    pub job: u64,
    pub token: Secret,
    /// The token's beginning, for the log.
    pub short_token: String,
    pub user_agent: String,
    /// Believed beside the system's certificates.
    pub ca: Option<PathBuf>,
    /// Show what the server answers.
    pub trace: bool,
}

/// Why a command fails: its last line.
pub type Failed = Line;

fn fatal(text: impl Into<String>) -> Failed {
    Line::new(Level::Fatal, text)
}

impl Coordinator {
    /// Whether enough is known to ask at all.
    fn check(&self) -> Result<(), Failed> {
        if self.url.is_empty() || self.token.is_empty() {
            return Err(fatal("Missing runner credentials"));
        }
        if self.job == 0 {
            return Err(fatal("Missing build ID"));
        }
        Ok(())
    }

    fn client(&self) -> Client {
        Web::new(&Timing::load()).client(&self.url, self.ca.as_deref())
    }

    /// `query` begins with its question mark, or is empty.
    fn artifacts(&self, query: &str) -> String {
        format!("{}/api/v4/jobs/{}/artifacts{query}", self.url, self.job)
    }

    /// The same request, until the server does not put it off any more. `send` gets the request's id.
    fn patiently(
        &self,
        method: Method,
        url: &str,
        mut send: impl FnMut(&str) -> Result<Answer, Failure>,
    ) -> (String, Result<Answer, Failure>) {
        let id = request_id();
        for call in 0.. {
            let sent = send(&id);
            let wait = match &sent {
                Ok(answer) if call + 1 < CALLS && pushback::is_retriable(answer.status) => {
                    pushback::wait(answer).unwrap_or_else(|| backoff(call))
                }
                _ => return (id, sent.inspect(|answer| self.show(answer))),
            };
            say::say(
                &Line::new(Level::Info, "Waiting before making the next call")
                    .with("context", "ratelimit-requester-gitlab-request")
                    .with("duration", duration(wait))
                    .with("method", method.to_string())
                    .with("url", url),
            );
            pause(wait);
        }
        unreachable!("the last call returns")
    }

    /// What every line about an answer tells beside its text.
    fn fields(&self, line: Line, request: &str, answer: Option<&Answer>) -> Line {
        let id = answer.and_then(|a| a.header("X-Request-Id")).unwrap_or(request);
        let line = line.with("correlation_id", id).with("id", self.job.to_string()).with("token", &self.short_token);
        match answer {
            Some(answer) => line.with("status", answer.status.to_string()),
            None => line,
        }
    }

    fn show(&self, answer: &Answer) {
        if self.trace {
            let start = &answer.body[..answer.body.len().min(512)];
            let line = Line::new(Level::Info, "received response").with("status", answer.status.to_string());
            say::say(&line.with("body", String::from_utf8_lossy(start)));
        }
    }
}

/// 100 ms, then at random between that and its doubles.
fn backoff(call: u32) -> Duration {
    let least = Timing::load().http_backoff_min;
    let most = least * 2u32.pow(call.min(8));
    let random = u64::from_str_radix(&request_id()[..8], 16).unwrap_or(0);
    least + (most - least).mul_f64(random as f64 / f64::from(u32::MAX))
}

/// A bounded wait; a stage that is ended ends this command by its signal.
fn pause(wait: Duration) {
    let _ = crossbeam_channel::after(wait).recv();
}

/// As Go writes it.
fn duration(d: Duration) -> String {
    let number = |value: f64| format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned();
    match d.as_secs() {
        0 => format!("{}ms", number(d.as_secs_f64() * 1000.0)),
        s if s < 60 => format!("{}s", number(d.as_secs_f64())),
        s if s < 3600 => format!("{}m{}s", s / 60, s % 60),
        s => format!("{}h{}m{}s", s / 3600, s / 60 % 60, s % 60),
    }
}

/// `POST https://host/path: 413 Request Entity Too Large (why)`.
fn in_words(method: Method, url: &str, answer: &Answer) -> String {
    let status = status(answer.status);
    let line = format!("{method} {}: {status}", for_people(url));
    match message(&answer.body).filter(|m| *m != status) {
        Some(text) => format!("{line} ({text})"),
        None => line,
    }
}

/// The server's own words in the body of an error (protocol §0.5).
fn message(body: &[u8]) -> Option<String> {
    use serde_json::Value;
    let body: Value = serde_json::from_slice(body).ok()?;
    match body.get("message")? {
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) => {
            let words = fields.iter().filter_map(|(field, texts)| {
                let texts: Vec<&str> = texts.as_array()?.iter().filter_map(Value::as_str).collect();
                Some(format!("{field}: {}", texts.join("; ")))
            });
            Some(words.collect::<Vec<_>>().join(", "))
        }
        _ => None,
    }
}

/// Number and words of a status, as Go's library knows them.
fn status(code: u16) -> String {
    let words = match code {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Request Entity Too Large",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        507 => "Insufficient Storage",
        _ => return code.to_string(),
    };
    format!("{code} {words}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (ms, want) in
            [(100, "100ms"), (1, "1ms"), (1000, "1s"), (1500, "1.5s"), (61_000, "1m1s"), (3_600_000, "1h0m0s")]
        {
            assert_eq!(duration(Duration::from_millis(ms)), want);
        }
        assert_eq!(duration(Duration::from_micros(173_245)), "173.245ms");
    }

    #[test]
    fn the_first_wait_is_the_shortest_and_none_is_too_long() {
        let least = Timing::load().http_backoff_min;
        assert_eq!(backoff(0), least);
        for call in 1..5 {
            let wait = backoff(call);
            assert!(wait >= least && wait <= least * 2u32.pow(call));
        }
    }

    #[test]
    fn the_servers_words_are_found() {
        for (body, want) in [
            (r#"{"message":"413 injected"}"#, Some("413 injected")),
            (r#"{"message":{"file":["is large","is odd"]}}"#, Some("file: is large; is odd")),
            ("<html>", None),
        ] {
            assert_eq!(message(body.as_bytes()).as_deref(), want);
        }
    }
}
