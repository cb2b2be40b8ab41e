//! `job-N` and `ctl-N`: the threads that own a job process. `ctl-N` reads its control socket, and at the
//! end of it waits for the process; `job-N` writes to it, runs the kill timer and reaps. Neither makes a
//! request, so a dead server delays no cancel and no kill. A process is signalled by pidfd only
//! (invariant 7).

mod orders;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, never, select, unbounded};
use log::Level;

use crate::clock::{BootTime, Timing, boot_id};
use crate::forge::Wanted;
use crate::jobdir::JobDir;
use crate::model::{FromJob, ToJob, Why};
use crate::process::{Process, sweep, threads};
use crate::shutdown::Watch;

use super::held::say;
use super::{Desk, Held, Who};
use orders::Orders;

/// A frame is never longer.
const FRAME: u64 = 64 * 1024;
/// How often `ctl-N` looks whether it shall end, once its socket is closed.
const GLANCE: Duration = Duration::from_secs(1);

/// How the renewal thread holds the two.
pub(super) struct Hands {
    wanted: Sender<Wanted>,
    /// There is more in the log.
    pub(super) wrote: Receiver<()>,
    /// The process is gone.
    pub(super) ended: Receiver<Ended>,
    thread: JoinHandle<()>,
}

/// What `job-N` knows at the end.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) told: Option<Why>,
    pub(super) killed: Option<String>,
}

impl Hands {
    pub(super) fn take(desk: &Desk, held: &Held, process: Option<Arc<Process>>) -> io::Result<Hands> {
        let (wanted, wants) = unbounded();
        let (edge, wrote) = bounded(1);
        let (tell, ended) = bounded(1);
        let dir = held.dir.again()?;
        let owner = Owner {
            orders: Orders::new(desk.timing, limit(desk, &dir)),
            process: process.or_else(|| process_of(&dir)),
            tree: Tree::of(&dir, desk.timing),
            dir,
            timing: desk.timing,
            watch: desk.stop.watch(),
            wants,
            stream: None,
            who: held.who.clone(),
        };
        let label = held.label.clone();
        let thread = threads::named(&format!("job-{label}"), move || {
            let ended = owner.run(&label, edge);
            let _ = tell.send(ended);
        })?;
        Ok(Hands { wanted, wrote, ended, thread })
    }

    pub(super) fn want(&self, wanted: Wanted) {
        let _ = self.wanted.send(wanted);
    }

    pub(super) fn join(self) {
        let _ = self.thread.join();
    }
}

/// When a job process has failed to end its job at the job's own limit (kill point 23).
fn limit(desk: &Desk, dir: &JobDir) -> Option<BootTime> {
    let job = dir.job().ok().filter(|j| !j.timeout.is_zero())?;
    let since = dir.started().map_or_else(|_| BootTime::now(), |s| s.at);
    let cleanup = job.settings.custom.and_then(|c| c.cleanup).map_or(Duration::ZERO, |program| program.timeout);
    let slack = job.settings.cancel_timeout + desk.timing.cancel_least + desk.timing.sweep_limit + cleanup;
    Some(since.after(job.timeout + slack))
}

/// Ends the process of a directory that nobody can tend, and all of its job; what could not be ended.
pub fn kill(dir: &JobDir, process: Option<&Process>, timing: Timing) -> Vec<String> {
    let known = process_of(dir);
    let process = process.or(known.as_deref());
    let left = Tree::of(dir, timing).end(dir, process);
    if let Some(process) = process {
        process.wait(GLANCE);
    }
    left
}

/// By what `started` says, of this boot.
fn process_of(dir: &JobDir) -> Option<Arc<Process>> {
    let started = dir.started().ok().filter(|s| s.boot_id == boot_id())?;
    Process::open(started.pid, started.start_time).ok().flatten().map(Arc::new)
}

/// What a job process has started, and how it is ended with it.
struct Tree {
    keeps: bool,
    limit: Duration,
}

impl Tree {
    /// Asked while `job.json` is there: it goes when the outcome comes.
    fn of(dir: &JobDir, timing: Timing) -> Tree {
        Tree { keeps: dir.job().is_ok_and(|j| j.settings.keep_processes), limit: timing.sweep_limit }
    }

    /// The process is stopped before anything of its tree is killed: once it is gone, nothing leads to the
    /// orphans that it took in and that do not carry the tag (kill point 4).
    fn end(&self, dir: &JobDir, process: Option<&Process>) -> Vec<String> {
        if self.keeps {
            let _ = process.map(Process::kill);
            return Vec::new();
        }
        let tag = dir.started().ok().filter(|s| s.boot_id == boot_id()).map(|s| s.tag);
        let roots: Vec<(u32, u64)> = process.iter().map(|p| (p.pid(), p.start_time())).collect();
        sweep::tagged(tag.as_deref(), &roots, self.limit)
    }
}

/// What `ctl-N` tells `job-N`.
enum News {
    Heard,
    Gone,
}

/// What wakes `job-N`.
enum Event {
    News(News),
    Wanted(Wanted),
    Level,
    Time,
    /// `ctl-N` is not there.
    Lost,
}

struct Owner {
    dir: JobDir,
    orders: Orders,
    /// Not known for an instant between its spawn and its `started`, when that manager was killed.
    process: Option<Arc<Process>>,
    tree: Tree,
    timing: Timing,
    watch: Watch,
    wants: Receiver<Wanted>,
    stream: Option<UnixStream>,
    who: Who,
}

