//! What the cache stages put into their scripts. The scripts run in the real shell; in the runner's place
//! stands a program that says how it was called.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::{Ran, job, run, script};
use crate::cloud::{CacheSettings, S3, Store};
use crate::model::{Job, Secret, Shell, Verdict};

/// Succeeds where its archive's path has the part `found`.
const FAKE: &str = "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\nfor w; do printf '<%s>' \"$w\"; done\n\
                    printf ' %s\\n' \"$CACHE_METADATA\"\ncase \"$*\" in */found/*) exit 0;; esac\nexit 1\n";

/// A job of the custom executor, whose scripts look for `gitlab-runner`.
fn cached(dir: &Path, cache: Value, variables: Value) -> Job {
    fs::create_dir_all(dir.join("bin")).unwrap();
    let fake = dir.join("bin/gitlab-runner");
    fs::write(&fake, FAKE).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let mut all = vec![
        json!({"key": "GIT_STRATEGY", "value": "none"}),
        json!({"key": "PATH", "value": format!("{}/bin:/usr/bin:/bin", dir.display()), "raw": true}),
        json!({"key": "KEY", "value": "k"}),
    ];
    all.extend(variables.as_array().unwrap().iter().cloned());
    let mut job = job(dir, json!({"cache": cache, "variables": all, "steps": [script(&["true"])]}));
    job.settings.executor = "custom".to_owned();
    job
}

/// The lines of one section, the place of the job's directories as `DIR`.
fn section(ran: &Ran, dir: &Path, name: &str) -> String {
    let log = ran.log.replace(&dir.display().to_string(), "DIR");
    let Some((_, rest)) = log.split_once(&format!("<start {name}>\n")) else { return String::new() };
    rest.split_once(&format!("<end {name}>")).unwrap().0.split_once('\n').unwrap().1.to_owned()
}

const CALL: &str = "<cache-extractor><--file><DIR/cache/group/demo/KEY/cache.zip><--timeout><10> \n";

#[test]
fn t51_keys_are_tried_in_their_order_until_one_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let cache = json!([{"key": "$KEY", "paths": ["vendor/"], "fallback_keys": ["b-$KEY", "found", "never"]}]);
    let variables = json!([{"key": "CACHE_FALLBACK_KEY", "value": "last-protected. "}]);
    let ran = run(&cached(dir.path(), cache, variables));
    let said = |key: &str| format!("Checking cache for {key}...\n{}", CALL.replace("KEY", key));
    let want = format!(
        "CACHE_FALLBACK_KEY \"last-protected. \" not allowed to end in \"-protected\"\n{}Failed to extract cache\n\
         {}Failed to extract cache\n{}Successfully extracted cache\n",
        said("k"),
        said("b-k"),
        said("found")
    );
    assert_eq!(section(&ran, dir.path(), "restore_cache"), want);
    assert_eq!(ran.outcome.verdict, Verdict::Success, "a cache fails no job");
}

#[test]
fn caches_of_all_policies_and_ends_are_saved_as_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let cache = json!([
        {"key": "found", "paths": ["a b/*", "-x"], "untracked": true, "policy": "$P"},
        {"key": "pull", "paths": ["c"], "policy": "pull"},
        {"key": "push", "paths": ["d"], "policy": "push", "when": "always"},
        {"key": "bad", "paths": ["e"], "when": "on_failure"},
        {"key": "no files"},
        {"key": "..", "paths": ["f"]},
    ]);
    let ran = run(&cached(dir.path(), cache, json!([{"key": "P", "value": "pull-push"}])));
    let saved = section(&ran, dir.path(), "archive_cache");
    let twin = "<--alternate-file><DIR/cache/group/demo/HASH/cache.zip>";
    let want = format!(
        "Creating cache found...\n<cache-archiver><--file><DIR/cache/group/demo/found/cache.zip>{twin}<--timeout><10>\
         <--path><a b/*><--path><-x><--untracked> \nCreated cache\nNot uploading cache pull due to policy\n\
         Creating cache push...\n<cache-archiver><--file><DIR/cache/group/demo/push/cache.zip>{twin}<--timeout><10>\
         <--path><d> \nFailed to create cache\ncache key \"..\" could not be sanitized\n\
         Skipping cache archiving due to empty cache key\n"
    );
    let hashless: Vec<&str> = saved.split('/').map(|p| if p.len() == 64 { "HASH" } else { p }).collect();
    assert_eq!(hashless.join("/"), want);
    let restored = section(&ran, dir.path(), "restore_cache");
    assert!(restored.contains("Not downloading cache push due to policy\n"), "{restored}");
    assert!(restored.contains("Checking cache for bad...\n"), "{restored}");

    let unknown = cached(dir.path(), json!([{"key": "k", "paths": ["a"], "policy": "never"}]), json!([]));
    let ran = run(&unknown);
    assert!(ran.log.contains("unknown cache policy never for k"), "{}", ran.log);
}

