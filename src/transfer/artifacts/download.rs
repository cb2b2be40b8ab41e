//! `artifacts-downloader`: the archive of an earlier job, into the project directory. It is written beside
//! it first, into a file without a name, because a zip archive is read from its end.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::clock::Timing;
use crate::http::{Answer, Client, Failure, Method, Request, for_people, request_id};
use crate::transfer::extract::extract;
use crate::transfer::say::{self, Level, Line};

use super::{Coordinator, Failed, fatal, in_words};

/// After the first try.
const RETRIES: u32 = 2;

#[derive(Clone, Debug)]
pub struct Download {
    pub from: Coordinator,
    /// The project directory.
    pub root: PathBuf,
    /// Where the archive may lie meanwhile: the first that can be written to.
    pub staging: Vec<PathBuf>,
    /// Ask for the place where the archive lies, so that it need not come through GitLab.
    pub direct: bool,
    pub retries: Option<u32>,
    pub pause: Option<Duration>,
    /// Of one request.
    pub timeout: Duration,
}

enum Try {
    Saved,
    /// No other try would do better.
    Refused {
        line: Line,
        why: &'static str,
    },
    Failed {
        line: Line,
    },
}

pub fn download(job: &Download) -> Result<(), Failed> {
    job.from.check()?;
    let mut file = temporary(job)?;
    let client = job.from.client();
    let retries = job.retries.unwrap_or(RETRIES);
    for tried in 0.. {
        file.set_len(0).and_then(|()| file.rewind()).map_err(|e| fatal(format!("the archive's file: {e}")))?;
        match job.one_try(&client, job.direct && tried == 0, &mut file) {
            Try::Saved => break,
            Try::Refused { line, why } => {
                say::say(&line);
                return Err(fatal(why));
            }
            Try::Failed { line } => {
                say::say(&line);
                if tried >= retries {
                    return Err(fatal("invalid argument"));
                }
                say::say(&Line::new(Level::Warning, "Retrying...").with("error", "invalid argument"));
                super::pause(job.pause.unwrap_or(Timing::load().backoff_min));
            }
        }
    }
    extract(&file, &job.root).map_err(fatal)
}

impl Download {
    fn one_try(&self, client: &Client, direct: bool, file: &mut File) -> Try {
        let (id, got) = if direct { self.direct(client, file) } else { self.through(client, file) };
        self.outcome(&id, got)
    }

    /// The place where the archive lies may be another host's: it gets no token of ours.
    fn direct(&self, client: &Client, file: &mut File) -> (String, Result<Answer, Failure>) {
        let (id, url) = (request_id(), self.from.artifacts("?direct_download=true"));
        let got = client.fetch_here(&self.request(&url, &self.headers(&id)), file);
        let Ok(Answer { status: 301 | 302 | 303 | 307 | 308, location: Some(place), .. }) = &got else {
            return (id, got);
        };
        let host = host(place);
        say::info(format!("Direct download from {host}"));
        let same = host == self::host(&self.from.url);
        self.from.patiently(Method::Get, place, |id| {
            let headers = self.headers(id);
            let kept: &[_] = if same { &headers } else { &headers[1..] };
            start_again(file)?;
            client.fetch(&self.request(place, kept), file)
        })
    }

    fn through(&self, client: &Client, file: &mut File) -> (String, Result<Answer, Failure>) {
        let url = self.from.artifacts("");
        self.from.patiently(Method::Get, &url, |id| {
            start_again(file)?;
            client.fetch(&self.request(&url, &self.headers(id)), file)
        })
    }

    /// The token first.
    fn headers<'a>(&'a self, id: &'a str) -> [(&'a str, &'a str); 3] {
        [("JOB-TOKEN", self.from.token.reveal()), ("User-Agent", &self.from.user_agent), ("X-Request-Id", id)]
    }

    fn request<'a>(&self, url: &'a str, headers: &'a [(&'a str, &'a str)]) -> Request<'a> {
        Request { method: Method::Get, url, headers, body: &[], deadline: self.timeout }
    }

    fn outcome(&self, id: &str, got: Result<Answer, Failure>) -> Try {
        const WHAT: &str = "Downloading artifacts from coordinator...";
        let answer = match got {
            Ok(answer) => answer,
            Err(e) => {
                let line = Line::new(Level::Error, format!("{WHAT} error")).with("error", e.to_string());
                return Try::Failed { line: self.from.fields(line, id, None) };
            }
        };
        let line = |level, word: &str| self.from.fields(Line::new(level, format!("{WHAT} {word}")), id, Some(&answer));
        match answer.status {
            200 => {
                say::say(&line(Level::Info, "ok"));
                Try::Saved
            }
            401 => Try::Refused { line: line(Level::Error, "unauthorized"), why: "permission denied" },
            403 => Try::Refused { line: line(Level::Error, "forbidden"), why: "permission denied" },
            404 => Try::Refused { line: line(Level::Error, "not found"), why: "file does not exist" },
            _ => {
                let words = in_words(Method::Get, &self.from.artifacts(""), &answer);
                Try::Failed { line: line(Level::Warning, "failed").with("error", words) }
            }
        }
    }
}

fn start_again(file: &mut File) -> Result<(), Failure> {
    file.set_len(0).and_then(|()| file.rewind()).map_err(|e| Failure::Transport(format!("the archive's file: {e}")))
}

/// Host and port of a URL.
fn host(url: &str) -> String {
    let bare = for_people(url);
    let rest = bare.split_once("://").map_or(bare.as_str(), |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default().to_owned()
}

/// A file that nobody else sees and that is gone with this process, however it ends.
fn temporary(job: &Download) -> Result<File, Failed> {
    let mut why = String::new();
    for dir in &job.staging {
        match unnamed(dir) {
            Ok(file) => return Ok(file),
            Err(e) => why = format!("{}: {e}", dir.display()),
        }
    }
    Err(fatal(format!("there is no place for the archive while it is read: {why}")))
}

fn unnamed(dir: &Path) -> io::Result<File> {
    #[expect(clippy::cast_possible_wrap, reason = "the flags are small")]
    let unnamed = OFlags::TMPFILE.bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // Not all file systems can make one without a name.
    options.clone().custom_flags(unnamed).open(dir).or_else(|_| {
        let path = dir.join(format!(".artifacts-{}", request_id()));
        let file = options.create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = unnamed(dir.path()).unwrap();
        io::Write::write_all(&mut file, b"x").unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(unnamed(&dir.path().join("missing")).is_err());
    }

    #[test]
    fn hosts_are_told_apart_with_their_ports() {
        for (url, want) in
            [("https://h.example/a?b", "h.example"), ("http://u:p@h:81", "h:81"), ("https://h.example", "h.example")]
        {
            assert_eq!(host(url), want);
        }
    }
}
