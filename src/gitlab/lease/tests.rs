//! A lease against a server that says what it was told to; time is what the tests say it is.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;

use serde_json::json;
use serde_json::value::RawValue;

use super::*;
use crate::http::scripted::{Say, Server, answer, server};
use crate::model::Settings;

struct Rig {
    _tmp: tempfile::TempDir,
    dir: JobDir,
    server: Server,
    lease: Box<dyn Lease>,
    ground: Ground,
    now: Instant,
}

/// `says`: status and headers, a request each; 0 is a connection that is closed.
fn rig(says: &[(u16, &str)]) -> Rig {
    let timing = Timing { first_output: Duration::ZERO, hold_back: Duration::ZERO, ..Timing::default() };
    rig_with(says, timing)
}

fn rig_with(says: &[(u16, &str)], timing: Timing) -> Rig {
    let tmp = tempfile::tempdir().unwrap();
    let server = server(says.iter().map(|(status, headers)| say(*status, headers)));
    let ground = Ground::new(timing, tmp.path().to_owned(), Some(Duration::from_secs(600)));
    let data = Data {
        url: server.url(""),
        id: 7,
        token: Secret::new("jobtoken"),
        system_id: "s_0123456789ab".to_owned(),
        info: json!({"name": "runner"}),
        ca_file: None,
        failure_reasons: vec!["runner_interrupted".to_owned()],
        debug_trace: false,
        timeout: 100,
        orphan: 600_000,
    };
    let job = Job {
        version: VERSION,
        forge: ForgeKind::Gitlab,
        id: "7".to_owned(),
        project: "p".to_owned(),
        name: "n".to_owned(),
        timeout: Duration::from_secs(100),
        slot: 0,
        project_slot: 0,
        settings: Settings::default(),
        server: Default::default(),
        payload: RawValue::from_string("{}".to_owned()).unwrap(),
    };
    let lease = GitlabLease::taken(data, "entry".to_owned(), job, Found::none(), &ground);
    let dir = JobDir::create(tmp.path(), &lease.name(), |d| d.write_lease(&lease.record())).unwrap();
    Rig { _tmp: tmp, dir, server, lease: Box::new(lease), ground, now: Instant::now() }
}

fn say(status: u16, headers: &str) -> Say {
    let headers: String = headers.split(';').filter(|h| !h.is_empty()).map(|h| format!("{}\r\n", h.trim())).collect();
    match status {
        0 => Say::Close,
        // What only the body says is left out, as real GitLab's answers to updates are the bare number.
        _ => answer(&format!("{status} X"), &headers, &status.to_string()),
    }
}

