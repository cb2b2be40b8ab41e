//! How a stage becomes a process: its own group, the job's tag in its environment, three descriptors and
//! default signals; nothing else of the job process. Starts and describes; signals and reaps nothing.

mod custom;
pub mod manner;
pub mod shell;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use self::manner::Manner;
use crate::forge::{Run, Stage, Stream, Streams};
use crate::model::Shell;
use crate::process::stage::{Oom, pipe};

/// What every stage of a job has in common.
#[derive(Debug)]
pub struct Executor {
    pub shell: Shell,
    /// `NAME=VALUE` in the environment of every stage (design §5.7).
    pub tag: String,
    pub oom: Option<Oom>,
    pub manner: Manner,
}

/// A stage that runs.
#[derive(Debug)]
pub struct Spawned {
    /// Its leader, which is its group too.
    pub pid: u32,
    pub pipes: Vec<(Stream, OwnedFd)>,
}

impl Executor {
    /// The error names what could not be started, and why.
    pub fn start(&self, stage: &Stage) -> io::Result<Spawned> {
        let output = Output { streams: stage.streams, stdout: None, stderr: None };
        match &stage.run {
            Run::Script(text) => {
                self.spawn(shell::command(&self.manner, self.shell, text)?, self.shell.as_str(), output)
            }
            Run::Program { argv, env, dir } => self.program(argv, env, dir, output),
            Run::Driver(call) => self.program(&call.argv, &call.env, &call.dir, custom::prepare(call, output)?),
            Run::Print(_) | Run::Sweep => unreachable!("the loop does these itself"),
        }
    }

    fn program(&self, argv: &[String], env: &[(String, String)], dir: &Path, output: Output) -> io::Result<Spawned> {
        let program = argv.first().ok_or_else(|| io::Error::other("a stage without a program"))?;
        let words: Vec<OsString> = argv.iter().map(OsString::from).collect();
        let mut command = self.manner.command(&words);
        command.envs(env.iter().map(|(k, v)| (k, v)));
        if !dir.as_os_str().is_empty() {
            command.current_dir(dir);
        }
        self.spawn(command, program, output)
    }

    fn spawn(&self, mut command: Command, name: &str, output: Output) -> io::Result<Spawned> {
        let (tag, value) = self.tag.split_once('=').expect("a tag is NAME=VALUE");
        command.env(tag, value).env_remove("RUNNER_PAUSE").env_remove("RUNNER_TIMING").process_group(0);
        let pipe = || pipe(self.manner.user.as_ref());
        let (out, write_out) = pipe()?;
        let mut pipes = vec![(Stream::Out, out)];
        if output.streams == Streams::Two {
            let (err, write_err) = pipe()?;
            pipes.push((Stream::Err, err));
            command.stderr(write_err);
        } else {
            command.stderr(write_out.try_clone()?);
        }
        command.stdout(write_out);
        if let Some(file) = output.stdout {
            command.stdout(file);
        }
        if let Some(file) = output.stderr {
            command.stderr(file);
        }
        let _raised = self.oom.as_ref().map(Oom::raise);
        let child = command.spawn().map_err(|e| io::Error::new(e.kind(), format!("{name}: {e}")))?;
        Ok(Spawned { pid: child.id(), pipes })
    }
}

/// Where a stage's output goes.
#[derive(Debug)]
struct Output {
    streams: Streams,
    /// Instead of the pipe.
    stdout: Option<File>,
    stderr: Option<File>,
}
