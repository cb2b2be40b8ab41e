//! A job's life as the job process sees it, top to bottom (design §5). One loop, one thread, any number
//! of stages: it tells the plan one piece of news and does what the plan says. Nothing in the loop blocks
//! but the wait for the next event; nobody here talks to a coordinator.

pub mod frame;
pub mod log;
pub mod mask;

mod channel;
mod collect;
mod crash;
mod crew;
mod deadline;
mod ending;
mod ladder;
mod lines;
mod place;
mod pump;
mod ranges;
mod reaper;
mod records;
mod stages;
mod start;
mod wipe;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use self::crew::{Crew, Event, Tools};
use self::deadline::Deadlines;
use self::log::{Log, Source};
use self::pump::Order;
use self::records::Records;
use self::stages::{Stages, not_started};
use crate::clock::{BootTime, Timing};
use crate::executor::Executor;
use crate::forge::{Done, End, Halted, How, LogId, News, Next, Plan, Run, Script};
use crate::forge::{Stage, StageId, Stop, Stream, Streams, Wipe};
use crate::jobdir::JobDir;
use crate::model::{FromJob, Outcome, Verdict, Why};

pub use self::place::Place;

/// The loop's own voice.
const OWN: Source = Source::Voice(u8::MAX);

/// `runner job DIR`. The exit code is 100 and the verdict, or 1 when there is no outcome: the manager
/// takes that for a crash.
pub fn main(path: &Path) -> u8 {
    start::leave_session();
    start::close_strays();
    let begun = JobDir::open(path).and_then(|dir| start::take_over(&dir).map(|handed| (dir, handed)));
    let (dir, (_lock, handed)) = match begun {
        Ok(begun) => begun,
        Err(e) => return start::last_words(&format!("{}: {e}", path.display())),
    };
    // Without its room the outcome is tried all the same.
    let _ = dir.reserve_outcome();
    let outcome = match dir.crash() {
        Ok(note) => crash::report(&dir, note),
        Err(_) => match place::prepare(&dir, handed) {
            Ok((place, script)) => run(place, script),
            Err((why, text)) => place::stillborn(&dir, why, text),
        },
    };
    if let Err(e) = dir.write_outcome(&outcome) {
        return start::last_words(&e.to_string());
    }
    dir.forget_job();
    match outcome.verdict {
        Verdict::Success => 100,
        Verdict::Failed => 101,
        Verdict::Canceled => 102,
    }
}

/// The job from its first stage to the end of its last process. Nothing is left but to write the outcome.
pub fn run(place: Place, script: Script) -> Outcome {
    let words = place::Words::new(&script);
    let mut work = match Loop::begin(place, script) {
        Ok(work) => work,
        Err(e) => return Outcome::failed(Why::System, format!("the job could not begin: {e}")),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| work.live())).unwrap_or_else(|panic| {
        // The log hides what it is told to hide, an outcome does not.
        let text = format!("panic: {}", crew::text_of(&*panic));
        work.say(LogId(0), OWN, format!("\x1b[31;1mERROR: Job failed (system failure): {text}\x1b[0;m\n"));
        Outcome::failed(Why::System, words.hide(&text, &work.dir))
    });
    work.end(outcome)
}

struct Loop {
    dir: JobDir,
    timing: Timing,
    keep_processes: bool,
    plan: Box<dyn Plan>,
    crew: Crew,
    stages: Stages,
    deadlines: Deadlines,
    records: Arc<Records>,
    /// News that wait for the plan.
    ready: VecDeque<News>,
    /// When the plan asked to be woken.
    until: Option<Instant>,
    /// The job was told to end at once, why, and when it must have.
    stopped: Option<(Why, BootTime)>,
    /// Sweeps that are under way, and where their lines go.
    sweeps: HashMap<StageId, (LogId, Source)>,
    sweep_by: Arc<Mutex<BootTime>>,
    survivors: Vec<String>,
    wipe: Wipe,
}

impl Loop {
    fn begin(place: Place, script: Script) -> io::Result<Loop> {
        let Script { plan, tap, format, masks, wipe } = script;
        let Place { dir, control, term, oom, started, tag, timeout, shell, manner, keep_processes, timing } = place;
        let records = Arc::new(Records::new(dir.file("records.jsonl")));
        let lines = format.lines;
        let log = Log::new(dir.open_log()?, format, masks);
        let crew = Crew::start(Tools { dir: dir.again()?, log, tap, lines, records: records.clone(), control, term })?;
        let stages = Stages::new(Executor { shell, tag, oom, manner }, crew.children.clone(), timing);
        Ok(Loop {
            deadlines: Deadlines::new(timing, started, timeout, dir.orphan_until()),
            dir,
            timing,
            keep_processes,
            plan,
            crew,
            stages,
            records,
            ready: VecDeque::new(),
            until: None,
            stopped: None,
            sweeps: HashMap::new(),
            sweep_by: Arc::new(Mutex::new(started.after(Duration::MAX))),
            survivors: Vec::new(),
            wipe,
        })
    }

    fn live(&mut self) -> Outcome {
        let mut news = News::Go;
        while self.tell(news) {
            news = match self.next_news() {
                Ok(news) => news,
                Err(why) => return Outcome::failed(why, "the job did not end in the time that it was given"),
            };
        }
        self.plan.outcome()
    }

