//! Caches as jobs see them: archives on this host and in a store, what a killed command leaves, and that
//! keys of a store do not reach scripts. The store is moto's server, where it is installed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use runner::cloud::{S3, Store, Verb, Wish};
use runner::model::Secret;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::binary::{Host, Runner};
use crate::support::gitlab::{GitLab, Job, State, TOKEN};
use crate::support::payload::Payload;
use crate::support::{SOON, eventually, processes};

/// A runner that works off one job after the other in the same directories.
struct Place {
    fake: GitLab,
    host: Host,
    runner: Runner,
}

impl Place {
    fn new(entry: &str) -> Place {
        let fake = GitLab::start();
        let host = Host::bare().entry(&fake, TOKEN, entry);
        let runner = host.start();
        Place { fake, host, runner }
    }

    /// Runs a job that has these caches to its end.
    #[track_caller]
    fn run(&self, script: &[&str], cache: Value, variables: &[(&str, &str)]) -> Job {
        let mut payload = Payload::script(script).set("cache", cache);
        for (key, value) in variables {
            payload = payload.var(key, value);
        }
        let id = self.fake.queue(payload);
        let job = self.fake.finished(id, SOON);
        assert_eq!(job.state, State::Success, "a cache fails no job\n{}", job.text());
        job
    }

    /// The archives on this host, by their paths from the place of the project's caches.
    fn archives(&self) -> Vec<PathBuf> {
        let base = self.host.path("cache/group/demo");
        let (mut found, mut dirs) = (Vec::new(), vec![base.clone()]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    dirs.push(path);
                } else if path.file_name().is_some_and(|n| n != "etag" && n != "metadata.json") {
                    found.push(path.strip_prefix(&base).unwrap().to_owned());
                }
            }
        }
        found.sort();
        found
    }

    fn archive(&self, key: &str) -> PathBuf {
        self.host.path("cache/group/demo").join(key).join("cache.zip")
    }

    fn project(&self) -> PathBuf {
        let token = fs::read_dir(self.host.path("builds")).unwrap().next().unwrap().unwrap().path();
        token.join("0/group/demo")
    }

    /// The next job finds nothing in its directory.
    fn forget_project(&self) {
        fs::remove_dir_all(self.project()).unwrap();
    }
}

#[track_caller]
fn assert_says(job: &Job, texts: &[&str]) {
    let log = job.text();
    let mut from = 0;
    for text in texts {
        let at = log[from..].find(text).unwrap_or_else(|| panic!("{text:?} is missing after {from} in\n{log}"));
        from += at + text.len();
    }
}

fn vendor(key: &str) -> Value {
    json!([{"key": key, "paths": ["vendor/"]}])
}

#[test]
fn a19_t47_an_archive_is_made_again_only_when_a_file_is_newer() {
    let place = Place::new("");
    let made = |place: &Place| place.archive("k").metadata().map(|m| (m.ino(), m.len())).ok();
    let job = place.run(&["mkdir vendor", "echo 1 > vendor/a", "echo 2 > vendor/b"], vendor("k"), &[]);
    assert_says(&job, &["Checking cache for k...", "Cache file does not exist", "Failed to extract cache"]);
    assert_says(&job, &["Creating cache k...", "vendor/: found 3 matching", "Created cache"]);
    let first = made(&place);

    place.forget_project();
    let job = place.run(&["cat vendor/a vendor/b"], vendor("k"), &[]);
    assert_says(&job, &["Successfully extracted cache", "1\n2\n", "uploading existing archive", "Created cache"]);
    assert_eq!(made(&place), first, "untouched: not made again");

    place.run(&["rm vendor/a"], json!([{"key": "k", "paths": ["$WHERE/*"]}]), &[("WHERE", "vendor")]);
    assert_eq!(made(&place), first, "t47: a deletion is not noticed");

    place.run(&["echo 3 > vendor/b"], vendor("k"), &[]);
    assert_ne!(made(&place), first, "touched: made again");
    place.forget_project();
    assert_says(&place.run(&["cat vendor/b"], vendor("k"), &[]), &["Successfully extracted cache", "3\n"]);
    assert_eq!(place.archives(), [Path::new("k/cache.zip")]);
    place.runner.finish();
}

