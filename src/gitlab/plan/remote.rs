//! From where the sources come and who may ask for them (build §4.5): URLs without credentials, and beside
//! them the logins that git is given by a helper. So a token stands in no configuration of a repository,
//! in no URL and in no argument of a process. Pure text.

use crate::gitlab::wire::Payload;
use crate::model::{Secret, Settings};

use super::variables::Variables;

/// The user that a job's token belongs to.
const USER: &str = "gitlab-ci-token";

#[derive(Clone, Debug)]
pub(super) struct Remote {
    /// As `origin` has it: without a password.
    pub(super) url: String,
    /// `scheme://host:port` of `url`, where it is one that asks for passwords.
    pub(super) origin: Option<String>,
    /// One for each server; the first is that of `url`, where that has one.
    pub(super) logins: Vec<Login>,
    /// What stands for what, in git's `insteadOf`.
    pub(super) rewrites: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Login {
    /// `scheme://host:port`.
    pub(super) origin: String,
    pub(super) user: String,
    pub(super) password: Secret,
}

impl Remote {
    /// `force_https`: addresses for ssh are to be fetched by http (GIT_SUBMODULE_FORCE_HTTPS).
    pub(super) fn of(payload: &Payload, settings: &Settings, vars: &Variables, force_https: bool) -> Remote {
        let given = Url::split(&payload.git_info.repo_url);
        let token = |url: &Url<'_>| url.login(USER, &payload.token);
        let own = given.as_ref().and_then(|url| match url.userinfo.and_then(|u| u.split_once(':')) {
            Some((user, password)) => url.login(&decoded(user), &Secret::new(decoded(password))),
            None => token(url),
        });
        let clone_base = Url::split(settings.sources.clone_url.trim_end_matches('/'));
        let base = clone_base.clone().or_else(|| Url::split(settings.url.trim_end_matches('/')));
        let url = match (&clone_base, &given) {
            (Some(base), _) => base.below(&vars.get("CI_PROJECT_PATH").unwrap_or_default()),
            (None, Some(url)) => url.plain(),
            (None, None) => payload.git_info.repo_url.clone(),
        };
        let of_clone_url = clone_base.as_ref().and_then(&token);
        let mut logins: Vec<Login> = Vec::new();
        for login in [of_clone_url, own, base.as_ref().and_then(&token)].into_iter().flatten() {
            if logins.iter().all(|l| l.origin != login.origin) {
                logins.push(login);
            }
        }
        let rewrites = match base.filter(|base| force_https && base.is_http()) {
            Some(base) => ssh_to(&base.plain(), vars),
            None => Vec::new(),
        };
        let origin = Url::split(&url).filter(Url::is_http).map(|u| u.origin());
        Remote { url, origin, logins, rewrites }
    }

    /// The logins that differ: each has a file. `Login`s refer to it by its number.
    pub(super) fn identities(&self) -> Vec<&Login> {
        let mut found: Vec<&Login> = Vec::new();
        for login in &self.logins {
            if !found.iter().any(|f| f.is_the_same_person(login)) {
                found.push(login);
            }
        }
        found
    }
}

impl Login {
    pub(super) fn is_the_same_person(&self, other: &Login) -> bool {
        self.user == other.user && self.password == other.password
    }
}

/// What is rewritten to `base` of the addresses of the server's ssh.
fn ssh_to(base: &str, vars: &Variables) -> Vec<(String, String)> {
    let get = |name: &str| vars.get(name).filter(|v| !v.is_empty());
    let Some(host) = get("CI_SERVER_SHELL_SSH_HOST").or_else(|| get("CI_SERVER_HOST")) else { return Vec::new() };
    match get("CI_SERVER_SHELL_SSH_PORT").as_deref() {
        None | Some("22") => {
            vec![(format!("{base}/"), format!("git@{host}:")), (base.to_owned(), format!("ssh://git@{host}"))]
        }
        Some(port) => vec![(base.to_owned(), format!("ssh://git@{host}:{port}"))],
    }
}

/// A URL in its parts; all that it does not need to know stays as it is.
#[derive(Clone, Debug)]
struct Url<'a> {
    scheme: &'a str,
    userinfo: Option<&'a str>,
    /// With its port.
    host: &'a str,
    rest: &'a str,
}

