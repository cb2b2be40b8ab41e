//! The scripts that the stages give to the shell (build §5): exports, file variables, commands with their
//! echo, around them what makes a failing command end the stage. Makes text; starts nothing.

use std::path::Path;

use crate::model::Shell;

use super::paths::Paths;
use super::quote::Quoting;
use super::variables::Variables;

/// How scripts are written for one job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Composer {
    pub(super) shell: Shell,
    pub(super) quoting: Quoting,
    /// CI_DEBUG_TRACE: the shell shows each command.
    pub(super) trace: bool,
    /// FF_SCRIPT_SECTIONS: commands of several lines are shown whole, in sections.
    pub(super) sections: bool,
    /// FF_ENABLE_BASH_EXIT_CODE_CHECK: each command's status is looked at, errexit or not.
    pub(super) check_status: bool,
    /// The job speaks of `$GITLAB_ENV`, so the file is made for it.
    pub(super) touch_env: bool,
    /// FF_GIT_URLS_WITHOUT_TOKENS: every git of the job reads our configuration.
    pub(super) git_seed: bool,
    /// `safe_directory_checkout`: git works in a project directory of another user's, too.
    pub(super) safe_directory: bool,
}

impl Composer {
    pub(super) fn body(self) -> Body {
        Body { how: self, text: Vec::with_capacity(8 * 1024) }
    }
}

/// A script in the making. What is added runs in the shell that all of the stage shares.
#[derive(Debug)]
pub(super) struct Body {
    how: Composer,
    text: Vec<u8>,
}

impl Body {
    /// Directories, variables, `cd`: what stands before every user command.
    pub(super) fn begin(&mut self, vars: &Variables, paths: &Paths) {
        self.make_directories(&[&paths.project, &paths.temp]);
        self.variables(vars, paths);
        self.raw("cd ").path(&paths.project).raw("\n");
    }

    /// Every variable, exported; what is of type file is written anew. The directory for it is there.
    pub(super) fn variables(&mut self, vars: &Variables, paths: &Paths) {
        for v in vars.each() {
            match &v.path {
                Some(path) => {
                    self.raw("printf '%s' ").word(v.value.as_bytes()).raw(" > ").word(path.as_bytes()).raw("\n");
                    self.export(v.key, path.as_bytes());
                }
                None => self.export(v.key, v.value.as_bytes()),
            }
        }
        self.read_env(paths);
        if self.how.git_seed {
            self.raw("export GIT_CONFIG_GLOBAL=").path(&paths.git_seed()).raw("\n");
        }
        if self.how.safe_directory {
            // By the environment, because the user's own configuration would grow with every job.
            self.raw("if [ -d ").path(&paths.project).raw(" ] && [ ! -O ").path(&paths.project).raw(" ]; then\n");
            self.raw("_n=${GIT_CONFIG_COUNT:-0}\nexport \"GIT_CONFIG_KEY_$_n=safe.directory\"\n");
            self.raw("export \"GIT_CONFIG_VALUE_$_n=\"").path(&paths.project);
            self.raw("\nexport GIT_CONFIG_COUNT=$((_n + 1))\nfi\n");
        }
    }

    /// One element of a job's `script`: its echo, then the command. `section`: the name that it gets when
    /// it has several lines and they are shown whole.
    pub(super) fn command(&mut self, text: &str, section: &str) {
        let text = text.trim();
        let Some((first, _)) = text.split_once('\n') else {
            match text {
                "" => self.raw("printf '\\n'\n"),
                _ => self.echo(&format!("\x1b[32;1m$ {text}\x1b[0;m")),
            };
            self.run(text);
            return;
        };
        if self.how.sections {
            self.section(text, section);
        } else {
            self.echo(&format!("\x1b[32;1m$ {first} # collapsed multi-line command\x1b[0;m"));
        }
        self.run(text);
    }

    /// Where the script runs, as its own place says.
    pub(super) fn running_on(&mut self, via: &str) {
        self.raw("printf 'Running on %s%s...\\n' \"$(hostname)\" ");
        let via = if via.is_empty() { String::new() } else { format!(" via {via}") };
        self.word(via.as_bytes()).raw("\n");
    }

    /// A green line of the stage's own.
    pub(super) fn notice(&mut self, text: &str) {
        self.echo(&format!("\x1b[32;1m{text}\x1b[0;m"));
    }

    /// A yellow one.
    pub(super) fn warning(&mut self, text: &str) {
        self.echo(&format!("\x1b[0;33m{text}\x1b[0;m"));
    }

    /// One without colour.
    pub(super) fn line(&mut self, text: &str) {
        self.echo(text);
    }

    /// Remove files or directories, whatever their modes; symbolic links are not followed.
    pub(super) fn remove(&mut self, paths: &[&Path]) {
        for path in paths {
            self.raw("if [ -d ").path(path).raw(" ] && [ ! -L ").path(path).raw(" ]; then chmod -R u+rwX ");
            self.path(path).raw("; fi\nrm -r -f ").path(path).raw("\n");
        }
    }

