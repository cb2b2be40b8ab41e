//! Requests to a store by signed URLs: tries, and the words for what it answers. Signs nothing.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use crate::clock::Timing;
use crate::http::{Answer, Client, Failure, Method, Request, Stream, Web, for_people};
use crate::model::Secret;

use super::super::say::{Level, Line};
use super::{Calls, Failed, fatal};

#[derive(Debug)]
pub(super) struct Remote<'a> {
    client: Client,
    url: &'a str,
    calls: &'a Calls,
}

impl<'a> Remote<'a> {
    pub(super) fn new(url: &'a Secret, calls: &'a Calls) -> Remote<'a> {
        let client = Web::new(&Timing::load()).client(url.reveal(), calls.ca.as_deref());
        Remote { client, url: url.reveal(), calls }
    }

    /// The URL without its signature.
    pub(super) fn shown(&self) -> String {
        for_people(self.url)
    }

    pub(super) fn exists(&self) -> bool {
        let request = self.request(Method::Head, &[]);
        matches!(self.client.send(&request), Ok(answer) if (200..300).contains(&answer.status))
    }

    pub(super) fn upload(&self, archive: &Path, headers: &[(&str, &str)]) -> Result<Answer, Failed> {
        let length = archive.metadata().map_err(|e| unreadable(archive, &e))?.len();
        self.tries(|| {
            let mut make = || Ok(Box::new(File::open(archive)?) as Box<dyn io::Read>);
            let mut body = Stream { length: Some(length), make: &mut make };
            self.client.send_stream(&self.request(Method::Put, headers), &mut body)
        })
        .map_err(|text| fatal(format!("{}: {text}", self.shown())))
        .and_then(|answer| match answer.status {
            200..300 => Ok(answer),
            _ => Err(fatal(refused(&answer))),
        })
    }

    /// `to` is asked for anew at each try. Answers other than good ones are the caller's.
    pub(super) fn download<W: Write>(
        &self,
        headers: &[(&str, &str)],
        mut to: impl FnMut() -> io::Result<W>,
    ) -> Result<(Answer, W), Failed> {
        let mut sink = None;
        let answer = self.tries(|| {
            sink = None;
            let mut next = to().map_err(|e| Failure::Transport(e.to_string()))?;
            let answer = self.client.fetch(&self.request(Method::Get, headers), &mut next)?;
            sink = Some(next);
            Ok(answer)
        });
        match (answer, sink) {
            (Ok(answer), Some(sink)) => Ok((answer, sink)),
            (Ok(_), None) => Err(fatal("the answer went nowhere")),
            (Err(text), _) => Err(Line::new(Level::Warning, text)),
        }
    }

    fn request<'r>(&'r self, method: Method, headers: &'r [(&'r str, &'r str)]) -> Request<'r> {
        Request { method, url: self.url, headers, body: b"", deadline: self.calls.timeout }
    }

    /// Again, as long as it may help.
    fn tries(&self, mut once: impl FnMut() -> Result<Answer, Failure>) -> Result<Answer, String> {
        let mut left = self.calls.retries;
        loop {
            let (why, hopeless) = match once() {
                Ok(answer) if answer.status < 500 => return Ok(answer),
                Ok(answer) if left == 0 => return Ok(answer),
                Ok(answer) => (refused(&answer), false),
                Err(e) => (e.to_string(), matches!(e, Failure::Url(_))),
            };
            if left == 0 || hopeless {
                return Err(why);
            }
            left -= 1;
            super::super::say::say(&Line::new(Level::Warning, "Retrying...").with("error", why));
            pause(self.calls.pause);
        }
    }
}

/// `received: 403 Forbidden. Request failed with code: AccessDenied, message: …`
pub(super) fn refused(answer: &Answer) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
    };
    let reason = answer.reason();
    let status = if reason.is_empty() { answer.status.to_string() } else { format!("{} {reason}", answer.status) };
    match (element("Code"), element("Message")) {
        (Some(code), message) => {
            let message = message.unwrap_or_default();
            format!("received: {status}. Request failed with code: {code}, message: {message}")
        }
        (None, _) => format!("received: {status}"),
    }
}

pub(super) fn unreadable(path: &Path, e: &io::Error) -> Failed {
    fatal(format!("{}: {e}", path.display()))
}

/// A command of a stage is told to end by a signal, which ends the wait, too.
fn pause(d: Duration) {
    let _ = crossbeam_channel::after(d).recv();
}
