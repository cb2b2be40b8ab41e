//! How the stages of one entry run: as whom, with which umask and limits. Found out once, before the first
//! stage; what cannot be is the job's end, never less than was asked for. Starts nothing.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use crate::model::Settings;
use crate::process::trampoline::{Change, Ids};
use crate::process::user::{User, may_work_in};

/// A look at a directory takes no longer, or the job is not run.
const LOOK: Duration = Duration::from_secs(10);
/// The umask that the job process has itself.
const UMASK: u32 = 0o022;

#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// `None`: the runner's own.
    pub user: Option<User>,
    /// Empty: the stage's program starts at once, without a trampoline.
    pub change: Change,
}

impl Manner {
    /// `state`: the runner's own directory, which is closed to others unless the workspace lies in it.
    pub fn of(settings: &Settings, state: &Path) -> Result<Manner, String> {
        let user = match settings.user.as_str() {
            "" => None,
            name => User::for_stages(name)?,
        };
        if let Some(user) = &user {
            for (key, dir) in [("builds_dir", &settings.builds_dir), ("cache_dir", &settings.cache_dir)] {
                room(dir, user, state).map_err(|e| format!("{key} {}: {e}", dir.display()))?;
            }
        }
        let ids = user.as_ref().map(|u| Ids { uid: u.uid, gid: u.gid, groups: u.groups.clone() });
        let umask = settings.umask.filter(|m| *m != UMASK);
        Ok(Manner { user, change: Change { ids, umask, ..Change::default() } })
    }

    /// The program and its arguments as they are started.
    pub(super) fn command(&self, argv: &[OsString]) -> std::process::Command {
        let mut command = if self.change.is_none() {
            let mut command = crate::process::command(&argv[0]);
            command.args(&argv[1..]);
            command
        } else {
            self.change.command(argv)
        };
        if let Some(user) = &self.user {
            command.envs(user.environment());
            // What these lead to is the runner's own.
            for name in ["XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "MAIL"] {
                command.env_remove(name);
            }
        }
        command
    }
}

/// A directory that the user can work in. One that is not there is made and given to the user; one that is
/// there and empty is given, too. What others have put there is left alone.
fn room(dir: &Path, user: &User, state: &Path) -> io::Result<()> {
    if dir.starts_with(state) {
        // What lies in it is closed for itself.
        let mode = fs::metadata(state)?.permissions().mode();
        if mode & 0o001 == 0 {
            fs::set_permissions(state, fs::Permissions::from_mode(mode & 0o7777 | 0o001))?;
        }
    }
    let is_new = match dir.symlink_metadata() {
        Ok(meta) => meta.uid() == 0 && meta.is_dir() && fs::read_dir(dir)?.next().is_none(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
            true
        }
        Err(e) => return Err(e),
    };
    if is_new {
        // Not through a link that took its place.
        std::os::unix::fs::lchown(dir, Some(user.uid), Some(user.gid))?;
    }
    let inside = dir.to_owned();
    user.look(LOOK, move || may_work_in(&inside))?.map_err(|e| {
        io::Error::new(e.kind(), format!("the user {} cannot work there: {e}; give it to that user", user.name))
    })
}
