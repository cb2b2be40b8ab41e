//! The settings that a job makes by variables (build §1.9): their values, and words for those that are
//! none. A variable that is there but empty counts as unset.

use super::flags::{Flags, boolean};
use super::variables::Variables;

#[derive(Clone, Debug)]
pub(super) struct Wishes {
    pub(super) debug_trace: bool,
    pub(super) after_script_ignore_errors: bool,
    pub(super) get_sources_attempts: u32,
    pub(super) artifact_download_attempts: u32,
    pub(super) restore_cache_attempts: u32,
    pub(super) git: GitWishes,
    /// In the order of the log; all in one WARNING.
    pub(super) problems: Vec<String>,
}

/// What a job wants of git.
#[derive(Clone, Debug)]
pub(super) struct GitWishes {
    pub(super) checkout: bool,
    /// `None`: the word names no strategy, and get_sources fails by it.
    pub(super) submodules: Option<Submodules>,
    pub(super) force_https: bool,
    /// The job wants nothing of LFS: what it says itself about smudging is left alone.
    pub(super) skip_lfs: bool,
    pub(super) clean_flags: Vec<String>,
    pub(super) fetch_flags: Vec<String>,
    pub(super) clone_flags: Vec<String>,
    pub(super) submodule_paths: Vec<String>,
    pub(super) submodule_depth: i64,
    pub(super) submodule_flags: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submodules {
    None,
    Normal,
    Recursive,
}

/// How the sources come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    Clone,
    Fetch,
    None,
    Empty,
}

impl Strategy {
    /// `None` for a text that names none.
    pub(super) fn parse(text: &str) -> Option<Strategy> {
        Some(match text {
            "clone" => Strategy::Clone,
            "fetch" => Strategy::Fetch,
            "none" => Strategy::None,
            "empty" => Strategy::Empty,
            _ => return None,
        })
    }
}

impl Wishes {
    /// `depth`: the server's word for how much of the history is wanted.
    pub(super) fn read(
        vars: &Variables,
        flags: &Flags,
        (fetch_allowed, depth): (bool, i64),
        debug_trace_disabled: bool,
    ) -> Wishes {
        let mut r = Reader { vars, problems: Vec::new(), clamped: Vec::new() };
        let debug_services = r.boolean("CI_DEBUG_SERVICES", false);
        let debug_trace = r.boolean("CI_DEBUG_TRACE", false);
        let checkout = r.boolean("GIT_CHECKOUT", true);
        r.choice(
            "GIT_STRATEGY",
            |text| Strategy::parse(text).is_some(),
            "expected either 'clone', 'fetch', 'none' or 'empty'",
            if fetch_allowed { ", using default value 'fetch'" } else { ", using default value 'clone'" },
        );
        r.choice(
            "GIT_SUBMODULE_STRATEGY",
            |text| matches!(text, "normal" | "recursive" | "none"),
            "expected either 'normal', 'recursive' or 'none'",
            "",
        );
        let force_https = r.boolean("GIT_SUBMODULE_FORCE_HTTPS", false);
        let skip_lfs = r.boolean("GIT_LFS_SKIP_SMUDGE", false);
        let [get_sources_attempts, artifact_download_attempts, restore_cache_attempts, _, _] = [
            "GET_SOURCES_ATTEMPTS",
            "ARTIFACT_DOWNLOAD_ATTEMPTS",
            "RESTORE_CACHE_ATTEMPTS",
            "EXECUTOR_JOB_SECTION_ATTEMPTS",
            "SECRETS_RETRIEVAL_ATTEMPTS",
        ]
        .map(|name| r.attempts(name));
        let after_script_ignore_errors = r.boolean("AFTER_SCRIPT_IGNORE_ERRORS", true);
        r.integer("CACHE_REQUEST_TIMEOUT", 10);
        for (name, on) in [("CI_DEBUG_SERVICES", debug_services), ("CI_DEBUG_TRACE", debug_trace)] {
            if on && debug_trace_disabled {
                r.problems.push(format!("{name}: usage is disabled on this Runner"));
            }
        }
        let git = GitWishes {
            checkout,
            submodules: match r.get("GIT_SUBMODULE_STRATEGY").as_deref() {
                None | Some("none") => Some(Submodules::None),
                Some("normal") => Some(Submodules::Normal),
                Some("recursive") => Some(Submodules::Recursive),
                Some(_) => None,
            },
            force_https,
            skip_lfs,
            clean_flags: r.words("GIT_CLEAN_FLAGS", "-ffdx"),
            fetch_flags: r.words("GIT_FETCH_EXTRA_FLAGS", "--prune --quiet"),
            clone_flags: r.words("GIT_CLONE_EXTRA_FLAGS", ""),
            submodule_paths: r.get("GIT_SUBMODULE_PATHS").map_or_else(Vec::new, |text| words(&text)),
            submodule_depth: r.get("GIT_SUBMODULE_DEPTH").and_then(|text| text.trim().parse().ok()).unwrap_or(depth),
            submodule_flags: r.words("GIT_SUBMODULE_UPDATE_FLAGS", ""),
        };
        let mut problems = r.problems;
        problems.append(&mut r.clamped);
        problems.extend_from_slice(&flags.problems);
        Wishes {
            debug_trace: debug_trace && !debug_trace_disabled,
            after_script_ignore_errors,
            get_sources_attempts,
            artifact_download_attempts,
            restore_cache_attempts,
            git,
            problems,
        }
    }
}

struct Reader<'a> {
    vars: &'a Variables,
    problems: Vec<String>,
    clamped: Vec<String>,
}

impl Reader<'_> {
    fn get(&self, name: &str) -> Option<String> {
        self.vars.get(name).filter(|v| !v.is_empty())
    }

    /// Flags of a command. The job's replace the default; `none` is no flag at all.
    fn words(&self, name: &str, default: &str) -> Vec<String> {
        match self.get(name) {
            None => words(default),
            Some(text) if text.trim() == "none" => Vec::new(),
            Some(text) => words(&text),
        }
    }

    fn boolean(&mut self, name: &str, default: bool) -> bool {
        let Some(text) = self.get(name) else { return default };
        boolean(&text).unwrap_or_else(|| {
            self.problems.push(format!("{name}: expected bool got {text:?}, using default value: {default}"));
            default
        })
    }

    fn integer(&mut self, name: &str, default: i64) -> i64 {
        let Some(text) = self.get(name) else { return default };
        text.parse().unwrap_or_else(|_| {
            self.problems.push(format!("{name}: expected int got {text:?}, using default value: {default}"));
            default
        })
    }

    fn attempts(&mut self, name: &str) -> u32 {
        let wanted = self.integer(name, 1);
        let n = wanted.clamp(1, 10);
        if n != wanted {
            self.clamped.push(format!("{name}: number of attempts out of the range [1, 10], clamping to: {n}"));
        }
        u32::try_from(n).unwrap_or(1)
    }

    fn choice(&mut self, name: &str, known: impl Fn(&str) -> bool, expected: &str, instead: &str) {
        if let Some(text) = self.get(name).filter(|t| !known(t)) {
            self.problems.push(format!("{name}: {expected} got {text:?}{instead}"));
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
