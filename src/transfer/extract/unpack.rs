//! The bytes of one entry into its file: no more than were declared, with holes where there are only
//! zeros.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// Files that are larger are looked at in such pieces.
const PIECE: usize = 64 << 10;
/// Fewer zeros are written; this is what file systems can leave out.
const HOLE: usize = 4 << 10;

/// A file that is being filled.
#[derive(Debug)]
pub(super) struct Filling {
    file: File,
    written: u64,
    declared: u64,
    /// Zeros that were not written yet.
    hole: u64,
}

impl Filling {
    pub(super) fn new(file: File, declared: u64) -> Filling {
        Filling { file, written: 0, declared, hole: 0 }
    }

    pub(super) fn put(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        if bytes.len() as u64 > self.declared - self.written {
            return Err(format!("it holds more than the {} bytes that it declares", self.declared));
        }
        self.written += bytes.len() as u64;
        if self.declared < PIECE as u64 {
            return self.file.write_all(bytes).map_err(|e| e.to_string());
        }
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min(PIECE));
            bytes = rest;
            if piece.len() >= HOLE && is_zero(piece) {
                self.hole += piece.len() as u64;
            } else {
                self.skip().and_then(|()| self.file.write_all(piece)).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, from: &mut dyn Read, buffer: &mut [u8]) -> Result<(), String> {
        loop {
            match from.read(buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => self.put(&buffer[..n])?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// The file, whole.
    pub(super) fn finish(mut self) -> Result<File, String> {
        if self.written != self.declared {
            return Err(format!("it declares {} bytes and holds {}", self.declared, self.written));
        }
        if self.hole > 0 {
            self.skip().and_then(|()| self.file.set_len(self.written)).map_err(|e| e.to_string())?;
        }
        Ok(self.file)
    }

    fn skip(&mut self) -> io::Result<()> {
        if self.hole > 0 {
            self.file.seek(SeekFrom::Current(self.hole as i64))?;
            self.hole = 0;
        }
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    // The first bytes tell at once for all but holes; the rest is compared with itself, moved by one.
    bytes[..16] == [0; 16] && bytes[..bytes.len() - 16] == bytes[16..]
}
