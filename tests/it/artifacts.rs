//! Artifacts: what a job uploads, and what arrives in a later one, byte for byte; what a server may answer
//! meanwhile; archives that mean harm. Numbers of traps are those of build §11.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::SOON;
use crate::support::binary::Host;
use crate::support::gitlab::{Artifact, GitLab, Job, State};
use crate::support::http::{Fault, ONCE, Response};
use crate::support::payload::Payload;

/// An artifact as GitLab's rails send it.
fn archive(paths: &[&str]) -> Value {
    json!({"name": "bundle", "paths": paths, "exclude": [], "untracked": false, "when": "on_success",
           "artifact_type": "archive", "artifact_format": "zip", "expire_in": "1 week"})
}

fn with(mut artifact: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        artifact[key] = value.clone();
    }
    artifact
}

fn uploads(script: &[&str], artifacts: &[Value]) -> Payload {
    Payload::script(script).set("artifacts", json!(artifacts))
}

/// A job that gets the artifacts of another one, into an empty directory.
fn downloads(script: &[&str], from: &Job) -> Payload {
    let dependency = json!({"id": from.id, "token": from.token, "name": "maker", "artifacts_file": {"filename": "b.zip", "size": 1}});
    Payload::script(script).strategy(Some("empty")).set("dependencies", json!([dependency]))
}

/// Runs them one after the other on one host.
fn run(fake: &GitLab, payload: Payload) -> Job {
    run_on(&Host::new(fake), fake, payload)
}

fn run_on(host: &Host, fake: &GitLab, payload: Payload) -> Job {
    let id = fake.queue(payload);
    let runner = host.start();
    fake.finished(id, SOON);
    runner.finish();
    fake.job(id)
}

fn only(job: &Job) -> &Artifact {
    let [artifact] = &job.artifacts[..] else { panic!("{} artifacts\n{}", job.artifacts.len(), job.text()) };
    artifact
}

#[track_caller]
fn assert_says(job: &Job, line: &str) {
    let log = job.text();
    assert!(log.contains(line), "{line:?} is missing in\n{log}");
}

/// Names, modes and contents below the working directory, as one line.
const DIGEST: &str = "echo \"tree $( (find out -printf '%M %p -> %l\\n'; find out ! -type l -printf '%T@ %p\\n' | \
                      sed 's/\\.[0-9]* / /'; find out -type f -exec sha256sum {} +) | LC_ALL=C sort | sha256sum)\"";

fn digest(job: &Job) -> String {
    let log = job.text();
    log.lines().find(|l| l.starts_with("tree ")).unwrap_or_else(|| panic!("{log}")).to_owned()
}

#[test]
fn artifacts_arrive_in_a_later_job_byte_and_mode_identical() {
    let fake = GitLab::start();
    let make = [
        "mkdir -p out/small out/empty out/closed",
        "for i in $(seq 10000); do echo \"file $i\" > out/small/$i; done",
        "seq 300000 > out/large; truncate -s 5M out/sparse; : > out/nothing",
        "echo '#!/bin/sh' > 'out/run me'; chmod 0755 'out/run me'; chmod 0640 out/small/7",
        "echo odd > \"out/ü 'quoted' \\\"twice\\\"\"",
        "ln -s small/1 out/link; ln -s /nowhere out/dangling; touch -d 2001-02-03 out/large",
        "chmod 0555 out/closed",
    ];
    for format in ["zip", "zipzstd", "tarzstd"] {
        let script: Vec<&str> = make.iter().copied().chain([DIGEST]).collect();
        let made = run(&fake, uploads(&script, &[with(archive(&["out/"]), json!({"artifact_format": format}))]));
        assert_eq!(made.state, State::Success, "{}", made.text());
        let got = run(&fake, downloads(&[DIGEST, "chmod 0755 out/closed"], &made));
        assert_eq!(got.state, State::Success, "{}", got.text());
        assert_eq!(digest(&made), digest(&got), "{format}");
    }
}

/// The issue's own size; it takes minutes with a debug build.
#[test]
fn a_sparse_file_of_two_gigabytes_arrives() {
    if std::env::var_os("RUNNER_SLOW_TESTS").is_none() {
        return eprintln!("skipped: a_sparse_file_of_two_gigabytes_arrives: RUNNER_SLOW_TESTS is not set");
    }
    let fake = GitLab::start();
    let made = run(&fake, uploads(&["truncate -s 2G f; echo end >> f; sha256sum f"], &[archive(&["f"])]).timeout(1200));
    let sum = |job: &Job| job.text().lines().find(|l| l.ends_with("  f")).map(str::to_owned);
    let got = run(&fake, downloads(&["sha256sum f; stat -c 'blocks %b' f"], &made));
    assert_eq!(sum(&made), sum(&got));
    assert!(sum(&got).is_some());
}

