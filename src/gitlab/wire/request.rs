//! The bodies of our requests, and what we say of ourselves in each.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::config::Entry;
use crate::model::{Secret, architecture, platform};

/// Every feature that a server may ask about, and whether this runner has it today. The server refuses
/// jobs that need one that is missing, which is right: only what is true is said here.
const FEATURES: [(&str, bool); 31] = [
    ("variables", true),
    ("image", false),
    ("services", false),
    ("artifacts", true),
    ("cache", false),
    ("fallback_cache_keys", false),
    ("shared", true),
    ("upload_multiple_artifacts", true),
    ("upload_raw_artifacts", true),
    ("session", false),
    ("terminal", false),
    ("refspecs", true),
    ("masking", true),
    ("proxy", false),
    ("raw_variables", true),
    ("artifacts_exclude", true),
    ("multi_build_steps", true),
    ("trace_reset", true),
    ("trace_checksum", true),
    ("trace_size", true),
    ("vault_secrets", false),
    ("cancelable", true),
    ("return_exit_code", true),
    ("service_variables", false),
    ("service_multiple_aliases", false),
    ("image_executor_opts", false),
    ("service_executor_opts", false),
    ("cancel_gracefully", true),
    ("native_steps_integration", false),
    ("two_phase_job_commit", true),
    ("job_inputs", true),
];

/// What we are (protocol §1.5.2). The server keeps the features and cancels gracefully only who has
/// said that it can.
pub fn info(entry: &Entry) -> Value {
    let is_custom = entry.executor == "custom";
    // A driver is told of the services and their variables, and may start them.
    let has = |name: &str, everywhere: bool| everywhere || is_custom && name == "service_variables";
    let features: Map<String, Value> = FEATURES.iter().map(|&(k, v)| (k.to_owned(), has(k, v).into())).collect();
    json!({
        "name": "runner",
        "version": env!("CARGO_PKG_VERSION"),
        "revision": option_env!("RUNNER_REVISION").unwrap_or("release"),
        "platform": platform(),
        "architecture": architecture(),
        "executor": entry.executor,
        "shell": entry.shell.as_str(),
        "features": features,
        "config": {"gpus": ""},
    })
}

/// `POST jobs/request`.
#[derive(Debug, Serialize)]
pub struct JobRequest<'a> {
    pub info: &'a Value,
    #[serde(skip_serializing_if = "Secret::is_empty")]
    pub token: &'a Secret,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub system_id: &'a str,
    /// Makes the server wait for a job; left out it answers at once.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub last_update: &'a str,
}

/// `PUT jobs/:id`.
#[derive(Debug, Serialize)]
pub struct Update<'a> {
    pub info: &'a Value,
    pub token: &'a Secret,
    pub state: State,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub failure_reason: &'a str,
    /// The same as in `output`, where older servers look for it.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub checksum: &'a str,
    pub output: Output<'a>,
    #[serde(skip_serializing_if = "is_zero")]
    pub exit_code: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Running,
    Success,
    Failed,
}

/// Always there, also when it is empty.
#[derive(Debug, Default, Serialize)]
pub struct Output<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub checksum: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    pub bytesize: i64,
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_is_left_out_except_the_output() {
        let (info, token) = (json!({}), Secret::new("t"));
        let update = Update {
            info: &info,
            token: &token,
            state: State::Running,
            failure_reason: "",
            checksum: "",
            output: Output::default(),
            exit_code: 0,
        };
        assert_eq!(serde_json::to_string(&update).unwrap(), r#"{"info":{},"token":"t","state":"running","output":{}}"#);
        let ask = JobRequest { info: &info, token: &token, system_id: "s_1", last_update: "" };
        assert_eq!(serde_json::to_string(&ask).unwrap(), r#"{"info":{},"token":"t","system_id":"s_1"}"#);
    }

    #[test]
    fn every_feature_is_named_once() {
        let names: std::collections::BTreeSet<_> = FEATURES.iter().map(|f| f.0).collect();
        assert_eq!(names.len(), 31);
    }
}
