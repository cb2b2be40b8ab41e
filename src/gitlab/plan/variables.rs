//! A job's variables (build §3): the runner's, the entry's and the job's own, in the order in which they
//! are exported, expanded once against each other. Decides no setting; exports nothing itself.

use std::path::Path;

use crate::gitlab::wire::Payload;
use crate::model::{Job, Secret, architecture, platform};

use super::expand::expand;
use super::flags::{Flag, Flags, is_flag};
use super::paths::Paths;

/// What the kernel takes as one string of an environment, its NUL counted (`MAX_ARG_STRLEN`). With a
/// longer one in the environment no program starts any more.
const STRING_MAX: usize = 131_072;
/// References multiply; a value that grows beyond this is refused.
const VALUE_MAX: usize = 64 << 20;

const REVISION: Option<&str> = option_env!("RUNNER_REVISION");

/// In export order. Of equal keys all are kept, and the last one counts.
#[derive(Clone, Debug)]
pub(super) struct Variables {
    list: Vec<Variable>,
    temp: String,
}

#[derive(Clone, Debug)]
struct Variable {
    key: String,
    /// As it was given; expanded when it is used.
    value: String,
    /// Written to a file that the variable then names.
    file: bool,
    masked: bool,
    raw: bool,
}

impl Variables {
    pub(super) fn of(job: &Job, payload: &Payload, flags: &Flags, paths: &Paths) -> Variables {
        let project = payload.variables.iter().filter(|v| !is_flag(&v.key)).map(|v| Variable {
            key: v.key.clone(),
            value: v.value.clone(),
            file: v.file,
            masked: v.masked,
            raw: v.raw,
        });
        let mut list: Vec<Variable> = flags.all().map(|(name, on)| own(name, on.to_string())).collect();
        base(&mut list, job, payload, paths);
        list.extend(project);
        late(&mut list, job, payload, flags, paths);
        Variables { list, temp: text(&paths.temp) }
    }

    /// The value that the job sees under this name, expanded; of a file variable its path.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        let variable = self.list.iter().rfind(|v| v.key == key)?;
        if variable.file {
            return Some(self.path(key));
        }
        Some(self.value(variable).unwrap_or_default())
    }

    /// `text` with its references replaced.
    pub(super) fn expand(&self, text: &str) -> String {
        expand(text, VALUE_MAX, |name, out| self.look(name, out)).unwrap_or_default()
    }

    /// Name and value of each, in order; of a file variable its content, and the path that it gets.
    pub(super) fn each(&self) -> impl Iterator<Item = Export<'_>> {
        self.list.iter().map(|v| Export {
            key: &v.key,
            value: self.value(v).unwrap_or_default(),
            path: v.file.then(|| self.path(&v.key)),
        })
    }

    /// The files that this job's file variables lie in.
    pub(super) fn files(&self) -> impl Iterator<Item = String> {
        self.list.iter().filter(|v| v.file).map(|v| self.path(&v.key))
    }

    /// Overwrites `CI_JOB_STATUS` wherever it comes from, for after_script.
    pub(super) fn set_status(&mut self, status: &str) {
        for v in self.list.iter_mut().filter(|v| v.key == "CI_JOB_STATUS") {
            *v = own("CI_JOB_STATUS", status.to_owned());
        }
    }

    /// The values to hide; the masker trims them and drops the empty ones.
    pub(super) fn masks(&self) -> Vec<Secret> {
        self.list.iter().filter(|v| v.masked).filter_map(|v| self.value(v)).map(Secret::new).collect()
    }

    /// Whether every variable can be given to a process: the first that cannot, in one line.
    pub(super) fn check(&self) -> Result<(), String> {
        for v in &self.list {
            if !is_identifier(&v.key) {
                return Err(format!(
                    "the variable name {:?} cannot be used: a name has letters, digits and _ only, and no digit first",
                    v.key
                ));
            }
            let Some(value) = self.value(v) else {
                return Err(format!("the variable {:?} grows over {} MiB when expanded", v.key, VALUE_MAX >> 20));
            };
            if value.contains('\0') {
                return Err(format!(
                    "the variable {:?} has a NUL byte in its value, which no process can be given: encode it, for \
                     example with base64",
                    v.key
                ));
            }
            let size = v.key.len() + value.len() + 2;
            if !v.file && size > STRING_MAX {
                return Err(format!(
                    "the variable {:?} is {} bytes long, and no process can be given more than {}: make it a variable \
                     of type file",
                    v.key,
                    value.len(),
                    STRING_MAX - v.key.len() - 2
                ));
            }
        }
        Ok(())
    }

    fn value(&self, v: &Variable) -> Option<String> {
        if v.raw || !v.value.contains('$') {
            return Some(v.value.clone());
        }
        expand(&v.value, VALUE_MAX, |name, out| self.look(name, out))
    }

    /// The value as it was given, so that nothing is expanded twice.
    fn look(&self, name: &str, out: &mut String) {
        match self.list.iter().rfind(|v| v.key == name) {
            Some(v) if v.file => out.push_str(&self.path(name)),
            Some(v) => out.push_str(&v.value),
            None => {}
        }
    }

    fn path(&self, key: &str) -> String {
        format!("{}/{key}", self.temp)
    }
}