#[test]
fn trap39_what_matches_nothing_fails_no_job() {
    let fake = GitLab::start();
    let job = run(&fake, uploads(&["true"], &[archive(&["none/", "../out", "/etc/passwd"])]));
    assert_eq!((job.state, job.artifacts.len()), (State::Success, 0));
    assert_says(&job, "WARNING: none/: no matching files. Ensure that the artifact path is relative to the working");
    assert_says(&job, "WARNING: processPath: artifact path is not a subpath of project directory: ../out");
    assert_says(&job, "ERROR: No files to upload");
}

#[test]
fn trap40_excluding_a_directory_leaves_its_content_in() {
    let fake = GitLab::start();
    let make = ["mkdir -p d; echo 1 > d/a; echo 2 > d/b"];
    let list = |job: &Job| names(&only(job).data);
    let job = run(&fake, uploads(&make, &[with(archive(&["d"]), json!({"exclude": ["d"]}))]));
    assert_eq!(list(&job), ["d/a", "d/b"]);
    let job = run(&fake, uploads(&make, &[with(archive(&["d"]), json!({"exclude": ["d/b*"]}))]));
    assert_eq!(list(&job), ["d/", "d/a"]);
    assert_says(&job, "d/b*: excluded 1 files");
}

#[test]
fn trap41_directories_links_dotfiles_and_ignored_files_are_entries() {
    let fake = GitLab::start();
    let make = ["git init -q .; mkdir d; echo x > d/.hidden; ln -s d/.hidden l; echo '*.o' > .gitignore; echo y > a.o"];
    let job = run(&fake, uploads(&make, &[archive(&["d", "l"])]));
    assert_eq!(names(&only(&job).data), ["d/", "d/.hidden", "l"]);
    let job = run(&fake, uploads(&make, &[with(archive(&[]), json!({"untracked": true, "exclude": ["d/**"]}))]));
    assert_eq!(names(&only(&job).data), [".gitignore", "a.o", "l"]);
    assert_says(&job, "untracked: found 3 files");
}

#[test]
fn trap42_names_and_paths_are_expanded_with_the_jobs_environment() {
    let fake = GitLab::start();
    let artifact = with(archive(&["$DIR/*.${EXT:-txt}", "$(id)"]), json!({"name": "x/$NAME-$CI_JOB_NAME"}));
    let job = run(
        &fake,
        uploads(&["mkdir given; echo 1 > given/a.txt; echo NAME=later >> $GITLAB_ENV"], &[artifact])
            .var("DIR", "given"),
    );
    assert_eq!(only(&job).filename, "later-unit.zip");
    assert_eq!(names(&only(&job).data), ["given/a.txt"]);
    assert_says(&job, "WARNING: invalid path \"$(id)\"");
}

#[test]
fn trap43_reports_are_gzip_members_and_raw_is_one_file() {
    let fake = GitLab::start();
    let report = |paths: &[&str], format: &str| {
        with(archive(paths), json!({"artifact_type": "junit", "artifact_format": format, "name": "junit.xml"}))
    };
    let make = ["mkdir d; echo '<a/>' > a.xml; echo '<b/>' > b.xml"];
    let job = run(&fake, uploads(&make, &[report(&["*.xml"], "gzip")]));
    let sent = only(&job);
    assert_eq!((sent.kind.as_str(), sent.format.as_str(), sent.filename.as_str()), ("junit", "gzip", "junit.xml.gz"));
    assert_eq!(sent.data.windows(3).filter(|w| *w == [0x1f, 0x8b, 8]).count(), 2);
    assert_says(&job, "Uploading artifacts as \"junit\" to coordinator... 201 Created");
    let job = run(&fake, uploads(&make, &[report(&["a.xml"], "raw")]));
    assert_eq!((&only(&job).data[..], only(&job).filename.as_str()), (&b"<a/>\n"[..], "junit.xml"));
    for (paths, format, why) in [
        (&["d"][..], "gzip", "FATAL: the \"d\" is not a regular file"),
        (&["*.xml"], "raw", "FATAL: only one file can be sent as raw"),
    ] {
        let job = run(&fake, uploads(&make, &[report(paths, format)]));
        assert_eq!(job.state, State::Failed);
        assert_says(&job, why);
    }
}

/// An answer of a fault with the words that GitLab gives.
fn refusal(status: u16, text: &str) -> Fault {
    Fault::Answer(Response::json(status, &json!({"message": text})))
}

