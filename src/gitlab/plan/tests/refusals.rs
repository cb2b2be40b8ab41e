//! Jobs that cannot run as they are, and what a plan says beside its stages.

use serde_json::json;

use super::{job, run, script};
use crate::forge::Framing;
use crate::model::Why;

#[test]
fn what_cannot_be_run_fails_with_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let variable = |key: &str, value: &str| json!({"variables": [{"key": key, "value": value}]});
    for (more, line) in [
        (
            variable("BIG", &"x".repeat(1 << 20)),
            "the variable \"BIG\" is 1048576 bytes long, and no process can be given more than 131067: make it a variable of type file",
        ),
        (
            variable("A-B", ""),
            "the variable name \"A-B\" cannot be used: a name has letters, digits and _ only, and no digit first",
        ),
        (
            variable("1A", ""),
            "the variable name \"1A\" cannot be used: a name has letters, digits and _ only, and no digit first",
        ),
        (
            variable("N", "a\0b"),
            "the variable \"N\" has a NUL byte in its value, which no process can be given: encode it, for example with base64",
        ),
        (variable("GIT_CLONE_PATH", "/x"), "setting GIT_CLONE_PATH is not allowed, enable `custom_build_dir` feature"),
        (
            json!({"run": "[]"}),
            "native step execution (e.g. the `run:` keyword) on this executor requires the FF_CONCRETE feature flag to be enabled",
        ),
        (
            json!({"steps": [script(&["a", "b\0"])]}),
            "command 2 of the step \"script\" has a NUL byte, which no shell can read",
        ),
    ] {
        let ran = run(&job(dir.path(), more));
        assert!(ran.log.ends_with(&format!("system ID: s_1\nERROR: Job failed: {line}\n")), "{}", ran.log);
        assert_eq!((ran.outcome.why, ran.processes), (Some(Why::Configuration), 0));
    }
}

#[test]
fn a_job_that_asks_for_an_unknown_option_gets_a_bare_line() {
    let dir = tempfile::tempdir().unwrap();
    for (more, line) in [
        (
            json!({"image": {"name": "a", "executor_opts": {"docker": {"cpus": 1}}}}),
            "Unsupported \"image\" options [cpus] for \"docker executor\"; supported options are [platform user]",
        ),
        (json!({"run": "[{}]", "steps": [script(&["a"])]}), "the `run` and `script` keywords cannot be used together"),
        (
            json!({"run": "[{}]", "variables": [{"key": "STEPS", "value": ""}]}),
            "the `run` keyword requires the exclusive use of the variable STEPS",
        ),
    ] {
        let job = job(dir.path(), more);
        let ran = run(&job);
        assert_eq!(ran.log, format!("{line}\n"));
        assert_eq!((ran.outcome.why, ran.outcome.exit_code), (Some(Why::System), Some(3)));
        assert_eq!(crate::forges::plan(&job).unwrap().format.framing, Framing::Bare);
    }
}

#[test]
fn values_to_hide_are_the_expanded_ones() {
    let dir = tempfile::tempdir().unwrap();
    let variables = json!([
        {"key": "A", "value": "se$B", "masked": true}, {"key": "B", "value": "cret"},
        {"key": "F", "value": "in a file", "file": true, "masked": true},
    ]);
    let script = crate::forges::plan(&job(dir.path(), json!({"variables": variables}))).unwrap();
    assert_eq!(script.masks.iter().map(|m| m.reveal()).collect::<Vec<_>>(), ["secret", "in a file"]);
    assert_eq!(script.format.limit, Some(1 << 20));
    assert!(script.format.token_prefixes.contains(&"glpat-".to_owned()));
}

#[test]
fn a_malformed_job_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut broken = job(dir.path(), json!({}));
    broken.payload = serde_json::value::to_raw_value(&json!({"steps": "none"})).unwrap();
    let line = crate::forges::plan(&broken).unwrap_err();
    assert!(line.contains("\"steps\"") && !line.contains('\n'), "{line}");
}

#[test]
fn a_spool_job_needs_nothing_but_its_steps() {
    let dir = tempfile::tempdir().unwrap();
    let mut spool = job(dir.path(), json!({}));
    spool.payload = serde_json::value::to_raw_value(&json!({"steps": [script(&["pwd"])]})).unwrap();
    spool.settings.short_token = String::new();
    spool.settings.entry = "my spool".to_owned();
    let ran = run(&spool);
    let want = dir.path().join("builds/my_spool/0/project-3");
    assert!(ran.log.contains(&format!("\n{}\n", want.display())) && !ran.log.contains("section"), "{}", ran.log);
    assert!(ran.log.ends_with("Job succeeded\n"));
}