impl<'a> Url<'a> {
    fn split(text: &'a str) -> Option<Url<'a>> {
        let (scheme, after) = text.split_once("://")?;
        let (authority, rest) = after.split_at(after.find(['/', '?', '#']).unwrap_or(after.len()));
        let (userinfo, host) = match authority.rsplit_once('@') {
            Some((userinfo, host)) => (Some(userinfo), host),
            None => (None, authority),
        };
        (!scheme.is_empty() && !text.contains(['\n', '\0'])).then_some(Url { scheme, userinfo, host, rest })
    }

    fn is_http(&self) -> bool {
        matches!(self.scheme, "http" | "https") && !self.host.is_empty()
    }

    fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.host)
    }

    /// Without a password; ssh keeps the user, who is part of the address.
    fn plain(&self) -> String {
        let user = self.userinfo.map_or("", |u| u.split(':').next().unwrap_or_default());
        match self.scheme {
            "ssh" if !user.is_empty() => format!("ssh://{user}@{}{}", self.host, self.rest),
            _ => format!("{}{}", self.origin(), self.rest),
        }
    }

    /// A project's repository below this address.
    fn below(&self, project: &str) -> String {
        let plain = self.plain();
        let path = project.trim_matches('/');
        match self.scheme {
            "ssh" if self.userinfo.is_none() => format!("ssh://git@{}{}/{path}.git", self.host, self.rest),
            _ => format!("{}/{path}.git", plain.trim_end_matches('/')),
        }
    }

    /// `None`: there is nobody who would be asked, or no password.
    fn login(&self, user: &str, password: &Secret) -> Option<Login> {
        let usable = self.is_http() && !password.is_empty() && !password.reveal().contains(['\n', '\0']);
        usable.then(|| Login { origin: self.origin(), user: user.to_owned(), password: password.clone() })
    }
}

/// `%41` is `A`; a percent sign that begins no such thing stays.
fn decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        match code.filter(|_| byte == b'%') {
            Some(code) => {
                out.push(code);
                rest = &after[2..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::flags::Flags;
    use super::super::paths::Paths;
    use super::super::tests::job;
    use super::*;

    fn remote(repo: &str, clone_url: &str, force_https: bool, variables: &[(&str, &str)]) -> Remote {
        let list: Vec<_> = variables.iter().map(|(k, v)| json!({"key": k, "value": v})).collect();
        let more = json!({"git_info": {"repo_url": repo}, "token": "tok", "variables": list});
        let mut job = job(std::path::Path::new("/b"), more);
        job.settings.url = "https://git.example/root".to_owned();
        job.settings.sources.clone_url = clone_url.to_owned();
        let payload = Payload::read(&job.payload).unwrap();
        let flags = Flags::resolve(&BTreeMap::new(), |_| None);
        let paths = Paths::of(&job, &payload, false);
        let vars = Variables::of(&job, &payload, &flags, &paths);
        Remote::of(&payload, &job.settings, &vars, force_https)
    }

    #[test]
    fn credentials_go_to_a_login_and_never_stay_in_a_url() {
        for (repo, clone_url, url, logins) in [
            (
                "https://gitlab-ci-token:tok@git.example/root/g/p.git",
                "",
                "https://git.example/root/g/p.git",
                &["https://git.example gitlab-ci-token tok"][..],
            ),
            (
                "http://me:p%40ss%@other:8080/g/p.git",
                "",
                "http://other:8080/g/p.git",
                &["http://other:8080 me p@ss%", "https://git.example gitlab-ci-token tok"],
            ),
            (
                "https://gitlab-ci-token:tok@git.example/root/g/p.git",
                "http://u:secret@inside/",
                "http://inside/group/demo.git",
                &["http://inside gitlab-ci-token tok", "https://git.example gitlab-ci-token tok"],
            ),
            (
                "https://gitlab-ci-token:tok@git.example/g/p.git",
                "ssh://inside:2222/x",
                "ssh://git@inside:2222/x/group/demo.git",
                &["https://git.example gitlab-ci-token tok"],
            ),
            ("file:///srv/p.git", "", "file:///srv/p.git", &["https://git.example gitlab-ci-token tok"]),
            ("/srv/p.git", "", "/srv/p.git", &["https://git.example gitlab-ci-token tok"]),
        ] {
            let got = remote(repo, clone_url, false, &[("CI_PROJECT_PATH", "group/demo")]);
            let said: Vec<String> =
                got.logins.iter().map(|l| format!("{} {} {}", l.origin, l.user, l.password.reveal())).collect();
            assert_eq!((got.url.as_str(), said), (url, logins.iter().map(|l| l.to_string()).collect()), "{repo}");
        }
    }

    #[test]
    fn addresses_for_ssh_are_rewritten_where_that_is_wanted() {
        let repo = "https://gitlab-ci-token:tok@git.example/root/g/p.git";
        for (variables, want) in [
            (&[("CI_SERVER_HOST", "git.example")][..], "git@git.example: ssh://git@git.example"),
            (&[("CI_SERVER_HOST", "a"), ("CI_SERVER_SHELL_SSH_HOST", "b")], "git@b: ssh://git@b"),
            (&[("CI_SERVER_HOST", "a"), ("CI_SERVER_SHELL_SSH_PORT", "2222")], "ssh://git@a:2222"),
            (&[], ""),
        ] {
            let got = remote(repo, "", true, variables);
            let from: Vec<&str> = got.rewrites.iter().map(|(_, from)| from.as_str()).collect();
            assert_eq!(from.join(" "), want);
            assert!(got.rewrites.iter().all(|(to, _)| to.starts_with("https://git.example/root")));
        }
        assert!(remote(repo, "", false, &[("CI_SERVER_HOST", "a")]).rewrites.is_empty());
    }
}
