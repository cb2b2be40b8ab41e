//! A coordinator for measuring: GitLab's four calls, answered at once and remembered by their times. It
//! checks nothing and keeps no log, because its work would be measured too; what the real GitLab refuses is
//! the business of the strict fake in `tests/it/support`.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What was seen of one job.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Just before the answer with the job was written.
    pub(crate) handed_out: Instant,
    /// When the final update had been read, and its state.
    pub(crate) ended: Option<(Instant, String)>,
    pub(crate) log_bytes: usize,
    pub(crate) requests: usize,
}

#[derive(Default)]
struct World {
    queue: VecDeque<(u64, String)>,
    seen: HashMap<u64, Seen>,
    polls: u64,
    last_id: u64,
}

struct Shared {
    world: Mutex<World>,
    changed: Condvar,
}

/// Serves until the process ends; a benchmark has nothing to clean up here.
pub(crate) struct Fake {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Fake {
    pub(crate) fn start() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared { world: Mutex::default(), changed: Condvar::new() });
        let serving = shared.clone();
        thread("accept", move || {
            for stream in listener.incoming().flatten() {
                let shared = serving.clone();
                // An error is a runner that was killed in the middle of a request.
                thread("connection", move || drop(serve(&stream, &shared)));
            }
        });
        Fake { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Queue a job with this script and these masked variables; its id.
    pub(crate) fn queue(&self, script: &[&str], masks: &[String]) -> u64 {
        let mut world = self.world();
        world.last_id += 1;
        let id = world.last_id;
        world.queue.push_back((id, payload(id, script, masks).to_string()));
        id
    }

    /// Requests for a job since the start.
    pub(crate) fn polls(&self) -> u64 {
        self.world().polls
    }

    /// Waits until `look` finds something among the jobs that were handed out.
    pub(crate) fn wait<T>(
        &self,
        what: &str,
        within: Duration,
        mut look: impl FnMut(&HashMap<u64, Seen>, u64) -> Option<T>,
    ) -> T {
        let end = Instant::now() + within;
        let mut world = self.world();
        loop {
            if let Some(found) = look(&world.seen, world.polls) {
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "not within {within:?}: {what}");
            world = self.shared.changed.wait_timeout(world, left).expect("no thread panics with the lock").0;
        }
    }

    /// Waits for the job's final update.
    pub(crate) fn ended(&self, id: u64, within: Duration) -> Seen {
        self.wait("the job's final update", within, |seen, _| seen.get(&id).filter(|s| s.ended.is_some()).cloned())
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.shared.world.lock().expect("no thread panics with the lock")
    }
}

fn payload(id: u64, script: &[&str], masks: &[String]) -> Value {
    let mut variables = vec![
        json!({"key": "CI", "value": "true", "public": true}),
        json!({"key": "GIT_STRATEGY", "value": "none", "public": true}),
    ];
    variables
        .extend(masks.iter().enumerate().map(|(n, m)| json!({"key": format!("MASK_{n}"), "value": m, "masked": true})));
    json!({
        "id": id, "token": format!("glcbt-64_{id}"),
        "job_info": {"id": id, "name": "bench", "stage": "test", "project_id": 7, "project_name": "demo",
            "project_full_path": "group/demo"},
        "git_info": {"repo_url": "http://127.0.0.1/group/demo.git", "ref": "main", "ref_type": "branch",
            "sha": "3f1d2c4b5a69788796a5b4c3d2e1f0a9b8c7d6e5", "before_sha": "0".repeat(40), "depth": 20, "refspecs": []},
        "runner_info": {"timeout": 3600},
        "variables": variables,
        "steps": [{"name": "script", "script": script, "timeout": 3600, "when": "on_success", "allow_failure": false}],
        "artifacts": null, "cache": [], "credentials": [], "dependencies": [], "inputs": [], "hooks": [],
        "features": {"trace_sections": true},
    })
}

/// Request after request on one connection.
fn serve(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(64 * 1024, stream);
    let mut line = String::new();
    let mut body = Vec::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let path = words.next().unwrap_or_default().split('?').next().unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        body.resize(length, 0);
        reader.read_exact(&mut body)?;
        let mut stream = stream;
        stream.write_all(&answer(&method, &path, &body, shared))?;
    }
}

fn answer(method: &str, path: &str, body: &[u8], shared: &Shared) -> Vec<u8> {
    let id = path.strip_prefix("/api/v4/jobs/").and_then(|rest| rest.split('/').next()?.parse::<u64>().ok());
    let mut world = shared.world.lock().expect("no thread panics with the lock");
    let response = match (method, id) {
        ("POST", None) => {
            world.polls += 1;
            match world.queue.pop_front() {
                None => response(204, "", ""),
                Some((id, job)) => {
                    let seen = Seen { handed_out: Instant::now(), ended: None, log_bytes: 0, requests: 0 };
                    world.seen.insert(id, seen);
                    response(201, "Content-Type: application/json\r\n", &job)
                }
            }
        }
        (_, Some(id)) => {
            let seen = world.seen.get_mut(&id).expect("a runner speaks of jobs that it was given");
            seen.requests += 1;
            if method == "PATCH" {
                seen.log_bytes += body.len();
                let range = format!("Job-Status: running\r\nRange: 0-{}\r\n", seen.log_bytes);
                response(202, &range, "202")
            } else {
                let update: Value = serde_json::from_slice(body).unwrap_or_default();
                let state = update["state"].as_str().unwrap_or_default().to_owned();
                if state != "running" {
                    seen.ended = Some((Instant::now(), state.clone()));
                }
                response(200, &format!("Job-Status: {state}\r\n"), "200")
            }
        }
        _ => response(404, "", "404"),
    };
    drop(world);
    shared.changed.notify_all();
    response
}

fn response(status: u16, headers: &str, body: &str) -> Vec<u8> {
    // GitLab's answer without content has no length.
    let length = if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!("HTTP/1.1 {status} X\r\n{headers}{length}\r\n{body}").into_bytes()
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).expect("a thread can start");
}
