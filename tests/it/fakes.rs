//! The fake GitLab itself, asked by hand: it refuses and notes what the real one would refuse.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::SOON;
use crate::support::gitlab::{GitLab, State, TOKEN, crc32};
use crate::support::http::{Fault, ONCE};
use crate::support::payload::Payload;

/// A client that says what a test makes it say.
struct Client(TcpStream);

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| Some(l.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name))?.1))
    }
}

impl Client {
    fn new(fake: &GitLab) -> Client {
        let stream = TcpStream::connect(fake.url().trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Client(stream)
    }

    /// `None` when the connection ended before a whole answer.
    fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Option<Answer> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nUser-Agent: by hand\r\nContent-Length: {}\r\n", body.len());
        headers.iter().for_each(|(n, v)| text += &format!("{n}: {v}\r\n"));
        self.0.write_all(&[text.as_bytes(), b"\r\n", body].concat()).ok()?;
        let mut bytes = Vec::new();
        let head_end = loop {
            if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            self.more(&mut bytes)?;
        };
        let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
        let mut answer = Answer { status: head.split(' ').nth(1)?.parse().ok()?, head, body: String::new() };
        let length = answer.header("Content-Length").map_or(0, |v| v.parse().unwrap());
        while bytes.len() < head_end + length {
            self.more(&mut bytes)?;
        }
        answer.body = String::from_utf8_lossy(&bytes[head_end..]).into_owned();
        Some(answer)
    }

    fn more(&mut self, bytes: &mut Vec<u8>) -> Option<()> {
        let mut piece = [0; 4096];
        let n = self.0.read(&mut piece).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&piece[..n]);
        Some(())
    }

    fn json(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let mut all = vec![("Content-Type", "application/json")];
        all.extend_from_slice(headers);
        self.ask(method, path, &all, body.to_string().as_bytes()).expect("an answer")
    }

    fn poll(&mut self, last_update: Option<&str>) -> Answer {
        let mut body = json!({"info": info(), "token": TOKEN, "system_id": "s_0123456789ab"});
        if let Some(value) = last_update {
            body["last_update"] = json!(value);
        }
        self.json("POST", "/api/v4/jobs/request", &[], &body)
    }

    fn update(&mut self, id: u64, body: Value) -> Answer {
        let token = format!("glcbt-64_{id}secretJobToken");
        let mut whole = json!({"info": info(), "token": token, "output": {}});
        body.as_object().unwrap().iter().for_each(|(k, v)| whole[k] = v.clone());
        self.json("PUT", &format!("/api/v4/jobs/{id}"), &[("JOB-TOKEN", &token)], &whole)
    }

    fn patch(&mut self, id: u64, start: usize, bytes: &[u8]) -> Answer {
        let token = format!("glcbt-64_{id}secretJobToken");
        let range = format!("{start}-{}", start + bytes.len() - 1);
        let headers = [("JOB-TOKEN", token.as_str()), ("Content-Range", &range), ("Content-Type", "text/plain")];
        self.ask("PATCH", &format!("/api/v4/jobs/{id}/trace?debug_trace=false"), &headers, bytes).expect("an answer")
    }

    fn finish(&mut self, id: u64, log: &[u8]) -> Answer {
        let output = json!({"checksum": format!("crc32:{:08x}", crc32(log)), "bytesize": log.len()});
        self.update(id, json!({"state": "success", "output": output}))
    }
}

fn info() -> Value {
    let names = [
        "variables",
        "image",
        "services",
        "image_executor_opts",
        "service_executor_opts",
        "service_multiple_aliases",
        "service_variables",
        "session",
        "terminal",
        "shared",
        "proxy",
        "native_steps_integration",
        "artifacts",
        "upload_multiple_artifacts",
        "upload_raw_artifacts",
        "cache",
        "fallback_cache_keys",
        "refspecs",
        "masking",
        "raw_variables",
        "artifacts_exclude",
        "multi_build_steps",
        "vault_secrets",
        "return_exit_code",
        "trace_reset",
        "trace_checksum",
        "trace_size",
        "cancelable",
        "cancel_gracefully",
        "two_phase_job_commit",
        "job_inputs",
    ];
    let features: Value =
        names.iter().map(|n| ((*n).to_owned(), json!(true))).collect::<serde_json::Map<_, _>>().into();
    json!({"name": "hand", "version": "1", "platform": "linux", "architecture": "amd64", "executor": "shell",
           "shell": "bash", "features": features, "config": {"gpus": ""}})
}