#[test]
fn hashed_keys_keep_their_words_for_people() {
    let dir = tempfile::tempdir().unwrap();
    let flag = json!([{"key": "FF_HASH_CACHE_KEYS", "value": "true"}]);
    let ran = run(&cached(dir.path(), json!([{"key": "a/../b", "paths": ["x"]}]), flag));
    let restored = section(&ran, dir.path(), "restore_cache");
    assert!(restored.starts_with("Checking cache for a/../b...\n"), "{restored}");
    let saved = section(&ran, dir.path(), "archive_cache");
    // By sha256sum.
    let name = "900ea8b7e0d8fe30857c1bb629272e28cfd7f7af61a81f7b6964b271b69dab69";
    assert!(saved.contains(&format!("<--file><DIR/cache/group/demo/{name}/cache.zip>")), "{saved}");
    assert!(saved.contains("<--alternate-file><DIR/cache/group/demo/b/cache.zip>"), "{saved}");
    assert!(saved.contains(r#"{"cachekey":"a/../b"}"#), "{saved}");
}

#[test]
fn what_a_failed_extraction_left_is_removed_when_the_flag_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let project = dir.path().join("builds/golden-to/0/group/demo");
    fs::create_dir_all(project.join("vendor/half")).unwrap();
    fs::write(dir.path().join("outside"), "x").unwrap();
    let flag = json!([{"key": "FF_CLEAN_UP_FAILED_CACHE_EXTRACT", "value": "1"}, {"key": "V", "value": "vendor"}]);
    let outside = format!("{}/outside", dir.path().display());
    let cache = json!([{"key": "k", "paths": ["$V/", "../../../../../outside", outside]}]);
    let ran = run(&cached(dir.path(), cache, flag));
    let restored = section(&ran, dir.path(), "restore_cache");
    assert!(restored.ends_with("Failed to extract cache\nRemoving vendor/\n"), "{restored}");
    assert!(!project.join("vendor").exists() && dir.path().join("outside").exists());
}

#[test]
fn a_host_without_the_program_says_what_is_disabled() {
    let dir = tempfile::tempdir().unwrap();
    let job = cached(dir.path(), json!([{"key": "k", "paths": ["x"]}]), json!([]));
    fs::remove_file(dir.path().join("bin/gitlab-runner")).unwrap();
    let ran = run(&job);
    assert_eq!(section(&ran, dir.path(), "restore_cache"), "Missing gitlab-runner. Extracting cache is disabled.\n");
    assert_eq!(section(&ran, dir.path(), "archive_cache"), "Missing gitlab-runner. Creating cache is disabled.\n");
}

#[test]
fn urls_of_a_store_are_for_this_projects_objects() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = cached(dir.path(), json!([{"key": "k$KEY", "paths": ["x"]}]), json!([]));
    let s3 = S3 {
        server: "minio:9000".into(),
        bucket: "buck".into(),
        region: "us-east-1".into(),
        access_key: "id".into(),
        secret_key: Secret::new("topsecret"),
        ..S3::default()
    };
    job.settings.cache =
        CacheSettings { path: "/pre/".into(), shared: false, max_size: 99, store: Some(Store::S3(s3)) };
    for (shell, shared, want) in [
        (Shell::Bash, false, "https://minio:9000/buck/pre/runner/golden-to/project/3/kk?"),
        (Shell::Dash, true, "https://minio:9000/buck/pre/project/3/kk?"),
    ] {
        (job.settings.shell, job.settings.cache.shared) = (shell, shared);
        let ran = run(&job);
        let restored = section(&ran, dir.path(), "restore_cache");
        let saved = section(&ran, dir.path(), "archive_cache");
        assert!(restored.contains(&format!("<--url><{want}")), "{restored}");
        assert!(saved.contains(&format!("<--check-url><{want}")), "{saved}");
        assert!(saved.contains("<--max-uploaded-archive-size><99>"), "{saved}");
        assert!(saved.contains("<--header><x-amz-meta-cachekey: kk>"), "{saved}");
        assert!(saved.contains("&X-Amz-Expires=7200&"), "{saved}");
        assert!(!ran.log.contains("topsecret"));
    }
}
