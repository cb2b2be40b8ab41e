//! The configuration files that git is given for one job (build §4.2, §4.6): a template for new
//! repositories, one file that all of them include, and a helper that knows the job's login. Makes text;
//! writes nothing. No text here but [`identity`] holds a secret.

use std::path::Path;

use super::context::Context;
use super::flags::Flag;
use super::paths::Paths;
use super::quote::Quoting;
use super::remote::{Login, Remote};

/// The template's, which becomes a new repository's own.
pub(super) fn template(paths: &Paths) -> String {
    format!(
        "[init]\n\tdefaultBranch = none\n[fetch]\n\trecurseSubmodules = false\n[credential]\n\tinteractive = never\n\
         [gc]\n\tautoDetach = false\n{}",
        include(paths)
    )
}

pub(super) fn include(paths: &Paths) -> String {
    format!("[include]\n\tpath = {}\n", value(&paths.git_config().to_string_lossy()))
}

/// What every repository of the job includes. It ends with the job.
pub(super) fn external(ctx: &Context<'_>, remote: &Remote) -> String {
    let mut text = String::new();
    if let Some(id) = correlation(ctx) {
        text.push_str(&format!("[http]\n\textraHeader = {}\n", value(&format!("X-Gitaly-Correlation-ID: {id}"))));
    }
    if ctx.flags.on(Flag::FF_USE_GIT_BUNDLE_URIS) {
        text.push_str("[transfer]\n\tbundleURI = true\n");
    }
    let files = [
        ("sslCAInfo", "CI_SERVER_TLS_CA_FILE"),
        ("sslCert", "CI_SERVER_TLS_CERT_FILE"),
        ("sslKey", "CI_SERVER_TLS_KEY_FILE"),
    ];
    let files: Vec<_> = files.iter().filter_map(|(key, name)| Some((key, ctx.vars.get(name)?))).collect();
    let mut servers: Vec<&str> = remote.origin.iter().map(String::as_str).collect();
    servers.extend(remote.logins.iter().map(|l| l.origin.as_str()));
    servers.sort_unstable();
    servers.dedup();
    for server in servers.into_iter().filter(|_| !files.is_empty()) {
        text.push_str(&section("http", server));
        for (key, file) in &files {
            text.push_str(&format!("\t{key} = {}\n", value(file)));
        }
    }
    text.push_str(&helpers(ctx.paths, remote));
    for (to, from) in &remote.rewrites {
        text.push_str(&format!("{}\tinsteadOf = {}\n", section("url", to), value(from)));
    }
    text
}

/// Who answers for which server. An inherited helper is neither asked nor told the token.
pub(super) fn helpers(paths: &Paths, remote: &Remote) -> String {
    let identities = remote.identities();
    let mut text = String::new();
    for login in &remote.logins {
        let number = identities.iter().position(|i| i.is_the_same_person(login)).unwrap_or(0);
        let helper = helper(&login.user, &paths.login(number));
        text.push_str(&format!(
            "{}\thelper =\n\thelper = {}\n\tusername = {}\n",
            section("credential", &login.origin),
            value(&helper),
            value(&login.user)
        ));
    }
    text
}

/// What the helper says: the only file of ours that holds a secret.
pub(super) fn identity(login: &Login) -> String {
    format!("username={}\npassword={}\n", login.user, login.password.reveal())
}

/// The word for the server's log that joins the job with its fetches.
pub(super) fn correlation<'a>(ctx: &Context<'a>) -> Option<&'a str> {
    let id = ctx.request_id;
    let plain = !id.is_empty() && id.len() <= 256 && id.bytes().all(|b| b.is_ascii_graphic());
    (ctx.flags.on(Flag::FF_USE_GITALY_CORRELATION_ID) && plain).then_some(id)
}

/// Answers for its user only, so that a job may log in as somebody else; reads with what a shell has built
/// in, so that the password is no argument of a process either.
fn helper(user: &str, file: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let (mut name, mut path) = (Vec::new(), Vec::new());
    Quoting::Posix.push(&mut name, format!("username={user}").as_bytes());
    Quoting::Posix.push(&mut path, file.as_os_str().as_bytes());
    let (name, path) = (String::from_utf8_lossy(&name), String::from_utf8_lossy(&path));
    format!(
        "!f() {{ [ \"$1\" = get ] && [ -r {path} ] || exit 0; \
         while read -r l; do case $l in {name}) ;; username=*) exit 0;; esac; done; \
         while read -r l; do printf '%s\\n' \"$l\"; done < {path}; }}; f"
    )
}

fn section(name: &str, of: &str) -> String {
    format!("[{name} \"{}\"]\n", of.replace('\\', "\\\\").replace('"', "\\\""))
}

fn value(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::model::Secret;

    /// What git itself reads out of a file.
    #[expect(clippy::disallowed_methods, reason = "a test asks the real git")]
    fn git(args: &[&str], stdin: &str, dir: &Path) -> String {
        std::fs::write(dir.join("stdin"), stdin).unwrap();
        let out = std::process::Command::new("git")
            .args(args)
            .current_dir(dir)
            .env("HOME", dir)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .stdin(std::fs::File::open(dir.join("stdin")).unwrap())
            .output()
            .unwrap();
        String::from_utf8(out.stdout).unwrap()
    }

    #[test]
    fn the_helper_answers_for_its_user_and_its_server_only_and_keeps_nothing() {
        let dir = tempfile::Builder::new().prefix("it's \"odd\" \\").tempdir().unwrap();
        let dir = dir.path();
        let paths = Paths { builds: dir.into(), project: PathBuf::new(), temp: dir.into(), cache: PathBuf::new() };
        let login =
            Login { origin: "http://h:81".into(), user: "gitlab-ci-token".into(), password: Secret::new("p'\"w") };
        let remote = Remote { url: String::new(), origin: None, logins: vec![login.clone()], rewrites: vec![] };
        std::fs::write(dir.join(".gitconfig"), "[credential]\n\thelper = store\n").unwrap();
        std::fs::write(dir.join("ext"), helpers(&paths, &remote)).unwrap();
        std::fs::write(paths.login(0), identity(&login)).unwrap();
        let include = format!("include.path={}/ext", dir.display());
        let ask = |what: &str, about: &str| git(&["-c", &include, "credential", what], about, dir);
        let known = ask("fill", "protocol=http\nhost=h:81\n");
        assert!(known.contains("username=gitlab-ci-token\npassword=p'\"w\n"), "{known}");
        ask("approve", "protocol=http\nhost=h:81\nusername=gitlab-ci-token\npassword=p'\"w\n");
        assert!(!dir.join(".git-credentials").exists(), "an inherited helper was told");
        for other in
            ["protocol=http\nhost=h:81\nusername=me\n", "protocol=http\nhost=h\n", "protocol=https\nhost=h:81\n"]
        {
            assert_eq!(ask("fill", other), "", "{other}");
        }
        ask("approve", "protocol=http\nhost=other\nusername=me\npassword=mine\n");
        assert!(ask("fill", "protocol=http\nhost=other\n").contains("mine"), "other servers keep their helpers");
    }

    #[test]
    fn odd_values_come_out_of_git_as_they_went_in() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["plain", "a \"b\" \\c #d ;e", " led\tby\nblanks ", "ü"] {
            std::fs::write(dir.path().join("c"), format!("{}\tkey = {}\n", section("a", text), value(text))).unwrap();
            if !text.contains('\n') {
                let got = git(&["config", "-f", "c", "--get", &format!("a.{text}.key")], "", dir.path());
                assert_eq!(got, format!("{text}\n"));
            }
        }
    }
}
