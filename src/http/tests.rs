//! What the client makes of a server of bytes.

use std::io::Write;
use std::net::TcpListener;

use super::scripted::{Say, answer, ok, read, server};
use ureq::http::Uri;

use super::exchange::join;
use super::*;

fn timing() -> Timing {
    Timing { parked_after: Duration::from_millis(150), ..Timing::default() }
}

fn post<'a>(url: &'a str, headers: &'a [(&'static str, &'a str)]) -> Request<'a> {
    Request { method: Method::Post, url, headers, body: b"body", deadline: Duration::from_secs(30) }
}

fn call(request: &Request<'_>) -> Result<Answer, Failure> {
    Web::new(&timing()).client(request.url, None).send(request)
}

#[test]
fn calls_share_one_connection() {
    let server = server([ok("one"), ok("two")]);
    let web = Web::new(&timing());
    for want in ["one", "two"] {
        let url = server.url("/x");
        let got = web.client(&url, None).send(&post(&url, &[("Job-Token", "t")])).unwrap();
        assert_eq!((got.status, got.body.as_slice()), (200, want.as_bytes()));
    }
    assert_eq!(*server.connections.lock(), 1);
    let heard = server.heard.lock()[0].to_lowercase();
    assert!(heard.starts_with("post /x http/1.1\r\n") && heard.ends_with("\r\n\r\nbody"), "{heard}");
    assert!(heard.contains("job-token: t\r\n") && heard.contains("accept-encoding: gzip\r\n"), "{heard}");
    assert!(!heard.contains("\r\naccept: "), "{heard}");
}

#[test]
fn a_request_without_an_answer_ends_at_its_deadline() {
    let server = server([Say::Nothing, Say::Nothing]);
    let url = server.url("/");
    let start = Instant::now();
    let failure = call(&Request { deadline: Duration::from_millis(200), ..post(&url, &[]) }).unwrap_err();
    assert!(matches!(&failure, Failure::Transport(text) if text.contains("no answer in time")), "{failure}");
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn an_unusable_url_is_no_transport_error() {
    for url in ["ftp://host/x", "http://", "no url", "file:///x", "https://exa mple/"] {
        assert!(matches!(call(&post(url, &[])), Err(Failure::Url(_))), "{url}");
    }
    assert!(matches!(call(&post("http://127.0.0.1:1/", &[])), Err(Failure::Transport(_))));
}

#[test]
fn an_answer_that_is_too_large_is_an_error() {
    let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 34000000\r\n\r\n".to_vec();
    bytes.resize(bytes.len() + 34_000_000, b'x');
    let server = server([Say::Bytes(bytes)]);
    let failure = call(&post(&server.url("/"), &[])).unwrap_err();
    assert!(failure.to_string().contains("too large"), "{failure}");
}

#[test]
fn redirects_keep_the_body_for_307_alone_and_the_token_for_the_same_host() {
    for (status, to_other, want) in [
        ("307 Temporary Redirect", false, "POST /there\ntoken\nbody"),
        ("308 Permanent Redirect", true, "POST /there\n\nbody"),
        ("302 Found", false, "GET /there\ntoken\n"),
        ("303 See Other", true, "GET /there\n\n"),
    ] {
        let second = server([ok("done")]);
        let host = if to_other { format!("localhost:{}", second.at.port()) } else { second.at.to_string() };
        let first = server([answer(status, &format!("Location: http://{host}/there\r\n"), "moved")]);
        let got = call(&post(&first.url("/here"), &[("JOB-TOKEN", "t")])).unwrap();
        assert_eq!(got.body, b"done", "{status}");
        let heard = second.heard.lock()[0].to_lowercase();
        let line = heard.split(" http/1.1").next().unwrap().to_uppercase().replace("/THERE", "/there");
        let token = if heard.contains("job-token: t") { "token" } else { "" };
        assert_eq!(format!("{line}\n{token}\n{}", heard.rsplit("\r\n\r\n").next().unwrap()), want);
    }
}

/// Reads the head of one request and says something, before any of the body; then closes, or lingers
/// without reading.
fn hasty(say: &'static [u8], lingers: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::Builder::new()
        .spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            stream.write_all(say).unwrap();
            // The test's end closes it.
            if lingers {
                std::mem::forget(stream);
            }
        })
        .unwrap();
    url
}

#[test]
fn an_answer_before_the_bodys_end_is_heard() {
    let refused = b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nhuge";
    for lingers in [false, true] {
        for length in [None, Some(1 << 36)] {
            let url = hasty(refused, lingers);
            // A busy host takes its time over gigabytes.
            let request = Request { deadline: Duration::from_secs(60), ..post(&url, &[]) };
            let mut make = || Ok(Box::new(io::repeat(b'x')) as Box<dyn Read>);
            let client = Web::new(&timing()).client(&url, None);
            let mut body = Stream { length, make: &mut make };
            let got = client.send_stream(&request, &mut body).unwrap_or_else(|e| panic!("{lingers} {length:?}: {e}"));
            assert_eq!((got.status, &got.body[..]), (413, &b"huge"[..]), "{lingers} {length:?}");
        }
    }
}

#[test]
fn a_location_is_joined_to_where_it_was_said() {
    let base: Uri = "https://h:8/a/b?q".parse().unwrap();
    for (location, want) in [
        ("https://other/x", "https://other/x"),
        ("//other/x", "https://other/x"),
        ("/x?y", "https://h:8/x?y"),
        ("c", "https://h:8/a/c"),
    ] {
        assert_eq!(join(&base, location).unwrap().to_string(), want);
    }
}