    /// The whole script. It is read from the shell's stdin, so commands get another one; the body is one
    /// quoted word, so a mistake in it is its own and nothing of ours is skipped over; and no subshell is
    /// needed, which would cost a fork.
    pub(super) fn finish(self) -> Vec<u8> {
        let how = self.how;
        let mut out = Vec::with_capacity(self.text.len() * 2 + 512);
        out.extend_from_slice(match how.shell {
            Shell::Bash => b"#!/usr/bin/env bash\n\n",
            Shell::Sh | Shell::Dash => b"#!/bin/sh\n\n",
        });
        // A shell that is told to end says 1 itself, when its command has ended.
        out.extend_from_slice(b"trap 'exit 1' TERM\n");
        if how.trace {
            out.extend_from_slice(b"set -o xtrace\n");
        }
        out.extend_from_slice(match how.shell {
            Shell::Bash => b"set -o pipefail\n",
            Shell::Sh | Shell::Dash => b"case \"$(set -o)\" in *pipefail*) set -o pipefail;; esac\n",
        });
        out.extend_from_slice(b"set -o errexit\nset +o noclobber\neval ");
        how.quoting.push(&mut out, &self.text);
        // The last command's status is the stage's, also after `set +e`, and a .bash_logout that fails must
        // not replace it. All on one line: nothing of ours is left on stdin for a trap to read.
        out.extend_from_slice(b" < /dev/null; set -- $?; set +o errexit; exit \"$1\"\n");
        out
    }

    /// Costs a process only when one of them is missing.
    pub(super) fn make_directories(&mut self, directories: &[&Path]) {
        for (i, directory) in directories.iter().enumerate() {
            self.raw(if i == 0 { "[ -d " } else { " && [ -d " }).path(directory).raw(" ]");
        }
        self.raw(" || _made=$(");
        for (i, directory) in directories.iter().enumerate() {
            self.raw(if i == 0 { "mkdir -p " } else { " && mkdir -p " }).path(directory).raw(" 2>&1");
        }
        self.raw(") || ");
        self.raw(
            "{ printf '\\033[31;1mERROR: the job has no directory to work in, is builds_dir writable? %s\\033[0;m\\n' ",
        );
        self.raw("\"$_made\" >&2; exit 1; }\n");
    }

    /// `$GITLAB_ENV`: each line that an earlier stage wrote there is exported as it is.
    fn read_env(&mut self, paths: &Paths) {
        let file = paths.env_file();
        self.raw("export GITLAB_ENV=").path(&file).raw("\n");
        if self.how.touch_env {
            self.raw(": >> ").path(&file).raw("\n");
        }
        self.raw("if [ -e ").path(&file).raw(" ]; then\n");
        self.raw("while read -r line; do export \"$line\"; done < ").path(&file).raw("; fi\n");
    }

    pub(super) fn export(&mut self, key: &str, value: &[u8]) {
        self.raw("export ").raw(key).raw("=").word(value).raw("\n");
    }

    fn run(&mut self, text: &str) {
        self.raw(text).raw("\n");
        if self.how.check_status {
            self.raw("_status=$?; if [ $_status -ne 0 ]; then exit $_status; fi\n");
        }
    }

    /// `printf`, because some shells' `echo` changes backslashes.
    fn echo(&mut self, line: &str) -> &mut Body {
        self.raw("printf '%s\\n' ").word(line.as_bytes()).raw("\n")
    }

    /// The command's text alone is inside the section, not its output.
    fn section(&mut self, text: &str, name: &str) {
        let (time, now) = match self.how.shell {
            Shell::Bash => ("%(%s)T", " -1 "),
            Shell::Sh | Shell::Dash => ("%s", " \"$(date +%s)\" "),
        };
        self.raw(&format!(
            "printf 'section_start:{time}:{name}[hide_duration=true,collapsed=true]\\r\\033[0K\\033[32;1m$ %s\\033[0;m\\n\
             section_end:{time}:{name}\\r\\033[0K\\n'"
        ));
        self.raw(now).word(text.as_bytes()).raw(now).raw("\n");
    }

    /// Write a file anew, for the job's user alone. What stands in its place is not followed.
    pub(super) fn write(&mut self, path: &Path, text: &str) {
        self.raw("rm -f ").path(path).raw("\n(umask 077; printf '%s' ").word(text.as_bytes()).raw(" > ");
        self.path(path).raw(")\n");
    }

    pub(super) fn raw(&mut self, text: &str) -> &mut Body {
        self.text.extend_from_slice(text.as_bytes());
        self
    }

    pub(super) fn word(&mut self, bytes: &[u8]) -> &mut Body {
        self.how.quoting.push(&mut self.text, bytes);
        self
    }

    pub(super) fn path(&mut self, path: &Path) -> &mut Body {
        use std::os::unix::ffi::OsStrExt;
        self.word(path.as_os_str().as_bytes())
    }
}