/// A fake with one job that was handed out and confirmed.
fn confirmed() -> (GitLab, Client, u64) {
    let fake = GitLab::start();
    let id = fake.queue(Payload::script(&["true"]));
    let mut client = Client::new(&fake);
    assert_eq!(client.poll(None).status, 201);
    assert_eq!(client.update(id, json!({"state": "running"})).status, 200);
    (fake, client, id)
}

fn violated(fake: &GitLab, text: &str) {
    let violations = fake.take_violations();
    assert!(violations.iter().any(|v| v.contains(text)), "{text:?} is not among {violations:?}");
}

#[test]
fn a_job_is_handed_out_logged_and_ended_without_a_complaint() {
    let (fake, mut client, id) = confirmed();
    assert_eq!(client.patch(id, 0, b"hello ").header("Range"), Some("0-6"));
    assert_eq!(client.patch(id, 6, b"you\n").header("Job-Status"), Some("running"));
    let end = client.finish(id, b"hello you\n");
    assert_eq!((end.status, end.header("Job-Status")), (200, Some("success")));
    assert_eq!(fake.job(id).state, State::Success);
    assert_eq!(client.poll(None).status, 204);
}

#[test]
fn the_rules_of_order_are_enforced() {
    let fake = GitLab::start();
    let id = fake.queue(Payload::script(&["true"]));
    let mut client = Client::new(&fake);
    assert_eq!(client.update(id, json!({"state": "running"})).status, 403);
    violated(&fake, "was not handed out");
    client.poll(None);
    assert_eq!(client.finish(id, b"").status, 400);
    violated(&fake, "before the first update");
    client.patch(id, 0, b"early");
    violated(&fake, "log before the first update");
    client.update(id, json!({"state": "running"}));
    client.finish(id, b"early");
    assert_eq!(client.finish(id, b"early").status, 403);
    violated(&fake, "a job that is over");
}

#[test]
fn wrong_ranges_tokens_and_sums_are_refused_and_noted() {
    let (fake, mut client, id) = confirmed();
    client.patch(id, 0, b"1234");
    let gap = client.patch(id, 5, b"x");
    assert_eq!((gap.status, gap.header("Range"), gap.header("Job-Status")), (416, Some("0-4"), None));
    violated(&fake, "starts at 5, 4 bytes are stored");
    let stranger = client.json("PUT", &format!("/api/v4/jobs/{id}"), &[], &json!({"token": "x", "state": "running"}));
    assert_eq!((stranger.status, stranger.header("Job-Status")), (403, None));
    violated(&fake, "not this job's token");
    let unknown = client.update(77, json!({"state": "running"}));
    assert_eq!(unknown.status, 403);
    violated(&fake, "an unknown job");
    let bare = client.ask("PATCH", &format!("/api/v4/jobs/{id}/trace"), &[("JOB-TOKEN", &fake.job(id).token)], b"x");
    assert_eq!(bare.unwrap().status, 400);
    violated(&fake, "Content-Range");
    assert_eq!(client.finish(id, b"123").status, 200);
    violated(&fake, "checksum");
}

#[test]
fn a_job_that_nobody_acknowledges_goes_back_to_the_queue() {
    let fake = GitLab::with(|o| o.acknowledge_within = Duration::from_millis(50));
    let id = fake.queue(Payload::script(&["true"]));
    let mut client = Client::new(&fake);
    client.poll(None);
    crate::support::tick(Duration::from_millis(80));
    let late = client.update(id, json!({"state": "running"}));
    assert_eq!((late.status, late.header("Job-Status")), (403, Some("pending")));
    assert_eq!(client.poll(None).status, 201);
    assert_eq!(fake.job(id).redeliveries(), 1);
}

#[test]
fn only_a_poll_that_names_the_present_value_is_held() {
    let fake = GitLab::with(|o| o.long_poll = Duration::from_millis(200));
    let mut client = Client::new(&fake);
    let first = client.poll(None);
    let value = first.header("X-GitLab-Last-Update").expect("the value").to_owned();
    let from = Instant::now();
    let held = client.poll(Some(&value));
    assert!(from.elapsed() >= Duration::from_millis(200));
    assert_eq!((held.status, held.header("X-GitLab-Last-Update")), (204, None));
    let from = Instant::now();
    assert_eq!(client.poll(Some("other")).status, 204);
    assert!(from.elapsed() < Duration::from_millis(150));
}

