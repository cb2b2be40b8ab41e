//! Artifacts beside the tools that people know: packing and sending a tree of sources beside `zip -6`,
//! extracting it beside `unzip`, looking through many files beside `find`. All in the same run, so that a
//! busy host slows all.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{mb, row};

/// The tree to pack.
const FILES: usize = 30_000;
const BYTES: usize = 500 << 20;
/// The tree to look through.
const MANY: usize = 200_000;

pub(super) fn all(binary: &Path) {
    let dir = tempfile::tempdir().expect("there is a temporary directory");
    let tree = dir.path().join("tree");
    make_sources(&tree);
    pack(binary, dir.path());
    extract(binary, dir.path());
    fs::remove_dir_all(&tree).expect("it is ours");
    look(binary, dir.path());
}

fn pack(binary: &Path, dir: &Path) {
    let sink = Server::start(dir.join("ours.zip"));
    let mut best = (Ran::worst(), Ran::worst());
    for _ in 0..3 {
        let ours = helper(binary, "artifacts-uploader", &sink, dir).args(["--path", "tree"]).run();
        let _ = fs::remove_file(dir.join("theirs.zip"));
        let theirs = command("zip").args(["-6", "-q", "-r", "theirs.zip", "tree"]).current_dir(dir).run();
        best = (best.0.min(ours), best.1.min(theirs));
    }
    let (ours, theirs) = best;
    let times = if theirs.is_none() { 0.0 } else { theirs.took.as_secs_f64() / ours.took.as_secs_f64() };
    let floor = format!("zip -6: {}, {}", theirs.speed(), mb(theirs.peak));
    row("zip of 30,000 sources, made and sent", format!("{}, {times:.1} x", ours.speed()), "3.5 x", &floor);
    row("the same: memory at its highest", mb(ours.peak), "32 MB", "");
    let size = |name: &str| fs::metadata(dir.join(name)).map_or(0, |m| m.len());
    let larger = size("ours.zip") as f64 / size("theirs.zip").max(1) as f64 * 100.0 - 100.0;
    row("the same: larger than zip -6's", format!("{larger:.1} %"), "5 %", "");
}

fn extract(binary: &Path, dir: &Path) {
    let source = Server::start(dir.join("theirs.zip"));
    let mut best = (Ran::worst(), Ran::worst());
    for _ in 0..2 {
        let fresh = |name: &str| {
            let _ = fs::remove_dir_all(dir.join(name));
            fs::create_dir(dir.join(name)).expect("the directory is ours");
            dir.join(name)
        };
        let ours = helper(binary, "artifacts-downloader", &source, &fresh("x")).run();
        let theirs = command("unzip").args(["-q", "../theirs.zip"]).current_dir(fresh("x")).run();
        best = (best.0.min(ours), best.1.min(theirs));
    }
    let _ = fs::remove_dir_all(dir.join("x"));
    row("the same: received and extracted", best.0.speed(), "72 MB/s", &format!("unzip: {}", best.1.speed()));
    row("the same: memory at its highest", mb(best.0.peak), "32 MB", "");
}

fn look(binary: &Path, dir: &Path) {
    let many = dir.join("many");
    for n in 0..MANY {
        let at = many.join(format!("d{}/s", n / 1000));
        if n % 1000 == 0 {
            fs::create_dir_all(&at).expect("the directory is ours");
        }
        File::create(at.join(format!("{n}.txt"))).expect("the disk has room");
    }
    let sink = Server::start(dir.join("none"));
    let mut best = (Ran::worst(), Ran::worst());
    for _ in 0..5 {
        let ours = helper(binary, "artifacts-uploader", &sink, &many).args(["--path", "**/*.none"]).run();
        let theirs = command("find").args([".", "-name", "*.none"]).current_dir(&many).run();
        best = (best.0.min(ours), best.1.min(theirs));
    }
    let millis = |ran: &Ran| format!("{:.0} ms", ran.took.as_secs_f64() * 1000.0);
    row("a pattern over 200,000 files", millis(&best.0), "2 x find", &format!("find: {}", millis(&best.1)));
}

