//! An archive on this host: how it appears, is looked at and is marked. Knows nothing of what is in it.

use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::diag;

/// Beside an archive: what the store calls the version that it is a copy of.
const TAG: &str = "etag";
/// A file under way that nobody holds and that is older was left by somebody who was killed.
const FRESH: Duration = Duration::from_secs(60);
/// Bytes that go to the disk at once.
const BUFFER: usize = 256 << 10;

/// A file under way. Dropped without [`Draft::publish`], it is gone.
#[derive(Debug)]
pub(super) struct Draft {
    path: PathBuf,
    /// Held locked, so that others see that it is alive.
    pub(super) file: BufWriter<File>,
    published: bool,
}

impl Draft {
    /// In the directory of `target`, which is made.
    pub(super) fn new(target: &Path, prefix: &str) -> io::Result<Draft> {
        let dir = target.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        sweep(dir);
        let id = crate::http::request_id();
        let path = dir.join(format!("{prefix}_{}", &id[..12]));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let _ = file.try_lock();
        diag::point("cache-draft");
        Ok(Draft { path, file: BufWriter::with_capacity(BUFFER, file), published: false })
    }

    /// It is whole: from now on it is `target`. `when` becomes its time.
    pub(super) fn publish(mut self, target: &Path, when: SystemTime) -> io::Result<u64> {
        self.file.flush()?;
        let file = self.file.get_ref();
        file.set_times(FileTimes::new().set_modified(when))?;
        let length = file.metadata()?.len();
        forget_tag(target);
        diag::point("cache-written");
        fs::rename(&self.path, target)?;
        self.published = true;
        Ok(length)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Drafts that were left behind.
fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let ours = ["archive_", "cache_"].iter().any(|p| name.to_string_lossy().starts_with(p));
        let old = |m: fs::Metadata| m.is_file() && m.modified().is_ok_and(|t| t.elapsed().is_ok_and(|age| age > FRESH));
        if !ours || !entry.metadata().is_ok_and(old) {
            continue;
        }
        if File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// When the archive was made; `None` when there is none.
pub(super) fn made(archive: &Path) -> Option<SystemTime> {
    archive.metadata().ok().filter(fs::Metadata::is_file)?.modified().ok()
}

/// It could not be unpacked. It stays, but is older than everything: so the next one replaces it.
pub(super) fn distrust(archive: &Path) {
    forget_tag(archive);
    if let Ok(file) = OpenOptions::new().write(true).open(archive) {
        let _ = file.set_times(FileTimes::new().set_modified(UNIX_EPOCH));
    }
}

/// The store's name of this very archive, if it has one.
pub(super) fn tag(archive: &Path) -> Option<String> {
    let text = fs::read_to_string(archive.with_file_name(TAG)).ok()?;
    let (identity, tag) = text.split_once('\n')?;
    (identity == self::identity(archive)?).then(|| tag.to_owned())
}

/// Only saves time, so that errors are ignored.
pub(super) fn set_tag(archive: &Path, tag: &str) {
    if let Some(identity) = identity(archive) {
        let _ = fs::write(archive.with_file_name(TAG), format!("{identity}\n{tag}"));
    }
}

fn forget_tag(archive: &Path) {
    let _ = fs::remove_file(archive.with_file_name(TAG));
}

/// Another archive in its place has another one.
fn identity(archive: &Path) -> Option<String> {
    let m = archive.metadata().ok()?;
    Some(format!("{} {} {}.{}", m.ino(), m.len(), m.mtime(), m.mtime_nsec()))
}
