//! Cuts a stream of bytes into lines, for forges whose tap reads them. Pure.

/// A line longer than this comes in parts, which are no commands.
const LONGEST: usize = 4 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A whole line, without its end.
    Line(&'a [u8]),
    /// A part of an endless line; `last`: the line ends here.
    Part { text: &'a [u8], last: bool },
}

#[derive(Debug, Default)]
pub(super) struct Cutter {
    half: Vec<u8>,
    /// Inside a line of which parts were given out.
    endless: bool,
}

impl Cutter {
    pub(super) fn push(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Piece<'_>)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.half.is_empty() {
                self.line(line, each);
            } else {
                self.half.extend_from_slice(line);
                let whole = std::mem::take(&mut self.half);
                self.line(&whole, each);
            }
            bytes = rest;
        }
        self.half.extend_from_slice(bytes);
        if self.half.len() > LONGEST {
            each(Piece::Part { text: &self.half, last: false });
            self.half.clear();
            self.endless = true;
        }
    }

    /// The stream is over: a last line without its end is a line.
    pub(super) fn finish(&mut self, each: &mut dyn FnMut(Piece<'_>)) {
        let half = std::mem::take(&mut self.half);
        if !half.is_empty() || self.endless {
            self.line(&half, each);
        }
    }

    fn line(&mut self, line: &[u8], each: &mut dyn FnMut(Piece<'_>)) {
        if std::mem::take(&mut self.endless) {
            each(Piece::Part { text: line, last: true });
        } else {
            each(Piece::Line(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(writes: &[&str], want: &[&str]) {
        let mut got = Vec::new();
        let mut each = |piece: Piece<'_>| match piece {
            Piece::Line(l) => got.push(String::from_utf8_lossy(l).into_owned()),
            Piece::Part { text, last } => got.push(format!("part of {} {last}", text.len())),
        };
        let mut cutter = Cutter::default();
        for write in writes {
            cutter.push(write.as_bytes(), &mut each);
        }
        cutter.finish(&mut each);
        assert_eq!(got, want);
    }

    #[test]
    fn output_is_cut_into_lines_wherever_the_reads_end() {
        check(&[], &[]);
        check(&["a\nb\n"], &["a", "b"]);
        check(&["a", "b\n\nc"], &["ab", "", "c"]);
        check(&["a\r\n"], &["a\r"]);
        let long = "x".repeat(LONGEST + 1);
        check(&[&long, "::stop::\nnext\n"], &["part of 4194305 false", "part of 8 true", "next"]);
        check(&[&long], &["part of 4194305 false", "part of 0 true"]);
    }
}
