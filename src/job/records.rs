//! `records.jsonl`: one row a fact, each by one append, so that a reader sees whole rows and at most one
//! unfinished last one. The loop and the pump share it; neither waits for anything but the disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use parking_lot::Mutex;

use crate::forge::Record;

#[derive(Debug)]
pub(super) struct Records {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    /// Bytes of whole rows.
    length: u64,
    lost: u64,
    error: Option<io::Error>,
}

impl Records {
    /// The file appears with the first row: forges without steps have none.
    pub(super) fn new(path: PathBuf) -> Records {
        Records { path, state: Mutex::default() }
    }

    pub(super) fn append(&self, record: &Record) {
        let mut state = self.state.lock();
        if let Err(e) = self.write(&mut state, record) {
            state.lost += 1;
            state.error.get_or_insert(e);
        }
    }

    /// What a full disk swallowed.
    pub(super) fn lost(&self) -> Option<String> {
        let state = self.state.lock();
        let error = state.error.as_ref()?;
        Some(format!("{} records were not stored: {error}", state.lost))
    }

    fn write(&self, state: &mut State, record: &Record) -> io::Result<()> {
        let mut row = serde_json::to_vec(record)?;
        row.push(b'\n');
        if state.file.is_none() {
            let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
            state.length = file.metadata()?.len();
            state.file = Some(file);
        }
        let file = state.file.as_mut().expect("it was opened just now");
        if let Err(e) = file.write_all(&row) {
            // Half a row in the middle would spoil the next one.
            let _ = file.set_len(state.length);
            return Err(e);
        }
        state.length += row.len() as u64;
        Ok(())
    }
}
