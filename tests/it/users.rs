//! Stages that run as another user than the runner, and what limits them. Most of it needs root, and says
//! so where it is skipped.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::binary::Host;
use crate::support::gitlab::{GitLab, State, TOKEN};
use crate::support::payload::Payload;
use crate::support::{SOON, processes};

const CI: u32 = 54_321;
const GROUPS: [u32; 3] = [54_321, 54_322, 54_323];

fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: {what} needs root");
    }
    root
}

/// A host with a user `ci` that has two groups beside its own. The account is in files that only this host's
/// processes see. `None`, said, where that cannot be.
fn with_user(fake: &GitLab, lines: &str) -> Option<Host> {
    if !is_root("a job of another user") {
        return None;
    }
    let host = Host::bare().entry(fake, TOKEN, lines);
    let home = host.path("home");
    fs::create_dir(&home).unwrap();
    for (name, line) in [
        ("passwd", format!("ci:x:{CI}:{}::{}:/bin/bash\n", GROUPS[0], home.display())),
        ("group", format!("ci:x:{}:\nbuild:x:{}:ci\nother:x:99:\nmedia:x:{}:x,ci\n", GROUPS[0], GROUPS[1], GROUPS[2])),
    ] {
        let old = fs::read_to_string(format!("/etc/{name}")).unwrap();
        fs::write(host.path(name), old + &line).unwrap();
    }
    let mounts = format!(
        "mount --bind {} /etc/passwd && mount --bind {} /etc/group && exec \"$@\"",
        host.path("passwd").display(),
        host.path("group").display()
    );
    let words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &mounts, "sh"];
    let works = Command::new(words[0]).args(&words[1..]).arg("true").status().is_ok_and(|s| s.success());
    if !works {
        eprintln!("skipped: a user of the test's own needs mounts of its own");
    }
    works.then(|| host.wrap(&words))
}

#[test]
fn kp05_a_job_of_another_user_reaches_nothing_of_the_runner() {
    let fake = GitLab::start();
    let Some(host) = with_user(&fake, "user = \"ci\"") else { return };
    let victim = host.path("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("gitlab_runner_env"), "A=1\n").unwrap();
    fs::write(victim.join("KEY"), "keep").unwrap();
    let jobs = host.state().join("jobs").display().to_string();
    let runner = host.start();
    let script = [
        "echo \"user $(id -un) groups $(id -G | tr ' ' '\\n' | sort -n | tr '\\n' ' ')\"".to_owned(),
        "echo \"home $HOME $USER $LOGNAME\"".to_owned(),
        "echo through-the-device > /dev/stdout; echo through-the-other > /dev/stderr".to_owned(),
        format!("ls {jobs} 2>/dev/null && echo READ; cat {jobs}/*/job.json 2>/dev/null && echo READ"),
        format!("for d in {jobs}/gitlab-*; do [ -e $d/control ] && echo REACHED; done; echo looked"),
        "for s in 0 TERM KILL STOP; do kill -$s $PPID 2>/dev/null && echo SIGNALLED; done; echo tried".to_owned(),
        "cat /proc/$PPID/environ 2>/dev/null && echo READ; echo \"umask $(umask)\"".to_owned(),
        "cat \"$KEY\"; touch made".to_owned(),
        format!("rm -rf \"$CI_PROJECT_DIR.tmp\" && ln -s {} \"$CI_PROJECT_DIR.tmp\"", victim.display()),
    ];
    let lines: Vec<&str> = script.iter().map(String::as_str).collect();
    let id = fake.queue(Payload::script(&lines).file("KEY", "key\n").after(&["id -un"]));
    let job = fake.finished(id, SOON);
    let text = job.text();
    for want in [
        &format!("user ci groups {} {} {} ", GROUPS[0], GROUPS[1], GROUPS[2]),
        &format!("home {} ci ci", host.path("home").display()),
        "through-the-device",
        "through-the-other",
        "looked",
        "tried",
        "umask 0022",
        "key",
    ] {
        assert!(text.contains(want), "{want}: {text}");
    }
    for never in ["READ\n", "REACHED\n", "SIGNALLED\n"] {
        assert!(!text.replace("&& echo ", "").contains(&format!("\n{never}")), "{never}: {text}");
    }
    // after_script wrote through the link as the user, who may not; the cleanup removed nothing there either.
    assert_eq!(fs::read_to_string(victim.join("KEY")).unwrap(), "keep");
    assert!(victim.join("gitlab_runner_env").exists());
    assert_eq!(fs::metadata(host.path("builds")).unwrap().uid(), CI);
    assert_eq!(job.state, State::Success, "{text}");
    host.assert_idle(&runner);
    runner.finish();
    fake.assert_clean();
}

#[test]
fn a_job_of_another_user_works_in_the_default_directory_and_its_tree_is_ended() {
    let fake = GitLab::start();
    let Some(host) = with_user(&fake, "builds_dir = \"\"\ncache_dir = \"\"\nuser = \"ci\"\numask = \"027\"") else {
        return;
    };
    let runner = host.start();
    let sleep = processes::unique_sleep();
    let line = format!("setsid sleep {sleep} > /dev/null 2>&1 & disown; touch made; stat -c 'mode %a owner %u' made");
    let id = fake.queue(Payload::script(&[&line, "pwd"]));
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Success, "{}", job.text());
    assert!(job.text().contains(&format!("mode 640 owner {CI}")), "{}", job.text());
    assert!(job.text().contains(&format!("{}/builds/", host.state().display())), "{}", job.text());
    assert!(processes::with_command(&sleep).is_empty());
    assert_eq!(fs::metadata(host.state().join("jobs")).unwrap().permissions().mode() & 0o777, 0o700);
    host.assert_idle(&runner);
    runner.finish();
}

