//! Zip archives, made by all processors: the files are cut into blocks, the blocks are compressed side by
//! side, and written in their order. A file of one block has its sizes before its data; a larger one is
//! made as it comes, its sizes behind it, its blocks knowing the bytes before them as a dictionary. So
//! neither a file nor the archive is ever held whole. The ready-made writers compress one entry after the
//! other, on one processor.

mod press;
mod record;

use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::slice::Iter;
use std::sync::Arc;

use crc32fast::Hasher;
use parking_lot::Mutex;

use super::meta::{self, Kind, Meta};
use super::{Error, vanished};
use crate::transfer::ordered::in_order;
use press::{Body, Done, Piece, Press, Task};
use record::{Directory, Entry, Sizes};

/// What is compressed at a time; smaller files share a task.
const BLOCK: u64 = 256 << 10;

#[derive(Clone, Copy, Debug)]
pub(super) enum Coding {
    Deflate(u32),
    Zstd(i32),
}

pub(super) fn write(
    coding: Coding,
    threads: usize,
    root: &Path,
    files: &[PathBuf],
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut plan = Plan { root, files: files.iter(), large: None };
    let mut zip = Zip { out, at: 0, directory: Directory::default(), open: None };
    // Output buffers go round, so that the allocator is left alone.
    let spare: Mutex<Vec<Vec<u8>>> = Mutex::default();
    in_order(
        threads,
        || Press::new(coding, root),
        |press, task: Task| press.work(task, spare.lock().pop().unwrap_or_default()),
        || plan.next(),
        |result: Result<Done, Error>| {
            let mut done = result?;
            zip.add(&mut done)?;
            done.bytes.clear();
            spare.lock().push(done.bytes);
            Ok(())
        },
    )?;
    zip.finish()
}

// ---- What is to be done ------------------------------------------------------------------------

struct Plan<'a> {
    root: &'a Path,
    files: Iter<'a, PathBuf>,
    large: Option<Large>,
}

/// A file of more than one block, of which `at` bytes are given out.
struct Large {
    entry: Entry,
    file: Arc<File>,
    at: u64,
    size: u64,
}

impl Plan<'_> {
    /// Some small files, or one block of a large one.
    fn next(&mut self) -> Result<Option<Task>, Error> {
        if self.large.is_some() {
            return Ok(self.block());
        }
        let (mut task, mut bytes) = (Task::default(), 0);
        while bytes < BLOCK && task.pieces.len() < 256 {
            let Some(name) = self.files.next() else { break };
            let Some((meta, kind)) = meta::look(self.root, name)? else {
                vanished(name);
                continue;
            };
            let entry = |meta: Meta| Entry::new(name.as_os_str().as_bytes(), meta);
            match kind {
                Kind::Dir => task.pieces.push(Piece { entry: entry(meta), body: Body::Plain(Vec::new()) }),
                Kind::Link(target) => task.pieces.push(Piece { entry: entry(meta), body: Body::Plain(target) }),
                Kind::File(size) if size <= BLOCK => {
                    bytes += size;
                    let body = Body::Whole { path: name.clone(), size };
                    task.pieces.push(Piece { entry: entry(meta), body });
                }
                Kind::File(size) => {
                    let file = Arc::new(meta::open(self.root, name)?);
                    self.large = Some(Large { entry: entry(meta), file, at: 0, size });
                    if task.pieces.is_empty() {
                        return Ok(self.block());
                    }
                    break;
                }
                Kind::Other => {}
            }
        }
        Ok((!task.pieces.is_empty()).then_some(task))
    }

    fn block(&mut self) -> Option<Task> {
        let large = self.large.as_mut()?;
        let len = BLOCK.min(large.size - large.at);
        let body = Body::Part {
            file: large.file.clone(),
            at: large.at,
            len,
            size: large.size,
            last: large.at + len == large.size,
        };
        let entry = large.entry.clone();
        large.at += len;
        if large.at == large.size {
            self.large = None;
        }
        Some(Task { pieces: vec![Piece { entry, body }] })
    }
}

// ---- What comes of it --------------------------------------------------------------------------

struct Zip<'a> {
    out: &'a mut dyn Write,
    /// Bytes written.
    at: u64,
    directory: Directory,
    /// The large file that is being written.
    open: Option<Open>,
}

struct Open {
    offset: u64,
    crc: Hasher,
    sizes: Sizes,
}

impl Zip<'_> {
    fn add(&mut self, done: &mut Done) -> Result<(), Error> {
        let mut from = 0;
        for item in std::mem::take(&mut done.items) {
            let packed = &done.bytes[from..from + item.packed];
            from += item.packed;
            let entry = &item.entry;
            let Some(part) = item.part else {
                let sizes = Sizes { raw: item.raw, packed: item.packed as u64 };
                self.directory.add(entry, item.method, item.crc.clone().finalize(), sizes, self.at);
                let head = entry.local(item.method, item.crc.finalize(), sizes);
                self.put(&head)?;
                self.put(packed)?;
                continue;
            };
            if self.open.is_none() {
                self.open = Some(Open { offset: self.at, crc: Hasher::new(), sizes: Sizes::default() });
                let head = entry.local_ahead(item.method, part.size);
                self.put(&head)?;
            }
            self.put(packed)?;
            let open = self.open.as_mut().expect("it was opened above");
            open.crc.combine(&item.crc);
            open.sizes.raw += item.raw;
            open.sizes.packed += item.packed as u64;
            if part.last {
                let Open { offset, crc, sizes } = self.open.take().expect("it was opened above");
                let crc = crc.finalize();
                let tail = record::descriptor(crc, sizes, part.size);
                self.put(&tail)?;
                self.directory.add_streamed(entry, item.method, crc, sizes, offset);
            }
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes).map_err(Error::Output)
    }

    fn finish(self) -> Result<(), Error> {
        let end = self.directory.end(self.at);
        self.out.write_all(self.directory.bytes()).map_err(Error::Output)?;
        self.out.write_all(&end).map_err(Error::Output)
    }
}

#[cfg(test)]
pub(in crate::transfer) mod tests;
