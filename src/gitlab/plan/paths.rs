//! Where a job works (build §2): its project directory and the one for temporary files beside it. Looks
//! at the file system by `lstat` only; makes and removes nothing, that is a stage's work.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::gitlab::wire::Payload;
use crate::model::Job;

#[derive(Clone, Debug)]
pub(super) struct Paths {
    pub(super) builds: PathBuf,
    pub(super) project: PathBuf,
    /// Where the archives of this project's caches lie on this host.
    pub(super) cache: PathBuf,
    /// Beside the project directory, and not removed between jobs.
    pub(super) temp: PathBuf,
}

/// What a job may leave in its temporary directory, besides file variables.
const LEFTOVERS: [&str; 6] = [ENV_FILE, "masking.db", GIT_CONFIG, GIT_SEED, LOGINS[0], LOGINS[1]];
/// What every repository of a job includes. Users' repositories know this name.
const GIT_CONFIG: &str = ".gitlab-runner.ext.conf";
/// git's global configuration with FF_GIT_URLS_WITHOUT_TOKENS.
const GIT_SEED: &str = ".glr.gconf";
/// The only files with a token in them.
const LOGINS: [&str; 2] = [".gitlab-runner.login", ".gitlab-runner.login-2"];
/// `$GITLAB_ENV`: variables that a stage hands to the next ones.
pub(super) const ENV_FILE: &str = "gitlab_runner_env";

impl Paths {
    /// `empty`: the job wants a directory of its own that is empty (GIT_STRATEGY).
    pub(super) fn of(job: &Job, payload: &Payload, empty: bool) -> Paths {
        let settings = &job.settings;
        if settings.custom.as_ref().is_some_and(|c| !c.is_placed) {
            return Paths {
                builds: PathBuf::new(),
                project: PathBuf::new(),
                cache: PathBuf::new(),
                temp: ".tmp".into(),
            };
        }
        // The job process keeps the manager's working directory, and stages may have another.
        let builds = match settings.custom {
            Some(_) => settings.builds_dir.clone(),
            None => std::path::absolute(&settings.builds_dir).unwrap_or_else(|_| settings.builds_dir.clone()),
        };
        let slug = slug(&payload.git_info.repo_url).unwrap_or_else(|| format!("project-{}", project_id(job, payload)));
        let token =
            if settings.short_token.is_empty() { file_name(&settings.entry) } else { settings.short_token.clone() };
        let caches = match settings.custom {
            Some(_) => settings.cache_dir.clone(),
            None => std::path::absolute(&settings.cache_dir).unwrap_or_else(|_| settings.cache_dir.clone()),
        };
        let mut cache = caches.join(&slug).into_os_string();
        // A driver has a place for each job, unless it says otherwise.
        let shared = settings.custom.as_ref().is_none_or(|c| c.shared);
        let place = if shared { builds.join(token).join(job.project_slot.to_string()) } else { builds.clone() };
        let mut project = place.join(slug).into_os_string();
        if empty {
            project.push("-empty");
            cache.push("-empty");
        }
        let mut temp = project.clone();
        temp.push(".tmp");
        Paths { builds, project: project.into(), temp: temp.into(), cache: cache.into() }
    }

    /// A directory that the job itself chose (GIT_CLONE_PATH). The error says why it cannot be had.
    pub(super) fn chosen(&self, place: &str) -> Result<Paths, String> {
        let project = cleaned(Path::new(place));
        match project.strip_prefix(&self.builds) {
            Ok(inside) if !inside.to_string_lossy().starts_with("..") => {
                let mut temp = project.clone().into_os_string();
                temp.push(".tmp");
                Ok(Paths { builds: self.builds.clone(), project, temp: temp.into(), cache: self.cache.clone() })
            }
            _ => Err(format!("the GIT_CLONE_PATH={place:?} has to be within {:?}", self.builds.display().to_string())),
        }
    }

    /// All that may be left in the temporary directory, besides file variables.
    pub(super) fn leftovers(&self) -> impl Iterator<Item = PathBuf> {
        LEFTOVERS.iter().map(|name| self.temp.join(name))
    }

    pub(super) fn git_dir(&self) -> PathBuf {
        self.project.join(".git")
    }

    pub(super) fn git_template(&self) -> PathBuf {
        self.temp.join("git-template")
    }

    pub(super) fn git_config(&self) -> PathBuf {
        self.temp.join(GIT_CONFIG)
    }

    pub(super) fn git_seed(&self) -> PathBuf {
        self.temp.join(GIT_SEED)
    }

    /// A job has no more than two: one of its URL, one of its token.
    pub(super) fn login(&self, number: usize) -> PathBuf {
        self.temp.join(LOGINS[number.min(1)])
    }

    pub(super) fn env_file(&self) -> PathBuf {
        self.temp.join(ENV_FILE)
    }
}

/// Whether something of this name is there. What cannot be looked at may be.
pub(super) fn exists(path: &Path) -> bool {
    !matches!(path.symlink_metadata(), Err(e) if e.kind() == io::ErrorKind::NotFound)
}

/// Without `.` and `..`, by its text alone.
fn cleaned(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

/// The path of a repository's URL without `.git`; `None` when there is no host, no path, or it climbs.
fn slug(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_once('/')?;
    if host.rsplit('@').next().unwrap_or_default().is_empty() {
        return None;
    }
    let path = path.trim_end_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    let mut parts = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    (!parts.is_empty() && !path.contains('\0')).then(|| parts.join("/"))
}

fn project_id(job: &Job, payload: &Payload) -> String {
    match payload.job_info.project_id {
        0 if !job.project.is_empty() => file_name(&job.project),
        id => id.to_string(),
    }
}

/// Any text as one file name.
fn file_name(text: &str) -> String {
    let name: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' }).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_names_the_directory() {
        for (url, want) in [
            ("http://127.0.0.1:1/group/demo.git", Some("group/demo")),
            ("https://gitlab-ci-token:x@h.example/relative/root/a/b/c.git", Some("relative/root/a/b/c")),
            ("https://h/a//b/./c.git/", Some("a/b/c")),
            ("ssh://git@h:22/a.git?x#y", Some("a")),
            ("https://h/a/../../etc", None),
            ("https:///a", None),
            ("https://u:p@/a", None),
            ("https://h/", None),
            ("https://h/.git", None),
            ("git@h:a/b.git", None),
            ("", None),
        ] {
            assert_eq!(slug(url).as_deref(), want, "{url}");
        }
    }

    #[test]
    fn a_chosen_directory_lies_below_the_builds() {
        let paths = Paths {
            builds: "/b".into(),
            project: "/b/t/0/p".into(),
            temp: "/b/t/0/p.tmp".into(),
            cache: "/c/p".into(),
        };
        for (place, want) in [
            ("/b/x", Some("/b/x")),
            ("/b/x/../y/./z/", Some("/b/y/z")),
            ("/b", Some("/b")),
            ("/b/../etc", None),
            ("/b/..x", None),
            ("/bb", None),
            ("x", None),
        ] {
            let got = paths.chosen(place).map(|p| p.project.display().to_string());
            assert_eq!(got.as_deref().ok(), want, "{place}");
        }
        assert_eq!(paths.chosen("/etc").unwrap_err(), "the GIT_CLONE_PATH=\"/etc\" has to be within \"/b\"");
        assert_eq!(paths.chosen("/b/x").unwrap().temp, Path::new("/b/x.tmp"));
    }

    #[test]
    fn any_text_becomes_one_file_name() {
        assert_eq!(file_name("../my entry"), "___my_entry");
        assert_eq!(file_name(""), "_");
    }
}
