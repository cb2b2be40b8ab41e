//! A small threaded HTTP/1.1 server on 127.0.0.1:0 for fake coordinators: keep-alive, every request on
//! a tape, faults by script. It knows no forge: what a path means is the [`Site`]'s.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What a fake coordinator adds to the server.
pub(crate) trait Site: Send + Sync + 'static {
    /// The name by which faults and tests mean this request: `poll`, `trace`, …
    fn label(&self, request: &Request) -> String;
    /// May wait, as long as `patience` lets it.
    fn answer(&self, request: &Request, patience: &Patience) -> Response;
    /// Counts the clients that are known to be gone: what is still in their connections is theirs.
    fn life(&self) -> u64;
    /// The answer to this request was withheld, replaced or cut by a fault: its client may ask again.
    fn disturbed(&self, request: &Request, fault: &Fault);
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) at: Instant,
    /// [`Site::life`] when its connection was made.
    pub(crate) life: u64,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Arc<[u8]>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or(serde_json::Value::Null)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn new(status: u16, kind: &str, body: impl Into<Vec<u8>>) -> Response {
        let headers = vec![("Content-Type".to_owned(), kind.to_owned())];
        Response { status, headers, body: body.into() }
    }

    pub(crate) fn json(status: u16, body: &serde_json::Value) -> Response {
        Response::new(status, "application/json", body.to_string())
    }

    pub(crate) fn empty(status: u16) -> Response {
        Response { status, headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &str, value: impl fmt::Display) -> Response {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }
}

/// What goes wrong with a request. The first group never reaches the site.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// This status with a JSON message.
    Status(u16),
    /// This answer.
    Answer(Response),
    /// 200 and a page, as a captive portal gives it.
    Html,
    /// 416, and the site is said to hold this many bytes.
    Range(u64),
    /// The connection is reset when the request has been read.
    Reset,
    /// No answer until the server is dropped or [`Server::release`] is called; then a reset.
    Hang,
    /// Handled by the site, and the connection is reset in place of the answer.
    Lost,
    /// Handled; the answer ends in the middle of its body (of its head, when there is none).
    Cut,
    /// Handled at once, answered so much later.
    Late(Duration),
    /// Handled and begun at once; the body comes so much later.
    Slow(Duration),
}

impl Fault {
    /// Whether the client gets the site's own answer after all.
    fn harmless(&self) -> bool {
        matches!(self, Fault::Late(_) | Fault::Slow(_))
    }
}

/// The first time, only.
pub(crate) const ONCE: RangeInclusive<u32> = 1..=1;
pub(crate) const ALWAYS: RangeInclusive<u32> = 1..=u32::MAX;

/// One request of the tape, with what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) label: String,
    pub(crate) request: Request,
    /// The status that was written, or the fault that took its place, and when.
    pub(crate) answered: Option<(Instant, String)>,
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { method, path, body, .. } = &self.request;
        let answer = self.answered.as_ref().map_or("unanswered", |(_, a)| a);
        write!(f, "{:8} {method} {path} ({} bytes): {answer}", self.label, body.len())
    }
}

struct Rule {
    label: String,
    nth: RangeInclusive<u32>,
    seen: u32,
    fault: Fault,
}

#[derive(Default)]
struct Tape {
    exchanges: Vec<Exchange>,
    rules: Vec<Rule>,
    connections: HashMap<u64, TcpStream>,
    threads: Vec<JoinHandle<()>>,
    /// Counts calls of [`Server::release`].
    releases: u64,
}

struct Shared {
    site: Arc<dyn Site>,
    tape: Mutex<Tape>,
    changed: Condvar,
    stop: AtomicBool,
    connections: AtomicU64,
}

/// Waits that end with the server.
pub(crate) struct Patience<'a>(&'a Shared);

impl Patience<'_> {
    pub(crate) fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }

    /// Lets `time` pass, unless the server is dropped or released.
    fn wait(&self, time: Duration) {
        let mut tape = self.0.tape();
        let (end, before) = (Instant::now() + time, tape.releases);
        while !self.stopped() && tape.releases == before {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            tape = self.0.changed.wait_timeout(tape, left).unwrap().0;
        }
    }
}

