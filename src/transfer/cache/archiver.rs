//! `cache-archiver`: selects, looks whether anything is newer than the archive, makes a new one, sends
//! it. A cache that is not sent is no failure; one that cannot be written is.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::local::{Draft, made, set_tag};
use super::remote::{Remote, unreadable};
use super::{Archive, Failed, fatal, size};
use crate::transfer::expand::cleared;
use crate::transfer::{archive as formats, say, select};

/// `look` finds variables of the job. The error is the last line to be said.
pub fn archive(job: &Archive, look: &dyn Fn(&str) -> Option<String>) -> Result<(), Failed> {
    adopt_alternate(job);
    let clear = |text: &String| cleared(text, look);
    let wanted = select::Wanted {
        paths: job.wanted.paths.iter().map(clear).collect(),
        exclude: job.wanted.exclude.iter().map(clear).collect(),
        untracked: job.wanted.untracked,
    };
    let selection = select::select(&job.root, &wanted);
    selection.said.iter().for_each(say::say);
    if selection.files.is_empty() {
        say::warn("No files to cache.");
        return Ok(());
    }
    if is_up_to_date(job, &selection.files) {
        if job.check_url.as_ref().is_some_and(|url| Remote::new(url, &job.call).exists()) {
            say::info("Primary cache already exists remotely, skipping upload");
            return Ok(());
        }
        say::info("Primary cache does not exist remotely, uploading existing archive");
    } else {
        make(job, &selection.files)?;
    }
    upload(job)
}

/// A flip of FF_HASH_CACHE_KEYS does not lose what is here.
fn adopt_alternate(job: &Archive) {
    let Some(alternate) = job.alternate.as_ref().filter(|a| made(a).is_some()) else { return };
    if made(&job.file).is_some() {
        return;
    }
    let moved = job.file.parent().map_or(Ok(()), |dir| {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
    });
    if moved.and_then(|()| fs::rename(alternate, &job.file)).is_ok() {
        say::info("Renamed alternate cache file to primary");
    }
}

/// Nothing that is selected has changed since. What was deleted is not noticed: a cache may have more.
fn is_up_to_date(job: &Archive, files: &[PathBuf]) -> bool {
    let Some(archived) = made(&job.file) else { return false };
    files.iter().all(|name| {
        let changed = job.root.join(name).symlink_metadata().and_then(|m| m.modified());
        changed.is_ok_and(|at| at <= archived)
    })
}

fn make(job: &Archive, files: &[PathBuf]) -> Result<(), Failed> {
    // What changes from here on may not be in it.
    let begun = SystemTime::now();
    let mut draft = Draft::new(&job.file, "archive").map_err(|e| unreadable(&job.file, &e))?;
    formats::write(job.format, job.effort, &job.root, files, &mut draft.file).map_err(|e| fatal(e.to_string()))?;
    draft.publish(&job.file, begun).map_err(|e| unreadable(&job.file, &e))?;
    if let Some(metadata) = &job.metadata {
        note(&job.file.with_file_name("metadata.json"), metadata);
    }
    Ok(())
}

/// For people who look at a directory of hashes; nobody reads it back.
fn note(path: &Path, metadata: &str) {
    use std::os::unix::fs::OpenOptionsExt;
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(path);
    if let Ok(mut file) = file {
        let _ = std::io::Write::write_all(&mut file, metadata.as_bytes());
    }
}

fn upload(job: &Archive) -> Result<(), Failed> {
    let Some(url) = &job.url else {
        say::info(
            "No URL provided, cache will not be uploaded to shared cache server. Cache will be stored only locally.",
        );
        return Ok(());
    };
    let length = job.file.metadata().map_err(|e| unreadable(&job.file, &e))?.len();
    if job.max_size > 0 && length > job.max_size {
        say::info(format!(
            "Cache archive size ({}) is too big (Limit is set to {}). Cache will be stored only locally.",
            size(length),
            size(job.max_size)
        ));
        return Ok(());
    }
    let remote = Remote::new(url, &job.call);
    let name = job.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    say::info(format!("Uploading {name} to {}", remote.shown()));
    let mut headers: Vec<(&str, &str)> = job.headers.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
        headers.push(("Content-Type", "application/octet-stream"));
    }
    let answer = remote.upload(&job.file, &headers)?;
    if let Some(tag) = answer.header("ETag") {
        set_tag(&job.file, tag);
    }
    Ok(())
}