#[test]
fn a_cancel_is_told_by_every_answer_until_the_runner_ends_the_job() {
    let (fake, mut client, id) = confirmed();
    fake.cancel(id);
    assert_eq!(client.patch(id, 0, b"x").header("Job-Status"), Some("canceling"));
    assert_eq!(client.update(id, json!({"state": "running"})).header("Job-Status"), Some("canceling"));
    assert_eq!(client.finish(id, b"x").header("Job-Status"), Some("canceled"));
    assert_eq!(fake.job(id).state, State::Canceled);
}

#[test]
fn a_job_that_the_server_ended_answers_403_with_its_state() {
    let (fake, mut client, id) = confirmed();
    fake.force_cancel(id);
    let told = client.patch(id, 0, b"x");
    assert_eq!((told.status, told.header("Job-Status")), (403, Some("canceled")));
    assert_eq!(client.finish(id, b"x").status, 403);
    client.patch(id, 0, b"x");
    violated(&fake, "a job that is over");
}

#[test]
fn final_updates_are_answered_202_and_412_as_often_as_asked() {
    let (fake, mut client, id) = confirmed();
    fake.options(|o| (o.accepted_first, o.invalid_first, o.accepted_interval) = (1, 1, Some("2".to_owned())));
    client.patch(id, 0, b"x");
    let moved = client.finish(id, b"x");
    assert_eq!((moved.status, moved.header("X-GitLab-Trace-Update-Interval")), (202, Some("2")));
    assert_eq!(client.finish(id, b"x").status, 412);
    assert_eq!(client.patch(id, 1, b"y").header("Range"), Some("0-0"));
    client.patch(id, 0, b"x");
    assert_eq!(client.finish(id, b"x").status, 200);
}

#[test]
fn faults_come_at_their_turn_and_are_forgiven() {
    let (fake, mut client, id) = confirmed();
    fake.fail("trace", ONCE, Fault::Lost);
    fake.fail("touch", 2..=2, Fault::Status(500));
    fake.fail("final", ONCE, Fault::Cut);
    let range = [("JOB-TOKEN", fake.job(id).token), ("Content-Range", "0-0".to_owned())];
    let headers: Vec<(&str, &str)> = range.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let text = [&headers[..], &[("Content-Type", "text/plain")]].concat();
    assert!(client.ask("PATCH", &format!("/api/v4/jobs/{id}/trace?debug_trace=false"), &text, b"x").is_none());
    let mut client = Client::new(&fake);
    assert_eq!(client.patch(id, 0, b"x").header("Range"), Some("0-1"), "the lost one was stored");
    assert_eq!(client.update(id, json!({"state": "running"})).status, 200);
    assert_eq!(client.update(id, json!({"state": "running"})).status, 500);
    let output = json!({"checksum": format!("crc32:{:08x}", crc32(b"x")), "bytesize": 1});
    let body = json!({"info": info(), "token": range[0].1, "state": "success", "output": output}).to_string();
    let headers = [("JOB-TOKEN", range[0].1.as_str()), ("Content-Type", "application/json")];
    assert!(client.ask("PUT", &format!("/api/v4/jobs/{id}"), &headers, body.as_bytes()).is_none());
    let mut client = Client::new(&fake);
    let again = client.finish(id, b"x");
    assert_eq!((again.status, again.header("Job-Status")), (403, Some("success")));
    assert!(fake.violations().is_empty(), "{:?}", fake.violations());
}

#[test]
fn a_job_request_without_features_is_noted() {
    let fake = GitLab::start();
    let mut client = Client::new(&fake);
    let body = json!({"info": {"name": "x"}, "token": TOKEN, "system_id": "s_0123456789ab"});
    assert_eq!(client.json("POST", "/api/v4/jobs/request", &[], &body).status, 204);
    violated(&fake, "info.features");
    assert_eq!(client.json("POST", "/api/v4/jobs/request", &[], &json!({"token": "glrt-other"})).status, 403);
    fake.take_violations();
}
