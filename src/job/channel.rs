//! The control socket, as the job process holds it: messages of the manager go to the loop, hints go out.
//! Everything on it may be lost or said twice: the state is in files. It never blocks on a manager, and
//! the newest connection is the one that counts (kill point 24).

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use crate::model::{FromJob, ToJob};
use crate::process::wake::Wake;

/// A message is far shorter; a peer that says more without an end of line is none of ours.
const LONGEST: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Channel {
    /// The newest connection, for whoever has something to say.
    connection: Mutex<Option<UnixStream>>,
    over: Wake,
}

impl Channel {
    pub(super) fn new() -> io::Result<Channel> {
        Ok(Channel { connection: Mutex::new(None), over: Wake::new()? })
    }

    /// A hint to whoever listens; dropped when nobody does, or not fast enough.
    pub(super) fn say(&self, message: &FromJob) {
        let Ok(mut line) = serde_json::to_vec(message) else { return };
        line.push(b'\n');
        let mut connection = self.connection.lock();
        let Some(stream) = connection.as_mut() else { return };
        match stream.write(&line) {
            Ok(n) if n == line.len() => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // Gone, or half a line is on the way: the next manager connects again.
            _ => *connection = None,
        }
    }

    pub(super) fn end(&self) {
        self.over.wake();
    }

    /// The thread's work: until [`Channel::end`]. `term` becomes readable when the process was sent TERM.
    pub(super) fn listen(&self, listener: Option<&UnixListener>, term: Option<&OwnedFd>, tell: &dyn Fn(ToJob)) {
        if let Some(listener) = listener {
            let _ = listener.set_nonblocking(true);
        }
        let mut peer: Option<Peer> = None;
        loop {
            let said = peer.as_ref().map(|p| p.stream.as_fd());
            let fds = [Some(self.over.fd()), term.map(AsFd::as_fd), listener.map(AsFd::as_fd), said];
            let [over, term_came, knocked, said] = ready(&fds);
            if over {
                return;
            }
            if term_came && let Some(term) = term {
                let _ = rustix::io::read(term, &mut [0; 64]);
                tell(ToJob::OperatingSystemShutdown);
            }
            let mut hear = |message: Option<ToJob>| {
                self.say(&FromJob::Heard);
                message.into_iter().for_each(tell);
            };
            if said && !peer.as_mut().is_some_and(|open| open.read(&mut hear)) {
                peer = None;
            }
            if knocked && let Some(listener) = listener {
                while let Ok((stream, _)) = listener.accept() {
                    // What the manager before has said in full is heard.
                    if let Some(mut before) = peer.take() {
                        before.read(&mut hear);
                    }
                    let Ok(writer) = stream.try_clone() else { continue };
                    let _ = stream.set_nonblocking(true);
                    *self.connection.lock() = Some(writer);
                    peer = Some(Peer { stream, frames: Frames::default() });
                    // Whoever comes late has missed hints.
                    self.say(&FromJob::Wrote);
                }
            }
        }
    }
}

/// Which of these can be read; waits until one can.
fn ready<const N: usize>(fds: &[Option<BorrowedFd<'_>>; N]) -> [bool; N] {
    let mut polls: Vec<PollFd<'_>> =
        fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    while poll(&mut polls, None) == Err(rustix::io::Errno::INTR) {}
    let mut events = polls.iter().map(|p| !p.revents().is_empty());
    fds.map(|fd| fd.is_some() && events.next().unwrap_or_default())
}

struct Peer {
    stream: UnixStream,
    frames: Frames,
}

impl Peer {
    /// Whether the connection goes on. What is not understood is heard all the same: it may be the
    /// message of a later release.
    fn read(&mut self, hear: &mut dyn FnMut(Option<ToJob>)) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(n) if !self.frames.push(&buffer[..n], hear) => return false,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// Lines out of what is read.
#[derive(Default)]
struct Frames(Vec<u8>);

impl Frames {
    /// False when the peer talks without end.
    fn push(&mut self, bytes: &[u8], hear: &mut dyn FnMut(Option<ToJob>)) -> bool {
        self.0.extend_from_slice(bytes);
        while let Some(end) = memchr::memchr(b'\n', &self.0) {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            hear(serde_json::from_slice(&line).ok());
        }
        self.0.len() <= LONGEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Why;

    fn check(reads: &[&str], want: &[Option<ToJob>]) {
        let mut got = Vec::new();
        let mut frames = Frames::default();
        for read in reads {
            assert!(frames.push(read.as_bytes(), &mut |m| got.push(m)));
        }
        assert_eq!(got, want, "{reads:?}");
    }

    #[test]
    fn messages_are_lines_however_they_arrive() {
        let abort = || Some(ToJob::Abort { why: Why::Aborted });
        let line = "{\"abort\":{\"why\":\"aborted\"}}\n";
        check(&[line], &[abort()]);
        check(&[line, line], &[abort(), abort()]);
        check(&[&line[..9], &line[9..]], &[abort()]);
        check(&[&line[..9]], &[]);
        check(&["{\"later_release\":1}\n", "noise\n", line], &[None, None, abort()]);
        check(&["\"operating_system_shutdown\"\n"], &[Some(ToJob::OperatingSystemShutdown)]);
        assert!(!Frames::default().push(&[b'x'; LONGEST + 1], &mut |_| ()));
    }
}
