//! `cache-archiver` and `cache-extractor`, which stages call: the reference's flags and environment in,
//! exit code out. Flags that only tune the reference's own transfers are taken and left aside.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

use super::artifacts::platform;
use crate::clock::Timing;
use crate::config;
use crate::model::Secret;
use crate::transfer::archive::{Effort, Format};
use crate::transfer::cache::{Archive, Calls, Extract, archive, extract};
use crate::transfer::say::{self, Level, Line};
use crate::transfer::select::Wanted;

/// After the first try.
const RETRIES: u32 = 2;
/// Minutes for one request.
const TIMEOUT: u64 = 10;

pub(super) fn archiver(args: impl Iterator<Item = OsString>) -> u8 {
    platform();
    ended(Flags::read(args).and_then(|flags| archive(&flags.archive()?, &config::environment)))
}

pub(super) fn extractor(args: impl Iterator<Item = OsString>) -> u8 {
    platform();
    ended(Flags::read(args).and_then(|flags| extract(&flags.extract()?)))
}

fn ended(result: Result<(), Line>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(line) => {
            say::say(&line);
            1
        }
    }
}

fn fatal(text: impl Into<String>) -> Line {
    Line::new(Level::Fatal, text)
}

/// What either command was told.
#[derive(Debug, Default)]
struct Flags {
    values: HashMap<&'static str, String>,
    paths: Vec<String>,
    exclude: Vec<String>,
    headers: Vec<(String, String)>,
    untracked: bool,
    /// Of `--env-file`.
    file: HashMap<String, String>,
}

/// Those that take a value, one each.
const VALUES: [&str; 20] = [
    "file",
    "alternate-file",
    "url",
    "alternate-url",
    "check-url",
    "head-url",
    "alternate-head-url",
    "gocloud-url",
    "alternate-gocloud-url",
    "timeout",
    "retry",
    "retry-time",
    "metadata",
    "compression-level",
    "compression-format",
    "max-uploaded-archive-size",
    "transfer-meter-frequency",
    "transfer-buffer-size",
    "chunk-size",
    "concurrency",
];

impl Flags {
    fn read(args: impl Iterator<Item = OsString>) -> Result<Flags, Line> {
        let mut flags = Flags::default();
        let mut parser = lexopt::Parser::from_args(args);
        let wrong = |e: lexopt::Error| fatal(e.to_string());
        while let Some(arg) = parser.next().map_err(wrong)? {
            let Long(name) = arg else { return Err(wrong(arg.unexpected())) };
            let known = VALUES.iter().find(|known| **known == name);
            match name {
                "untracked" => flags.untracked = true,
                "verbose" => {}
                "path" => flags.paths.push(text(&mut parser)?),
                "exclude" => flags.exclude.push(text(&mut parser)?),
                "header" => {
                    let header = text(&mut parser)?;
                    let (name, value) = header.split_once(':').ok_or_else(|| {
                        fatal(format!("--header {header:?}: a header has a name, a colon and a value"))
                    })?;
                    flags.headers.push((name.trim().to_owned(), value.trim().to_owned()));
                }
                "env-file" => {
                    let path = text(&mut parser)?;
                    let lines = std::fs::read_to_string(&path).map_err(|e| fatal(format!("{path}: {e}")))?;
                    flags.file.extend(lines.lines().filter_map(variable));
                }
                _ => match known {
                    Some(known) => drop(flags.values.insert(known, text(&mut parser)?)),
                    None => return Err(wrong(arg.unexpected())),
                },
            }
        }
        Ok(flags)
    }

    /// A flag, or the variable that stands for it.
    fn get(&self, flag: &str, variable: &str) -> Option<String> {
        let set = self.values.get(flag).cloned().or_else(|| self.file.get(variable).cloned());
        set.or_else(|| config::environment(variable)).filter(|v| !v.is_empty())
    }

    fn number(&self, flag: &str, variable: &str) -> Result<Option<u64>, Line> {
        let text = self.get(flag, variable);
        let read = |t: String| t.parse().map_err(|_| fatal(format!("--{flag} {t:?}: expected a whole number")));
        text.map(read).transpose()
    }

    fn file(&self) -> Result<PathBuf, Line> {
        self.get("file", "").map(PathBuf::from).ok_or_else(|| fatal("Missing cache file"))
    }

    fn calls(&self) -> Result<Calls, Line> {
        if self.get("gocloud-url", "").is_some() {
            return Err(fatal("--gocloud-url is not supported, only signed URLs (--url) are"));
        }
        let timing = Timing::load();
        let minutes = self.number("timeout", "")?.filter(|n| *n > 0).unwrap_or(TIMEOUT);
        let seconds = self.number("retry-time", "")?;
        let retries = self.number("retry", "")?.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Ok(Calls {
            timeout: Duration::from_secs(minutes.saturating_mul(60)),
            retries: retries.unwrap_or(RETRIES),
            pause: seconds.map_or(timing.backoff_min, Duration::from_secs),
            ca: config::environment("CI_SERVER_TLS_CA_FILE").map(PathBuf::from),
        })
    }