#[test]
fn trap44_uploads_are_repeated_as_the_answer_says() {
    let make = ["echo 1 > f"];
    for (faults, requests, state, says) in [
        (vec![refusal(403, "403 Forbidden")], 1, State::Failed, "FATAL: permission denied"),
        (vec![refusal(413, "too big")], 1, State::Failed, "413 Request Entity Too Large (too big)"),
        (vec![refusal(400, "no")], 2, State::Success, "WARNING: Retrying..."),
        (vec![Fault::Reset], 2, State::Success, "Uploading artifacts as \"archive\" to coordinator... error"),
        (vec![refusal(500, "no"), refusal(502, "no")], 3, State::Success, "Waiting before making the next call"),
        (vec![refusal(400, "no"); 3], 3, State::Failed, "FATAL: upload failed with no response from coordinator"),
        (vec![refusal(503, "no"); 30], 30, State::Failed, "FATAL: service unavailable"),
    ] {
        let fake = GitLab::start();
        for (n, fault) in (1..).zip(&faults) {
            fake.fail("upload", n..=n, fault.clone());
        }
        let job = run_on(
            &Host::new(&fake).timing("backoff_min=5,http_backoff_min=2"),
            &fake,
            uploads(&make, &[archive(&["f"])]),
        );
        assert_eq!((fake.server.count("upload"), job.state), (requests, state), "{faults:?}\n{}", job.text());
        assert_says(&job, says);
    }
}

#[test]
fn a_server_that_wants_the_length_gets_it() {
    let fake = GitLab::start();
    fake.fail("upload", ONCE, refusal(411, "411 Length Required"));
    let job = run(&fake, uploads(&["seq 100000 > f"], &[archive(&["f"])]));
    assert_eq!(job.state, State::Success, "{}", job.text());
    assert!(only(&job).has_length);
    assert_eq!(names(&only(&job).data), ["f"]);
}

#[test]
fn a_redirected_upload_takes_its_body_and_its_token_along() {
    let fake = GitLab::start();
    let location = format!("{}/api/v4/jobs/1001/artifacts", fake.url());
    // To itself, under a name that is another host's.
    let moved = Response::empty(307).with("Location", location.replace("127.0.0.1", "localhost"));
    fake.fail("upload", ONCE, Fault::Answer(moved));
    let job = run(&fake, uploads(&["echo 1 > f"], &[archive(&["f"])]).id(1001));
    assert_eq!(job.state, State::Success, "{}", job.text());
    assert_eq!((only(&job).kind.as_str(), names(&only(&job).data)), ("", vec!["f".to_owned()]));
    assert_eq!(fake.server.count("upload"), 2);
}

#[test]
fn a_failed_job_keeps_what_is_for_failures() {
    let fake = GitLab::start();
    let on = |when: &str, name: &str| with(archive(&["f"]), json!({"when": when, "name": name}));
    let all = [on("on_success", "s"), on("on_failure", "f"), on("always", "a")];
    let job = run(&fake, uploads(&["echo 1 > f; exit 3"], &all));
    let kept: Vec<_> = job.artifacts.iter().map(|a| a.filename.as_str()).collect();
    assert_eq!((kept, job.exit_code()), (vec!["f.zip", "a.zip"], Some(3)));
}

#[test]
fn a_direct_download_sends_no_token_to_the_store() {
    let fake = GitLab::start();
    let made = run(&fake, uploads(&["echo made > f"], &[archive(&["f"])]));
    // The store is the same server under another name: it would call a token without a job a violation.
    let place = format!("{}/api/v4/jobs/{}/artifacts", fake.url().replace("127.0.0.1", "localhost"), made.id);
    let to_store = Response::empty(302).with("Location", &place);
    fake.fail("download", ONCE, Fault::Answer(to_store));
    let data = Response::new(200, "application/octet-stream", only(&made).data.clone());
    fake.fail("download", 2..=2, Fault::Answer(data));
    let got = run(&fake, downloads(&["cat f"], &made));
    assert_eq!(got.state, State::Success, "{}", got.text());
    assert_says(&got, "Direct download from localhost:");
    assert_says(&got, "Downloading artifacts from coordinator... ok");
    assert_says(&got, "\nmade\n");
    let asked = fake.server.exchanges().into_iter().filter(|e| e.label == "download").collect::<Vec<_>>();
    let tokens: Vec<_> = asked.iter().map(|e| e.request.header("JOB-TOKEN").is_some()).collect();
    assert_eq!(tokens, [true, false]);
    assert_eq!(asked[0].request.query, "direct_download=true");
}

