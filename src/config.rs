//! `config.toml` as gitlab-runner users have it: from the file to a validated [`Config`]. Knows keys,
//! defaults and the words for what is wrong with them; opens no connection.

mod cache;
mod custom;
mod entry;
mod read;
mod system_id;
mod table;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cloud::CacheSettings;
pub use crate::diag::logging::LogFormat;
use crate::model::{Custom, ForgeKind, Limits, Secret, Settings, Shell, Sources, Uploads};
use crate::process::user::User;
pub use read::log_level;

/// Read, validate, fill in; a system id that is not there yet is made and kept.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    load_as(path, None)
}

/// The same, with a user for the stages of entries that name none (`--user`).
pub fn load_as(path: &Path, user: Option<String>) -> Result<Config, ConfigError> {
    read::load(path, &Surroundings { user, ..Surroundings::real() })
}

/// One variable of our own environment.
#[expect(clippy::disallowed_methods, reason = "the edge at which the environment is read")]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A duration as people and Go's programs write it: `1h30m`.
pub fn duration(text: &str) -> Option<Duration> {
    values::duration(text)
}

/// The whole file, validated, with defaults filled in.
#[derive(Clone, Debug)]
pub struct Config {
    pub path: PathBuf,
    /// Jobs at the same time over all entries; one worker thread each.
    pub concurrent: usize,
    /// Every entry is polled once in this time (3 s unless set).
    pub check_interval: Duration,
    /// How long a TERM waits for its jobs (30 s unless set).
    pub shutdown_timeout: Duration,
    pub log_level: log::LevelFilter,
    pub log_format: LogFormat,
    /// Resolved (design §9): never beside the config.
    pub state_dir: PathBuf,
    /// Shortens how long a job may run with no manager; never lengthens it.
    pub adoption_timeout: Option<Duration>,
    pub allow_network_state: bool,
    /// No poll while a file system that jobs write to has less than this many bytes free.
    pub min_free_disk: u64,
    pub entries: Vec<Entry>,
    /// For entries that name none; a reload keeps it.
    pub user: Option<String>,
    /// One line each: unknown keys, settings without effect.
    pub warnings: Vec<String>,
}

/// One `[[runners]]` table.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub name: String,
    pub forge: ForgeKind,
    /// Trailing `/` and `/ci` removed (protocol §0.1).
    pub url: String,
    pub id: u64,
    pub token: Secret,
    pub executor: String,
    pub shell: Shell,
    pub builds_dir: PathBuf,
    pub cache_dir: PathBuf,
    pub cache: CacheSettings,
    /// Jobs of this entry at the same time, polls counted; 0: as many as `concurrent` allows.
    pub limit: usize,
    pub request_concurrency: usize,
    /// Bytes of log per job.
    pub output_limit: u64,
    pub environment: Vec<String>,
    pub pre_build_script: String,
    pub post_build_script: String,
    pub sources: Sources,
    pub feature_flags: BTreeMap<String, bool>,
    /// Limits of artifacts' uploads.
    pub uploads: Uploads,
    pub cancel_timeout: Duration,
    pub keep_processes: bool,
    /// Retire the entry when there is nothing to do.
    pub exit_when_empty: bool,
    pub debug_trace_disabled: bool,
    /// Whom stages run as; empty: as the runner.
    pub user: String,
    /// Of stages.
    pub umask: Option<u32>,
    pub limits: Limits,
    /// With the executor `custom`.
    pub custom: Option<Custom>,
    /// Names of our environment that reach the jobs; `None`: all but the manager's own.
    pub inherit_environment: Option<Vec<String>>,
    pub tls_ca_file: Option<PathBuf>,
    /// `.runner_system_id` beside the config file (protocol §6.8).
    pub system_id: String,
    /// Print the jobs' logs on stdout while they run.
    pub show_logs: ShowLogs,
    /// A spool that has nothing to do at the start is given the jobs of this directory once.
    pub jobs: Option<PathBuf>,
    /// Why this entry takes no jobs (an executor that is not built), in words for people.
    pub disabled: Option<String>,
}

