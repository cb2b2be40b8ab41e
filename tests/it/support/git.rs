//! Repositories on a server of their own: `git http-backend` behind the tests' HTTP server. Every project
//! asks for a login; which ones were given stands on the tape.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::http::{Fault, Patience, Request, Response, Server, Site};
use super::payload::Payload;

/// The token of the job with this id (`support::gitlab`).
pub(crate) fn token(id: u64) -> String {
    format!("glcbt-64_{id}secretJobToken")
}

pub(crate) struct GitServer {
    dir: TempDir,
    pub(crate) server: Server,
}

struct Repositories {
    root: PathBuf,
}

impl GitServer {
    /// With a repository `group/demo` of three commits; `file` has the number of each.
    pub(crate) fn start() -> GitServer {
        let dir = tempfile::Builder::new().prefix("runner-git-").tempdir().unwrap();
        let site = Arc::new(Repositories { root: dir.path().join("served") });
        let git = GitServer { server: Server::start(site), dir };
        git.create("group/demo", "sha1");
        for n in 1..=3 {
            git.commit("group/demo", &[("file", &n.to_string())]);
        }
        git
    }

    pub(crate) fn url(&self, project: &str) -> String {
        format!("{}/{project}.git", self.server.url())
    }

    pub(crate) fn create(&self, project: &str, format: &str) {
        let (bare, work) = (self.bare(project), self.work(project));
        fs::create_dir_all(&work).unwrap();
        run(&work, &["init", "-q", "-b", "main", "--object-format", format]);
        run(&work, &["init", "-q", "--bare", "-b", "main", "--object-format", format, &bare.display().to_string()]);
        run(&bare, &["config", "uploadpack.allowAnySHA1InWant", "true"]);
    }

    /// A commit with these files, pushed; its name.
    pub(crate) fn commit(&self, project: &str, files: &[(&str, &str)]) -> String {
        let work = self.work(project);
        for (name, text) in files {
            fs::write(work.join(name), text).unwrap();
        }
        run(&work, &["add", "-A"]);
        self.push(project)
    }

    /// A submodule of `project`, by this address.
    pub(crate) fn submodule(&self, project: &str, path: &str, of: &str, address: &str) -> String {
        let work = self.work(project);
        let source = self.bare(of).display().to_string();
        run(&work, &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &source, path]);
        run(&work, &["submodule", "--quiet", "set-url", path, address]);
        run(&work, &["add", "-A"]);
        self.push(project)
    }

    fn push(&self, project: &str) -> String {
        let work = self.work(project);
        run(&work, &["commit", "-q", "--allow-empty", "-m", "c"]);
        run(&work, &["push", "-q", &self.bare(project).display().to_string(), "main"]);
        self.head(project)
    }

    pub(crate) fn head(&self, project: &str) -> String {
        run(&self.work(project), &["rev-parse", "HEAD"]).trim().to_owned()
    }

    /// A job with this id that gets `project` as of its last commit.
    pub(crate) fn payload(&self, id: u64, script: &[&str]) -> Payload {
        self.payload_of("group/demo", id, script, &json!({}))
    }

    /// The same of another project; `more` is laid over its `git_info`.
    pub(crate) fn payload_of(&self, project: &str, id: u64, script: &[&str], more: &Value) -> Payload {
        let url = self.url(project).replacen("://", &format!("://gitlab-ci-token:{}@", token(id)), 1);
        let mut info = json!({
            "repo_url": url, "ref": "main", "sha": self.head(project), "before_sha": "0".repeat(40),
            "ref_type": "branch", "depth": 20, "repo_object_format": "sha1", "protected": null,
            "refspecs": ["+refs/heads/main:refs/remotes/origin/main"],
        });
        for (key, value) in more.as_object().unwrap() {
            info[key] = value.clone();
        }
        Payload::script(script).id(id).strategy(None).set("git_info", info)
    }

    /// `user:password` of every request that had one.
    pub(crate) fn logins(&self) -> Vec<String> {
        let with_login = self.server.exchanges().into_iter().filter_map(|e| login(&e.request));
        with_login.collect()
    }

    fn bare(&self, project: &str) -> PathBuf {
        self.dir.path().join("served").join(format!("{project}.git"))
    }

    fn work(&self, project: &str) -> PathBuf {
        self.dir.path().join("work").join(project)
    }
}

impl Site for Repositories {
    fn label(&self, _: &Request) -> String {
        "git".to_owned()
    }

    fn answer(&self, request: &Request, _: &Patience<'_>) -> Response {
        let is_known = login(request).is_some_and(|l| l.starts_with("gitlab-ci-token:glcbt-64_"));
        if !is_known {
            return Response::empty(401).with("WWW-Authenticate", "Basic realm=\"GitLab\"");
        }
        self.backend(request)
    }

    fn life(&self) -> u64 {
        0
    }

    fn disturbed(&self, _: &Request, _: &Fault) {}
}

impl Repositories {
    /// One CGI call.
    fn backend(&self, request: &Request) -> Response {
        let mut child = Command::new("git")
            .arg("http-backend")
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REQUEST_METHOD", &request.method)
            .env("PATH_INFO", &request.path)
            .env("QUERY_STRING", &request.query)
            .env("CONTENT_TYPE", request.header("Content-Type").unwrap_or_default())
            .env("CONTENT_LENGTH", request.body.len().to_string())
            .env("HTTP_CONTENT_ENCODING", request.header("Content-Encoding").unwrap_or_default())
            .env("GIT_PROTOCOL", request.header("Git-Protocol").unwrap_or_default())
            // What the repositories' owner is here is no matter.
            .env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", "safe.directory")
            .env("GIT_CONFIG_VALUE_0", "*")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let body = request.body.clone();
        let writer = std::thread::spawn(move || drop(stdin.write_all(&body)));
        let output = child.wait_with_output().unwrap().stdout;
        writer.join().unwrap();
        let end = output.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or(output.len());
        let head = String::from_utf8_lossy(&output[..end]).into_owned();
        let mut response = Response::empty(200);
        for (name, value) in head.lines().filter_map(|l| l.split_once(": ")) {
            match name {
                "Status" => response.status = value[..3].parse().unwrap(),
                name => response = response.with(name, value),
            }
        }
        response.body = output.get(end + 4..).unwrap_or_default().to_vec();
        response
    }
}

/// `user:password` of a request.
fn login(request: &Request) -> Option<String> {
    let encoded = request.header("Authorization")?.strip_prefix("Basic ")?;
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bits = 0_u32;
    let mut out = Vec::new();
    for (n, c) in encoded.bytes().filter(|c| *c != b'=').enumerate() {
        bits = bits << 6 | u32::from(value(c));
        if n % 4 > 0 {
            out.push((bits >> (6 - 2 * (n % 4))) as u8);
        }
    }
    String::from_utf8(out).ok()
}

/// A git command of the tests' own.
pub(crate) fn run(dir: &Path, arguments: &[&str]) -> String {
    let out = Command::new("git")
        .args(arguments)
        .current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@a"), ("GIT_COMMITTER_NAME", "a")])
        .env("GIT_COMMITTER_EMAIL", "a@a")
        .output()
        .unwrap();
    assert!(out.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}
