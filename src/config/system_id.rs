//! The system id that tells this host's manager from others with the same token (protocol §6.8): read
//! from beside the configuration, else made and kept there, else in the state directory.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use ring::hmac;

use crate::jobdir;

const FILE: &str = ".runner_system_id";
const MACHINE_IDS: [&str; 2] = ["/var/lib/dbus/machine-id", "/etc/machine-id"];
const ALPHABET: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The id of a manager whose coordinators do not ask for it: the same at each start where the host has an
/// id, and nothing is written.
pub(super) fn unkept() -> String {
    make(&MACHINE_IDS).unwrap_or_default()
}

/// The id, and a warning when it could not be kept where it belongs.
pub(super) fn of_host(config_dir: &Path, state_dir: &Path) -> io::Result<(String, Option<String>)> {
    for dir in [config_dir, state_dir] {
        match fs::read_to_string(dir.join(FILE)) {
            Ok(text) if is_valid(text.trim()) => return Ok((text.trim().to_owned(), None)),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {}
            Err(e) if dir == state_dir => return Err(said(dir, e)),
            Err(_) => {}
        }
    }
    let id = make(&MACHINE_IDS)?;
    log::info!(system_id = id.as_str(); "Created missing unique system ID");
    let Err(first) = jobdir::replace(&config_dir.join(FILE), id.as_bytes()) else { return Ok((id, None)) };
    let kept = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state_dir)
        .and_then(|()| jobdir::replace(&state_dir.join(FILE), id.as_bytes()));
    let warning = match kept {
        Ok(()) => format!("the system id is kept in {} ({first})", state_dir.join(FILE).display()),
        Err(second) => format!("the system id is kept nowhere and may change at the next start ({first}; {second})"),
    };
    Ok((id, Some(warning)))
}

fn said(dir: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", dir.join(FILE).display()))
}

fn is_valid(id: &str) -> bool {
    let rest = id.strip_prefix("s_").or_else(|| id.strip_prefix("r_"));
    rest.is_some_and(|r| r.len() == 12 && r.bytes().all(|b| b.is_ascii_alphanumeric()))
}

fn make(machine_ids: &[&str]) -> io::Result<String> {
    let machine = machine_ids.iter().find_map(|p| fs::read_to_string(p).ok()).unwrap_or_default();
    match machine.trim() {
        "" => random(),
        id => Ok(from_machine(id)),
    }
}

fn from_machine(id: &str) -> String {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, id.as_bytes()), b"gitlab-runner");
    tag.as_ref()[..6].iter().fold("s_".to_owned(), |id, byte| id + &format!("{byte:02x}"))
}

fn random() -> io::Result<String> {
    let mut source = fs::File::open("/dev/urandom")?;
    let mut id = "r_".to_owned();
    while id.len() < 14 {
        let mut byte = [0];
        source.read_exact(&mut byte)?;
        // Bytes beyond the last whole alphabet would make some letters likelier.
        if byte[0] < 248 {
            id.push(char::from(ALPHABET[usize::from(byte[0]) % ALPHABET.len()]));
        }
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_made_of_the_machine_or_of_chance() {
        let dir = tempfile::tempdir().unwrap();
        let machine = dir.path().join("machine-id");
        fs::write(&machine, "0123456789abcdef\n").unwrap();
        let id = make(&["/nowhere", machine.to_str().unwrap()]).unwrap();
        assert_eq!(id, "s_7a8ab7a73253");
        let other = make(&["/nowhere"]).unwrap();
        assert!(other.starts_with("r_") && is_valid(&other) && other != make(&["/nowhere"]).unwrap());
    }

    #[test]
    fn an_id_is_read_back_and_a_bad_one_replaced() {
        let (config, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(config.path().join(FILE), "s_0123456789ab\n").unwrap();
        assert_eq!(of_host(config.path(), state.path()).unwrap(), ("s_0123456789ab".into(), None));
        fs::write(config.path().join(FILE), "s_short").unwrap();
        let (id, warning) = of_host(config.path(), state.path()).unwrap();
        assert!(is_valid(&id) && warning.is_none());
        assert_eq!(fs::read_to_string(config.path().join(FILE)).unwrap(), id);
    }

    #[test]
    fn a_read_only_config_directory_is_only_a_warning() {
        let state = tempfile::tempdir().unwrap();
        let (id, warning) = of_host(Path::new("/proc"), state.path()).unwrap();
        assert!(warning.unwrap().contains("is kept in"));
        assert_eq!(of_host(Path::new("/proc"), state.path()).unwrap(), (id, None));
    }
}