/// Files of 2 to 33 KB, made of this repository's own sources.
fn make_sources(tree: &Path) {
    let mut text = Vec::new();
    let mut dirs = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("the sources are there").flatten() {
            match entry.path() {
                path if path.is_dir() => dirs.push(path),
                path => text.extend(fs::read(path).expect("a source can be read")),
            }
        }
    }
    let mut seed = 1_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    for n in 0..FILES {
        let at = tree.join(format!("d{}", n / 300));
        if n % 300 == 0 {
            fs::create_dir_all(&at).expect("the directory is ours");
        }
        let len = 2048 + random(2 * BYTES / FILES - 4096);
        let mut file = Vec::with_capacity(len + 2048);
        while file.len() < len {
            let from = random(text.len() - 2048);
            file.extend_from_slice(&text[from..from + 256 + random(1792)]);
        }
        fs::write(at.join(format!("{n}.rs")), file).expect("the disk has room");
    }
}

// ---- Running and measuring ---------------------------------------------------------------------

/// Time and highest memory of a process.
#[derive(Clone, Copy)]
struct Ran {
    took: Duration,
    peak: u64,
}

impl Ran {
    fn worst() -> Ran {
        Ran { took: Duration::MAX, peak: 0 }
    }

    fn min(self, other: Ran) -> Ran {
        Ran { took: self.took.min(other.took), peak: self.peak.max(other.peak) }
    }

    fn is_none(&self) -> bool {
        self.took == Duration::MAX
    }

    fn speed(&self) -> String {
        if self.is_none() {
            return "not installed".to_owned();
        }
        format!("{:.0} MB/s", BYTES as f64 / 1e6 / self.took.as_secs_f64())
    }
}

trait Run {
    fn run(&mut self) -> Ran;
}

impl Run for Command {
    fn run(&mut self) -> Ran {
        let began = Instant::now();
        let mut child = match self.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => child,
            // It is not installed, which the row says.
            Err(_) => return Ran::worst(),
        };
        let status = format!("/proc/{}/status", child.id());
        let mut peak = 0;
        loop {
            let known = fs::read_to_string(&status).unwrap_or_default();
            let high = known.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
            peak = high.map_or(peak, |kib: u64| peak.max(kib * 1024));
            if child.try_wait().expect("a child can be waited for").is_some() {
                return Ran { took: began.elapsed(), peak };
            }
            thread::park_timeout(Duration::from_millis(2));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the tools are plain processes")]
fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

fn helper(binary: &Path, name: &str, server: &Server, dir: &Path) -> Command {
    let mut command = command(binary);
    command.args([name, "--url", &server.url, "--id", "1"]).env("CI_JOB_TOKEN", "bench").current_dir(dir);
    command
}

/// Takes what is sent to it into a file, and gives the file to who asks.
struct Server {
    url: String,
}

impl Server {
    fn start(file: PathBuf) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let serve = move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &file);
            }
        };
        thread::Builder::new().name("server".into()).spawn(serve).expect("a thread can be started");
        Server { url }
    }
}

fn answer(mut stream: TcpStream, file: &Path) -> io::Result<()> {
    let mut head = Vec::new();
    let mut piece = vec![0; 256 << 10];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let n = stream.read(&mut piece)?;
        if n == 0 {
            return Ok(());
        }
        head.extend_from_slice(&piece[..n]);
    }
    if head.starts_with(b"GET") {
        let mut file = File::open(file)?;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", file.metadata()?.len())?;
        return io::copy(&mut file, &mut stream).map(drop);
    }
    // With the frames of the chunks, a thousandth more: the file is for its size alone.
    let mut out = File::create(file)?;
    out.write_all(&head)?;
    while !head.ends_with(b"\r\n0\r\n\r\n") {
        let n = stream.read(&mut piece)?;
        if n == 0 {
            return Ok(());
        }
        out.write_all(&piece[..n])?;
        head.extend_from_slice(&piece[..n]);
        head.drain(..head.len().saturating_sub(16));
    }
    stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\nConnection: close\r\n\r\n201")
}
