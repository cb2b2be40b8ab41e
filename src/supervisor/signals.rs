//! The `signals` thread: what the kernel or a person sends becomes values in a channel. Decides nothing.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, unbounded};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR2};
use signal_hook::low_level::{pipe, unregister};

use crate::process::{signals, threads};

/// The signals of design §9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Quit,
    Term,
    Int,
    Hup,
    Usr2,
}

const ALL: [(i32, Signal); 5] = [
    (SIGQUIT, Signal::Quit),
    (SIGTERM, Signal::Term),
    (SIGINT, Signal::Int),
    (SIGHUP, Signal::Hup),
    (SIGUSR2, Signal::Usr2),
];

/// Which signals the manager takes for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signals {
    /// All of design §9: it is a service.
    All,
    /// Those that end it: `runner exec`, which cancels its job at INT itself. It is never another image and
    /// has no configuration to read again, so HUP and USR2 are nothing to it.
    Ending,
}

/// The thread, until this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) heard: Receiver<Signal>,
    hooks: Vec<SigId>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub(super) fn start(which: Signals) -> io::Result<Listener> {
        let (mut wake, waker) = UnixStream::pair()?;
        let (tell, heard) = unbounded();
        let mut hooks = Vec::new();
        let mut flags = Vec::new();
        for (number, signal) in ALL {
            if which == Signals::Ending && signal == Signal::Int {
                continue;
            }
            // In this order: the flag stands before the thread is woken.
            let flag = Arc::new(AtomicBool::new(false));
            hooks.push(signal_hook::flag::register(number, Arc::clone(&flag))?);
            hooks.push(pipe::register(number, waker.try_clone()?)?);
            if which == Signals::All || !matches!(signal, Signal::Hup | Signal::Usr2) {
                flags.push((flag, signal));
            }
        }
        signals::let_in()?;
        let thread = threads::named("signals", move || {
            let mut wakes = [0; 64];
            // The end comes when every hook is gone, with its end of the pair.
            while wake.read(&mut wakes).is_ok_and(|n| n > 0) {
                for (flag, signal) in &flags {
                    if flag.swap(false, Ordering::SeqCst) {
                        let _ = tell.send(*signal);
                    }
                }
            }
        })?;
        Ok(Listener { heard, hooks, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for hook in self.hooks.drain(..) {
            unregister(hook);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
