//! GitLab's line framing (FF_TIMESTAMPS, build §8.4): time, stream, and whether a line goes on, before
//! every line. Never changes what a line says, never holds a line that is complete.

use std::time::{SystemTime, UNIX_EPOCH};

use memchr::{memchr, memrchr};

use super::log::store::Store;

/// Half a line may be so long before it is stored as a line of its own.
const LONGEST_HALF: usize = 8 * 1024;
pub(super) const HEADER: usize = 32;
const TIME: usize = 27;

/// One stream of lines.
#[derive(Debug)]
pub(super) struct Frame {
    /// `00O`, `01E`, …
    id: [u8; 3],
    /// The line before was cut: what comes next continues it.
    continues: bool,
    half: Vec<u8>,
    /// When `half` began.
    since: Stamp,
}

/// A time as it stands in a header: `2026-11-30T13:59:36.742968Z`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp([u8; TIME]);

/// Makes stamps; remembers the text of the last second.
#[derive(Debug)]
pub(super) struct Clock {
    second: u64,
    stamp: Stamp,
}

impl Frame {
    pub(super) fn new(id: [u8; 3]) -> Frame {
        Frame { id, continues: false, half: Vec::new(), since: Stamp([b'0'; TIME]) }
    }

    /// One write.
    pub(super) fn write(&mut self, bytes: &[u8], now: Stamp, store: &mut Store) {
        let lines = memrchr(b'\n', bytes).map_or(0, |n| n + 1);
        let (mut lines, rest) = bytes.split_at(lines);
        if !lines.is_empty() && (self.continues || !self.half.is_empty()) {
            let end = memchr(b'\n', lines).expect("complete lines end in a newline") + 1;
            let first;
            (first, lines) = lines.split_at(end);
            self.put_half(first, now, store);
            self.continues = false;
        }
        let header = self.header(now);
        while !lines.is_empty() {
            let end = memchr(b'\n', lines).map_or(lines.len(), |n| n + 1);
            let line;
            (line, lines) = lines.split_at(end);
            store.put_line(&header, line);
        }
        if memchr(b'\r', rest).is_some() || self.half.len() + rest.len() > LONGEST_HALF {
            self.put_half(rest, now, store);
            store.put(b"\n");
            self.continues = true;
        } else if !rest.is_empty() {
            if self.half.is_empty() {
                self.since = now;
            }
            self.half.extend_from_slice(rest);
        }
    }

    /// Nothing more comes for now: half a line becomes one.
    pub(super) fn flush(&mut self, now: Stamp, store: &mut Store) {
        if !self.half.is_empty() {
            self.put_half(b"\n", now, store);
            self.continues = true;
        }
    }

    fn put_half(&mut self, more: &[u8], now: Stamp, store: &mut Store) {
        let since = if self.half.is_empty() { now } else { self.since };
        store.put_line(&self.header(since), &self.half);
        store.put(more);
        self.half.clear();
    }

    fn header(&self, time: Stamp) -> [u8; HEADER] {
        let mut header = [b' '; HEADER];
        header[..TIME].copy_from_slice(&time.0);
        header[TIME + 1..HEADER - 1].copy_from_slice(&self.id);
        header[HEADER - 1] = if self.continues { b'+' } else { b' ' };
        header
    }
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { second: 0, stamp: Stamp(*b"1970-01-01T00:00:00.000000Z") }
    }

    pub(super) fn stamp(&mut self, at: SystemTime) -> Stamp {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        if since.as_secs() != self.second {
            self.second = since.as_secs();
            let (year, month, day) = crate::clock::date(self.second / 86_400);
            let text = &mut self.stamp.0;
            digits(&mut text[0..4], year);
            digits(&mut text[5..7], month);
            digits(&mut text[8..10], day);
            digits(&mut text[11..13], self.second / 3600 % 24);
            digits(&mut text[14..16], self.second / 60 % 60);
            digits(&mut text[17..19], self.second % 60);
        }
        digits(&mut self.stamp.0[20..26], u64::from(since.subsec_micros()));
        self.stamp
    }
}

fn digits(text: &mut [u8], mut value: u64) {
    for place in text.iter_mut().rev() {
        *place = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_is_told_in_utc_to_the_microsecond() {
        let check = |micros: u64, want: &str| {
            let mut clock = Clock::new();
            clock.stamp(UNIX_EPOCH + Duration::from_secs(86_400 * 12_345));
            let stamp = clock.stamp(UNIX_EPOCH + Duration::from_micros(micros));
            assert_eq!(std::str::from_utf8(&stamp.0).unwrap(), want);
        };
        check(0, "1970-01-01T00:00:00.000000Z");
        check(951_868_799_999_999, "2000-02-29T23:59:59.999999Z");
        check(951_868_800_000_000, "2000-03-01T00:00:00.000000Z");
        check(1_735_689_599_000_010, "2024-12-31T23:59:59.000010Z");
        check(1_796_047_176_742_968, "2026-11-30T13:59:36.742968Z");
        check(4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z");
    }
}
