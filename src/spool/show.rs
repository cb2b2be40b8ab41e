//! Shows a job's log on stdout while it grows, for demos and `runner exec`. Reads `log` as anybody may;
//! what cannot be shown (a reader that went away) is no fault of the job.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::config::ShowLogs;
use crate::jobdir::{self, JobDir};
use crate::model::{Outcome, Verdict};

/// Bytes that are shown in one go; a lease must not be kept from its renewal for long.
const PIECE: usize = 64 * 1024;

pub(super) struct Show {
    name: String,
    how: ShowLogs,
    /// What was shown, kept in `sent` for the next manager.
    offset: Option<u64>,
    /// Named lines are shown whole; this is the part that has no end yet.
    half: Vec<u8>,
}

impl Show {
    pub(super) fn new(name: &str, how: ShowLogs) -> Show {
        Show { name: name.to_owned(), how, offset: None, half: Vec::new() }
    }

    /// What is new.
    pub(super) fn more(&mut self, dir: &JobDir) {
        let mut offset = self.begin(dir);
        let Ok(log) = jobdir::plain(&dir.file("log"), File::options().read(true)) else { return };
        let mut piece = vec![0; PIECE];
        while let Ok(n @ 1..) = log.read_at(&mut piece, offset) {
            offset += n as u64;
            let text = self.framed(&piece[..n]);
            print(&text);
        }
        if self.offset.replace(offset) != Some(offset) {
            let _ = dir.note_sent(&(offset - self.half.len() as u64).to_le_bytes());
        }
    }

    pub(super) fn end(&mut self, dir: &JobDir, outcome: &Outcome, done: &Path) {
        self.more(dir);
        if !self.half.is_empty() {
            let rest = self.framed(b"\n");
            print(&rest);
        }
        if self.how == ShowLogs::Bare {
            return;
        }
        let how = match (outcome.verdict, outcome.exit_code) {
            (Verdict::Success, _) => "succeeded".to_owned(),
            (Verdict::Canceled, _) => "was canceled".to_owned(),
            (Verdict::Failed, Some(code)) => format!("failed with exit code {code}"),
            (Verdict::Failed, None) => format!("failed: {}", outcome.message),
        };
        let (name, done) = (&self.name, done.display());
        print(format!("── {name} {how}\n   log:    {done}/log\n   result: {done}/result.json\n\n").as_bytes());
    }

    fn begin(&mut self, dir: &JobDir) -> u64 {
        if let Some(offset) = self.offset {
            return offset;
        }
        let sent = dir.sent().try_into().map_or(0, u64::from_le_bytes);
        self.offset = Some(sent);
        if sent == 0 && self.how != ShowLogs::Bare {
            print(format!("── {}\n", self.name).as_bytes());
        }
        sent
    }

    fn framed(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.how != ShowLogs::Named {
            return bytes.to_vec();
        }
        self.half.extend_from_slice(bytes);
        let end = self.half.iter().rposition(|&b| b == b'\n').map_or(0, |n| n + 1);
        let rest = self.half.split_off(end);
        let lines = std::mem::replace(&mut self.half, rest);
        let mut out = Vec::with_capacity(lines.len() * 2);
        for line in lines.split_inclusive(|&b| b == b'\n') {
            out.extend_from_slice(self.name.as_bytes());
            out.extend_from_slice(b" | ");
            out.extend_from_slice(line);
        }
        out
    }
}

fn print(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_lines_are_whole() {
        let mut show = Show::new("x", ShowLogs::Named);
        assert_eq!(show.framed(b"a\nb"), b"x | a\n");
        assert_eq!(show.framed(b"c"), b"");
        assert_eq!(show.framed(b"\nd\n"), b"x | bc\nx | d\n");
        assert_eq!(Show::new("x", ShowLogs::Plain).framed(b"a\nb"), b"a\nb");
    }
}
