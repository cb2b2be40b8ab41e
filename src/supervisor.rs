//! The manager's one event loop: signals, timers, the configuration, who polls next. All that is rare,
//! global and unordered meets here, as one closed enum; a job's own life is straight-line code on its own
//! thread (`dispatch`). Makes no request and waits for none.

mod adopt;
mod crew;
mod entries;
pub mod feeder;
mod handover;
mod reload;
mod signals;
mod state;
mod stopping;

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, never, select, unbounded};

use crate::clock::Timing;
use crate::config::Config;
use crate::dispatch::{Desk, Fate, News};
use crate::forge::{HangUp, Refusal};
use crate::forges::Ground;
use crate::jobdir::JobDir;
use crate::model::JobName;
use crate::monitor::Registry;
use crate::process;
use crate::shutdown::{Level, Stop};
use crate::worker::{End, Report, Work};

use crew::Crew;
use entries::Entries;
use feeder::{Answer, EntryId, Feeder, Pace, Patience, Turn};
use reload::Watched;
use signals::{Listener, Signal};
use state::{Refused, State};
use stopping::Stopping;

pub use signals::Signals;

/// The state directory is in use (sysexits `EX_TEMPFAIL`).
const IN_USE: u8 = 75;
/// Wrong configuration (sysexits `EX_CONFIG`).
const CONFIG: u8 = 78;
/// A job whose thread panicked so often is put aside.
const PANICS: u32 = 3;
/// The longest wait of the loop, so that a suspend of the host is noticed.
const LONGEST: Duration = Duration::from_secs(30);

/// Be the manager until it ends; the exit code (design §9).
pub fn run(config: Config, signals: Signals) -> u8 {
    let timing = Timing::load();
    // First of all, so that no signal meets its default.
    let listener = match Listener::start(signals) {
        Ok(listener) => listener,
        Err(e) => {
            log::error!("signals cannot be heard: {e}");
            return 1;
        }
    };
    let state = match State::open(&config, &timing, &listener.heard) {
        Ok(state) => state,
        Err(Refused::Stopped) => return 0,
        Err(Refused::InUse(why)) => {
            log::error!("{why}");
            return IN_USE;
        }
        Err(Refused::Unfit(why)) => {
            log::error!("{why}");
            return CONFIG;
        }
    };
    if let Err(e) = process::undumpable() {
        log::warn!("scripts of the same user can read this process: {e}");
    }
    match Supervisor::new(config, state, timing, listener.heard.clone()) {
        Ok(supervisor) => supervisor.work(),
        Err(e) => {
            log::error!("the manager cannot start: {e}");
            1
        }
    }
}

/// All that wakes the supervisor.
#[derive(Debug)]
enum Event {
    Signal(Signal),
    Report(Report),
    /// What a job's own thread heard for others.
    News(News),
    /// A worker took the work that was offered.
    Taken(Offer),
    Time,
}

/// What a ready worker may take.
#[derive(Clone, Copy, Debug)]
enum Offer {
    Poll(EntryId, Patience),
    End,
}

struct Supervisor {
    config: Config,
    watched: Watched,
    desk: Arc<Desk>,
    lock: File,
    entries: Entries,
    feeder: Feeder,
    crew: Crew,
    signals: Receiver<Signal>,
    reports: Receiver<Report>,
    news: Receiver<News>,
    stopping: Stopping,
    /// The highest word of an entry that has retired.
    exit: u8,
}

