//! The end of the way: the limit, then the file. Counts every byte, knows when to take no more, and
//! never fails: what a full disk refuses is counted (kill point 9).

use std::fs::File;
use std::io::{self, Write};

/// Bytes that are gathered before they are written.
const BATCH: usize = 64 * 1024;

#[derive(Debug)]
pub(in crate::job) struct Store {
    file: File,
    batch: Vec<u8>,
    /// Bytes of the file with those of `batch`.
    position: u64,
    limit: Option<u64>,
    /// Bytes that may still come.
    left: u64,
    refused: Option<(io::Error, u64)>,
}

impl Store {
    /// `position`: what the file holds already.
    pub(super) fn new(file: File, position: u64, limit: Option<u64>) -> Store {
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(position));
        Store { file, batch: Vec::new(), position, limit, left, refused: None }
    }

    pub(in crate::job) fn put(&mut self, head: &[u8], tail: &[u8]) {
        let length = (head.len() + tail.len()) as u64;
        if length >= self.left {
            self.put_last(head, tail);
            return;
        }
        self.left -= length;
        self.batch.extend_from_slice(head);
        self.batch.extend_from_slice(tail);
        if self.batch.len() >= BATCH {
            self.flush();
        }
    }

    /// Nothing is stored any more.
    pub(super) fn is_shut(&self) -> bool {
        self.left == 0
    }

    pub(super) fn position(&self) -> u64 {
        self.position + self.batch.len() as u64
    }

    /// Bytes that came when the disk was full.
    pub(super) fn refuse(&mut self, bytes: usize) {
        if let Some((_, lost)) = &mut self.refused {
            *lost += bytes as u64;
        }
    }

    pub(super) fn lost(&self) -> Option<String> {
        let (error, bytes) = self.refused.as_ref()?;
        Some(format!("the last {bytes} bytes of the log were not stored: {error}"))
    }

    pub(super) fn flush(&mut self) {
        let mut rest = self.batch.as_slice();
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => break,
                Ok(n) => {
                    self.position += n as u64;
                    rest = &rest[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.left = 0;
                    self.refused = Some((e, rest.len() as u64));
                    break;
                }
            }
        }
        self.batch.clear();
    }

    /// The bytes that reach the limit: as many as fit, whole characters only, then the notice.
    #[cold]
    fn put_last(&mut self, head: &[u8], tail: &[u8]) {
        let (Some(limit), true) = (self.limit, self.left > 0) else {
            self.refuse(head.len() + tail.len());
            return;
        };
        let bytes = [head, tail].concat();
        let mut end = self.left as usize;
        let continues = |b: Option<&u8>| b.is_some_and(|b| b & 0xc0 == 0x80);
        while end > 0 && self.left as usize - end < 4 && continues(bytes.get(end)) {
            end -= 1;
        }
        self.left = 0;
        self.batch.extend_from_slice(&bytes[..end]);
        let notice = format!(
            "\n\x1b[33;1mJob's log exceeded limit of {limit} bytes.\n\
             Job execution will continue but no more output will be collected.\x1b[0;m\n"
        );
        self.batch.extend_from_slice(notice.as_bytes());
        self.flush();
    }
}
