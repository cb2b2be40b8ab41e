//! The last words of a job process that is gone without an outcome, said by the next one that holds the
//! lock: through the job's masks and framing, so that a crash text quotes no secret (kill points 12 and
//! 13). Runs nothing of the job.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::SystemTime;

use super::log::{Log, Source};
use super::wipe::wipe;
use crate::forge::Script;
use crate::forges;
use crate::jobdir::{self, CrashNote, JobDir};
use crate::model::{Outcome, Secret, Why};

/// The voice in which the runner speaks of the job's end.
const VOICE: Source = Source::Voice(0);
/// So much of the end of `stderr` is shown.
const LAST: u64 = 8 * 1024;

pub(super) fn report(dir: &JobDir, note: CrashNote) -> Outcome {
    // Without the job's masks nothing of it is quoted, and the outcome has to do.
    if let Ok(script) = dir.job().and_then(|job| forges::plan(&job).map_err(io::Error::other)) {
        wipe(&script.wipe);
        let _ = log_of(dir, script).map(|log| say(log, dir, &note));
    }
    Outcome { survivors: note.survivors, ..Outcome::failed(note.why, note.message) }
}

fn log_of(dir: &JobDir, script: Script) -> io::Result<Log> {
    let mut masks = script.masks;
    masks.extend(dir.masks().into_iter().map(Secret::new));
    Log::resume(dir.open_log()?, script.format, masks)
}

fn say(mut log: Log, dir: &JobDir, note: &CrashNote) {
    let now = SystemTime::now();
    let last = last_lines(dir);
    if !last.is_empty() {
        log.write(VOICE, last.as_bytes(), now);
    }
    let kind = match note.why {
        Why::Canceled | Why::Aborted | Why::TimedOut => "",
        _ => " (system failure)",
    };
    let mut text = format!("\x1b[31;1mERROR: Job failed{kind}: {}\x1b[0;m\n", note.message);
    for process in &note.survivors {
        text = format!("\x1b[0;33mWARNING: a process could not be ended: {process}\x1b[0;m\n{text}");
    }
    log.write(VOICE, text.as_bytes(), now);
    log.finish();
}

/// What the dead one wrote to its `stderr` at last, as one statement: a secret may have several lines.
fn last_lines(dir: &JobDir) -> String {
    let read = || -> io::Result<(bool, Vec<u8>)> {
        let mut file = jobdir::plain(&dir.file("stderr"), File::options().read(true))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST)))?;
        let mut text = Vec::new();
        file.take(LAST).read_to_end(&mut text)?;
        Ok((length > LAST, text))
    };
    let Ok((cut, text)) = read() else { return String::new() };
    let text = String::from_utf8_lossy(&text);
    // Half a line may begin with half a secret, which no mask knows.
    let lines = text.lines().skip(usize::from(cut)).filter(|l| !l.trim().is_empty());
    lines.map(|l| format!("{l}\n")).collect()
}
