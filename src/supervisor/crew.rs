//! Every thread that the supervisor starts, and joins again: workers, one for each adopted job, one
//! deliverer for each server that cannot be reported to.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::dispatch::deliver::{self, Deliverer, Delivery, Gone};
use crate::dispatch::{self, Desk, Held};
use crate::forge::Lease;
use crate::process::threads;
use crate::worker::{self, End, Report, Work};

#[derive(Debug)]
pub(super) struct Crew {
    desk: Arc<Desk>,
    /// No capacity: work is taken by a worker that is ready, or by none.
    pub(super) work: Sender<Work>,
    ready: Receiver<Work>,
    reports: Sender<Report>,
    workers: BTreeMap<u32, JoinHandle<()>>,
    /// Workers that were told to end and have not yet said that they did.
    dismissed: usize,
    adopted: BTreeMap<u32, JoinHandle<()>>,
    next_adopted: u32,
    /// By a number: a server has a second one when its first has just ended.
    deliverers: BTreeMap<u32, Line>,
    next_line: u32,
    /// That of a hand-over.
    pub(super) check: Option<JoinHandle<()>>,
}

/// A deliverer and how many jobs it has.
#[derive(Debug)]
struct Line {
    server: String,
    deliverer: Deliverer,
    jobs: usize,
}

impl Line {
    fn has_ended(&self) -> bool {
        self.deliverer.thread.is_finished()
    }
}

impl Crew {
    pub(super) fn new(desk: Arc<Desk>, reports: Sender<Report>) -> Crew {
        let (work, ready) = bounded(0);
        Crew {
            desk,
            work,
            ready,
            reports,
            workers: BTreeMap::new(),
            dismissed: 0,
            adopted: BTreeMap::new(),
            next_adopted: 0,
            deliverers: BTreeMap::new(),
            next_line: 0,
            check: None,
        }
    }

    /// As many workers as there may be jobs at a time. Fewer come about as they become idle.
    pub(super) fn grow(&mut self, concurrent: usize) -> io::Result<()> {
        let mut number = 0;
        while self.workers() < concurrent {
            while self.workers.contains_key(&number) {
                number += 1;
            }
            let (desk, ready, reports) = (Arc::clone(&self.desk), self.ready.clone(), self.reports.clone());
            let work = move || worker::work(number, &desk, &ready, &reports);
            self.workers.insert(number, threads::named(&format!("worker-{number}"), work)?);
        }
        Ok(())
    }

    pub(super) fn reports(&self) -> Sender<Report> {
        self.reports.clone()
    }

    /// Those that stay.
    pub(super) fn workers(&self) -> usize {
        self.workers.len() - self.dismissed
    }

    /// A worker took the word that there is no more work for it.
    pub(super) fn dismissed_one(&mut self) {
        self.dismissed += 1;
    }

    pub(super) fn worker_gone(&mut self, number: u32) {
        if let Some(thread) = self.workers.remove(&number) {
            self.dismissed = self.dismissed.saturating_sub(1);
            let _ = thread.join();
        }
    }

    /// An adopted job has a thread of its own, also above `concurrent`.
    pub(super) fn adopt(&mut self, mut held: Held, key: String, times: u32) -> io::Result<()> {
        self.own_thread(key, move |label, desk| {
            held.label = label;
            let name = held.dir.name().clone();
            worker::guarded(name, times, || dispatch::again(desk, held))
        })
    }

    /// So has a second job that an entry was given.
    pub(super) fn another(&mut self, lease: Box<dyn Lease>, key: String) -> io::Result<()> {
        let entry = key.clone();
        self.own_thread(key, move |label, desk| {
            let name = lease.name();
            worker::guarded(name, 0, || dispatch::fresh(desk, &entry, lease, &label))
        })
    }

    fn own_thread(&mut self, key: String, work: impl FnOnce(String, &Desk) -> End + Send + 'static) -> io::Result<()> {
        let number = self.next_adopted;
        self.next_adopted += 1;
        let (desk, reports) = (Arc::clone(&self.desk), self.reports.clone());
        let work = move || {
            let end = work(format!("a{number}"), &desk);
            let _ = reports.send(Report::Ended { key, end });
            let _ = reports.send(Report::AdoptedGone(number));
        };
        self.adopted.insert(number, threads::named(&format!("adopt-{number}"), work)?);
        Ok(())
    }

    pub(super) fn adopted_gone(&mut self, number: u32) {
        if let Some(thread) = self.adopted.remove(&number) {
            let _ = thread.join();
        }
    }

    pub(super) fn deliver(&mut self, delivery: Delivery) -> io::Result<()> {
        let server = delivery.server();
        // One that has ended takes no more: by a panic, or for a hand-over that is off meanwhile.
        let open = self.deliverers.values_mut().find(|l| l.server == server && !l.has_ended());
        let line = match open {
            Some(line) => line,
            None => self.new_line(server)?,
        };
        line.jobs += 1;
        let gone = |_| io::Error::other("the deliverer of its server has just ended");
        line.deliverer.jobs.send(delivery).map_err(gone)
    }

    fn new_line(&mut self, server: String) -> io::Result<&mut Line> {
        let number = self.next_line;
        self.next_line += 1;
        let reports = self.reports.clone();
        let done = move |gone| drop(reports.send(Report::Delivered(number, gone)));
        let deliverer = deliver::start(&self.desk, &server, done)?;
        Ok(self.deliverers.entry(number).or_insert(Line { server, deliverer, jobs: 0 }))
    }

    pub(super) fn delivered(&mut self, number: u32, gone: Gone) {
        let Some(line) = self.deliverers.get_mut(&number) else { return };
        log::debug!("a delivery to {} has ended: {gone:?}", line.server);
        line.jobs = line.jobs.saturating_sub(1);
        if line.jobs == 0
            && let Some(line) = self.deliverers.remove(&number)
        {
            drop(line.deliverer.jobs);
            let _ = line.deliverer.thread.join();
        }
    }

    pub(super) fn deliveries(&self) -> usize {
        self.deliverers.values().filter(|l| !l.has_ended()).map(|l| l.jobs).sum()
    }

    /// The end of all idle workers. Not called while one is in a poll that cannot be cut: the process
    /// ends with that one.
    pub(super) fn dismiss(self) {
        drop(self.work);
        drop(self.ready);
        for (_, thread) in self.workers.into_iter().chain(self.adopted) {
            let _ = thread.join();
        }
    }
}
