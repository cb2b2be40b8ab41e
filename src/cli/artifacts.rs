//! `artifacts-uploader` and `artifacts-downloader`, which stages call: the reference's flags and
//! environment in, exit code out. Flags that only tune the reference's own transfers are taken and left
//! aside.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

use crate::config;

use crate::model::{Secret, Uploads, user_agent};
use crate::transfer::archive::{Effort, Format};
use crate::transfer::artifacts::Coordinator;
use crate::transfer::artifacts::download::{Download, download};
use crate::transfer::artifacts::upload::{Upload, upload};
use crate::transfer::say::{self, Level, Line};
use crate::transfer::select::Wanted;

pub(super) fn uploader(args: impl Iterator<Item = OsString>) -> u8 {
    platform();
    ended(Flags::read(args).and_then(|flags| upload(&flags.upload()?, &config::environment)))
}

pub(super) fn downloader(args: impl Iterator<Item = OsString>) -> u8 {
    platform();
    ended(Flags::read(args).and_then(|flags| download(&flags.download()?)))
}

/// The first line of every command that a stage calls: which runner is at work.
pub(super) fn platform() {
    say::say(
        &Line::new(Level::Info, "Runtime platform")
            .with("arch", super::args::arch())
            .with("os", std::env::consts::OS)
            .with("pid", std::process::id().to_string())
            .with("revision", option_env!("RUNNER_REVISION").unwrap_or("release"))
            .with("version", env!("CARGO_PKG_VERSION")),
    );
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
}

/// Those that take a value, one each, with the variable that stands for them.
const VALUES: [(&str, &str); 28] = [
    ("url", "CI_SERVER_URL"),
    ("id", "CI_JOB_ID"),
    ("token", "CI_JOB_TOKEN"),
    ("tls-ca-file", "CI_SERVER_TLS_CA_FILE"),
    ("tls-cert-file", "CI_SERVER_TLS_CERT_FILE"),
    ("tls-key-file", "CI_SERVER_TLS_KEY_FILE"),
    ("compression-level", "ARTIFACT_COMPRESSION_LEVEL"),
    ("archiver-staging-dir", "ARCHIVER_STAGING_DIR"),
    ("transfer-meter-frequency", "TRANSFER_METER_FREQUENCY"),
    ("name", ""),
    ("expire-in", ""),
    ("artifact-format", ""),
    ("artifact-type", ""),
    ("timeout", ""),
    ("response-header-timeout", ""),
    ("retry", ""),
    ("retry-time", ""),
    ("runner-id", ""),
    ("repo-url", ""),
    ("repo-digest", ""),
    ("job-name", ""),
    ("executor-name", ""),
    ("runner-name", ""),
    ("metadata-parameter", ""),
    ("started-at", ""),
    ("ended-at", ""),
    ("schema-version", ""),
    ("log-level", ""),
];

/// Those that are there or not.
const SWITCHES: [(&str, &str); 5] = [
    ("untracked", ""),
    ("verbose", ""),
    ("generate-artifacts-metadata", ""),
    ("direct-download", "FF_USE_DIRECT_DOWNLOAD"),
    ("ci-debug-trace", "CI_DEBUG_TRACE"),
];

impl Flags {
    fn read(args: impl Iterator<Item = OsString>) -> Result<Flags, Line> {
        let mut flags = Flags::default();
        let mut parser = lexopt::Parser::from_args(args);
        let wrong = |e: lexopt::Error| fatal(e.to_string());
        while let Some(arg) = parser.next().map_err(wrong)? {
            let Long(name) = arg else { return Err(wrong(arg.unexpected())) };
            if name == "path" {
                flags.paths.push(text(&mut parser)?);
            } else if name == "exclude" {
                flags.exclude.push(text(&mut parser)?);
            } else if let Some((known, _)) = VALUES.iter().find(|(known, _)| *known == name) {
                flags.values.insert(known, text(&mut parser)?);
            } else if let Some((known, _)) = SWITCHES.iter().find(|(known, _)| *known == name) {
                let value = parser.optional_value().map(|v| v.to_string_lossy().into_owned());
                flags.values.insert(known, value.unwrap_or_else(|| "true".to_owned()));
            } else {
                return Err(wrong(arg.unexpected()));
            }
        }
        Ok(flags)
    }

    /// A flag, or the variable that stands for it; empty is none.
    fn get(&self, flag: &str) -> Option<String> {
        let variable = VALUES.iter().chain(&SWITCHES).find(|(name, _)| *name == flag).map_or("", |(_, v)| v);
        let set = self.values.get(flag).cloned();
        set.or_else(|| config::environment(variable).filter(|_| !variable.is_empty())).filter(|v| !v.is_empty())
    }

    fn text(&self, flag: &str) -> String {
        self.get(flag).unwrap_or_default()
    }

