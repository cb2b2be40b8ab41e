//! The scripts that get the sources with git (build §4.2–4.4), command by command in the reference's order.
//! Makes text; starts nothing. No command has a password among its arguments.

use std::path::Path;

use super::compose::Body;
use super::context::Context;
use super::flags::Flag;
use super::gitconfig;
use super::quote::Quoting;
use super::remote::Remote;
use super::submodules;
use super::wishes::{GitWishes, Strategy, Submodules};

/// The error is the reference's word for a setting that no command can follow.
pub(super) fn get_sources(ctx: &Context<'_>, remote: &Remote, strategy: Strategy) -> Result<Body, String> {
    let wishes = &ctx.wishes.git;
    let kind = wishes.submodules.ok_or("unknown GIT_SUBMODULE_STRATEGY")?;
    if wishes.submodule_paths.iter().any(|p| p == ":(exclude)") {
        return Err("GIT_SUBMODULE_PATHS: a lone \":(exclude)\" names no path".to_owned());
    }
    let mut body = ctx.composer.body();
    body.make_directories(&[&ctx.paths.temp]);
    body.variables(ctx.vars, ctx.paths);
    body.raw("export GIT_TERMINAL_PROMPT=0 GCM_INTERACTIVE=Never\n");
    if ctx.composer.git_seed {
        seed(&mut body, ctx, remote);
    }
    let settings = &ctx.settings.sources;
    own_hook(&mut body, &settings.pre_get_sources_script, "pre_clone_script");
    jobs_hook(&mut body, ctx, "pre_get_sources_script", "pre_clone_script");
    if !wishes.skip_lfs {
        body.raw("export GIT_LFS_SKIP_SMUDGE=1\n");
    }
    tidy(&mut body, ctx.paths.git_dir().as_path(), kind, cleans_config(ctx));
    configure(&mut body, ctx, remote);
    if strategy == Strategy::Clone {
        body.remove(&[&ctx.paths.project]);
    }
    Script { body: &mut body, ctx, remote, wishes }.fill(strategy, kind);
    jobs_hook(&mut body, ctx, "post_get_sources_script", "post_clone_script");
    own_hook(&mut body, &settings.post_get_sources_script, "post_clone_script");
    Ok(body)
}

pub(super) fn clear_worktree(ctx: &Context<'_>) -> Body {
    let mut body = ctx.composer.body();
    body.notice("Deleting tracked and untracked files...");
    body.raw("if [ -e ").path(&ctx.paths.git_dir()).raw(" ]; then\ncd ").path(&ctx.paths.project);
    body.raw("\ngit rm -rf --ignore-unmatch --quiet .\ngit clean -ffdx -q\nfi\n");
    body
}

/// git's global configuration for the whole job: the user's own, and what this job adds (build §4.6).
pub(super) fn seed(body: &mut Body, ctx: &Context<'_>, remote: &Remote) {
    let paths = ctx.paths;
    logins(body, ctx, remote);
    body.write(&paths.git_config(), &gitconfig::helpers(paths, remote));
    body.raw("rm -f ").path(&paths.git_seed()).raw("\n{\n");
    // What cannot be read would stop every git.
    for (file, include) in
        [("${HOME-}/.gitconfig", "~/.gitconfig"), ("${HOME-}/.config/git/config", "~/.config/git/config")]
    {
        body.raw(&format!("if [ -r \"{file}\" ]; then printf '[include]\\n\\tpath = {include}\\n'; fi\n"));
    }
    body.raw("printf '%s' ").word(gitconfig::include(paths).as_bytes()).raw("\n} > ");
    body.path(&paths.git_seed()).raw("\n");
}

/// Locks and the hook that a job which was killed, or wanted it so, left behind (build §4.4).
pub(super) fn tidy(body: &mut Body, git_dir: &Path, kind: Submodules, cleans_config: bool) {
    let (refs, modules) = (git_dir.join("refs"), git_dir.join("modules"));
    body.raw("for _file in");
    for name in ["index.lock", "shallow.lock", "HEAD.lock", "config.lock", "hooks/post-checkout"] {
        body.raw(" ").path(&git_dir.join(name));
    }
    body.raw("; do\nif [ -e \"$_file\" ] || [ -L \"$_file\" ]; then rm -f \"$_file\"; fi\ndone\n");
    body.raw("if [ -d ").path(&refs).raw(" ]; then find ").path(&refs);
    body.raw(" -type f -name '*.lock' -exec rm -f {} +; fi\n");
    if cleans_config {
        body.remove(&[&git_dir.join("config"), &git_dir.join("hooks")]);
    }
    if kind == Submodules::None {
        return;
    }
    // Objects are many and have no such names.
    let pruned = " -path '*/objects/[0-9a-f][0-9a-f]' -prune -o ";
    body.raw("if [ -d ").path(&modules).raw(" ]; then\nfind ").path(&modules).raw(pruned);
    body.raw(
        "\\( -name index.lock -o -name shallow.lock -o -name HEAD.lock -o -name config.lock \
         -o -path '*/hooks/post-checkout' -o -path '*/refs/*.lock' \\) -exec rm -f {} +\n",
    );
    if cleans_config {
        body.raw("find ").path(&modules).raw(pruned);
        body.raw("-type f -name config ! -path '*/refs/*' ! -path '*/logs/*' -exec rm -f {} +\nfind ");
        body.path(&modules).raw(pruned).raw("-type d -name hooks -prune -exec rm -r -f {} +\n");
    }
    body.raw("fi\n");
}

