//! Tar under zstd, as one stream: files and directories as they come, links at the end.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use super::tree::{Last, Marks, Tree};
use super::unpack::Filling;
use super::{check_room, parts, show, special, warn_of_git};

const RECORD: usize = 512;
/// Longer names and the like do not exist.
const MAX_HEADER: u64 = 1 << 20;
/// A file that declares less need not be compared with the free space.
const SMALL: u64 = 16 << 20;

pub(super) fn extract(archive: &File, root: &Path) -> Result<(), String> {
    let damaged = |e: std::io::Error| format!("the archive is damaged: {e}");
    let mut archive = archive;
    archive.rewind().map_err(damaged)?;
    let mut stream =
        zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(128 << 10, archive)).map_err(damaged)?;
    let tree = Tree::open(root)?;
    let mut unpacker = Unpacker {
        root,
        tree: &tree,
        last: Last::default(),
        links: Vec::new(),
        buffer: vec![0; 128 << 10],
        git: false,
    };
    let mut long = Long::default();
    loop {
        let mut head = [0; RECORD];
        stream.read_exact(&mut head).map_err(damaged)?;
        if head == [0; RECORD] {
            break;
        }
        let head = Header::read(&head)?;
        if matches!(head.kind, b'x' | b'g' | b'L' | b'K') {
            if head.size > MAX_HEADER {
                return Err("the archive is damaged: a header is too long".to_owned());
            }
            let mut text = vec![0; head.size as usize];
            stream.read_exact(&mut text).map_err(damaged)?;
            skip(&mut stream, padding(head.size)).map_err(damaged)?;
            long.read(head.kind, &text)?;
            continue;
        }
        let entry = long.apply(head);
        let mut data = (&mut stream).take(if entry.has_data() { entry.size } else { 0 });
        unpacker.entry(&entry, &mut data)?;
        let left = data.limit();
        skip(&mut stream, left + padding(if entry.has_data() { entry.size } else { 0 })).map_err(damaged)?;
    }
    for (name, target, mtime) in &unpacker.links {
        tree.link(&parts(name, root)?, target, *mtime)?;
    }
    tree.finish();
    Ok(())
}

struct Unpacker<'a> {
    root: &'a Path,
    tree: &'a Tree,
    last: Last,
    links: Vec<(Vec<u8>, Vec<u8>, Option<i64>)>,
    buffer: Vec<u8>,
    git: bool,
}

impl Unpacker<'_> {
    fn entry(&mut self, entry: &Header, data: &mut dyn Read) -> Result<(), String> {
        let name = &entry.name;
        let path = parts(name, self.root)?;
        if path.first() == Some(&&b".git"[..]) && !self.git {
            self.git = true;
            warn_of_git();
        }
        let marks = Marks { mode: entry.mode, mtime: Some(entry.mtime), owner: Some((entry.uid, entry.gid)) };
        match entry.kind {
            b'0' | 0 | b'7' if name.ends_with(b"/") => self.tree.dir(&path, marks),
            b'0' | 0 | b'7' => {
                if entry.size > SMALL {
                    check_room(self.root, name, entry.size)?;
                }
                let file = self.tree.file(&path, &mut self.last)?;
                let mut filling = Filling::new(file, entry.size);
                let named = |e: String| format!("{}: {e}", show(name));
                filling.copy(data, &mut self.buffer).map_err(named)?;
                let file = filling.finish().map_err(named)?;
                self.tree.mark(&file, marks).map_err(|e| named(e.to_string()))
            }
            b'5' => self.tree.dir(&path, marks),
            b'2' => {
                self.links.push((name.clone(), entry.link.clone(), Some(entry.mtime)));
                Ok(())
            }
            b'1' => self.tree.hard_link(&path, &parts(&entry.link, self.root)?),
            b'3' | b'4' | b'6' => {
                special(name);
                Ok(())
            }
            kind => Err(format!("{}: entries of tar's type {:?} are not known here", show(name), char::from(kind))),
        }
    }
}

struct Header {
    name: Vec<u8>,
    link: Vec<u8>,
    kind: u8,
    size: u64,
    mode: u32,
    mtime: i64,
    uid: u32,
    gid: u32,
}

impl Header {
    fn read(h: &[u8; RECORD]) -> Result<Header, String> {
        let damaged = || "the archive is damaged: what should be a tar header is none".to_owned();
        let sum: u64 =
            h.iter().enumerate().map(|(i, b)| u64::from(if (148..156).contains(&i) { b' ' } else { *b })).sum();
        let number = |from: usize, to: usize| number(&h[from..to]).ok_or_else(damaged);
        if number(148, 156)? != sum {
            return Err(damaged());
        }
        let mut name = text(&h[..100]).to_vec();
        let prefix = text(&h[345..500]);
        if &h[257..263] == b"ustar\0" && !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
        Ok(Header {
            name,
            link: text(&h[157..257]).to_vec(),
            kind: h[156],
            size: number(124, 136)?,
            mode: number(100, 108)? as u32,
            mtime: number(136, 148)?.min(i64::MAX as u64) as i64,
            uid: number(108, 116)? as u32,
            gid: number(116, 124)? as u32,
        })
    }

    fn has_data(&self) -> bool {
        !matches!(self.kind, b'1'..=b'6')
    }
}

/// What headers before an entry say of it.
#[derive(Default)]
struct Long {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    mtime: Option<i64>,
}

impl Long {
    fn read(&mut self, kind: u8, bytes: &[u8]) -> Result<(), String> {
        match kind {
            b'L' => self.name = Some(text(bytes).to_vec()),
            b'K' => self.link = Some(text(bytes).to_vec()),
            b'x' => self.records(bytes).ok_or("the archive is damaged: an extended header cannot be read")?,
            _ => {}
        }
        Ok(())
    }

    /// `LENGTH KEY=VALUE\n`, where the length counts itself.
    fn records(&mut self, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            let space = bytes.iter().position(|b| *b == b' ')?;
            let len: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
            let record = bytes.get(space + 1..len)?.strip_suffix(b"\n")?;
            bytes = &bytes[len..];
            let equals = record.iter().position(|b| *b == b'=')?;
            let value = &record[equals + 1..];
            let word = || std::str::from_utf8(value).ok();
            match &record[..equals] {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(word()?.parse().ok()?),
                b"mtime" => self.mtime = Some(word()?.split('.').next()?.parse().ok()?),
                _ => {}
            }
        }
        Some(())
    }

    fn apply(&mut self, mut head: Header) -> Header {
        let long = std::mem::take(self);
        head.name = long.name.unwrap_or(head.name);
        head.link = long.link.unwrap_or(head.link);
        head.size = long.size.unwrap_or(head.size);
        head.mtime = long.mtime.unwrap_or(head.mtime);
        head
    }
}

/// Up to the first NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

/// Octal digits, or, with the first bit set, a number in base 256.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let mut bytes = field.to_vec();
        bytes[0] &= 0x7f;
        let (high, low) = bytes.split_at(bytes.len().saturating_sub(8));
        let number = low.iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
        return high.iter().all(|b| *b == 0).then_some(number);
    }
    let digits = std::str::from_utf8(field).ok()?.trim_matches(|c| c == ' ' || c == '\0');
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

fn padding(size: u64) -> u64 {
    size.wrapping_neg() % RECORD as u64
}

fn skip(stream: &mut impl Read, bytes: u64) -> std::io::Result<()> {
    let skipped = std::io::copy(&mut stream.take(bytes), &mut std::io::sink())?;
    if skipped == bytes { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}
