//! Where a job lives: its directory with what the manager handed over, its plan, and its words where
//! neither pump nor plan can say them. Runs nothing.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::log::{Log, Source};
use super::mask::{Mask, Masks, Room};
use super::start::Handed;
use crate::clock::{BootTime, Timing, boot_id};
use crate::diag;
use crate::executor::manner::Manner;
use crate::forge::{Format, Script};
use crate::forges;
use crate::jobdir::{JobDir, Started};
use crate::model::{Outcome, Secret, Shell, VERSION, Why};
use crate::process::stage::Oom;
use crate::process::table;

/// What a job process stands on, whoever made its plan.
#[derive(Debug)]
pub struct Place {
    pub dir: JobDir,
    pub control: Option<UnixListener>,
    /// Readable once the process was sent TERM.
    pub term: Option<OwnedFd>,
    pub oom: Option<Oom>,
    pub started: BootTime,
    /// `NAME=VALUE` in the environment of every stage.
    pub tag: String,
    /// The job's time limit, from `started`.
    pub timeout: Duration,
    pub shell: Shell,
    pub manner: Manner,
    pub keep_processes: bool,
    pub timing: Timing,
}

/// Say that the job has begun, then read it and make its plan. An error is the whole job.
pub(super) fn prepare(dir: &JobDir, handed: Handed) -> Result<(Place, Script), (Why, String)> {
    let system = |e: io::Error| (Why::System, e.to_string());
    let pid = std::process::id();
    let start_time = table::stat(pid).map_err(system)?.start_time;
    let tag = format!("RUNNER_JOB={}-{}", dir.name(), nonce().map_err(system)?);
    let at = BootTime::now();
    diag::point("job-begun");
    let started = Started { version: VERSION, boot_id: boot_id(), at, pid, start_time, tag: tag.clone(), cgroup: None };
    dir.write_started(&started).map_err(system)?;
    diag::point("job-started");
    let mut job = dir.job().map_err(system)?;
    job.settings.cache = dir.take_cache();
    let state = dir.path().ancestors().nth(2).unwrap_or(Path::new("/"));
    let name = tag.split_once('=').map_or(tag.as_str(), |(_, value)| value);
    let manner = Manner::of(&job.settings, state, name).map_err(|text| (Why::System, text))?;
    job.settings.notes = manner.notes();
    if let Some(custom) = &mut job.settings.custom {
        custom.dir = dir.file("custom-executor");
    }
    if let Some(leaf) = &manner.leaf {
        // Before anything is in it: who finds this process dead ends what is.
        dir.write_started(&Started { cgroup: Some(leaf.path().to_owned()), ..started }).map_err(system)?;
    }
    let script = forges::plan(&job).map_err(|text| (Why::Configuration, text))?;
    let place = Place {
        dir: dir.again().map_err(system)?,
        control: Some(handed.control),
        term: Some(handed.term),
        oom: handed.oom.map(|oom| oom.with(job.settings.limits.oom_score_adj)),
        started: at,
        tag,
        timeout: job.timeout,
        shell: job.settings.shell,
        manner,
        keep_processes: job.settings.keep_processes,
        timing: Timing::load(),
    };
    Ok((place, script))
}

/// A job that never came to a plan: its one line is its log.
pub(super) fn stillborn(dir: &JobDir, why: Why, text: String) -> Outcome {
    if let Ok(file) = dir.open_log() {
        let mut log = Log::new(file, Format { repair_utf8: true, ..Format::default() }, Vec::new());
        log.write(Source::Voice(0), format!("{text}\n").as_bytes(), SystemTime::now());
        log.finish();
    }
    Outcome::failed(why, text)
}

/// Hides in a text what the log would hide.
pub(super) struct Words {
    format: Format,
    masks: Vec<Secret>,
}

impl Words {
    pub(super) fn new(script: &Script) -> Words {
        Words { format: script.format.clone(), masks: script.masks.clone() }
    }

    /// With what became secret while the job ran.
    pub(super) fn hide(mut self, text: &str, dir: &JobDir) -> String {
        self.masks.extend(dir.masks().into_iter().map(Secret::new));
        let masks = Masks::new(&self.format, &self.masks);
        let (mut mask, mut room) = (Mask::default(), Room::default());
        let mut hidden = mask.pass(&masks, text.as_bytes(), &mut room).to_vec();
        hidden.extend_from_slice(mask.end(&masks, &mut room));
        String::from_utf8_lossy(&hidden).into_owned()
    }
}

/// Tells this job's processes from those of the same job's other runs.
fn nonce() -> io::Result<String> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
