//! A plain directory as coordinator: what is put into `pending` ends once in `done`, whatever is killed
//! and however many managers share it (kill point 19).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::binary::Host;
use crate::support::{SOON, at_once, eventually, processes, text, tick};

/// A spool directory that several hosts may share.
struct Spool(tempfile::TempDir);

impl Spool {
    fn new() -> Spool {
        Spool(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn host(&self, lines: &str) -> Host {
        Host::bare().raw_entry("spool", &format!("file://{}", self.0.path().display()), "", lines)
    }

    /// Written elsewhere, then renamed, as one is told to.
    fn put(&self, name: &str, job: &Value) {
        fs::create_dir_all(self.path("pending")).unwrap();
        let temp = self.path(&format!(".{name}"));
        fs::write(&temp, job.to_string()).unwrap();
        fs::rename(temp, self.path(&format!("pending/{name}.json"))).unwrap();
    }

    fn result(&self, name: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.path(&format!("done/{name}/result.json"))).ok()?).ok()
    }

    #[track_caller]
    fn finished(&self, name: &str) -> (Value, String) {
        let result = eventually(&format!("a result of {name}"), SOON, || self.result(name));
        (result, text::plain(&fs::read(self.path(&format!("done/{name}/log"))).unwrap()))
    }

    /// Names of files, by directory; hidden ones left out.
    fn tree(&self) -> BTreeMap<String, Vec<String>> {
        let mut tree = BTreeMap::new();
        for dir in ["pending", "running", "done", "failed"] {
            let mut names: Vec<String> = fs::read_dir(self.path(dir))
                .map(|d| d.map(|e| e.unwrap().file_name().into_string().unwrap()).collect())
                .unwrap_or_default();
            names.retain(|n| !n.starts_with('.'));
            names.sort();
            tree.insert(dir.to_owned(), names);
        }
        tree
    }

    /// Everything ended, and each of `names` once.
    #[track_caller]
    fn assert_done(&self, names: &[String]) {
        eventually("no claim is left", SOON, || self.tree()["running"].is_empty().then_some(()));
        let mut want = names.to_vec();
        want.sort();
        let tree = self.tree();
        assert_eq!(tree["done"], want);
        assert!(tree["pending"].is_empty() && tree["failed"].is_empty(), "{tree:?}");
    }
}

#[test]
fn a_script_is_enough_for_a_job() {
    let spool = Spool::new();
    let host = spool.host("");
    let runner = host.start();
    spool.put("hello", &json!({"script": ["echo hello", "echo again"]}));
    spool.put("fails", &json!({"script": "exit 3"}));
    let (result, log) = spool.finished("hello");
    assert_eq!(result["state"], "success");
    assert!(log.contains("\nhello\n") && log.contains("\nagain\n"), "{log}");
    let (result, _) = spool.finished("fails");
    assert_eq!((&result["state"], &result["exit_code"]), (&json!("failed"), &json!(3)));
    host.assert_idle(&runner);
    spool.assert_done(&["fails".to_owned(), "hello".to_owned()]);
    runner.finish();
}

#[test]
fn a_job_file_that_cannot_be_read_goes_to_failed_with_its_reason() {
    let spool = Spool::new();
    fs::create_dir_all(spool.path("pending")).unwrap();
    let bad = [("cut", "{\"script\": ["), ("empty", ""), ("list", "[]"), ("no-script", "{}"), ("bytes", "\u{1}")];
    for (name, text) in bad {
        fs::write(spool.path(&format!("pending/{name}.json")), text).unwrap();
    }
    let host = spool.host("");
    let runner = host.start();
    for (name, _) in bad {
        let reason = eventually(name, SOON, || fs::read_to_string(spool.path(&format!("failed/{name}.reason"))).ok());
        assert!(reason.trim().len() > 10 && reason.trim().lines().count() == 1, "{name}: {reason:?}");
        eventually(name, SOON, || spool.path(&format!("failed/{name}.json")).exists().then_some(()));
    }
    spool.put("good", &json!({"script": ["true"]}));
    assert_eq!(spool.finished("good").0["state"], "success");
    runner.finish();
}

