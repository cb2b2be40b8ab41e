//! The data of zip entries: found by their local headers, decompressed, their checksums compared. One
//! thread's tools, used again for each entry.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;

use crc32fast::Hasher;
use flate2::{Decompress, FlushDecompress, Status};

use super::super::unpack::Filling;
use super::directory::{Item, Method, Section, u16_at};

const IN: usize = 64 << 10;
const OUT: usize = 256 << 10;

pub(super) struct Unpacker<'a> {
    archive: &'a File,
    /// Where data ends.
    end: u64,
    state: Decompress,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl<'a> Unpacker<'a> {
    pub(super) fn new(archive: &'a File, end: u64) -> Unpacker<'a> {
        Unpacker { archive, end, state: Decompress::new(false), input: vec![0; IN], output: vec![0; OUT] }
    }

    /// All of the entry's data into its file.
    pub(super) fn fill(&mut self, item: &Item, file: File) -> Result<File, String> {
        let mut filling = Filling::new(file, item.raw);
        let mut crc = Hasher::new();
        self.decode(item, |bytes| {
            crc.update(bytes);
            filling.put(bytes)
        })?;
        let file = filling.finish()?;
        if crc.finalize() != item.crc {
            return Err("its checksum is wrong".to_owned());
        }
        Ok(file)
    }

    /// A link's target.
    pub(super) fn small(&mut self, item: &Item) -> Result<Vec<u8>, String> {
        let mut target = Vec::new();
        self.decode(item, |bytes| {
            target.extend_from_slice(bytes);
            if target.len() as u64 > item.raw { Err("it holds more than it declares".to_owned()) } else { Ok(()) }
        })?;
        Ok(target)
    }

    fn decode(&mut self, item: &Item, mut put: impl FnMut(&[u8]) -> Result<(), String>) -> Result<(), String> {
        let mut data = self.data(item)?;
        match item.method {
            Method::Stored => read_all(&mut data, &mut self.output, put),
            Method::Deflated => self.inflate(&mut data, &mut put),
            Method::Zstd => {
                let data = BufReader::with_capacity(IN, data);
                let mut decoder = zstd::stream::read::Decoder::with_buffer(data).map_err(|e| e.to_string())?;
                read_all(&mut decoder, &mut self.output, put)
            }
            Method::Unknown(n) => Err(format!("it is compressed by method {n}, which is not known here")),
        }
    }

    /// Behind the local header, whose name and extra fields have lengths of their own.
    fn data(&self, item: &Item) -> Result<Section<'a>, String> {
        let mut head = [0; 30];
        let wrong = || "its header is damaged".to_owned();
        self.archive.read_exact_at(&mut head, item.offset).map_err(|_| wrong())?;
        let at = item.offset + 30 + u64::from(u16_at(&head, 26)) + u64::from(u16_at(&head, 28));
        let inside = at.checked_add(item.packed).is_some_and(|end| end <= self.end);
        if !head.starts_with(b"PK\x03\x04") || !inside {
            return Err(wrong());
        }
        Ok(Section { file: self.archive, at, left: item.packed })
    }

    fn inflate(
        &mut self,
        data: &mut Section<'_>,
        put: &mut impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        self.state.reset(false);
        let (mut have, mut used) = (0, 0);
        loop {
            if used == have {
                (have, used) = (data.read(&mut self.input).map_err(|e| e.to_string())?, 0);
            }
            let (before_in, before_out) = (self.state.total_in(), self.state.total_out());
            let status = self
                .state
                .decompress(&self.input[used..have], &mut self.output, FlushDecompress::None)
                .map_err(|e| format!("its data is damaged: {e}"))?;
            used += (self.state.total_in() - before_in) as usize;
            let made = (self.state.total_out() - before_out) as usize;
            put(&self.output[..made])?;
            if status == Status::StreamEnd {
                return Ok(());
            }
            if made == 0 && have == 0 {
                return Err("its data ends too early".to_owned());
            }
        }
    }
}

fn read_all(
    from: &mut dyn Read,
    buffer: &mut [u8],
    mut put: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<(), String> {
    loop {
        match from.read(buffer).map_err(|e| format!("its data is damaged: {e}"))? {
            0 => return Ok(()),
            n => put(&buffer[..n])?,
        }
    }
}