/// One variable as the job gets it.
#[derive(Debug)]
pub(super) struct Export<'a> {
    pub(super) key: &'a str,
    pub(super) value: String,
    /// Set for a file variable.
    pub(super) path: Option<String>,
}

/// What a job's or an entry's variable says, before expansion: flags must be known before the list is.
pub(super) fn given<'a>(job: &'a Job, payload: &'a Payload, key: &str) -> Option<&'a str> {
    let of_job = payload.variables.iter().rfind(|v| v.key == key).map(|v| v.value.as_str());
    of_job.or_else(|| environment(job).filter(|(k, _)| *k == key).last().map(|(_, v)| v))
}

/// The version in the first line of each log and in `CI_RUNNER_VERSION`.
pub(super) fn version() -> String {
    match REVISION {
        Some(revision) => format!("{} ({revision})", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn own(key: &str, value: String) -> Variable {
    Variable { key: key.to_owned(), value, file: false, masked: false, raw: false }
}

/// Lines without `=` are ignored.
fn environment(job: &Job) -> impl Iterator<Item = (&str, &str)> {
    job.settings.environment.iter().filter_map(|line| line.split_once('='))
}

/// What the job may override.
fn base(list: &mut Vec<Variable>, job: &Job, payload: &Payload, paths: &Paths) {
    if !payload.image.name.is_empty() {
        list.push(own("CI_JOB_IMAGE", payload.image.name.clone()));
    }
    list.push(own("CI_RUNNER_SHORT_TOKEN", job.settings.short_token.clone()));
    list.extend(environment(job).map(|(key, value)| own(key, value.to_owned())));
    for (key, value) in [
        ("CI_BUILDS_DIR", text(&paths.builds)),
        ("CI_PROJECT_DIR", text(&paths.project)),
        ("CI_CONCURRENT_ID", job.slot.to_string()),
        ("CI_CONCURRENT_PROJECT_ID", job.project_slot.to_string()),
        ("CI_SERVER", "yes".to_owned()),
        ("CI_JOB_STATUS", "running".to_owned()),
        ("CI_JOB_TIMEOUT", job.timeout.as_secs().to_string()),
    ] {
        list.push(own(key, value));
    }
    if !job.server.ca.is_empty() {
        list.push(Variable { file: true, raw: true, ..own("CI_SERVER_TLS_CA_FILE", job.server.ca.clone()) });
    }
}

/// What the job cannot override.
fn late(list: &mut Vec<Variable>, job: &Job, payload: &Payload, flags: &Flags, paths: &Paths) {
    for (key, value) in [
        ("CI_SHARED_ENVIRONMENT", "true".to_owned()),
        ("CI_RUNNER_VERSION", env!("CARGO_PKG_VERSION").to_owned()),
        ("CI_RUNNER_REVISION", REVISION.unwrap_or("release").to_owned()),
        ("CI_RUNNER_EXECUTABLE_ARCH", format!("{}/{}", platform(), architecture())),
        ("RUNNER_TEMP_PROJECT_DIR", text(&paths.temp)),
    ] {
        list.push(own(key, value));
    }
    if flags.on(Flag::FF_NETWORK_PER_BUILD) {
        let (token, project) = (&job.settings.short_token, payload.job_info.project_id);
        let name = format!("runner-{token}-{project}-{}-{}", job.project_slot, payload.id).to_lowercase();
        let name = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        list.push(own("CI_BUILD_NETWORK_NAME", name));
    }
}

fn is_identifier(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.as_bytes()[0].is_ascii_digit()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
