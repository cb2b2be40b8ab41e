//! What is stored of some writes. The expected texts are those of a GitLab runner's logs.

use std::fs::{self, OpenOptions};
use std::time::Duration;

use super::*;

const HEADER: Source = Source::Voice(0);
const BODY: Source = Source::Voice(1);
const END: Source = Source::Voice(2);
const OUT: Source = Source::Stage(StageId(1), Stream::Out);
const ERR: Source = Source::Stage(StageId(1), Stream::Err);

fn framed() -> Format {
    Format { framing: Framing::Timestamps, repair_utf8: true, ..Format::default() }
}

fn bare() -> Format {
    Format { repair_utf8: true, ..Format::default() }
}

fn secrets(values: &[&str]) -> Vec<Secret> {
    values.iter().map(|v| Secret::new(*v)).collect()
}

/// Each write comes a second after the one before, the first at second 0.
fn write_all(log: &mut Log, writes: &[(Source, &[u8])]) {
    let mut at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_796_047_200_000_001);
    for (from, bytes) in writes {
        log.write(*from, bytes, at);
        at += Duration::from_secs(1);
    }
}

fn stored(format: &Format, masks: &[&str], writes: &[(Source, &[u8])]) -> Vec<u8> {
    let tmp = tempfile::NamedTempFile::new().unwrap();
    let mut log = Log::new(tmp.reopen().unwrap(), format.clone(), secrets(masks));
    write_all(&mut log, writes);
    log.finish();
    let bytes = fs::read(tmp.path()).unwrap();
    assert_eq!((bytes.len() as u64, log.lost()), (log.position(), None));
    bytes
}

/// `want` has the seconds of the time only.
fn check(format: &Format, masks: &[&str], writes: &[(Source, &[u8])], want: &[&str]) {
    let text = String::from_utf8(stored(format, masks, writes)).unwrap();
    let cut = |line: &str| match line.strip_prefix("2026-11-30T14:00:") {
        Some(rest) => [&rest[..2], rest[2..].strip_prefix(".000001Z").unwrap()].concat(),
        None => line.to_owned(),
    };
    let got: Vec<String> = text.split_inclusive('\n').map(cut).collect();
    assert_eq!(got, want, "{text}");
}

#[test]
fn lines_are_framed_by_source() {
    check(
        &framed(),
        &[],
        &[
            (HEADER, b"\x1b[0KRunning with\n"),
            (HEADER, b"\x1b[0K  on entry-0\n"),
            (BODY, b"section_start:1:prepare_script\r\x1b[0K"),
            (BODY, b"\x1b[0K\x1b[36;1mPreparing environment\x1b[0;m\x1b[0;m\n"),
            (OUT, b"Running on vm...\n"),
            (BODY, b"section_end:1:prepare_script\r\x1b[0K"),
            (BODY, b"section_start:1:step_script\r\x1b[0K"),
            (BODY, b"\x1b[0K\x1b[36;1mExecuting\x1b[0;m\x1b[0;m\n"),
            (ERR, b"err\n"),
            (OUT, b"out\nout2\n"),
            (BODY, b"section_end:1:step_script\r\x1b[0K"),
            (END, b"\x1b[32;1mJob succeeded\x1b[0;m\n"),
        ],
        &[
            "00 00O \x1b[0KRunning with\n",
            "01 00O \x1b[0K  on entry-0\n",
            "02 00O section_start:1:prepare_script\r\x1b[0K\n",
            "03 00O+\x1b[0K\x1b[36;1mPreparing environment\x1b[0;m\x1b[0;m\n",
            "04 01O Running on vm...\n",
            "05 00O section_end:1:prepare_script\r\x1b[0K\n",
            "06 00O+section_start:1:step_script\r\x1b[0K\n",
            "07 00O+\x1b[0K\x1b[36;1mExecuting\x1b[0;m\x1b[0;m\n",
            "08 01E err\n",
            "09 01O out\n",
            "09 01O out2\n",
            "10 00O section_end:1:step_script\r\x1b[0K\n",
            "11 00O \x1b[32;1mJob succeeded\x1b[0;m\n",
        ],
    );
}

