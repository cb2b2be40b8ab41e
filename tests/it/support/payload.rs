//! Jobs as GitLab hands them out (protocol §1.5.6), built from a script and what differs from the rest.

use serde_json::{Map, Value, json};

/// Reasons that a current server offers (protocol §4.5).
const REASONS: [&str; 9] = [
    "unknown_failure",
    "script_failure",
    "api_failure",
    "runner_system_failure",
    "job_execution_timeout",
    "runner_unsupported",
    "runner_configuration_error",
    "runner_external_dependency_failure",
    "runner_interrupted",
];

#[derive(Clone, Debug)]
pub(crate) struct Payload {
    id: Option<u64>,
    script: Vec<String>,
    after: Vec<String>,
    variables: Vec<Value>,
    timeout: u64,
    project: u64,
    name: String,
    strategy: Option<String>,
    over: Map<String, Value>,
}

impl Payload {
    pub(crate) fn script(lines: &[&str]) -> Payload {
        Payload {
            id: None,
            script: lines.iter().map(ToString::to_string).collect(),
            after: Vec::new(),
            variables: Vec::new(),
            timeout: 600,
            project: 7,
            name: "unit".to_owned(),
            strategy: Some("none".to_owned()),
            over: Map::new(),
        }
    }

    pub(crate) fn after(mut self, lines: &[&str]) -> Payload {
        self.after = lines.iter().map(ToString::to_string).collect();
        self
    }

    pub(crate) fn id(mut self, id: u64) -> Payload {
        self.id = Some(id);
        self
    }

    pub(crate) fn project(mut self, project: u64) -> Payload {
        self.project = project;
        self
    }

    /// Seconds.
    pub(crate) fn timeout(mut self, seconds: u64) -> Payload {
        self.timeout = seconds;
        self
    }

    pub(crate) fn var(self, key: &str, value: &str) -> Payload {
        self.variable(json!({"key": key, "value": value, "public": true, "masked": false}))
    }

    pub(crate) fn masked(self, key: &str, value: &str) -> Payload {
        self.variable(json!({"key": key, "value": value, "public": false, "masked": true}))
    }

    pub(crate) fn raw(self, key: &str, value: &str) -> Payload {
        self.variable(json!({"key": key, "value": value, "public": true, "masked": false, "raw": true}))
    }

    pub(crate) fn file(self, key: &str, content: &str) -> Payload {
        self.variable(json!({"key": key, "value": content, "public": false, "masked": false, "file": true}))
    }

    pub(crate) fn variable(mut self, variable: Value) -> Payload {
        self.variables.push(variable);
        self
    }

    /// `GIT_STRATEGY`; `none` unless set.
    pub(crate) fn strategy(mut self, strategy: Option<&str>) -> Payload {
        self.strategy = strategy.map(str::to_owned);
        self
    }

    /// Sets or replaces a field at the top.
    pub(crate) fn set(mut self, key: &str, value: Value) -> Payload {
        self.over.insert(key.to_owned(), value);
        self
    }

    pub(crate) fn wanted_id(&self) -> Option<u64> {
        self.id
    }

    pub(crate) fn build(self, id: u64, token: &str, url: &str) -> Value {
        let host = url.trim_start_matches("http://");
        let repo = format!("http://gitlab-ci-token:{token}@{host}/group/demo.git");
        let public = |key: &str, value: &str| json!({"key": key, "value": value, "public": true, "masked": false});
        let mut variables = vec![
            public("CI", "true"),
            public("GITLAB_CI", "true"),
            public("CI_JOB_ID", &id.to_string()),
            public("CI_JOB_NAME", &self.name),
            public("CI_PROJECT_ID", &self.project.to_string()),
            public("CI_PROJECT_PATH", "group/demo"),
            json!({"key": "CI_JOB_TOKEN", "value": token, "public": false, "masked": true}),
            json!({"key": "CI_REPOSITORY_URL", "value": repo, "public": false, "masked": false}),
        ];
        variables.extend(self.strategy.map(|s| public("GIT_STRATEGY", &s)));
        variables.extend(self.variables);
        let step = |name: &str, script: &[String], when: &str| {
            json!({"name": name, "script": script, "timeout": self.timeout, "when": when,
                   "allow_failure": name == "after_script"})
        };
        let mut steps = vec![step("script", &self.script, "on_success")];
        if !self.after.is_empty() {
            steps.push(step("after_script", &self.after, "always"));
        }
        let mut job = json!({
            "id": id, "token": token, "allow_git_fetch": true,
            "job_info": {"id": id, "name": self.name, "stage": "test", "pipeline_id": 77, "project_id": self.project,
                "project_name": "demo", "project_full_path": "group/demo", "namespace_id": 3, "root_namespace_id": 3,
                "organization_id": 1, "instance_id": "i-1", "instance_uuid": "u-1", "user_id": 8,
                "scoped_user_id": null, "time_in_queue_seconds": 1.25,
                "project_jobs_running_on_instance_runners_count": "+Inf", "queue_size": 2, "queue_depth": 1},
            "git_info": {"repo_url": repo, "ref": "main", "sha": "3f1d2c4b5a69788796a5b4c3d2e1f0a9b8c7d6e5",
                "before_sha": "0".repeat(40), "ref_type": "branch", "depth": 20, "repo_object_format": "sha1",
                "refspecs": ["+refs/heads/main:refs/remotes/origin/main"], "protected": null},
            "runner_info": {"uuid": "0f9a", "timeout": self.timeout, "runner_session_url": null},
            "inputs": [], "variables": variables, "steps": steps, "hooks": [], "image": null, "services": null,
            "artifacts": null, "cache": [], "credentials": [], "dependencies": [],
            "features": {"trace_sections": true, "token_mask_prefixes": ["glpat-"], "failure_reasons": REASONS},
        });
        for (key, value) in self.over {
            job[key] = value;
        }
        job
    }
}
