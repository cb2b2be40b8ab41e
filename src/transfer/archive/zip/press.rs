//! One thread's work on a zip archive: read a piece, take its checksum, compress it. Knows nothing of
//! where it goes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crc32fast::Hasher;
use flate2::{Compress, Compression, FlushCompress};

use super::super::{Error, meta, unreadable, vanished};
use super::Coding;
use super::record::{Entry, Method};

/// How far back deflate can refer.
const WINDOW: u64 = 32 << 10;

/// Some pieces whose results lie one after the other.
#[derive(Default)]
pub(super) struct Task {
    pub(super) pieces: Vec<Piece>,
}

pub(super) struct Piece {
    pub(super) entry: Entry,
    pub(super) body: Body,
}

pub(super) enum Body {
    /// Stored as it is: a link's target, nothing for a directory.
    Plain(Vec<u8>),
    /// A file that is read and compressed at once.
    Whole { path: PathBuf, size: u64 },
    /// A block of a larger one.
    Part { file: Arc<File>, at: u64, len: u64, size: u64, last: bool },
}

/// A task's results.
pub(super) struct Done {
    pub(super) items: Vec<Item>,
    /// The data of the items, one after the other.
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Item {
    pub(super) entry: Entry,
    pub(super) method: Method,
    pub(super) crc: Hasher,
    pub(super) raw: u64,
    pub(super) packed: usize,
    /// `None`: the whole entry.
    pub(super) part: Option<Part>,
}

#[derive(Clone, Copy)]
pub(super) struct Part {
    /// Of the whole file, as it was when the archive came to it.
    pub(super) size: u64,
    pub(super) last: bool,
}

/// One thread's tools.
pub(super) struct Press<'a> {
    root: &'a Path,
    coder: Coder,
    input: Vec<u8>,
}

