//! What stands between a client and the network: names, connections, and for lines the [`Watch`] that
//! knows how far a poll is. Sends nothing of its own.
//!
//! **Invariant 1** is kept here: a poll is cut only while the server cannot have the request, or when it
//! has been parked so long that the server has nothing for it. Whether it may be cut, and that it is
//! cut, is decided under one lock, which the transport takes before it sends and after it reads.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, NextTimeout, RustlsConnector, TcpConnector, Transport,
};
use ureq::{Error, Timeout};

use super::wire::{Early, Hearing, Wire};

/// Answers of the resolver are used again for so long: it is asked before every request, also where a
/// connection stands already.
const NAME_LIFE: Duration = Duration::from_secs(60);
/// Addresses of one host that are tried.
const MAX_ADDRESSES: usize = 16;

// ---- How far a poll is -----------------------------------------------------------------------

pub(super) struct Watch {
    seen: Mutex<Seen>,
    parked_after: Duration,
    /// Connections being made inside another one: a proxy's.
    nested: AtomicUsize,
}

#[derive(Debug)]
struct Seen {
    phase: Phase,
    /// The server may let this request wait.
    parks: bool,
    /// Cut as soon as it is safe.
    leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Rest,
    /// The server has nothing of it.
    Connecting,
    /// The server has some or all of it, since then.
    Sent(Instant),
    /// The answer has begun: it is read to its end.
    Body,
    Cut,
}

impl Watch {
    pub(super) fn new(parked_after: Duration) -> Watch {
        let seen = Seen { phase: Phase::Rest, parks: false, leaving: false };
        Watch { seen: Mutex::new(seen), parked_after, nested: AtomicUsize::new(0) }
    }

    /// False: it was cut, or is leaving.
    pub(super) fn begin(&self, parks: bool) -> bool {
        let mut seen = self.seen.lock();
        if seen.leaving || seen.phase == Phase::Cut {
            return false;
        }
        (seen.phase, seen.parks) = (Phase::Connecting, parks);
        true
    }

    pub(super) fn rest(&self) {
        let mut seen = self.seen.lock();
        if seen.phase != Phase::Cut {
            seen.phase = Phase::Rest;
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.seen.lock().phase == Phase::Cut
    }

    pub(super) fn may_bring(&self) -> bool {
        let seen = self.seen.lock();
        match seen.phase {
            Phase::Sent(_) => self.parked_for(&seen).is_none(),
            Phase::Body => true,
            Phase::Rest | Phase::Connecting | Phase::Cut => false,
        }
    }

    pub(super) fn parked(&self) -> Option<Duration> {
        self.parked_for(&self.seen.lock())
    }

    pub(super) fn cut(&self) -> bool {
        let mut seen = self.seen.lock();
        self.cut_when(&mut seen, |phase| phase == Phase::Connecting)
    }

    pub(super) fn cut_if_parked(&self) -> bool {
        let mut seen = self.seen.lock();
        self.cut_when(&mut seen, |_| false)
    }

    fn cut_when(&self, seen: &mut Seen, also: impl Fn(Phase) -> bool) -> bool {
        let safe = also(seen.phase) || self.parked_for(seen).is_some();
        if safe {
            seen.phase = Phase::Cut;
        }
        safe
    }

    pub(super) fn leave(&self) {
        self.seen.lock().leaving = true;
    }

    fn parked_for(&self, seen: &Seen) -> Option<Duration> {
        match seen.phase {
            Phase::Sent(since) if seen.parks => since.elapsed().checked_sub(self.parked_after),
            _ => None,
        }
    }

    /// The last moment at which nothing has been sent.
    fn sending(&self) -> Result<(), Error> {
        let mut seen = self.seen.lock();
        if seen.phase == Phase::Cut {
            return Err(cut_error());
        }
        seen.phase = Phase::Sent(Instant::now());
        Ok(())
    }

    /// Something was read, or the wait failed.
    fn received(&self) -> Result<(), Error> {
        let mut seen = self.seen.lock();
        if seen.phase == Phase::Cut {
            return Err(cut_error());
        }
        seen.phase = Phase::Body;
        Ok(())
    }

    /// The wait that ends when the poll becomes parked, so that one that is leaving can go by itself.
    fn until_parked(&self) -> Option<Duration> {
        let seen = self.seen.lock();
        match seen.phase {
            Phase::Sent(since) if seen.parks => self.parked_after.checked_sub(since.elapsed()).filter(|d| !d.is_zero()),
            _ => None,
        }
    }

    fn leaves_now(&self) -> bool {
        self.seen.lock().leaving && self.cut()
    }
}

fn cut_error() -> Error {
    Error::Io(io::Error::new(io::ErrorKind::NotConnected, "cut"))
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seen.lock().fmt(f)
    }
}

// ---- Connections -----------------------------------------------------------------------------

/// Proxy, TCP, TLS, in this order, as the library's own chain has it; TLS is set up once for all.
#[derive(Debug)]
pub(super) struct Dial {
    proxy: ConnectProxyConnector,
    tcp: TcpConnector,
    tls: Arc<RustlsConnector>,
    names: Arc<Names>,
    purpose: Purpose,
}

/// What connections are made for.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    Calls,
    Poll(Arc<Watch>),
    /// One long body.
    Upload(Arc<Early>),
}

impl Dial {
    pub(super) fn new(tls: Arc<RustlsConnector>, names: Arc<Names>, purpose: Purpose) -> Dial {
        Dial { proxy: ConnectProxyConnector::default(), tcp: TcpConnector::default(), tls, names, purpose }
    }

