//! The shell executor: a script is the stdin of a login shell, in the working directory of the runner.

use std::io;
use std::process::Command;

use crate::model::Shell;
use crate::process;
use crate::process::stage::in_memory;

pub(super) fn command(shell: Shell, script: &[u8]) -> io::Result<Command> {
    let mut command = process::command(shell.as_str());
    command.arg("-l").stdin(in_memory("script", script)?);
    Ok(command)
}
