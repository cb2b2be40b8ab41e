//! Where the upload of a log stands: positions and the checksum. Opens the log to read, sends nothing.
//!
//! Two positions, the log's own and the server's. They are the same, but for one case: after a power
//! loss the server may hold more than the disk (kill point 14). Then what the log gains from now on is
//! sent behind what the server has, and no checksum can be named any more.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::jobdir;

/// The largest piece of log in one request (protocol §2.1).
pub(super) const CHUNK: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Upload {
    /// Everything of the log before this is at the server.
    at: u64,
    /// The server's position is so much further on, from `base` of the log.
    shift: u64,
    base: u64,
    /// The log's length when this process took the lease over: all that any earlier one can have sent.
    floor: u64,
    /// The end of what was ever offered and may have been stored, answer or no answer.
    offered: u64,
    crc: crc32fast::Hasher,
    /// The checksum covers the log up to here.
    summed: u64,
    /// The memory of the last piece, while there are full ones to be sent: a new one each time would cost
    /// more than the reading.
    spare: Vec<u8>,
}

/// A piece of log, and where it belongs at the server.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    pub(super) offset: u64,
}

impl Upload {
    /// From the beginning.
    pub(super) fn new() -> Upload {
        Upload {
            at: 0,
            shift: 0,
            base: 0,
            floor: 0,
            offered: 0,
            crc: crc32fast::Hasher::new(),
            summed: 0,
            spare: Vec::new(),
        }
    }

    /// From where an earlier process stopped, as its note has it. A note that cannot be is as good as
    /// none: the server's answer to the first chunk repairs it (kill point 15).
    pub(super) fn resumed(note: &[u8], length: u64) -> Upload {
        let position = read_note(note).unwrap_or(0);
        let at = position.min(length);
        Upload { at, shift: position - at, base: at, floor: length, offered: length, ..Upload::new() }
    }

    /// The note for the next process, eight bytes.
    pub(super) fn note(&self) -> [u8; 8] {
        let position = self.server_position();
        let mut note = position.to_le_bytes();
        note[5..].copy_from_slice(&check(position));
        note
    }

    pub(super) fn server_position(&self) -> u64 {
        self.at + self.shift
    }

    /// Whether the server holds what the log does not.
    pub(super) fn is_shifted(&self) -> bool {
        self.shift > 0
    }

    /// Nothing was stored yet by any process.
    pub(super) fn is_at_start(&self) -> bool {
        self.server_position() == 0
    }

    pub(super) fn behind(&self, length: u64) -> u64 {
        length.saturating_sub(self.at)
    }

    /// The next piece of the log; `None` when the server has all of it.
    pub(super) fn next(&mut self, log: &Path, length: u64) -> io::Result<Option<Chunk>> {
        let size = self.behind(length).min(CHUNK);
        if size == 0 {
            return Ok(None);
        }
        let mut bytes = std::mem::take(&mut self.spare);
        bytes.resize(size as usize, 0);
        open(log)?.read_exact_at(&mut bytes, self.at)?;
        if self.at <= self.summed && self.at + size > self.summed {
            self.crc.update(&bytes[(self.summed - self.at) as usize..]);
            self.summed = self.at + size;
        }
        Ok(Some(Chunk { bytes, offset: self.server_position() }))
    }

    /// The piece has been sent; its memory may serve for the next.
    pub(super) fn spare(&mut self, chunk: Chunk) {
        if chunk.bytes.len() as u64 == CHUNK {
            self.spare = chunk.bytes;
        }
    }

    /// The server has stored so many bytes more.
    pub(super) fn stored(&mut self, size: usize) {
        self.at += size as u64;
        self.offered = self.offered.max(self.at);
    }

    /// So many bytes were sent, and nobody knows whether they were stored.
    pub(super) fn unanswered(&mut self, size: usize) {
        self.offered = self.offered.max(self.at + size as u64);
    }

    /// The server has `size` bytes: go on from there. True when that is more than it can have of this
    /// log, and was not known before.
    pub(super) fn resume(&mut self, size: u64) -> bool {
        if size > self.offered + self.shift {
            // More than was ever offered: the rest of what we know follows what the server has.
            let news = self.shift == 0;
            self.at = self.at.max(self.floor);
            (self.base, self.shift) = (self.at, size - self.at);
            return news;
        }
        if self.shift > 0 && size < self.base + self.shift {
            // It lost of what only it had, or more.
            (self.at, self.shift) = (size.min(self.base), size.saturating_sub(self.base));
        } else {
            self.at = size - self.shift;
        }
        false
    }

    /// The server wants all of it again.
    pub(super) fn rewind(&mut self) {
        (self.at, self.shift, self.base) = (0, 0, 0);
    }

