//! A job file: GitLab's job JSON with everything optional but the script, and a few shorter ways to say
//! it. From its text to a [`Job`] whose payload GitLab's plan reads; opens nothing.

use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::config::Entry;
use crate::gitlab::wire::{DEFAULT_TIMEOUT, Payload};
use crate::model::{ForgeKind, Job, Server, VERSION};

/// The error is the reason that stands beside the file in `failed/`.
pub(super) fn read(text: &[u8], name: &str, entry: &Entry) -> Result<Job, String> {
    let Value::Object(mut file) = serde_json::from_slice(text).map_err(|e| format!("this is not JSON: {e}"))? else {
        return Err("expected an object such as {\"script\": [\"echo hello\"]}".to_owned());
    };
    let steps = steps(&mut file)?;
    let called = taken_string(&mut file, "name")?.unwrap_or_else(|| name.to_owned());
    let timeout = timeout(&mut file)?;
    let variables = variables(file.remove("variables"))?;

    // A number that is the same at each try, and that no server gave away: nobody looks it up.
    let id = file.get("id").and_then(Value::as_i64).unwrap_or((super::hash(name.as_bytes()) >> 33) as i64);
    file.insert("id".to_owned(), id.into());
    file.insert("steps".to_owned(), steps);
    let info = object(&mut file, "job_info")?;
    info.entry("name").or_insert_with(|| called.clone().into());
    info.entry("stage").or_insert_with(|| "spool".into());
    let called = info.get("name").and_then(Value::as_str).unwrap_or(name).to_owned();
    let project = info.get("project_id").and_then(Value::as_i64).unwrap_or(0);
    let runner = object(&mut file, "runner_info")?;
    if let Some(seconds) = timeout {
        runner.insert("timeout".to_owned(), seconds.into());
    }
    let seconds = runner.get("timeout").and_then(Value::as_u64).filter(|s| *s > 0).unwrap_or(DEFAULT_TIMEOUT);
    let mut all = defaults(id, &called);
    all.extend(variables);
    file.insert("variables".to_owned(), all.into());

    let payload = RawValue::from_string(Value::Object(file).to_string()).map_err(|e| e.to_string())?;
    Payload::read(&payload)?;
    Ok(Job {
        version: VERSION,
        forge: ForgeKind::Spool,
        id: id.to_string(),
        project: project.to_string(),
        name: called,
        timeout: Duration::from_secs(seconds),
        slot: 0,
        project_slot: 0,
        settings: entry.settings(),
        server: Server::default(),
        payload,
    })
}

/// What a server would have set. They come first, so that the file's own win.
fn defaults(id: i64, name: &str) -> Vec<Value> {
    let id = id.to_string();
    // A log that is a plain file reads best without times and without a checkout that nobody asked for.
    [("GIT_STRATEGY", "none"), ("FF_TIMESTAMPS", "false"), ("CI", "true"), ("CI_JOB_ID", &id), ("CI_JOB_NAME", name)]
        .map(|(key, value)| json!({"key": key, "value": value, "public": true}))
        .to_vec()
}

fn steps(file: &mut Map<String, Value>) -> Result<Value, String> {
    let (script, after) = (file.remove("script"), file.remove("after_script"));
    if let Some(steps) = file.remove("steps").filter(|s| !s.is_null()) {
        if script.is_some() || after.is_some() {
            return Err("`steps` and `script` say the same thing; keep one of them".to_owned());
        }
        if steps.as_array().is_none_or(|s| s.iter().all(|step| step["script"].as_array().is_none_or(Vec::is_empty))) {
            return Err("`steps`: expected a list with at least one script".to_owned());
        }
        return Ok(steps);
    }
    let Some(script) = script else {
        return Err("it has no script; the shortest job is {\"script\": [\"echo hello\"]}".to_owned());
    };
    let mut steps = vec![json!({"name": "script", "script": lines("script", script)?})];
    if let Some(after) = after {
        steps.push(json!({"name": "after_script", "script": lines("after_script", after)?, "when": "always"}));
    }
    Ok(steps.into())
}

fn lines(key: &str, value: Value) -> Result<Value, String> {
    match value {
        Value::String(line) => Ok(json!([line])),
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_string) => Ok(Value::Array(list)),
        _ => Err(format!("`{key}`: expected a command or a list of commands")),
    }
}

fn timeout(file: &mut Map<String, Value>) -> Result<Option<u64>, String> {
    match file.remove("timeout") {
        None | Some(Value::Null) => Ok(None),
        Some(v) => match v.as_u64().filter(|s| *s > 0) {
            Some(seconds) => Ok(Some(seconds)),
            None => Err(format!("`timeout`: expected whole seconds, found {v}")),
        },
    }
}

