//! The pump: one thread that reads every pipe of every stage, and the only writer of `log`.
//!
//! **Row 37**: where a tap may hide values, what one round of reads brought is stored only after every
//! pipe was read once more, to the end of what it held: so a value that one stage had masked before another
//! printed it is never stored. Where nothing can be masked on the way, bytes are stored as they come.
//!
//! It never stops draining: not for a full disk, not for a limit, not for a manager. It knows when a
//! stage's pipes are closed, and nothing of processes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::event::{PollFd, PollFlags, poll};

use super::channel::Channel;
use super::lines::{Cutter, Piece};
use super::log::{Log, Source};
use super::ranges::Ranges;
use super::records::Records;
use crate::forge::{LogId, Put, Said, Stage, StageId, Stream, Tap};
use crate::jobdir::JobDir;
use crate::model::FromJob;
use crate::process::stage::PIPE;
use crate::process::wake::Wake;
use crate::process::{self, threads};

/// What is read at once.
const BUFFER: usize = 256 * 1024;

/// At most ten hints a second.
const HINT: Duration = Duration::from_millis(100);

/// What the loop asks of the pump, in this order.
#[derive(Debug)]
pub(super) enum Order {
    /// Each part is one write with one time.
    Print {
        log: LogId,
        from: Source,
        parts: Vec<Vec<u8>>,
        at: SystemTime,
    },
    Begin {
        stage: Box<Stage>,
        pipes: Vec<(Stream, OwnedFd)>,
    },
    /// Take what the pipes of this stage hold, and close them.
    Cut(StageId),
    /// Cut all, store the rest, end.
    Finish,
}

/// What the pump stands on.
pub(super) struct Ground {
    pub(super) dir: JobDir,
    pub(super) log: Log,
    pub(super) tap: Option<Box<dyn Tap>>,
    /// Cut output into lines for the tap.
    pub(super) lines: bool,
    pub(super) records: Arc<Records>,
    pub(super) channel: Arc<Channel>,
}

#[derive(Debug)]
pub(super) struct Pump {
    orders: Sender<Order>,
    /// Something was ordered since it was woken last.
    behind: Cell<bool>,
    wake: Arc<Wake>,
    thread: JoinHandle<Option<String>>,
}

impl Pump {
    /// `closed` is told when a stage's pipes are closed and all they held is stored.
    pub(super) fn start(
        ground: Ground,
        closed: impl Fn(StageId, Vec<Said>) + Send + 'static,
        broken: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<Pump> {
        let (orders, receiver) = unbounded();
        let wake = Arc::new(Wake::new()?);
        let woken = wake.clone();
        let thread = threads::named("pump", move || {
            let mut work = Work::new(ground, receiver, woken, Box::new(closed));
            super::crew::guarded(broken, || work.run()).flatten()
        })?;
        Ok(Pump { orders, behind: Cell::new(false), wake, thread })
    }

    /// Done after [`Pump::go`] at the latest; never blocks.
    pub(super) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        self.behind.set(true);
    }

    pub(super) fn go(&self) {
        if self.behind.take() {
            self.wake.wake();
        }
    }

    /// Everything is stored when it returns; what a full disk swallowed.
    pub(super) fn finish(self) -> Option<String> {
        self.order(Order::Finish);
        self.go();
        self.thread.join().unwrap_or_default()
    }
}

/// One pipe.
struct Feed {
    stage: StageId,
    stream: Stream,
    log: LogId,
    pipe: OwnedFd,
    cutter: Cutter,
    closed: bool,
}

/// What was read, heard by the tap, and not stored yet.
struct Item {
    from: (StageId, Stream),
    log: LogId,
    what: What,
}

enum What {
    /// A line, or a part of an endless one, as it is stored.
    Text {
        bytes: Vec<u8>,
        ends: bool,
    },
    Said(Said),
    Closed,
}

/// A stage whose pipes are not all closed.
struct Open {
    feeds: usize,
    said: Vec<Said>,
}

struct Work {
    ground: Ground,
    orders: Receiver<Order>,
    wake: Arc<Wake>,
    closed: Box<dyn Fn(StageId, Vec<Said>) + Send>,
    feeds: Vec<Feed>,
    open: BTreeMap<StageId, Open>,
    ranges: Ranges,
    /// The round before this one.
    pending: Vec<Item>,
    /// This round.
    fresh: Vec<Item>,
    puts: Vec<Put>,
    buffer: Vec<u8>,
    hinted: Option<Instant>,
    /// The position that the last hint was about.
    told: u64,
    over: bool,
}

