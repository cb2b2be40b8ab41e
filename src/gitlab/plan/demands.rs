//! What a job asks for that cannot be: it fails with these words, or it runs and its log says what is
//! left out.

use crate::gitlab::wire::{Image, Payload};

use super::variables::Variables;

/// Why the job is refused before anything of it is looked at (protocol §1.5.5): the whole log. Several
/// reasons are several lines.
pub(super) fn illegal(payload: &Payload) -> Option<String> {
    let mut said = unsupported("image", &payload.image);
    for service in &payload.services {
        said.extend(unsupported("service", service));
    }
    if !payload.run.is_empty() {
        if payload.steps.iter().any(|s| !s.script.is_empty()) {
            said.push("the `run` and `script` keywords cannot be used together".to_owned());
        } else if payload.variables.iter().any(|v| v.key == "STEPS") {
            said.push("the `run` keyword requires the exclusive use of the variable STEPS".to_owned());
        }
    }
    (!said.is_empty()).then(|| said.join("\n"))
}

/// Why the job cannot run as it is configured.
pub(super) fn impossible(payload: &Payload, vars: &Variables) -> Result<(), String> {
    vars.check()?;
    if !payload.run.is_empty() {
        return Err("native step execution (e.g. the `run:` keyword) on this executor requires the FF_CONCRETE \
                    feature flag to be enabled"
            .to_owned());
    }
    if let Some(name) = payload.secrets.keys().next() {
        return Err(format!("this version cannot fetch secrets from a vault, and the job needs {name:?}"));
    }
    for step in &payload.steps {
        if let Some(n) = step.script.iter().position(|line| line.contains('\0')) {
            return Err(format!(
                "command {} of the step {:?} has a NUL byte, which no shell can read",
                n + 1,
                step.name
            ));
        }
    }
    Ok(())
}

/// What this version leaves out, one warning each. `server`: the coordinator's URL.
pub(super) fn left_out(payload: &Payload, server: &str) -> Vec<&'static str> {
    let mut said = Vec::new();
    if !server.starts_with("http") && payload.artifacts.iter().any(|a| a.untracked || !a.paths.is_empty()) {
        said.push("a spool takes no artifacts: what the job makes stays on this host");
    }
    said
}

fn unsupported(what: &str, image: &Image) -> Vec<String> {
    let found = image.unsupported_options();
    let of = |executor: &str, supported: &str| {
        let keys: Vec<&str> = found
            .iter()
            .filter_map(|f| f.split_once('.'))
            .filter(|(e, _)| *e == executor)
            .map(|(_, key)| key)
            .collect();
        (!keys.is_empty()).then(|| {
            format!(
                "Unsupported {what:?} options [{}] for \"{executor} executor\"; supported options are [{supported}]",
                keys.join(" ")
            )
        })
    };
    let executors: Vec<&str> = found.iter().filter(|f| !f.contains('.')).map(String::as_str).collect();
    let mut said = Vec::new();
    if !executors.is_empty() {
        said.push(format!(
            "Unsupported {what:?} options [{}] for \"executor_opts\"; supported options are [docker kubernetes]",
            executors.join(" ")
        ));
    }
    said.extend(of("docker", "platform user"));
    said.extend(of("kubernetes", "user"));
    said
}