enum Coder {
    Deflate { level: u32, state: Box<Compress> },
    Zstd(Result<zstd::bulk::Compressor<'static>, String>),
}

impl<'a> Press<'a> {
    pub(super) fn new(coding: Coding, root: &'a Path) -> Press<'a> {
        let coder = match coding {
            Coding::Deflate(level) => {
                Coder::Deflate { level, state: Box::new(Compress::new(Compression::new(level), false)) }
            }
            Coding::Zstd(level) => Coder::Zstd(zstd::bulk::Compressor::new(level).map_err(|e| e.to_string())),
        };
        Press { root, coder, input: Vec::new() }
    }

    /// `bytes` is an empty buffer to be used.
    pub(super) fn work(&mut self, task: Task, bytes: Vec<u8>) -> Result<Done, Error> {
        let mut done = Done { items: Vec::with_capacity(task.pieces.len()), bytes };
        for Piece { entry, body } in task.pieces {
            let from = done.bytes.len();
            let (method, crc, raw, part) = match body {
                Body::Plain(data) => {
                    done.bytes.extend_from_slice(&data);
                    (Method::Stored, sum(&data), data.len() as u64, None)
                }
                Body::Whole { path, size } => match self.read_whole(&path, size)? {
                    true => {
                        let method = self.whole(&mut done.bytes).map_err(|e| unreadable(&path, &e))?;
                        (method, sum(&self.input), self.input.len() as u64, None)
                    }
                    false => continue,
                },
                Body::Part { file, at, len, size, last } => {
                    let before = self.read_part(&file, at, len).map_err(|e| entry.unreadable(&e))?;
                    let method = self.part(before, last, &mut done.bytes).map_err(|e| entry.unreadable(&e))?;
                    let data = &self.input[before..];
                    (method, sum(data), data.len() as u64, Some(Part { size, last }))
                }
            };
            let packed = done.bytes.len() - from;
            done.items.push(Item { entry, method, crc, raw, packed, part });
        }
        Ok(done)
    }

    /// False: the file is gone.
    fn read_whole(&mut self, path: &Path, size: u64) -> Result<bool, Error> {
        self.input.clear();
        if size == 0 {
            return Ok(true);
        }
        let file = match meta::open(self.root, path) {
            Ok(file) => file,
            Err(_) if !self.root.join(path).exists() => {
                vanished(path);
                return Ok(false);
            }
            Err(e) => return Err(e),
        };
        fill(&file, 0, size, &mut self.input).map_err(|e| unreadable(path, &e))?;
        Ok(true)
    }

    /// The block, behind as much of what stands before it as deflate can use; how much that is.
    fn read_part(&mut self, file: &File, at: u64, len: u64) -> io::Result<usize> {
        let before = if matches!(self.coder, Coder::Deflate { level: 1.., .. }) { at.min(WINDOW) } else { 0 };
        self.input.clear();
        fill(file, at - before, before + len, &mut self.input)?;
        Ok(self.input.len().min(before as usize))
    }

    fn whole(&mut self, out: &mut Vec<u8>) -> io::Result<Method> {
        let from = out.len();
        let method = match &mut self.coder {
            Coder::Deflate { level: 0, .. } => Method::Stored,
            _ if self.input.is_empty() => Method::Stored,
            Coder::Deflate { state, .. } => {
                deflate(state, &[], &self.input, FlushCompress::Finish, out)?;
                Method::Deflated
            }
            Coder::Zstd(coder) => {
                out.extend_from_slice(&known(coder)?.compress(&self.input)?);
                Method::Zstd
            }
        };
        if method == Method::Stored || out.len() - from >= self.input.len() {
            out.truncate(from);
            out.extend_from_slice(&self.input);
            return Ok(Method::Stored);
        }
        Ok(method)
    }

    /// Blocks of a file that is made as it comes are deflated even when nothing is to be gained: many
    /// readers cannot find the end of stored data. With zstd each is a frame of its own.
    fn part(&mut self, before: usize, last: bool, out: &mut Vec<u8>) -> io::Result<Method> {
        let (dictionary, data) = self.input.split_at(before);
        match &mut self.coder {
            Coder::Deflate { level: 0, .. } => {
                stored(data, last, out);
                Ok(Method::Deflated)
            }
            // What a used coder holds of earlier data shows in what it makes behind a dictionary: the same
            // bytes would not always give the same archive.
            Coder::Deflate { level, .. } => {
                let mut state = Compress::new(Compression::new(*level), false);
                let flush = if last { FlushCompress::Finish } else { FlushCompress::Sync };
                deflate(&mut state, dictionary, data, flush, out)?;
                Ok(Method::Deflated)
            }
            Coder::Zstd(coder) => {
                out.extend_from_slice(&known(coder)?.compress(data)?);
                Ok(Method::Zstd)
            }
        }
    }
}

fn known<'c>(
    coder: &'c mut Result<zstd::bulk::Compressor<'static>, String>,
) -> io::Result<&'c mut zstd::bulk::Compressor<'static>> {
    coder.as_mut().map_err(|e| io::Error::other(e.clone()))
}

fn sum(data: &[u8]) -> Hasher {
    let mut crc = Hasher::new();
    crc.update(data);
    crc
}

/// Deflate's form of data as it is.
fn stored(data: &[u8], last: bool, out: &mut Vec<u8>) {
    let mut pieces = data.chunks(0xffff).peekable();
    while let Some(piece) = pieces.next() {
        let len = piece.len() as u16;
        out.push(u8::from(last && pieces.peek().is_none()));
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&(!len).to_le_bytes());
        out.extend_from_slice(piece);
    }
    // A file that became shorter still has to end.
    if last && data.is_empty() {
        out.extend_from_slice(&[1, 0, 0, 0xff, 0xff]);
    }
}

/// All of `data`, behind what `out` holds, up to a byte's border.
fn deflate(
    state: &mut Compress,
    dictionary: &[u8],
    data: &[u8],
    flush: FlushCompress,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    state.reset();
    if !dictionary.is_empty() {
        state.set_dictionary(dictionary).map_err(io::Error::other)?;
    }
    loop {
        let left = &data[state.total_in() as usize..];
        out.reserve(left.len() / 2 + 1024);
        let status = state.compress_vec(left, out, flush).map_err(io::Error::other)?;
        // Room that is left over says that nothing is held back.
        let all_in = state.total_in() == data.len() as u64;
        match flush {
            FlushCompress::Finish if status == flate2::Status::StreamEnd => return Ok(()),
            FlushCompress::Finish => {}
            _ if all_in && out.len() < out.capacity() => return Ok(()),
            _ => {}
        }
    }
}

/// `len` bytes from `at` on, or those that there are.
fn fill(file: &File, at: u64, len: u64, into: &mut Vec<u8>) -> io::Result<()> {
    into.resize(len as usize, 0);
    let mut have = 0;
    while have < into.len() {
        match file.read_at(&mut into[have..], at + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    into.truncate(have);
    Ok(())
}
