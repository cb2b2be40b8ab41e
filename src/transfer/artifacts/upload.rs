//! `artifacts-uploader`: the files that a job names, to its coordinator. An archive is made while it is
//! sent, and made again for each request; where the server wants its length first, it is made once more
//! for that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timing;
use crate::http::{Answer, Client, Failure, Method, Request, Stream, request_id};
use crate::retry::Backoff;
use crate::transfer::archive::{Effort, Format};
use crate::transfer::expand::cleared;
use crate::transfer::say::{self, Level, Line};
use crate::transfer::select::{Wanted, select};

use super::body::{Form, Pack, Trouble, open};
use super::{Coordinator, Failed, fatal, in_words, status};

/// Tries of the command; a server that is overloaded gets more.
const TRIES: u32 = 3;
const BUSY_TRIES: u32 = 6;
const LONGEST_PAUSE: u32 = 5;

#[derive(Clone, Debug)]
pub struct Upload {
    pub to: Coordinator,
    /// The project directory.
    pub root: PathBuf,
    /// As the job gives them: with variables.
    pub wanted: Wanted,
    /// Of the archive, with variables too; its last part counts.
    pub name: String,
    pub format: Format,
    /// In the server's words; empty where it was not given.
    pub format_name: String,
    pub kind: String,
    pub expire_in: String,
    pub effort: Effort,
    /// Of one request.
    pub timeout: Duration,
    /// Of its answer's beginning, once all is sent.
    pub answer_within: Duration,
}

/// What one try came to.
enum Try {
    Sent,
    /// The line that says why; whether and how often to try again.
    Failed {
        line: Line,
        why: String,
        tries: u32,
    },
    /// Without another try: the server wants to know the length.
    LengthWanted,
}

/// `look` finds variables of the job. A job that has nothing to upload has done well.
pub fn upload(job: &Upload, look: &dyn Fn(&str) -> Option<String>) -> Result<(), Failed> {
    job.to.check()?;
    let clear = |text: &String| cleared(text, look);
    let wanted = Wanted {
        paths: job.wanted.paths.iter().map(clear).collect(),
        exclude: job.wanted.exclude.iter().map(clear).collect(),
        untracked: job.wanted.untracked,
    };
    let selection = select(&job.root, &wanted);
    selection.said.iter().for_each(say::say);
    if selection.files.is_empty() {
        say::say(&Line::new(Level::Error, "No files to upload"));
        return Ok(());
    }
    warn_of_git(&selection.files);
    let pack = Pack { format: job.format, effort: job.effort, root: job.root.clone(), files: selection.files };
    let sending = Sending {
        job,
        client: job.to.client(),
        url: job.to.artifacts(&job.query()),
        form: Form {
            boundary: format!("{}{}", request_id(), &request_id()[..28]),
            filename: format!("{}{}", base(&cleared(&job.name, look)), job.format.suffix()),
        },
        pack: Arc::new(pack),
    };
    sending.all_tries()
}

impl Upload {
    fn query(&self) -> String {
        let named =
            [("artifact_format", &self.format_name), ("artifact_type", &self.kind), ("expire_in", &self.expire_in)];
        let set = named.iter().filter(|(_, value)| !value.is_empty());
        let parts: Vec<_> = set.map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
    }

    fn prefix(&self) -> String {
        match self.kind.as_str() {
            "" => "Uploading artifacts to coordinator...".to_owned(),
            kind => format!("Uploading artifacts as {kind:?} to coordinator..."),
        }
    }
}

struct Sending<'a> {
    job: &'a Upload,
    client: Client,
    url: String,
    form: Form,
    pack: Arc<Pack>,
}

