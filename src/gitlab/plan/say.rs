//! The runner's own lines in the log, byte for byte as GitLab's page and people's scrapers know them
//! (build §1.7): headings, section markers, notices, endings. Writes nothing anywhere.

use std::time::{SystemTime, UNIX_EPOCH};

/// An ordinary line of the runner.
pub(super) fn plain(text: &str) -> Vec<u8> {
    format!("\x1b[0K{text}\x1b[0;m\n").into_bytes()
}

/// A green line: a good ending, a word about the job, a notice of a stage.
pub(super) fn info(text: &str) -> Vec<u8> {
    format!("\x1b[32;1m{text}\x1b[0;m\n").into_bytes()
}

pub(super) fn warning(text: &str) -> Vec<u8> {
    format!("\x1b[0;33mWARNING: {text}\x1b[0;m\n").into_bytes()
}

pub(super) fn error(text: &str) -> Vec<u8> {
    format!("\x1b[31;1mERROR: {text}\x1b[0;m\n").into_bytes()
}

/// The first line of a section.
pub(super) fn banner(text: &str) -> Vec<u8> {
    plain(&format!("\x1b[36;1m{text}\x1b[0;m"))
}

/// A section's markers end in `\r` and no newline: the next line continues them.
pub(super) fn section_start(name: &str) -> Vec<u8> {
    marker("start", name)
}

pub(super) fn section_end(name: &str) -> Vec<u8> {
    marker("end", name)
}

fn marker(what: &str, name: &str) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("section_{what}:{now}:{name}\r\x1b[0K").into_bytes()
}

/// What stands behind the end of a stage that met its deadline.
pub(super) fn cut_short(stage: &str) -> Vec<u8> {
    warning(&format!(
        "{stage} could not run to completion because the timeout was exceeded. For more control over job and script \
         timeouts see: https://docs.gitlab.com/ci/runners/configure_runners/#set-script-and-after_script-timeouts"
    ))
}

/// The words for a signal that ended a shell, as Go's library says them and scrapers expect them.
pub(super) fn signal(number: i32) -> String {
    let name = match number {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        _ => return format!("signal: signal {number}"),
    };
    format!("signal: {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_bytes_of_the_recordings() {
        assert_eq!(plain("Using Shell (bash) executor..."), b"\x1b[0KUsing Shell (bash) executor...\x1b[0;m\n");
        assert_eq!(banner("Preparing environment"), b"\x1b[0K\x1b[36;1mPreparing environment\x1b[0;m\x1b[0;m\n");
        assert_eq!(info("Job succeeded"), b"\x1b[32;1mJob succeeded\x1b[0;m\n");
        assert_eq!(error("Job failed: exit status 4"), b"\x1b[31;1mERROR: Job failed: exit status 4\x1b[0;m\n");
        assert_eq!(warning("x"), b"\x1b[0;33mWARNING: x\x1b[0;m\n");
        let start = String::from_utf8(section_start("step_script")).unwrap();
        assert!(start.starts_with("section_start:1") && start.ends_with(":step_script\r\x1b[0K"), "{start:?}");
    }
}