/// Stops, closes every connection and joins every thread when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    accept: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(site: Arc<dyn Site>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            site,
            tape: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            connections: AtomicU64::new(0),
        });
        let accept = named("accept", {
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        Server { address, shared, accept: Some(accept) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The `nth` requests with this label, counted from now on, meet this fault.
    pub(crate) fn fail(&self, label: &str, nth: RangeInclusive<u32>, fault: Fault) {
        self.shared.tape().rules.push(Rule { label: label.to_owned(), nth, seen: 0, fault });
    }

    /// No fault any more; hanging and late requests go on.
    pub(crate) fn heal(&self) {
        self.shared.tape().rules.clear();
        self.release();
    }

    /// Lets hanging and late requests go on.
    pub(crate) fn release(&self) {
        self.shared.tape().releases += 1;
        self.shared.changed.notify_all();
    }

    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        self.shared.tape().exchanges.clone()
    }

    pub(crate) fn count(&self, label: &str) -> usize {
        self.shared.tape().exchanges.iter().filter(|e| e.label == label).count()
    }

    /// Waits until `look` finds something on the tape.
    pub(crate) fn wait<T>(&self, what: &str, within: Duration, mut look: impl FnMut(&[Exchange]) -> Option<T>) -> T {
        let end = Instant::now() + within;
        let mut tape = self.shared.tape();
        loop {
            if let Some(found) = look(&tape.exchanges) {
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let all: Vec<String> = last(&tape.exchanges, 40);
                drop(tape);
                panic!("not within {within:?}: {what}\nrequests:\n{}", all.join("\n"));
            }
            tape = self.shared.changed.wait_timeout(tape, left).unwrap().0;
        }
    }

    /// Waits for the `n`th request with this label to arrive.
    pub(crate) fn request(&self, label: &str, n: usize, within: Duration) -> Request {
        self.wait(&format!("{label} request number {n}"), within, |all| {
            all.iter().filter(|e| e.label == label).nth(n - 1).map(|e| e.request.clone())
        })
    }

    /// The last requests, as lines for a failing test.
    pub(crate) fn story(&self) -> String {
        last(&self.shared.tape().exchanges, 60).join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        let _ = TcpStream::connect(self.address);
        if let Some(accept) = self.accept.take() {
            let _ = accept.join();
        }
        let threads = {
            let mut tape = self.shared.tape();
            tape.connections.values().for_each(|c| drop(c.shutdown(Shutdown::Both)));
            std::mem::take(&mut tape.threads)
        };
        self.shared.changed.notify_all();
        threads.into_iter().for_each(|t| drop(t.join()));
    }
}

impl Shared {
    /// A test that panicked with the lock held must not hide its message behind a second panic.
    fn tape(&self) -> MutexGuard<'_, Tape> {
        self.tape.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let (id, life) = (shared.connections.fetch_add(1, Ordering::Relaxed), shared.site.life());
        let _ = stream.set_nodelay(true);
        let Ok(twin) = stream.try_clone() else { continue };
        let mut tape = shared.tape();
        tape.connections.insert(id, twin);
        tape.threads.retain(|t| !t.is_finished());
        let shared = shared.clone();
        tape.threads.push(named("connection", move || {
            let _ = serve(id, life, &stream, &shared);
            shared.tape().connections.remove(&id);
        }));
    }
}

