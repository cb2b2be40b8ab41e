//! The body of an upload: a form with one part, whose content is the archive as it is made. A thread makes
//! it, a few pieces ahead of the connection; nothing of it is kept.

use std::io::{self, Cursor, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::process::threads::named;
use crate::transfer::archive::{self, Effort, Error, Format};

/// What goes from thread to thread at a time.
const PIECE: usize = 64 << 10;
/// Pieces that may wait for the connection.
const AHEAD: usize = 8;

/// What is packed.
#[derive(Debug)]
pub(super) struct Pack {
    pub(super) format: Format,
    pub(super) effort: Effort,
    pub(super) root: PathBuf,
    pub(super) files: Vec<PathBuf>,
}

impl Pack {
    pub(super) fn measure(&self) -> Result<u64, Error> {
        archive::measure(self.format, self.effort, &self.root, &self.files)
    }
}

/// What stands before and behind the archive.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub(super) boundary: String,
    pub(super) filename: String,
}

impl Form {
    fn head(&self) -> String {
        // As Go's library escapes it.
        let name = self.filename.replace('\\', "\\\\").replace('"', "\\\"").replace(['\r', '\n'], "_");
        format!(
            "--{}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n",
            self.boundary
        )
    }

    fn tail(&self) -> String {
        format!("\r\n--{}--\r\n", self.boundary)
    }

    /// Of the whole body.
    pub(super) fn length(&self, archive: u64) -> u64 {
        archive + (self.head().len() + self.tail().len()) as u64
    }
}

/// Why an archive could not be made, for whom the connection's error says nothing.
pub(super) type Trouble = Arc<Mutex<Option<String>>>;

/// The body, from its beginning. `length`: what was promised of it.
pub(super) fn open(pack: &Arc<Pack>, form: &Form, length: Option<u64>, trouble: &Trouble) -> io::Result<Box<dyn Read>> {
    let archive = Archive::start(pack.clone(), trouble.clone())?;
    let body = Cursor::new(form.head()).chain(archive).chain(Cursor::new(form.tail()));
    Ok(match length {
        None => Box::new(body),
        Some(length) => Box::new(Exact { body, left: length, trouble: trouble.clone() }),
    })
}

/// The archive, as its thread makes it.
struct Archive {
    /// `None`: nobody wants more.
    pieces: Option<Receiver<Vec<u8>>>,
    now: Cursor<Vec<u8>>,
    maker: Option<JoinHandle<Result<(), Error>>>,
    trouble: Trouble,
}

impl Archive {
    fn start(pack: Arc<Pack>, trouble: Trouble) -> io::Result<Archive> {
        let (give, pieces) = bounded(AHEAD);
        let maker = named("archive", move || {
            let mut out = Pieces { give, now: Vec::with_capacity(PIECE) };
            archive::write(pack.format, pack.effort, &pack.root, &pack.files, &mut out)?;
            out.hand_over().map_err(Error::Output)
        })?;
        Ok(Archive { pieces: Some(pieces), now: Cursor::default(), maker: Some(maker), trouble })
    }

    /// After the last piece: whether the archive is whole.
    fn end(&mut self) -> io::Result<()> {
        let why = match self.maker.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => return Ok(()),
            Some(Ok(Err(e))) => e.to_string(),
            Some(Err(_)) => "the archive's thread panicked".to_owned(),
        };
        *self.trouble.lock() = Some(why.clone());
        Err(io::Error::other(why))
    }
}

impl Read for Archive {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.now.read(into)?;
            if n > 0 || into.is_empty() {
                return Ok(n);
            }
            match self.pieces.as_ref().map(Receiver::recv) {
                Some(Ok(piece)) => self.now = Cursor::new(piece),
                _ => {
                    self.pieces = None;
                    return self.end().map(|()| 0);
                }
            }
        }
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        // The thread's next piece finds nobody, and it ends.
        self.pieces = None;
        if let Some(maker) = self.maker.take() {
            let _ = maker.join();
        }
    }
}

struct Pieces {
    give: Sender<Vec<u8>>,
    now: Vec<u8>,
}

impl Pieces {
    fn hand_over(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.now, Vec::with_capacity(PIECE));
        self.give.send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(PIECE - self.now.len());
        self.now.extend_from_slice(&bytes[..n]);
        if self.now.len() == PIECE {
            self.hand_over()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A body whose length was told before. Its last bytes are given out only when it ends there: an archive
/// that came out longer or shorter is no archive.
struct Exact<R> {
    body: R,
    left: u64,
    trouble: Trouble,
}

impl<R: Read> Read for Exact<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let n = self.body.read(&mut into[..want])?;
        self.left -= n as u64;
        let ended = n == 0 && want > 0;
        if ended || self.left == 0 && n > 0 && self.body.read(&mut [0])? > 0 {
            let why = "the files changed while the archive was made";
            *self.trouble.lock() = Some(why.to_owned());
            return Err(io::Error::other(why));
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(files: &[&str], length: Option<u64>, trouble: &Trouble) -> io::Result<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "content").unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        let files = files.iter().map(PathBuf::from).collect();
        let pack = Pack { format: Format::Raw, effort: Effort::Default, root: dir.path().to_owned(), files };
        let form = Form { boundary: "B".to_owned(), filename: "f \"q\".zip".to_owned() };
        let mut out = Vec::new();
        open(&Arc::new(pack), &form, length, trouble)?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn the_form_has_one_part() {
        let got = body(&["f"], None, &Trouble::default()).unwrap();
        let want = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f \\\"q\\\".zip\"\r\n\
                    Content-Type: application/octet-stream\r\n\r\ncontent\r\n--B--\r\n";
        assert_eq!(String::from_utf8(got).unwrap(), want);
        assert_eq!(body(&["f"], Some(want.len() as u64), &Trouble::default()).unwrap(), want.as_bytes());
    }

    #[test]
    fn an_archive_that_cannot_be_made_is_no_end() {
        let trouble = Trouble::default();
        body(&["d"], None, &trouble).unwrap_err();
        assert_eq!(trouble.lock().as_deref(), Some("the \"d\" is not a regular file"));
        let whole = body(&["f"], None, &Trouble::default()).unwrap().len() as u64;
        for length in [whole - 1, whole + 1] {
            let trouble = Trouble::default();
            body(&["f"], Some(length), &trouble).unwrap_err();
            assert_eq!(trouble.lock().as_deref(), Some("the files changed while the archive was made"));
        }
    }
}