#[test]
fn downloads_are_repeated_or_given_up_as_the_answer_says() {
    for (faults, requests, state, says) in [
        (vec![refusal(401, "no")], 1, State::Failed, "ERROR: Downloading artifacts from coordinator... unauthorized"),
        (vec![refusal(403, "no")], 1, State::Failed, "FATAL: permission denied"),
        (vec![refusal(404, "no")], 1, State::Failed, "FATAL: file does not exist"),
        (vec![refusal(400, "no")], 2, State::Success, "WARNING: Downloading artifacts from coordinator... failed"),
        (vec![Fault::Reset, Fault::Cut], 3, State::Success, "WARNING: Retrying..."),
        (vec![refusal(400, "no"); 3], 3, State::Failed, "FATAL: invalid argument"),
    ] {
        let fake = GitLab::start();
        let made = run(&fake, uploads(&["echo made > f"], &[archive(&["f"])]));
        for (n, fault) in (1..).zip(&faults) {
            fake.fail("download", n..=n, fault.clone());
        }
        let host = Host::new(&fake).timing("backoff_min=5,http_backoff_min=2");
        let got = run_on(&host, &fake, downloads(&["cat f"], &made));
        assert_eq!((fake.server.count("download"), got.state), (requests, state), "{faults:?}\n{}", got.text());
        assert_says(&got, says);
        let queries: Vec<_> =
            fake.server.exchanges().iter().filter(|e| e.label == "download").map(|e| e.request.query.clone()).collect();
        assert!(queries[1..].iter().all(String::is_empty), "{queries:?}");
    }
}

#[test]
fn trap45_a_hostile_archive_writes_nothing_outside() {
    let fake = GitLab::start();
    let made = run(&fake, Payload::script(&["true"]));
    fake.store(made.id, stored_zip(&[("../../escaped", 0o100_644, b"bad"), ("fine", 0o100_644, b"x")]));
    let host = Host::new(&fake);
    let got = run_on(&host, &fake, downloads(&["true"], &made));
    assert_eq!(got.state, State::Failed);
    assert_says(&got, "FATAL: ../../escaped cannot be extracted outside of chroot");
    let found = host.path("builds");
    assert!(walk(&found).iter().all(|p| !p.ends_with("escaped") && !p.ends_with("fine")), "{:?}", walk(&found));
}

#[test]
fn the_token_stands_in_no_argument() {
    let fake = GitLab::start();
    // A slow answer, and a process that looks at all command lines meanwhile.
    fake.fail("upload", ONCE, Fault::Late(Duration::from_millis(1500)));
    let look = "(for i in $(seq 40); do cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | \
                grep -o 'artifacts-uploader.*' | head -c 300 >> $RUNNER_TEMP_PROJECT_DIR/seen; sleep 0.1; done) \
                >/dev/null 2>&1 &";
    let mut host = Host::new(&fake).entry(&fake, "glrt-unused", "keep_processes = true");
    host.forget_entries();
    let host = host.entry(&fake, crate::support::gitlab::TOKEN, "keep_processes = true");
    let job = run_on(&host, &fake, uploads(&["echo 1 > f", look], &[archive(&["f"])]));
    assert_eq!(job.state, State::Success, "{}", job.text());
    let seen = walk(&host.path("builds")).into_iter().find(|p| p.ends_with("seen")).expect("the look was taken");
    let seen = std::fs::read_to_string(seen).unwrap();
    assert!(seen.contains("--artifact-type archive"), "{seen:?}");
    assert!(!seen.contains(&job.token), "{seen:?}");
}

/// Every file below a directory.
fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

/// Names of a zip archive's entries, by its directory.
fn names(zip: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    for at in 0..zip.len().saturating_sub(46) {
        if zip[at..].starts_with(b"PK\x01\x02") {
            let len = usize::from(u16::from_le_bytes([zip[at + 28], zip[at + 29]]));
            names.push(String::from_utf8_lossy(&zip[at + 46..at + 46 + len]).into_owned());
        }
    }
    names
}

/// A zip archive of stored entries: name, mode, data.
fn stored_zip(entries: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    let p16 = |out: &mut Vec<u8>, n: usize| out.extend_from_slice(&(n as u16).to_le_bytes());
    let p32 = |out: &mut Vec<u8>, n: usize| out.extend_from_slice(&(n as u32).to_le_bytes());
    for (name, mode, data) in entries {
        let at = out.len();
        let mut common = Vec::new();
        [20, 0, 0, 0, 0x21].into_iter().for_each(|n| p16(&mut common, n));
        for n in [crate::support::gitlab::crc32(data) as usize, data.len(), data.len()] {
            p32(&mut common, n);
        }
        p16(&mut common, name.len());
        p16(&mut common, 0);
        out.extend_from_slice(b"PK\x03\x04");
        out.extend_from_slice(&[&common, name.as_bytes(), data].concat());
        directory.extend_from_slice(b"PK\x01\x02\x14\x03");
        directory.extend_from_slice(&common);
        directory.extend_from_slice(&[0; 6]);
        p32(&mut directory, (*mode as usize) << 16);
        p32(&mut directory, at);
        directory.extend_from_slice(name.as_bytes());
    }
    let at = out.len();
    out.extend_from_slice(&directory);
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    p16(&mut out, entries.len());
    p16(&mut out, entries.len());
    p32(&mut out, directory.len());
    p32(&mut out, at);
    p16(&mut out, 0);
    out
}
