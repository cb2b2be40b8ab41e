//! The values that travel between the ranks: a job, its entry's settings, its outcome, the messages
//! of the control socket. Plain data that serialises; no I/O and nothing of any one forge.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cloud::CacheSettings;

/// The version that every file of a job directory carries. A release reads its own and the one before.
pub const VERSION: u32 = 1;

/// A value that must never reach a log line. No `Display`; `Debug` hides it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Secret {
        Secret(value.into())
    }

    /// The value itself. Call it only where it goes to the wire, a file of mode 0600 or the masker.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Which coordinator speaks: decides the lease, the plan and the framing of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForgeKind {
    Gitlab,
    Spool,
}

impl ForgeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            ForgeKind::Gitlab => "gitlab",
            ForgeKind::Spool => "spool",
        }
    }
}

/// The name of a job's directory: `FORGE-SERVERHASH-ID` (two servers use the same ids).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobName(String);

impl JobName {
    /// `server` is the coordinator's URL; its host and path decide the hash. Bytes of `id` that are
    /// not `[A-Za-z0-9._-]` become `_`, so that a hostile id stays one file name.
    pub fn new(forge: ForgeKind, server: &str, id: &str) -> JobName {
        let rest = server.split_once("://").map_or(server, |(_, r)| r);
        let rest = rest.rsplit_once('@').map_or(rest, |(_, r)| r).trim_end_matches('/');
        let hash = rest.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b.to_ascii_lowercase())).wrapping_mul(0x0100_0000_01b3)
        });
        let id: String = id
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' })
            .take(120)
            .collect();
        JobName(format!("{}-{:08x}-{id}", forge.as_str(), (hash >> 32) as u32 ^ hash as u32))
    }

    /// A name read back from a directory entry.
    pub fn from_dir(name: &str) -> JobName {
        JobName(name.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `job.json`: the job as handed out and the entry's settings, without the entry's token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub version: u32,
    pub forge: ForgeKind,
    /// What the server calls it; for people and for the server.
    pub id: String,
    /// The project it belongs to: a key for slots, and a word for our log lines.
    pub project: String,
    /// The job's name as people know it.
    pub name: String,
    /// The whole job's time limit, from the start of its job process.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Smallest number unused by the running jobs of the entry (build §2.3); the manager fills it in.
    pub slot: u32,
    /// The same among the jobs of the entry and the project.
    pub project_slot: u32,
    pub settings: Settings,
    #[serde(default)]
    pub server: Server,
    /// The forge's own text, byte for byte; parsed by its plan alone.
    pub payload: Box<RawValue>,
}

/// What the hand-out told beside the job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// The server's name for the request that it answered with this job.
    pub request_id: String,
    /// The certificates that the connection was checked with, in PEM; empty: those of the system.
    pub ca: String,
}

/// What a job needs of its entry: copied at the hand-out, so that a reload never touches a running job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The entry's `name`.
    pub entry: String,
    pub url: String,
    pub short_token: String,
    pub system_id: String,
    pub executor: String,
    pub shell: Shell,
    pub builds_dir: PathBuf,
    pub cache_dir: PathBuf,
    /// Keys of whole buckets: they travel in a file of their own, which goes before the first stage.
    #[serde(skip)]
    pub cache: CacheSettings,
    /// Bytes of log that are kept.
    pub output_limit: u64,
    pub environment: Vec<String>,
    pub pre_build_script: String,
    pub post_build_script: String,
    pub sources: Sources,
    pub feature_flags: BTreeMap<String, bool>,
    pub uploads: Uploads,
    /// How long a script that was told to end may take before it is killed.
    #[serde(with = "seconds")]
    pub cancel_timeout: Duration,
    /// Leave alone what the job's scripts left running.
    pub keep_processes: bool,
    pub debug_trace_disabled: bool,
    /// Whom stages run as; empty: as the runner.
    pub user: String,
    /// Of stages; 022 where the entry says nothing.
    pub umask: Option<u32>,
    pub limits: Limits,
    /// With the executor `custom`.
    pub custom: Option<Custom>,
    /// Names of the runner's environment that reach its jobs; `None`: all but the manager's own.
    pub inherit_environment: Option<Vec<String>>,
    /// Filled in by the job process: lines for the job's log about how its stages run.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// `[runners.custom]`: the programs of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Custom {
    pub config: Option<Program>,
    pub prepare: Option<Program>,
    pub run: Program,
    pub cleanup: Option<Program>,
    /// Between TERM and KILL, and after it.
    #[serde(with = "seconds")]
    pub graceful_kill_timeout: Duration,
    #[serde(with = "seconds")]
    pub force_kill_timeout: Duration,
    /// Filled in by the job process: the directory that is the driver's while the job runs.
    #[serde(skip)]
    pub dir: PathBuf,
    /// Said by the driver: builds of several runners lie in `builds_dir`.
    #[serde(skip)]
    pub shared: bool,
    /// The driver has said where the job works; before that nobody knows.
    #[serde(skip)]
    pub is_placed: bool,
}

/// Run as it is, without a shell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Program {
    pub exec: String,
    pub args: Vec<String>,
    /// `run` has none.
    #[serde(with = "seconds")]
    pub timeout: Duration,
}

