//! The records of a zip archive: headers, descriptors, the directory at its end, each with the 64-bit form
//! where a number needs it. Makes bytes; writes nothing.

use std::io;

use super::super::Error;
use super::super::meta::Meta;
use crate::clock::date;

const MAX_32: u64 = u32::MAX as u64;
/// A file may grow a little when it is deflated; from here on its sizes are written in 64 bits.
const LARGE: u64 = MAX_32 - (16 << 20);
/// The sizes stand behind the data.
const STREAMED: u16 = 1 << 3;
const UTF8: u16 = 1 << 11;
/// Made on Unix, by version 6.3 of the format.
const MADE_BY: u16 = 3 << 8 | 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Stored = 0,
    Deflated = 8,
    Zstd = 93,
}

impl Method {
    /// The version of the format that a reader needs.
    fn needs(self, zip64: bool) -> u16 {
        match self {
            Method::Zstd => 63,
            _ if zip64 => 45,
            _ => 20,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) raw: u64,
    pub(super) packed: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// A directory's ends with a slash.
    name: Vec<u8>,
    meta: Meta,
}

impl Entry {
    pub(super) fn new(path: &[u8], meta: Meta) -> Entry {
        let mut name = path.to_vec();
        if is_dir(meta.mode) {
            name.push(b'/');
        }
        Entry { name, meta }
    }

    pub(super) fn unreadable(&self, e: &io::Error) -> Error {
        Error::Input(format!("{}: {e}", String::from_utf8_lossy(&self.name)))
    }

    /// Before data whose sizes are known. Only data of one block are: they need no 64 bits.
    pub(super) fn local(&self, method: Method, crc: u32, sizes: Sizes) -> Vec<u8> {
        self.head(method, 0, false, crc, (sizes.packed as u32, sizes.raw as u32), &[])
    }

    /// Before data whose sizes come behind. `size`: what is expected.
    pub(super) fn local_ahead(&self, method: Method, size: u64) -> Vec<u8> {
        if size < LARGE {
            return self.head(method, STREAMED, false, 0, (0, 0), &[]);
        }
        let mut extra = Vec::new();
        put16(&mut extra, 1);
        put16(&mut extra, 16);
        extra.resize(20, 0);
        self.head(method, STREAMED, true, 0, (u32::MAX, u32::MAX), &extra)
    }

    fn head(&self, method: Method, flags: u16, zip64: bool, crc: u32, sizes: (u32, u32), more: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(80 + self.name.len());
        put32(&mut out, 0x0403_4b50);
        put16(&mut out, method.needs(zip64));
        self.common(&mut out, method, flags, crc, sizes);
        let extra = [more, &self.extra()].concat();
        put16(&mut out, extra.len() as u16);
        out.extend_from_slice(&self.name);
        out.extend_from_slice(&extra);
        out
    }

    /// What local header and directory have in common, up to the name's length.
    fn common(&self, out: &mut Vec<u8>, method: Method, flags: u16, crc: u32, (packed, raw): (u32, u32)) {
        let utf8 = if !self.name.is_ascii() && std::str::from_utf8(&self.name).is_ok() { UTF8 } else { 0 };
        put16(out, flags | utf8);
        put16(out, method as u16);
        let (time, day) = dos(self.meta.mtime);
        put16(out, time);
        put16(out, day);
        put32(out, crc);
        put32(out, packed);
        put32(out, raw);
        put16(out, self.name.len() as u16);
    }

    /// Time in seconds and owner, as Info-ZIP writes them.
    fn extra(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        if let Ok(time) = i32::try_from(self.meta.mtime) {
            put16(&mut out, 0x5455);
            put16(&mut out, 5);
            out.push(1);
            out.extend_from_slice(&time.to_le_bytes());
        }
        put16(&mut out, 0x7875);
        put16(&mut out, 11);
        out.extend_from_slice(&[1, 4]);
        put32(&mut out, self.meta.uid);
        out.push(4);
        put32(&mut out, self.meta.gid);
        out
    }
}

/// Behind data that came with a header of [`Entry::local_ahead`].
pub(super) fn descriptor(crc: u32, sizes: Sizes, expected: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(24);
    put32(&mut out, 0x0807_4b50);
    put32(&mut out, crc);
    for size in [sizes.packed, sizes.raw] {
        match expected < LARGE {
            true => put32(&mut out, size as u32),
            false => put64(&mut out, size),
        }
    }
    out
}

/// The directory at the end, as it grows. A record takes some hundred bytes: this is what of an archive
/// is in memory.
#[derive(Debug, Default)]
pub(super) struct Directory {
    bytes: Vec<u8>,
    count: u64,
}

impl Directory {
    pub(super) fn add(&mut self, entry: &Entry, method: Method, crc: u32, sizes: Sizes, offset: u64) {
        self.record(entry, method, 0, crc, sizes, offset);
    }