#[test]
fn t48_every_format_is_called_cache_zip_and_found_by_its_content() {
    let place = Place::new("");
    for (format, magic) in [("zip", &b"PK"[..]), ("TarZstd", b"\x28\xb5\x2f\xfd"), ("zipzstd", b"PK"), ("rar", b"PK")] {
        let variables = [("CACHE_COMPRESSION_FORMAT", format), ("CACHE_COMPRESSION_LEVEL", "fastest")];
        let script =
            "mkdir -p vendor/'a b'; echo x > vendor/'a b'/ü; ln -s 'a b/ü' vendor/link; chmod 750 vendor/'a b'";
        let key = format!("k-{format}");
        assert_says(&place.run(&[script], vendor(&key), &variables), &["Created cache"]);
        assert!(fs::read(place.archive(&key)).unwrap().starts_with(magic), "{format}");
        place.forget_project();
        let job = place.run(&["cat vendor/link; stat -c %a 'vendor/a b'/"], vendor(&key), &[]);
        assert_says(&job, &["Successfully extracted cache", "x\n750\n"]);
        place.forget_project();
    }
    place.runner.finish();
}

#[test]
fn a_flip_of_the_flag_for_hashed_keys_keeps_what_is_here() {
    let place = Place::new("");
    place.run(&["mkdir vendor", "echo 1 > vendor/a"], vendor("a/../k"), &[]);
    assert_eq!(place.archives(), [Path::new("k/cache.zip")]);
    let job = place.run(&["true"], vendor("k"), &[("FF_HASH_CACHE_KEYS", "true")]);
    assert_says(&job, &["Checking cache for k...", "Renamed alternate cache file to primary", "Created cache"]);
    let hashed = place.archives();
    assert!(hashed.len() == 1 && hashed[0].to_str().unwrap().len() == 64 + "/cache.zip".len(), "{hashed:?}");
    place.runner.finish();
}

#[test]
fn t49_caches_that_cannot_be_made_or_read_fail_no_job() {
    let place = Place::new("");
    fs::write(place.host.path("cache"), "in the way").unwrap();
    let job = place.run(&["mkdir vendor", "echo 1 > vendor/a"], vendor("k"), &[]);
    assert_says(&job, &["Failed to extract cache", "FATAL: ", "Failed to create cache", "Job succeeded"]);
    let job = place.run(&["true"], json!([{"key": "k", "paths": ["no such file"]}]), &[]);
    assert_says(&job, &["no such file: no matching files", "No files to cache.", "Created cache"]);
    place.runner.finish();
}

#[test]
fn r102_a_truncated_archive_leaves_nothing_and_is_replaced() {
    let place = Place::new("");
    let fill = "mkdir -p vendor; for i in $(seq 50); do head -c 20000 /dev/urandom > vendor/$i; done";
    place.run(&[fill], vendor("k"), &[]);
    let whole = place.archive("k").metadata().unwrap().len();
    let file = File::options().write(true).open(place.archive("k")).unwrap();
    file.set_len(whole / 2).unwrap();
    place.forget_project();
    let job = place.run(&["ls vendor || mkdir vendor; touch -d 2001-01-01 vendor/old vendor"], vendor("k"), &[]);
    assert_says(&job, &["FATAL: ", "Failed to extract cache", "cannot access 'vendor'", "Created cache"]);
    place.forget_project();
    let job = place.run(&["ls vendor"], vendor("k"), &[]);
    assert_says(&job, &["Successfully extracted cache", "old\n"]);
    place.runner.finish();
}

// ---- The commands on their own ---------------------------------------------------------------

/// A project directory with its temporary one, and the commands that stages call in it.
struct Bench {
    host: Host,
}

impl Bench {
    fn new() -> Bench {
        let bench = Bench { host: Host::bare() };
        fs::create_dir_all(bench.project().join("vendor/deep")).unwrap();
        fs::create_dir_all(bench.temp()).unwrap();
        for name in ["a", "b", "deep/c"] {
            fs::write(bench.project().join("vendor").join(name), name).unwrap();
        }
        bench
    }

    fn project(&self) -> PathBuf {
        self.host.path("project")
    }

    fn temp(&self) -> PathBuf {
        self.host.path("project.tmp")
    }

    fn file(&self) -> PathBuf {
        self.host.path("cache/k/cache.zip")
    }

    fn command(&self, command: &str, more: &[&str]) -> Command {
        let file = self.file().display().to_string();
        let mut words = vec![command, "--file", &file];
        words.extend(more);
        let mut made = self.host.command(&words);
        made.current_dir(self.project()).env("RUNNER_TEMP_PROJECT_DIR", self.temp());
        made
    }

