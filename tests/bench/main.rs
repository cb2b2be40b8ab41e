//! `cargo bench [-- BINARY] [--archives]`: one table of what the runner costs, each row beside its goal and, where there
//! is one, beside the floor that was measured in the same run. Fails only when a job fails; slow is a number.

#![expect(clippy::print_stdout, reason = "the table is what this program is for")]

mod archives;
mod fake;
mod floor;
mod host;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fake::Fake;
use host::Host;

/// Bytes of log in a throughput row.
const LOG: usize = 128 << 20;
const MINUTE: Duration = Duration::from_secs(60);

fn main() {
    // cargo passes `--bench`; anything else is a binary to measure in place of the one just built.
    let given = std::env::args().skip(1).find(|a| !a.starts_with("--")).map(PathBuf::from);
    let binary = given.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_runner")));
    let binary = fs::canonicalize(&binary).unwrap_or_else(|e| panic!("{}: {e}", binary.display()));
    let fake = Fake::start();
    println!("{}", binary.display());
    println!("{:<44} {:>14}   {:<14} floor", "", "measured", "goal");
    if std::env::args().any(|a| a == "--archives") {
        return archives::all(&binary);
    }
    size(&binary);
    start(&binary, &fake);
    idle(&binary, &fake);
    empty_job(&binary, &fake);
    one_job(&binary, &fake);
    many_jobs(&binary, &fake);
    log(&binary, &fake);
    archives::all(&binary);
}

// ---- Rows, in their order ------------------------------------------------------------------------

fn size(binary: &Path) {
    let bytes = fs::metadata(binary).map_or(0, |m| m.len());
    row("binary", mb(bytes), "", "");
}

/// From the start of the process to its first request on the wire.
fn start(binary: &Path, fake: &Fake) {
    let times = (0..15).map(|_| {
        let mut host = Host::new(binary, fake, 1, 3);
        let before = fake.polls();
        let began = Instant::now();
        host.start();
        let arrived = fake.wait("the first poll", MINUTE, |_, polls| (polls > before).then(Instant::now));
        host.stop();
        arrived - began
    });
    row("start to first poll", ms(median(times)), "5 ms", "");
}

/// Four workers, a poll every 3 s, nothing to do.
fn idle(binary: &Path, fake: &Fake) {
    let mut host = Host::new(binary, fake, 4, 3);
    host.start();
    let polls = fake.polls();
    fake.wait("a few polls", MINUTE, |_, now| (now >= polls + 3).then_some(()));
    let (began, before) = (Instant::now(), host::cpu(host.pid()));
    fake.wait("more polls", MINUTE, |_, now| (now >= polls + 11).then_some(()));
    let hours = began.elapsed().as_secs_f64() / 3600.0;
    let used = (host::cpu(host.pid()) - before).as_secs_f64();
    row("idle: PSS of the manager", memory(host::pss(host.pid())), "2.4 MB", "");
    row("idle: threads", host::threads(host.pid()).to_string(), "", "");
    row("idle: processor time in an hour", format!("{:.2} s", used / hours), "0.5 s", "");
    host.stop();
}