impl Work {
    fn new(
        ground: Ground,
        orders: Receiver<Order>,
        wake: Arc<Wake>,
        closed: Box<dyn Fn(StageId, Vec<Said>) + Send>,
    ) -> Work {
        Work {
            ground,
            orders,
            wake,
            closed,
            feeds: Vec::new(),
            open: BTreeMap::new(),
            ranges: Ranges::default(),
            pending: Vec::new(),
            fresh: Vec::new(),
            puts: Vec::new(),
            buffer: Vec::new(),
            hinted: None,
            told: 0,
            over: false,
        }
    }

    fn run(&mut self) -> Option<String> {
        while !self.over {
            let ready = self.wait();
            self.obey();
            for index in ready {
                self.read(index);
            }
            self.store();
        }
        // Twice: the last round waits for one more look, too.
        self.store();
        self.store();
        self.ground.log.finish();
        self.hint();
        self.ground.log.lost()
    }

    // ---- Waiting -----------------------------------------------------------------------------

    /// Which feeds can be read. Does not wait while a round is pending: its second look is due.
    fn wait(&mut self) -> Vec<usize> {
        let limit = match self.hint_due() {
            _ if !self.pending.is_empty() => Some(Duration::ZERO),
            due => due.map(|at| at.saturating_duration_since(Instant::now())),
        };
        let limit = limit.map(process::timespec);
        let mut polls = vec![PollFd::from_borrowed_fd(self.wake.fd(), PollFlags::IN)];
        polls.extend(self.feeds.iter().map(|f| PollFd::from_borrowed_fd(f.pipe.as_fd(), PollFlags::IN)));
        while let Err(e) = poll(&mut polls, limit.as_ref()) {
            // Never without a look: what is pending would be stored before its time.
            assert_eq!(e, rustix::io::Errno::INTR, "poll takes what it is given");
        }
        if !polls[0].revents().is_empty() {
            self.wake.clear();
        }
        let come = polls[1..].iter().map(|p| !p.revents().is_empty());
        come.enumerate().filter_map(|(index, come)| come.then_some(index)).collect()
    }

