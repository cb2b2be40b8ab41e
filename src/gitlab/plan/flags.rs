//! GitLab's feature flags: their table, and how each gets its value (build §3.6). All of them reach the
//! job as variables; few mean something here.

use std::collections::BTreeMap;

macro_rules! flags {
    ($($name:ident = $default:literal;)*) => {
        /// In the order in which they are exported and shown.
        #[expect(non_camel_case_types, reason = "the names that users write")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Flag { $($name,)* }

        impl Flag {
            const ALL: &[(Flag, &str, bool)] = &[$((Flag::$name, stringify!($name), $default),)*];
        }
    };
}

flags! {
    FF_TEST_FEATURE = false;
    FF_NETWORK_PER_BUILD = false;
    FF_USE_LEGACY_KUBERNETES_EXECUTION_STRATEGY = false;
    FF_USE_DIRECT_DOWNLOAD = true;
    FF_USE_FASTZIP = true;
    FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR = false;
    FF_ENABLE_BASH_EXIT_CODE_CHECK = false;
    FF_USE_WINDOWS_LEGACY_PROCESS_STRATEGY = false;
    FF_USE_LEGACY_BASH_EVAL = false;
    FF_USE_POWERSHELL_PATH_RESOLVER = false;
    FF_USE_DYNAMIC_TRACE_FORCE_SEND_INTERVAL = false;
    FF_SCRIPT_SECTIONS = false;
    FF_ENABLE_JOB_CLEANUP = false;
    FF_KUBERNETES_HONOR_ENTRYPOINT = false;
    FF_POSIXLY_CORRECT_ESCAPES = false;
    FF_RESOLVE_FULL_TLS_CHAIN = false;
    FF_DISABLE_POWERSHELL_STDIN = false;
    FF_USE_POD_ACTIVE_DEADLINE_SECONDS = true;
    FF_USE_ADVANCED_POD_SPEC_CONFIGURATION = false;
    FF_SECRET_RESOLVING_FAILS_IF_MISSING = true;
    FF_PRINT_POD_EVENTS = false;
    FF_USE_GIT_BUNDLE_URIS = true;
    FF_USE_GIT_NATIVE_CLONE = false;
    FF_USE_DUMB_INIT_WITH_KUBERNETES_EXECUTOR = false;
    FF_USE_INIT_WITH_DOCKER_EXECUTOR = false;
    FF_LOG_IMAGES_CONFIGURED_FOR_JOB = false;
    FF_USE_DOCKER_AUTOSCALER_DIAL_STDIO = true;
    FF_CLEAN_UP_FAILED_CACHE_EXTRACT = false;
    FF_USE_WINDOWS_JOB_OBJECT = false;
    FF_TIMESTAMPS = true;
    FF_DISABLE_AUTOMATIC_TOKEN_ROTATION = false;
    FF_USE_LEGACY_GCS_CACHE_ADAPTER = false;
    FF_DISABLE_UMASK_FOR_KUBERNETES_EXECUTOR = false;
    FF_USE_LEGACY_S3_CACHE_ADAPTER = false;
    FF_GIT_URLS_WITHOUT_TOKENS = false;
    FF_WAIT_FOR_POD_TO_BE_REACHABLE = false;
    FF_MASK_ALL_DEFAULT_TOKENS = true;
    FF_EXPORT_HIGH_CARDINALITY_METRICS = false;
    FF_USE_FLEETING_ACQUIRE_HEARTBEATS = false;
    FF_USE_EXPONENTIAL_BACKOFF_STAGE_RETRY = true;
    FF_USE_ADAPTIVE_REQUEST_CONCURRENCY = true;
    FF_USE_GITALY_CORRELATION_ID = true;
    FF_USE_GIT_PROACTIVE_AUTH = false;
    FF_HASH_CACHE_KEYS = false;
    FF_ENABLE_JOB_INPUTS_INTERPOLATION = true;
    FF_USE_JOB_ROUTER = false;
    FF_SCRIPT_TO_STEP_MIGRATION = false;
    FF_USE_PARALLEL_CACHE_TRANSFER = false;
    FF_USE_PARALLEL_ARTIFACT_TRANSFER = false;
    FF_CONCRETE = false;
    FF_SUSPENDABLE_ENVIRONMENTS = false;
    FF_USE_NATIVE_CONTAINER_STOP = false;
}

/// Every flag's value for one job.
#[derive(Clone, Debug)]
pub(super) struct Flags {
    on: [bool; Flag::ALL.len()],
    /// Values that are no booleans, in words for the log.
    pub(super) problems: Vec<String>,
}

impl Flags {
    /// The entry's setting wins over the variable that `wanted` finds, that over the default.
    pub(super) fn resolve<'a>(entry: &BTreeMap<String, bool>, wanted: impl Fn(&str) -> Option<&'a str>) -> Flags {
        let mut flags = Flags { on: [false; Flag::ALL.len()], problems: Vec::new() };
        for (flag, name, default) in Flag::ALL {
            let value = match (entry.get(*name), wanted(name)) {
                (Some(set), _) => *set,
                (None, Some(text)) if !text.is_empty() => boolean(text).unwrap_or_else(|| {
                    flags.problems.push(format!("{name}: could not parse feature flag, expected bool, got {text}"));
                    *default
                }),
                _ => *default,
            };
            flags.on[*flag as usize] = value;
        }
        flags
    }

    pub(super) fn on(&self, flag: Flag) -> bool {
        self.on[flag as usize]
    }

    /// Name and value of all, in the table's order.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, bool)> {
        Flag::ALL.iter().map(|(flag, name, _)| (*name, self.on(*flag)))
    }

    /// `FF_A:true, FF_B:false`: those that differ from their default; empty when none does.
    pub(super) fn changed(&self) -> String {
        let changed = Flag::ALL.iter().filter(|(flag, _, default)| self.on(*flag) != *default);
        changed.map(|(flag, name, _)| format!("{name}:{}", self.on(*flag))).collect::<Vec<_>>().join(", ")
    }
}

/// Whether a variable of this name is a flag: the job's own entry is replaced by the resolved one.
pub(super) fn is_flag(name: &str) -> bool {
    name.starts_with("FF_") && Flag::ALL.iter().any(|(_, n, _)| *n == name)
}

/// The words for true and false that GitLab knows; nothing else is one.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_wins_over_the_variable_and_that_over_the_default() {
        let entry = BTreeMap::from([("FF_TIMESTAMPS".to_owned(), false)]);
        let flags = Flags::resolve(&entry, |name| match name {
            "FF_TIMESTAMPS" | "FF_SCRIPT_SECTIONS" => Some("true"),
            "FF_USE_FASTZIP" => Some("maybe"),
            _ => None,
        });
        assert!(!flags.on(Flag::FF_TIMESTAMPS));
        assert!(flags.on(Flag::FF_SCRIPT_SECTIONS));
        assert!(flags.on(Flag::FF_USE_FASTZIP));
        assert_eq!(flags.changed(), "FF_SCRIPT_SECTIONS:true, FF_TIMESTAMPS:false");
        assert_eq!(flags.problems, ["FF_USE_FASTZIP: could not parse feature flag, expected bool, got maybe"]);
        assert_eq!(flags.all().next(), Some(("FF_TEST_FEATURE", false)));
        assert!(is_flag("FF_CONCRETE") && !is_flag("FF_OTHER"));
    }
}
