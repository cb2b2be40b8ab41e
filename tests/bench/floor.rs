//! What nobody can be faster than: GitLab's four calls and one bash by hand, and a log through two pipes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::fake::Fake;
use super::host::Host;

/// Takes the queued job as a runner does, over one connection, with a shell that does nothing; from the
/// hand-out to the final update.
pub(crate) fn empty_job(fake: &Fake, host: &Host, arguments: &[&str]) -> Duration {
    let stream = TcpStream::connect(fake.address()).expect("the fake listens");
    stream.set_nodelay(true).expect("a TCP socket");
    let mut line = Line { reader: BufReader::new(&stream), stream: &stream };
    let id = fake.queue(&["true"], &[]);
    line.call("POST", "/api/v4/jobs/request", b"{\"token\": \"t\"}");
    let job = format!("/api/v4/jobs/{id}");
    line.call("PUT", &job, b"{\"token\": \"t\", \"state\": \"running\"}");
    shell(host, arguments);
    // About as much as the log of an empty job has.
    line.call("PATCH", &format!("{job}/trace"), &[b'x'; 1500]);
    line.call("PUT", &job, b"{\"token\": \"t\", \"state\": \"success\"}");
    let seen = fake.ended(id, Duration::from_secs(10));
    seen.ended.expect("it has ended").0 - seen.handed_out
}

/// `cat FILE | cat > OUT`.
#[expect(clippy::disallowed_methods, reason = "the floor is made of plain processes")]
pub(crate) fn two_cats(file: &Path, out: &Path) -> Duration {
    let began = Instant::now();
    let mut first = Command::new("cat").arg(file).stdout(Stdio::piped()).spawn().expect("cat is there");
    let pipe = first.stdout.take().expect("it is piped");
    let out = File::create(out).expect("the directory is writable");
    let second = Command::new("cat").stdin(pipe).stdout(out).status().expect("cat is there");
    assert!(first.wait().expect("our child").success() && second.success());
    began.elapsed()
}

/// A shell that does nothing.
#[expect(clippy::disallowed_methods, reason = "the floor is made of plain processes")]
pub(crate) fn shell(host: &Host, arguments: &[&str]) {
    let mut command = Command::new("bash");
    host.environment(command.args(arguments));
    let mut bash = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash is there");
    bash.stdin.take().expect("it is piped").write_all(b"true\n").expect("bash reads");
    assert!(bash.wait_with_output().expect("our child").status.success());
}

struct Line<'a> {
    reader: BufReader<&'a TcpStream>,
    stream: &'a TcpStream,
}

impl Line<'_> {
    fn call(&mut self, method: &str, path: &str, body: &[u8]) {
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        request.extend_from_slice(body);
        self.stream.write_all(&request).expect("the fake reads");
        let mut length = 0;
        let mut line = String::new();
        loop {
            line.clear();
            self.reader.read_line(&mut line).expect("the fake answers");
            match line.trim_end().split_once(": ") {
                Some(("Content-Length", n)) => length = n.parse().expect("a number"),
                None if line.trim_end().is_empty() => break,
                _ => {}
            }
        }
        let mut answer = vec![0; length];
        self.reader.read_exact(&mut answer).expect("the fake answers");
    }
}