impl Supervisor {
    fn new(config: Config, state: State, timing: Timing, signals: Receiver<Signal>) -> std::io::Result<Supervisor> {
        let ground = Ground::new(timing, config.state_dir.clone(), config.adoption_timeout);
        let (tell_news, news) = unbounded();
        let desk = Arc::new(Desk {
            jobs: state.jobs,
            broken: state.broken,
            timing,
            ground,
            stop: Stop::default(),
            registry: Registry::default(),
            news: tell_news,
        });
        let (tell, reports) = unbounded();
        let now = Instant::now();
        let mut supervisor = Supervisor {
            watched: Watched::new(&config.path, timing.config_check, now),
            feeder: Feeder::new(pace(&config, &timing)),
            crew: Crew::new(Arc::clone(&desk), tell),
            entries: Entries::default(),
            desk,
            lock: state.lock,
            signals,
            reports,
            news,
            stopping: Stopping::default(),
            exit: 0,
            config,
        };
        log::info!(
            "runner {} started: pid {}, concurrent {}, state {}",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            supervisor.config.concurrent,
            supervisor.config.state_dir.display()
        );
        supervisor.crew.grow(supervisor.config.concurrent)?;
        supervisor.take_up();
        supervisor.open_entries(now);
        Ok(supervisor)
    }

    fn open_entries(&mut self, now: Instant) {
        let fed = self.entries.load(&self.config, &self.desk.ground);
        if fed.is_empty() {
            log::warn!("{}: no entry takes jobs; waiting for the file to change", self.config.path.display());
        }
        self.feeder.set(pace(&self.config, &self.desk.timing), fed, now);
        log::info!("entries: {}", self.entries.names().join(", "));
    }

    /// The jobs that an earlier manager, or a hand-over that could not be, has left.
    fn take_up(&mut self) {
        for found in adopt::all(&self.desk) {
            self.found(found, 0);
        }
    }

    fn found(&mut self, found: adopt::Found, times: u32) {
        let done = match found {
            adopt::Found::Ended(delivery) => self.crew.deliver(*delivery),
            adopt::Found::Job { held, key } => {
                self.feeder.took(&key);
                let adopted = self.crew.adopt(*held, key.clone(), times);
                if adopted.is_err() {
                    self.feeder.ended(&key, Instant::now());
                }
                adopted
            }
        };
        if let Err(e) = done {
            log::error!("a job cannot be taken up now; it stays for the next start: {e}");
        }
    }

    fn work(mut self) -> u8 {
        loop {
            if let Some(code) = self.over(Instant::now()) {
                // One that is stuck in DNS or connect has asked for nothing; it ends with the process.
                if self.feeder.polls() == 0 && self.feeder.jobs() == 0 {
                    self.crew.dismiss();
                }
                return code;
            }
            let event = self.next_event(Instant::now());
            if let Some(code) = self.handle(event, Instant::now()) {
                return code;
            }
        }
    }

    fn next_event(&mut self, now: Instant) -> Event {
        let (offer, until) = self.turn(now);
        let mut until = until.map_or(now + LONGEST, |at| at.min(now + LONGEST));
        until = until.min(self.watched.next());
        if let Some(at) = self.stopping.next(now, self.feeder.polls()) {
            until = until.min(at);
        }
        let work = offer.and_then(|o| self.work_of(o));
        // A sender whose receiver takes nothing stands for "no offer".
        let (nobody, _takes_nothing) = bounded(0);
        let (to, work) = match work {
            Some(work) => (&self.crew.work, work),
            None => (&nobody, Work::End),
        };
        select! {
            recv(self.signals) -> signal => match signal {
                Ok(signal) => Event::Signal(signal),
                Err(_) => {
                    // A disconnected receiver is always ready.
                    self.signals = never();
                    Event::Time
                }
            },
            recv(self.reports) -> report => report.map_or(Event::Time, Event::Report),
            recv(self.news) -> news => news.map_or(Event::Time, Event::News),
            send(to, work) -> sent => match (sent, offer) {
                (Ok(()), Some(offer)) => Event::Taken(offer),
                _ => Event::Time,
            },
            default(until.saturating_duration_since(now)) => Event::Time,
        }
    }

    /// What to offer to a worker now, and when to look again.
    fn turn(&mut self, now: Instant) -> (Option<Offer>, Option<Instant>) {
        if self.crew.workers() > self.config.concurrent {
            return (Some(Offer::End), None);
        }
        if self.desk.stop.level() != Level::Run {
            return (None, None);
        }
        loop {
            match self.feeder.turn(now) {
                Turn::Poll { entry, patience } => return (Some(Offer::Poll(entry, patience)), None),
                Turn::Wait(until) => return (None, until),
                Turn::HangUp(entry, poll) => {
                    self.feeder.cut(poll);
                    if let Some(poller) = self.entries.get(entry) {
                        poller.coordinator.hang_up(HangUp::Longest);
                    }
                }
            }
        }
    }

