//! What a custom executor's driver is told and what it answers (build §9.3 to 9.5): its environment, the
//! JSON of its configuration, its exit codes. Decides no order; that is in `custom`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::forge::{Call, Done, End, Given};
use crate::gitlab::wire::{Image, Payload};
use crate::model::{Custom, Job, Program, Why};

use super::variables::Variables;
use super::{Failure, say};

const BUILD_FAILURE: i32 = 1;
const SYSTEM_FAILURE: i32 = 2;
const EXIT_CODE_FILE: &str = "build_exit_code";
const RESPONSE_FILE: &str = "response.json";
/// Where the configuration is read from, and what the last call says.
pub(super) const CONFIG_FILE: &str = "config.out";
pub(super) const CLEANUP_FILE: &str = "cleanup.err";

/// One job's driver.
pub(super) struct Driver {
    pub(super) custom: Custom,
    /// As it was handed out, and as the driver changes it.
    pub(super) job: Job,
    pub(super) hostname: String,
    pub(super) name: String,
    job_env: Vec<(String, String)>,
    scripts: u32,
    /// It was called, and not asked to clean up since.
    pub(super) is_used: bool,
}

/// What `config_exec` prints; keys that are not there change nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Configuration {
    pub(super) builds_dir: Option<PathBuf>,
    pub(super) cache_dir: Option<PathBuf>,
    pub(super) builds_dir_is_shared: Option<bool>,
    hostname: Option<String>,
    driver: Option<Named>,
    job_env: Option<BTreeMap<String, String>>,
    pub(super) shell: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: Option<String>,
    version: Option<String>,
}

impl Driver {
    pub(super) fn of(job: &Job) -> Option<Driver> {
        let custom = job.settings.custom.clone()?;
        Some(Driver {
            custom,
            job: job.clone(),
            hostname: String::new(),
            name: String::new(),
            job_env: Vec::new(),
            scripts: 0,
            is_used: false,
        })
    }

    /// A call without a script.
    pub(super) fn call(&mut self, program: &Program, payload: &Payload, vars: &Variables) -> Call {
        let fresh = !std::mem::replace(&mut self.is_used, true);
        let response = fresh.then(|| Given {
            name: RESPONSE_FILE.into(),
            content: self.job.payload.get().as_bytes().to_vec(),
            mode: 0o600,
        });
        let argv = std::iter::once(&program.exec).chain(&program.args).cloned().collect();
        let env = self.environment(payload, vars);
        Call {
            argv,
            env,
            dir: self.custom.dir.clone(),
            fresh,
            files: response.into_iter().collect(),
            ..Call::default()
        }
    }

    /// `cleanup_exec`; the next call begins anew.
    pub(super) fn last_call(&mut self, payload: &Payload, vars: &Variables) -> Option<(Program, Call)> {
        let made = self.custom.cleanup.clone().map(|program| {
            let call = self.call(&program, payload, vars);
            (program, Call { last: true, ..call })
        });
        self.is_used = false;
        made
    }

    /// `run_exec` with a stage's whole script.
    pub(super) fn run(&mut self, stage: &str, script: Vec<u8>, payload: &Payload, vars: &Variables) -> Call {
        let program = self.custom.run.clone();
        let mut call = self.call(&program, payload, vars);
        self.scripts += 1;
        let name = PathBuf::from(format!("script{}", self.scripts)).join("script");
        call.argv.push(call.dir.join(&name).to_string_lossy().into_owned());
        // Its old name, which drivers know.
        call.argv.push(if stage == "step_script" { "build_script" } else { stage }.to_owned());
        call.files.push(Given { name, content: script, mode: 0o700 });
        call
    }

    /// Where the exit code of a failing script is left.
    pub(super) fn exit_code_file(&self) -> PathBuf {
        self.custom.dir.join(EXIT_CODE_FILE)
    }

    /// What it says of itself and of the job's place. The error is for the log.
    pub(super) fn configured(&mut self, done: &Done) -> Result<Configuration, String> {
        let said = |e: &dyn std::fmt::Display| format!("error while parsing JSON output: {e}");
        let content = match done.collected.first().map(|c| &c.content) {
            Some(Ok(content)) => content.as_slice(),
            Some(Err(e)) => return Err(said(e)),
            None => &[],
        };
        if content.iter().all(u8::is_ascii_whitespace) {
            return Ok(Configuration::default());
        }
        let mut read: Configuration = serde_json::from_slice(content).map_err(|e| said(&e))?;
        self.hostname = read.hostname.take().unwrap_or_default();
        let driver = read.driver.take().unwrap_or_default();
        let words = [driver.name.unwrap_or_default(), driver.version.unwrap_or_default()];
        self.name = words.iter().filter(|w| !w.is_empty()).cloned().collect::<Vec<_>>().join(" ");
        self.job_env = read.job_env.take().unwrap_or_default().into_iter().collect();
        Ok(read)
    }

