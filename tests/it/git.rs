//! The sources of a job: real repositories over http, which ask for the job's login. What the log says,
//! what the script finds, and that nothing of the login is left.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::support::binary::{Host, Runner};
use crate::support::git::{self, GitServer};
use crate::support::gitlab::{GitLab, Job, State, TOKEN};
use crate::support::http::{ALWAYS, Fault, ONCE};
use crate::support::payload::Payload;
use crate::support::{SOON, processes, root_or_skip};

/// A host, its coordinator and a server with repositories.
struct World {
    fake: GitLab,
    git: GitServer,
    host: Host,
    runner: Runner,
}

impl World {
    fn start() -> World {
        World::with(|_| String::new())
    }

    /// `entry`: more keys of the entry.
    fn with(entry: impl FnOnce(&GitServer) -> String) -> World {
        let (fake, git) = (GitLab::start(), GitServer::start());
        let entry = entry(&git);
        let host = Host::bare().entry(&fake, TOKEN, &entry).timing("stage_retry=30,stage_retry_max=60");
        let runner = host.start();
        World { fake, git, host, runner }
    }

    fn run(&self, payload: Payload) -> Job {
        let id = self.fake.queue(payload);
        let job = self.fake.finished(id, SOON);
        self.host.assert_idle(&self.runner);
        self.fake.job(job.id)
    }

    /// Runs well.
    #[track_caller]
    fn succeeds(&self, payload: Payload) -> String {
        let job = self.run(payload);
        assert_eq!(job.state, State::Success, "{}", job.text());
        job.text()
    }

    fn project(&self) -> PathBuf {
        let token = fs::read_dir(self.host.path("builds")).unwrap().next().unwrap().unwrap().path();
        token.join("0/group/demo")
    }

    /// No file of the host but the coordinator's own has this text, in its name or content.
    #[track_caller]
    fn assert_nowhere(&self, secret: &str) {
        for dir in [self.host.path("builds"), self.host.path("cache"), self.host.path("")] {
            let depth = if dir == self.host.path("") { 1 } else { usize::MAX };
            for file in files(&dir, depth) {
                let bytes = fs::read(&file).unwrap_or_default();
                let has = bytes.windows(secret.len()).any(|w| w == secret.as_bytes());
                assert!(!has && !file.display().to_string().contains(secret), "{} has the token", file.display());
            }
        }
    }
}

fn files(dir: &Path, depth: usize) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|e| e.unwrap().path()) {
        match path.symlink_metadata() {
            Ok(m) if m.is_dir() && depth > 1 => found.extend(files(&path, depth - 1)),
            Ok(m) if m.is_file() => found.push(path),
            _ => {}
        }
    }
    found
}

#[track_caller]
fn assert_has(log: &str, lines: &[&str]) {
    let mut rest = log;
    for line in lines {
        let at = rest.find(line).unwrap_or_else(|| panic!("{line:?} is missing (in this order) in\n{log}"));
        rest = &rest[at + line.len()..];
    }
}

// ---- Commits arrive -----------------------------------------------------------------------------

#[test]
fn a_clone_and_the_fetches_after_it_give_each_job_its_commit() {
    let w = World::start();
    let log = w.succeeds(w.git.payload(1001, &["cat file", "git status --short | wc -l", "git log --oneline | wc -l"]));
    let sha = w.git.head("group/demo");
    assert_has(
        &log,
        &[
            "Getting source from Git repository\n",
            "Fetching changes with git depth set to 20...\n",
            "Created fresh repository.\n",
            &format!("Checking out {} as detached HEAD (ref is main)...\n", &sha[..8]),
            "Skipping Git submodules setup\n",
            "$ cat file\n3",
            "\n0\n",
            "\n3\n",
        ],
    );
    w.git.commit("group/demo", &[("file", "4")]);
    let log = w.succeeds(w.git.payload(1002, &["cat file; echo; touch junk; echo x > file; echo x > .git/index.lock"]));
    assert_has(&log, &["Reinitialized existing Git repository", "$ cat file", "4\n"]);
    let log = w.succeeds(w.git.payload(1003, &["cat file; ls junk || true"]));
    assert_has(&log, &["Removing junk\n", "4ls: "]);
    // The strategy is the job's to choose, and a clone starts from nothing.
    let log = w.succeeds(w.git.payload(1004, &["ls junk || true"]).var("GIT_STRATEGY", "clone"));
    assert_has(&log, &["Created fresh repository.\n"]);
}