    fn run(&self, command: &str, more: &[&str]) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = self.command(command, more).output().unwrap();
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    }

    /// Everything below the project directory, files with their text.
    fn tree(&self) -> Vec<String> {
        let root = self.project();
        let (mut found, mut dirs) = (Vec::new(), vec![root.clone()]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(&root).unwrap().display().to_string();
                if path.symlink_metadata().unwrap().is_dir() {
                    dirs.push(path);
                } else {
                    found.push(format!("{name}={}", fs::read_to_string(&path).unwrap_or_default()));
                }
            }
        }
        found.sort();
        found
    }
}

const WHOLE: [&str; 3] = ["vendor/a=a", "vendor/b=b", "vendor/deep/c=deep/c"];

#[test]
fn an_archive_whose_making_was_killed_is_never_there_and_is_cleared_away() {
    let mut bench = Bench::new();
    let pause = bench.host.pause("cache-written");
    let mut child = bench.command("cache-archiver", &["--path", "vendor"]).stderr(Stdio::null()).spawn().unwrap();
    processes::signal(pause.reached(), Signal::KILL);
    child.wait().unwrap();
    assert!(!bench.file().exists());
    let left = |bench: &Bench| fs::read_dir(bench.file().parent().unwrap()).unwrap().count();
    assert_eq!(left(&bench), 1, "the draft");
    let draft = fs::read_dir(bench.file().parent().unwrap()).unwrap().next().unwrap().unwrap().path();
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(draft).unwrap().set_modified(long_ago).unwrap();
    bench.host.no_pause();
    assert_eq!(bench.run("cache-archiver", &["--path", "vendor"]).0, Some(0));
    assert_eq!(left(&bench), 1, "the archive");
    assert!(bench.file().exists());
}

#[test]
fn an_extraction_that_was_killed_leaves_no_half_of_a_cache() {
    let mut bench = Bench::new();
    assert_eq!(bench.run("cache-archiver", &["--path", "vendor"]).0, Some(0));
    for point in ["cache-unpacked", "cache-moving"] {
        fs::remove_dir_all(bench.project()).unwrap();
        // A file of the job's own: the directory is there on both sides.
        fs::create_dir_all(bench.project().join("vendor")).unwrap();
        fs::write(bench.project().join("vendor/own"), "own").unwrap();
        let pause = bench.host.pause(point);
        let mut child = bench.command("cache-extractor", &[]).stderr(Stdio::null()).spawn().unwrap();
        processes::signal(pause.reached(), Signal::KILL);
        child.wait().unwrap();
        let moved = bench.tree().len() - 1;
        assert!(if point == "cache-moving" { (1..3).contains(&moved) } else { moved == 0 }, "{:?}", bench.tree());
        // The next job has another key, whose cache cannot be unpacked: what is left must not be taken for it.
        bench.host.no_pause();
        let broken = bench.host.path("broken.zip");
        fs::write(&broken, "no archive").unwrap();
        let (code, said) = bench.run("cache-extractor", &["--file", broken.to_str().unwrap()]);
        assert_eq!(code, Some(1), "{said}");
        assert_eq!(said.contains("was restored in part only"), point == "cache-moving", "{said}");
        assert_eq!(bench.tree(), ["vendor/own=own"], "{point}");
        // And with its own key it is whole.
        assert_eq!(bench.run("cache-extractor", &[]).0, Some(0));
        assert_eq!(bench.tree(), [&WHOLE[..], &["vendor/own=own"]].concat(), "{point}");
        assert_eq!(fs::read_dir(bench.temp()).unwrap().count(), 0, "nothing is left beside the project");
    }
}

#[test]
fn what_is_in_the_way_of_a_cache_is_replaced_and_links_are_not_followed() {
    let bench = Bench::new();
    assert_eq!(bench.run("cache-archiver", &["--path", "vendor"]).0, Some(0));
    let project = bench.project();
    let times = || project.join("vendor").metadata().unwrap().modified().unwrap();
    let before = times();
    let elsewhere = bench.host.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(project.join("vendor/a"), "changed").unwrap();
    fs::remove_file(project.join("vendor/b")).unwrap();
    fs::create_dir_all(project.join("vendor/b/full")).unwrap();
    fs::remove_dir_all(project.join("vendor/deep")).unwrap();
    symlink(&elsewhere, project.join("vendor/deep")).unwrap();
    let (code, said) = bench.run("cache-extractor", &[]);
    assert_eq!((code, bench.tree()), (Some(0), WHOLE.map(str::to_owned).to_vec()), "{said}");
    assert_eq!(fs::read_dir(elsewhere).unwrap().count(), 0);
    assert!(before.duration_since(times()).is_ok_and(|d| d < Duration::from_secs(2)), "a directory has its old time");
}