    fn archive(self) -> Result<Archive, Line> {
        let level = self.get("compression-level", "CACHE_COMPRESSION_LEVEL").unwrap_or_default();
        let effort = Effort::from_name(&level).unwrap_or_else(|| {
            say::warn(format!("compression level {level:?} is invalid, falling back to default"));
            Effort::default()
        });
        let format = self.get("compression-format", "CACHE_COMPRESSION_FORMAT").unwrap_or_default();
        let known = [Format::Zip, Format::ZipZstd, Format::TarZstd];
        let format = Format::from_name(&format).filter(|f| known.contains(f)).unwrap_or(Format::Zip);
        Ok(Archive {
            root: here()?,
            file: self.file()?,
            alternate: self.get("alternate-file", "").map(PathBuf::from),
            format,
            effort,
            metadata: self.get("metadata", "CACHE_METADATA"),
            max_size: self.number("max-uploaded-archive-size", "CACHE_MAX_UPLOADED_ARCHIVE_SIZE")?.unwrap_or(0),
            url: self.get("url", "RUNNER_CACHE_URL").map(Secret::new),
            check_url: self.get("check-url", "RUNNER_CACHE_CHECK_URL").map(Secret::new),
            call: self.calls()?,
            headers: self.headers,
            wanted: Wanted { paths: self.paths, exclude: self.exclude, untracked: self.untracked },
        })
    }

    fn extract(self) -> Result<Extract, Line> {
        let temp = config::environment("RUNNER_TEMP_PROJECT_DIR").map(PathBuf::from);
        Ok(Extract {
            root: here()?,
            file: self.file()?,
            temp: temp.filter(|t| t.is_absolute()),
            url: self.get("url", "RUNNER_CACHE_URL").map(Secret::new),
            alternate_url: self.get("alternate-url", "RUNNER_CACHE_ALTERNATE_URL").map(Secret::new),
            call: self.calls()?,
        })
    }
}

/// The project directory: stages stand in it.
fn here() -> Result<PathBuf, Line> {
    std::env::current_dir().map_err(|e| fatal(format!("the working directory: {e}")))
}

fn text(parser: &mut lexopt::Parser) -> Result<String, Line> {
    parser.value().and_then(|v| v.string()).map_err(|e| fatal(e.to_string()))
}

/// A line of a dotenv file, whose value is quoted as the reference does it.
fn variable(line: &str) -> Option<(String, String)> {
    let (name, value) = line.trim().split_once('=')?;
    let Some(quoted) = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')) else {
        return Some((name.to_owned(), value.to_owned()));
    };
    let mut plain = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next()? {
                'n' => plain.push('\n'),
                'r' => plain.push('\r'),
                other => plain.push(other),
            },
            (c, false) => plain.push(c),
        }
    }
    Some((name.to_owned(), plain))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(line: &str) -> Result<Flags, Line> {
        Flags::read(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn every_flag_of_the_reference_is_taken() {
        let common = "--retry 1 --retry-time 1 --transfer-meter-frequency 1s --file f --url u --timeout 3 \
                      --transfer-buffer-size 1 --chunk-size 1 --concurrency 1";
        let archiver = "--path a --path=-b --exclude c --untracked --verbose --alternate-file g --check-url h \
                        --header X-A:b --header x-b:c:d --metadata {} --compression-level fast \
                        --compression-format TarZstd --max-uploaded-archive-size 5";
        let job = read(&format!("{common} {archiver}")).unwrap().archive().unwrap();
        assert_eq!((job.file.as_path(), job.alternate.as_deref()), (Path::new("f"), Some(Path::new("g"))));
        assert_eq!(
            (job.wanted.paths, job.wanted.exclude, job.wanted.untracked),
            (vec!["a".to_owned(), "-b".to_owned()], vec!["c".to_owned()], true)
        );
        assert_eq!(job.headers, [("X-A".into(), "b".into()), ("x-b".into(), "c:d".into())]);
        assert_eq!((job.format, job.effort, job.max_size), (Format::TarZstd, Effort::Fast, 5));
        assert_eq!((job.call.timeout, job.call.retries), (Duration::from_secs(180), 1));
        let extractor = "--alternate-url v --head-url w --alternate-head-url x";
        let job = read(&format!("{common} {extractor}")).unwrap().extract().unwrap();
        assert_eq!(job.alternate_url, Some(Secret::new("v")));
    }

    #[test]
    fn what_cannot_be_is_one_line() {
        let said = |line: &str| read(line).and_then(|f| f.extract().map(drop)).unwrap_err().text;
        assert_eq!(said("--file"), "missing argument for option '--file'");
        assert_eq!(said("--bogus"), "invalid option '--bogus'");
        assert_eq!(said(""), "Missing cache file");
        assert_eq!(said("--file f --timeout x"), "--timeout \"x\": expected a whole number");
        assert!(said("--file f --gocloud-url s3://b/o").starts_with("--gocloud-url is not supported"));
    }

    #[test]
    fn t50_dotenv_files_are_read_literally() {
        for (line, want) in
            [("A=\"b$C\\\"\\\\\\n\"", Some(("A", "b$C\"\\\n"))), ("A=b", Some(("A", "b"))), ("nothing", None)]
        {
            assert_eq!(variable(line), want.map(|(k, v)| (k.to_owned(), v.to_owned())), "{line}");
        }
    }
}