impl Entry {
    /// What a job takes along of its entry.
    pub fn settings(&self) -> Settings {
        Settings {
            entry: self.name.clone(),
            url: self.url.clone(),
            short_token: self.short_token(),
            system_id: self.system_id.clone(),
            executor: self.executor.clone(),
            shell: self.shell,
            builds_dir: self.builds_dir.clone(),
            cache_dir: self.cache_dir.clone(),
            cache: self.cache.clone(),
            output_limit: self.output_limit,
            environment: self.environment.clone(),
            pre_build_script: self.pre_build_script.clone(),
            post_build_script: self.post_build_script.clone(),
            sources: self.sources.clone(),
            feature_flags: self.feature_flags.clone(),
            uploads: self.uploads,
            cancel_timeout: self.cancel_timeout,
            keep_processes: self.keep_processes,
            debug_trace_disabled: self.debug_trace_disabled,
            user: self.user.clone(),
            umask: self.umask,
            limits: self.limits.clone(),
            custom: self.custom.clone(),
            inherit_environment: self.inherit_environment.clone(),
            notes: Vec::new(),
        }
    }

    /// The token without its prefixes, at most nine bytes (protocol §0.6): it stands in logs and paths.
    pub fn short_token(&self) -> String {
        short_token(self.token.reveal())
    }

    /// What names this entry across restarts and reloads: the directory below `STATE/entries/`.
    pub fn key(&self) -> String {
        crate::model::JobName::new(self.forge, &self.url, &self.short_token()).to_string()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShowLogs {
    No,
    /// The logs alone.
    Bare,
    /// Each log with a heading, and at its end where log and result lie: the entry runs one job at a time.
    Plain,
    /// The same, and each line with the job's name before it.
    Named,
}

/// Everything that is wrong with a file, one line each: `FILE:LINE: KEY: what`.
#[derive(Debug)]
pub struct ConfigError {
    pub lines: Vec<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("; "))
    }
}

/// What the values of a file depend on beside the file.
struct Surroundings<'e> {
    env: &'e dyn Fn(&str) -> Option<String>,
    root: bool,
    directory: PathBuf,
    /// As `--user` says.
    user: Option<String>,
    /// Why stages cannot run as a user.
    unfit: &'e dyn Fn(&str) -> Option<String>,
}

impl Surroundings<'static> {
    fn real() -> Surroundings<'static> {
        let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
        let directory = std::env::current_dir().unwrap_or_else(|_| "/".into());
        Surroundings { env: &environment, root, directory, user: None, unfit: &|name| User::for_stages(name).err() }
    }
}

/// Protocol §0.6.
pub fn short_token(token: &str) -> String {
    let mut rest = token;
    if let Some(r) = rest.strip_prefix("glrtr-") {
        rest = r;
    } else {
        rest = rest.strip_prefix("glrt-").unwrap_or(rest);
        rest = ["t1_", "t2_", "t3_"].iter().find_map(|p| rest.strip_prefix(p)).unwrap_or(rest);
    }
    rest = rest.strip_prefix("glcbt-").unwrap_or(rest);
    let hex = |s: &str| s.len() >= 9 && s.starts_with("GR") && s.as_bytes()[2..9].iter().all(u8::is_ascii_hexdigit);
    if hex(rest) {
        rest = &rest[9..];
    }
    let end = (0..=rest.len().min(9)).rev().find(|&i| rest.is_char_boundary(i)).unwrap_or(0);
    rest[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tokens_are_those_of_the_reference() {
        for (token, want) in [
            ("glrt-t1_abcDEFghiJKL", "abcDEFghi"),
            ("glcbt-64_xyz12345", "64_xyz123"),
            ("short", "short"),
            ("glrt-golden-token-0", "golden-to"),
            ("GR1348941exampleReg", "exampleRe"),
        ] {
            assert_eq!(short_token(token), want);
        }
    }
}