#[test]
fn without_a_place_beside_the_project_it_is_unpacked_there() {
    let bench = Bench::new();
    assert_eq!(bench.run("cache-archiver", &["--path", "vendor"]).0, Some(0));
    fs::remove_dir_all(bench.project().join("vendor")).unwrap();
    let status = bench.command("cache-extractor", &[]).env_remove("RUNNER_TEMP_PROJECT_DIR").status().unwrap();
    assert_eq!((status.code(), bench.tree()), (Some(0), WHOLE.map(str::to_owned).to_vec()));
}

// ---- A store ---------------------------------------------------------------------------------

const KEY_ID: &str = "AKIAIOSFODNN7EXAMPLE";
const KEY: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

/// moto's S3. It ends with the test.
struct Moto {
    child: Child,
    url: String,
}

impl Moto {
    /// `None`, said by name, where it is not installed.
    fn start() -> Option<Moto> {
        let program = std::env::var("MOTO_SERVER").unwrap_or_else(|_| "moto_server".to_owned());
        let spawned = Command::new(&program)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .env("PYTHONUNBUFFERED", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(e) => {
                eprintln!(
                    "skipped: no S3 server: {program}: {e} (`pip install 'moto[server]'`, or name it in MOTO_SERVER)"
                );
                return None;
            }
        };
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("Running on ") {
                    let _ = tell.send(rest.trim().to_owned());
                }
            }
        });
        let url = told.recv_timeout(Duration::from_secs(60)).expect("moto_server says where it runs");
        let moto = Moto { child, url };
        assert_eq!(moto.call("PUT", "/bucket").0, 200);
        Some(moto)
    }

    /// Status and body; moto asks nobody who calls.
    fn call(&self, method: &str, path: &str) -> (u16, String) {
        use std::io::{Read, Write};
        let host = self.url.trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(host).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        (text[9..12].parse().unwrap(), text)
    }

    fn entry(&self, more: &str) -> String {
        let host = self.url.trim_start_matches("http://");
        format!(
            "[runners.cache]\nType = \"s3\"\nPath = \"pre\"\n{more}\n[runners.cache.s3]\nServerAddress = \"{host}\"\n\
             Insecure = true\nAccessKey = \"{KEY_ID}\"\nSecretKey = \"{KEY}\"\nBucketName = \"bucket\"\n\
             BucketLocation = \"eu-west-1\"\nServerSideEncryption = \"S3\"\n"
        )
    }

    /// The answer's headers.
    fn head(&self, object: &str) -> String {
        let s3 = S3 {
            server: self.url.trim_start_matches("http://").to_owned(),
            insecure: true,
            bucket: "bucket".to_owned(),
            region: "eu-west-1".to_owned(),
            access_key: KEY_ID.to_owned(),
            secret_key: Secret::new(KEY),
            ..S3::default()
        };
        let (now, valid) = (SystemTime::now(), Duration::from_secs(60));
        let wish = Wish { verb: Verb::Head, object, cache_key: "", max_size: 0, now, valid };
        let url = Store::S3(s3).sign(&wish).unwrap().url.reveal().to_owned();
        self.call("HEAD", url.strip_prefix(&self.url).unwrap()).1
    }

    fn objects(&self) -> Vec<String> {
        let (_, list) = self.call("GET", "/bucket?list-type=2");
        list.split("<Key>").skip(1).map(|k| k.split('<').next().unwrap().to_owned()).collect()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn s3_carries_caches_from_one_host_to_another() {
    let Some(moto) = Moto::start() else { return };
    let first = Place::new(&moto.entry(""));
    let job = first.run(&["mkdir vendor", "echo 1 > vendor/a"], vendor("k m"), &[]);
    assert_says(
        &job,
        &[
            "Using presigned URL for cache download",
            "WARNING: file does not exist",
            "Failed to extract cache",
            "Uploading cache.zip to http",
            "/bucket/pre/runner/",
            "/project/7/k%20m",
            "Created cache",
        ],
    );
    let objects = moto.objects();
    assert!(objects.len() == 1 && objects[0].ends_with("/project/7/k m"), "{objects:?}");
    let head = moto.head(&objects[0]);
    assert!(
        head.contains("x-amz-meta-cachekey: k m") && head.contains("x-amz-server-side-encryption: AES256"),
        "{head}"
    );

    // What this host sent is not fetched again, nor sent again.
    first.forget_project();
    let job = first.run(&["cat vendor/a"], vendor("k m"), &[]);
    assert_says(&job, &["cache.zip is up to date", "Successfully extracted cache", "1\n"]);
    assert_says(&job, &["Primary cache already exists remotely, skipping upload", "Created cache"]);

    let second = Place::new(&moto.entry(""));
    let job = second.run(&["cat vendor/a", "echo 2 > vendor/a"], vendor("k m"), &[]);
    assert_says(&job, &["Downloading cache from http", "Successfully extracted cache", "1\n", "Uploading cache.zip"]);

    first.forget_project();
    let job = first.run(&["cat vendor/a"], vendor("k m"), &[]);
    assert_says(&job, &["Downloading cache from http", "Successfully extracted cache", "2\n"]);
    for job in first.fake.jobs().iter().chain(&second.fake.jobs()) {
        assert!(!job.text().contains("X-Amz") && !job.text().contains(KEY), "{}", job.text());
    }
    first.runner.finish();
    second.runner.finish();
}

#[test]
fn t46_what_the_store_has_not_is_not_taken_from_this_host() {
    let Some(moto) = Moto::start() else { return };
    let place = Place::new(&moto.entry("Shared = true\nMaxUploadedArchiveSize = 4000"));
    let large = "mkdir -p vendor; head -c 20000 /dev/urandom > vendor/big";
    let job = place.run(&[large], vendor("big"), &[]);
    assert_says(&job, &["Cache archive size (", "Limit is set to 3.91 KiB", "stored only locally", "Created cache"]);
    assert_eq!(place.archives(), [Path::new("big/cache.zip")]);
    place.forget_project();
    place.run(&["mkdir -p vendor; echo fall > vendor/x"], vendor("small"), &[]);
    assert_eq!(moto.objects(), ["pre/project/7/small"]);
    place.forget_project();
    let cache = json!([{"key": "big", "paths": ["vendor/"], "policy": "pull", "fallback_keys": ["no", "small"]}]);
    let job = place.run(&["ls vendor"], cache, &[]);
    assert_says(
        &job,
        &[
            "Checking cache for big...",
            "file does not exist",
            "Checking cache for no...",
            "file does not exist",
            "Checking cache for small...",
            "Successfully extracted cache",
            "x\n",
            "Not uploading cache big due to policy",
        ],
    );
    place.runner.finish();
}

#[test]
fn kp29_keys_of_a_store_reach_no_script() {
    // No server is needed: that nobody answers is one of the ways in which a cache is not restored.
    let entry = format!(
        "[runners.cache]\nType = \"s3\"\n[runners.cache.s3]\nServerAddress = \"127.0.0.1:1\"\nInsecure = true\n\
         AccessKey = \"{KEY_ID}\"\nSecretKey = \"{KEY}\"\nBucketName = \"bucket\"\n"
    );
    let place = Place::new(&entry);
    let state = place.host.state().display().to_string();
    // Split, so that the job's own text is not what is found.
    let script = [
        "env | grep -c -e AKIA -e X-Amz -e RUNNER_CACHE || true",
        &format!("grep -rlF -e wJalr''XUt -e X-Amz''-Sig {state} || echo none below the state"),
        "tr '\\0' '\\n' < /proc/$PPID/environ | grep -c wJalr''XUt || echo not in the parent",
        "mkdir vendor; echo 1 > vendor/a",
    ];
    let job = place.run(&script, vendor("k"), &[]);
    assert_says(
        &job,
        &["Retrying...", "Failed to extract cache", "\n0\n", "\nnone below the state\n", "\nnot in the parent\n"],
    );
    assert_says(&job, &["Uploading cache.zip to http://127.0.0.1:1/bucket/runner/", "Failed to create cache"]);
    eventually("the directory is gone", SOON, || place.host.jobs().is_empty().then_some(()));
    place.runner.finish();
}
