//! The user that an entry's stages run as: looked up once by name, from then on numbers. Changes no user
//! of this process; a thread may look at files as somebody else, and ends then.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam_channel::bounded;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::threads;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// With `gid`.
    pub groups: Vec<u32>,
    pub home: PathBuf,
    pub shell: PathBuf,
}

impl User {
    /// Whom stages are to run as when an entry names this user; `None`: as this process does anyway. The
    /// error says why that cannot be.
    pub fn for_stages(name: &str) -> Result<Option<User>, String> {
        let user = User::find(name)?;
        let own = geteuid();
        if user.uid == own.as_raw() {
            return Ok(None);
        }
        if !own.is_root() {
            return Err(format!(
                "jobs cannot run as the user {name:?}, because the runner is not root: start it as root, or as {name}"
            ));
        }
        Ok(Some(user))
    }

    /// By name, or by number.
    fn find(name: &str) -> Result<User, String> {
        let said = |e: nix::Error| format!("the user {name:?} cannot be looked up: {e}");
        let found = match name.parse() {
            Ok(uid) => nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)),
            Err(_) => nix::unistd::User::from_name(name),
        };
        let found = found.map_err(said)?.ok_or_else(|| format!("this host has no user {name:?}"))?;
        let c_name = CString::new(found.name.as_str()).map_err(|e| e.to_string())?;
        let groups = nix::unistd::getgrouplist(&c_name, found.gid).map_err(said)?;
        Ok(User {
            name: found.name,
            uid: found.uid.as_raw(),
            gid: found.gid.as_raw(),
            groups: groups.into_iter().map(nix::unistd::Gid::as_raw).collect(),
            home: found.dir,
            shell: found.shell,
        })
    }

    /// What a shell of this user finds of itself in its environment.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let shell = if self.shell.as_os_str().is_empty() { "/bin/sh".to_owned() } else { text(&self.shell) };
        [("HOME", text(&self.home)), ("USER", self.name.clone()), ("LOGNAME", self.name.clone()), ("SHELL", shell)]
    }

    /// Do `work` with this user's rights to files, in a thread that ends with it: where a script may have put
    /// a link, it leads no further than the script itself could go. Only the thread's effective ids are the
    /// user's, so that nobody who runs as the user may signal or trace this process meanwhile. One that does
    /// not come back within `limit` (a file system of the user's own) is left behind.
    pub fn look<T: Send + 'static>(&self, limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let (user, (tell, told)) = (self.clone(), bounded(1));
        threads::named("as-user", move || {
            let done = user.become_effective().map(|()| work());
            let _ = tell.send(done);
        })?;
        told.recv_timeout(limit).unwrap_or_else(|e| Err(io::Error::other(format!("as the user {}: {e}", self.name))))
    }

    /// The calling thread's alone: the kernel keeps ids by thread, and these calls change no other's.
    fn become_effective(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&groups)?;
        set_thread_res_gid(None, Gid::from_raw(self.gid), None)?;
        set_thread_res_uid(None, Uid::from_raw(self.uid), None)?;
        Ok(())
    }
}

pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Whether the calling thread may make files there.
pub fn may_work_in(dir: &Path) -> io::Result<()> {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    Ok(accessat(CWD, dir, access, AtFlags::EACCESS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_and_by_number() {
        let root = User::find("root").unwrap();
        assert_eq!((root.uid, root.groups.contains(&0), root.name.as_str()), (0, true, "root"));
        assert_eq!(User::find("0").unwrap(), root);
        assert_eq!(User::find("no-such-user").unwrap_err(), "this host has no user \"no-such-user\"");
        assert!(User::find("4123456789").unwrap_err().contains("no user"));
    }

    #[test]
    fn a_look_has_the_users_rights_and_only_the_look_has() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can look as another user");
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let (path, limit) = (file.path().to_owned(), Duration::from_secs(10));
        let nobody = User { uid: 65534, gid: 65534, groups: vec![65534], ..User::find("root").unwrap() };
        let read = nobody.look(limit, move || std::fs::read(path)).unwrap();
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(std::fs::read(file.path()).is_ok() && geteuid().is_root());
        let slow = nobody.look(Duration::from_millis(20), || crossbeam_channel::never::<()>().recv().is_ok());
        assert!(slow.is_err());
    }
}
