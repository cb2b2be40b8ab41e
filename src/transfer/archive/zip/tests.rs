//! Archives in the hands of other programs: `unzip -t` and Python's zipfile.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::transfer::archive::{Effort, Format, write};
use crate::transfer::select::{Wanted, select};

/// A made-up text that compresses as text does.
pub(in crate::transfer) fn text(len: usize) -> Vec<u8> {
    let mut seed = 7u32;
    let words = ["static ", "const ", "fn main() {\n", "return ", "0x", "value", "_", ";\n", "}\n"];
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        out.extend_from_slice(words[(seed >> 24) as usize % words.len()].as_bytes());
        out.push(b'a' + (seed >> 16) as u8 % 26);
    }
    out.truncate(len);
    out
}

#[expect(clippy::disallowed_methods, reason = "a test asks other programs")]
fn run(program: &str, args: &[&str]) -> Option<String> {
    let out = std::process::Command::new(program)
        .args(args)
        .output()
        .map_err(|e| eprintln!("skipped: {program}: {e}"))
        .ok()?;
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stdout));
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[test]
fn other_programs_read_our_archives() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("p");
    fs::create_dir_all(root.join("d/e")).unwrap();
    fs::write(root.join("d/empty"), "").unwrap();
    fs::write(root.join("d/small"), text(1000)).unwrap();
    fs::write(root.join("d/one byte"), "x").unwrap();
    fs::write(root.join("large"), text(1_500_000)).unwrap();
    fs::write(root.join("exact"), text(2 * BLOCK as usize)).unwrap();
    fs::write(root.join("d/e/ü \"quoted\" 'name'"), "odd").unwrap();
    fs::set_permissions(root.join("d/small"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("d/small", root.join("link")).unwrap();
    let files = select(&root, &Wanted { paths: vec![".".into()], ..Wanted::default() }).files;
    for effort in [Effort::Fastest, Effort::Fast, Effort::Default, Effort::Slow, Effort::Slowest] {
        let path = dir.path().join("a.zip");
        let mut bytes = Vec::new();
        write(Format::Zip, effort, &root, &files, &mut bytes).unwrap();
        let mut again = Vec::new();
        write(Format::Zip, effort, &root, &files, &mut again).unwrap();
        assert!(bytes == again, "the same files give the same bytes");
        fs::write(&path, &bytes).unwrap();
        let path = path.to_str().unwrap();
        run("unzip", &["-tqq", path]);
        let script = "import sys, zipfile, os\n\
            z = zipfile.ZipFile(sys.argv[1]); assert z.testzip() is None\n\
            for i in z.infolist():\n\
            \x20   p = os.path.join(sys.argv[2], i.filename)\n\
            \x20   print(i.filename, oct(i.external_attr >> 16), i.file_size)\n\
            \x20   if os.path.islink(p): assert z.read(i).decode() == os.readlink(p)\n\
            \x20   elif not i.is_dir(): assert z.read(i) == open(p, 'rb').read()\n";
        if let Some(listed) = run("python3", &["-c", script, path, root.to_str().unwrap()]) {
            assert!(listed.contains("d/small 0o100755 1000\n"), "{listed}");
            assert!(listed.contains("link 0o120777 7\n"), "{listed}");
            assert!(listed.contains("d/e/ 0o40"), "{listed}");
            assert!(listed.contains("d/e/ü \"quoted\" 'name' 0o100"), "{listed}");
        }
    }
}
