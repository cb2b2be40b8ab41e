//! Deliverers: one thread for each server that could not be reported to, so that its finished jobs hold
//! no slots (kill point 10). Back-off up to a minute, given up after a day.

use std::io;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, never, select, unbounded};
use log::Level;

use crate::clock::BootTime;
use crate::forge::Contact;
use crate::model::{JobName, Outcome};
use crate::process::threads;
use crate::retry::Backoff;
use crate::shutdown::{self, Watch};

use super::held::say;
use super::{Desk, Held};

/// A job that has ended and is still to be reported.
#[derive(Debug)]
pub struct Delivery {
    held: Held,
    outcome: Outcome,
    since: BootTime,
    due: Instant,
}

impl Delivery {
    pub fn new(mut held: Held, outcome: Outcome) -> Delivery {
        held.slot = None;
        Delivery { held, outcome, since: BootTime::now(), due: Instant::now() }
    }

    /// Jobs of the same server share a deliverer.
    pub fn server(&self) -> String {
        server_of(self.held.dir.name())
    }
}

/// `FORGE-SERVERHASH` of the directory's name.
fn server_of(name: &JobName) -> String {
    name.as_str().splitn(3, '-').take(2).collect::<Vec<_>>().join("-")
}

/// A deliverer, as the supervisor holds it. Dropping `jobs` ends it once it has nothing left.
#[derive(Debug)]
pub struct Deliverer {
    pub jobs: Sender<Delivery>,
    pub thread: JoinHandle<()>,
}

/// `done` is called for each job that was reported, given up or left.
pub fn start(desk: &Desk, server: &str, done: impl Fn(Gone) + Send + 'static) -> io::Result<Deliverer> {
    let (jobs, inbox) = unbounded();
    let line = Line {
        desk: desk.clone(),
        watch: desk.stop.watch(),
        inbox,
        jobs: Vec::new(),
        backoff: Backoff::new(desk.timing.backoff_min, desk.timing.backoff_max),
        rest_until: None,
        done: Box::new(done),
    };
    let thread = threads::named(&format!("deliver-{server}"), move || line.run())?;
    Ok(Deliverer { jobs, thread })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    Delivered,
    /// Not taken in a day, or left for the next start.
    Left,
}

struct Line {
    desk: Desk,
    watch: Watch,
    inbox: Receiver<Delivery>,
    jobs: Vec<Delivery>,
    backoff: Backoff,
    /// The server fails: none of its jobs is tried before then.
    rest_until: Option<Instant>,
    done: Box<dyn Fn(Gone) + Send>,
}

impl Line {
    fn run(mut self) {
        let mut open = true;
        loop {
            if self.watch.level().lets_go() {
                self.jobs.extend(self.inbox.try_iter());
                self.jobs.drain(..).for_each(|_| (self.done)(Gone::Left));
                return;
            }
            if self.jobs.is_empty() && !open {
                return;
            }
            let now = Instant::now();
            match self.next_due() {
                Some((n, at)) if at <= now => self.deliver(n),
                next => open = self.wait(next.map(|(_, at)| at), open),
            }
        }
    }

    fn next_due(&self) -> Option<(usize, Instant)> {
        let rest = |due: Instant| self.rest_until.map_or(due, |rest| due.max(rest));
        self.jobs.iter().enumerate().map(|(n, j)| (n, rest(j.due))).min_by_key(|(_, at)| *at)
    }

    fn wait(&mut self, until: Option<Instant>, open: bool) -> bool {
        let closed = never();
        let inbox = if open { &self.inbox } else { &closed };
        let left = until.map_or(self.desk.timing.give_up_after, |at| at.saturating_duration_since(Instant::now()));
        select! {
            recv(inbox) -> job => match job {
                Ok(job) => self.jobs.push(job),
                Err(_) => return false,
            },
            recv(self.watch.changed()) -> _ => self.hurry(),
            default(left) => {}
        }
        open
    }

    /// The runner stops: one more try of each, now.
    fn hurry(&mut self) {
        if self.watch.level() != shutdown::Level::Run {
            self.rest_until = None;
            self.backoff.reset();
            self.jobs.iter_mut().for_each(|j| j.due = Instant::now());
        }
    }

    fn deliver(&mut self, n: usize) {
        let job = &mut self.jobs[n];
        match super::attempt(&mut job.held, &job.outcome) {
            None => {
                say!(Level::Info, job.held.who, "reported after all");
                self.jobs.swap_remove(n);
                (self.done)(Gone::Delivered);
                self.answered();
            }
            Some((due, Contact::Fine)) => {
                job.due = due.at;
                self.answered();
            }
            Some((due, Contact::Failing)) => {
                job.due = due.at;
                self.rest_until = Some(Instant::now() + self.backoff.next());
                if job.since.after(self.desk.timing.give_up_after).has_passed() {
                    let job = self.jobs.swap_remove(n);
                    say!(Level::Error, job.held.who, "its server takes no report since a day, so it is given up");
                    super::remove(&job.held.dir);
                    (self.done)(Gone::Left);
                }
            }
        }
    }

    fn answered(&mut self) {
        self.backoff.reset();
        self.rest_until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_one_server_share_a_deliverer() {
        let name = |s| server_of(&JobName::from_dir(s));
        assert_eq!(name("gitlab-0011aabb-42"), "gitlab-0011aabb");
        assert_eq!(name("spool-0011aabb-my-job-1"), "spool-0011aabb");
    }
}
