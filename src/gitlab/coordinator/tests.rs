//! Polls against a server that says what it was told to.

use super::*;
use crate::clock::Timing;
use crate::http::scripted::{Say, Server, answer, server};
use crate::model::Secret;

fn entry(url: String) -> Entry {
    Entry {
        name: "test".to_owned(),
        forge: ForgeKind::Gitlab,
        url,
        id: 1,
        token: Secret::new("glrt-t1_abcdefghijk"),
        executor: "shell".to_owned(),
        shell: crate::model::Shell::Bash,
        builds_dir: PathBuf::from("/builds"),
        cache_dir: PathBuf::from("/cache"),
        cache: Default::default(),
        limit: 0,
        request_concurrency: 1,
        output_limit: 4 << 20,
        environment: vec!["CI_DEBUG_TRACE=true".to_owned()],
        pre_build_script: String::new(),
        post_build_script: String::new(),
        sources: Default::default(),
        feature_flags: std::collections::BTreeMap::new(),
        uploads: Default::default(),
        cancel_timeout: Duration::from_secs(10),
        keep_processes: false,
        exit_when_empty: false,
        debug_trace_disabled: false,
        user: String::new(),
        umask: None,
        limits: Default::default(),
        custom: None,
        inherit_environment: None,
        tls_ca_file: None,
        system_id: "s_0123456789ab".to_owned(),
        show_logs: crate::config::ShowLogs::No,
        jobs: None,
        disabled: None,
    }
}

fn coordinator(server: &Server, change: impl FnOnce(&mut Entry)) -> Gitlab {
    let mut entry = entry(server.url(""));
    change(&mut entry);
    let timing = Timing { parked_after: Duration::from_millis(100), ..Timing::default() };
    Gitlab::new(&Arc::new(entry), &Ground::new(timing, PathBuf::new(), Some(Duration::from_secs(60))))
}

fn job(body: &str) -> Say {
    answer("201 Created", "Content-Type: application/json; charset=utf-8\r\n", body)
}

fn nothing(update: &str) -> Say {
    let header = if update.is_empty() { String::new() } else { format!("X-GitLab-Last-Update: {update}\r\n") };
    Say::Bytes(format!("HTTP/1.1 204 No Content\r\n{header}\r\n").into_bytes())
}

/// What a poll came to, in words.
fn outcome(polled: &Result<Option<Box<dyn Lease>>, Refusal>) -> String {
    match polled {
        Ok(Some(lease)) => format!("job {}", lease.job().expect("a job is known from the poll").id),
        Ok(None) => "nothing".to_owned(),
        Err(Refusal::Again { after, healthy, .. }) => {
            format!("again after {} {}", after.as_millis(), if *healthy { "healthy" } else { "unhealthy" })
        }
        Err(Refusal::Retire { exit, .. }) => format!("retire {exit}"),
    }
}

fn poll(coordinator: &Gitlab) -> String {
    outcome(&coordinator.poll(Duration::ZERO))
}

#[test]
fn a_poll_says_what_it_came_to_and_only_403_and_a_bad_url_are_unhealthy() {
    for (status, headers, want) in [
        (204, "", "nothing"),
        (403, "", "again after 0 unhealthy"),
        (409, "", "again after 0 healthy"),
        (400, "", "again after 100 healthy"),
        (401, "", "again after 100 healthy"),
        (422, "", "again after 100 healthy"),
        (429, "Retry-After: 7\r\n", "again after 7000 healthy"),
        (429, "Retry-After: 900\r\n", "again after 60000 healthy"),
        (503, "", "again after 100 healthy"),
        (302, "", "again after 100 healthy"),
    ] {
        let server = server([answer(&format!("{status} X"), headers, "")]);
        assert_eq!(poll(&coordinator(&server, |_| ())), want, "{status}");
    }
    let server = server([Say::Close]);
    assert_eq!(poll(&coordinator(&server, |e| e.url = "ftp://host".to_owned())), "again after 0 unhealthy");
    assert_eq!(poll(&coordinator(&server, |e| e.url = "http://127.0.0.1:1".to_owned())), "again after 100 healthy");
    assert_eq!(poll(&coordinator(&server, |_| ())), "again after 100 healthy", "closed without a word");
}

#[test]
fn failures_in_a_row_wait_longer_and_longer() {
    let server = server([answer("500 X", "", ""), answer("502 X", "", ""), nothing(""), answer("500 X", "", "")]);
    let coordinator = coordinator(&server, |_| ());
    let said: Vec<String> = (0..4).map(|_| poll(&coordinator)).collect();
    assert_eq!(said, ["again after 100 healthy", "again after 200 healthy", "nothing", "again after 100 healthy"]);
}

