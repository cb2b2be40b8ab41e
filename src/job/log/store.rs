//! The end of the way: the limit, then the file. Counts every byte, knows when to take no more, and
//! never fails: what a full disk refuses is counted (kill point 9).

use std::fs::File;
use std::io::{self, Write};

use crate::job::frame::HEADER;

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

    /// A line with its header.
    #[inline]
    pub(in crate::job) fn put_line(&mut self, header: &[u8; HEADER], line: &[u8]) {
        if !self.takes(HEADER + line.len()) {
            self.put_last(&[header, line].concat());
            return;
        }
        self.batch.extend_from_slice(header);
        self.batch.extend_from_slice(line);
        if self.batch.len() >= BATCH {
            self.flush();
        }
    }

    pub(in crate::job) fn put(&mut self, bytes: &[u8]) {
        if !self.takes(bytes.len()) {
            self.put_last(bytes);
        } else if bytes.len() >= BATCH {
            self.flush();
            self.hand_over(bytes);
        } else {
            self.batch.extend_from_slice(bytes);
            if self.batch.len() >= BATCH {
                self.flush();
            }
        }
    }

    /// Whether so many bytes fit, and something may come after them.
    fn takes(&mut self, length: usize) -> bool {
        let fit = (length as u64) < self.left;
        if fit {
            self.left -= length as u64;
        }
        fit
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
        let batch = std::mem::take(&mut self.batch);
        self.hand_over(&batch);
        self.batch = batch;
        self.batch.clear();
    }

    /// To the file, with the batch empty. The first refusal is the last try.
    fn hand_over(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(n) => {
                    self.position += n as u64;
                    bytes = &bytes[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.left = 0;
                    self.refused.get_or_insert((e, 0)).1 += bytes.len() as u64;
                    return;
                }
            }
        }
    }

    /// The bytes that reach the limit: as many as fit, whole characters only, then the notice.
    #[cold]
    fn put_last(&mut self, bytes: &[u8]) {
        let (Some(limit), true) = (self.limit, self.left > 0) else {
            self.refuse(bytes.len());
            return;
        };
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
