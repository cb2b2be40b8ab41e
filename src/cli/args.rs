//! From arguments and environment to a [`Call`]; the words of `--help`. Reads no file.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

use lexopt::prelude::*;
use log::LevelFilter;

use crate::config;
use crate::diag::logging::LogFormat;

#[derive(Debug, PartialEq)]
pub(super) struct Call {
    pub(super) command: Command,
    /// `None`: the first of the usual places.
    pub(super) config: Option<PathBuf>,
    /// These beat the file.
    pub(super) log_level: Option<LevelFilter>,
    pub(super) log_format: Option<LogFormat>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    Run { working_directory: Option<PathBuf>, user: Option<String> },
    CheckConfig,
    Exec { files: Vec<PathBuf> },
    Help(Topic),
    Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    All,
    Run,
    CheckConfig,
    Exec,
}

const NAMES: [(&str, Topic); 3] = [("run", Topic::Run), ("check-config", Topic::CheckConfig), ("exec", Topic::Exec)];

pub(super) fn parse(args: Vec<OsString>) -> Result<Call, String> {
    parse_with(args, &config::environment)
}

fn parse_with(args: Vec<OsString>, env: &dyn Fn(&str) -> Option<String>) -> Result<Call, String> {
    let mut seen = Seen::default();
    let mut call = Call { command: Command::Version, config: None, log_level: None, log_format: None };
    from_environment(&mut call, env)?;
    let nothing = args.is_empty();
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(words)? {
        match arg {
            Short('h') | Long("help") => seen.help = true,
            Short('v' | 'V') | Long("version") => seen.version = true,
            Short('c') | Long("config") => call.config = Some(parser.value().map_err(words)?.into()),
            Long("debug") => call.log_level = call.log_level.or(Some(LevelFilter::Debug)),
            Short('l') | Long("log-level") => call.log_level = Some(level(&text(&mut parser)?)?),
            Long("log-format") => call.log_format = Some(format(&text(&mut parser)?)?),
            Short('d') | Long("working-directory") if seen.may_run() => {
                seen.working_directory = Some(parser.value().map_err(words)?.into());
            }
            // The command lines of gitlab-runner's service files go on to work, as far as they are safe.
            Short('n') | Long("service") if seen.may_run() => drop(text(&mut parser)?),
            Long("listen-address") if seen.may_run() => drop(text(&mut parser)?),
            Long("syslog") if seen.may_run() => drop(parser.optional_value()),
            Short('u') | Long("user") if seen.may_run() => {
                seen.user = Some(text(&mut parser)?).filter(|u| !u.is_empty())
            }
            Value(word) if seen.topic.is_none() && !seen.help_command => seen.command(&word.to_string_lossy())?,
            Value(word) if seen.help_command => seen.command(&word.to_string_lossy())?,
            Value(file) if seen.topic == Some(Topic::Exec) => seen.files.push(file.into()),
            other => return Err(words(other.unexpected())),
        }
    }
    call.command = seen.decide(nothing)?;
    Ok(call)
}

#[derive(Default)]
struct Seen {
    help: bool,
    help_command: bool,
    version: bool,
    topic: Option<Topic>,
    files: Vec<PathBuf>,
    working_directory: Option<PathBuf>,
    user: Option<String>,
}

impl Seen {
    fn may_run(&self) -> bool {
        matches!(self.topic, None | Some(Topic::Run))
    }

    fn command(&mut self, word: &str) -> Result<(), String> {
        if word == "help" {
            self.help_command = true;
            return Ok(());
        }
        match NAMES.iter().find(|(name, _)| *name == word) {
            Some((_, topic)) => self.topic = Some(*topic),
            None => return Err(unknown(word)),
        }
        Ok(())
    }

    fn decide(self, nothing: bool) -> Result<Command, String> {
        if self.help || self.help_command || nothing {
            return Ok(Command::Help(self.topic.unwrap_or(Topic::All)));
        }
        if self.version {
            return Ok(Command::Version);
        }
        Ok(match self.topic {
            Some(Topic::CheckConfig) => Command::CheckConfig,
            Some(Topic::Exec) if self.files.is_empty() => {
                return Err("exec needs at least one job file, as in `runner exec job.json`".to_owned());
            }
            Some(Topic::Exec) => Command::Exec { files: self.files },
            _ => Command::Run { working_directory: self.working_directory, user: self.user },
        })
    }
}

fn from_environment(call: &mut Call, env: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    let set = |name: &str| env(name).filter(|v| !v.is_empty());
    call.config = set("CONFIG_FILE").map(PathBuf::from);
    call.log_level = match set("LOG_LEVEL") {
        Some(word) => Some(level(&word).map_err(|e| format!("LOG_LEVEL: {e}"))?),
        None => set("RUNNER_DEBUG").filter(|v| v == "true" || v == "1").map(|_| LevelFilter::Debug),
    };
    if let Some(word) = set("LOG_FORMAT") {
        call.log_format = Some(format(&word).map_err(|e| format!("LOG_FORMAT: {e}"))?);
    }
    Ok(())
}

fn level(word: &str) -> Result<LevelFilter, String> {
    config::log_level(word).ok_or_else(|| format!("{word:?} is no log level; use debug, info, warning or error"))
}

fn format(word: &str) -> Result<LogFormat, String> {
    LogFormat::from_name(word).ok_or_else(|| format!("{word:?} is no log format; use runner, text or json"))
}

fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    parser.value().and_then(|v| v.string()).map_err(words)
}

fn words(e: lexopt::Error) -> String {
    e.to_string()
}