    /// One piece of news, and all that the plan wants of it. False: the job is over.
    fn tell(&mut self, news: News) -> bool {
        let mut next = self.plan.next(news, Instant::now());
        loop {
            match next {
                Next::Start(stage) => self.start(stage),
                Next::Halt(id) => self.stages.halt(id, Halted::Plan, BootTime::now()),
                Next::Record(record) => self.records.append(&record),
                Next::Wait { until } => {
                    self.until = until;
                    return true;
                }
                Next::Over => return false,
            }
            next = self.plan.next(News::Go, Instant::now());
        }
    }

    /// An error: the time of a hard stop is up.
    fn next_news(&mut self) -> Result<News, Why> {
        loop {
            let now = BootTime::now();
            if let Some(order) = self.deadlines.due(now, || self.dir.orphan_until()) {
                self.obey(order);
            }
            self.stages.tick(now, &self.crew.pump);
            if let Some(news) = self.ready.pop_front() {
                return Ok(news);
            }
            if let Some((why, by)) = self.stopped
                && by <= now
            {
                return Err(why);
            }
            if self.until.is_some_and(|at| at <= Instant::now()) {
                self.until = None;
                return Ok(News::Time);
            }
            self.crew.pump.go();
            if let Ok(event) = self.crew.events.recv_timeout(self.patience()) {
                let done = self.heed(event);
                self.ready.extend(done.map(News::Ended));
            }
        }
    }

    /// Capped, so that a suspend is noticed (kill point 18).
    fn patience(&self) -> Duration {
        let ends = [self.deadlines.next(), self.stages.next(), self.stopped.map(|(_, by)| by)];
        let plan = self.until.map(|at| at.saturating_duration_since(Instant::now()));
        let first = ends.into_iter().flatten().map(BootTime::left).chain(plan).min();
        first.map_or(self.timing.deadline_check, |left| left.min(self.timing.deadline_check))
    }

    fn heed(&mut self, event: Event) -> Option<Done> {
        match event {
            Event::Told(message) => {
                if let Some(order) = self.deadlines.told(&message, BootTime::now()) {
                    self.obey(order);
                }
                None
            }
            Event::Reaped(leader, end) => self.stages.reaped(leader, end, BootTime::now()),
            Event::Closed(id, said) => self.stages.closed(id, said),
            Event::Swept(id, survivors) => self.swept(id, survivors),
            // A bug there goes the way of a bug here: see `run`.
            Event::Broken(text) => panic!("{text}"),
        }
    }

    fn start(&mut self, stage: Stage) {
        let (id, log) = (stage.id, stage.log);
        let from = match stage.streams {
            Streams::Voice(voice) => Source::Voice(voice),
            Streams::One | Streams::Two => Source::Stage(id, Stream::Out),
        };
        let done = match stage.run {
            Run::Print(parts) => {
                self.crew.pump.order(Order::Print { log, from, parts, at: SystemTime::now() });
                Some(ended(id, 0))
            }
            Run::Sweep => self.sweep(id, (log, from)),
            _ if self.stopped.is_some() && !self.is_still_allowed(&stage) => {
                Some(not_started(id, "the job is being stopped", Some(Halted::Stop)))
            }
            Run::Script(_) | Run::Program { .. } | Run::Driver(_) => {
                self.crew.channel.say(&FromJob::Stage { name: stage.name.clone() });
                self.stages.start(stage, &self.crew.pump)
            }
        };
        self.ready.extend(done.map(News::Ended));
    }

    /// After a hard stop: what frees a driver's things may run, and is waited for within its own limit.
    fn is_still_allowed(&mut self, stage: &Stage) -> bool {
        let is_last = matches!(&stage.run, Run::Driver(call) if call.last);
        if let (true, Some((_, by)), Some(limit)) = (is_last, &mut self.stopped, stage.limit) {
            *by = BootTime::now().after(limit + self.timing.kill_wait + self.timing.drain_ended).max(*by);
        }
        is_last
    }

    fn obey(&mut self, order: deadline::Order) {
        let now = BootTime::now();
        let (why, grace) = match order {
            deadline::Order::Soft(why) => return self.ready.push_back(News::Stop(Stop { how: How::Soft, why })),
            deadline::Order::Hard { why, grace } => (why, grace),
        };
        let kill_by = now.after(grace);
        self.stages.halt_all(kill_by, now);
        let mut by = kill_by.after(self.timing.kill_wait + self.timing.drain_ended);
        if why == Why::HostShutdown {
            // A third for the TERM, a third for the KILL, and the rest for sweep and outcome (kill point 28).
            by = kill_by.after(self.timing.host_shutdown / 3);
            let mut sweep_by = self.sweep_by.lock();
            *sweep_by = now.after(self.timing.host_shutdown * 5 / 6).min(*sweep_by);
        }
        match &mut self.stopped {
            Some((_, before)) => *before = by.min(*before),
            None => {
                self.stopped = Some((why, by));
                self.ready.push_back(News::Stop(Stop { how: How::Hard, why }));
            }
        }
    }
}

fn ended(id: StageId, code: i32) -> Done {
    Done { id, end: End::Exited(code), halted: None, collected: Vec::new(), said: Vec::new() }
}
