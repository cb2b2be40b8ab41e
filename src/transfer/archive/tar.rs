//! Tar under zstd: a stream of headers and files, cut into blocks that are compressed side by side, each a
//! frame of its own, as zstd's readers take them one after the other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::slice::Iter;

use zstd::bulk::Compressor;

use super::meta::{self, Kind, Meta};
use super::{Error, unreadable, vanished};
use crate::transfer::ordered::in_order;
use crate::transfer::say;

/// What is compressed at a time. Larger frames are smaller in sum; this much per thread is held twice.
const BLOCK: usize = 1 << 20;
const RECORD: usize = 512;
/// The largest size that a plain header can say, and the longest name and link.
const MAX_SIZE: u64 = 0o77_777_777_777;
const MAX_NAME: usize = 100;

pub(super) fn write(
    level: i32,
    threads: usize,
    root: &Path,
    files: &[PathBuf],
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut stream = Stream { root, files: files.iter(), ready: Vec::new(), open: None, ended: false };
    in_order(
        threads,
        || Compressor::new(level),
        |coder, block: Vec<u8>| match coder {
            Ok(coder) => coder.compress(&block),
            Err(e) => Err(io::Error::other(e.to_string())),
        },
        || stream.block(),
        |frame: io::Result<Vec<u8>>| {
            let frame = frame.map_err(|e| Error::Input(format!("zstd: {e}")))?;
            out.write_all(&frame).map_err(Error::Output)
        },
    )
}

struct Stream<'a> {
    root: &'a Path,
    files: Iter<'a, PathBuf>,
    /// Headers and ends that no block has taken yet.
    ready: Vec<u8>,
    open: Option<Open<'a>>,
    ended: bool,
}

struct Open<'a> {
    name: &'a Path,
    file: File,
    /// The header promised so many bytes, and they come, whatever becomes of the file.
    left: u64,
    padding: usize,
    short: bool,
}

impl Stream<'_> {
    fn block(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let mut block = Vec::with_capacity(BLOCK);
        while block.len() < BLOCK {
            if !self.ready.is_empty() {
                let n = self.ready.len().min(BLOCK - block.len());
                block.extend(self.ready.drain(..n));
            } else if let Some(open) = &mut self.open {
                open.read(&mut block)?;
                if open.left == 0 {
                    self.ready.resize(open.padding, 0);
                    self.open = None;
                }
            } else if let Some(name) = self.files.next() {
                self.begin(name)?;
            } else if !self.ended {
                self.ended = true;
                self.ready.resize(2 * RECORD, 0);
            } else {
                break;
            }
        }
        Ok((!block.is_empty()).then_some(block))
    }
}

impl<'a> Stream<'a> {
    fn begin(&mut self, name: &'a Path) -> Result<(), Error> {
        let Some((meta, kind)) = meta::look(self.root, name)? else {
            vanished(name);
            return Ok(());
        };
        let path = name.as_os_str().as_bytes();
        match kind {
            Kind::Dir => entry(&mut self.ready, &[path, b"/"].concat(), meta, b'5', 0, b""),
            Kind::Link(target) => entry(&mut self.ready, path, meta, b'2', 0, &target),
            Kind::Other => {}
            Kind::File(size) => {
                let file = meta::open(self.root, name)?;
                entry(&mut self.ready, path, meta, b'0', size, b"");
                if size > 0 {
                    let padding = (size.wrapping_neg() % RECORD as u64) as usize;
                    self.open = Some(Open { name, file, left: size, padding, short: false });
                }
            }
        }
        Ok(())
    }
}

impl Open<'_> {
    fn read(&mut self, block: &mut Vec<u8>) -> Result<(), Error> {
        let from = block.len();
        let want = self.left.min((BLOCK - from) as u64) as usize;
        block.resize(from + want, 0);
        let n = match self.file.read(&mut block[from..]) {
            _ if self.short => want,
            Ok(0) => {
                say::warn(format!("{}: it became shorter meanwhile; zeros stand for the rest", self.name.display()));
                self.short = true;
                want
            }
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) => return Err(unreadable(self.name, &e)),
        };
        block.truncate(from + n);
        self.left -= n as u64;
        Ok(())
    }
}