/// Whether what is left of the last job's configuration goes before this one's is made.
pub(super) fn cleans_config(ctx: &Context<'_>) -> bool {
    let by_default = ctx.settings.executor != "shell";
    ctx.settings.sources.clean_git_config.unwrap_or(by_default)
}

/// Best-effort: a helper of the user's that heard of this job's token forgets it.
pub(super) fn forget_login(body: &mut Body, remote: &Remote) {
    for login in &remote.logins {
        let about = format!("url={}\nusername={}\n\n", login.origin, login.user);
        body.raw("printf '%s' ").word(about.as_bytes());
        body.raw(" | GIT_TERMINAL_PROMPT=0 git credential reject > /dev/null 2>&1 || true\n");
    }
}

/// The entry's hook, one command.
fn own_hook(body: &mut Body, text: &str, name: &str) {
    if !text.trim().is_empty() {
        body.command(text, &format!("section_{name}_0"));
    }
}

fn jobs_hook(body: &mut Body, ctx: &Context<'_>, hook: &str, name: &str) {
    for hook in ctx.payload.hooks.iter().filter(|h| h.name == hook) {
        for (i, text) in hook.script.iter().enumerate() {
            body.command(text, &format!("section_{name}_{i}"));
        }
    }
}

/// The template is made anew, so that a repository is not given what an earlier job put there.
fn configure(body: &mut Body, ctx: &Context<'_>, remote: &Remote) {
    let paths = ctx.paths;
    let template = paths.git_template();
    body.raw("rm -r -f ").path(&template).raw("\nmkdir ").path(&template).raw("\n");
    body.raw("printf '%s' ").word(gitconfig::template(paths).as_bytes()).raw(" > ");
    body.path(&template.join("config")).raw("\n");
    logins(body, ctx, remote);
    body.write(&paths.git_config(), &gitconfig::external(ctx, remote));
    if let Some(id) = gitconfig::correlation(ctx) {
        body.notice(&format!("Gitaly correlation ID: {id}"));
    }
    body.export("GLR_EXT_GIT_CONFIG_PATH", paths.git_config().to_string_lossy().as_bytes());
}

fn logins(body: &mut Body, ctx: &Context<'_>, remote: &Remote) {
    for (n, login) in remote.identities().into_iter().enumerate() {
        body.write(&ctx.paths.login(n), &gitconfig::identity(login));
    }
}

/// The commands themselves.
struct Script<'a> {
    body: &'a mut Body,
    ctx: &'a Context<'a>,
    remote: &'a Remote,
    wishes: &'a GitWishes,
}