impl Rig {
    fn write(&self, text: &str) {
        self.dir.open_log().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn confirm(&mut self) -> String {
        let said = self.lease.confirm(&self.dir, self.now);
        // As the manager does.
        self.dir.write_lease(&self.lease.record()).unwrap();
        format!("{said:?}")
    }

    /// One call, and then it is when that call wanted the next.
    fn attend(&mut self, ended: Option<&Outcome>) -> Option<(Wanted, Contact)> {
        match self.lease.attend(&self.dir, ended, self.now) {
            Attended::Settled => None,
            Attended::Held { wanted, due, contact } => {
                self.now = self.now.max(due.at);
                Some((wanted, contact))
            }
        }
    }

    /// Until the job is settled; how often the lease was asked.
    fn settle(&mut self, outcome: &Outcome) -> usize {
        (1..50).find(|_| self.attend(Some(outcome)).is_none()).expect("it does not end")
    }

    /// The manager was killed and another one starts.
    fn adopt(&mut self) {
        self.lease = adopt(&self.dir, self.dir.lease().unwrap(), &self.ground).unwrap();
    }

    fn calls(&self) -> Vec<String> {
        self.server.heard.lock().iter().map(|r| short(r)).collect()
    }
}

/// `PATCH 0-3 text`, `PUT failed script_failure 37 crc size`.
fn short(request: &str) -> String {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let headers: BTreeMap<String, &str> =
        head.lines().skip(1).filter_map(|l| l.split_once(": ")).map(|(k, v)| (k.to_lowercase(), v)).collect();
    assert_eq!(headers["job-token"], "jobtoken");
    if head.starts_with("PATCH /api/v4/jobs/7/trace?debug_trace=false ") {
        assert_eq!(headers["content-type"], "text/plain");
        return format!("PATCH {} {body}", headers["content-range"]);
    }
    assert!(head.starts_with("PUT /api/v4/jobs/7 "), "{head}");
    let update: Value = serde_json::from_str(body).unwrap();
    assert_eq!(update["token"], "jobtoken");
    assert_eq!(update.get("checksum"), update["output"].get("checksum"));
    let mut words = vec!["PUT".to_owned()];
    for value in [
        &update["state"],
        &update["failure_reason"],
        &update["exit_code"],
        &update["output"]["checksum"],
        &update["output"]["bytesize"],
    ] {
        match value {
            Value::Null => {}
            Value::String(text) => words.push(text.clone()),
            other => words.push(other.to_string()),
        }
    }
    words.join(" ")
}

const OK: (u16, &str) = (200, "Job-Status: running");
const STORED: (u16, &str) = (202, "Job-Status: running");

#[test]
fn a_small_job_is_four_calls_with_nothing_to_wait_for() {
    let mut rig = rig(&[OK, STORED, (200, "Job-Status: success")]);
    assert_eq!(rig.confirm(), "Run");
    assert_eq!(rig.dir.lease().unwrap().phase, Phase::Confirmed);
    assert!(rig.dir.orphan_until().is_some());
    rig.write("hello");
    let before = rig.now;
    assert_eq!(rig.settle(&Outcome::success()), 2);
    assert!(rig.now - before < Duration::from_secs(1));
    assert_eq!(rig.calls(), ["PUT running", "PATCH 0-4 hello", "PUT success crc32:3610a686 5"]);
    assert_eq!(rig.lease.record().phase, Phase::Delivered);
    assert_eq!(*rig.server.connections.lock(), 1);
}

#[test]
fn an_empty_log_has_a_checksum_and_no_size() {
    let mut rig = rig(&[OK, OK]);
    rig.confirm();
    rig.settle(&Outcome::failed(Why::Terminated, ""));
    assert_eq!(rig.calls()[1], "PUT failed runner_interrupted crc32:00000000");
}

#[test]
fn only_what_the_server_says_to_be_final_keeps_a_job_from_running() {
    for (status, headers, want) in [
        (200, "Job-Status: running", "Run"),
        (202, "", "Run"),
        (400, "", "Run"),
        (401, "", "Run"),
        (409, "", "Run"),
        (412, "", "Run"),
        (200, "Job-Status: canceling", "Ended(Canceled)"),
        (500, "", "Again"),
        (429, "Retry-After: 2", "Again"),
        (0, "", "Again"),
        (403, "", "Gone("),
        (404, "", "Gone("),
        (403, "Job-Status: canceled", "Gone("),
        (200, "Job-Status: canceled", "Gone("),
        (200, "Job-Status: failed", "Gone("),
    ] {
        for adopted in [false, true] {
            let mut rig = rig(&[(status, headers)]);
            if adopted {
                rig.adopt();
            }
            let said = rig.confirm();
            assert!(said.starts_with(want), "{status} {headers}: {said}");
        }
    }
}

#[test]
fn a_job_whose_server_is_down_runs_and_is_confirmed_before_anything_else_is_said() {
    let mut rig = rig(&[(500, ""), (502, ""), (503, ""), (500, ""), (500, ""), (500, ""), OK, STORED, OK]);
    let tries: Vec<String> = (0..5).map(|_| rig.confirm()).collect();
    assert_eq!(tries.join(" "), "Again Again Again Again Run");
    assert_eq!(rig.dir.lease().unwrap().phase, Phase::Taken);
    rig.write("x");
    assert_eq!(rig.attend(None), Some((Wanted::Run, Contact::Failing)), "too early");
    assert_eq!(rig.calls().len(), 5);
    assert_eq!(rig.attend(None), Some((Wanted::Run, Contact::Failing)));
    rig.settle(&Outcome::success());
    assert_eq!(rig.calls()[5..], ["PUT running", "PUT running", "PATCH 0-0 x", "PUT success crc32:8cdc1683 1"]);
}

#[test]
fn a_refused_first_update_is_made_again_before_the_log_and_not_for_ever() {
    let mut once = rig(&[(400, ""), OK, STORED, OK]);
    once.confirm();
    once.write("x");
    once.settle(&Outcome::success());
    assert_eq!(once.calls()[1..], ["PUT running", "PATCH 0-0 x", "PUT success crc32:8cdc1683 1"]);
    let mut always = rig(&[(400, ""), (400, ""), (400, ""), (400, ""), (400, ""), STORED, OK]);
    always.confirm();
    always.write("x");
    always.settle(&Outcome::success());
    assert_eq!(always.calls()[5..], ["PATCH 0-0 x", "PUT success crc32:8cdc1683 1"]);
}

#[test]
fn a_login_page_in_the_servers_place_is_no_answer() {
    let page = |status| (status, "Content-Type: text/html");
    let timing = Timing { first_output: Duration::ZERO, ..Timing::default() };
    let mut rig = rig_with(&[page(200), page(403), OK, page(202), STORED, page(200), page(403), OK], timing);
    assert_eq!((rig.confirm(), rig.confirm(), rig.confirm()), ("Again".into(), "Again".into(), "Run".into()));
    rig.write("x");
    rig.settle(&Outcome::success());
    let last = "PUT success crc32:8cdc1683 1";
    assert_eq!(rig.calls()[3..], ["PATCH 0-0 x", "PATCH 0-0 x", last, last, last]);
}

#[test]
fn a_cancel_is_heard_on_any_answer_and_only_rises() {
    let mut rig =
        rig(&[OK, (202, "Job-Status: canceling"), (200, "Job-Status: canceling"), (403, "Job-Status: canceled")]);
    rig.confirm();
    rig.write("x");
    let cancel = Wanted::Cancel { within: Duration::from_secs(100) };
    assert_eq!(rig.attend(None), Some((cancel, Contact::Fine)));
    assert_eq!(rig.attend(None), Some((cancel, Contact::Fine)));
    assert_eq!(rig.attend(None), Some((Wanted::Abort(Why::Aborted), Contact::Fine)));
    rig.write("more");
    let calls = rig.calls().len();
    assert_eq!(rig.attend(None), Some((Wanted::Abort(Why::Aborted), Contact::Fine)));
    assert_eq!(rig.calls().len(), calls, "nothing is asked of a job that is over");
}

#[test]
fn a_job_that_was_taken_away_sends_its_state_and_no_log() {
    let mut rig = rig(&[OK, (403, "Job-Status: canceled"), (403, "Job-Status: canceled")]);
    rig.confirm();
    rig.write("x");
    rig.attend(None);
    rig.write("the rest");
    rig.settle(&Outcome::failed(Why::Aborted, ""));
    assert_eq!(rig.calls()[1..], ["PATCH 0-0 x", "PUT failed unknown_failure crc32:7899a7aa 9"]);
}

#[test]
fn a_silent_job_is_touched_with_its_checksum() {
    let mut rig = rig(&[OK, (202, "X-GitLab-Trace-Update-Interval: 60"), OK, OK]);
    rig.confirm();
    rig.write("x");
    rig.attend(None);
    let silent = rig.now;
    rig.attend(None);
    assert_eq!(rig.calls()[2], "PUT running crc32:8cdc1683 1");
    assert!(silent - Instant::now() < Duration::from_secs(31), "the server's interval delays no cancel");
}

#[test]
fn a_mismatch_goes_on_where_the_server_is() {
    let mut rig = rig(&[OK, STORED, (416, "Range: 0-2"), STORED, OK]);
    rig.confirm();
    rig.write("abcd");
    rig.attend(None);
    rig.write("ef");
    rig.settle(&Outcome::success());
    assert_eq!(rig.calls()[2..4], ["PATCH 4-5 ef", "PATCH 2-5 cdef"]);
    assert_eq!(rig.dir.sent().len(), 8);
}

#[test]
fn a_final_state_is_repeated_until_it_is_taken() {
    let mut rig = rig(&[
        OK,
        STORED,
        (202, "X-GitLab-Trace-Update-Interval: 1"),
        (412, "X-GitLab-Trace-Update-Interval: 1"),
        (416, "Range: 0-1"),
        STORED,
        (500, ""),
        (0, ""),
        (429, "Retry-After: 3600"),
        (202, ""),
        (200, "Job-Status: failed"),
    ]);
    rig.confirm();
    rig.write("ab");
    let start = rig.now;
    rig.settle(&Outcome { exit_code: Some(37), ..Outcome::failed(Why::Script, "") });
    let put = "PUT failed script_failure 37 crc32:9e83486d 2";
    let want = ["PATCH 0-1 ab", put, put, "PATCH 0-1 ab", "PATCH 1-1 b", put, put, put, put, put];
    assert_eq!(rig.calls()[1..], want);
    let waited = rig.now - start;
    assert!(
        waited > Duration::from_secs(60) && waited < Duration::from_secs(70),
        "{waited:?}: no wait is over the cap"
    );
}

#[test]
fn a_refusal_without_a_word_is_believed_the_third_time() {
    let mut rig = rig(&[OK, (403, ""), (403, ""), (403, "")]);
    rig.confirm();
    let start = rig.now;
    rig.settle(&Outcome::success());
    assert_eq!(rig.calls().len(), 4);
    assert!(rig.now - start <= Duration::from_secs(60));
    let mut once = self::rig(&[OK, (403, ""), OK]);
    once.confirm();
    once.settle(&Outcome::success());
    assert_eq!(once.calls().len(), 3);
}

#[test]
fn a_log_that_is_refused_does_not_hold_the_state_back_for_ever() {
    let mut rig = rig(&[OK, (500, ""), OK, OK]);
    rig.confirm();
    rig.write("ab");
    rig.settle(&Outcome::success());
    assert_eq!(rig.calls()[1..], ["PATCH 0-1 ab", "PUT running", "PUT success crc32:9e83486d 2"]);
}

#[test]
fn a_log_is_kept_for_a_server_that_is_down() {
    let mut rig = rig(&[OK, (502, ""), (502, ""), (0, ""), STORED, OK]);
    rig.confirm();
    rig.write("ab");
    rig.settle(&Outcome::success());
    let want = ["PATCH 0-1 ab", "PUT running", "PATCH 0-1 ab", "PATCH 0-1 ab", "PUT success crc32:9e83486d 2"];
    assert_eq!(rig.calls()[1..], want);
}

#[test]
fn a_lease_is_taken_up_where_it_was_left() {
    let mut rig = rig(&[OK, STORED, STORED, OK]);
    rig.confirm();
    rig.write("abc");
    rig.attend(None);
    rig.adopt();
    rig.write("de");
    assert_eq!(rig.attend(None), Some((Wanted::Run, Contact::Fine)), "at once: a cancel may wait there");
    rig.adopt();
    rig.settle(&Outcome::success());
    assert_eq!(rig.calls()[1..], ["PATCH 0-2 abc", "PATCH 3-4 de", "PUT success crc32:8587d865 5"]);
}

#[test]
fn a_note_of_nonsense_is_repaired_by_the_server() {
    for note in [&[][..], &[0; 8], b"garbage!", &1000_u64.to_le_bytes()] {
        let mut rig = rig(&[OK, STORED, (416, "Range: 0-3"), STORED, OK]);
        rig.confirm();
        rig.write("abc");
        rig.attend(None);
        fs::write(rig.dir.file("sent"), note).unwrap();
        rig.write("de");
        rig.adopt();
        rig.settle(&Outcome::success());
        assert_eq!(rig.calls()[2..], ["PATCH 0-4 abcde", "PATCH 3-4 de", "PUT success crc32:8587d865 5"], "{note:?}");
    }
}

#[test]
fn a_server_with_more_log_than_the_disk_gets_what_is_new_and_no_checksum() {
    let mut rig = rig(&[OK, STORED, STORED, OK]);
    rig.confirm();
    rig.write("abcde");
    rig.attend(None);
    fs::write(rig.dir.file("log"), "abc").unwrap();
    rig.adopt();
    rig.write("new");
    rig.settle(&Outcome::failed(Why::HostRestarted, ""));
    assert_eq!(rig.calls()[2..], ["PATCH 5-7 new", "PUT failed runner_system_failure"]);
}

#[test]
fn what_lies_far_behind_goes_out_back_to_back() {
    let mut rig = rig(&[OK, STORED, STORED, STORED, OK]);
    rig.confirm();
    rig.write(&"x".repeat(2_500_000));
    let start = rig.now;
    for _ in 0..2 {
        rig.attend(None);
    }
    assert!(rig.now - start < Duration::from_secs(4));
    let ranges: Vec<String> = rig.calls()[1..].iter().map(|c| c.split(' ').nth(1).unwrap().to_owned()).collect();
    assert_eq!(ranges, ["0-1048575", "1048576-2097151"]);
    rig.settle(&Outcome::success());
}