#[test]
fn a_job_becomes_a_lease_and_its_bytes_are_kept() {
    let body = r#"{ "id": 42, "token": "t",  "steps": "malformed", "job_info": {"name": "unit", "project_id": 5},
        "runner_info": {"timeout": 60}, "features": {"failure_reasons": ["x"]} }"#;
    let server = server([job(body)]);
    let coordinator = coordinator(&server, |_| ());
    let mut lease = coordinator.poll(Duration::ZERO).unwrap().unwrap();
    let job = lease.job().unwrap();
    assert_eq!((job.id.as_str(), job.name.as_str(), job.project.as_str()), ("42", "unit", "5"));
    assert_eq!((job.timeout, job.payload.get()), (Duration::from_secs(60), body));
    assert!(lease.name().as_str().ends_with("-42"));
    let record = lease.record();
    assert_eq!((&record.data["debug_trace"], &record.data["orphan"]), (&true.into(), &60_000.into()));
    assert!(!record.data.to_string().contains("glrt-"), "the entry's token stays with the entry");
    assert!(coordinator.may_have_a_job(), "it has no directory yet");
    let tmp = tempfile::tempdir().unwrap();
    let dir = crate::jobdir::JobDir::create(tmp.path(), &lease.name(), |_| Ok(())).unwrap();
    lease.confirm(&dir, std::time::Instant::now());
    assert!(!coordinator.may_have_a_job());
    let asked = &server.heard.lock()[0];
    assert!(asked.starts_with("POST /api/v4/jobs/request HTTP/1.1\r\n"), "{asked}");
    assert!(asked.to_lowercase().contains("runner-token: glrt-t1_abcdefghijk\r\n"), "{asked}");
}

#[test]
fn what_is_no_job_is_a_warning_and_healthy() {
    for say in [
        job("{"),
        job("[]"),
        job(r#"{"id":1}"#),
        job("<html>"),
        job("\u{0}"),
        answer("201 X", "", r#"{"id":1,"token":"t"}"#),
        answer("201 X", "Content-Type: text/html\r\n", r#"{"id":1,"token":"t"}"#),
    ] {
        let server = server([say]);
        let coordinator = coordinator(&server, |_| ());
        assert_eq!(poll(&coordinator), "again after 0 healthy");
        assert!(!coordinator.may_have_a_job());
    }
}

#[test]
fn last_update_is_sent_with_patience_only_and_kept_when_an_answer_lacks_it() {
    let server = server([nothing("v1"), nothing(""), nothing("v2"), nothing(""), nothing("")]);
    let coordinator = coordinator(&server, |_| ());
    let patient = Duration::from_secs(50);
    for patience in [patient, patient, Duration::ZERO, patient, patient] {
        assert_eq!(outcome(&coordinator.poll(patience)), "nothing");
    }
    let said: Vec<Option<String>> = server
        .heard
        .lock()
        .iter()
        .map(|r| serde_json::from_str::<Value>(r.split_once("\r\n\r\n").unwrap().1).unwrap()["last_update"].clone())
        .map(|v| v.as_str().map(str::to_owned))
        .collect();
    let said: Vec<Option<&str>> = said.iter().map(Option::as_deref).collect();
    assert_eq!(said, [None, Some("v1"), None, Some("v2"), Some("v2")]);
    assert_eq!(*server.connections.lock(), 1, "one line is used again");
}

#[test]
fn an_entry_that_leaves_when_there_is_nothing_retires() {
    let server = server([nothing("v1")]);
    assert_eq!(poll(&coordinator(&server, |e| e.exit_when_empty = true)), "retire 0");
}

#[test]
fn a_coordinator_that_hung_up_asks_no_more_and_parked_polls_end() {
    let server = server([nothing("v1"), Say::Nothing, Say::Nothing]);
    let coordinator = Arc::new(coordinator(&server, |_| ()));
    assert_eq!(outcome(&coordinator.poll(Duration::from_secs(50))), "nothing");
    let polling = coordinator.clone();
    let poll = std::thread::Builder::new().spawn(move || outcome(&polling.poll(Duration::from_secs(50)))).unwrap();
    let start = std::time::Instant::now();
    while server.heard.lock().len() < 2 {
        assert!(start.elapsed() < Duration::from_secs(5));
        std::thread::yield_now();
    }
    coordinator.hang_up(HangUp::Longest);
    assert!(coordinator.may_have_a_job(), "it was sent just now: it is not cut");
    coordinator.hang_up(HangUp::All);
    assert_eq!(poll.join().unwrap(), "nothing");
    assert!(start.elapsed() < Duration::from_secs(3) && !coordinator.may_have_a_job());
    assert_eq!(self::poll(&coordinator), "nothing");
    assert_eq!(server.heard.lock().len(), 2);
}
