//! The command line: wrong configurations, what is printed, exit codes.

use std::process::Output;

use crate::support::binary::Host;
use crate::support::gitlab::{GitLab, State, TOKEN};
use crate::support::payload::Payload;
use crate::support::{SOON, processes};

fn run(host: &Host, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = host.command(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn a_wrong_value_names_file_line_and_key_and_leaves_with_78() {
    let table = [
        ("concurrent = \"many\"\n", 1, "concurrent"),
        ("concurrent = 1\ncheck_interval = []\n", 2, "check_interval"),
        ("\n[[runners]]\nname = 7\n", 3, "name"),
        ("[[runners]]\nname = \"x\"\nurl = \"ftp://x\"\ntoken = \"t\"\nexecutor = \"shell\"\n", 3, "url"),
        ("concurrent = 1\nthis is no toml\n", 2, ""),
    ];
    for (text, line, key) in table {
        let host = Host::bare();
        let path = host.path("config.toml");
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        for arguments in [vec!["--config", &path], vec!["check-config", "--config", &path]] {
            let (code, _, stderr) = run(&host, &arguments);
            assert_eq!(code, Some(78), "{text:?}: {stderr}");
            assert!(stderr.contains(&format!("{path}:{line}")) && stderr.contains(key), "{text:?}: {stderr}");
        }
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let host = Host::bare();
    let (code, _, stderr) = run(&host, &["--config", "/no/such/config.toml"]);
    assert_eq!(code, Some(78));
    assert!(stderr.contains("/no/such/config.toml"), "{stderr}");
}

#[test]
fn check_config_prints_what_is_in_force_and_no_token() {
    let fake = GitLab::start();
    let host = Host::new(&fake).global("concurrent = 3").global("no_such_key = 1");
    let path = host.write_config().display().to_string();
    let (code, stdout, stderr) = run(&host, &["check-config", "--config", &path]);
    assert_eq!(code, Some(0), "{stderr}");
    for want in ["concurrent", "entry-0", &fake.url(), "check_interval", "output_limit"] {
        assert!(stdout.contains(want), "{want:?} is not in\n{stdout}");
    }
    assert!(!stdout.contains(TOKEN) && !stderr.contains(TOKEN));
    assert_eq!((stdout + &stderr).matches("no_such_key").count(), 1, "one warning for an unknown key");
}

#[test]
fn an_executor_that_is_not_built_disables_its_entry_only() {
    let fake = GitLab::with(|o| o.tokens.push("glrt-docker".to_owned()));
    let host = Host::bare()
        .entry(&fake, "glrt-docker", "  executor = \"docker\"\n  [runners.docker]\n    image = \"x\"")
        .entry(&fake, TOKEN, "");
    let id = fake.queue(Payload::script(&["true"]));
    let runner = host.start();
    assert_eq!(fake.finished(id, SOON).state, State::Success);
    let line = runner.says("docker", SOON);
    assert!(line.contains("entry-0"), "{line}");
    let asked = |e: &crate::support::http::Exchange| e.request.json()["token"] == "glrt-docker";
    assert!(!fake.server.exchanges().iter().any(asked), "a disabled entry is asked for no job");
    runner.finish();
}

#[test]
fn help_and_version_are_printed() {
    let host = Host::bare();
    let (code, stdout, _) = run(&host, &["--help"]);
    assert!(code == Some(0) && stdout.contains("--config"), "{stdout}");
    let (code, stdout, _) = run(&host, &["--version"]);
    assert!(code == Some(0) && stdout.contains(env!("CARGO_PKG_VERSION")), "{stdout}");
    let (code, _, stderr) = run(&host, &["--no-such-flag"]);
    assert!(code == Some(64) && stderr.contains("--no-such-flag"), "{code:?}: {stderr}");
}

#[test]
fn exec_runs_job_files_in_the_foreground_with_the_jobs_exit_code() {
    let host = Host::bare();
    let write = |name: &str, script: &str| {
        let path = host.path(name);
        std::fs::write(&path, serde_json::json!({ "script": [script] }).to_string()).unwrap();
        path.display().to_string()
    };
    let (good, bad) = (write("good.json", "echo hello"), write("bad.json", "echo failing; exit 37"));
    let (code, stdout, stderr) = run(&host, &["exec", &good]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!((stdout + &stderr).contains("hello"));
    let (code, stdout, stderr) = run(&host, &["exec", &bad]);
    assert_eq!(code, Some(37), "{stdout}{stderr}");
}

#[test]
fn ctrl_c_cancels_what_exec_runs_and_a_second_one_aborts() {
    use std::process::Stdio;

    use crate::support::eventually;
    for times in [1, 2] {
        let host = Host::bare();
        let sleep = processes::unique_sleep();
        let path = host.path("long.json");
        let script =
            if times == 1 { format!("sleep {sleep}") } else { format!("trap '' TERM; sleep {sleep}; sleep {sleep}") };
        std::fs::write(&path, serde_json::json!({ "script": [script] }).to_string()).unwrap();
        let path = path.display().to_string();
        let mut child = host.command(&["exec", &path]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("the script runs", SOON, || {
            (!processes::with_command(&format!("sleep {sleep}")).is_empty()).then_some(())
        });
        for _ in 0..times {
            processes::signal(child.id(), rustix::process::Signal::INT);
            crate::support::tick(std::time::Duration::from_millis(200));
        }
        let status = eventually("exec ends", SOON, || child.try_wait().unwrap());
        assert_ne!(status.code(), Some(0));
        assert!(processes::with_command(&sleep).is_empty(), "{times}");
    }
}
