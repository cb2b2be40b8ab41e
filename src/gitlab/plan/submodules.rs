//! The commands that bring submodules up to date (build §4.3), in the project directory of a job whose own
//! sources are there. Makes text; starts nothing.

use super::compose::Body;
use super::context::Context;
use super::git::{quoted, words};
use super::wishes::{GitWishes, Submodules};

pub(super) fn update(body: &mut Body, ctx: &Context<'_>, kind: Submodules) {
    let wishes = &ctx.wishes.git;
    let depth = wishes.submodule_depth;
    let how = if kind == Submodules::Recursive { " recursively" } else { "" };
    let with = if depth > 0 { format!(" with git depth set to {depth}") } else { String::new() };
    body.notice(&format!("Updating/initializing submodules{how}{with}..."));
    let mut run = Run { body, wishes, recursive: if kind == Submodules::Recursive { " --recursive" } else { "" } };
    run.body.raw("git submodule init\n");
    run.sync();
    run.clean();
    run.reset();
    run.body.raw("if ");
    run.update(depth);
    run.body.raw("; then\n");
    run.body.notice("Updated submodules");
    run.sync();
    run.body.raw("else\n");
    run.body.warning("Updating submodules failed. Retrying...");
    if wishes.submodule_flags.iter().any(|f| f.eq_ignore_ascii_case("--remote")) {
        run.with_credentials();
        run.each("git fetch origin '+refs/heads/*:refs/remotes/origin/*'");
    }
    run.sync();
    run.update(depth);
    run.body.raw("\n");
    run.reset();
    run.body.raw("fi\n");
    run.clean();
    run.credentials_and_files();
}

struct Run<'a> {
    body: &'a mut Body,
    wishes: &'a GitWishes,
    recursive: &'static str,
}

impl Run<'_> {
    fn sync(&mut self) {
        self.body.raw("git submodule sync").raw(self.recursive);
        self.paths();
        self.body.raw("\n");
    }

    /// Also where the project itself shall not be cleaned.
    fn clean(&mut self) {
        let flags = &self.wishes.clean_flags;
        let flags = if flags.is_empty() { " -ffdx".to_owned() } else { quoted(flags) };
        self.body.raw("git");
        self.each(&format!("git clean{flags}"));
    }

    fn reset(&mut self) {
        self.body.raw("git");
        self.each("git reset --hard");
    }

    /// Without an end of line.
    fn update(&mut self, depth: i64) {
        self.with_credentials();
        self.body.raw(" submodule update --init").raw(self.recursive);
        if depth > 0 {
            self.body.raw(&format!(" --depth {depth}"));
        }
        words(self.body, &self.wishes.submodule_flags);
        self.paths();
    }

    /// The job's later commands in a submodule find the job's login, and its LFS files are there.
    fn credentials_and_files(&mut self) {
        self.body.notice("Configuring submodules to use parent git credentials...");
        self.body.raw("git submodule foreach --recursive ");
        self.body.word(b"git config --replace-all include.path \"$GLR_EXT_GIT_CONFIG_PATH\"").raw("\n");
        if !self.wishes.skip_lfs {
            self.body.raw("if git lfs version > /dev/null 2>&1; then\n");
            self.body.notice("Pulling LFS files...");
            self.with_credentials();
            self.each("git lfs pull");
            self.body.raw("fi\n");
        }
    }

    /// A `git` for repositories that do not include our configuration yet.
    fn with_credentials(&mut self) {
        self.body.raw("git -c include.path=\"$GLR_EXT_GIT_CONFIG_PATH\"");
    }

    /// After a `git`: this in each submodule.
    fn each(&mut self, command: &str) {
        self.body.raw(" submodule foreach").raw(self.recursive).raw(" ").word(command.as_bytes()).raw("\n");
    }

    fn paths(&mut self) {
        if !self.wishes.submodule_paths.is_empty() {
            self.body.raw(" --");
            words(self.body, &self.wishes.submodule_paths);
        }
    }
}
