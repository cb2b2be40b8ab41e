//! Making archives: the formats, their levels, and [`write()`], which sends one into any `io::Write` from
//! beginning to end. Nothing is kept on disk, and in memory only what is under way; the same files give
//! the same bytes, so that an archive can be made a second time for a server that must know its length.

mod gzip;
mod meta;
mod tar;
pub(in crate::transfer) mod zip;

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::ordered;
use super::say;

/// The container, as `artifact_format` and `CACHE_COMPRESSION_FORMAT` name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Zip,
    /// Zip whose entries are compressed by zstd.
    ZipZstd,
    TarZstd,
    /// Gzip members, one a file, one after the other: what reports are sent as.
    Gzip,
    /// One file as it is.
    Raw,
}

impl Format {
    /// Case does not matter; nothing is zip.
    pub fn from_name(name: &str) -> Option<Format> {
        Some(match name.to_ascii_lowercase().as_str() {
            "" | "zip" => Format::Zip,
            "zipzstd" => Format::ZipZstd,
            "tarzstd" => Format::TarZstd,
            "gzip" => Format::Gzip,
            "raw" => Format::Raw,
            _ => return None,
        })
    }

    /// What a file of this format is called after its base name.
    pub fn suffix(self) -> &'static str {
        match self {
            Format::Zip | Format::ZipZstd => ".zip",
            Format::TarZstd => ".tar.zst",
            Format::Gzip => ".gz",
            Format::Raw => "",
        }
    }
}

/// How hard to try, as `ARTIFACT_COMPRESSION_LEVEL` and `CACHE_COMPRESSION_LEVEL` name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    Fastest,
    Fast,
    #[default]
    Default,
    Slow,
    Slowest,
}

impl Effort {
    pub fn from_name(name: &str) -> Option<Effort> {
        Some(match name.to_ascii_lowercase().as_str() {
            "fastest" => Effort::Fastest,
            "fast" => Effort::Fast,
            "" | "default" => Effort::Default,
            "slow" => Effort::Slow,
            "slowest" => Effort::Slowest,
            _ => return None,
        })
    }

    /// Level of deflate; 0 only stores.
    fn deflate(self) -> u32 {
        match self {
            Effort::Fastest => 0,
            Effort::Fast => 1,
            Effort::Default => 5,
            Effort::Slow => 7,
            Effort::Slowest => 9,
        }
    }

    fn zstd(self) -> i32 {
        match self {
            Effort::Fastest => 1,
            Effort::Fast => 2,
            Effort::Default => 3,
            Effort::Slow => 7,
            Effort::Slowest => 12,
        }
    }
}

/// Why there is no archive.
#[derive(Debug)]
pub enum Error {
    /// The files cannot be packed as they are; the text names one.
    Input(String),
    /// Where the archive goes takes no more.
    Output(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Input(text) => f.write_str(text),
            Error::Output(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

/// The archive of `files`, which are relative to `root` and sorted.
pub fn write(format: Format, effort: Effort, root: &Path, files: &[PathBuf], out: &mut dyn Write) -> Result<(), Error> {
    let threads = ordered::workers();
    match format {
        Format::Zip => zip::write(zip::Coding::Deflate(effort.deflate()), threads, root, files, out),
        Format::ZipZstd => zip::write(zip::Coding::Zstd(effort.zstd()), threads, root, files, out),
        Format::TarZstd => tar::write(effort.zstd(), threads, root, files, out),
        Format::Gzip => gzip::write(effort.deflate(), root, files, out),
        Format::Raw => raw(root, files, out),
    }
}

/// How many bytes [`write()`] would make, by making them.
pub fn measure(format: Format, effort: Effort, root: &Path, files: &[PathBuf]) -> Result<u64, Error> {
    let mut count = Count(0);
    write(format, effort, root, files, &mut count)?;
    Ok(count.0)
}

struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn raw(root: &Path, files: &[PathBuf], out: &mut dyn Write) -> Result<(), Error> {
    let [name] = files else {
        return Err(Error::Input("only one file can be sent as raw".to_owned()));
    };
    let (mut file, _) = open_regular(root, name)?;
    copy(name, &mut file, out)
}

/// `file` into `out` with one buffer, errors of either told apart.
fn copy(name: &Path, file: &mut File, out: &mut dyn Write) -> Result<(), Error> {
    let mut buffer = vec![0; 128 << 10];
    loop {
        let n = io::Read::read(file, &mut buffer).map_err(|e| unreadable(name, &e))?;
        if n == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..n]).map_err(Error::Output)?;
    }
}

/// For formats that know files only.
fn open_regular(root: &Path, name: &Path) -> Result<(File, meta::Meta), Error> {
    match meta::look(root, name)? {
        Some((meta, meta::Kind::File(_))) => Ok((meta::open(root, name)?, meta)),
        _ => Err(Error::Input(format!("the {:?} is not a regular file", name.display().to_string()))),
    }
}

fn unreadable(name: &Path, e: &io::Error) -> Error {
    Error::Input(format!("{}: {e}", name.display()))
}

/// A file that was selected and is no more. The others are still wanted.
fn vanished(name: &Path) {
    say::warn(format!("{}: it is gone, so it is not in the archive", name.display()));
}
