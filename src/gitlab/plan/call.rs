//! A command of ours inside a stage's script: which program it is, and how it is called so that nothing
//! secret stands in the process list. Makes text; starts nothing.

use std::path::PathBuf;

use crate::model::Secret;

use super::compose::Body;

/// Where a script finds this runner.
#[derive(Clone, Debug)]
pub(super) enum Program {
    /// The very binary that runs: the script is on its host.
    Here(PathBuf),
    /// Whatever the script's own place has by the reference's name.
    Named(&'static str),
}

impl Program {
    pub(super) fn of(executor: &str) -> Program {
        match executor {
            "custom" => Program::Named("gitlab-runner"),
            _ => {
                // A binary that was replaced has a mark at its name's end; the new one has the name.
                let path = std::env::current_exe().unwrap_or_else(|_| "runner".into());
                let path = path.to_string_lossy().into_owned();
                Program::Here(path.strip_suffix(" (deleted)").unwrap_or(&path).into())
            }
        }
    }

    /// `inside` where the program is there; else a line that says what is disabled.
    pub(super) fn guard(&self, body: &mut Body, action: &str, inside: impl FnOnce(&mut Body)) {
        let name = match self {
            Program::Here(path) => {
                body.raw("if [ -x ").path(path).raw(" ]; then\n");
                path.to_string_lossy().into_owned()
            }
            Program::Named(name) => {
                body.raw(&format!("if {name} --version >/dev/null 2>&1; then\n"));
                (*name).to_owned()
            }
        };
        inside(body);
        body.raw("else\n");
        body.warning(&format!("Missing {name}. {action} is disabled."));
        body.raw("fi\n");
    }
}

/// One call, without a newline at its end.
#[derive(Debug)]
pub(super) struct Call<'a> {
    program: &'a Program,
    words: Vec<String>,
    env: Vec<(&'static str, Secret)>,
}

impl Call<'_> {
    pub(super) fn new<'a>(program: &'a Program, command: &str) -> Call<'a> {
        Call { program, words: vec![command.to_owned()], env: Vec::new() }
    }

    pub(super) fn flag(&mut self, name: &str) -> &mut Self {
        self.words.push(name.to_owned());
        self
    }

    pub(super) fn option(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        self.words.push(name.to_owned());
        self.words.push(value.into());
        self
    }

    /// In the environment of this call alone.
    pub(super) fn env(&mut self, name: &'static str, value: Secret) -> &mut Self {
        self.env.push((name, value));
        self
    }

    /// Something that others on the host must not see. The list of processes shows words to everybody, an
    /// environment to the same user only; but a program that is not ours knows the words alone.
    pub(super) fn secret(&mut self, option: &str, name: &'static str, value: Secret) -> &mut Self {
        match self.program {
            Program::Here(_) => self.env(name, value),
            Program::Named(_) => self.option(option, value.reveal()),
        }
    }

    pub(super) fn write(&self, body: &mut Body) {
        for (name, value) in &self.env {
            body.raw(name).raw("=").word(value.reveal().as_bytes()).raw(" ");
        }
        match self.program {
            Program::Here(path) => body.path(path),
            Program::Named(name) => body.raw(name),
        };
        for word in &self.words {
            body.raw(" ").word(word.as_bytes());
        }
    }
}
