//! What scripts do in the shells of this host: quoting, variables, the echo of commands, statuses.

use serde_json::json;

use super::{after, after_marker, check, job, run, script, steps};
use crate::model::{Shell, Verdict};

#[test]
fn the_ends_of_a_script_have_their_words_and_codes() {
    let dir = tempfile::tempdir().unwrap();
    for (lines, code, text) in [
        (&["exit 37", "echo never"][..], Some(37), "Job failed: exit status 37"),
        (&["no-such-command-here"], Some(127), "Job failed: exit status 127"),
        (&["kill -9 $$"], Some(-1), "Job failed: signal: killed"),
        (&["bash -c 'kill -9 $$'"], Some(137), "Job failed: exit status 137"),
        (&["set +e", "false"], Some(1), "Job failed: exit status 1"),
        (&["set +e", "false", "true"], None, "Job succeeded"),
        (&["false || true", "if false; then :; fi"], None, "Job succeeded"),
        (&["false | true"], Some(1), "Job failed: exit status 1"),
        (&["echo )", "echo never"], Some(2), "Job failed: exit status 2"),
        (&["cat; read x || true"], None, "Job succeeded"),
        (&["exit 0", "exit 5"], None, "Job succeeded"),
    ] {
        let ran = run(&job(dir.path(), json!({"steps": [script(lines)]})));
        assert!(ran.log.ends_with(&format!("{text}\n")), "{lines:?}: {}", ran.log);
        assert_eq!(ran.outcome.exit_code, code, "{lines:?}");
        assert!(!ran.log.contains("\nnever\n"));
    }
}

#[test]
fn variables_reach_the_job_in_every_shell() {
    let dir = tempfile::tempdir().unwrap();
    let odd: String = (1..=127_u8).map(char::from).chain("ü\u{ff}'\"$`\\".chars()).collect();
    let variables = json!([
        {"key": "C", "value": "overridden"}, {"key": "A", "value": "$B"}, {"key": "B", "value": "$C"}, {"key": "C", "value": "x"},
        {"key": "D", "value": "$$C"}, {"key": "E", "value": "$C", "raw": true},
        {"key": "F", "value": "line1\n$B\n\n", "file": true}, {"key": "G", "value": "$F"},
        {"key": "ODD", "value": odd, "raw": true}, {"key": "ODDFILE", "value": odd, "raw": true, "file": true},
        {"key": "BIG", "value": "x".repeat(1 << 20), "file": true},
        {"key": "FOO", "value": "2"}, {"key": "CI_CONCURRENT_ID", "value": "9"}, {"key": "CI_SHARED_ENVIRONMENT", "value": ""},
    ]);
    let lines = [
        "echo \"[$A] [$B] [$C] [$D] [$E] [$FOO] [$CI_CONCURRENT_ID] [$CI_SHARED_ENVIRONMENT]\"",
        "[ \"$F\" = \"$G\" ] && [ \"$F\" = \"$RUNNER_TEMP_PROJECT_DIR/F\" ] && cat \"$F\"",
        "printf %s \"$ODD\" | cmp - \"$ODDFILE\" && wc -c < \"$BIG\"",
        "[ \"$PWD\" = \"$CI_PROJECT_DIR\" ] && echo here",
    ];
    for shell in [Shell::Bash, Shell::Sh, Shell::Dash] {
        let mut job = job(dir.path(), json!({"variables": variables, "steps": [script(&lines)]}));
        job.settings.shell = shell;
        job.settings.environment = vec!["FOO=1".to_owned(), "not one".to_owned()];
        let ran = run(&job);
        let said: Vec<&str> = steps(&ran.log).lines().filter(|l| !l.starts_with('<') && !l.starts_with("$ ")).collect();
        let want = ["[$C] [x] [x] [$C] [$C] [2] [9] [true]", "line1", "$C", "", "1048576", "here"];
        assert_eq!(said[1..7], want, "{shell:?}: {}", ran.log);
        assert_eq!((ran.outcome.verdict, ran.processes), (Verdict::Success, 2), "{shell:?}");
        let left = std::fs::read_dir(dir.path().join("builds/golden-to/0/group/demo.tmp")).unwrap();
        assert_eq!(left.count(), 0, "file variables are removed");
    }
}