fn unknown(word: &str) -> String {
    let beginning = |name: &&str| word.len() >= 3 && name.starts_with(&word[..word.floor_char_boundary(3)]);
    if let Some(name) = NAMES.iter().map(|(name, _)| *name).find(beginning) {
        return format!("there is no command {word:?}; did you mean `{name}`?");
    }
    let near = NAMES.iter().map(|(name, _)| *name).chain(["help"]).min_by_key(|name| distance(name, word));
    match near.filter(|name| distance(name, word) <= 3 && distance(name, word) < word.len()) {
        Some(name) => format!("there is no command {word:?}; did you mean `{name}`?"),
        None => format!("there is no command {word:?}"),
    }
}

/// Letters to change from one word to the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let best = (corner + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

/// Architecture in GitLab's words.
pub(super) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(super) fn help(topic: Topic) -> String {
    let mut text = String::new();
    let body = match topic {
        Topic::All => ALL,
        Topic::Run => RUN,
        Topic::CheckConfig => CHECK,
        Topic::Exec => EXEC,
    };
    let options = if topic == Topic::Exec { EXEC_OPTIONS } else { OPTIONS };
    let _ = write!(text, "{body}\n{options}");
    text
}

const ALL: &str = "\
runner takes CI jobs from GitLab or from a spool directory and runs them on this host.

  runner --config FILE                run the jobs of the entries in FILE (same as `runner run`)
  runner check-config --config FILE   say what FILE means, and what is wrong with it
  runner exec JOB.json…               run single job files here, in the foreground
  runner help COMMAND                 more about one command
";

const RUN: &str = "\
runner run [--config FILE] [--working-directory DIR] [--user USER]

Polls every entry of FILE and runs its jobs until it is told to stop.
Signals: QUIT ends it after the running jobs, TERM and INT end the jobs too, HUP reads FILE again,
USR2 starts the runner's new binary in place while the jobs run on.

  -d, --working-directory DIR   change to DIR first
  -u, --user USER               run the jobs of entries without a `user` as USER (the runner is root then)
";

const CHECK: &str = "\
runner check-config [--config FILE]

Prints the values that are in force, entry by entry. Exit code 0, or 78 when FILE is wrong.
";

const EXEC: &str = "\
runner exec JOB.json…

Runs job files one after the other, exactly as a job from a server would run. A job file needs
only a script: {\"script\": [\"echo hello\"]}. Ctrl-C cancels the job, a second one aborts it.
The exit code is the job's: that of the first one that did not succeed.
";

const OPTIONS: &str = "  -c, --config FILE        [CONFIG_FILE] else the first of the usual places
  -l, --log-level LEVEL    [LOG_LEVEL]   debug, info, warning or error
      --log-format FORMAT  [LOG_FORMAT]  runner, text or json
  -h, --help    -v, --version
";

const EXEC_OPTIONS: &str = "  -l, --log-level LEVEL    [LOG_LEVEL]   debug, info, warning or error
  -h, --help    -v, --version
";

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, want: Result<Command, &str>) {
        let args = line.split_whitespace().map(OsString::from).collect();
        let got = parse_with(args, &|_| None).map(|c| c.command);
        assert_eq!(got, want.map_err(str::to_owned), "{line}");
    }

    #[test]
    fn commands_are_read() {
        let run = |d: Option<&str>| Command::Run { working_directory: d.map(PathBuf::from), user: None };
        check("--config x", Ok(run(None)));
        check("-c x run -d /y", Ok(run(Some("/y"))));
        check("run --user ci -c x", Ok(Command::Run { working_directory: None, user: Some("ci".to_owned()) }));
        check("check-config", Ok(Command::CheckConfig));
        check("exec a.json b.json", Ok(Command::Exec { files: vec!["a.json".into(), "b.json".into()] }));
        check("exec --help", Ok(Command::Help(Topic::Exec)));
        check("help run", Ok(Command::Help(Topic::Run)));
        check("", Ok(Command::Help(Topic::All)));
        check("run --service x --syslog -c y --listen-address :9252", Ok(run(None)));
        check("--version", Ok(Command::Version));
    }

    #[test]
    fn wrong_arguments_say_what_to_do() {
        check("exec", Err("exec needs at least one job file, as in `runner exec job.json`"));
        check("chek-config", Err("there is no command \"chek-config\"; did you mean `check-config`?"));
        check("chek", Err("there is no command \"chek\"; did you mean `check-config`?"));
        check("rnu", Err("there is no command \"rnu\"; did you mean `run`?"));
        check("xyz", Err("there is no command \"xyz\""));
        check("-c x --log-level loud", Err("\"loud\" is no log level; use debug, info, warning or error"));
        check("run --bogus", Err("invalid option '--bogus'"));
        check("check-config extra", Err("unexpected argument \"extra\""));
    }

    #[test]
    fn arguments_beat_the_environment() {
        let env = |name: &str| match name {
            "CONFIG_FILE" => Some("/env".to_owned()),
            "LOG_LEVEL" => Some("error".to_owned()),
            "LOG_FORMAT" => Some("json".to_owned()),
            _ => None,
        };
        let call = parse_with(vec!["run".into()], &env).unwrap();
        assert_eq!(call.config, Some("/env".into()));
        assert_eq!((call.log_level, call.log_format), (Some(LevelFilter::Error), Some(LogFormat::Json)));
        let call = parse_with(["-c", "/arg", "-l", "debug"].map(OsString::from).to_vec(), &env).unwrap();
        assert_eq!((call.config, call.log_level), (Some("/arg".into()), Some(LevelFilter::Debug)));
    }
}
