//! Threads that a lease brings along: a listener, a live console. They start as soon as the lease offers
//! them, are cut and joined when the job is out of its thread's hands, and say what they hear in a channel
//! that the thread waits on. Knows nothing of what they do.

use std::fmt;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use log::Level;

use crate::forge::{Cut, Heard, Lease, Refusal};
use crate::process::threads;

use super::held::say;
use super::{Desk, Held};

/// What concerns more than the job whose side heard it.
pub enum News {
    /// A second job for the entry with this key.
    Another { key: String, lease: Box<dyn Lease> },
    /// The end of the entry with this key.
    Entry { key: String, refusal: Refusal },
}

pub(super) struct Sides {
    tell: Sender<Heard>,
    pub(super) heard: Receiver<Heard>,
    running: Vec<(Cut, Option<JoinHandle<()>>)>,
}

impl Default for Sides {
    fn default() -> Sides {
        let (tell, heard) = unbounded();
        Sides { tell, heard, running: Vec::new() }
    }
}

impl Drop for Sides {
    fn drop(&mut self) {
        for (cut, thread) in &mut self.running {
            cut();
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}

impl Held {
    /// After each call of the lease.
    pub(super) fn open_sides(&mut self) {
        for side in self.lease.sides(&self.dir) {
            let cut = side.cut();
            let tell = self.sides.tell.clone();
            match threads::named(&format!("side-{}", self.label), move || side.run(tell)) {
                Ok(thread) => self.sides.running.push((cut, Some(thread))),
                Err(e) => say!(Level::Error, self.who, "the job goes on without its listener: {e}"),
            }
        }
    }

    /// What a side said: for the lease, and what concerns others for the supervisor.
    pub(super) fn hear(&mut self, desk: &Desk, heard: Heard) {
        let key = self.entry.clone();
        match heard {
            Heard::Wanted(_) => self.lease.heard(heard),
            Heard::Another(lease) => desk.tell(News::Another { key, lease }),
            Heard::Entry(refusal) => desk.tell(News::Entry { key, refusal }),
        }
    }
}

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Another { key, lease } => write!(f, "Another({key}, {})", lease.name()),
            News::Entry { key, refusal } => write!(f, "Entry({key}, {refusal:?})"),
        }
    }
}
