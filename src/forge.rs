//! The seam between the ranks and the forges: traits and types only. A forge is a [`Coordinator`] with
//! its [`Lease`] for the manager, and a [`Plan`] with its [`Tap`] for the job process.
//!
//! What a forge never does: sleep, retry in a loop, start a process, or import another forge.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use serde::{Deserialize, Serialize};

use crate::jobdir::{JobDir, LeaseRecord};
use crate::model::{Job, JobName, Outcome, Secret, Why};

// ---- The manager's side ----------------------------------------------------------------------

/// One per entry, shared by the workers.
pub trait Coordinator: Send + Sync {
    /// Ask for a job, waiting at the server for `patience` at most (zero: it shall answer at once).
    /// Asking is taking: the answer is read to its end (invariant 1).
    fn poll(&self, patience: Duration) -> Result<Option<Box<dyn Lease>>, Refusal>;
    /// End polls that cannot have a job any more; leases live on.
    fn hang_up(&self, which: HangUp);
    /// Whether a poll is under way that may already have a job, and so must be waited for (design §3).
    fn may_have_a_job(&self) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangUp {
    /// The longest parked long poll only, for the sake of another entry.
    Longest,
    /// Every poll that is safe to cut, now and in future: the runner stops.
    All,
}

/// One job's lease: owned by one thread, never shared, never sleeps.
pub trait Lease: Send {
    /// The directory's name; known from the poll.
    fn name(&self) -> JobName;
    /// What `lease.json` shall hold, its phase as of now. The manager alone writes that file: with the
    /// new directory, when the phase changed in a `confirm`, and `delivered` after `Settled`.
    fn record(&self) -> LeaseRecord;
    /// Known from the poll, or once `confirm` said [`Confirm::Run`].
    fn job(&self) -> Option<&Job>;
    /// One request.
    fn confirm(&mut self, dir: &JobDir, now: Instant) -> Confirm;
    /// One bounded request, the most urgent first. With `ended`: what finishes the job; where it was
    /// not confirmed yet (it came while the runner stops), that is made good first if the server needs it.
    fn attend(&mut self, dir: &JobDir, ended: Option<&Outcome>, now: Instant) -> Attended;
    /// Threads of the lease's own; asked after each call, each is given once.
    fn sides(&mut self, dir: &JobDir) -> Vec<Box<dyn Side>> {
        let _ = dir;
        Vec::new()
    }
    fn heard(&mut self, news: Heard) {
        let _ = news;
    }
}

/// Blocks: a listener, a live console. `Cut` ends it from any thread.
pub trait Side: Send {
    fn cut(&self) -> Cut;
    fn run(self: Box<Self>, tell: Sender<Heard>);
}

/// Ends a [`Side`]; may be called more than once.
pub type Cut = Box<dyn Fn() + Send>;

pub enum Heard {
    Wanted(Wanted),
    /// A second job for the same entry.
    Another(Box<dyn Lease>),
    /// The entry's end.
    Entry(Refusal),
}

pub enum Confirm {
    Run,
    Again {
        at: Instant,
    },
    /// Not to be run, but to be finished at the server.
    Ended {
        why: Why,
    },
    /// The server says, finally, that this job is not ours.
    Gone {
        why: String,
    },
}

#[derive(Debug)]
pub enum Attended {
    Held { wanted: Wanted, due: Due, contact: Contact },
    Settled,
}

/// Whether the server can be reported to. A finished job whose lease has been `Failing` for
/// `deliver_after` leaves its slot and goes on in a deliverer (design §4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// The last request had a usable answer (202 and 416 are some), or none was needed.
    Fine,
    /// It had none: refused, reset, timed out, 5xx.
    Failing,
}

/// When to attend again: not before `soonest` when there is output, else at `at`.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    pub soonest: Instant,
    pub at: Instant,
}

/// What the server wants of a job. Ordered; it only rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wanted {
    Run,
    Cancel { within: Duration },
    Abort(Why),
}