#[test]
fn a_url_for_people_has_no_secrets() {
    for (url, want) in
        [("https://user:pw@h/a?token=x#y", "https://h/a"), ("http://h", "http://h"), ("http://h/a@b", "http://h/a@b")]
    {
        assert_eq!(for_people(url), want);
    }
}

/// A poll in another thread: what it came to, and when.
fn poll(line: &Arc<Line>, url: String, parks: bool) -> std::thread::JoinHandle<Result<Answer, Failure>> {
    let line = line.clone();
    std::thread::Builder::new()
        .spawn(move || {
            let got = line.send(&post(&url, &[]), parks);
            line.rest();
            got
        })
        .unwrap()
}

fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(5), "it did not come");
        std::thread::yield_now();
    }
}

fn line() -> Arc<Line> {
    let web = Web::new(&timing());
    Arc::new(web.line(&web.client("http://x", None)))
}

#[test]
fn a_poll_is_cut_once_it_is_parked_and_not_before() {
    let (server, line) = (server([Say::Nothing, Say::Nothing]), line());
    let poll = poll(&line, server.url("/"), true);
    until(|| !server.heard.lock().is_empty());
    assert!(line.may_bring() && line.parked().is_none() && !line.cut());
    until(|| line.parked().is_some());
    assert!(!line.may_bring());
    let start = Instant::now();
    assert!(line.cut());
    assert!(matches!(poll.join().unwrap(), Err(Failure::Cut)));
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(matches!(line.send(&post(&server.url("/"), &[]), true), Err(Failure::Cut)));
}

#[test]
fn a_poll_that_shall_be_answered_at_once_is_never_cut() {
    let (server, line) = (server([Say::Nothing, Say::Nothing]), line());
    let url = server.url("/");
    let sent = line.clone();
    let poll = std::thread::Builder::new()
        .spawn(move || sent.send(&Request { deadline: Duration::from_millis(500), ..post(&url, &[]) }, false))
        .unwrap();
    until(|| !server.heard.lock().is_empty());
    line.leave();
    assert!(line.may_bring());
    assert!(matches!(poll.join().unwrap(), Err(Failure::Transport(_))));
    assert!(line.may_bring(), "until it rests, its answer is in nobody's hands");
    line.rest();
    assert!(!line.may_bring());
}

#[test]
fn a_poll_that_is_leaving_ends_by_itself_when_it_is_parked() {
    let (server, line) = (server([Say::Nothing, Say::Nothing]), line());
    let poll = poll(&line, server.url("/"), true);
    until(|| !server.heard.lock().is_empty());
    line.leave();
    assert!(line.may_bring(), "it is too early to cut");
    let start = Instant::now();
    assert!(matches!(poll.join().unwrap(), Err(Failure::Cut)));
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_poll_that_stays_still_gets_its_late_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let line = line();
    let poll = poll(&line, url, true);
    let (stream, _) = listener.accept().unwrap();
    read(&stream).unwrap();
    until(|| line.parked().is_some());
    (&stream).write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert_eq!(poll.join().unwrap().unwrap().status, 204);
}

#[test]
fn an_answer_that_has_begun_is_read_to_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let line = line();
    let poll = poll(&line, url, true);
    let (stream, _) = listener.accept().unwrap();
    read(&stream).unwrap();
    (&stream).write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\na").unwrap();
    until(|| format!("{line:?}").contains("Body"));
    line.leave();
    assert!(line.may_bring() && !line.cut());
    (&stream).write_all(b"bc").unwrap();
    assert_eq!(poll.join().unwrap().unwrap().body, b"abc");
}

#[test]
fn a_long_body_has_its_length_and_is_made_again_for_a_redirect() {
    let to = server([ok("")]);
    let from = server([answer("307 Temporary Redirect", &format!("Location: {}\r\n", to.url("/there")), "")]);
    let client = Web::new(&timing()).client(&from.url("/"), None);
    let mut made = 0;
    let mut make = || {
        made += 1;
        Ok(Box::new(&b"0123456789"[..]) as Box<dyn Read>)
    };
    let url = from.url("/here");
    let request = Request { method: Method::Put, body: b"", ..post(&url, &[("x-amz-a", "b")]) };
    let answer = client.send_stream(&request, &mut Stream { length: Some(10), make: &mut make }).unwrap();
    assert_eq!((answer.status, made), (200, 2));
    for heard in [&from.heard.lock()[0], &to.heard.lock()[0]] {
        let lower = heard.to_lowercase();
        assert!(lower.contains("content-length: 10\r\n") && !lower.contains("chunked"), "{heard}");
        assert!(heard.starts_with("PUT /") && heard.ends_with("\r\n\r\n0123456789") && lower.contains("x-amz-a: b"));
    }
}

#[test]
fn a_good_answer_goes_to_its_sink_and_another_one_is_kept() {
    let server = server([
        ok("all of it"),
        answer("404 Not Found", "", "<Code>NoSuchKey</Code>"),
        Say::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_vec()),
        Say::Close,
    ]);
    let client = Web::new(&timing()).client(&server.url("/"), None);
    let url = server.url("/x");
    let request = Request { method: Method::Get, body: b"", deadline: Duration::from_millis(500), ..post(&url, &[]) };
    let mut got = Vec::new();
    assert_eq!(client.fetch(&request, &mut got).unwrap().status, 200);
    assert_eq!(got, b"all of it");
    let mut got = Vec::new();
    let missing = client.fetch(&request, &mut got).unwrap();
    assert_eq!((missing.status, got.len(), missing.body.len()), (404, 0, 22));
    assert!(matches!(client.fetch(&request, &mut Vec::new()), Err(Failure::Transport(_))), "half an answer is none");
}