    /// The checksum of the log's first `length` bytes; reads what was not read for sending.
    pub(super) fn checksum(&mut self, log: &Path, length: u64) -> io::Result<String> {
        if self.summed > length {
            (self.crc, self.summed) = (crc32fast::Hasher::new(), 0);
        }
        if self.summed < length {
            let file = open(log)?;
            let mut buffer = vec![0; 64 << 10];
            while self.summed < length {
                let want = buffer.len().min((length - self.summed) as usize);
                file.read_exact_at(&mut buffer[..want], self.summed)?;
                self.crc.update(&buffer[..want]);
                self.summed += want as u64;
            }
        }
        Ok(format!("crc32:{:08x}", self.crc.clone().finalize()))
    }
}

fn open(log: &Path) -> io::Result<File> {
    jobdir::plain(log, File::options().read(true))
}

/// Five bytes of position, three that tell a note from garbage.
fn read_note(note: &[u8]) -> Option<u64> {
    let mut position: [u8; 8] = note.try_into().ok()?;
    let said = [position[5], position[6], position[7]];
    position[5..].fill(0);
    let position = u64::from_le_bytes(position);
    (check(position) == said).then_some(position)
}

fn check(position: u64) -> [u8; 3] {
    let [a, b, c, _] = crc32fast::hash(&position.to_le_bytes()).to_le_bytes();
    [a, b, c]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(position: u64) -> [u8; 8] {
        Upload { at: position, ..Upload::new() }.note()
    }

    /// What is sent next, as (log position, server position).
    fn next(upload: &Upload) -> (u64, u64) {
        (upload.at, upload.server_position())
    }

    #[test]
    fn a_note_is_taken_up_and_garbage_is_none() {
        for (bytes, length, want) in [
            (&note(70)[..], 100, (70, 70)),
            (&note(100), 100, (100, 100)),
            (&note(0), 100, (0, 0)),
            (&note(120), 100, (100, 120)),
            (&120_u64.to_le_bytes(), 100, (0, 0)),
            (&[0; 8], 100, (0, 0)),
            (b"rubbish!", 100, (0, 0)),
            (b"", 100, (0, 0)),
            (b"longer than eight", 100, (0, 0)),
        ] {
            assert_eq!(next(&Upload::resumed(bytes, length)), want, "{bytes:?}");
        }
    }

    #[test]
    fn a_mismatch_is_resumed_where_the_server_is() {
        let mut upload = Upload::new();
        upload.stored(100);
        for size in [60, 0, 100] {
            assert!(!upload.resume(size));
            assert_eq!(next(&upload), (size, size));
        }
        upload.unanswered(50);
        assert!(!upload.resume(150), "the lost answer was a yes");
        assert_eq!(next(&upload), (150, 150));
    }

    #[test]
    fn a_server_with_more_than_we_have_gets_only_what_is_new() {
        // Power loss: 120 bytes are there, 100 were on the disk; 50 were written since.
        for note in [note(120).to_vec(), note(0).to_vec(), note(90).to_vec(), b"garbage".to_vec()] {
            let mut upload = Upload::resumed(&note, 100);
            let was_known = upload.is_shifted();
            assert_eq!(upload.resume(120), !was_known);
            assert_eq!(next(&upload), (100, 120));
            upload.stored(50);
            assert_eq!(next(&upload), (150, 170));
            assert_eq!(next(&Upload::resumed(&upload.note(), 150)), (150, 170), "and after one more restart");
        }
    }

    #[test]
    fn a_shifted_upload_follows_the_server_too() {
        let shifted = || Upload::resumed(&note(120), 100);
        for (sent, size, want) in [
            (50, 170, (150, 170)),
            (0, 120, (100, 120)),
            (50, 110, (100, 110)),
            (50, 80, (80, 80)),
            (0, 130, (100, 130)),
        ] {
            let mut upload = shifted();
            upload.unanswered(sent);
            upload.resume(size);
            assert_eq!(next(&upload), want, "{size}");
        }
    }

    #[test]
    fn the_checksum_covers_the_log_however_it_was_sent() {
        let tmp = tempfile::tempdir().unwrap();
        let log = tmp.path().join("log");
        let text: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&log, &text).unwrap();
        let length = text.len() as u64;
        let want = format!("crc32:{:08x}", crc32fast::hash(&text));
        let mut straight = Upload::new();
        let mut got = Vec::new();
        while let Some(chunk) = straight.next(&log, length).unwrap() {
            assert_eq!(chunk.offset, got.len() as u64);
            got.extend_from_slice(&chunk.bytes);
            straight.stored(chunk.bytes.len());
            straight.spare(chunk);
        }
        assert_eq!(got, text);
        assert_eq!((straight.summed, straight.checksum(&log, length).unwrap()), (length, want.clone()));
        let mut again = Upload::new();
        again.next(&log, length).unwrap();
        again.resume(0);
        again.next(&log, length).unwrap();
        assert_eq!(again.checksum(&log, length).unwrap(), want, "a piece that was read twice");
        assert_eq!(Upload::resumed(&note(2_000_000), length).checksum(&log, length).unwrap(), want, "adopted");
        assert_eq!(Upload::new().checksum(&log, 0).unwrap(), "crc32:00000000");
    }
}