    fn obey(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Print { log, from, parts, at } => {
                    for part in parts {
                        self.row_before(log);
                        self.ground.log.write(from, &part, at);
                        self.ranges.count(log, memchr::memchr_iter(b'\n', &part).count() as u64);
                    }
                    // A voice goes on, a stage that only prints has said all.
                    if let Source::Stage(..) = from {
                        self.ground.log.close(from);
                    }
                }
                Order::Begin { stage, pipes } => self.begin(&stage, pipes),
                Order::Cut(stage) => self.cut(|feed| feed.stage == stage),
                Order::Finish => {
                    self.cut(|_| true);
                    self.over = true;
                }
            }
        }
    }

    fn begin(&mut self, stage: &Stage, pipes: Vec<(Stream, OwnedFd)>) {
        if let Some(tap) = &mut self.ground.tap {
            tap.began(stage);
        }
        self.open.insert(stage.id, Open { feeds: pipes.len(), said: Vec::new() });
        self.feeds.extend(pipes.into_iter().map(|(stream, pipe)| Feed {
            stage: stage.id,
            stream,
            log: stage.log,
            pipe,
            cutter: Cutter::default(),
            closed: false,
        }));
    }

    // ---- Reading -----------------------------------------------------------------------------

    /// All that the pipe held when it was begun with: a writer that is faster does not keep us here.
    fn read(&mut self, index: usize) {
        if self.feeds[index].closed {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(BUFFER, 0);
        let mut room = if self.ground.lines { PIPE } else { BUFFER };
        while room > 0 {
            match rustix::io::read(&self.feeds[index].pipe, &mut buffer[..]) {
                Ok(0) => {
                    self.close(index);
                    break;
                }
                Ok(n) => {
                    self.take(index, &buffer[..n]);
                    // A short read has emptied the pipe.
                    room = if n < BUFFER { 0 } else { room - n };
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => {
                    self.close(index);
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    fn take(&mut self, index: usize, bytes: &[u8]) {
        let feed = &self.feeds[index];
        if !self.ground.lines {
            let (log, from) = (feed.log, Source::Stage(feed.stage, feed.stream));
            self.row_before(log);
            self.ground.log.write(from, bytes, SystemTime::now());
            self.ranges.count(log, memchr::memchr_iter(b'\n', bytes).count() as u64);
            return;
        }
        self.cut_lines(index, |cutter, each| cutter.push(bytes, each));
    }

    fn close(&mut self, index: usize) {
        if std::mem::replace(&mut self.feeds[index].closed, true) {
            return;
        }
        if self.ground.lines {
            self.cut_lines(index, Cutter::finish);
        }
        let feed = &self.feeds[index];
        let (from, log) = ((feed.stage, feed.stream), feed.log);
        let others = self.feeds.iter().any(|f| f.stage == from.0 && !f.closed);
        if let Some(tap) = self.ground.tap.as_mut().filter(|_| !others) {
            tap.ended(from.0);
        }
        self.fresh.push(Item { from, log, what: What::Closed });
    }

    /// What is still in these pipes is the stage's; what comes later is nobody's.
    fn cut(&mut self, which: impl Fn(&Feed) -> bool) {
        for index in 0..self.feeds.len() {
            if which(&self.feeds[index]) && !self.feeds[index].closed {
                self.read(index);
                self.close(index);
            }
        }
    }

    /// Lines go by the tap; masks act at once, and before they act they are in the directory.
    fn cut_lines(&mut self, index: usize, cut: impl FnOnce(&mut Cutter, &mut dyn FnMut(Piece<'_>))) {
        let Work { ground, feeds, fresh, puts, .. } = self;
        let feed = &mut feeds[index];
        let (from, log) = ((feed.stage, feed.stream), feed.log);
        cut(&mut feed.cutter, &mut |piece| {
            match (piece, &mut ground.tap) {
                (Piece::Line(line), Some(tap)) => tap.line(from, line, puts),
                (Piece::Line(line), None) => puts.push(Put::Line(line.to_vec())),
                (Piece::Part { text, last }, _) => {
                    fresh.push(Item { from, log, what: What::Text { bytes: text.to_vec(), ends: last } });
                }
            }
            for put in puts.drain(..) {
                let what = match put {
                    Put::Line(bytes) => What::Text { bytes, ends: true },
                    Put::Said(said) => What::Said(said),
                    Put::Mask(value) => {
                        // A full disk costs a crash text its mask, not the log.
                        let _ = ground.dir.append_mask(value.reveal());
                        ground.log.add_mask(&value);
                        continue;
                    }
                };
                fresh.push(Item { from, log, what });
            }
        });
    }

    // ---- Storing -----------------------------------------------------------------------------

    fn store(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        // With no tap nothing is masked on the way: there is nothing to wait for.
        let due = match self.ground.lines {
            true => std::mem::replace(&mut self.pending, fresh),
            false => fresh,
        };
        let mut ended = Vec::new();
        for Item { from: (stage, stream), log, what } in due {
            let source = Source::Stage(stage, stream);
            match what {
                What::Text { mut bytes, ends } => {
                    if ends {
                        bytes.push(b'\n');
                    }
                    self.row_before(log);
                    self.ground.log.write(source, &bytes, SystemTime::now());
                    self.ranges.count(log, u64::from(ends));
                }
                What::Said(mut said) => {
                    said.line = self.ranges.next_line(log);
                    self.open.get_mut(&stage).expect("a stage is open until its pipes are closed").said.push(said);
                }
                What::Closed => {
                    // What was held back may come now.
                    self.row_before(log);
                    self.ground.log.close(source);
                    let open = self.open.get_mut(&stage).expect("a stage is open until its pipes are closed");
                    open.feeds -= 1;
                    if open.feeds == 0 {
                        ended.extend(self.open.remove(&stage).map(|open| (stage, open.said)));
                    }
                }
            }
        }
        self.feeds.retain(|f| !f.closed);
        self.ground.log.flush();
        for (stage, said) in ended {
            (self.closed)(stage, said);
        }
        if self.hint_due().is_some_and(|at| at <= Instant::now()) {
            self.hint();
        }
    }

    /// The row that says whose bytes come next stands in the records before the bytes do.
    fn row_before(&mut self, log: LogId) {
        if let Some(row) = self.ranges.before(log, self.ground.log.position()) {
            // The bytes before it, too: who reads the row finds them.
            self.ground.log.flush();
            self.ground.records.append(&row);
        }
    }

    // ---- Hints -------------------------------------------------------------------------------

    fn hint_due(&self) -> Option<Instant> {
        let news = self.ground.log.position() != self.told;
        news.then(|| self.hinted.map_or_else(Instant::now, |at| at + HINT))
    }

    fn hint(&mut self) {
        self.told = self.ground.log.position();
        self.hinted = Some(Instant::now());
        self.ground.channel.say(&FromJob::Wrote);
    }
}