impl Sending<'_> {
    fn all_tries(&self) -> Result<(), Failed> {
        let step = Timing::load().backoff_min;
        let mut backoff = Backoff::new(step, step * LONGEST_PAUSE);
        let (mut length, mut tried) = (None, 0);
        loop {
            let (line, why, tries) = match self.one_try(length) {
                Try::Sent => return Ok(()),
                Try::LengthWanted => {
                    say::info("The server wants to know the archive's length: it is made twice");
                    let archive = self.pack.measure().map_err(|e| fatal(e.to_string()))?;
                    length = Some(self.form.length(archive));
                    continue;
                }
                Try::Failed { line, why, tries } => (line, why, tries),
            };
            say::say(&line);
            tried += 1;
            if tried >= tries {
                return Err(fatal(why));
            }
            let again = Line::new(Level::Warning, "Retrying...").with("context", "artifacts-uploader");
            say::say(&again.with("error", why));
            super::pause(backoff.next());
        }
    }

    fn one_try(&self, length: Option<u64>) -> Try {
        let trouble = Trouble::default();
        let kind = format!("multipart/form-data; boundary={}", self.form.boundary);
        let (id, sent) = self.job.to.patiently(Method::Post, &self.url, |id| {
            let headers = [
                ("Content-Type", kind.as_str()),
                ("JOB-TOKEN", self.job.to.token.reveal()),
                ("User-Agent", &self.job.to.user_agent),
                ("X-Request-Id", id),
            ];
            let request = Request {
                method: Method::Post,
                url: &self.url,
                headers: &headers,
                body: &[],
                deadline: self.job.timeout,
            };
            let mut make = || open(&self.pack, &self.form, length, &trouble);
            self.client.upload(&request, &mut Stream { length, make: &mut make }, self.job.answer_within)
        });
        match sent {
            Ok(answer) if answer.status == 411 && length.is_none() => Try::LengthWanted,
            Ok(answer) => self.answered(&id, &answer),
            Err(failure) => self.unanswered(&id, &failure, trouble.lock().take()),
        }
    }

    fn answered(&self, id: &str, answer: &Answer) -> Try {
        let prefix = self.job.prefix();
        let line = |level, text: String| self.job.to.fields(Line::new(level, text), id, Some(answer));
        let words = in_words(Method::Post, &self.url, answer);
        let failed = |level, why: &str, tries| Try::Failed {
            line: line(level, format!("{prefix} {words}")),
            why: why.to_owned(),
            tries,
        };
        match answer.status {
            201 => {
                say::say(&line(Level::Info, format!("{prefix} {}", status(201))));
                Try::Sent
            }
            307 | 308 => Try::Failed {
                line: line(Level::Error, format!("{prefix} {} empty location", status(answer.status))),
                why: "upload failed with no response from coordinator".to_owned(),
                tries: TRIES,
            },
            403 => failed(Level::Error, "permission denied", 1),
            413 => failed(Level::Error, "too large", 1),
            503 => failed(Level::Error, "service unavailable", BUSY_TRIES),
            _ => failed(Level::Warning, "upload failed with no response from coordinator", TRIES),
        }
    }

    fn unanswered(&self, id: &str, failure: &Failure, trouble: Option<String>) -> Try {
        let why = trouble.unwrap_or_else(|| failure.to_string());
        let line = Line::new(Level::Error, format!("{} error", self.job.prefix())).with("error", &*why);
        Try::Failed { line: self.job.to.fields(line, id, None), why, tries: TRIES }
    }
}

/// The last part of a name; GitLab needs one.
fn base(name: &str) -> String {
    let last = Path::new(name).file_name().map(|n| n.to_string_lossy().into_owned());
    last.filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned())
}

fn warn_of_git(files: &[PathBuf]) {
    if files.iter().any(|f| f.starts_with(".git")) {
        say::warn("Part of .git directory is on the list of files to archive");
        say::warn("This may introduce unexpected problems");
    }
}

/// A value in a query.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        match b {
            b' ' => out.push('+'),
            b if b.is_ascii_alphanumeric() || b"-_.~".contains(&b) => out.push(char::from(b)),
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_called_by_the_last_part_of_its_name() {
        for (name, want) in [
            ("bundle", "bundle"),
            ("a/b c", "b c"),
            ("", "default"),
            (".", "default"),
            ("a/..", "default"),
            ("x/", "x"),
        ] {
            assert_eq!(base(name), want, "{name:?}");
        }
    }

    #[test]
    fn values_are_escaped_for_the_query() {
        assert_eq!(escaped("1 week & ü"), "1+week+%26+%C3%BC");
    }
}