    /// Neither true nor false is as if nothing were said.
    fn switch(&self, flag: &str) -> Option<bool> {
        match self.get(flag)?.as_str() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
            _ => None,
        }
    }

    fn duration(&self, flag: &str, default: Duration) -> Result<Duration, Line> {
        let Some(text) = self.get(flag) else { return Ok(default) };
        let read = config::duration(&text).ok_or_else(|| fatal(format!("--{flag} {text:?}: expected a time as 1h30m")));
        read.map(|d| if d.is_zero() { default } else { d })
    }

    fn number<T: std::str::FromStr>(&self, flag: &str) -> Result<Option<T>, Line> {
        let read = |t: String| t.parse().map_err(|_| fatal(format!("--{flag} {t:?}: expected a whole number")));
        self.get(flag).map(read).transpose()
    }

    fn coordinator(&self) -> Result<Coordinator, Line> {
        let token = self.text("token");
        Ok(Coordinator {
            url: self.text("url").trim_end_matches('/').to_owned(),
            job: self.number("id")?.unwrap_or(0),
            short_token: config::short_token(&token),
            token: Secret::new(token),
            user_agent: user_agent(),
            ca: self.get("tls-ca-file").map(PathBuf::from),
            trace: self.switch("ci-debug-trace").unwrap_or(false),
        })
    }

    fn upload(self) -> Result<Upload, Line> {
        let level = self.text("compression-level");
        let effort = Effort::from_name(&level).unwrap_or_else(|| {
            say::warn(format!("compression level {level:?} is invalid, falling back to default"));
            Effort::default()
        });
        let format_name = self.text("artifact-format");
        let format = Format::from_name(&format_name)
            .ok_or_else(|| fatal(format!("artifacts cannot be packed in the format {format_name:?}")))?;
        let limits = Uploads::default();
        Ok(Upload {
            to: self.coordinator()?,
            root: here()?,
            name: self.get("name").unwrap_or_else(|| "artifacts".to_owned()),
            format,
            format_name,
            kind: self.text("artifact-type"),
            expire_in: self.text("expire-in"),
            effort,
            timeout: self.duration("timeout", limits.timeout)?,
            answer_within: self.duration("response-header-timeout", limits.answer_within)?,
            wanted: Wanted {
                untracked: self.switch("untracked").unwrap_or(false),
                paths: self.paths,
                exclude: self.exclude,
            },
        })
    }

    fn download(self) -> Result<Download, Line> {
        let root = here()?;
        let temp = config::environment("RUNNER_TEMP_PROJECT_DIR").filter(|t| t.starts_with('/'));
        let staging = [self.get("archiver-staging-dir"), temp].into_iter().flatten().map(PathBuf::from);
        let pause = self.number("retry-time")?;
        Ok(Download {
            from: self.coordinator()?,
            staging: staging.chain([root.clone(), std::env::temp_dir()]).collect(),
            root,
            direct: self.switch("direct-download").unwrap_or(true),
            retries: self.number("retry")?,
            pause: pause.map(Duration::from_secs),
            timeout: Uploads::default().timeout,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Flags, Line> {
        Flags::read(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn every_flag_of_the_reference_is_taken() {
        let common = "--id 7 --token t0k3n6789rest --url http://h/ --tls-ca-file ca --tls-cert-file c --tls-key-file k \
                      --transfer-meter-frequency 1s";
        let uploader = "--path a --path=-b --exclude c --untracked --verbose --generate-artifacts-metadata \
                        --runner-id 1 --repo-url r --repo-digest d --job-name n --executor-name e --runner-name n \
                        --metadata-parameter A --metadata-parameter B --started-at x --ended-at y --schema-version v1 \
                        --name n --expire-in 1week --artifact-format gzip --artifact-type junit \
                        --compression-level slow --timeout 2h0m0s --response-header-timeout 1m0s --ci-debug-trace";
        let job = read(&format!("{common} {uploader}")).unwrap().upload().unwrap();
        assert_eq!((job.to.url.as_str(), job.to.job, job.to.short_token.as_str()), ("http://h", 7, "t0k3n6789"));
        assert_eq!((job.format, job.effort, job.kind.as_str()), (Format::Gzip, Effort::Slow, "junit"));
        assert_eq!((job.timeout.as_secs(), job.answer_within.as_secs()), (7200, 60));
        assert_eq!(
            (job.wanted.paths, job.wanted.exclude, job.wanted.untracked),
            (vec!["a".to_owned(), "-b".to_owned()], vec!["c".to_owned()], true)
        );
        assert!(job.to.trace);
        let downloader = "--retry 1 --retry-time 2 --direct-download=false --archiver-staging-dir /s";
        let job = read(&format!("{common} {downloader}")).unwrap().download().unwrap();
        assert_eq!((job.retries, job.pause, job.direct), (Some(1), Some(Duration::from_secs(2)), false));
        assert_eq!(job.staging[0], PathBuf::from("/s"));
    }

    #[test]
    fn what_cannot_be_is_one_line() {
        let said = |line: &str| read(line).and_then(|f| f.upload().map(drop)).unwrap_err().text;
        assert_eq!(said("--path"), "missing argument for option '--path'");
        assert_eq!(said("--bogus"), "invalid option '--bogus'");
        assert_eq!(said("extra"), "unexpected argument \"extra\"");
        assert_eq!(said("--id x"), "--id \"x\": expected a whole number");
        assert_eq!(said("--timeout soon"), "--timeout \"soon\": expected a time as 1h30m");
        assert_eq!(said("--artifact-format rar"), "artifacts cannot be packed in the format \"rar\"");
    }
}
