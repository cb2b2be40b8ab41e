//! Which step the bytes of the log belong to: says when a row has to stand before them. Pure.

use std::collections::HashMap;

use crate::forge::{LogId, Record};

#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// Whose bytes came last; before the first of a step all belong to the job alone, with no row.
    current: LogId,
    /// Lines so far, by step.
    lines: HashMap<LogId, u64>,
}

impl Ranges {
    /// The row that has to be appended before bytes of `log` are stored at `offset`, if any.
    pub(super) fn before(&mut self, log: LogId, offset: u64) -> Option<Record> {
        if log == self.current {
            return None;
        }
        self.current = log;
        Some(Record::Log { offset, step: log, line: self.next_line(log) })
    }

    /// The number of the next line of this step's log; the first is 1.
    pub(super) fn next_line(&self, log: LogId) -> u64 {
        self.lines.get(&log).copied().unwrap_or_default() + 1
    }

    pub(super) fn count(&mut self, log: LogId, lines: u64) {
        *self.lines.entry(log).or_default() += lines;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_stands_where_another_steps_bytes_begin() {
        let mut ranges = Ranges::default();
        let mut row = |log: u32, offset: u64, lines: u64| {
            let row = ranges.before(LogId(log), offset);
            ranges.count(LogId(log), lines);
            row.map(|r| serde_json::to_string(&r).unwrap())
        };
        assert_eq!(row(0, 0, 2), None);
        assert_eq!(row(3, 20, 1).unwrap(), r#"{"row":"log","offset":20,"step":3,"line":1}"#);
        assert_eq!(row(3, 30, 1), None);
        assert_eq!(row(0, 40, 1).unwrap(), r#"{"row":"log","offset":40,"step":0,"line":3}"#);
        assert_eq!(row(3, 50, 1).unwrap(), r#"{"row":"log","offset":50,"step":3,"line":3}"#);
    }
}
