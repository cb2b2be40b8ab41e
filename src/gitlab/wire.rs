//! What goes over GitLab's wire: the job as handed out, and below `wire/` the requests and the answers.
//! Data and its reading only; no connection, no decision. Nothing of it leaves the forge (invariant 10);
//! the spool may use the job's types, because its jobs are written in them.
//!
//! A job is read in two steps. [`Head`] takes what a lease needs and forgives everything else; only the
//! job process reads the whole [`Payload`]. So a job that is malformed somewhere still has a lease, and
//! fails with one clear line instead of being lost between the server and us.

pub mod answer;
pub mod request;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::model::Secret;

/// Structs of the job: every field may be absent or null and is empty then; unknown ones are ignored.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$field_doc])* #[serde(deserialize_with = "null_is_empty")] pub $field: $type,)*
        }
    )*};
}

wire! {
    /// A job as handed out (protocol §1.5.6). `run` is not here: see [`Payload::read`].
    Payload {
        id: i64,
        token: Secret,
        allow_git_fetch: bool,
        job_info: JobInfo,
        git_info: GitInfo,
        runner_info: RunnerInfo,
        /// Each a key and a value with its type (§1.5.11).
        inputs: Vec<Value>,
        variables: Vec<Variable>,
        steps: Vec<Step>,
        image: Image,
        services: Vec<Image>,
        artifacts: Vec<Artifact>,
        cache: Vec<Cache>,
        credentials: Vec<Credentials>,
        dependencies: Vec<Dependency>,
        features: Features,
        /// By name; each names one provider (§1.5.13).
        secrets: BTreeMap<String, Value>,
        hooks: Vec<Hook>,
        policy_options: PolicyOptions,
        /// Steps in the step-runner's language: JSON in a string (§1.5.12).
        run: String,
    }

    JobInfo {
        id: i64,
        name: String,
        stage: String,
        pipeline_id: i64,
        project_id: i64,
        project_name: String,
        project_full_path: String,
        namespace_id: i64,
        root_namespace_id: i64,
        organization_id: i64,
        instance_id: String,
        instance_uuid: String,
        user_id: i64,
        scoped_user_id: i64,
        time_in_queue_seconds: f64,
        /// A number in words: it may be `5+` or `+Inf`.
        project_jobs_running_on_instance_runners_count: String,
        queue_size: i64,
        queue_depth: i64,
    }

    GitInfo {
        repo_url: String,
        /// `sha1` unless set.
        repo_object_format: String,
        #[serde(rename = "ref")]
        reference: String,
        sha: String,
        before_sha: String,
        /// `branch` or `tag`.
        ref_type: String,
        refspecs: Vec<String>,
        /// 0: the whole history.
        depth: i64,
        /// `None`: as the first `CI_COMMIT_REF_PROTECTED` says.
        protected: Option<bool>,
    }

    RunnerInfo {
        uuid: String,
        /// The job's time limit in seconds; not positive: [`DEFAULT_TIMEOUT`].
        timeout: i64,
    }

    /// The order counts, and of equal keys the last one (§1.5.8).
    Variable {
        key: String,
        value: String,
        public: bool,
        file: bool,
        masked: bool,
        raw: bool,
    }

    Step {
        name: String,
        script: Vec<String>,
        /// Not heeded, as in the reference.
        timeout: i64,
        when: String,
        allow_failure: bool,
    }

    /// An image or a service (§1.5.10).
    Image {
        name: String,
        alias: String,
        command: Vec<String>,
        entrypoint: Vec<String>,
        ports: Vec<Value>,
        variables: Vec<Variable>,
        pull_policy: Vec<String>,
        executor_opts: BTreeMap<String, Value>,
    }

    Artifact {
        name: String,
        untracked: bool,
        paths: Vec<String>,
        exclude: Vec<String>,
        when: String,
        artifact_type: String,
        artifact_format: String,
        expire_in: String,
    }

    Cache {
        key: String,
        untracked: bool,
        policy: String,
        paths: Vec<String>,
        when: String,
        fallback_keys: Vec<String>,
    }

    Credentials {
        #[serde(rename = "type")]
        kind: String,
        url: String,
        username: String,
        password: Secret,
    }

    Dependency {
        id: i64,
        token: Secret,
        name: String,
        artifacts_file: ArtifactsFile,
    }

    ArtifactsFile {
        filename: String,
        size: i64,
    }

    Features {
        trace_sections: bool,
        token_mask_prefixes: Vec<String>,
        /// The reasons of failure that the server knows (§4.3).
        failure_reasons: Vec<String>,
    }

    Hook {
        name: String,
        script: Vec<String>,
    }

    PolicyOptions {
        execution_policy_job: bool,
        policy_name: String,
        policy_variables_override_allowed: Option<bool>,
        policy_variables_override_exceptions: Vec<String>,
    }
}