/// From the hand-out to the final update, beside the same calls and one shell by hand: a login shell, as a
/// job has, and a plain one. They take turns, so that a busy host slows all.
fn empty_job(binary: &Path, fake: &Fake) {
    let mut host = Host::new(binary, fake, 1, 1);
    host.start();
    let (mut ours, mut login, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..20 {
        let id = fake.queue(&["true"], &[]);
        ours.push(run(fake, &host, id).0);
        host.pause(|| {
            login.push(floor::empty_job(fake, &host, &["-l"]));
            plain.push(floor::empty_job(fake, &host, &[]));
        });
    }
    host.stop();
    let (ours, login, plain) = (median(ours), median(login), median(plain));
    let floors = format!("{}; plain shell: {}", ratio(ours, login), ratio(ours, plain));
    row("empty job, hand-out to final update", ms(ours), "2 x floor", &floors);
}

fn one_job(binary: &Path, fake: &Fake) {
    let mut host = Host::new(binary, fake, 1, 1);
    host.start();
    let id = fake.queue(&["echo started", "sleep 2"], &[]);
    fake.wait("the first log of the job", MINUTE, |seen, _| seen.get(&id).filter(|s| s.log_bytes > 0).map(|_| ()));
    let jobs = host.job_processes();
    assert_eq!(jobs.len(), 1, "one job process: {}", host.said());
    let own = jobs.iter().chain([&host.pid()]).map(|p| host::pss(*p)).sum();
    row("one job: PSS of manager and job process", memory(own), "5 MB", "");
    run(fake, &host, id);
    host.stop();
}

/// Four workers and a queue that is never empty.
fn many_jobs(binary: &Path, fake: &Fake) {
    const JOBS: u32 = 400;
    let mut host = Host::new(binary, fake, 4, 1);
    let ids: Vec<u64> = (0..JOBS).map(|_| fake.queue(&["true"], &[])).collect();
    host.start();
    let all = ids.iter().map(|id| fake.ended(*id, 5 * MINUTE)).collect::<Vec<_>>();
    let first = all.iter().map(|s| s.handed_out).min().expect("there are jobs");
    let last = all.iter().filter_map(|s| Some(s.ended.as_ref()?.0)).max().expect("all have ended");
    let minutes = (last - first).as_secs_f64() / 60.0;
    row("jobs a minute, 4 workers", format!("{:.0}", f64::from(JOBS) / minutes), "6,000", "");
    // The last job processes are reaped just after their final update.
    let polled = fake.polls();
    fake.wait("a few polls", MINUTE, |_, polls| (polls > polled + 2).then_some(()));
    let ours = host::cpu_of_all(host.pid()) / JOBS;
    let before = host::cpu_of_all(std::process::id());
    (0..JOBS).for_each(|_| floor::shell(&host, &["-l"]));
    let shell = (host::cpu_of_all(std::process::id()) - before) / JOBS;
    row("the same: processor time of a job", ms(ours), "", &format!("login shell: {}", ms(shell)));
    host.stop();
}

/// A large log, as the script sees it and to the final update; the best of three, and so its floor.
fn log(binary: &Path, fake: &Fake) {
    let mut host = Host::new(binary, fake, 1, 1);
    let secret = |n: u64| format!("s3cret-{:016x}", (n + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let secrets: Vec<String> = (0..50).map(secret).collect();
    let (file, times) = (host.path("log.txt"), host.path("times"));
    write_log(&file, &secrets);
    host.start();
    for masks in [&[][..], &secrets[..]] {
        let (mut script, mut total, mut floor) = (Duration::MAX, Duration::MAX, Duration::MAX);
        for _ in 0..3 {
            floor = floor.min(floor::two_cats(&file, &host.path("copy")));
            let began = "began=$(date +%s%N)";
            let ended = format!("echo $(($(date +%s%N) - began)) >{}", times.display());
            let id = fake.queue(&[began, &format!("cat {}", file.display()), &ended], masks);
            let (took, bytes) = run(fake, &host, id);
            assert!(bytes > LOG / 2, "the server got {bytes} bytes of {LOG}: {}", host.said());
            let nanos = fs::read_to_string(&times).ok().and_then(|t| t.trim().parse().ok());
            script = script.min(Duration::from_nanos(nanos.expect("the script wrote its time")));
            total = total.min(took);
        }
        let n = masks.len();
        row(&format!("log, {n} masks: as the script sees it"), speed(script), "300 MB/s", &speed_ratio(script, floor));
        row(&format!("log, {n} masks: to the final update"), speed(total), "300 MB/s", &speed_ratio(total, floor));
    }
    host.stop();
}

// ---- Helpers -------------------------------------------------------------------------------------

/// Waits for the job's success: from hand-out to final update, and the bytes of its log.
fn run(fake: &Fake, host: &Host, id: u64) -> (Duration, usize) {
    let seen = fake.ended(id, 2 * MINUTE);
    let (at, state) = seen.ended.expect("it has ended");
    assert_eq!(state, "success", "job {id}: {}", host.said());
    (at - seen.handed_out, seen.log_bytes)
}

/// Lines as a compiler prints them; one in a thousand holds a secret.
fn write_log(path: &Path, secrets: &[String]) {
    let mut out = std::io::BufWriter::new(fs::File::create(path).expect("the directory is writable"));
    let (mut written, mut n) = (0, 0_usize);
    while written < LOG {
        let line = match n % 1000 {
            0 => format!("token is {} here\n", secrets[n / 1000 % secrets.len()]),
            _ => format!("[{n:8}] Compiling part-{} of the project, with options -O{} and so on\n", n % 977, n % 4),
        };
        written += line.len();
        n += 1;
        out.write_all(line.as_bytes()).expect("the disk has room");
    }
    out.flush().expect("the disk has room");
}

fn row(what: &str, measured: String, goal: &str, floor: &str) {
    println!("{what:<44} {measured:>14}   {goal:<14} {floor}");
}

fn median(times: impl IntoIterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.into_iter().collect();
    times.sort();
    times[times.len() / 2]
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

fn mb(bytes: u64) -> String {
    let bytes = bytes as f64;
    format!("{:.2} MB", bytes / 1e6)
}

fn memory(pss: Option<u64>) -> String {
    pss.map_or("needs root".to_owned(), mb)
}

fn mb_per_second(time: Duration) -> f64 {
    let bytes = LOG as f64;
    bytes / 1e6 / time.as_secs_f64()
}

fn speed(time: Duration) -> String {
    format!("{:.0} MB/s", mb_per_second(time))
}

fn ratio(ours: Duration, floor: Duration) -> String {
    format!("{}, {:.1} x", ms(floor), ours.as_secs_f64() / floor.as_secs_f64())
}

fn speed_ratio(ours: Duration, floor: Duration) -> String {
    format!("cat | cat: {:.0} MB/s, {:.2} of it", mb_per_second(floor), floor.as_secs_f64() / ours.as_secs_f64())
}
