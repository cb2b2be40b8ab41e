//! One request and its answer: redirects as Go follows them (protocol §3.2), bodies that are too large
//! for the memory, the words for what goes wrong. Keeps nothing between two requests.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use ureq::http::uri::{PathAndQuery, Scheme};
use ureq::http::{self, HeaderMap, Uri, header};
use ureq::{Agent, SendBody};

use super::wire::Early;
use super::{Answer, Failure, Method, Request, Stream, for_people};

/// No answer that we keep in memory is larger: a job is a few hundred kilobytes at most.
const MAX_BODY: u64 = 32 << 20;
const MAX_REDIRECTS: usize = 10;
/// What a long body is read in.
const PIECE: usize = 128 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redirects {
    Follow,
    Tell,
}

/// A body that is sent while the server is listened to.
pub(super) struct Long<'s, 'a> {
    pub(super) body: &'s mut Stream<'a>,
    pub(super) early: &'s Early,
    /// For the answer to begin, once all is sent.
    pub(super) within: Duration,
}

/// Send, follow redirects, read the answer whole: into memory, or into `sink` when it is a good one.
pub(super) fn exchange(
    agent: &Agent,
    request: &Request<'_>,
    mut long: Option<Long<'_, '_>>,
    mut sink: Option<&mut dyn Write>,
    redirects: Redirects,
) -> Result<Answer, Failure> {
    let start = Instant::now();
    let mut url = parse(request.url)?;
    let (mut method, mut with_body, mut tokens) = (request.method, request.method.may_have_body(), true);
    for _ in 0..=MAX_REDIRECTS {
        let mut builder = http::Request::builder().method(method.name()).uri(url.clone());
        for (name, value) in request.headers {
            let kept = (tokens || !name.ends_with("TOKEN")) && (with_body || !name.starts_with("Content-"));
            if kept {
                builder = builder.header(*name, *value);
            }
        }
        let left = request.deadline.saturating_sub(start.elapsed());
        let mut answer = match (with_body, &mut long) {
            (true, Some(long)) => {
                let inner = (long.body.make)().map_err(|e| Failure::Transport(e.to_string()))?;
                let mut body = Cutting { inner, early: long.early, left: long.body.length };
                if let Some(length) = long.body.length {
                    builder = builder.header(header::CONTENT_LENGTH, length);
                }
                run(agent, builder.body(SendBody::from_reader(&mut body)), left, long.within)
            }
            (true, None) => run(agent, builder.body(request.body), left, left),
            (false, _) => run(agent, builder.body(()), left, left),
        }
        .map_err(|e| lost(request, &e))?;
        let status = answer.status().as_u16();
        let location = answer.headers().get(header::LOCATION).and_then(|l| l.to_str().ok()).map(str::to_owned);
        let (true, Some(location)) = (matches!(status, 301 | 302 | 303 | 307 | 308), location) else {
            let body = read(request, &mut answer, sink.take().filter(|_| (200..300).contains(&status)))?;
            return Ok(Answer { status, headers: answer.into_parts().0.headers, body, location: None });
        };
        let body = read(request, &mut answer, None)?;
        let next = join(&url, &location)?;
        if redirects == Redirects::Tell {
            let location = Some(next.to_string());
            return Ok(Answer { status, headers: answer.into_parts().0.headers, body, location });
        }
        if url.scheme() == Some(&Scheme::HTTPS) && next.scheme() != Some(&Scheme::HTTPS) {
            return Err(Failure::Transport(format!("{}: it redirects to plain HTTP", for_people(request.url))));
        }
        // Tokens stay with the host that they were meant for. A long body is for another host of the same
        // service, which believes nobody without one.
        tokens &= next.authority() == url.authority() || next.host() == url.host() || long.is_some();
        if !matches!(status, 307 | 308) {
            let get = if method == Method::Head { Method::Head } else { Method::Get };
            (method, with_body) = (get, false);
        }
        url = next;
    }
    Err(Failure::Transport(format!("{}: more than {MAX_REDIRECTS} redirects", for_people(request.url))))
}

