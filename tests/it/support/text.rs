//! What a job's log says: GitLab's line framing (build §8.4), colours and section markers taken off.

/// The job's own bytes from a log whose lines may begin with `TIME STREAM[OE][ +]`; a `+` goes on
/// with the line before.
pub(crate) fn unframe(log: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(log.len());
    let mut first = true;
    for line in log.split(|b| *b == b'\n') {
        if !first {
            out.push(b'\n');
        }
        first = false;
        match frame(line) {
            Some((true, rest)) => {
                if out.last() == Some(&b'\n') {
                    out.pop();
                }
                out.extend_from_slice(rest);
            }
            Some((false, rest)) => out.extend_from_slice(rest),
            None => out.extend_from_slice(line),
        }
    }
    out
}

/// Whether a framed line goes on with the one before, and its text.
fn frame(line: &[u8]) -> Option<(bool, &[u8])> {
    let (head, rest) = line.split_at_checked(32)?;
    let digits = |from: usize, to: usize| head[from..to].iter().all(u8::is_ascii_digit);
    let shape = digits(0, 4) && head[4] == b'-' && head[10] == b'T' && digits(20, 26) && &head[26..28] == b"Z ";
    let stream = head[28..30].iter().all(u8::is_ascii_hexdigit) && matches!(head[30], b'O' | b'E');
    (shape && stream && matches!(head[31], b' ' | b'+')).then_some((head[31] == b'+', rest))
}

/// The log as a person reads it.
pub(crate) fn plain(log: &[u8]) -> String {
    let text = unframe(log);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = &text[..];
    while let Some(&byte) = rest.first() {
        if let Some(after) = section(rest).or_else(|| colour(rest)) {
            rest = after;
        } else {
            out.push(byte);
            rest = &rest[1..];
        }
    }
    String::from_utf8_lossy(&out).replace("\r\n", "\n")
}

/// What follows `ESC[…X`.
fn colour(text: &[u8]) -> Option<&[u8]> {
    let rest = text.strip_prefix(b"\x1b[")?;
    let end = rest.iter().position(|b| !b.is_ascii_digit() && *b != b';')?;
    Some(&rest[end + 1..])
}

/// What follows `section_start:…\r` or `section_end:…\r`.
fn section(text: &[u8]) -> Option<&[u8]> {
    let rest = text.strip_prefix(b"section_start:").or_else(|| text.strip_prefix(b"section_end:"))?;
    let end = rest.iter().position(|b| matches!(b, b'\r' | b'\n'))?;
    (rest[end] == b'\r').then(|| &rest[end + 1..])
}

#[test]
fn a_framed_log_reads_as_the_job_printed_it() {
    let log = b"2026-01-02T03:04:05.000006Z 00O one\n2026-01-02T03:04:05.000006Z 01O two \n2026-01-02T03:04:05.000006Z 01O+goes on\nbare\n";
    assert_eq!(unframe(log), b"one\ntwo goes on\nbare\n");
    assert_eq!(plain(b"section_start:1:x\r\x1b[0K\x1b[0;33mWARNING: w\x1b[0;m\n"), "WARNING: w\n");
}
