//! The sources' commands where no server is needed: what git is asked, with which configuration, and the
//! limits of the entry. `tests/it/git.rs` has the rest.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::{What, job, run, run_with, script};
use crate::forge::How;
use crate::model::{Job, Why};

/// A job that has a `git` which says what it was asked and makes the directory of a clone.
fn job_with_git(dir: &std::path::Path, version: &str, variables: &[(&str, &str)]) -> Job {
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = version ] && {{ echo git version {version}; exit; }}\n\
         for a; do case $a in */demo) mkdir -p \"$a\";; esac; done\necho \"ran: $*\"\n"
    );
    std::fs::create_dir_all(dir.join("bin")).unwrap();
    std::fs::write(dir.join("bin/git"), text).unwrap();
    std::fs::set_permissions(dir.join("bin/git"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", dir.join("bin").display());
    let mut list = vec![json!({"key": "PATH", "value": path})];
    list.extend(variables.iter().map(|(k, v)| json!({"key": k, "value": v})));
    let info = json!({"repo_url": "http://u:secret-pw@h/group/demo.git", "ref": "main", "sha": "0123456789abcdef",
        "depth": 3, "refspecs": ["+refs/heads/main:refs/remotes/origin/main"]});
    job(dir, json!({"git_info": info, "variables": list, "steps": [script(&["true"])]}))
}

#[test]
fn a_native_clone_is_one_command_where_git_can_do_it() {
    let dir = tempfile::tempdir().unwrap();
    let flags =
        [("FF_USE_GIT_NATIVE_CLONE", "true"), ("GIT_STRATEGY", "clone"), ("GIT_CLONE_EXTRA_FLAGS", "--bare -x")];
    for (version, native) in
        [("2.49.1", true), ("2.49.0-rc1", true), ("3.0", true), ("2.39.5", false), ("1.99.0", false)]
    {
        let ran = run(&job_with_git(dir.path(), version, &flags));
        let project = dir.path().join("builds/golden-to/0/group/demo");
        let clone = format!(
            "clone --no-checkout http://h/group/demo.git {0} --template {0}.tmp/git-template --depth 3 --branch main --bare -x\n",
            project.display()
        );
        assert_eq!(ran.log.contains(&clone), native, "{}", ran.log);
        assert_eq!(ran.log.contains("Cloning repository for main with git depth set to 3...\n"), native);
        assert_eq!(ran.log.contains("fetch origin --no-recurse-submodules +refs/heads/main:"), !native, "{}", ran.log);
        assert!(ran.log.contains("Checking out 01234567 as detached HEAD (ref is main)...\n"));
        assert!(!ran.log.contains("secret-pw"));
    }
}

#[test]
fn a_flag_lets_git_log_in_before_it_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let ran =
        run(&job_with_git(dir.path(), "2.47.0", &[("FF_USE_GIT_PROACTIVE_AUTH", "true"), ("GIT_STRATEGY", "fetch")]));
    assert!(ran.log.contains("ran: -c http.http://h.proactiveAuth=basic -c http.userAgent=runner "), "{}", ran.log);
    assert!(ran.log.contains("proactiveAuth=basic -c submodule.recurse=false checkout -f -q 0123456789abcdef\n"));
}

/// Trap 37.
#[test]
fn the_entrys_certificates_reach_the_job_and_its_git() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job_with_git(dir.path(), "2.47.0", &[("GIT_STRATEGY", "fetch")]);
    job.server.ca = "-----BEGIN $X-----\n".to_owned();
    job.server.request_id = "req-1".to_owned();
    let lines = ["cat \"$CI_SERVER_TLS_CA_FILE\"", "cat \"$CI_PROJECT_DIR.tmp/.gitlab-runner.ext.conf\""];
    let payload = job.payload.get().replace("[\"true\"]", &serde_json::to_string(&lines).unwrap());
    job.payload = serde_json::value::RawValue::from_string(payload).unwrap();
    let ran = run(&job);
    let temp = dir.path().join("builds/golden-to/0/group/demo.tmp");
    let want = format!("[http \"http://h\"]\n\tsslCAInfo = \"{}/CI_SERVER_TLS_CA_FILE\"\n", temp.display());
    assert!(ran.log.contains("\n-----BEGIN $X-----\n") && ran.log.contains(&want), "{}", ran.log);
    assert!(ran.log.contains("Gitaly correlation ID: req-1\n") && ran.log.contains("X-Gitaly-Correlation-ID: req-1"));
    assert!(!ran.log.contains("secret-pw"), "{}", ran.log);
    assert_eq!(std::fs::read_dir(&temp).unwrap().count(), 1, "the template alone is left");
}

#[test]
fn a_preparation_that_takes_too_long_is_the_whole_job() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), json!({"steps": [script(&["true"])]}));
    job.settings.sources.prepare_timeout = std::time::Duration::from_secs(90);
    let temp = dir.path().join("builds/golden-to/0/group/demo.tmp");
    std::fs::create_dir_all(&temp).unwrap();
    std::fs::write(temp.join(".gitlab-runner.login"), "old").unwrap();
    let ran = run_with(&job, &[("prepare_script", What::Limit)]);
    assert!(ran.log.ends_with("ERROR: Job failed: prepare timeout: exceeded timeout of 1m30s\n"), "{}", ran.log);
    assert!(
        ran.log.contains("WARNING: prepare_script could not run to completion") && !ran.log.contains("get_sources")
    );
    assert_eq!((ran.outcome.why, ran.processes), (Some(Why::TimedOut), 1));
    let ran = run_with(&job, &[("prepare_script", What::Stop(How::Soft, Why::Canceled))]);
    assert!(ran.log.ends_with("ERROR: Job failed: canceled\n"), "{}", ran.log);
}

/// Invariant 9.
#[test]
fn no_command_of_ours_has_a_password_among_its_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let flags =
        [("GIT_STRATEGY", "fetch"), ("GIT_SUBMODULE_STRATEGY", "recursive"), ("FF_GIT_URLS_WITHOUT_TOKENS", "true")];
    let ran = run(&job_with_git(dir.path(), "2.47.0", &flags));
    assert!(ran.log.contains("ran: submodule foreach --recursive git clean -ffdx\n"), "{}", ran.log);
    assert!(!ran.log.contains("secret-pw"), "{}", ran.log);
    assert!(ran.log.ends_with("Job succeeded\n"), "{}", ran.log);
}