    pub(super) fn add_streamed(&mut self, entry: &Entry, method: Method, crc: u32, sizes: Sizes, offset: u64) {
        self.record(entry, method, STREAMED, crc, sizes, offset);
    }

    fn record(&mut self, entry: &Entry, method: Method, flags: u16, crc: u32, sizes: Sizes, offset: u64) {
        let mut large = Vec::new();
        for number in [sizes.raw, sizes.packed, offset] {
            if number >= MAX_32 {
                put64(&mut large, number);
            }
        }
        let mut extra = Vec::with_capacity(52);
        if !large.is_empty() {
            put16(&mut extra, 1);
            put16(&mut extra, large.len() as u16);
            extra.extend_from_slice(&large);
        }
        extra.extend_from_slice(&entry.extra());
        let out = &mut self.bytes;
        put32(out, 0x0201_4b50);
        put16(out, MADE_BY);
        put16(out, method.needs(!large.is_empty()));
        entry.common(out, method, flags, crc, (clip(sizes.packed), clip(sizes.raw)));
        put16(out, extra.len() as u16);
        // No comment, first disk, no internal attributes.
        out.extend_from_slice(&[0; 6]);
        put32(out, entry.meta.mode << 16 | if is_dir(entry.meta.mode) { 0x10 } else { 0 });
        put32(out, clip(offset));
        out.extend_from_slice(&entry.name);
        out.extend_from_slice(&extra);
        self.count += 1;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What closes the archive. The directory begins at `at`.
    pub(super) fn end(&self, at: u64) -> Vec<u8> {
        let size = self.bytes.len() as u64;
        let mut out = Vec::with_capacity(98);
        if self.count >= 0xffff || size >= MAX_32 || at >= MAX_32 {
            put32(&mut out, 0x0606_4b50);
            put64(&mut out, 44);
            put16(&mut out, MADE_BY);
            put16(&mut out, 45);
            out.extend_from_slice(&[0; 8]);
            for number in [self.count, self.count, size, at] {
                put64(&mut out, number);
            }
            put32(&mut out, 0x0706_4b50);
            put32(&mut out, 0);
            put64(&mut out, at + size);
            put32(&mut out, 1);
        }
        put32(&mut out, 0x0605_4b50);
        out.extend_from_slice(&[0; 4]);
        let count = self.count.min(0xffff) as u16;
        put16(&mut out, count);
        put16(&mut out, count);
        put32(&mut out, clip(size));
        put32(&mut out, clip(at));
        put16(&mut out, 0);
        out
    }
}

fn is_dir(mode: u32) -> bool {
    mode & 0o170_000 == 0o040_000
}

fn clip(number: u64) -> u32 {
    number.min(MAX_32) as u32
}

/// Time and day, in two seconds and since 1980; in UTC, so that the same files give the same bytes.
fn dos(mtime: i64) -> (u16, u16) {
    let Some(second) = u64::try_from(mtime).ok().filter(|s| *s >= 315_532_800) else { return (0, 1 << 5 | 1) };
    let (year, month, day) = date(second / 86_400);
    let (h, m, s) = (second / 3600 % 24, second / 60 % 60, second % 60);
    ((h << 11 | m << 5 | (s / 2)) as u16, ((year - 1980).min(127) << 9 | month << 5 | day) as u16)
}

fn put16(out: &mut Vec<u8>, n: u16) {
    out.extend_from_slice(&n.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, n: u32) {
    out.extend_from_slice(&n.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(&n.to_le_bytes());
}