/// GitLab's list, or an object of values: `{"KEY": "value", "SECRET": {"value": "…", "masked": true}}`.
fn variables(value: Option<Value>) -> Result<Vec<Value>, String> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list),
        Some(Value::Object(map)) => map.into_iter().map(|(key, value)| variable(&key, value)).collect(),
        Some(_) => Err("`variables`: expected {\"KEY\": \"value\"} or GitLab's list".to_owned()),
    }
}

fn variable(key: &str, value: Value) -> Result<Value, String> {
    let mut row = match value {
        Value::Object(map) => map,
        plain => Map::from_iter([("value".to_owned(), plain)]),
    };
    let text = match row.remove("value") {
        Some(Value::String(s)) => s,
        Some(v @ (Value::Number(_) | Value::Bool(_))) => v.to_string(),
        _ => return Err(format!("variable {key:?}: expected a string, a number, true or false")),
    };
    row.insert("key".to_owned(), key.into());
    row.insert("value".to_owned(), text.into());
    Ok(Value::Object(row))
}

fn taken_string(file: &mut Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match file.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(s)) => Ok(Some(s)),
        Some(v) => Err(format!("`{key}`: expected a string, found {v}")),
    }
}

fn object<'f>(file: &'f mut Map<String, Value>, key: &str) -> Result<&'f mut Map<String, Value>, String> {
    let value = file.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().ok_or_else(|| format!("`{key}`: expected an object"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config;

    pub(in crate::spool) fn entry(text: &str) -> Entry {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, text).unwrap();
        config::load(&path).unwrap().entries.remove(0)
    }

    fn job(text: &str) -> Result<Job, String> {
        let entry = entry("state_dir = '/nowhere'\n[[runners]]\nurl = 'file:///s'\n");
        read(text.as_bytes(), "x", &entry)
    }

    fn check(text: &str, want: &str) {
        let job = job(text).unwrap();
        let payload: Value = serde_json::from_str(job.payload.get()).unwrap();
        let vars: Vec<String> = payload["variables"]
            .as_array()
            .unwrap()
            .iter()
            .skip(defaults(0, "").len())
            .map(|v| {
                format!(
                    "{}={}{}",
                    v["key"].as_str().unwrap(),
                    v["value"].as_str().unwrap(),
                    if v["masked"] == true { "*" } else { "" }
                )
            })
            .collect();
        let got = format!("{} {}s {} {}", job.name, job.timeout.as_secs(), payload["steps"], vars.join(","));
        assert_eq!(got, want, "{text}");
    }

    #[test]
    fn a_script_is_a_job() {
        check(r#"{"script":["echo hi"]}"#, r#"x 7200s [{"name":"script","script":["echo hi"]}] "#);
        check(
            r#"{"script":"a","after_script":["b"],"name":"n","timeout":3,"variables":{"A":1,"B":{"value":"s","masked":true}}}"#,
            r#"n 3s [{"name":"script","script":["a"]},{"name":"after_script","script":["b"],"when":"always"}] A=1,B=s*"#,
        );
        check(
            r#"{"id":7,"steps":[{"name":"script","script":["a"]}],"runner_info":{"timeout":9},"variables":[{"key":"A","value":"b"}],"job_info":{"name":"g"}}"#,
            r#"g 9s [{"name":"script","script":["a"]}] A=b"#,
        );
    }

    #[test]
    fn a_malformed_file_has_a_reason() {
        for (text, want) in [
            ("{", "this is not JSON: EOF while parsing an object at line 1 column 1"),
            ("[]", "expected an object such as {\"script\": [\"echo hello\"]}"),
            ("{}", "it has no script; the shortest job is {\"script\": [\"echo hello\"]}"),
            (r#"{"steps":[]}"#, "`steps`: expected a list with at least one script"),
            (r#"{"script":[]}"#, "`script`: expected a command or a list of commands"),
            (r#"{"script":["a",1]}"#, "`script`: expected a command or a list of commands"),
            (r#"{"script":"a","timeout":"soon"}"#, "`timeout`: expected whole seconds, found \"soon\""),
            (r#"{"script":"a","variables":{"A":[]}}"#, "variable \"A\": expected a string, a number, true or false"),
            (r#"{"script":"a","variables":3}"#, "`variables`: expected {\"KEY\": \"value\"} or GitLab's list"),
            (r#"{"script":"a","job_info":3}"#, "`job_info`: expected an object"),
        ] {
            assert_eq!(job(text).unwrap_err(), want, "{text}");
        }
        assert!(job(r#"{"script":"a","cache":3}"#).unwrap_err().starts_with("The job's \"cache\" cannot be read"));
    }
}
