//! Reports: each file a gzip member of its own, one after the other. Files only.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};

use super::{Error, copy, open_regular};

pub(super) fn write(level: u32, root: &Path, files: &[PathBuf], out: &mut dyn Write) -> Result<(), Error> {
    for name in files {
        let (mut file, meta) = open_regular(root, name)?;
        let base = name.file_name().unwrap_or_default();
        let mut member = GzBuilder::new()
            .filename(text(base.as_bytes()))
            .comment(text(name.as_os_str().as_bytes()))
            .mtime(u32::try_from(meta.mtime).unwrap_or(0))
            .operating_system(255)
            .write(io::BufWriter::with_capacity(64 << 10, &mut *out), Compression::new(level));
        copy(name, &mut file, &mut member)?;
        member.finish().and_then(|mut out| out.flush()).map_err(Error::Output)?;
    }
    Ok(())
}

/// The header takes Latin-1 only: everything else is percent-escaped, and says so.
fn text(bytes: &[u8]) -> Vec<u8> {
    if bytes.iter().all(|b| (b' '..=b'~').contains(b) && *b != b'%') {
        return bytes.to_vec();
    }
    let mut out = b"e:".to_vec();
    for b in bytes {
        if b.is_ascii_alphanumeric() || b"-_.~/$&+:=@".contains(b) {
            out.push(*b);
        } else {
            out.extend_from_slice(format!("%{b:02X}").as_bytes());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::MultiGzDecoder;

    use super::*;

    #[test]
    fn members_follow_each_other_under_their_names() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/a.xml"), "<a/>").unwrap();
        std::fs::write(dir.path().join("ü"), "<b/>").unwrap();
        let mut out = Vec::new();
        write(5, dir.path(), &["d/a.xml".into(), "ü".into()], &mut out).unwrap();
        let mut whole = String::new();
        MultiGzDecoder::new(&out[..]).read_to_string(&mut whole).unwrap();
        assert_eq!(whole, "<a/><b/>");
        let holds = |text: &[u8]| out.windows(text.len()).any(|w| w == text);
        assert!(holds(b"a.xml\0d/a.xml\0") && holds(b"e:%C3%BC\0e:%C3%BC\0"));
        let refused = write(5, dir.path(), &["d".into()], &mut Vec::new()).unwrap_err();
        assert_eq!(refused.to_string(), "the \"d\" is not a regular file");
    }
}