#[test]
fn a_line_has_the_time_of_its_start() {
    let writes: &[(Source, &[u8])] = &[(OUT, b"abc"), (ERR, b"e"), (OUT, b"d"), (OUT, b"ef\ntail")];
    check(&framed(), &[], writes, &["00 01O abcdef\n", "03 01O tail\n", "01 01E e\n"]);
}

#[test]
fn half_a_line_with_a_carriage_return_is_stored_at_once() {
    let writes: &[(Source, &[u8])] = &[
        (OUT, b"10%\r50%\r100%\na\r\n"),
        (OUT, b"b\n10"),
        (OUT, b"%\r"),
        (OUT, b"50%\r"),
        (OUT, b"\n"),
        (OUT, b"c\n"),
    ];
    let want =
        ["00 01O 10%\r50%\r100%\n", "00 01O a\r\n", "01 01O b\n", "01 01O 10%\r\n", "03 01O+50%\r\n", "04 01O+\n"];
    check(&framed(), &[], writes, &[&want[..], &["05 01O c\n"]].concat());
}

#[test]
fn half_a_line_over_8_kib_is_stored_at_once() {
    let (long, more) = ("x".repeat(8192), "y".repeat(9000));
    let writes: &[(Source, &[u8])] = &[(OUT, long.as_bytes()), (OUT, more.as_bytes()), (OUT, b"\n"), (OUT, b"a\nb")];
    let first = format!("00 01O {long}{more}\n");
    check(&framed(), &[], writes, &[&first, "02 01O+\n", "03 01O a\n", "03 01O b\n"]);
}

#[test]
fn bare_bytes_are_stored_as_they_come() {
    let writes: &[(Source, &[u8])] = &[(BODY, b"section_end:1:a\r\x1b[0K"), (OUT, b"half"), (END, b"done\n")];
    check(&bare(), &[], writes, &["section_end:1:a\r\x1b[0Khalfdone\n"]);
}

#[test]
fn a_secret_is_masked_before_it_is_framed() {
    let writes: &[(Source, &[u8])] =
        &[(OUT, b"a hunter2-"), (ERR, b"secret\n"), (OUT, b"secret b\n"), (OUT, b"one\ntw"), (OUT, b"o hunter2-")];
    let want = ["01 01E secret\n", "00 01O a [MASKED] b\n", "04 01O [MASKED] hunter2-\n"];
    check(&framed(), &["hunter2-secret", "one\ntwo"], writes, &want);
}

#[test]
fn the_runners_own_statements_are_whole() {
    // A value that begins with the last byte of a section marker does not tear the marker.
    let writes: &[(Source, &[u8])] =
        &[(BODY, b"section_start:1:a\r\x1b[0K"), (OUT, b"x\n"), (BODY, b"Kay\n"), (BODY, b"half"), (END, b"end\n")];
    let want =
        ["00 00O section_start:1:a\r\x1b[0K\n", "01 01O x\n", "02 00O+[MASKED]\n", "03 00O half\n", "04 00O end\n"];
    check(&framed(), &["Kay"], writes, &want);
}

#[test]
fn a_value_that_becomes_secret_is_masked_at_once() {
    let tmp = tempfile::NamedTempFile::new().unwrap();
    let mut log = Log::new(tmp.reopen().unwrap(), bare(), secrets(&["secret", "new value"]));
    write_all(&mut log, &[(OUT, b"a new"), (ERR, b"b new")]);
    log.add_mask(&Secret::new("new line"));
    log.add_mask(&Secret::new("\n"));
    write_all(&mut log, &[(OUT, b" line "), (OUT, b"secret")]);
    log.close(OUT);
    log.finish();
    assert_eq!(fs::read_to_string(tmp.path()).unwrap(), "a b [MASKED] [MASKED]new");
}

