//! Invalid UTF-8 becomes U+FFFD, one for each run of bytes that can be no character. A character cut in
//! two by writes is put together; nothing else waits.

use std::str;

const REPLACEMENT: &[u8] = "\u{FFFD}".as_bytes();

/// How far one stream has come: the start of a character.
#[derive(Debug, Default)]
pub(super) struct Repair {
    open: Vec<u8>,
}

impl Repair {
    pub(super) fn pass<'a>(&mut self, bytes: &'a [u8], joined: &'a mut Vec<u8>, out: &'a mut Vec<u8>) -> &'a [u8] {
        let mut text = bytes;
        if !self.open.is_empty() && !bytes.is_empty() {
            joined.clear();
            joined.append(&mut self.open);
            joined.extend_from_slice(bytes);
            text = joined;
        }
        let Err(first) = str::from_utf8(text) else { return text };
        if first.error_len().is_none() {
            let (whole, open) = text.split_at(first.valid_up_to());
            self.open.extend_from_slice(open);
            return whole;
        }
        out.clear();
        let mut chunks = text.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            out.extend_from_slice(chunk.valid().as_bytes());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none()) {
                self.open.extend_from_slice(invalid);
            } else if !invalid.is_empty() {
                out.extend_from_slice(REPLACEMENT);
            }
        }
        out
    }

    /// The stream is over.
    pub(super) fn end(&mut self) -> &'static [u8] {
        let open = !self.open.is_empty();
        self.open.clear();
        if open { REPLACEMENT } else { b"" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&[u8]], want: &str) {
        let (mut repair, mut joined, mut out) = (Repair::default(), Vec::new(), Vec::new());
        let mut got = Vec::new();
        for piece in pieces {
            got.extend_from_slice(repair.pass(piece, &mut joined, &mut out));
        }
        got.extend_from_slice(repair.end());
        assert_eq!(String::from_utf8(got).unwrap(), want, "{pieces:?}");
    }

    #[test]
    fn what_is_no_character_is_replaced() {
        check(&[b"plain \xc3\xa9"], "plain é");
        check(&[b"a\xffb\xc0\n"], "a\u{FFFD}b\u{FFFD}\n");
        check(&[b"\xe2\x82", b"\xac"], "€");
        check(&[b"\xe2", b"", b"\x82", b"\xac\xe2\x82\xac"], "€€");
        check(&[b"\xff \xe2", b"\x82\xac"], "\u{FFFD} €");
        check(&[b"\xe2\x82", b"x"], "\u{FFFD}x");
        check(&[b"\xe2\x82"], "\u{FFFD}");
    }
}