#[test]
fn gitlab_env_carries_lines_to_the_next_stage_of_the_same_job_only() {
    let dir = tempfile::tempdir().unwrap();
    let stale = dir.path().join("builds/golden-to/0/group/demo.tmp");
    std::fs::create_dir_all(&stale).unwrap();
    std::fs::write(stale.join("gitlab_runner_env"), "K=stale\n").unwrap();
    for shell in [Shell::Bash, Shell::Dash] {
        let lines = ["echo \"[$K]\"; echo '  K=v $1  ' >> $GITLAB_ENV; printf lost=1 >> $GITLAB_ENV"];
        let steps = json!([script(&lines), after(&["echo \"[$K] [$lost]\""])]);
        let mut job = job(dir.path(), json!({"steps": steps}));
        job.settings.shell = shell;
        let ran = run(&job);
        assert!(ran.log.contains("\n[]\n") && ran.log.contains("\n[v $1] []\n"), "{shell:?}: {}", ran.log);
        assert_eq!(std::fs::read_dir(&stale).unwrap().count(), 0);
    }
}

#[test]
fn commands_are_shown_and_run_as_in_the_recordings() {
    let dir = tempfile::tempdir().unwrap();
    let lines = ["", "# only a comment", "  ", "for i in 1 2\ndo\n  echo item $i\ndone", " echo 'a\\nb' \"\\$HOME\" "];
    let shown = "
$ # only a comment

$ for i in 1 2 # collapsed multi-line command
item 1
item 2
$ echo 'a\\nb' \"\\$HOME\"
";
    let mut job = job(dir.path(), json!({"steps": [script(&lines)]}));
    job.settings.pre_build_script = "echo pre; P=1".to_owned();
    job.settings.post_build_script = "echo post [$P]".to_owned();
    for shell in [Shell::Bash, Shell::Dash] {
        job.settings.shell = shell;
        let output = if shell == Shell::Bash { "a\\nb $HOME" } else { "a\nb $HOME" };
        let want = format!(
            "<start step_script>
Executing \"step_script\" stage of the job script
$ echo pre; P=1
pre
{shown}{output}
$ echo post [$P]
post [1]
<end step_script>
<cleanup>
Job succeeded
"
        );
        check(&job, &[], &want);
    }
}

#[test]
fn script_sections_close_before_the_command_runs() {
    let dir = tempfile::tempdir().unwrap();
    let variables = json!([{"key": "FF_SCRIPT_SECTIONS", "value": "true"}]);
    let lines = ["echo one", "for i in 1\ndo echo '\\t'$i\ndone"];
    let mut job = job(dir.path(), json!({"variables": variables, "steps": [script(&lines)]}));
    for shell in [Shell::Bash, Shell::Dash] {
        job.settings.shell = shell;
        let ran = run(&job);
        assert!(ran.log.contains("  feature flags: FF_SCRIPT_SECTIONS:true\n"));
        let tab = if shell == Shell::Bash { "\\t1" } else { "\t1" };
        let want = format!(
            "one
<start section_script_step_1[hide_duration=true,collapsed=true]>
$ for i in 1
do echo '\\t'$i
done
<end section_script_step_1>

{tab}
"
        );
        assert!(ran.log.contains(&want), "{shell:?}: {}", ran.log);
    }
}

#[test]
fn the_longest_variable_that_is_let_through_reaches_a_process() {
    let dir = tempfile::tempdir().unwrap();
    let value = "x".repeat(131_067);
    let variables = json!([{"key": "BIG", "value": value}]);
    let ran = run(&job(dir.path(), json!({"variables": variables, "steps": [script(&["env printf %s \"${#BIG}\""])]})));
    assert!(ran.log.contains("131067"), "{}", ran.log);
}

#[test]
fn debug_trace_shows_commands_unless_the_entry_forbids_it() {
    let dir = tempfile::tempdir().unwrap();
    let variables = json!([{"key": "CI_DEBUG_TRACE", "value": "true"}]);
    let mut job = job(dir.path(), json!({"variables": variables, "steps": [script(&["echo traced"])]}));
    assert!(run(&job).log.contains("++ echo traced\n"));
    job.settings.debug_trace_disabled = true;
    assert!(!run(&job).log.contains("+ echo traced\n"));
}

#[test]
fn an_empty_directory_is_empty_and_the_other_strategy_keeps_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("builds/golden-to/0/group/demo-empty/locked");
    std::fs::create_dir_all(&old).unwrap();
    std::fs::write(old.join("f"), "").unwrap();
    std::fs::set_permissions(&old, std::os::unix::fs::PermissionsExt::from_mode(0o500)).unwrap();
    let variables = json!([{"key": "GIT_STRATEGY", "value": "empty"}]);
    let empty = job(dir.path(), json!({"variables": variables, "steps": [script(&["ls -A; touch left; pwd"])]}));
    let ran = run(&empty);
    let at = dir.path().join("builds/golden-to/0/group/demo-empty");
    assert!(ran.log.contains(&format!("$ ls -A; touch left; pwd\n{}\n", at.display())), "{}", ran.log);
    assert!(run(&job(dir.path(), json!({"steps": [script(&["touch kept"])]}))).log.contains("Job succeeded"));
    assert!(run(&job(dir.path(), json!({"steps": [script(&["ls -A"])]}))).log.contains("\nkept\n"));
}

