//! `runner exec`: single job files in the foreground, on the production path: a spool, a state directory
//! and a configuration of their own, all of them removed at the end. What is printed on stdout is the
//! jobs' log and nothing else.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Deserialize;

use super::say;
use crate::config;
use crate::diag::logging;
use crate::model::Verdict;
use crate::supervisor::{self, Signals};

/// A job file that is none (sysexits `EX_DATAERR`).
const NO_JOB: u8 = 65;
/// As a shell says it of a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

pub(super) fn exec(files: &[PathBuf]) -> u8 {
    let round = match Round::make(files) {
        Ok(round) => Arc::new(round),
        Err(e) => {
            say(&format!("runner: {e}"));
            return NO_JOB;
        }
    };
    let code = round.run();
    let _ = fs::remove_dir_all(&round.root);
    code
}

struct Round {
    root: PathBuf,
    /// In the order of the arguments, which is that of their names.
    jobs: Vec<String>,
    interrupts: AtomicUsize,
}

impl Round {
    fn make(files: &[PathBuf]) -> io::Result<Round> {
        let root = private_directory()?;
        let round = Round { jobs: names(files), root, interrupts: AtomicUsize::new(0) };
        let filled = round.fill(files);
        if filled.is_err() {
            let _ = fs::remove_dir_all(&round.root);
        }
        filled.map(|()| round)
    }

    fn fill(&self, files: &[PathBuf]) -> io::Result<()> {
        let pending = self.root.join("spool/pending");
        fs::create_dir_all(&pending)?;
        for (file, name) in files.iter().zip(&self.jobs) {
            let said = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", file.display()));
            let text = fs::read(file).map_err(said)?;
            fs::write(pending.join(format!("{name}.json")), text)?;
        }
        fs::write(self.root.join("config.toml"), self.config())
    }

    fn config(&self) -> String {
        let root = self.root.display();
        format!(
            "concurrent = 1\ncheck_interval = \"100ms\"\nlog_level = \"warning\"\nstate_dir = '{root}/state'\n\
             [[runners]]\nname = \"exec\"\nexecutor = \"shell\"\nurl = 'file://{root}/spool'\nlimit = 1\n\
             show_logs = \"bare\"\nexit_when_empty = true\n"
        )
    }

    fn run(self: &Arc<Round>) -> u8 {
        let config = match config::load(&self.root.join("config.toml")) {
            Ok(config) => config,
            Err(e) => {
                say(&format!("runner: {e}"));
                return super::CONFIG;
            }
        };
        logging::apply(config.log_level, config.log_format);
        let round = Arc::clone(self);
        if let Err(e) = ctrlc::set_handler(move || round.interrupted()) {
            say(&format!("runner: Ctrl-C will not cancel the job: {e}"));
        }
        let code = supervisor::run(config, Signals::Ending);
        self.jobs.iter().map(|name| self.result(name, code)).find(|code| *code != 0).unwrap_or(0)
    }

    /// The first Ctrl-C cancels as a person would at a server, the second aborts, the third leaves.
    fn interrupted(&self) {
        let wish = match self.interrupts.fetch_add(1, Ordering::SeqCst) {
            0 => {
                say("runner: canceling the job; once more aborts it");
                "cancel"
            }
            1 => {
                say("runner: aborting the job; once more leaves it alone");
                "abort"
            }
            _ => std::process::exit(i32::from(INTERRUPTED)),
        };
        let spool = self.root.join("spool");
        for name in &self.jobs {
            // One that is not claimed yet shall not begin any more; else the wish stands beside its claim.
            let _ = fs::remove_file(spool.join(format!("pending/{name}.json")));
            if !spool.join("done").join(name).exists() {
                let _ = File::create(spool.join(format!("running/{name}.{wish}")));
            }
        }
    }

    fn result(&self, name: &str, manager: u8) -> u8 {
        let spool = self.root.join("spool");
        if let Ok(reason) = fs::read_to_string(spool.join(format!("failed/{name}.reason"))) {
            say(&format!("runner: {name}.json: {}", reason.trim_end()));
            return NO_JOB;
        }
        let result = fs::read(spool.join("done").join(name).join("result.json"));
        match result.ok().and_then(|text| serde_json::from_slice::<Ended>(&text).ok()) {
            Some(ended) => ended.code(),
            None if self.interrupts.load(Ordering::SeqCst) > 0 => INTERRUPTED,
            None => manager.max(1),
        }
    }
}

/// What we need of `result.json`.
#[derive(Deserialize)]
struct Ended {
    state: Verdict,
    #[serde(default)]
    exit_code: Option<i32>,
}

impl Ended {
    fn code(&self) -> u8 {
        match self.state {
            Verdict::Success => 0,
            Verdict::Canceled => INTERRUPTED,
            Verdict::Failed => self.exit_code.and_then(|code| u8::try_from(code).ok()).filter(|c| *c > 0).unwrap_or(1),
        }
    }
}

/// The files' own names, with a number before them where their order would be another.
fn names(files: &[PathBuf]) -> Vec<String> {
    let stem = |f: &PathBuf| {
        let stem = f.file_stem().map(|s| s.to_string_lossy().replace('@', "_")).unwrap_or_default();
        if stem.starts_with('.') || stem.is_empty() { format!("job{stem}") } else { stem }
    };
    let plain: Vec<String> = files.iter().map(stem).collect();
    if plain.is_sorted_by(|a, b| a < b) {
        return plain;
    }
    let width = files.len().to_string().len();
    plain.iter().enumerate().map(|(n, stem)| format!("{:0width$}-{stem}", n + 1)).collect()
}

/// Readable for us alone; a name that is taken by another is not used.
fn private_directory() -> io::Result<PathBuf> {
    let base = std::env::temp_dir();
    let base = if base.is_absolute() { base } else { Path::new("/tmp").to_owned() };
    let mut last = None;
    for n in 0..100 {
        let dir = base.join(format!("runner-exec-{}-{n}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) => last = Some(io::Error::new(e.kind(), format!("{}: {e}", dir.display()))),
        }
    }
    Err(last.expect("the loop was entered"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_keep_the_order_of_the_arguments() {
        for (files, want) in [
            (vec!["b.json"], vec!["b"]),
            (vec!["x/a.json", "b.json"], vec!["a", "b"]),
            (vec!["b.json", "a.json"], vec!["1-b", "2-a"]),
            (vec!["a.json", "x/a.json"], vec!["1-a", "2-a"]),
            (vec![".a.json", "a@b.json"], vec!["1-job.a", "2-a_b"]),
        ] {
            let files: Vec<PathBuf> = files.into_iter().map(PathBuf::from).collect();
            assert_eq!(names(&files), want);
        }
    }

    #[test]
    fn the_exit_code_is_the_job_s() {
        for (result, want) in [
            (r#"{"state":"success"}"#, 0),
            (r#"{"state":"failed","exit_code":3}"#, 3),
            (r#"{"state":"failed","exit_code":-1}"#, 1),
            (r#"{"state":"failed","exit_code":0}"#, 1),
            (r#"{"state":"failed"}"#, 1),
            (r#"{"state":"canceled","exit_code":3}"#, 130),
        ] {
            assert_eq!(serde_json::from_str::<Ended>(result).unwrap().code(), want, "{result}");
        }
    }
}
