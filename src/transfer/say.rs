//! The lines that a transfer writes into the job's log: the runner's own format with its colours, on
//! stderr (build §5.7), so that people and log scrapers find what they know. Decides nothing.

use std::io::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Info,
    Warning,
    Error,
    /// The last line before the command fails.
    Fatal,
}

/// One line: its text, and fields that are shown sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub level: Level,
    pub text: String,
    pub fields: Vec<(&'static str, String)>,
}

impl Line {
    pub fn new(level: Level, text: impl Into<String>) -> Line {
        Line { level, text: text.into(), fields: Vec::new() }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Line {
        self.fields.push((name, value.into()));
        self
    }

    /// The bytes of the line.
    pub fn show(&self) -> Vec<u8> {
        let (prefix, paint) = match self.level {
            Level::Info => ("", ""),
            Level::Warning => ("WARNING: ", "\x1b[0;33m"),
            Level::Error => ("ERROR: ", "\x1b[31;1m"),
            Level::Fatal => ("FATAL: ", "\x1b[31;1m"),
        };
        let text = self.text.replace('\r', "\\r").replace('\n', "\\n");
        let width = 50 - prefix.len();
        let mut out = format!("{paint}{prefix}{text:<width$}\x1b[0;m ").into_bytes();
        let mut fields: Vec<_> = self.fields.iter().collect();
        fields.sort();
        for (name, value) in fields {
            let _ = write!(out, " {paint}{name}\x1b[0;m={}", value.replace('\n', "\\n"));
        }
        out.push(b'\n');
        out
    }
}

/// In one write, so that lines of several threads do not mix.
pub fn say(line: &Line) {
    let _ = std::io::stderr().lock().write_all(&line.show());
}

pub fn info(text: impl Into<String>) {
    say(&Line::new(Level::Info, text));
}

pub fn warn(text: impl Into<String>) {
    say(&Line::new(Level::Warning, text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_bytes_of_the_recordings() {
        let line = |level, text: &str| Line::new(level, text);
        for (line, want) in [
            (
                line(Level::Info, "Downloading artifacts from coordinator... ok")
                    .with("status", "200")
                    .with("id", "1001"),
                "Downloading artifacts from coordinator... ok      \x1b[0;m  id\x1b[0;m=1001 status\x1b[0;m=200\n",
            ),
            (line(Level::Info, "f: found"), &format!("f: found{}\x1b[0;m \n", " ".repeat(42))),
            (
                line(Level::Error, "No files to upload"),
                "\x1b[31;1mERROR: No files to upload                         \x1b[0;m \n",
            ),
            (
                line(Level::Warning, "x\ny").with("a", "b"),
                &format!("\x1b[0;33mWARNING: x\\ny{}\x1b[0;m  \x1b[0;33ma\x1b[0;m=b\n", " ".repeat(37)),
            ),
            (
                line(Level::Fatal, "too large"),
                "\x1b[31;1mFATAL: too large                                  \x1b[0;m \n",
            ),
        ] {
            assert_eq!(String::from_utf8(line.show()).unwrap(), want);
        }
    }
}