#[test]
fn a_builds_dir_that_cannot_be_made_is_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("builds"), "a file").unwrap();
    let ran = run(&job(dir.path(), json!({"steps": [script(&["echo never"])]})));
    let said = after_marker(&ran.log, "stage of the job script\n");
    assert!(said.starts_with("ERROR: the job has no directory to work in, is builds_dir writable? mkdir: "), "{said}");
    assert!(said.lines().nth(1) == Some("<end step_script>") && said.ends_with("exit status 1\n"), "{said}");
}

#[test]
fn a_shell_that_is_told_to_end_says_1() {
    let dir = tempfile::tempdir().unwrap();
    // It tells its own group, as the ladder does; a trap of its own does not change the status.
    for shell in [Shell::Bash, Shell::Dash] {
        for line in ["(sleep 0.2; kill -s TERM -- -$$) & sleep 4", "(trap '' TERM; sleep 0.2) & kill -TERM $$; wait"] {
            let mut job = job(dir.path(), json!({"steps": [script(&[line, "echo never"])]}));
            job.settings.shell = shell;
            let ran = run(&job);
            assert_eq!(ran.outcome.exit_code, Some(1), "{shell:?} {line}: {}", ran.log);
            assert!(!ran.log.contains("\nnever\n"), "{}", ran.log);
        }
    }
}

#[test]
fn commands_and_traps_find_the_end_of_stdin() {
    let dir = tempfile::tempdir().unwrap();
    for shell in [Shell::Bash, Shell::Dash] {
        for line in
            ["cat; cat /dev/stdin; echo [$(cat)]", "trap 'echo [$(cat)]' EXIT", "trap 'echo [$(cat)]' EXIT; exit 0"]
        {
            let mut job = job(dir.path(), json!({"steps": [script(&[line])]}));
            job.settings.shell = shell;
            let ran = run(&job);
            assert!(ran.log.contains("\n[]\n") && !ran.log.contains("errexit"), "{shell:?} {line}: {}", ran.log);
            assert_eq!(ran.outcome.verdict, Verdict::Success);
        }
    }
}

#[test]
fn a_line_in_gitlab_env_that_is_no_variable_ends_the_next_stage() {
    let dir = tempfile::tempdir().unwrap();
    for shell in [Shell::Bash, Shell::Dash] {
        let steps = json!([script(&["echo '# note' >> $GITLAB_ENV"]), after(&["echo never"])]);
        let mut job = job(dir.path(), json!({"steps": steps}));
        job.settings.shell = shell;
        let ran = run(&job);
        let said = "WARNING: after_script failed, but job will continue unaffected: exit status";
        assert!(ran.log.contains(said) && !ran.log.contains("Running after script..."), "{shell:?}: {}", ran.log);
        assert_eq!(ran.outcome.verdict, Verdict::Success);
    }
}

#[test]
fn flags_change_what_is_checked_quoted_and_cleaned() {
    let dir = tempfile::tempdir().unwrap();
    let flags = json!([
        {"key": "FF_ENABLE_BASH_EXIT_CODE_CHECK", "value": "1"}, {"key": "FF_POSIXLY_CORRECT_ESCAPES", "value": "1"},
        {"key": "FF_ENABLE_JOB_CLEANUP", "value": "1"}, {"key": "FF_NETWORK_PER_BUILD", "value": "1"},
        {"key": "GIT_STRATEGY", "value": "empty"},
    ]);
    let lines = ["set +e; echo \"it's $CI_BUILD_NETWORK_NAME\"; touch f", "(exit 6)", "echo never"];
    let ran = run(&job(dir.path(), json!({"variables": flags, "steps": [script(&lines)]})));
    assert!(ran.log.contains("\nit's runner-golden-to-3-0-7\n"), "{}", ran.log);
    assert!(ran.log.ends_with("ERROR: Job failed: exit status 6\n"), "{}", ran.log);
    assert!(!dir.path().join("builds/golden-to/0/group/demo-empty").exists());

    let flags = json!([{"key": "FF_ENABLE_JOB_CLEANUP", "value": "1"}]);
    let ran = run(&job(dir.path(), json!({"variables": flags, "steps": [script(&["touch f"])]})));
    let said = "file based variables\nSkipping build directory cleanup step\n<end cleanup_file_variables>\n";
    assert!(ran.log.contains(said), "{}", ran.log);
    assert!(dir.path().join("builds/golden-to/0/group/demo/f").exists());
}
