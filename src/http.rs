//! The HTTP client: with the files below `http/` the only place that names `ureq`. One request, one
//! answer, each with a deadline; it never retries, and knows nothing of any forge.
//!
//! Two kinds of client. A [`Client`] is for calls: shared by all who talk to servers behind the same
//! certificates, never cut. A [`Line`] is for polls: it carries one request at a time, shows how far
//! that is, and can be cut from another thread while it is certain that nothing is lost.

mod chain;
pub mod date;
mod exchange;
pub mod pushback;
mod tls;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use ureq::Agent;
use ureq::config::AutoHeaderValue;
use ureq::http::{HeaderMap, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::transport::RustlsConnector;

use crate::clock::Timing;

use chain::{Dial, Names, Purpose, Resolve, Watch};
use exchange::{Long, Redirects, exchange};
use wire::Early;

/// A server's headers in full; also what a connection keeps for reading.
const READ_BUFFER: usize = 32 << 10;
/// What a connection keeps for writing: a log chunk goes out in pieces of it.
const WRITE_BUFFER: usize = 32 << 10;
/// A connection that rested longer is not used again: servers close theirs after 20 s and more, and a
/// request sent into a closing one is lost.
const MAX_IDLE: Duration = Duration::from_secs(15);

/// The process's HTTP: what its clients share. Clones are the same one.
#[derive(Clone)]
pub struct Web(Arc<Shared>);

struct Shared {
    timing: Timing,
    names: Arc<Names>,
    /// By certificates and use; they are few, and stay.
    clients: Mutex<HashMap<Key, Client>>,
}

/// Who may share a client. A CA file that was replaced makes another key.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    secure: bool,
    ca: Option<(PathBuf, Option<SystemTime>)>,
}

/// A client for calls.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    parts: Parts,
}

/// What agents to the same servers have in common.
#[derive(Clone)]
struct Parts {
    timing: Timing,
    names: Arc<Names>,
    tls: Arc<RustlsConnector>,
    roots: RootCerts,
}

/// A client for one poll at a time.
pub struct Line {
    agent: Agent,
    watch: Arc<Watch>,
    born: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Patch,
}

#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub method: Method,
    pub url: &'a str,
    /// Values with control characters make the request fail before it is sent.
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
    /// From the start to the last byte of the answer.
    pub deadline: Duration,
}

/// A body that is too large for the memory. It is made again for each place that a redirect leads to.
pub struct Stream<'a> {
    /// `None`: in chunks, because nobody knows before.
    pub length: Option<u64>,
    pub make: &'a mut dyn FnMut() -> io::Result<Box<dyn Read + 'a>>,
}

/// Any answer, whatever its status, read to its end.
pub struct Answer {
    pub status: u16,
    headers: HeaderMap,
    pub body: Vec<u8>,
    /// Where it sends us, when that was not followed.
    pub location: Option<String>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// Nothing can be sent to such a URL, now or later.
    Url(String),
    /// No connection, no answer in time, or one that is no HTTP.
    Transport(String),
    /// [`Line::cut`]: the server does not have the request, or has nothing for it.
    Cut,
}

impl Web {
    pub fn new(timing: &Timing) -> Web {
        Web(Arc::new(Shared { timing: *timing, names: Arc::default(), clients: Mutex::default() }))
    }

    /// The client for calls to `url`. Reads the certificates the first time; opens no connection.
    pub fn client(&self, url: &str, ca: Option<&Path>) -> Client {
        let secure = url.get(..8).is_some_and(|s| s.eq_ignore_ascii_case("https://"));
        let changed = |p: &Path| p.metadata().and_then(|m| m.modified()).ok();
        let key = Key { secure, ca: ca.filter(|_| secure).map(|p| (p.to_owned(), changed(p))) };
        let mut clients = self.0.clients.lock();
        let made = clients.entry(key).or_insert_with(|| {
            let parts = Parts {
                timing: self.0.timing,
                names: self.0.names.clone(),
                tls: Arc::default(),
                roots: if secure { tls::roots(ca) } else { RootCerts::WebPki },
            };
            Client { agent: parts.agent(Purpose::Calls), parts }
        });
        made.clone()
    }

    /// A new line to where `client` goes.
    pub fn line(&self, client: &Client) -> Line {
        let watch = Arc::new(Watch::new(self.0.timing.parked_after));
        Line { agent: client.parts.agent(Purpose::Poll(watch.clone())), watch, born: Instant::now() }
    }
}

impl Parts {
    fn agent(&self, purpose: Purpose) -> Agent {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .accept(AutoHeaderValue::None)
            .timeout_connect(Some(self.timing.connect_timeout))
            .timeout_resolve(Some(self.timing.resolve_timeout))
            .max_response_header_size(READ_BUFFER)
            .input_buffer_size(READ_BUFFER)
            .output_buffer_size(WRITE_BUFFER)
            .max_idle_age(MAX_IDLE)
            .tls_config(TlsConfig::builder().root_certs(self.roots.clone()).build())
            .build();
        let dial = Dial::new(self.tls.clone(), self.names.clone(), purpose);
        Agent::with_parts(config, dial, Resolve(self.names.clone()))
    }
}