/// One connection, request after request, until the client or a fault ends it.
fn serve(id: u64, life: u64, stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader, stream, life)? {
        let label = shared.site.label(&request);
        let (number, fault) = {
            let mut tape = shared.tape();
            tape.exchanges.push(Exchange { label: label.clone(), request: request.clone(), answered: None });
            (tape.exchanges.len() - 1, take_fault(&mut tape.rules, &label))
        };
        shared.changed.notify_all();
        if let Some(fault) = fault.as_ref().filter(|f| !f.harmless()) {
            shared.site.disturbed(&request, fault);
        }
        let end = answer(&request, fault.as_ref(), stream, shared);
        if let Some(fault @ (Fault::Lost | Fault::Cut)) = &fault {
            // What the site answered was not heard, so its client may be surprised once more.
            shared.site.disturbed(&request, fault);
        }
        let word = match (&fault, &end) {
            (Some(f @ (Fault::Reset | Fault::Hang | Fault::Lost | Fault::Cut)), _) => format!("{f:?}"),
            (_, Ok(status)) => status.to_string(),
            (_, Err(e)) => format!("not written: {e}"),
        };
        shared.tape().exchanges[number].answered = Some((Instant::now(), word));
        shared.changed.notify_all();
        match (fault, end?) {
            (Some(Fault::Reset | Fault::Hang | Fault::Lost), _) => {
                // Zero linger makes the close a reset; the twin must be gone for it to be one.
                shared.tape().connections.remove(&id);
                let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
                return Ok(());
            }
            (Some(Fault::Cut), _) => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

/// Handles one request and writes what the fault leaves of its answer; the status.
fn answer(request: &Request, fault: Option<&Fault>, stream: &TcpStream, shared: &Shared) -> io::Result<u16> {
    let patience = Patience(shared);
    let response = match fault {
        Some(Fault::Reset) => return Ok(0),
        Some(Fault::Hang) => {
            patience.wait(Duration::from_secs(3600));
            return Ok(0);
        }
        Some(Fault::Status(n)) => {
            Response::json(*n, &serde_json::json!({ "message": format!("{n} by the fault script") }))
        }
        Some(Fault::Answer(response)) => response.clone(),
        Some(Fault::Html) => Response::new(200, "text/html", "<html><body>Please log in.</body></html>"),
        Some(Fault::Range(n)) => Response::new(416, "text/plain", "416").with("Range", format!("0-{n}")),
        Some(Fault::Lost | Fault::Cut | Fault::Late(_) | Fault::Slow(_)) | None => {
            shared.site.answer(request, &patience)
        }
    };
    let head = head(&response);
    let mut out = stream;
    match fault {
        Some(Fault::Lost) => {}
        Some(Fault::Cut) if response.body.is_empty() => out.write_all(&head[..head.len() / 2])?,
        Some(Fault::Cut) => out.write_all(&[&head, &response.body[..response.body.len() / 2]].concat())?,
        Some(Fault::Late(time)) => {
            patience.wait(*time);
            out.write_all(&[&head[..], &response.body].concat())?;
        }
        Some(Fault::Slow(time)) => {
            out.write_all(&head)?;
            patience.wait(*time);
            out.write_all(&response.body)?;
        }
        _ => out.write_all(&[&head[..], &response.body].concat())?,
    }
    Ok(response.status)
}

fn head(response: &Response) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {} {}\r\n", response.status, reason(response.status));
    for (name, value) in &response.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if response.status != 204 {
        head += &format!("Content-Length: {}\r\n", response.body.len());
    }
    (head + "\r\n").into_bytes()
}

fn reason(status: u16) -> &'static str {
    let names: BTreeMap<u16, &'static str> = BTreeMap::from([
        (200, "OK"),
        (201, "Created"),
        (202, "Accepted"),
        (204, "No Content"),
        (403, "Forbidden"),
        (416, "Range Not Satisfiable"),
    ]);
    names.get(&status).copied().unwrap_or("Status")
}

fn take_fault(rules: &mut [Rule], label: &str) -> Option<Fault> {
    let mut found = None;
    for rule in rules.iter_mut().filter(|r| r.label == label) {
        rule.seen += 1;
        if found.is_none() && rule.nth.contains(&rule.seen) {
            found = Some(rule.fault.clone());
        }
    }
    found
}

/// `None` when the client has closed the connection.
fn read_request(reader: &mut BufReader<&TcpStream>, mut stream: &TcpStream, life: u64) -> io::Result<Option<Request>> {
    let Some(first) = read_line(reader)? else { return Ok(None) };
    let at = Instant::now();
    let mut words = first.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1")) = (words.next(), words.next(), words.next()) else {
        return Err(io::Error::other(format!("not an HTTP/1.1 request: {first}")));
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut request = Request {
        at,
        life,
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers,
        body: Arc::new([]),
    };
    if request.header("Expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    request.body = read_body(reader, &request)?.into();
    Ok(Some(request))
}

fn read_body(reader: &mut BufReader<&TcpStream>, request: &Request) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if request.header("Transfer-Encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
        loop {
            let line = read_line(reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let size = usize::from_str_radix(line.split(';').next().unwrap_or_default(), 16)
                .map_err(|_| io::ErrorKind::InvalidData)?;
            let from = body.len();
            body.resize(from + size, 0);
            reader.read_exact(&mut body[from..])?;
            read_line(reader)?;
            if size == 0 {
                return Ok(body);
            }
        }
    }
    let length = request.header("Content-Length").and_then(|v| v.parse().ok()).unwrap_or(0);
    body.resize(length, 0);
    reader.read_exact(&mut body)?;
    Ok(body)
}

fn read_line(reader: &mut BufReader<&TcpStream>) -> io::Result<Option<String>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
}

fn last(exchanges: &[Exchange], n: usize) -> Vec<String> {
    exchanges[exchanges.len().saturating_sub(n)..].iter().map(ToString::to_string).collect()
}

fn named(name: &str, run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(256 * 1024).spawn(run).unwrap()
}
