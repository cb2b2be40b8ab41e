//! The connection that a long body goes over: it listens while it sends. A server that refuses a body says
//! so at the body's beginning, and then reads on for a while, or closes, or neither. What is sent after its
//! answer goes nowhere, so that the answer is read, and not a broken pipe.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ureq::unversioned::transport::{Buffers, ConnectionDetails, LazyBuffers, NextTimeout, Transport};
use ureq::{Error, Timeout};

use crate::process::wait_any;

/// A write that takes so long looks whether there is an answer.
const STALL: Duration = Duration::from_secs(1);
/// What there is to be read may be of TLS alone, and then nothing comes of it.
const LOOK: Duration = Duration::from_millis(10);
/// The system takes no wait of any length.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What connection, body and caller share.
#[derive(Debug, Default)]
pub(super) struct Early {
    answered: AtomicBool,
}

impl Early {
    /// Whether the server has answered before it had all of the body, or takes no more of it.
    pub(super) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

// ---- The socket --------------------------------------------------------------------------------

#[derive(Debug)]
pub(super) struct Wire {
    stream: Arc<TcpStream>,
    buffers: LazyBuffers,
    early: Arc<Early>,
    /// Only behind something that was sent can there be an answer.
    sent: u64,
}

impl Wire {
    /// To the first address that can be reached.
    pub(super) fn connect(details: &ConnectionDetails<'_>, early: &Arc<Early>) -> Result<Wire, Error> {
        let end = Instant::now() + (*details.timeout.after).min(LONGEST);
        let mut failed = Error::HostNotFound;
        for (n, address) in details.addrs.iter().enumerate() {
            let left = end.saturating_duration_since(Instant::now());
            // Half of the time for each but the last, so that a dead one does not take all of it.
            let share = if n + 1 < details.addrs.len() { left / 2 } else { left };
            if share.is_zero() {
                return Err(Error::Timeout(details.timeout.reason));
            }
            match TcpStream::connect_timeout(address, share) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let (input, output) = (details.config.input_buffer_size(), details.config.output_buffer_size());
                    let buffers = LazyBuffers::new(input, output);
                    return Ok(Wire { stream: Arc::new(stream), buffers, early: early.clone(), sent: 0 });
                }
                Err(e) if e.kind() == io::ErrorKind::TimedOut => failed = Error::Timeout(details.timeout.reason),
                Err(e) => failed = Error::Io(e),
            }
        }
        Err(failed)
    }

    pub(super) fn stream(&self) -> Arc<TcpStream> {
        self.stream.clone()
    }
}

impl Transport for Wire {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let end = Instant::now() + (*timeout.after).min(LONGEST);
        let mut output = &self.buffers.output()[..amount];
        while !output.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout(timeout.reason));
            }
            self.stream.set_write_timeout(Some(left.min(STALL)))?;
            match (&*self.stream).write(output) {
                Ok(n) => {
                    output = &output[n..];
                    self.sent += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if is_late(&e) => {
                    if self.sent > 0 && wait_any(&[self.stream.as_fd()], Duration::ZERO) {
                        self.early.set();
                        return Ok(());
                    }
                }
                Err(e) if self.sent > 0 && is_closed(&e) => {
                    self.early.set();
                    return Ok(());
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let left = (*timeout.after).min(LONGEST);
        if left.is_zero() {
            return Err(Error::Timeout(timeout.reason));
        }
        self.stream.set_read_timeout(Some(left))?;
        loop {
            match (&*self.stream).read(self.buffers.input_append_buf()) {
                Ok(n) => {
                    self.buffers.input_appended(n);
                    return Ok(n > 0);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if is_late(&e) => return Err(Error::Timeout(timeout.reason)),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// One body, one connection.
    fn is_open(&mut self) -> bool {
        false
    }
}

fn is_late(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn is_closed(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted)
}

// ---- Above TLS ---------------------------------------------------------------------------------

/// Looks before each write, and keeps silent after an answer.
#[derive(Debug)]
pub(super) struct Hearing {
    pub(super) inner: Box<dyn Transport>,
    /// `None`: a proxy's, which cannot be looked at.
    pub(super) stream: Option<Arc<TcpStream>>,
    pub(super) early: Arc<Early>,
    /// Not before the request's head.
    pub(super) begun: bool,
    /// A look has read something that nobody has been told of.
    pub(super) kept: bool,
}

impl Transport for Hearing {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let heard = |stream: &Arc<TcpStream>| wait_any(&[stream.as_fd()], Duration::ZERO);
        if self.begun && !self.early.is_answered() && self.stream.as_ref().is_some_and(heard) {
            let short = NextTimeout { after: LOOK.into(), reason: Timeout::SendBody, ..timeout };
            let look = self.inner.await_input(short);
            if !matches!(look, Err(Error::Timeout(_))) {
                self.early.set();
            }
            self.kept = matches!(look, Ok(true));
        }
        self.begun = true;
        if self.early.is_answered() { Ok(()) } else { self.inner.transmit_output(amount, timeout) }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        if std::mem::take(&mut self.kept) { Ok(true) } else { self.inner.await_input(timeout) }
    }

    fn is_open(&mut self) -> bool {
        false
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