    fn dial(&self, details: &ConnectionDetails) -> Result<Option<Box<dyn Transport>>, Error> {
        let proxied = Connector::<()>::connect(&self.proxy, details, None)?;
        let joined = self.tcp.connect(details, proxied)?;
        let secured = self.tls.connect(details, joined)?;
        Ok(secured.map(|t| Box::new(t) as Box<dyn Transport>))
    }

    fn dial_for_upload(
        &self,
        details: &ConnectionDetails,
        early: &Arc<Early>,
    ) -> Result<Option<Box<dyn Transport>>, Error> {
        let joined = match Connector::<()>::connect(&self.proxy, details, None)? {
            Some(proxied) => (Box::new(proxied) as Box<dyn Transport>, None),
            None => {
                let wire = Wire::connect(details, early).inspect_err(|_| self.names.forget(details.uri))?;
                let stream = wire.stream();
                (Box::new(wire) as Box<dyn Transport>, Some(stream))
            }
        };
        let secured = self.tls.connect(details, Some(joined.0))?;
        Ok(secured.map(|inner| {
            let inner = Box::new(inner) as Box<dyn Transport>;
            let (stream, early) = (joined.1, early.clone());
            Box::new(Hearing { inner, stream, early, begun: false, kept: false }) as Box<dyn Transport>
        }))
    }
}

impl Connector<()> for Dial {
    type Out = Box<dyn Transport>;

    fn connect(&self, details: &ConnectionDetails, _: Option<()>) -> Result<Option<Box<dyn Transport>>, Error> {
        let watch = match &self.purpose {
            Purpose::Poll(watch) => watch,
            Purpose::Calls => return self.dial(details).inspect_err(|_| self.names.forget(details.uri)),
            Purpose::Upload(early) => return self.dial_for_upload(details, early),
        };
        watch.nested.fetch_add(1, Ordering::Relaxed);
        let dialed = self.dial(details).inspect_err(|_| self.names.forget(details.uri));
        let outermost = watch.nested.fetch_sub(1, Ordering::Relaxed) == 1;
        let inner = dialed?;
        if !outermost {
            return Ok(inner);
        }
        Ok(inner.map(|inner| Box::new(Watched { inner, watch: watch.clone() }) as Box<dyn Transport>))
    }
}

/// A line's connection, made or used again: tells the watch before it sends and after it reads.
#[derive(Debug)]
struct Watched {
    inner: Box<dyn Transport>,
    watch: Arc<Watch>,
}

impl Transport for Watched {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.watch.sending()?;
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, mut timeout: NextTimeout) -> Result<bool, Error> {
        let start = Instant::now();
        if let Some(first) = self.watch.until_parked().filter(|d| *d < *timeout.after) {
            let short = NextTimeout { after: first.into(), reason: Timeout::RecvResponse, ..timeout };
            match self.inner.await_input(short) {
                Err(Error::Timeout(Timeout::RecvResponse)) if !self.watch.leaves_now() => {}
                Err(Error::Timeout(_)) => return Err(cut_error()),
                other => {
                    self.watch.received()?;
                    return other;
                }
            }
            timeout.after = timeout.after.saturating_sub(start.elapsed()).into();
        }
        let read = self.inner.await_input(timeout);
        self.watch.received()?;
        read
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

// ---- Names -----------------------------------------------------------------------------------

/// The addresses of hosts, remembered for a minute, or until one of them could not be reached.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<HashMap<String, (Instant, Vec<SocketAddr>)>>);

impl Names {
    fn forget(&self, uri: &Uri) {
        if let Some(host) = uri.host() {
            self.0.lock().retain(|known, _| known.split('|').next() != Some(host));
        }
    }
}

#[derive(Debug)]
pub(super) struct Resolve(pub(super) Arc<Names>);

impl Resolver for Resolve {
    fn resolve(&self, uri: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().unwrap_or_default();
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let addresses = match bare.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, port)],
            Err(_) => self.look_up(bare, port, timeout)?,
        };
        let mut found = self.empty();
        addresses.iter().take(MAX_ADDRESSES).for_each(|a| found.push(*a));
        Ok(found)
    }
}

impl Resolve {
    fn look_up(&self, host: &str, port: u16, timeout: NextTimeout) -> Result<Vec<SocketAddr>, Error> {
        let key = format!("{host}|{port}");
        if let Some((when, addresses)) = self.0.0.lock().get(&key)
            && when.elapsed() < NAME_LIFE
        {
            return Ok(addresses.clone());
        }
        // The system's resolver cannot be stopped: it gets a thread of its own, which is left behind
        // when it hangs (design §3: pollers in DNS are not joined).
        let (tell, told) = mpsc::sync_channel(1);
        let owned = host.to_owned();
        std::thread::Builder::new().name("resolve".into()).stack_size(256 << 10).spawn(move || {
            let _ = tell.send((owned.as_str(), port).to_socket_addrs().map(Vec::from_iter));
        })?;
        let addresses = match told.recv_timeout(*timeout.after) {
            Ok(answer) => answer.map_err(|e| io::Error::new(e.kind(), format!("{host}: {e}")))?,
            Err(RecvTimeoutError::Timeout) => return Err(Error::Timeout(timeout.reason)),
            Err(RecvTimeoutError::Disconnected) => return Err(Error::HostNotFound),
        };
        if addresses.is_empty() {
            return Err(Error::HostNotFound);
        }
        self.0.0.lock().insert(key, (Instant::now(), addresses.clone()));
        Ok(addresses)
    }
}
