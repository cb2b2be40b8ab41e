//! The shell executor: a script is the stdin of a login shell, in the working directory of the runner.

use std::io;
use std::process::Command;

use super::manner::Manner;
use crate::model::Shell;
use crate::process::stage::in_memory;

pub(super) fn command(manner: &Manner, shell: Shell, script: &[u8]) -> io::Result<Command> {
    let mut command = manner.command(&[shell.as_str().into(), "-l".into()]);
    command.stdin(in_memory("script", script)?);
    Ok(command)
}