/// What the stages of one job may take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Bytes.
    pub memory: Option<u64>,
    pub processes: Option<u64>,
    /// Seconds of each process.
    pub cpu_time: Option<u64>,
    pub open_files: Option<u64>,
    pub nice: Option<i32>,
    pub oom_score_adj: Option<i32>,
    /// Whether each job has a cgroup of its own; unset: where a limit needs one and one may be made.
    pub cgroup: Option<bool>,
}

/// How an entry wants its sources, by the names of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sources {
    pub pre_get_sources_script: String,
    pub post_get_sources_script: String,
    /// Where the repositories are to be had, where it is not the server's own word.
    pub clone_url: String,
    /// `None`: as the executor needs it.
    pub clean_git_config: Option<bool>,
    pub safe_directory_checkout: bool,
    /// A job may choose its project directory.
    pub custom_build_dir: bool,
    /// Zero: as long as the job.
    #[serde(with = "seconds")]
    pub prepare_timeout: Duration,
    /// Zero: as long as the job.
    #[serde(with = "seconds")]
    pub get_sources_timeout: Duration,
}

/// How long an upload of artifacts may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Uploads {
    /// One request, whole.
    #[serde(with = "seconds")]
    pub timeout: Duration,
    /// Once all is sent, until the answer begins.
    #[serde(with = "seconds")]
    pub answer_within: Duration,
}

impl Default for Uploads {
    fn default() -> Uploads {
        Uploads { timeout: Duration::from_secs(3600), answer_within: Duration::from_secs(600) }
    }
}

/// The shell that reads the scripts; decides quoting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shell {
    #[default]
    Bash,
    Sh,
    Dash,
}

impl Shell {
    /// The name in `config.toml`, in the log and on `PATH`.
    pub fn as_str(self) -> &'static str {
        match self {
            Shell::Bash => "bash",
            Shell::Sh => "sh",
            Shell::Dash => "dash",
        }
    }
}

/// The `User-Agent` of every request.
pub fn user_agent() -> String {
    format!("runner {} ({}/{})", env!("CARGO_PKG_VERSION"), platform(), architecture())
}

/// The operating system in Go's words, which servers know.
pub fn platform() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        os => os,
    }
}

/// The processor in Go's words, which servers and scripts know.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "loongarch64" => "loong64",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        arch => arch,
    }
}

/// What a job came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Success,
    Failed,
    Canceled,
}

/// Why a job ended otherwise than well, or why it is told to end. The forges map it to their words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// A script ended with another status than 0.
    Script,
    /// The runner's or the host's fault.
    System,
    /// The job or its configuration asks for what cannot be.
    Configuration,
    /// The job's or the script's time limit.
    TimedOut,
    /// The coordinator asked for it (a person canceled), gracefully.
    Canceled,
    /// The coordinator took the job away.
    Aborted,
    /// The runner was told to stop, by this signal: `terminated` (TERM) or `interrupt` (INT).
    Terminated,
    Interrupted,
    /// The operating system shuts down.
    HostShutdown,
    /// No manager came back within `orphan_until`.
    Orphaned,
    /// The job process died without an outcome.
    Crashed,
    /// The host restarted under the job.
    HostRestarted,
}

/// `outcome.json`: never more than 4 KiB.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub version: u32,
    pub verdict: Verdict,
    /// Absent with success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// The failing command's; -1 when a signal ended it (protocol §4.4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// One line for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Processes that could not be ended, `PID NAME`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub survivors: Vec<String>,
    /// Bytes or records that a full disk swallowed; named in the final report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

impl Outcome {
    pub fn success() -> Outcome {
        Outcome {
            version: VERSION,
            verdict: Verdict::Success,
            why: None,
            exit_code: None,
            message: String::new(),
            survivors: Vec::new(),
            lost: None,
        }
    }

    pub fn failed(why: Why, message: impl Into<String>) -> Outcome {
        let verdict = if why == Why::Canceled { Verdict::Canceled } else { Verdict::Failed };
        Outcome { verdict, why: Some(why), message: message.into(), ..Outcome::success() }
    }
}

/// Manager → job process, one JSON line each: repeatable, the earliest deadline wins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToJob {
    /// End softly; everything is killed after this many milliseconds.
    Cancel {
        why: Why,
        kill_after: u64,
    },
    /// End at once: nothing of the plan runs any more.
    Abort {
        why: Why,
    },
    /// The runner stops; as an abort, with `kill_after` milliseconds for the rest.
    RunnerShutdown {
        why: Why,
        kill_after: u64,
    },
    OperatingSystemShutdown,
}

/// Job process → manager, one JSON line each: hints only, the state is in files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromJob {
    /// There is more in `log`: an edge, at most 10 a second.
    Wrote,
    Stage {
        name: String,
    },
    /// The answer to any message: it was read.
    Heard,
}

mod seconds {
    //! Durations in files: seconds with a fraction.
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_f64(d.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(d)?;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_with_the_same_ids_get_two_names() {
        let a = JobName::new(ForgeKind::Gitlab, "https://a.example/", "7");
        let b = JobName::new(ForgeKind::Gitlab, "https://b.example", "7");
        assert_ne!(a, b);
        assert_eq!(a, JobName::new(ForgeKind::Gitlab, "https://user:pw@A.example", "7"));
        assert!(JobName::new(ForgeKind::Spool, "file:///x", "../../etc").as_str().ends_with("-.._.._etc"));
    }

    #[test]
    fn a_secret_hides_in_debug_output() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }
}
