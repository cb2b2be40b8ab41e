//! A plain directory as coordinator: for hosts without a server, for trying the runner out, for tests.
//! `pending/NAME.json` is claimed by a rename into `running/`, and ends as `done/NAME/{result.json,log}`.
//! Speaks GitLab's job format and uses its plan; never its lease.
//!
//! Who has a job is told by one file name at any instant: there is no lock, and no step that a kill
//! could leave half done (kill point 19).

mod claims;
mod coordinator;
mod job_file;
mod lease;
mod show;

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::config::Entry;
use crate::forge::{Coordinator, Lease};
use crate::forges::Ground;
use crate::jobdir::{self, JobDir};
use crate::model::{ForgeKind, JobName};
use claims::Spool;

/// The coordinator of an entry: makes the spool's directories where they are missing.
pub fn open(entry: &Arc<Entry>, ground: &Ground) -> io::Result<Arc<dyn Coordinator>> {
    let root = Path::new(entry.url.strip_prefix("file://").unwrap_or(&entry.url));
    let spool = Spool::open(root, &owner(&ground.state_dir)?)?;
    if let Some(jobs) = &entry.jobs {
        spool.fill(jobs)?;
    }
    Ok(Arc::new(coordinator::Directory::new(Arc::clone(entry), ground.clone(), spool)))
}

/// The lease of a directory of an earlier run.
pub fn adopt(dir: &JobDir, ground: &Ground) -> io::Result<Box<dyn Lease>> {
    Ok(Box::new(lease::Claim::adopt(dir, ground)?))
}

/// The name of this state directory in the names of claims. It is kept in a file and made by chance:
/// containers share machine ids and paths, and two of them may share a spool.
fn owner(state_dir: &Path) -> io::Result<String> {
    let file = state_dir.join("spool-owner");
    let known = fs::read_to_string(&file).unwrap_or_default();
    if known.len() == 12 && known.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(known);
    }
    let mut bytes = [0; 6];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let made = bytes.iter().fold(String::new(), |id, byte| id + &format!("{byte:02x}"));
    jobdir::replace(&file, made.as_bytes())?;
    Ok(made)
}

/// The directory of a job. Names that [`JobName`] would have to change carry a hash of the original, so
/// that two jobs are never one.
fn job_name(spool: &Spool, name: &str) -> JobName {
    let plain = name.len() <= 100 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    let short: String = name.chars().take(100).collect();
    let id = if plain { name.to_owned() } else { format!("{short}-{:08x}", hash(name.as_bytes()) >> 32) };
    JobName::new(ForgeKind::Spool, &spool.root().to_string_lossy(), &id)
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_directory_keeps_its_name() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = owner(a.path()).unwrap();
        assert_eq!(owner(a.path()).unwrap(), name);
        assert_ne!(owner(b.path()).unwrap(), name);
        fs::write(a.path().join("spool-owner"), "").unwrap();
        assert_ne!(owner(a.path()).unwrap(), name);
    }

    #[test]
    fn two_job_files_never_share_a_directory() {
        let tmp = tempfile::tempdir().unwrap();
        let spool = Spool::open(tmp.path(), "0").unwrap();
        let names = ["a b", "a_b", "a/b", &"x".repeat(150), &"x".repeat(151)].map(|n| job_name(&spool, n));
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name}");
        }
    }
}