/// Kill point 4, across users.
#[test]
fn a_killed_job_processes_tree_is_ended_whoever_it_runs_as() {
    let fake = GitLab::start();
    let Some(host) = with_user(&fake, "user = \"ci\"") else { return };
    let runner = host.start();
    let (one, two) = (processes::unique_sleep(), processes::unique_sleep());
    let id =
        fake.queue(Payload::script(&[&format!("setsid sleep {one} & setsid env -i sleep {two} & echo begun; wait")]));
    fake.says(id, "begun", SOON);
    processes::signal(host.job_process(), Signal::KILL);
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Failed);
    assert!(processes::with_command(&one).is_empty() && processes::with_command(&two).is_empty());
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn a_user_that_cannot_be_disables_the_entry_and_a_directory_that_is_not_the_users_fails_the_job() {
    let fake = GitLab::start();
    let host = Host::new(&fake).entry(&fake, "glrt-other", "user = \"no-such-user\"");
    let runner = host.start();
    runner.says("takes no jobs: this host has no user", SOON);
    runner.says("started: pid", SOON);
    runner.finish();
    if !is_root("a directory of another user") {
        return;
    }
    let host = Host::bare().entry(&fake, TOKEN, "user = \"nobody\"");
    fs::create_dir_all(host.path("builds/of-root")).unwrap();
    let runner = host.start();
    let id = fake.queue(Payload::script(&["id -un"]));
    let job = fake.finished(id, SOON);
    let want = "builds: the user nobody cannot work there: Permission denied (os error 13); give it to that user";
    assert!(job.text().contains(want), "{}", job.text());
    assert_eq!(job.failure_reason(), Some("runner_system_failure"));
    runner.finish();
}

/// What `sudo` started: all its ids are root's, so a runner without privileges cannot signal it.
#[test]
fn kp22_what_cannot_be_killed_is_named_and_the_job_ends_in_time() {
    let fake = GitLab::start();
    if !is_root("a process of root's under a runner without privileges") {
        return;
    }
    let host = Host::new(&fake).timing("sweep_limit=1500,sweep_term=200");
    let become_root = host.path("become-root");
    fs::copy("/usr/bin/setpriv", &become_root).unwrap();
    fs::set_permissions(&become_root, fs::Permissions::from_mode(0o4755)).unwrap();
    let Some(host) = host.unprivileged() else {
        eprintln!("skipped: setpriv does not work here");
        return;
    };
    let runner = host.start();
    let sleep = processes::unique_sleep();
    let line = format!(
        "{} --reuid 0 --regid 0 --clear-groups setsid sleep {sleep} > /dev/null 2>&1 & disown; sleep 0.2; id -un",
        become_root.display()
    );
    let begun = Instant::now();
    let id = fake.queue(Payload::script(&[&line]));
    let job = fake.finished(id, SOON);
    let left = processes::with_command(&sleep);
    assert_eq!(left.len(), 1, "the test's own premise: {}", job.text());
    left.iter().for_each(|p| processes::signal(p.pid, Signal::KILL));
    let named = format!("WARNING: these processes could not be ended: {} sleep", left[0].pid);
    assert!(job.text().contains(&named), "{named}: {}", job.text());
    assert_eq!(job.state, State::Success, "{}", job.text());
    assert!(begun.elapsed() < Duration::from_secs(15));
    runner.finish();
    fake.assert_clean();
}

#[test]
fn a_stage_is_limited_as_its_entry_says_and_the_log_says_how() {
    let fake = GitLab::start();
    let lines = "memory = \"64MB\"\nprocesses = 900\ncpu_time = 77\nopen_files = 99\nnice = 5\noom_score_adj = 432\n\
         cgroup = false";
    let host = Host::bare().entry(&fake, TOKEN, lines);
    let runner = host.start();
    let script = ["ulimit -d", "ulimit -u", "ulimit -t", "ulimit -n", "nice", "cat /proc/self/oom_score_adj"];
    let id = fake.queue(Payload::script(&script));
    let job = fake.finished(id, SOON);
    let text = job.text();
    for (line, want) in script.iter().zip(["65536", "900", "77", "99", "5", "432"]) {
        assert!(text.contains(&format!("$ {line}\n{want}\n")), "{line}: {text}");
    }
    let processes = match rustix::process::geteuid().is_root() {
        true => "without effect: root has no rlimit, and there is no cgroup",
        false => "for all of the user, by rlimit",
    };
    let want = format!(
        "Limits: memory 64 MiB for each process, by rlimit; processes 900 {processes}; cpu_time 77 s for each process, \
         by rlimit; open_files 99 for each process, by rlimit"
    );
    assert!(text.contains(&want), "{text}");
    assert_eq!(job.state, State::Success);
    host.assert_idle(&runner);
    runner.finish();
}

