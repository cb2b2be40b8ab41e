//! The custom executor: a stage is a call of the entry's own program, its driver. What the call is given by
//! files lies in a directory of the driver's, which goes with the job's. Knows no forge's words, and starts
//! no shell.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Output;
use crate::forge::Call;

/// Directory and files are there when it returns, and where the call's output goes.
pub(super) fn prepare(call: &Call, output: Output) -> io::Result<Output> {
    let said = |path: &Path, e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    if call.fresh {
        match fs::remove_dir_all(&call.dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(said(&call.dir, e)),
            _ => {}
        }
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&call.dir).map_err(|e| said(&call.dir, e))?;
    for file in &call.files {
        let path = call.dir.join(&file.name);
        write(&path, &file.content, file.mode).map_err(|e| said(&path, e))?;
    }
    let open = |name: &PathBuf| {
        let path = call.dir.join(name);
        create(&path, 0o600).map_err(|e| said(&path, e))
    };
    Ok(Output {
        streams: output.streams,
        stdout: call.stdout.as_ref().map(open).transpose()?,
        stderr: call.stderr.as_ref().map(open).transpose()?,
    })
}

/// In a directory of its own where the name has one.
fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    create(path, mode)?.write_all(content)
}

/// A new one: what a driver has left in its place is not written through.
fn create(path: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    OpenOptions::new().create_new(true).write(true).mode(mode).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::forge::{Given, Streams};

    #[test]
    fn a_call_finds_its_files_and_a_fresh_one_nothing_else() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("driver");
        let script = Given { name: "script1/script".into(), content: b"true".to_vec(), mode: 0o700 };
        let call = Call {
            argv: vec!["true".to_owned()],
            env: Vec::new(),
            dir: dir.clone(),
            fresh: false,
            last: false,
            files: vec![script],
            stdout: Some("out".into()),
            stderr: None,
        };
        let plain = || Output { streams: Streams::One, stdout: None, stderr: None };
        let output = prepare(&call, plain()).unwrap();
        assert!(output.stdout.is_some() && output.stderr.is_none());
        let mode = |name: &str| fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(""), mode("script1/script"), mode("out")), (0o700, 0o700, 0o600));
        fs::write(dir.join("left"), "").unwrap();
        // A link that a driver has left is replaced, not followed.
        let elsewhere = tmp.path().join("elsewhere");
        fs::write(&elsewhere, "kept").unwrap();
        fs::remove_file(dir.join("out")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir.join("out")).unwrap();
        prepare(&call, plain()).unwrap();
        assert!(dir.join("left").exists());
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
        prepare(&Call { fresh: true, ..call }, plain()).unwrap();
        assert!(!dir.join("left").exists() && dir.join("script1/script").exists());
    }
}