    /// Later ones win.
    fn environment(&self, payload: &Payload, vars: &Variables) -> Vec<(String, String)> {
        let dir = &self.custom.dir;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut env: Vec<(String, String)> = [
            ("TMPDIR", text(dir)),
            ("BUILD_FAILURE_EXIT_CODE", BUILD_FAILURE.to_string()),
            ("SYSTEM_FAILURE_EXIT_CODE", SYSTEM_FAILURE.to_string()),
            ("BUILD_EXIT_CODE_FILE", text(&self.exit_code_file())),
            ("JOB_RESPONSE_FILE", text(&dir.join(RESPONSE_FILE))),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        env.extend(self.job_env.iter().cloned());
        // Of a file variable its content: its path means nothing to the driver.
        env.extend(vars.each().map(|v| (format!("CUSTOM_ENV_{}", v.key), v.value)));
        env.push(("CUSTOM_ENV_CI_JOB_SERVICES".to_owned(), services(payload, vars)));
        env
    }
}

/// What became of a call; `None`: it went well. `exit_code`: the file that a driver may leave one in.
pub(super) fn failure(done: &Done) -> Option<Failure> {
    let unknown = |code: i32, how: &str| {
        Failure::new(
            Why::System,
            format!("unknown Custom executor executable exit code {code}; executable execution terminated with: {how}"),
        )
    };
    Some(match done.end {
        End::Exited(BUILD_FAILURE) => match exit_code(done) {
            None => script_failure(BUILD_FAILURE),
            Some(Ok(code)) => script_failure(code),
            Some(Err(())) => unknown(2, "exit status 1"),
        },
        End::Exited(SYSTEM_FAILURE) => Failure::new(Why::System, "exit status 2"),
        End::Exited(0) => return None,
        End::Exited(n) => unknown(n, &format!("exit status {n}")),
        End::Signaled(n) => unknown(-1, &say::signal(n)),
        End::NotStarted(_) | End::Unkillable => return Failure::of(&done.end),
    })
}

fn script_failure(code: i32) -> Failure {
    Failure { exit_code: Some(code), ..Failure::new(Why::Script, format!("exit status {code}")) }
}

/// The first line of the file, when there is one.
fn exit_code(done: &Done) -> Option<Result<i32, ()>> {
    let file = done.collected.iter().find(|c| c.path.ends_with(EXIT_CODE_FILE))?;
    let content = match &file.content {
        Ok(content) => String::from_utf8_lossy(content).into_owned(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
        Err(_) => return Some(Err(())),
    };
    Some(content.lines().next().unwrap_or_default().trim().parse().map_err(drop))
}

/// Empty where there is none.
fn services(payload: &Payload, vars: &Variables) -> String {
    let array = |words: &[String]| if words.is_empty() { Value::Null } else { words.into() };
    let one = |service: &Image| {
        let mut value = json!({
            "name": service.name,
            "alias": service.alias.split([' ', ',']).next().unwrap_or_default(),
            "entrypoint": array(&service.entrypoint),
            "command": array(&service.command),
        });
        if !service.variables.is_empty() {
            let expand =
                |v: &crate::gitlab::wire::Variable| if v.raw { v.value.clone() } else { vars.expand(&v.value) };
            let set: BTreeMap<&str, String> = service.variables.iter().map(|v| (v.key.as_str(), expand(v))).collect();
            value["variables"] = json!(set);
        }
        value
    };
    match payload.services.as_slice() {
        [] => String::new(),
        services => Value::from(services.iter().map(one).collect::<Vec<_>>()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::forge::{Collected, StageId};

    fn done(end: End, file: Option<&str>) -> Done {
        let content = match file {
            Some(text) => Ok(text.as_bytes().to_vec()),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let collected = vec![Collected { path: "/w/build_exit_code".into(), content }];
        Done { id: StageId(1), end, halted: None, collected, said: Vec::new() }
    }

    #[test]
    fn exit_codes_mean_what_the_reference_says() {
        let unknown = |code: i32, how: &str| {
            format!("unknown Custom executor executable exit code {code}; executable execution terminated with: {how}")
        };
        for (end, file, want) in [
            (End::Exited(0), None, None),
            (End::Exited(0), Some("3"), None),
            (End::Exited(1), None, Some((Why::Script, "exit status 1".to_owned(), Some(1)))),
            (End::Exited(1), Some("37\nmore"), Some((Why::Script, "exit status 37".to_owned(), Some(37)))),
            (End::Exited(1), Some("many"), Some((Why::System, unknown(2, "exit status 1"), None))),
            (End::Exited(1), Some(""), Some((Why::System, unknown(2, "exit status 1"), None))),
            (End::Exited(2), Some("37"), Some((Why::System, "exit status 2".to_owned(), None))),
            (End::Exited(7), None, Some((Why::System, unknown(7, "exit status 7"), None))),
            (End::Signaled(9), None, Some((Why::System, unknown(-1, "signal: killed"), None))),
        ] {
            let got = failure(&done(end.clone(), file)).map(|f| (f.why, f.text, f.exit_code));
            assert_eq!(got, want, "{end:?} {file:?}");
        }
    }
}