#[test]
fn what_is_no_utf8_is_replaced_by_source() {
    let writes: &[(Source, &[u8])] =
        &[(OUT, b"a\xffb\xc0\n"), (OUT, b"\xe2\x82"), (ERR, b"\xac\n"), (OUT, b"\xac\n\xe2"), (BODY, b"\xe2\n")];
    let want =
        ["00 01O a\u{fffd}b\u{fffd}\n", "02 01E \u{fffd}\n", "03 01O €\n", "04 00O \u{fffd}\n", "04 01O \u{fffd}\n"];
    check(&framed(), &[], writes, &want);
}

#[test]
fn a_log_over_its_limit_ends_with_a_notice() {
    let notice = |limit: u64| {
        format!(
            "\n\x1b[33;1mJob's log exceeded limit of {limit} bytes.\n\
             Job execution will continue but no more output will be collected.\x1b[0;m\n"
        )
    };
    let check = |format: Format, limit: u64, writes: &[(Source, &[u8])], want: &str| {
        let got = stored(&Format { limit: Some(limit), ..format }, &[], writes);
        assert_eq!(String::from_utf8(got).unwrap(), want);
    };
    check(bare(), 10, &[(OUT, b"123456"), (OUT, b"789")], "123456789");
    check(bare(), 10, &[(OUT, b"123456"), (OUT, b"7890"), (END, b"end\n")], &format!("1234567890{}", notice(10)));
    check(bare(), 10, &[(OUT, b"123456"), (OUT, b"78901"), (END, b"end\n")], &format!("1234567890{}", notice(10)));
    check(bare(), 4, &[(OUT, "ab€x".as_bytes())], &format!("ab{}", notice(4)));
    check(bare(), 5, &[(OUT, "ab€x".as_bytes())], &format!("ab€{}", notice(5)));
    let header = "2026-11-30T14:00:00.000001Z 01O ";
    let lines: &[(Source, &[u8])] = &[(OUT, b"531\n532\n533\n")];
    check(framed(), 36 + 31, lines, &format!("{header}531\n{}{}", &header[..31], notice(67)));
    check(framed(), 36 + 34, lines, &format!("{header}531\n{header}53{}", notice(70)));
}

#[test]
fn a_full_disk_stops_the_storing_and_is_named() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut log = Log::new(full, bare(), Vec::new());
    write_all(&mut log, &[(OUT, b"12345")]);
    assert_eq!((log.position(), log.lost()), (5, None));
    log.flush();
    write_all(&mut log, &[(OUT, b"678\n"), (OUT, &[b'x'; 100_000])]);
    log.finish();
    let lost = log.lost().unwrap();
    assert!(lost.starts_with("the last 100009 bytes of the log were not stored: No space left"), "{lost}");
    assert_eq!(log.position(), 0);
}

#[test]
fn a_crash_is_told_at_the_end_of_what_was_stored() {
    let check = |format: Format, before: &str, want: &str| {
        let tmp = tempfile::NamedTempFile::new().unwrap();
        fs::write(tmp.path(), before).unwrap();
        let file = OpenOptions::new().read(true).append(true).open(tmp.path()).unwrap();
        let mut log = Log::resume(file, format, secrets(&["hunter2"])).unwrap();
        write_all(&mut log, &[(END, b"panicked at hunter2\n")]);
        log.finish();
        assert_eq!(fs::read_to_string(tmp.path()).unwrap(), want);
        assert_eq!(log.position(), want.len() as u64);
    };
    let line = "2026-11-30T14:00:00.000001Z 00O panicked at [MASKED]\n";
    check(framed(), "", line);
    check(framed(), "whole\n", &format!("whole\n{line}"));
    check(framed(), "half", &format!("half\n{line}"));
    check(bare(), "half", "halfpanicked at [MASKED]\n");
    check(Format { limit: Some(4), ..bare() }, "1234 and the notice\n", "1234 and the notice\n");
}
