//! The threads beside the loop: the pump, the reaper, the channel, and a sweep when there is one. They
//! tell the loop what happens in one closed set of events, and none waits for it. A panic of one of them
//! is an event, too.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use super::channel::Channel;
use super::log::Log;
use super::pump::{Ground, Pump};
use super::reaper::{Children, Leader};
use super::records::Records;
use crate::clock::BootTime;
use crate::forge::{End, Said, StageId, Tap};
use crate::jobdir::JobDir;
use crate::model::ToJob;
use crate::process::cgroup::Leaf;
use crate::process::{sweep, threads};

/// Everything that wakes the loop but its own deadlines.
#[derive(Debug)]
pub(super) enum Event {
    /// By the manager, or by the operating system.
    Told(ToJob),
    Reaped(Leader, End),
    /// A stage's pipes are closed and stored.
    Closed(StageId, Vec<Said>),
    /// With what could not be ended.
    Swept(StageId, Vec<String>),
    /// A thread panicked.
    Broken(String),
}

#[derive(Debug)]
pub(super) struct Crew {
    pub(super) pump: Pump,
    pub(super) children: Arc<Children>,
    pub(super) channel: Arc<Channel>,
    pub(super) events: Receiver<Event>,
    tell: Sender<Event>,
    reaper: JoinHandle<()>,
    listener: JoinHandle<()>,
}

/// What the threads stand on.
pub(super) struct Tools {
    pub(super) dir: JobDir,
    pub(super) log: Log,
    pub(super) tap: Option<Box<dyn Tap>>,
    pub(super) lines: bool,
    pub(super) records: Arc<Records>,
    pub(super) control: Option<UnixListener>,
    pub(super) term: Option<OwnedFd>,
}

impl Crew {
    pub(super) fn start(tools: Tools) -> io::Result<Crew> {
        let Tools { dir, log, tap, lines, records, control, term } = tools;
        let (tell, events) = unbounded();
        let channel = Arc::new(Channel::new()?);
        let children = Arc::new(Children::default());
        let pump = {
            let (closed, broken) = (tell.clone(), tell.clone());
            Pump::start(
                Ground { dir, log, tap, lines, records, channel: channel.clone() },
                move |id, said| send(&closed, Event::Closed(id, said)),
                move |text| send(&broken, Event::Broken(text)),
            )?
        };
        let reaper = {
            let (children, tell) = (children.clone(), tell.clone());
            thread("reaper", &tell.clone(), move || {
                children.reap(&|leader, end| send(&tell, Event::Reaped(leader, end)));
            })?
        };
        let listener = {
            let (channel, tell) = (channel.clone(), tell.clone());
            thread("control", &tell.clone(), move || {
                channel.listen(control.as_ref(), term.as_ref(), &|message| send(&tell, Event::Told(message)));
            })?
        };
        Ok(Crew { pump, children, channel, events, tell, reaper, listener })
    }

    /// End every process of the job, in a thread of its own; `by` may come nearer meanwhile.
    pub(super) fn sweep(
        &self,
        id: StageId,
        term: Duration,
        by: Arc<Mutex<BootTime>>,
        leaf: Option<Leaf>,
    ) -> io::Result<()> {
        let tell = self.tell.clone();
        thread("sweep", &self.tell, move || {
            // Whatever happens there is an answer: the job's end waits for it.
            let mut panic = String::new();
            let swept = guarded(|text| panic = text, || sweep::descendants(term, &|| by.lock().left(), leaf.as_ref()));
            let survivors = swept.unwrap_or_else(|| vec![format!("unknown: the sweep panicked: {panic}")]);
            send(&tell, Event::Swept(id, survivors));
        })?;
        Ok(())
    }

    /// Everything is stored when it returns; what a full disk swallowed of the log.
    pub(super) fn finish(self) -> Option<String> {
        let lost = self.pump.finish();
        self.channel.end();
        let _ = self.listener.join();
        self.children.end();
        // Where something was left alive it waits for that, and goes with the process.
        if !sweep::has_children() {
            let _ = self.reaper.join();
        }
        lost
    }
}

/// The text of a panic.
pub(super) fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word").to_owned()
}

/// A panic of `work` becomes what `broken` is told.
pub(super) fn guarded<T>(broken: impl FnOnce(String), work: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(panic) => {
            broken(text_of(&*panic));
            None
        }
    }
}

fn thread(
    name: &'static str,
    tell: &Sender<Event>,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let tell = tell.clone();
    threads::named(name, move || {
        guarded(|text| send(&tell, Event::Broken(format!("{name}: {text}"))), work);
    })
}

/// The loop may have gone: then nobody needs to know.
fn send(tell: &Sender<Event>, event: Event) {
    let _ = tell.send(event);
}