/// The time limit of a job that names none, in seconds.
pub const DEFAULT_TIMEOUT: u64 = 7200;

impl Payload {
    /// The whole job. The error is one line for the job's log and names the part that cannot be read.
    pub fn read(text: &RawValue) -> Result<Payload, String> {
        let parts: BTreeMap<String, &RawValue> =
            serde_json::from_str(text.get()).map_err(|e| format!("The job cannot be read: {e}"))?;
        let payload = serde_json::from_str::<Payload>(text.get()).map_err(|whole| {
            let bad = parts.iter().find_map(|(key, part)| {
                let alone = format!("{{{}:{}}}", Value::from(key.as_str()), part.get());
                serde_json::from_str::<Payload>(&alone).err().map(|e| (key, e))
            });
            match bad {
                Some((key, e)) => format!("The job's {key:?} cannot be read: {}", without_place(&e)),
                None => format!("The job cannot be read: {whole}"),
            }
        })?;
        // An empty list is a job that only prepares and cleans up; none at all is half a job.
        let has = |key: &str| parts.get(key).is_some_and(|part| part.get() != "null");
        if has("steps") || has("run") { Ok(payload) } else { Err("The job has no \"steps\"".to_owned()) }
    }
}

impl Image {
    /// The options of an executor that this runner does not know (§1.5.10): the job asks for what it
    /// would not get.
    pub fn unsupported_options(&self) -> Vec<String> {
        let known = |executor: &str, key: &str| {
            matches!((executor, key), ("docker", "platform" | "user") | ("kubernetes", "user"))
        };
        let mut found = Vec::new();
        for (executor, options) in &self.executor_opts {
            match options {
                Value::Object(map) if matches!(executor.as_str(), "docker" | "kubernetes") => {
                    found.extend(map.keys().filter(|k| !known(executor, k)).map(|k| format!("{executor}.{k}")));
                }
                Value::Null => {}
                _ => found.push(executor.clone()),
            }
        }
        found
    }
}

/// What a lease needs of a job; what is malformed is empty here and told by [`Payload::read`].
#[derive(Clone, Debug)]
pub struct Head {
    pub id: i64,
    pub token: Secret,
    pub job_info: JobInfo,
    /// In seconds, the default filled in.
    pub timeout: u64,
    pub failure_reasons: Vec<String>,
    /// The job's log may show secrets: GitLab limits who may read it. `None`: the job does not say.
    pub debug_trace: Option<bool>,
}

impl Head {
    /// The error says why there is no job in it: not an object, no id, no token.
    pub fn read(text: &RawValue) -> Result<Head, String> {
        let parts: BTreeMap<String, &RawValue> =
            serde_json::from_str(text.get()).map_err(|e| format!("it is no object: {e}"))?;
        let id = part::<i64>(&parts, "id");
        let token = part::<Secret>(&parts, "token");
        if id == 0 || token.is_empty() {
            return Err("it has no id or no token".to_owned());
        }
        let timeout = part::<RunnerInfo>(&parts, "runner_info").timeout;
        let variables: Vec<Variable> = part::<Vec<Value>>(&parts, "variables")
            .into_iter()
            .filter_map(|v| serde_json::from_value(v).ok())
            .collect();
        Ok(Head {
            id,
            token,
            job_info: part(&parts, "job_info"),
            timeout: u64::try_from(timeout).ok().filter(|&t| t > 0).unwrap_or(DEFAULT_TIMEOUT),
            failure_reasons: part::<Features>(&parts, "features").failure_reasons,
            debug_trace: debug_trace(&variables),
        })
    }
}