/// Why a poll gave nothing.
#[derive(Clone, Debug)]
pub enum Refusal {
    Again {
        after: Duration,
        healthy: bool,
        why: String,
    },
    /// The entry is done: `exit` is its word in the manager's exit code.
    Retire {
        exit: u8,
        why: String,
    },
}

// ---- The job process's side ------------------------------------------------------------------

/// A state machine: starts nothing, waits for nothing, one thread calls it.
pub trait Plan: Send {
    /// Asked again with [`News::Go`] until it says `Wait` or `Over`.
    fn next(&mut self, news: News, now: Instant) -> Next;
    fn outcome(&mut self) -> Outcome;
}

#[derive(Debug)]
pub enum News {
    Go,
    Ended(Done),
    Stop(Stop),
    Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    pub how: How,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// The plan halts what must end and may go on.
    Soft,
    /// Everything is being halted; the plan may only print and close its records.
    Hard,
}

#[derive(Debug)]
pub enum Next {
    Start(Stage),
    Halt(StageId),
    Wait { until: Option<Instant> },
    Record(Record),
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StageId(pub u32);

/// The step that bytes belong to (0: the job alone), so an inner step writes into its step's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LogId(pub u32);

#[derive(Debug)]
pub struct Stage {
    pub id: StageId,
    pub log: LogId,
    pub name: String,
    pub run: Run,
    /// The stage's own time limit; its ladder follows.
    pub limit: Option<Duration>,
    pub ladder: Ladder,
    /// How long pipes may stay open after the leader was reaped; `None`: until they close
    /// (GitLab: a background child that holds stdout keeps its stage open, build §5.5).
    pub drain: Option<Duration>,
    pub streams: Streams,
    /// Files that are read when the stage has ended, as the stage's user, bounded.
    pub collect: Vec<PathBuf>,
}

#[derive(Debug)]
pub enum Run {
    /// No process, and not through the tap; each element is one write with one time.
    Print(Vec<Vec<u8>>),
    /// Text for the entry's shell.
    Script(Vec<u8>),
    /// `env` is added to what a stage inherits.
    Program { argv: Vec<String>, env: Vec<(String, String)>, dir: PathBuf },
    /// A call of the entry's own program (custom executor).
    Driver(Box<Call>),
    /// End every process of the job (design §5.7); its lines are the stage's output.
    Sweep,
}

/// One call of a driver.
#[derive(Debug, Default)]
pub struct Call {
    pub argv: Vec<String>,
    /// Added to what a stage inherits.
    pub env: Vec<(String, String)>,
    /// The driver's own directory, in which it runs; made when it is not there.
    pub dir: PathBuf,
    /// The directory begins anew.
    pub fresh: bool,
    /// It may run after a hard stop too, as long as its stage's limit allows: it frees what the driver holds.
    pub last: bool,
    /// Put into the directory before.
    pub files: Vec<Given>,
    /// Files of the directory that are written to instead of the log.
    pub stdout: Option<PathBuf>,
    pub stderr: Option<PathBuf>,
}

/// A file that a driver is given.
#[derive(Debug)]
pub struct Given {
    /// Within the driver's directory.
    pub name: PathBuf,
    pub content: Vec<u8>,
    pub mode: u32,
}

/// How a stage's output is told apart in the log; masks and half lines are kept by stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// The runner's own voice. Prints with the same number continue each other's lines, also from
    /// stage to stage; its last half line is flushed by [`Streams::Voice`] prints of another number
    /// or the end of the job.
    Voice(u8),
    /// stdout and stderr on one pipe, in the order of a terminal.
    One,
    /// Two pipes, read by the one pump.
    Two,
}

/// The signals that end a stage, to its process group: each with the wait before the next.
/// After the last the stage is given up and named as a survivor.
#[derive(Clone, Debug)]
pub struct Ladder(pub Vec<(Signal, Duration)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Int,
    Term,
    Kill,
}

