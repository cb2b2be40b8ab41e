//! The one writer of `log`: what the stages and the runner say becomes the bytes that are stored.
//!
//! **Invariant 4**: masks, framing, the repair of UTF-8 and the limit all come before the first byte
//! is stored, so that the stored bytes, their count and their checksum are those of the upload. Never
//! reads what it stored, never waits but for the disk, and never fails: see [`Log::lost`].
//!
//! Each [`Source`] has its own state: half a secret, half a character and half a line of one do not mix
//! with those of another.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use super::frame::{Clock, Frame, Stamp};
use super::mask::{Mask, Masks, Room};
use crate::forge::{Format, Framing, StageId, Stream};
use crate::model::Secret;

pub(in crate::job) mod store;
mod utf8;

use store::Store;
use utf8::Repair;

#[derive(Debug)]
pub struct Log {
    format: Format,
    masks: Masks,
    streams: Vec<(Source, State)>,
    store: Store,
    clock: Clock,
    /// The time of the last write: that of lines which nobody ends.
    now: Stamp,
    room: Room,
    joined: Vec<u8>,
    repaired: Vec<u8>,
}

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The runner. A write is a whole statement: a secret or a character never goes on in the next,
    /// a line may (`forge::Streams::Voice`).
    Voice(u8),
    Stage(StageId, Stream),
}

#[derive(Debug)]
struct State {
    mask: Mask,
    repair: Repair,
    /// Absent where lines are stored bare.
    frame: Option<Frame>,
}

impl Log {
    /// `file` is empty, and written from its start.
    pub fn new(file: File, format: Format, masks: Vec<Secret>) -> Log {
        Log::at(file, 0, format, &masks)
    }

    /// Go on with the log of a job whose process died: the end of `file` decides what still fits.
    /// `file` must be open for reading and appending, by who holds the job's lock.
    pub fn resume(file: File, format: Format, masks: Vec<Secret>) -> io::Result<Log> {
        let length = file.metadata()?.len();
        let mut last = [b'\n'];
        if length > 0 {
            file.read_exact_at(&mut last, length - 1)?;
        }
        let mut log = Log::at(file, length, format, &masks);
        if last != [b'\n'] && log.format.framing == Framing::Timestamps {
            // The kernel stored half of the last write; a header must begin a line.
            log.store.put(b"\n");
        }
        Ok(log)
    }

    fn at(file: File, position: u64, format: Format, masks: &[Secret]) -> Log {
        let mut clock = Clock::new();
        Log {
            masks: Masks::new(&format, masks),
            streams: Vec::new(),
            store: Store::new(file, position, format.limit),
            now: clock.stamp(SystemTime::UNIX_EPOCH),
            clock,
            room: Room::default(),
            joined: Vec::new(),
            repaired: Vec::new(),
            format,
        }
    }

    /// One write of one source, with its time.
    pub fn write(&mut self, from: Source, bytes: &[u8], at: SystemTime) {
        if self.store.is_shut() {
            self.store.refuse(bytes.len());
            return;
        }
        self.now = self.clock.stamp(at);
        if let Source::Voice(_) = from {
            self.flush_other_voices(from);
        }
        let index = self.index(from);
        let (_, state) = &mut self.streams[index];
        let shown = state.mask.pass(&self.masks, bytes, &mut self.room);
        let Source::Voice(_) = from else {
            let shown = match self.format.repair_utf8 {
                true => state.repair.pass(shown, &mut self.joined, &mut self.repaired),
                false => shown,
            };
            state.store(shown, self.now, &mut self.store);
            return;
        };
        // All of a statement is one write to the framing, the held back part included.
        let mut whole = shown.to_vec();
        whole.extend_from_slice(state.mask.end(&self.masks, &mut self.room));
        if self.format.repair_utf8 {
            whole = String::from_utf8_lossy(&whole).into_owned().into_bytes();
        }
        state.store(&whole, self.now, &mut self.store);
    }

    /// A source is over: what it had half of is stored.
    pub fn close(&mut self, from: Source) {
        let Some(index) = self.streams.iter().position(|(s, _)| *s == from) else { return };
        let (_, mut state) = self.streams.remove(index);
        let held = state.mask.end(&self.masks, &mut self.room);
        if self.format.repair_utf8 {
            let shown = state.repair.pass(held, &mut self.joined, &mut self.repaired);
            let mut whole = shown.to_vec();
            whole.extend_from_slice(state.repair.end());
            state.store(&whole, self.now, &mut self.store);
        } else {
            state.store(held, self.now, &mut self.store);
        }
        if let Some(frame) = &mut state.frame {
            frame.flush(self.now, &mut self.store);
        }
    }

    /// Hide one more value, also in what is held back.
    pub fn add_mask(&mut self, value: &Secret) {
        self.masks.add(value, self.streams.iter_mut().map(|(_, state)| &mut state.mask));
    }

    /// Hand everything that is complete to the file.
    pub fn flush(&mut self) {
        self.store.flush();
    }

    /// Where the next stored byte will stand: the offset of a row of records.
    pub fn position(&self) -> u64 {
        self.store.position()
    }

    /// What a full disk swallowed. It stops the storing, never the draining.
    pub fn lost(&self) -> Option<String> {
        self.store.lost()
    }

    /// The job is over: close what is open, in the order in which it began.
    pub fn finish(&mut self) {
        while let Some((source, _)) = self.streams.first() {
            self.close(*source);
        }
        self.flush();
    }

    fn flush_other_voices(&mut self, voice: Source) {
        for (source, state) in &mut self.streams {
            if let (Source::Voice(_), Some(frame)) = (*source, &mut state.frame)
                && *source != voice
            {
                frame.flush(self.now, &mut self.store);
            }
        }
    }

    fn index(&mut self, from: Source) -> usize {
        if let Some(index) = self.streams.iter().position(|(s, _)| *s == from) {
            return index;
        }
        let frame = match self.format.framing {
            Framing::Bare => None,
            Framing::Timestamps => Some(Frame::new(match from {
                Source::Voice(_) => *b"00O",
                Source::Stage(_, Stream::Out) => *b"01O",
                Source::Stage(_, Stream::Err) => *b"01E",
            })),
        };
        self.streams.push((from, State { mask: Mask::default(), repair: Repair::default(), frame }));
        self.streams.len() - 1
    }
}

impl State {
    fn store(&mut self, shown: &[u8], now: Stamp, store: &mut Store) {
        match &mut self.frame {
            _ if shown.is_empty() => {}
            Some(frame) => frame.write(shown, now, store),
            None => store.put(shown),
        }
    }
}

#[cfg(test)]
mod tests;