/// A long body, until the server has answered: then nothing of it is of use, and its end comes soon.
struct Cutting<'a> {
    inner: Box<dyn Read + 'a>,
    early: &'a Early,
    /// So much was promised: something has to stand in for it.
    left: Option<u64>,
}

impl Read for Cutting<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.early.is_answered() {
            let n = self.inner.read(into)?;
            self.left = self.left.map(|left| left.saturating_sub(n as u64));
            return Ok(n);
        }
        // Whatever it holds: the connection sends nothing of it.
        let n = usize::try_from(self.left.unwrap_or(0)).unwrap_or(usize::MAX).min(into.len());
        self.left = self.left.map(|left| left - n as u64);
        Ok(n)
    }
}

/// The answer's body to its end; what is said with a `sink` is empty.
fn read(
    request: &Request<'_>,
    answer: &mut http::Response<ureq::Body>,
    sink: Option<&mut dyn Write>,
) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let Some(sink) = sink else {
        answer
            .body_mut()
            .as_reader()
            .take(MAX_BODY + 1)
            .read_to_end(&mut text)
            .map_err(|e| lost(request, &e.into()))?;
        if text.len() as u64 > MAX_BODY {
            return Err(Failure::Transport(format!("{}: the answer is too large", for_people(request.url))));
        }
        return Ok(text);
    };
    let expected = length(answer.headers());
    let mut reader = answer.body_mut().with_config().limit(u64::MAX).reader();
    let (mut piece, mut total) = (vec![0; PIECE], 0_u64);
    loop {
        let n = match reader.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(lost(request, &e.into())),
        };
        sink.write_all(&piece[..n]).map_err(|e| Failure::Transport(e.to_string()))?;
        total += n as u64;
    }
    match expected {
        Some(expected) if expected != total => Err(Failure::Transport(format!(
            "{}: the answer ended after {total} of {expected} bytes",
            for_people(request.url)
        ))),
        _ => Ok(text),
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

fn lost(request: &Request<'_>, e: &ureq::Error) -> Failure {
    Failure::Transport(format!("{}: {}", for_people(request.url), in_words(e)))
}

impl Method {
    fn may_have_body(self) -> bool {
        !matches!(self, Method::Head)
    }
}

fn run(
    agent: &Agent,
    request: http::Result<http::Request<impl ureq::AsSendBody>>,
    left: Duration,
    within: Duration,
) -> Result<http::Response<ureq::Body>, ureq::Error> {
    let request = agent.configure_request(request?).timeout_global(Some(left)).timeout_recv_response(Some(within));
    let request = request.build();
    agent.run(request)
}

fn parse(url: &str) -> Result<Uri, Failure> {
    let bad = |why: &str| Failure::Url(format!("{}: {why}", for_people(url)));
    let uri: Uri = url.parse().map_err(|e| bad(&format!("{e}")))?;
    match uri.scheme_str() {
        Some("http" | "https") if uri.host().is_some_and(|h| !h.is_empty()) => Ok(uri),
        _ => Err(bad("the URL must begin with http:// or https:// and name a host")),
    }
}

/// Where a `Location` leads from `base`.
pub(super) fn join(base: &Uri, location: &str) -> Result<Uri, Failure> {
    if location.contains("://") {
        return parse(location);
    }
    let (scheme, host) = (base.scheme_str().unwrap_or("http"), base.authority().map_or("", |a| a.as_str()));
    if let Some(rest) = location.strip_prefix("//") {
        return parse(&format!("{scheme}://{rest}"));
    }
    if location.starts_with('/') {
        return parse(&format!("{scheme}://{host}{location}"));
    }
    let path = base.path_and_query().map_or("/", PathAndQuery::path);
    let folder = &path[..=path.rfind('/').unwrap_or(0).min(path.len().saturating_sub(1))];
    parse(&format!("{scheme}://{host}{folder}{location}"))
}

/// What went wrong, without the library's own prefixes.
fn in_words(e: &ureq::Error) -> String {
    match e {
        ureq::Error::Io(e) => e.to_string(),
        ureq::Error::Timeout(what) => format!("no answer in time ({what})"),
        ureq::Error::HostNotFound => "the host's name is not known".to_owned(),
        e => e.to_string(),
    }
}