impl Owner {
    fn run(mut self, label: &str, edge: Sender<()>) -> Ended {
        // Refused: it has just ended, or died before it came to its socket.
        self.stream = self.dir.connect_control().ok();
        let closed = Arc::new(AtomicBool::new(false));
        let (tell, news) = unbounded();
        let reader = self.reader(edge, tell, Arc::clone(&closed));
        let thread = match reader.and_then(|r| threads::named(&format!("ctl-{label}"), move || r.run())) {
            Ok(thread) => Some(thread),
            Err(e) => {
                say!(Level::Error, self.who, "the job process cannot be listened to: {e}");
                None
            }
        };
        let ended = self.own(&news);
        closed.store(true, Ordering::Relaxed);
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        ended
    }

    fn reader(&self, edge: Sender<()>, tell: Sender<News>, closed: Arc<AtomicBool>) -> io::Result<Reader> {
        let stream = self.stream.as_ref().map(UnixStream::try_clone).transpose()?;
        Ok(Reader { stream, dir: self.dir.again()?, process: self.process.clone(), edge, tell, closed })
    }

    /// Until the process is gone, or is to be let go of.
    fn own(&mut self, news: &Receiver<News>) -> Ended {
        // First what the runner is at by now.
        let mut event = Event::Level;
        loop {
            let message = match event {
                Event::News(News::Gone) => {
                    self.reap();
                    return self.ended();
                }
                Event::Lost => return self.ended(),
                Event::News(News::Heard) => {
                    self.orders.heard();
                    None
                }
                Event::Wanted(wanted) => self.orders.wanted(wanted, BootTime::now()),
                Event::Level if self.watch.level().lets_go() => return self.ended(),
                Event::Level => self.orders.level(self.watch.level(), BootTime::now()),
                Event::Time => None,
            };
            if let Some(message) = message {
                self.send(&message);
            }
            if let Some(reason) = self.orders.overdue(BootTime::now()) {
                self.kill(reason);
            }
            event = self.next_event(news);
        }
    }

    fn next_event(&mut self, news: &Receiver<News>) -> Event {
        // Capped, so that a suspend of the host is noticed (kill point 18).
        let cap = self.timing.deadline_check;
        let left = self.orders.next().map_or(cap, |at| at.left().min(cap));
        select! {
            recv(news) -> news => news.map_or(Event::Lost, Event::News),
            recv(self.wants) -> wanted => match wanted {
                Ok(wanted) => Event::Wanted(wanted),
                Err(_) => {
                    // The renewal thread is gone; a disconnected receiver is always ready.
                    self.wants = never();
                    Event::Level
                }
            },
            recv(self.watch.changed()) -> _ => Event::Level,
            default(left) => Event::Time,
        }
    }

    /// One that does not take the frame within the write time-out is killed at the answer's time-out.
    fn send(&mut self, message: &ToJob) {
        say!(Level::Debug, self.who, "told the job process {message:?}");
        let mut frame = serde_json::to_vec(message).expect("a message is plain data");
        frame.push(b'\n');
        let sent = match &self.stream {
            Some(stream) => {
                stream.set_write_timeout(Some(self.timing.channel_write)).and_then(|()| (&*stream).write_all(&frame))
            }
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        if let Err(e) = sent {
            say!(Level::Debug, self.who, "the job process took no message: {e}");
        }
    }

    fn kill(&mut self, reason: String) {
        say!(Level::Warn, self.who, "the job process is killed: {reason}");
        if self.process.is_none() {
            self.process = process_of(&self.dir);
        }
        for left in self.tree.end(&self.dir, self.process.as_deref()) {
            say!(Level::Error, self.who, "a process of the job cannot be ended: {left}");
        }
        self.orders.killed(reason, BootTime::now());
    }

    /// The lock is free, so it is at its very end. After a hand-over it may be our child all the same.
    fn reap(&mut self) {
        let process = self.process.take().or_else(|| process_of(&self.dir));
        if let Some(process) = process {
            process.wait(GLANCE);
        }
    }

    fn ended(&self) -> Ended {
        Ended { told: self.orders.told(), killed: self.orders.why_killed() }
    }
}

/// `ctl-N`.
struct Reader {
    stream: Option<UnixStream>,
    dir: JobDir,
    process: Option<Arc<Process>>,
    edge: Sender<()>,
    tell: Sender<News>,
    closed: Arc<AtomicBool>,
}

impl Reader {
    fn run(self) {
        if let Some(stream) = &self.stream {
            self.read(stream);
        }
        // The end of the socket is a hint: the process is gone when it was reaped and its lock is free.
        let process = self.process.clone().or_else(|| process_of(&self.dir));
        while process.as_ref().is_some_and(|p| !p.wait(GLANCE)) {
            if self.closed.load(Ordering::Relaxed) {
                return;
            }
        }
        // A child that it was just forking may keep the lock until its exec; where the process is not
        // known, this is the wait. Given back at once: the renewal thread looks for itself.
        if !self.closed.load(Ordering::Relaxed) && self.dir.wait_lock().is_ok() {
            let _ = self.tell.send(News::Gone);
        }
    }

    fn read(&self, stream: &UnixStream) {
        let mut frames = BufReader::new(stream);
        let mut frame = String::new();
        loop {
            frame.clear();
            match frames.by_ref().take(FRAME).read_line(&mut frame) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            match serde_json::from_str(&frame) {
                Ok(FromJob::Wrote) => {
                    let _ = self.edge.try_send(());
                }
                Ok(FromJob::Heard) => {
                    let _ = self.tell.send(News::Heard);
                }
                // A later release may say more.
                Ok(FromJob::Stage { .. }) | Err(_) => {}
            }
        }
    }
}