#[test]
fn a_job_without_limits_says_nothing_of_them() {
    let fake = GitLab::start();
    let host = Host::new(&fake);
    let runner = host.start();
    let id = fake.queue(Payload::script(&["true"]));
    assert!(!fake.finished(id, SOON).text().contains("Limits"));
    runner.finish();
}

/// A cgroup that a runner of `nobody` may divide; removed at the end.
struct Delegated(std::path::PathBuf);

impl Delegated {
    fn make() -> Option<Delegated> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|l| l.contains(" - cgroup2 "))?;
        let path = std::path::PathBuf::from(line.split(' ').nth(4)?).join(format!("runner-it-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let own = |name: &str| std::os::unix::fs::chown(path.join(name), Some(65534), Some(65534)).ok();
        ["", "cgroup.procs", "cgroup.subtree_control"].into_iter().try_for_each(own)?;
        Some(Delegated(path))
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            crate::support::tick(Duration::from_millis(10));
        }
    }
}

#[test]
fn kp22_in_a_cgroup_also_roots_processes_are_ended() {
    let fake = GitLab::start();
    if !is_root("a cgroup of nobody's") {
        return;
    }
    let Some(delegated) = Delegated::make() else {
        eprintln!("skipped: no cgroup can be made here");
        return;
    };
    let host = Host::bare().entry(&fake, TOKEN, "cgroup = true").timing("sweep_limit=5000,sweep_term=200");
    let become_root = host.path("become-root");
    fs::copy("/usr/bin/setpriv", &become_root).unwrap();
    fs::set_permissions(&become_root, fs::Permissions::from_mode(0o4755)).unwrap();
    let Some(host) = host.unprivileged() else { return };
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", delegated.0.display());
    let host = host.wrap_again(&["sh", "-c", &enter, "sh"]);
    let runner = host.start();
    let (one, two) = (processes::unique_sleep(), processes::unique_sleep());
    let line = |sleep: &str| {
        format!(
            "{} --reuid 0 --regid 0 --clear-groups setsid sleep {sleep} > /dev/null 2>&1 & disown; sleep 0.2; \
             sed -n s/^0:://p /proc/self/cgroup",
            become_root.display()
        )
    };
    let id = fake.queue(Payload::script(&[&line(&one)]));
    let job = fake.finished(id, SOON);
    assert!(!job.text().contains("could not be ended"), "{}", job.text());
    assert!(job.text().contains(&format!("/runner-it-{}/gitlab-", std::process::id())), "{}", job.text());
    assert!(processes::with_command(&one).is_empty());
    // The same when the job process was killed.
    let id = fake.queue(Payload::script(&[&line(&two), "echo begun; sleep 60"]));
    fake.says(id, "begun\n", SOON);
    processes::signal(host.job_process(), Signal::KILL);
    let job = fake.finished(id, SOON);
    assert_eq!(job.state, State::Failed);
    assert!(processes::with_command(&two).is_empty(), "{}", job.text());
    host.assert_idle(&runner);
    let left = fs::read_dir(&delegated.0).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(left, 0, "a job's cgroup goes with the job");
    runner.finish();
}

#[test]
fn a_job_inherits_what_its_entry_lists_and_never_what_is_the_managers() {
    let fake = GitLab::start();
    let show =
        "env | grep -o '^\\(KEPT\\|KEEP_THIS\\|LEFT_OUT\\|CI_SERVER_TOKEN\\|CREDENTIALS_DIRECTORY\\|HOME\\)=' | sort";
    for (lines, want) in [
        ("", "HOME=\nKEEP_THIS=\nKEPT=\nLEFT_OUT=\n"),
        ("inherit_environment = [\"KEPT\", \"KEEP_*\", \"CI_SERVER_TOKEN\"]", "HOME=\nKEEP_THIS=\nKEPT=\n"),
        ("inherit_environment = []\numask = \"077\"", "HOME=\n"),
    ] {
        let mut host = Host::bare().entry(&fake, TOKEN, lines);
        for name in ["KEPT", "KEEP_THIS", "LEFT_OUT", "CI_SERVER_TOKEN", "CREDENTIALS_DIRECTORY"] {
            host = host.env(name, "x");
        }
        let runner = host.start();
        let id = fake.queue(Payload::script(&[show]));
        let text = fake.finished(id, SOON).text();
        assert!(text.contains(&format!("| sort\n{want}Cleaning")), "{lines}: {text}");
        runner.finish();
    }
}