#[test]
fn a_manager_ends_by_itself_when_the_spool_is_empty() {
    let spool = Spool::new();
    for n in 0..3 {
        spool.put(&format!("job-{n}"), &json!({"script": ["echo hi"]}));
    }
    let host = spool.host("  exit_when_empty = true");
    let mut runner = host.start();
    assert_eq!(runner.wait(SOON).code(), Some(0));
    spool.assert_done(&["job-0".to_owned(), "job-1".to_owned(), "job-2".to_owned()]);
    assert!(host.jobs().is_empty());
}

#[test]
fn a_file_beside_the_claim_cancels_a_job() {
    let sleep = processes::unique_sleep();
    let spool = Spool::new();
    spool.put("long", &json!({"script": [format!("sleep {sleep}")], "after_script": ["echo after $CI_JOB_STATUS"]}));
    let host = spool.host("").timing("spool_stale=1000");
    let runner = host.start();
    eventually("it runs", SOON, || (processes::with_command(&sleep).len() == 1).then_some(()));
    fs::write(spool.path("running/long.cancel"), "").unwrap();
    let (result, _) = spool.finished("long");
    assert_eq!(result["state"], "canceled");
    assert!(processes::with_command(&sleep).is_empty());
    spool.assert_done(&["long".to_owned()]);
    runner.finish();
}

#[test]
fn kp19_a_kill_at_any_step_leaves_every_job_once_in_done() {
    let steps = [
        "spool-claimed",
        "directory-renamed",
        "confirmed",
        "spawned",
        "spool-result-written",
        "spool-done",
        "spool-released",
        "delivered",
        "directory-gone",
    ];
    at_once(steps.to_vec(), |step| {
        let spool = Spool::new();
        let mut host = spool.host("");
        let note = format!("echo ran >> {}", host.path("ran").display());
        spool.put("x", &json!({"script": [note]}));
        let pause = host.pause(step);
        let mut runner = host.start();
        assert_eq!(pause.reached(), runner.pid(), "{step}");
        runner.kill();
        host.no_pause();
        let runner = host.start();
        let (result, log) = spool.finished("x");
        assert_eq!(result["state"], "success", "{step}: {log}");
        spool.assert_done(&["x".to_owned()]);
        host.assert_idle(&runner);
        assert_eq!(fs::read_to_string(host.path("ran")).unwrap(), "ran\n", "{step}");
        runner.finish();
    });
}

#[test]
fn kp19_two_managers_share_a_spool_and_one_takes_over_from_the_other() {
    let spool = Spool::new();
    let names: Vec<String> = (0..16).map(|n| format!("job-{n:02}")).collect();
    let ran = spool.path("ran");
    for name in &names {
        let note = format!("echo {name} >> {}", ran.display());
        spool.put(name, &json!({"script": [note, "sleep 0.1"]}));
    }
    let hosts = [0, 1].map(|_| spool.host("").global("concurrent = 2").timing("spool_stale=1500"));
    let runner = hosts[0].start();
    let mut other = hosts[1].start();
    eventually("both work", SOON, || (spool.tree()["done"].len() >= 4).then_some(()));
    // One goes with its jobs: its host is lost, and the other takes what it held.
    other.kill();
    hosts[1].left_over().iter().for_each(|p| processes::signal(p.pid, Signal::KILL));
    for name in &names {
        let (result, log) = spool.finished(name);
        assert_eq!(result["state"], "success", "{name}: {log}");
    }
    spool.assert_done(&names);
    let text = fs::read_to_string(&ran).unwrap();
    let twice = names.iter().filter(|n| text.lines().filter(|l| l == n).count() > 1).count();
    assert!(twice <= 2, "only what the lost host was running may run again: {text}");
    hosts[0].assert_idle(&runner);
    runner.finish();
}

#[test]
fn a_claim_stays_with_a_manager_that_is_only_slow_to_come_back() {
    let spool = Spool::new();
    let host = spool.host("");
    let wait = crate::signals::until_file(&host, "go");
    spool.put("x", &json!({"script": ["echo begun", wait, "echo over"]}));
    let mut runner = host.start();
    host.job_process();
    runner.kill();
    tick(Duration::from_millis(300));
    let runner = host.start();
    fs::write(host.path("go"), "").unwrap();
    let (result, log) = spool.finished("x");
    assert_eq!(result["state"], "success", "{log}");
    assert_eq!(log.matches("\nbegun\n").count(), 1);
    spool.assert_done(&["x".to_owned()]);
    runner.finish();
}
