//! The process table, as /proc shows it. A view that is old when it is returned: who acts on it holds
//! a pidfd and looks again.

use std::fs;
use std::io;

/// What `/proc/PID/stat` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: u32,
    pub comm: String,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    /// In clock ticks since boot.
    pub start_time: u64,
    /// It ended, its parent has not heard of it yet.
    pub zombie: bool,
}

pub fn stat(pid: u32) -> io::Result<Stat> {
    let bytes = fs::read(format!("/proc/{pid}/stat"))?;
    parse(&String::from_utf8_lossy(&bytes))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat: not understood")))
}

/// Every process that can be seen; those that end meanwhile are left out.
pub fn all() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| stat(pid).ok()).collect()
}

/// Whether the process was started with this `NAME=VALUE` in its environment. One that may not be read
/// (another user's, an undumpable one) counts as without.
pub fn has_in_environment(pid: u32, entry: &str) -> bool {
    let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    environ.split(|b| *b == 0).any(|e| e == entry.as_bytes())
}

/// The name may hold anything, brackets and blanks too: the last bracket ends it.
fn parse(text: &str) -> Option<Stat> {
    let (pid, rest) = text.split_once(" (")?;
    let (comm, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |n: usize| fields.get(n)?.parse().ok();
    Some(Stat {
        pid: pid.parse().ok()?,
        comm: comm.to_owned(),
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        start_time: fields.get(19)?.parse().ok()?,
        // A process whose first thread has ended while others run shows as Z with more than one thread.
        zombie: matches!(*fields.first()?, "Z" | "X") && number(17)? <= 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name_is() {
        let tail = "1 2 3 0 -1 4194560 5 0 0 0 1 2 0 0 20 0 1 0 987654 1 2 3";
        for (line, comm, zombie) in [
            (format!("42 (bash) S {tail}"), "bash", false),
            (format!("42 (a) (b c) R {tail}"), "a) (b c", false),
            (format!("42 (gone) Z {tail}"), "gone", true),
            (format!("42 (half) Z {}", tail.replace(" 20 0 1 ", " 20 0 3 ")), "half", false),
        ] {
            let comm = comm.to_owned();
            let want = Stat { pid: 42, comm, parent: 1, group: 2, session: 3, start_time: 987_654, zombie };
            assert_eq!(parse(&line), Some(want), "{line}");
        }
        assert_eq!(parse("42 (cut"), None);
    }

    #[test]
    fn this_process_is_in_the_table() {
        let pid = std::process::id();
        assert!(all().iter().any(|s| s.pid == pid && !s.zombie));
    }
}
