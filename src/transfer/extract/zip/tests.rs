//! Round trips, and archives with entries that nobody made in good faith.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use crate::transfer::archive::zip::tests::text;
use crate::transfer::archive::{Effort, Format, write};
use crate::transfer::extract::extract;
use crate::transfer::select::{Wanted, select};

use super::*;

const FILE: u32 = 0o100_644;
const LINK: u32 = 0o120_777;

/// A zip archive with these entries, stored: name, mode, data, and how many bytes it is said to hold.
fn craft(entries: &[(&str, u32, &[u8], usize)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    let p16 = |out: &mut Vec<u8>, n: usize| out.extend_from_slice(&(n as u16).to_le_bytes());
    let p32 = |out: &mut Vec<u8>, n: usize| out.extend_from_slice(&(n as u32).to_le_bytes());
    for (name, mode, data, raw) in entries {
        let at = out.len();
        let mut common = Vec::new();
        for n in [20, 0, 0, 0, 0x21] {
            p16(&mut common, n);
        }
        for n in [crc32fast::hash(data) as usize, data.len(), *raw] {
            p32(&mut common, n);
        }
        p16(&mut common, name.len());
        p16(&mut common, 0);
        out.extend_from_slice(b"PK\x03\x04");
        out.extend_from_slice(&common);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(data);
        directory.extend_from_slice(b"PK\x01\x02\x14\x03");
        directory.extend_from_slice(&common);
        directory.extend_from_slice(&[0; 6]);
        p32(&mut directory, (*mode as usize) << 16);
        p32(&mut directory, at);
        directory.extend_from_slice(name.as_bytes());
    }
    let at = out.len();
    out.extend_from_slice(&directory);
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    p16(&mut out, entries.len());
    p16(&mut out, entries.len());
    p32(&mut out, directory.len());
    p32(&mut out, at);
    p16(&mut out, 0);
    out
}

fn into(root: &Path, archive: &[u8]) -> Result<(), String> {
    let path = root.parent().unwrap().join("archive");
    fs::write(&path, archive).unwrap();
    extract(&fs::File::open(path).unwrap(), root)
}

/// A directory `p` to extract into, with something beside it that must stay as it is.
fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("p");
    fs::create_dir(&root).unwrap();
    fs::write(dir.path().join("outside"), "untouched").unwrap();
    fs::create_dir(dir.path().join("outdir")).unwrap();
    (dir, root)
}