/// Build §12, check 13; trap 35.
#[test]
fn what_the_last_job_left_in_the_repository_does_not_stop_the_next() {
    let w = World::start();
    let marker = w.host.path("hooked");
    let leave = format!(
        "cd .git; touch index.lock shallow.lock HEAD.lock config.lock refs/remotes/origin/x.lock; mkdir -p hooks; \
         printf '#!/bin/sh\\ntouch {}\\n' > hooks/post-checkout; chmod +x hooks/post-checkout; \
         mkdir -p ../../demo.tmp/git-template/hooks; cp hooks/post-checkout ../../demo.tmp/git-template/hooks/",
        marker.display()
    );
    let log = w.succeeds(w.git.payload(1001, &[&leave]));
    assert!(!w.project().join(".git/index.lock").exists(), "it goes with the job: {log}");
    for n in ["index.lock", "refs/heads/x.lock", "hooks/post-checkout"] {
        fs::create_dir_all(w.project().join(".git/hooks")).unwrap();
        let file = w.project().join(".git").join(n);
        fs::write(&file, format!("#!/bin/sh\ntouch {}\n", marker.display())).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    w.succeeds(w.git.payload(1002, &["cat file"]));
    w.succeeds(w.git.payload(1003, &["cat file"]).var("GIT_STRATEGY", "clone"));
    assert!(!marker.exists(), "a hook of the job before ran");
}

/// Build §12, check 15; trap 34.
#[test]
fn a_shallow_repository_becomes_whole_when_the_whole_history_is_wanted() {
    let w = World::start();
    let count = ["git rev-list --count HEAD; ls .git/shallow || true"];
    let shallow = json!({"depth": 1});
    assert_has(
        &w.succeeds(w.git.payload_of("group/demo", 1001, &count, &shallow)),
        &["set to 1...", "\n1\n.git/shallow"],
    );
    let whole = json!({"depth": 0});
    for id in [1002, 1003] {
        let log = w.succeeds(w.git.payload_of("group/demo", id, &count, &whole));
        assert_has(&log, &["Fetching changes...\n", "\n3\n"]);
    }
}

/// Trap 38.
#[test]
fn a_repository_with_sha256_is_got() {
    let w = World::start();
    w.git.create("group/new", "sha256");
    w.git.commit("group/new", &[("file", "new")]);
    let info = json!({"repo_object_format": "sha256"});
    let log = w.succeeds(w.git.payload_of("group/new", 1001, &["cat file"], &info));
    assert_has(&log, &["$ cat file\nnew"]);
}

/// Traps 32 and 33.
#[test]
fn flags_of_the_job_replace_those_of_the_runner() {
    let w = World::start();
    w.succeeds(w.git.payload(1001, &["touch junk kept"]));
    let log = w.succeeds(w.git.payload(1002, &["ls"]).var("GIT_CHECKOUT", "false"));
    assert_has(&log, &["Skipping Git checkout\n", "\njunk\n"]);
    let log = w.succeeds(w.git.payload(1003, &["ls"]).var("GIT_CLEAN_FLAGS", "none"));
    assert_has(&log, &["\njunk\nkept\n"]);
    let log = w.succeeds(w.git.payload(1004, &["ls"]).var("GIT_CLEAN_FLAGS", "-ffdx -e ke*"));
    assert_has(&log, &["Removing junk\n", "file\nkept\n"]);
    let log = w.succeeds(w.git.payload(1005, &["true"]).var("GIT_FETCH_EXTRA_FLAGS", "--verbose"));
    assert_has(&log, &["POST git-upload-pack"]);
}

#[test]
fn a_job_may_choose_its_directory_where_the_entry_allows_it() {
    let w = World::with(|_| "[runners.custom_build_dir]\nenabled = true".to_owned());
    let chosen = w.git.payload(1001, &["pwd"]).var("GIT_CLONE_PATH", "$CI_BUILDS_DIR/mine/$CI_CONCURRENT_ID");
    let place = w.host.path("builds/mine/0");
    assert_has(&w.succeeds(chosen), &[&format!("$ pwd\n{}\n", place.display())]);
    let job = w.run(w.git.payload(1002, &["pwd"]).var("GIT_CLONE_PATH", "$CI_BUILDS_DIR/../x"));
    assert_eq!(job.failure_reason(), Some("runner_configuration_error"));
    assert_has(&job.text(), &["the GIT_CLONE_PATH=", "has to be within"]);
    let w = World::start();
    let job = w.run(w.git.payload(1001, &["pwd"]).var("GIT_CLONE_PATH", "$CI_BUILDS_DIR/mine"));
    assert_has(&job.text(), &["setting GIT_CLONE_PATH is not allowed, enable `custom_build_dir` feature\n"]);
}

// ---- Submodules and LFS ---------------------------------------------------------------------------

#[test]
fn submodules_come_by_http_with_the_jobs_login() {
    // An address for ssh becomes one below the entry's URL, and this is where the repositories are.
    let w = World::with(|git| format!("clone_url = \"{}\"", git.server.url()));
    for project in ["group/lib", "group/inner"] {
        w.git.create(project, "sha1");
        w.git.commit(project, &[("name", project)]);
    }
    w.git.submodule("group/lib", "inner", "group/inner", "../inner.git");
    w.git.submodule("group/demo", "lib", "group/lib", "git@ssh.example:group/lib.git");
    let job = |id: u64, kind: &str| {
        let script = ["cat lib/name; echo; ls lib/inner; cd lib && git fetch origin && echo fetched"];
        let payload = w.git.payload(id, &script).var("GIT_SUBMODULE_STRATEGY", kind);
        payload.var("GIT_SUBMODULE_FORCE_HTTPS", "true").var("CI_SERVER_HOST", "ssh.example")
    };
    let log = w.succeeds(job(1001, "normal"));
    assert_has(
        &log,
        &["Updating/initializing submodules with git depth set to 20...", "Updated submodules", "group/lib"],
    );
    assert_has(&log, &["Configuring submodules to use parent git credentials...", "fetched\n"]);
    assert!(!log.contains("\nname\n"), "the inner one is not wanted: {log}");
    let log = w.succeeds(job(1002, "recursive"));
    assert_has(&log, &["submodules recursively with", "\nname\n", "fetched\n"]);
    w.assert_nowhere(&git::token(1001));
    w.assert_nowhere(&git::token(1002));
    let job = w.run(job(1003, "sideways"));
    assert_has(&job.text(), &["ERROR: Job failed (system failure): unknown GIT_SUBMODULE_STRATEGY\n"]);
    assert!(!job.text().contains("Getting source"));
}

/// Trap 36. There is no git-lfs here that one could rely on: a program of this name says what it was asked.
#[test]
fn files_of_lfs_are_pulled_once_where_it_is_installed_and_wanted() {
    let w = World::start();
    let bin = w.host.path("bin");
    fs::create_dir(&bin).unwrap();
    let text = "#!/bin/sh\necho \"git-lfs $* [$GIT_LFS_SKIP_SMUDGE]\"\n";
    fs::write(bin.join("git-lfs"), text).unwrap();
    fs::set_permissions(bin.join("git-lfs"), fs::Permissions::from_mode(0o755)).unwrap();
    let hook = json!([{"name": "pre_get_sources_script", "script": [format!("export PATH={}:$PATH", bin.display())]}]);
    let log = w.succeeds(w.git.payload(1001, &["echo [$GIT_LFS_SKIP_SMUDGE]"]).set("hooks", hook.clone()));
    assert_has(&log, &["Checking out ", "\ngit-lfs pull [1]\n\n", "Skipping Git submodules setup\n", "\n[]\n"]);
    let unwanted = w.git.payload(1002, &["true"]).set("hooks", hook).var("GIT_LFS_SKIP_SMUDGE", "true");
    assert!(!w.succeeds(unwanted).contains("git-lfs pull"));
}

// ---- Hooks --------------------------------------------------------------------------------------

#[test]
fn hooks_of_entry_and_job_run_around_the_sources_in_their_order() {
    let w = World::with(|_| {
        "pre_get_sources_script = \"echo entry before\"\npost_get_sources_script = \"echo entry after; cat file\""
            .to_owned()
    });
    let hooks = json!([
        {"name": "post_get_sources_script", "script": ["echo job after", "X=1"]},
        {"name": "pre_get_sources_script", "script": ["echo job before"]},
    ]);
    let log = w.succeeds(w.git.payload(1001, &["echo [$X]"]).set("hooks", hooks.clone()));
    assert_has(
        &log,
        &[
            "$ echo entry before\nentry before\n$ echo job before\njob before\n",
            "Checking out",
            "Skipping Git submodules setup\n$ echo job after\njob after\n$ X=1\n$ echo entry after; cat file\nentry after\n3",
            "$ echo [$X]\n[]\n",
        ],
    );
    let log = w.succeeds(w.git.payload(1002, &["true"]).set("hooks", hooks).var("GIT_STRATEGY", "none"));
    assert!(!log.contains("before") && !log.contains("after"), "{log}");
    let failing = json!([{"name": "pre_get_sources_script", "script": ["exit 9"]}]);
    let job = w.run(w.git.payload(1003, &["true"]).set("hooks", failing));
    assert_eq!((job.state, job.exit_code()), (State::Failed, Some(9)));
}

// ---- Tries and time ------------------------------------------------------------------------------

/// Build §12, check 24; trap 4.
#[test]
fn a_broken_fetch_is_tried_again_as_often_as_the_job_wants() {
    let w = World::start();
    let info = json!({"sha": "1".repeat(40)});
    let payload = w.git.payload_of("group/demo", 1001, &["echo never"], &info).var("GET_SOURCES_ATTEMPTS", "3");
    let job = w.run(payload.after(&["echo never"]));
    let log = job.text();
    assert_eq!((job.failure_reason(), job.exit_code()), (Some("script_failure"), Some(128)));
    let count = |text: &str| log.matches(text).count();
    assert_eq!((count("WARNING: Retrying...\n"), count("Getting source from Git repository\n")), (2, 3), "{log}");
    assert_eq!(count("Deleting tracked and untracked files...\n"), 1, "{log}");
    assert!(!log.contains("\nnever\n") && log.contains("Cleaning up project directory"), "{log}");

    let (first, second) = (w.git.payload(1002, &["cat file"]), w.git.payload(1003, &["cat file"]));
    w.succeeds(first);
    w.git.server.fail("git", ONCE, Fault::Status(500));
    let log =
        w.succeeds(second.var("GET_SOURCES_ATTEMPTS", "2").var("FF_USE_EXPONENTIAL_BACKOFF_STAGE_RETRY", "false"));
    assert_has(&log, &["WARNING: Retrying...\n", "Deleting tracked", "Getting source", "$ cat file\n3"]);
}

/// The reference sleeps through it.
#[test]
fn a_cancel_ends_the_rest_before_the_next_try() {
    let fake = GitLab::start();
    let git = GitServer::start();
    let host = Host::new(&fake).timing("stage_retry=600000,stage_retry_max=600000");
    let runner = host.start();
    let info = json!({"sha": "1".repeat(40)});
    let id = fake.queue(git.payload_of("group/demo", 1001, &["true"], &info).var("GET_SOURCES_ATTEMPTS", "2"));
    fake.says(id, "Retrying...", SOON);
    fake.cancel(id);
    let job = fake.finished(id, SOON);
    assert_has(&job.text(), &["Retrying...", "ERROR: Job failed: canceled\n"]);
    host.assert_idle(&runner);
    runner.finish();
}

/// Trap 2.
#[test]
fn sources_that_take_too_long_end_the_job_and_leave_no_login() {
    let w = World::with(|_| "get_sources_timeout = \"1s\"".to_owned());
    w.git.server.fail("git", ALWAYS, Fault::Hang);
    let began = Instant::now();
    let job = w.run(w.git.payload(1001, &["true"]).var("GET_SOURCES_ATTEMPTS", "5").after(&["true"]));
    assert!(began.elapsed() < Duration::from_secs(15));
    assert_eq!(job.failure_reason(), Some("job_execution_timeout"));
    let log = job.text();
    assert_has(
        &log,
        &[
            "WARNING: get_sources could not run to completion",
            "ERROR: Job failed: get sources timeout: exceeded timeout of 1s\n",
        ],
    );
    assert!(!log.contains("Cleaning up") && !log.contains("Retrying"), "{log}");
    w.assert_nowhere(&git::token(1001));
    w.git.server.heal();
}

// ---- The login -----------------------------------------------------------------------------------

/// Build §12, check 14; trap 30; field report R82.
#[test]
fn the_jobs_token_is_in_no_url_no_argument_and_no_file_of_the_repository() {
    let w = World::start();
    let token = git::token(1001);
    let trace = w.host.path("trace");
    fs::write(w.host.path(".gitconfig"), "[credential]\n\thelper = store\n[user]\n\tname = me\n").unwrap();
    let script = [
        "git remote -v; git config --list --show-origin",
        "git fetch origin && echo fetched again",
        "grep -r \"$CI_JOB_TOKEN\" .git && echo found || echo not found",
        "stat -c %a ../demo.tmp/.gitlab-runner.login",
    ];
    let log = w.succeeds(w.git.payload(1001, &script).var("GIT_TRACE", &trace.display().to_string()));
    let url = w.git.url("group/demo");
    assert_has(&log, &[&format!("origin\t{url} (fetch)\n"), "fetched again\n", "not found\n", "\n600\n"]);
    let traced = fs::read_to_string(&trace).unwrap();
    assert!(traced.contains("git-remote-http") && !traced.contains(&token), "{traced}");
    w.assert_nowhere(&token);
    assert!(w.git.logins().iter().all(|l| *l == format!("gitlab-ci-token:{token}")), "{:?}", w.git.logins());
    assert_eq!(fs::read_to_string(w.host.path(".gitconfig")).unwrap().lines().count(), 4, "it does not grow");
    // The next job has a token of its own, and uses it.
    w.succeeds(w.git.payload(1002, &["git fetch origin"]));
    assert!(w.git.logins().iter().any(|l| l.ends_with(&git::token(1002))));
    w.assert_nowhere(&git::token(1002));
}

/// Better than the reference, where the file stays until the next job (trap 30).
#[test]
fn the_jobs_login_goes_however_the_job_ended() {
    let w = World::start();
    let payload =
        |id: u64| w.git.payload(id, &["echo here; sleep 300"]).file("SECRET_FILE", "file-secret").timeout(600);
    let id = w.fake.queue(payload(1001).timeout(3));
    let job = w.fake.finished(id, SOON);
    assert_eq!(job.failure_reason(), Some("job_execution_timeout"));
    w.host.assert_idle(&w.runner);
    w.assert_nowhere(&git::token(1001));
    w.assert_nowhere("file-secret");

    for (id, how) in [(1002, "abort"), (1003, "kill")] {
        let id = w.fake.queue(payload(id));
        w.fake.says(id, "\nhere\n", SOON);
        match how {
            "abort" => w.fake.force_cancel(id),
            _ => processes::signal(w.host.job_process(), Signal::KILL),
        }
        w.fake.over(id, SOON);
        w.host.assert_idle(&w.runner);
        w.assert_nowhere(&git::token(id));
        w.assert_nowhere("file-secret");
    }
    let login = w.project().with_file_name("demo.tmp").join(".gitlab-runner.login");
    fs::write(&login, "of a power cut").unwrap();
    let strategy = |p: Payload| p.var("GIT_STRATEGY", "none");
    assert_has(
        &w.succeeds(strategy(w.git.payload(1004, &["ls -A ../demo.tmp | grep -v template || echo end"]))),
        &["|| echo end\nend\n"],
    );
}

#[test]
fn every_git_of_a_job_may_have_the_login_and_nothing_of_it_in_urls() {
    let w = World::start();
    let url = w.git.url("group/demo");
    let clone = format!("git clone -q {url} again && cat again/file && git config --get user.name");
    fs::write(w.host.path(".gitconfig"), "[user]\n\tname = me\n").unwrap();
    for (id, strategy) in [(1001, "none"), (1002, "fetch")] {
        let payload = w.git.payload(id, &[&clone, "rm -rf again"]).var("GIT_STRATEGY", strategy);
        let log = w.succeeds(payload.var("FF_GIT_URLS_WITHOUT_TOKENS", "true"));
        assert_has(&log, &["$ git clone", "3me\n"]);
        w.assert_nowhere(&git::token(id));
    }
}

#[test]
fn a_home_that_is_not_there_does_not_matter() {
    let (fake, git) = (GitLab::start(), GitServer::start());
    let host = Host::new(&fake).env("HOME", "/nonexistent");
    let runner = host.start();
    for (id, flag) in [(1001, "false"), (1002, "true")] {
        let id = fake.queue(git.payload(id, &["cat file"]).var("FF_GIT_URLS_WITHOUT_TOKENS", flag));
        let job = fake.finished(id, SOON);
        assert_eq!(job.state, State::Success, "{}", job.text());
    }
    host.assert_idle(&runner);
    runner.finish();
}

/// Build §4.5.
#[test]
fn a_clone_url_replaces_the_servers_word_for_where_the_repository_is() {
    let w = World::with(|git| format!("clone_url = \"{}\"", git.server.url()));
    let info = json!({"repo_url": format!("http://gitlab-ci-token:{}@127.0.0.1:1/other/name.git", git::token(1001))});
    let log = w.succeeds(w.git.payload_of("group/demo", 1001, &["git remote get-url origin", "cat file"], &info));
    assert_has(&log, &[&format!("\n{}\n", w.git.url("group/demo")), "cat file\n3"]);
}

// ---- Configuration of the host ---------------------------------------------------------------------

#[test]
fn a_repository_is_cleaned_of_the_last_jobs_configuration_where_that_is_wanted() {
    let marker = "the-last-job-was-here";
    for (entry, want) in [("clean_git_config = true", 0), ("", 1)] {
        let w = World::with(|_| entry.to_owned());
        w.succeeds(w.git.payload(1001, &[&format!("git config core.sshCommand {marker}; touch .git/hooks/mine 2>/dev/null || mkdir .git/hooks && touch .git/hooks/mine")]));
        let log = w.succeeds(w.git.payload(
            1002,
            &["git config --list | grep -c the-last || true; ls .git/hooks 2>&1 | grep -c mine || true"],
        ));
        assert_has(&log, &[&format!("|| true\n{want}\n{want}\n")]);
    }
}

/// Field report R88.
#[test]
fn a_directory_of_another_user_is_safe_without_a_growing_configuration() {
    let name = "a_directory_of_another_user_is_safe_without_a_growing_configuration";
    if !root_or_skip(name, "it gives a directory to another user") {
        return;
    }
    for (entry, state) in [("safe_directory_checkout = true", State::Success), ("", State::Failed)] {
        let w = World::with(|_| entry.to_owned());
        w.succeeds(w.git.payload(1001, &["true"]));
        let project = w.project();
        for path in [&project, &project.join(".git")] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
        let job = w.run(w.git.payload(1002, &["git describe --always"]));
        assert_eq!(job.state, state, "{}", job.text());
        assert!(!w.host.path(".gitconfig").exists());
    }
}