    fn work_of(&self, offer: Offer) -> Option<Work> {
        match offer {
            Offer::End => Some(Work::End),
            Offer::Poll(entry, patience) => {
                let poller = Arc::clone(self.entries.get(entry)?);
                Some(Work::Poll { poller, poll: self.feeder.next_poll(), patience })
            }
        }
    }

    fn handle(&mut self, event: Event, now: Instant) -> Option<u8> {
        match event {
            Event::Signal(signal) => return self.signal(signal, now),
            Event::Report(report) => self.report(report, now),
            Event::News(news) => self.news(news),
            Event::Taken(Offer::Poll(entry, patience)) => self.feeder.polling(entry, patience, now),
            Event::Taken(Offer::End) => self.crew.dismissed_one(),
            Event::Time => {}
        }
        if self.watched.changed(now) {
            self.reload();
        }
        None
    }

    fn report(&mut self, report: Report, now: Instant) {
        match report {
            Report::Answered { poller, poll, answer, refusal } => {
                self.feeder.answered(poll, answer, now);
                self.entries.answered(&poller, refusal.as_ref());
                if let (Answer::Retire, Some(Refusal::Retire { exit, .. })) = (answer, refusal) {
                    self.exit = self.exit.max(exit);
                }
                self.entries.forget_left(|id| self.feeder.polls_of(id));
            }
            Report::Ended { key, end } => {
                self.feeder.ended(&key, now);
                self.ended(end);
            }
            Report::AdoptedGone(number) => self.crew.adopted_gone(number),
            Report::WorkerGone(number) => self.crew.worker_gone(number),
            Report::Delivered(line, gone) => self.crew.delivered(line, gone),
            Report::Checked(checked) => self.checked(checked),
        }
    }

    fn news(&mut self, news: News) {
        match news {
            News::Another { key, lease } => {
                self.feeder.took(&key);
                if let Err(e) = self.crew.another(lease, key.clone()) {
                    log::error!("a second job cannot be taken: {e}");
                    self.feeder.ended(&key, Instant::now());
                }
            }
            News::Entry { key, refusal } => {
                if let Refusal::Retire { exit, .. } = refusal {
                    self.exit = self.exit.max(exit);
                    self.feeder.retire(&key);
                }
                self.entries.refused(&key, &refusal);
            }
        }
    }

    fn ended(&mut self, end: End) {
        match end {
            // It let go for a hand-over that is off meanwhile.
            End::Fate(Fate::Left) if !self.desk.stop.level().leaves_jobs() => self.take_up(),
            End::Fate(Fate::Done | Fate::Left) => {}
            End::Fate(Fate::Undelivered(delivery)) => {
                if let Err(e) = self.crew.deliver(*delivery) {
                    log::error!("a finished job cannot be reported now; it stays for the next start: {e}");
                }
            }
            End::Panicked { name, times } => self.offer_again(&name, times),
        }
    }

    /// After a panic the directory says what is to be done, as after a crash of the whole manager.
    fn offer_again(&mut self, name: &JobName, times: u32) {
        log::error!(job = name.as_str(); "the job's thread failed by a fault of the runner ({times} of {PANICS})");
        // None: it was done, or never had one.
        let Ok(dir) = JobDir::open(&self.desk.jobs.join(name.as_str())) else { return };
        if times >= PANICS {
            adopt::put_aside(&self.desk, &dir, "its thread failed again and again");
        } else if let Some(found) = adopt::one(&self.desk, dir) {
            self.found(found, times);
        }
    }
}

fn pace(config: &Config, timing: &Timing) -> Pace {
    Pace {
        concurrent: config.concurrent,
        interval: config.check_interval,
        parked_after: timing.parked_after,
        unhealthy_rest: timing.unhealthy_rest,
    }
}