#[test]
fn what_was_packed_comes_out_the_same() {
    for format in [Format::Zip, Format::ZipZstd, Format::TarZstd] {
        let (dir, root) = place();
        let from = dir.path().join("from");
        fs::create_dir_all(from.join("d/closed")).unwrap();
        for n in 0..300 {
            fs::write(from.join(format!("d/{n}")), text(n * 37)).unwrap();
        }
        fs::write(from.join("large"), text(2_000_000)).unwrap();
        fs::write(from.join("zeros"), vec![0; 1_000_000]).unwrap();
        fs::write(from.join("run me"), "#!/bin/sh").unwrap();
        fs::set_permissions(from.join("run me"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(from.join("d/closed/ü 'q' \"d\" \\"), "x").unwrap();
        fs::set_permissions(from.join("d/closed"), fs::Permissions::from_mode(0o555)).unwrap();
        symlink("../large", from.join("d/link")).unwrap();
        symlink("nowhere", from.join("dangling")).unwrap();
        let old = fs::File::options().write(true).open(from.join("large")).unwrap();
        old.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
        let files = select(&from, &Wanted { paths: vec![".".into()], ..Wanted::default() }).files;
        let mut bytes = Vec::new();
        write(format, Effort::Default, &from, &files, &mut bytes).unwrap();
        // Twice: the second time everything is in the way.
        for _ in 0..2 {
            into(&root, &bytes).unwrap();
            let got = select(&root, &Wanted { paths: vec![".".into()], ..Wanted::default() }).files;
            assert_eq!(got, files, "{format:?}");
            for name in &files {
                let (a, b) = (from.join(name), root.join(name));
                let (ma, mb) = (a.symlink_metadata().unwrap(), b.symlink_metadata().unwrap());
                assert_eq!((ma.mode(), ma.mtime()), (mb.mode(), mb.mtime()), "{format:?} {name:?}");
                if ma.is_file() {
                    assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{format:?} {name:?}");
                } else if ma.is_symlink() {
                    assert_eq!(fs::read_link(&a).unwrap(), fs::read_link(&b).unwrap());
                }
            }
        }
        assert!(root.join("zeros").metadata().unwrap().blocks() < 100, "zeros are holes");
        for dir in [&from, &root] {
            fs::set_permissions(dir.join("d/closed"), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}

#[test]
fn nothing_lands_outside() {
    for (entries, want) in [
        (&[("../outside", FILE, &b"bad"[..], 3)][..], "../outside cannot be extracted outside of chroot (ROOT)"),
        (
            &[("good", FILE, b"x", 1), ("a/../../outside", FILE, b"bad", 3)],
            "a/../../outside cannot be extracted outside of chroot (ROOT)",
        ),
        (&[("..", FILE, b"bad", 3)], ".. cannot be extracted outside of chroot (ROOT)"),
        (
            &[("link", LINK, b"..", 2), ("link/../../outside", FILE, b"bad", 3)],
            "link/../../outside cannot be extracted outside of chroot (ROOT)",
        ),
        (
            &[("here", LINK, b"../outdir", 9), ("here/x", LINK, b"y", 1)],
            "here: it is a link that leads outside, and the archive has files behind it",
        ),
        (&[("old/x", FILE, b"bad", 3)], "old: it is a link that leads outside, and the archive has files behind it"),
        (&[("a\0b", FILE, b"bad", 3)], "a\u{fffd}b: no file can have this name"),
        (
            &[("./", FILE, b"", 0), ("x", FILE, b"x", 1), ("x/y", FILE, b"bad", 3)],
            "x: it is not a directory, and the archive has files in it",
        ),
        (&[("full", FILE, b"x", 1)], "full: a directory of this name is in the way"),
    ] {
        let (dir, root) = place();
        symlink("../outdir", root.join("old")).unwrap();
        fs::create_dir(root.join("full")).unwrap();
        let got = into(&root, &craft(entries)).unwrap_err().replace(root.to_str().unwrap(), "ROOT");
        assert_eq!(got, want);
        assert_eq!(fs::read_to_string(dir.path().join("outside")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(dir.path().join("outdir")).unwrap().count(), 0, "{want}");
        assert!(!root.join("good").exists(), "a bad name is seen before anything is written");
    }
}

#[test]
fn odd_entries_are_contained() {
    let (dir, root) = place();
    fs::create_dir(root.join("real")).unwrap();
    symlink("real", root.join("alias")).unwrap();
    symlink("../outside", root.join("replaced")).unwrap();
    let entries: &[(&str, u32, &[u8], usize)] = &[
        ("/abs/olute", FILE, b"1", 1),
        ("alias/inside", FILE, b"2", 1),
        ("replaced", FILE, b"3", 1),
        ("twice", FILE, b"first", 5),
        ("twice", FILE, b"last", 4),
        ("null", 0o020_666, b"", 0),
        ("setuid", 0o104_755, b"4", 1),
        ("out", LINK, b"/etc/passwd", 11),
    ];
    into(&root, &craft(entries)).unwrap();
    for (name, want) in
        [("abs/olute", "1"), ("real/inside", "2"), ("replaced", "3"), ("twice", "last"), ("setuid", "4")]
    {
        assert_eq!(fs::read_to_string(root.join(name)).unwrap(), want, "{name}");
    }
    assert_eq!(fs::read_to_string(dir.path().join("outside")).unwrap(), "untouched");
    assert!(!root.join("null").exists());
    assert_eq!(root.join("setuid").metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::read_link(root.join("out")).unwrap(), Path::new("/etc/passwd"));
}

#[test]
fn an_entry_gets_no_more_than_it_declares() {
    let (_dir, root) = place();
    for (entries, want) in [
        (&[("bomb", FILE, &[0; 500][..], 10)][..], "bomb: it holds more than the 10 bytes that it declares"),
        (&[("short", FILE, b"x", 10)], "short: it declares 10 bytes and holds 1"),
    ] {
        assert_eq!(into(&root, &craft(entries)).unwrap_err(), want);
    }
    let huge: Vec<_> = (0..20_000).map(|_| ("huge", FILE, &b"x"[..], u32::MAX as usize - 1)).collect();
    let why = into(&root, &craft(&huge)).unwrap_err();
    assert!(why.starts_with("huge: the archive says that it holds 85899345880000 bytes"), "{why}");
    // Two records for the same data.
    let mut overlapping = craft(&[("a", FILE, &[7; 400], 400), ("b", FILE, &[7; 400], 400)]);
    let start = overlapping.len() - 22 - 2 * 47;
    overlapping.drain(431..862);
    let directory = start - 431;
    let end = overlapping.len() - 6;
    overlapping[end..end + 4].copy_from_slice(&(directory as u32).to_le_bytes());
    assert_eq!(into(&root, &overlapping).unwrap_err(), "b: the archive's entries overlap");
}

#[test]
fn damaged_archives_are_refused_in_words() {
    let (_dir, root) = place();
    let good = craft(&[("a", FILE, b"hello", 5)]);
    let mut wrong = good.clone();
    wrong[31] ^= 1;
    for (bytes, want) in [
        (&b""[..], "the file is no archive, or its end is missing"),
        (b"<html>404</html>", "the file is no archive, or its end is missing"),
        (&good[..good.len() - 10], "the file is no archive, or its end is missing"),
        (&good[10..], "the archive's directory is damaged"),
        (b"\x1f\x8b\x08", "a gzip file is no archive and cannot be extracted"),
        (&wrong, "a: its checksum is wrong"),
    ] {
        assert_eq!(into(&root, bytes).unwrap_err(), want);
    }
    // Any byte changed: an error or not, never a panic.
    for i in 0..good.len() {
        for change in [1, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[i] ^= change;
            let _ = into(&root, &bytes);
        }
    }
}