/// A header; before it the longer form of what does not fit into one.
fn entry(out: &mut Vec<u8>, name: &[u8], meta: Meta, kind: u8, size: u64, link: &[u8]) {
    let mut long = Vec::new();
    let mut say = |key: &str, value: &[u8]| {
        // A record counts its own length's digits.
        let rest = key.len() + value.len() + 3;
        let mut len = rest + 1;
        while len != rest + len.to_string().len() {
            len += 1;
        }
        long.extend_from_slice(format!("{len} {key}=").as_bytes());
        long.extend_from_slice(value);
        long.push(b'\n');
    };
    if name.len() > MAX_NAME || !name.is_ascii() {
        say("path", name);
    }
    if link.len() > MAX_NAME || !link.is_ascii() {
        say("linkpath", link);
    }
    if size > MAX_SIZE {
        say("size", size.to_string().as_bytes());
    }
    if !(0..=MAX_SIZE as i64).contains(&meta.mtime) {
        say("mtime", meta.mtime.to_string().as_bytes());
    }
    if !long.is_empty() {
        let plain = Meta { mode: 0o644, mtime: 0, uid: 0, gid: 0 };
        header(out, b"PaxHeaders/entry", plain, b'x', long.len() as u64, b"");
        let padding = long.len().wrapping_neg() % RECORD;
        out.extend_from_slice(&long);
        out.resize(out.len() + padding, 0);
    }
    header(out, name, meta, kind, size, link);
}

fn header(out: &mut Vec<u8>, name: &[u8], meta: Meta, kind: u8, size: u64, link: &[u8]) {
    let mut h = [0u8; RECORD];
    let cut = |text: &[u8]| text[..text.len().min(MAX_NAME)].to_vec();
    let name = cut(name);
    h[..name.len()].copy_from_slice(&name);
    let link = cut(link);
    h[157..157 + link.len()].copy_from_slice(&link);
    octal(&mut h[100..108], u64::from(meta.mode & 0o7777));
    octal(&mut h[108..116], u64::from(meta.uid));
    octal(&mut h[116..124], u64::from(meta.gid));
    octal(&mut h[124..136], size);
    octal(&mut h[136..148], u64::try_from(meta.mtime).unwrap_or(0));
    h[156] = kind;
    h[257..265].copy_from_slice(b"ustar\x0000");
    h[148..156].fill(b' ');
    let sum: u64 = h.iter().map(|b| u64::from(*b)).sum();
    octal(&mut h[148..155], sum);
    out.extend_from_slice(&h);
}

/// As many digits as there is room before a NUL; zeros where it is too large, which a longer form says.
fn octal(field: &mut [u8], number: u64) {
    let digits = field.len() - 1;
    let text = format!("{number:0digits$o}");
    let text = if text.len() > digits { "0".repeat(digits) } else { text };
    field[..digits].copy_from_slice(text.as_bytes());
    field[digits] = 0;
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::transfer::archive::zip::tests::text;
    use crate::transfer::archive::{Effort, Format, write};
    use crate::transfer::select::{Wanted, select};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test asks other programs")]
    fn tar_reads_our_archives() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("p");
        fs::create_dir_all(root.join("d/e")).unwrap();
        fs::write(root.join("d/large"), text(3_000_001)).unwrap();
        fs::write(root.join("d/ü x"), "odd").unwrap();
        let long = format!("d/e/{}", "n".repeat(200));
        fs::write(root.join(&long), "long").unwrap();
        symlink("../".repeat(60), root.join("link")).unwrap();
        let files = select(&root, &Wanted { paths: vec![".".into()], ..Wanted::default() }).files;
        let mut bytes = Vec::new();
        write(Format::TarZstd, Effort::Default, &root, &files, &mut bytes).unwrap();
        let path = dir.path().join("a.tar.zst");
        fs::write(&path, bytes).unwrap();
        let to = dir.path().join("q");
        fs::create_dir(&to).unwrap();
        match std::process::Command::new("tar").arg("--zstd").arg("-xf").arg(&path).arg("-C").arg(&to).status() {
            Ok(status) if status.success() => {}
            other => return eprintln!("skipped: tar --zstd: {other:?}"),
        }
        assert!(fs::read(to.join("d/large")).unwrap() == text(3_000_001));
        assert_eq!(fs::read_to_string(to.join("d/ü x")).unwrap(), "odd");
        assert_eq!(fs::read_to_string(to.join(long)).unwrap(), "long");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new(&"../".repeat(60)));
    }
}
