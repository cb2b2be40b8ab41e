//! `cache-extractor`: fetches the archive when the store has a newer one, and unpacks it. A store that has
//! none fails the command, whatever lies on this host: the caller goes on with another key.

use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use super::local::{Draft, distrust, made, set_tag, tag};
use super::remote::{Remote, refused, unreadable};
use super::{Extract, Failed, fatal, unpack};
use crate::http::date::{http_date, show_http_date};
use crate::model::Secret;
use crate::transfer::say::{self, Level, Line};

/// The error is the last line to be said.
pub fn extract(job: &Extract) -> Result<(), Failed> {
    match &job.url {
        None => say::info(
            "No URL provided, cache will not be downloaded from shared cache server. Instead a local version of cache \
             will be extracted.",
        ),
        Some(url) => {
            say::info("Using presigned URL for cache download");
            fetch(job, url)?;
        }
    }
    let archive = match File::open(&job.file) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(Line::new(Level::Warning, "Cache file does not exist"));
        }
        Err(e) => return Err(unreadable(&job.file, &e)),
    };
    unpack::unpack(&archive, &job.root, job.temp.as_deref()).map_err(|text| {
        distrust(&job.file);
        fatal(text)
    })
}

/// The store's archive becomes this host's.
fn fetch(job: &Extract, url: &Secret) -> Result<(), Failed> {
    match fetch_one(job, url)? {
        Found::Fresh => Ok(()),
        Found::Nothing => {
            let other = job.alternate_url.as_ref().map_or(Ok(Found::Nothing), |url| fetch_one(job, url))?;
            match other {
                Found::Fresh => Ok(()),
                Found::Nothing => Err(Line::new(Level::Warning, "file does not exist")),
            }
        }
    }
}

enum Found {
    Fresh,
    Nothing,
}

fn fetch_one(job: &Extract, url: &Secret) -> Result<Found, Failed> {
    let remote = Remote::new(url, &job.call);
    let name = job.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (known, local) = (tag(&job.file), made(&job.file));
    let since = local.map(show_http_date);
    let mut headers = vec![("Accept-Encoding", "identity")];
    if let Some(tag) = &known {
        headers.push(("If-None-Match", tag));
    } else if let Some(since) = &since {
        headers.push(("If-Modified-Since", since));
    }
    let shown = remote.shown();
    let (answer, sink) = remote.download(&headers, || Ok(Sink { job, shown: &shown, draft: None }))?;
    match (answer.status, sink.draft) {
        (304, _) => {
            say::info(format!("{name} is up to date"));
            Ok(Found::Fresh)
        }
        (200..300, draft) => {
            // An empty object is an archive that cannot be unpacked.
            let draft = draft.map_or_else(|| Draft::new(&job.file, "cache"), Ok);
            let when = answer.header("Last-Modified").and_then(http_date).unwrap_or_else(SystemTime::now);
            // A future time would hide changes of its files for so long.
            let when = when.min(SystemTime::now() + Duration::from_secs(1));
            draft.and_then(|d| d.publish(&job.file, when)).map_err(|e| unreadable(&job.file, &e))?;
            if let Some(tag) = answer.header("ETag") {
                set_tag(&job.file, tag);
            }
            Ok(Found::Fresh)
        }
        (404, _) => Ok(Found::Nothing),
        _ => Err(Line::new(Level::Warning, refused(&answer))),
    }
}

/// Makes the file when the first bytes come: before them it is not known whether there are any.
struct Sink<'a> {
    job: &'a Extract,
    shown: &'a str,
    draft: Option<Draft>,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.draft.is_none() {
            say::info(format!("Downloading cache from {}", self.shown));
            self.draft = Some(Draft::new(&self.job.file, "cache")?);
        }
        let draft = self.draft.as_mut().expect("it was made just now");
        draft.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