impl Client {
    /// One call. Blocks for the request's deadline at most.
    pub fn send(&self, request: &Request<'_>) -> Result<Answer, Failure> {
        exchange(&self.agent, request, None, None, Redirects::Follow)
    }

    /// The same with another body than the request's own, on a connection of its own. What the server
    /// answers before it has all of it counts.
    pub fn send_stream(&self, request: &Request<'_>, body: &mut Stream<'_>) -> Result<Answer, Failure> {
        self.upload(request, body, request.deadline)
    }

    /// The same; once all is sent the answer has to begin `within` some time.
    pub fn upload(&self, request: &Request<'_>, body: &mut Stream<'_>, within: Duration) -> Result<Answer, Failure> {
        let early = Arc::new(Early::default());
        let agent = self.parts.agent(Purpose::Upload(early.clone()));
        exchange(&agent, request, Some(Long { body, early: &early, within }), None, Redirects::Follow)
    }

    /// The same with the body of a good answer (2xx) written to `to`, which may have got a part of it when
    /// this fails. `Answer::body` is empty then.
    pub fn fetch(&self, request: &Request<'_>, to: &mut dyn Write) -> Result<Answer, Failure> {
        exchange(&self.agent, request, None, Some(to), Redirects::Follow)
    }

    /// The same, but a redirect is an answer: [`Answer::location`] says where to.
    pub fn fetch_here(&self, request: &Request<'_>, to: &mut dyn Write) -> Result<Answer, Failure> {
        exchange(&self.agent, request, None, Some(to), Redirects::Tell)
    }
}

impl Line {
    /// One poll. With `parks` the server may let it wait; such a one can be cut once it has waited for
    /// `Timing::parked_after`. The line counts as busy until [`Line::rest`], so that whoever asks
    /// [`Line::may_bring`] still hears yes while the answer is being looked at.
    pub fn send(&self, request: &Request<'_>, parks: bool) -> Result<Answer, Failure> {
        if !self.watch.begin(parks) {
            return Err(Failure::Cut);
        }
        let sent = exchange(&self.agent, request, None, None, Redirects::Follow);
        if self.watch.is_cut() { Err(Failure::Cut) } else { sent }
    }

    /// The poll is over and its answer is in safe hands.
    pub fn rest(&self) {
        self.watch.rest();
    }

    /// Whether a request is under way whose answer may bring something, so that it must be waited for.
    pub fn may_bring(&self) -> bool {
        self.watch.may_bring()
    }

    /// How long the poll has been parked, beyond the time in which it might still bring something.
    pub fn parked(&self) -> Option<Duration> {
        self.watch.parked()
    }

    /// End the poll if that is safe. A line that was cut carries no more.
    pub fn cut(&self) -> bool {
        self.watch.cut() && self.shut()
    }

    /// The same, but only for a poll that waits at the server.
    pub fn cut_if_parked(&self) -> bool {
        self.watch.cut_if_parked() && self.shut()
    }

    fn shut(&self) -> bool {
        self.agent.clone().shutdown();
        true
    }

    pub fn is_cut(&self) -> bool {
        self.watch.is_cut()
    }

    /// Cut it as soon as that is safe, by itself, and carry no more.
    pub fn leave(&self) {
        self.watch.leave();
        self.cut();
    }

    /// How long ago it was made: connections are not kept for ever, so that a server behind a balancer
    /// may go.
    pub fn age(&self) -> Duration {
        self.born.elapsed()
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim).filter(|v| !v.is_empty())
    }

    pub fn is_json(&self) -> bool {
        self.is_of("application/json")
    }

    /// A page for people: what a proxy or a login wall says in the server's place.
    pub fn is_html(&self) -> bool {
        self.is_of("text/html")
    }

    /// The usual words for its status.
    pub fn reason(&self) -> &'static str {
        StatusCode::from_u16(self.status).ok().and_then(|s| s.canonical_reason()).unwrap_or_default()
    }

    /// Parameters like a character set do not count.
    fn is_of(&self, kind: &str) -> bool {
        let said = self.header("Content-Type").unwrap_or_default();
        said.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(kind)
    }
}

/// A URL as it may stand in a log: without credentials, query and fragment.
pub fn for_people(url: &str) -> String {
    let bare = url.split(['?', '#']).next().unwrap_or_default();
    match bare.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            format!("{scheme}://{}{path}", host.rsplit('@').next().unwrap_or_default())
        }
        None => bare.to_owned(),
    }
}

/// An id for a request, 32 hex digits: it need not be secret, only its own.
pub fn request_id() -> String {
    let random = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", random(), random())
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Url(text) | Failure::Transport(text) => f.write_str(text),
            Failure::Cut => f.write_str("cut"),
        }
    }
}

// Headers and agents may hold tokens: nothing of them is shown.

impl fmt::Debug for Web {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Web")
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("watch", &self.watch).finish_non_exhaustive()
    }
}

impl fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("length", &self.length).finish_non_exhaustive()
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("status", &self.status).field("bytes", &self.body.len()).finish()
    }
}

#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
mod tests;