/// One part of a job, empty where it is absent, null or malformed.
fn part<T: Default + for<'de> Deserialize<'de>>(parts: &BTreeMap<String, &RawValue>, key: &str) -> T {
    parts.get(key).and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

/// Whether these variables ask for a debug trace; `None` when they do not say. Of equal keys the last
/// one counts.
pub fn debug_trace(variables: &[Variable]) -> Option<bool> {
    let last = |key: &str| variables.iter().rfind(|v| v.key == key).map(|v| v.value.as_str());
    let is_on = |value: &str| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    let said = ["CI_DEBUG_TRACE", "CI_DEBUG_SERVICES"].map(last);
    said.iter().flatten().copied().map(is_on).reduce(|a, b| a || b)
}

fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

/// A parse error without its line and column, which would point into text that nobody sees.
fn without_place(e: &serde_json::Error) -> String {
    let text = e.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(what, _)| what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn nulls_are_empty_and_unknown_fields_are_ignored() {
        let payload = Payload::read(&raw(
            r#"{"id":7,"token":"t","image":null,"services":[{"name":"db","command":null,"alias":null}],
                "artifacts":null,"variables":[{"key":"A","value":null}],"git_info":{"protected":null,"ref":"main"},
                "hooks":null,"job_info":{"scoped_user_id":null},"run":null,"steps":[],"news":{"x":1}}"#,
        ))
        .unwrap();
        assert_eq!((payload.id, payload.git_info.reference.as_str()), (7, "main"));
        assert_eq!(payload.services[0].name, "db");
        assert!(payload.artifacts.is_empty() && payload.git_info.protected.is_none());
    }

    #[test]
    fn a_malformed_part_is_named_in_one_line() {
        for (text, want) in [
            (r#"{"id":1,"steps":[{"script":"no list"}]}"#, "The job's \"steps\" cannot be read: invalid type"),
            (r#"{"variables":[{"key":"A","value":5}],"id":1}"#, "The job's \"variables\" cannot be read"),
            ("[1]", "The job cannot be read"),
            (r#"{"id":1,"steps":null}"#, "The job has no \"steps\""),
        ] {
            let line = Payload::read(&raw(text)).unwrap_err();
            assert!(line.starts_with(want) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_lease_is_read_from_a_job_that_is_malformed_elsewhere() {
        let head =
            Head::read(&raw(r#"{"id":9,"token":"t","steps":"rubbish","job_info":[],"runner_info":{"timeout":-1},
                "variables":[{"key":"CI_DEBUG_TRACE","value":"false"},{"key":"CI_DEBUG_TRACE","value":"true"},5]}"#))
            .unwrap();
        assert_eq!((head.id, head.timeout, head.debug_trace), (9, 7200, Some(true)));
        assert!(head.job_info.name.is_empty());
        for text in ["[]", "3", r#"{"id":1}"#, r#"{"token":"t"}"#, r#"{"id":"x","token":"t"}"#] {
            assert!(Head::read(&raw(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn options_that_no_executor_has_are_found() {
        let image = |opts: &str| -> Image { serde_json::from_str(&format!(r#"{{"executor_opts":{opts}}}"#)).unwrap() };
        for (opts, want) in [
            (r#"{"docker":{"platform":"linux/arm64","user":1000},"kubernetes":{"user":"1:1"}}"#, &[][..]),
            (r#"{"docker":{"cpus":1},"podman":{}}"#, &["docker.cpus", "podman"]),
            ("{}", &[]),
        ] {
            assert_eq!(image(opts).unsupported_options(), want, "{opts}");
        }
    }
}
