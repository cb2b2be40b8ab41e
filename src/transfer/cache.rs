//! What the cache's commands do inside a stage (build §7.4, §7.5): an archive of a job's files beside
//! other jobs' on this host, and its copy in a store, by URLs that were signed elsewhere. Has no keys.
//!
//! What an interruption leaves is never taken for a whole: archives appear by rename, and an archive is
//! unpacked beside the project directory first (`unpack`).

mod archiver;
mod extractor;
mod local;
mod remote;
mod unpack;

use std::path::PathBuf;
use std::time::Duration;

use crate::model::Secret;

use super::archive::{Effort, Format};
use super::say::{Level, Line};
use super::select::Wanted;

pub use archiver::archive;
pub use extractor::extract;

/// `cache-archiver`.
#[derive(Clone, Debug)]
pub struct Archive {
    /// The project directory.
    pub root: PathBuf,
    pub file: PathBuf,
    /// Where the archive is if FF_HASH_CACHE_KEYS was the other way round.
    pub alternate: Option<PathBuf>,
    /// As the job gives them: with variables.
    pub wanted: Wanted,
    pub format: Format,
    pub effort: Effort,
    /// JSON to keep beside the archive.
    pub metadata: Option<String>,
    /// Bytes; 0: whatever it has.
    pub max_size: u64,
    pub url: Option<Secret>,
    /// Tells whether the store has it.
    pub check_url: Option<Secret>,
    pub headers: Vec<(String, String)>,
    pub call: Calls,
}

/// `cache-extractor`.
#[derive(Clone, Debug)]
pub struct Extract {
    pub root: PathBuf,
    pub file: PathBuf,
    /// A directory beside the project's, for what is under way; none: it is unpacked in place.
    pub temp: Option<PathBuf>,
    pub url: Option<Secret>,
    pub alternate_url: Option<Secret>,
    pub call: Calls,
}

/// How requests are made.
#[derive(Clone, Debug)]
pub struct Calls {
    /// For one request with its answer.
    pub timeout: Duration,
    /// After the first try.
    pub retries: u32,
    pub pause: Duration,
    /// Believed beside the system's certificates.
    pub ca: Option<PathBuf>,
}

/// Why a command fails: its last line.
type Failed = Line;

fn fatal(text: impl Into<String>) -> Failed {
    Line::new(Level::Fatal, text)
}

/// For people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}