#[derive(Debug)]
pub struct Done {
    pub id: StageId,
    pub end: End,
    /// Set when the end was asked for.
    pub halted: Option<Halted>,
    pub collected: Vec<Collected>,
    pub said: Vec<Said>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Signaled(i32),
    /// It could not be started; the text names program and error.
    NotStarted(String),
    /// The ladder was used up and it still lives.
    Unkillable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halted {
    /// The stage's own limit.
    Limit,
    /// [`Next::Halt`].
    Plan,
    /// A hard stop.
    Stop,
}

#[derive(Debug)]
pub struct Collected {
    pub path: PathBuf,
    pub content: io::Result<Vec<u8>>,
}

/// One for the whole job; lives in the pump.
pub trait Tap: Send {
    fn began(&mut self, stage: &Stage);
    fn line(&mut self, from: (StageId, Stream), line: &[u8], put: &mut Vec<Put>);
    fn ended(&mut self, stage: StageId);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    Out,
    Err,
}

#[derive(Debug)]
pub enum Put {
    Line(Vec<u8>),
    Mask(Secret),
    Said(Said),
}

/// What a tap heard; the pump adds the line's number in its step's log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Said {
    pub name: String,
    pub properties: Vec<(String, String)>,
    pub text: String,
    #[serde(default)]
    pub line: u64,
}

/// A row of `records.jsonl`, appended before the fact shows elsewhere. Forges with steps fill it;
/// the pump alone writes `log` rows, the loop all others, each by one append.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "row", rename_all = "lowercase")]
pub enum Record {
    /// From this offset on the log belongs to step `step`, whose line `line` comes first.
    Log {
        offset: u64,
        step: LogId,
        line: u64,
    },
    /// What changed of a step; its fields are the forge's.
    Step {
        id: String,
        number: u32,
        fields: serde_json::Value,
    },
    File {
        path: String,
        fields: serde_json::Value,
    },
    /// The job's outputs and the like.
    End {
        fields: serde_json::Value,
    },
}

/// Everything that a job process needs of its forge (`forges::plan`).
pub struct Script {
    pub plan: Box<dyn Plan>,
    pub tap: Option<Box<dyn Tap>>,
    pub format: Format,
    pub masks: Vec<Secret>,
    pub wipe: Wipe,
}

/// Files with secrets that a stage removes when all goes well, and the job process whatever happened.
#[derive(Clone, Debug, Default)]
pub struct Wipe {
    /// No symbolic link below it is followed.
    pub below: PathBuf,
    pub files: Vec<PathBuf>,
}

/// How the bytes of the log are framed and limited, all before the first is stored (invariant 4).
#[derive(Clone, Debug, Default)]
pub struct Format {
    pub framing: Framing,
    /// Cut output into lines for the tap (a line over 4 MiB comes in pieces, which are no commands).
    pub lines: bool,
    /// Bytes that are kept, the framing counted; then one notice and no more.
    pub limit: Option<u64>,
    /// Mask the values of credential parameters of URLs (build §8.3).
    pub url_parameters: bool,
    /// Prefixes of tokens whose rest is masked (build §8.3), as they are to be used.
    pub token_prefixes: Vec<String>,
    /// Replace invalid UTF-8 by U+FFFD.
    pub repair_utf8: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    #[default]
    Bare,
    /// GitLab's FF_TIMESTAMPS (build §8.4).
    Timestamps,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("format", &self.format).finish_non_exhaustive()
    }
}

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Heard::Wanted(w) => f.debug_tuple("Wanted").field(w).finish(),
            Heard::Another(l) => f.debug_tuple("Another").field(&l.name()).finish(),
            Heard::Entry(r) => f.debug_tuple("Entry").field(r).finish(),
        }
    }
}

impl fmt::Debug for Confirm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Confirm::Run => f.write_str("Run"),
            Confirm::Again { .. } => f.write_str("Again"),
            Confirm::Ended { why } => write!(f, "Ended({why:?})"),
            Confirm::Gone { why } => write!(f, "Gone({why})"),
        }
    }
}
