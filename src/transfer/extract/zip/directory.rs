//! What a zip archive says of itself: its end, and entry by entry its directory. Believes no number
//! without looking whether it can be.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

use super::super::show;
use super::super::tree::Marks;

/// The end record with the longest comment, and the one that leads to the 64-bit form.
const TAIL: u64 = 22 + 65_535 + 20;

pub(super) struct Directory<'a> {
    archive: &'a File,
    /// Where it begins, which is where data ends.
    pub(super) at: u64,
    size: u64,
    count: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) method: Method,
    pub(super) encrypted: bool,
    pub(super) crc: u32,
    pub(super) packed: u64,
    pub(super) raw: u64,
    /// Of its local header.
    pub(super) offset: u64,
    pub(super) marks: Marks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Dir,
    Link,
    /// A device, a pipe, a socket.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Stored,
    Deflated,
    Zstd,
    Unknown(u16),
}

impl<'a> Directory<'a> {
    pub(super) fn find(archive: &'a File) -> Result<Directory<'a>, String> {
        let none = || "the file is no archive, or its end is missing".to_owned();
        let unread = |e: io::Error| format!("the archive cannot be read: {e}");
        let len = archive.metadata().map_err(unread)?.len();
        let mut tail = vec![0; TAIL.min(len) as usize];
        let from = len - tail.len() as u64;
        archive.read_exact_at(&mut tail, from).map_err(unread)?;
        let fits = |i: &usize| {
            let end = &tail[*i..];
            end.starts_with(b"PK\x05\x06") && end.len() >= 22 && usize::from(u16_at(end, 20)) <= end.len() - 22
        };
        let i = (0..tail.len().saturating_sub(21)).rev().find(fits).ok_or_else(none)?;
        let end = &tail[i..];
        let mut found = Directory {
            archive,
            at: u32_at(end, 16).into(),
            size: u32_at(end, 12).into(),
            count: u16_at(end, 10).into(),
        };
        if let Some(locator) = i.checked_sub(20).map(|at| &tail[at..i]).filter(|l| l.starts_with(b"PK\x06\x07")) {
            let mut large = [0; 56];
            archive.read_exact_at(&mut large, u64_at(locator, 8)).map_err(unread)?;
            if large.starts_with(b"PK\x06\x06") {
                (found.count, found.size, found.at) = (u64_at(&large, 32), u64_at(&large, 40), u64_at(&large, 48));
            }
        }
        // A record takes 46 bytes and more.
        let inside = found.at.checked_add(found.size).is_some_and(|end| end <= from + i as u64);
        if !inside || found.count > found.size / 46 {
            return Err("the archive's directory is damaged".to_owned());
        }
        Ok(found)
    }

    pub(super) fn items(&self) -> Items<'a> {
        let section = Section { file: self.archive, at: self.at, left: self.size };
        Items { from: BufReader::with_capacity(64 << 10, section), left: self.count }
    }
}

/// Some bytes of a file, to be read in their order.
#[derive(Clone, Debug)]
pub(super) struct Section<'a> {
    pub(super) file: &'a File,
    pub(super) at: u64,
    pub(super) left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let want = (into.len() as u64).min(self.left) as usize;
        let n = self.file.read_at(&mut into[..want], self.at)?;
        self.at += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}

pub(super) struct Items<'a> {
    from: BufReader<Section<'a>>,
    left: u64,
}

impl Iterator for Items<'_> {
    type Item = Result<Item, String>;

    fn next(&mut self) -> Option<Result<Item, String>> {
        self.left = self.left.checked_sub(1)?;
        let item = self.read().unwrap_or_else(|_| Err("the archive's directory is damaged".to_owned()));
        if item.is_err() {
            self.left = 0;
        }
        Some(item)
    }
}

impl Items<'_> {
    fn read(&mut self) -> io::Result<Result<Item, String>> {
        let mut head = [0; 46];
        self.from.read_exact(&mut head)?;
        if !head.starts_with(b"PK\x01\x02") {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut take = |at: usize| -> io::Result<Vec<u8>> {
            let mut bytes = vec![0; u16_at(&head, at).into()];
            self.from.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        let (name, extra, _comment) = (take(28)?, take(30)?, take(32)?);
        let unix = matches!(head[5], 3 | 19);
        let dir = name.ends_with(b"/");
        let mode = match u32_at(&head, 38) >> 16 {
            mode if unix && mode != 0 => mode,
            _ if dir => 0o040_755,
            _ => 0o100_644,
        };
        let kind = match mode & 0o170_000 {
            _ if dir => Kind::Dir,
            0o040_000 => Kind::Dir,
            0o120_000 => Kind::Link,
            0 | 0o100_000 => Kind::File,
            _ => Kind::Other,
        };
        let mut item = Item {
            kind,
            method: match u16_at(&head, 10) {
                0 => Method::Stored,
                8 => Method::Deflated,
                93 => Method::Zstd,
                n => Method::Unknown(n),
            },
            encrypted: u16_at(&head, 8) & 1 != 0,
            crc: u32_at(&head, 16),
            packed: u32_at(&head, 20).into(),
            raw: u32_at(&head, 24).into(),
            offset: u32_at(&head, 42).into(),
            marks: Marks { mode, mtime: None, owner: None },
            name,
        };
        Ok(match item.read_extra(&extra) {
            Some(()) => Ok(item),
            None => Err(format!("{}: its record in the archive's directory is damaged", show(&item.name))),
        })
    }
}

impl Item {
    fn read_extra(&mut self, mut extra: &[u8]) -> Option<()> {
        while extra.len() >= 4 {
            let (kind, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
            // Padding at the end is no field.
            let Some(field) = extra.get(4..4 + len) else { break };
            extra = &extra[4 + len..];
            match kind {
                1 => {
                    let mut at = 0;
                    for number in [&mut self.raw, &mut self.packed, &mut self.offset] {
                        if *number == u64::from(u32::MAX) {
                            *number = u64::from_le_bytes(field.get(at..at + 8)?.try_into().ok()?);
                            at += 8;
                        }
                    }
                }
                0x5455 if field.first().is_some_and(|flags| flags & 1 != 0) && field.len() >= 5 => {
                    self.marks.mtime = Some(i64::from(u32_at(field, 1) as i32));
                }
                0x7875 => self.marks.owner = owner(field),
                _ => {}
            }
        }
        Some(())
    }
}

fn owner(field: &[u8]) -> Option<(u32, u32)> {
    match field {
        [1, 4, rest @ ..] if rest.len() >= 9 && rest[4] == 4 => Some((u32_at(rest, 0), u32_at(rest, 5))),
        _ => None,
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