impl Script<'_> {
    fn fill(&mut self, strategy: Strategy, kind: Submodules) {
        if strategy == Strategy::Clone && self.ctx.flags.on(Flag::FF_USE_GIT_NATIVE_CLONE) {
            self.body.raw(
                "_version=$(git version)\n_version=${_version#git version }\n_minor=${_version#*.}\n\
                 _version=${_version%%.*}\n_minor=${_minor%%.*}\n\
                 if [ \"$_version\" -gt 2 ] || { [ \"$_version\" -eq 2 ] && [ \"$_minor\" -ge 49 ]; }; then\n",
            );
            self.clone_natively();
            self.body.raw("else\n");
            self.fetch();
            self.body.raw("fi\n");
        } else {
            self.fetch();
        }
        self.checkout();
        match kind {
            Submodules::None => self.body.notice("Skipping Git submodules setup"),
            kind => submodules::update(self.body, self.ctx, kind),
        }
    }

    fn clone_natively(&mut self) {
        let info = &self.ctx.payload.git_info;
        let depth = info.depth;
        self.body.notice(&match (info.reference.is_empty(), depth > 0) {
            (true, _) => "Cloning repository...".to_owned(),
            (false, true) => format!("Cloning repository for {} with git depth set to {depth}...", info.reference),
            (false, false) => format!("Cloning repository for {}...", info.reference),
        });
        self.asking_git();
        self.body.raw(" clone --no-checkout ").word(self.remote.url.as_bytes()).raw(" ").path(&self.ctx.paths.project);
        self.body.raw(" --template ").path(&self.ctx.paths.git_template());
        if depth > 0 {
            self.body.raw(&format!(" --depth {depth}"));
        }
        match info.reference.as_str() {
            "" => {}
            full if full.starts_with("refs/") => {
                self.body.raw(" --revision ").word(full.as_bytes());
            }
            branch => {
                self.body.raw(" --branch ").word(branch.as_bytes());
            }
        }
        words(self.body, &self.wishes.clone_flags);
        self.body.raw("\ncd ").path(&self.ctx.paths.project).raw("\n");
    }

    fn fetch(&mut self) {
        let info = &self.ctx.payload.git_info;
        self.body.notice(&match info.depth {
            depth if depth > 0 => format!("Fetching changes with git depth set to {depth}..."),
            _ => "Fetching changes...".to_owned(),
        });
        let (project, template) = (&self.ctx.paths.project, self.ctx.paths.git_template());
        self.body.raw("git init ").path(project).raw(" --template ").path(&template);
        if !matches!(info.repo_object_format.as_str(), "" | "sha1") {
            self.body.raw(" --object-format ").word(info.repo_object_format.as_bytes());
        }
        self.body.raw("\ncd ").path(project).raw("\n");
        self.body.raw("if git remote add origin ").word(self.remote.url.as_bytes()).raw(" > /dev/null 2>&1; then\n");
        self.body.notice("Created fresh repository.");
        self.body.raw("else\ngit remote set-url origin ").word(self.remote.url.as_bytes());
        self.body.raw("\ngit config --replace-all include.path ").path(&self.ctx.paths.git_config());
        self.body.raw(" '\\.gitlab-runner\\.ext\\.conf$'\nfi\n");
        if info.depth > 0 {
            self.fetch_with(&format!(" --depth {}", info.depth));
        } else {
            // The last job may have left a shallow one.
            self.body.raw("if [ -f .git/shallow ]; then\n");
            self.fetch_with(" --unshallow");
            self.body.raw("else\n");
            self.fetch_with("");
            self.body.raw("fi\n");
        }
    }

    fn fetch_with(&mut self, depth: &str) {
        self.asking_git();
        self.body.raw(" fetch origin --no-recurse-submodules");
        words(self.body, &self.ctx.payload.git_info.refspecs);
        self.body.raw(depth);
        words(self.body, &self.wishes.fetch_flags);
        self.body.raw("\n");
    }

    fn checkout(&mut self) {
        if !self.wishes.checkout {
            return self.body.notice("Skipping Git checkout");
        }
        let info = &self.ctx.payload.git_info;
        let short: String = info.sha.chars().take(8).collect();
        self.body.notice(&format!("Checking out {short} as detached HEAD (ref is {})...", info.reference));
        self.git();
        self.body.raw(" -c submodule.recurse=false checkout -f -q ").word(info.sha.as_bytes()).raw("\n");
        if !self.wishes.clean_flags.is_empty() {
            self.body.raw("git clean");
            words(self.body, &self.wishes.clean_flags);
            self.body.raw("\n");
        }
        if !self.wishes.skip_lfs {
            self.body.raw("if git lfs version > /dev/null 2>&1; then git lfs pull; echo; fi\n");
        }
    }

    /// A git that speaks to the server and says who we are.
    fn asking_git(&mut self) {
        self.git();
        let agent = format!("http.userAgent={}", crate::model::user_agent());
        self.body.raw(" -c ").word(agent.as_bytes());
    }

    fn git(&mut self) {
        self.body.raw("git");
        if let Some(origin) = self.remote.origin.as_ref().filter(|_| self.ctx.flags.on(Flag::FF_USE_GIT_PROACTIVE_AUTH))
        {
            self.body.raw(" -c ").word(format!("http.{origin}.proactiveAuth=basic").as_bytes());
        }
    }
}

pub(super) fn words(body: &mut Body, words: &[String]) {
    for word in words {
        body.raw(" ").word(word.as_bytes());
    }
}

/// Words as one text for another shell.
pub(super) fn quoted(words: &[String]) -> String {
    let mut out = Vec::new();
    for word in words {
        out.push(b' ');
        Quoting::Posix.push(&mut out, word.as_bytes());
    }
    String::from_utf8_lossy(&out).into_owned()
}
