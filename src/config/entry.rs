//! One `[[runners]]` table: its keys, defaults, and why an entry takes no jobs. What is wrong in type is
//! an error of the file; what we cannot run disables the entry alone, by name.

use std::path::Path;
use std::time::Duration;

use super::table::{Report, Table};
use super::{Entry, ShowLogs, Surroundings, cache, custom, values};
use crate::model::{Custom, ForgeKind, Limits, Secret, Shell, Sources, Uploads};

/// Keys of gitlab-runner that we do not act on.
const KNOWN: [&str; 24] = [
    "autoscaler",
    "custom",
    "docker",
    "experimental",
    "instance",
    "job_status_final_update_retry_limit",
    "kubernetes",
    "labels",
    "machine",
    "monitoring",
    "parallels",
    "proxy_exec",
    "referees",
    "slot_cgroup_template",
    "ssh",
    "step_runner_image",
    "strict_check_interval",
    "tls-cert-file",
    "tls-key-file",
    "token_expires_at",
    "unhealthy_interval",
    "unhealthy_requests_limit",
    "use_slot_cgroups",
    "virtualbox",
];

const OUTPUT_LIMIT_KIB: i64 = 4096;
/// The reference's grace for scripts that were told to end (build §5.6).
const CANCEL_TIMEOUT: Duration = Duration::from_secs(600);
/// Stands where a token would, in paths and logs; a directory has none.
const SPOOL_TOKEN: &str = "spool";

impl Entry {
    pub(super) fn holds_a_token(&self) -> bool {
        self.forge == ForgeKind::Gitlab && !self.token.is_empty()
    }
}

pub(super) fn read_all(
    top: &Table<'_>,
    report: &Report<'_>,
    state_dir: &Path,
    file: &Path,
    around: &Surroundings<'_>,
) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (n, table) in top.tables("runners").iter().enumerate() {
        let mut entry = read(table, n, state_dir, file, around);
        table.leftovers(&KNOWN);
        // Two entries with one token would share slots and state: the first one serves.
        let twin = entries.iter().find(|e| e.disabled.is_none() && e.key() == entry.key());
        if let Some(twin) = twin.filter(|_| entry.disabled.is_none()) {
            entry.disabled = Some(format!("the entry {:?} has the same url and token", twin.name));
        }
        if let Some(why) = &entry.disabled {
            report.warn(table.at, &format!("runners: the entry {:?} takes no jobs: {why}", entry.name));
        }
        entries.push(entry);
    }
    entries
}

fn read(table: &Table<'_>, n: usize, state_dir: &Path, file: &Path, around: &Surroundings<'_>) -> Entry {
    let mut disabled = None;
    let name = table.string("name").filter(|s| !s.is_empty()).unwrap_or_else(|| format!("runner-{}", n + 1));
    let (forge, url) = forge_and_url(table, state_dir, around, &mut disabled);
    let limit = at_least(table, "limit", 0, 0);
    let user = user(table, around, &mut disabled);
    let request_concurrency = table.number("request_concurrency").unwrap_or(1).max(1);
    let output_limit = Some(at_least(table, "output_limit", 0, OUTPUT_LIMIT_KIB)).filter(|n| *n > 0);
    let beside_file = |p: String| around.directory.join(file.parent().unwrap_or(Path::new(""))).join(p);
    // Not below the working directory, as the reference has it: all that we keep lies in one place.
    let executor = executor(table, &mut disabled);
    let custom = driver(table, &executor, &mut disabled);
    let place = |key: &str, default: &str| match table.string(key).filter(|s| !s.is_empty()) {
        // Where a driver's scripts run is not known here.
        dir if custom.is_some() => dir.unwrap_or_default().into(),
        Some(dir) => around.directory.join(dir),
        None => state_dir.join(default),
    };
    Entry {
        forge,
        url,
        id: u64::try_from(table.number("id").unwrap_or(0)).unwrap_or(0),
        token: token(table, forge, around, &mut disabled),
        executor,
        shell: shell(table, &mut disabled),
        builds_dir: place("builds_dir", "builds"),
        cache_dir: place("cache_dir", "cache"),
        cache: cache::read(table, around),
        limit: usize::try_from(limit).unwrap_or(0),
        request_concurrency: usize::try_from(request_concurrency).unwrap_or(1),
        output_limit: u64::try_from(output_limit.unwrap_or(OUTPUT_LIMIT_KIB)).unwrap_or(0).saturating_mul(1024),
        environment: table.strings("environment").unwrap_or_default(),
        pre_build_script: table.string("pre_build_script").unwrap_or_default(),
        post_build_script: table.string("post_build_script").unwrap_or_default(),
        sources: sources(table),
        feature_flags: table.flags("feature_flags").unwrap_or_default(),
        uploads: uploads(table),
        cancel_timeout: table.duration("cancel_timeout").unwrap_or(CANCEL_TIMEOUT),
        keep_processes: table.flag("keep_processes").unwrap_or(false),
        exit_when_empty: table.flag("exit_when_empty").unwrap_or(false),
        debug_trace_disabled: table.flag("debug_trace_disabled").unwrap_or(false),
        user,
        umask: umask(table),
        limits: limits(table),
        custom,
        inherit_environment: table.strings("inherit_environment"),
        tls_ca_file: table.string("tls-ca-file").filter(|s| !s.is_empty()).map(beside_file),
        system_id: String::new(),
        show_logs: show_logs(table, limit),
        jobs: table.string("jobs").filter(|s| !s.is_empty()).map(beside_file),
        name,
        disabled: disabled.or_else(|| leave_silent(table)),
    }
}

/// `register` writes these into every file; at their defaults they ask for nothing.
fn leave_silent(table: &Table<'_>) -> Option<String> {
    table.raw("token_obtained_at");
    None
}

fn forge_and_url(
    table: &Table<'_>,
    state_dir: &Path,
    around: &Surroundings<'_>,
    disabled: &mut Option<String>,
) -> (ForgeKind, String) {
    let expanded = expanded(table, "url", around);
    let named = table.word("forge", "\"gitlab\" or \"spool\"", |word| match word {
        "gitlab" => Some(Some(ForgeKind::Gitlab)),
        "spool" => Some(Some(ForgeKind::Spool)),
        "github" => Some(None),
        _ => None,
    });
    let github = |u: &str| {
        let host = u.split_once("://").map_or(u, |(_, r)| r).split(['/', ':']).next().unwrap_or_default();
        host == "github.com" || host.ends_with(".ghe.com")
    };
    if named == Some(None) || named.is_none() && github(&expanded) {
        *disabled = Some("GitHub is not supported (yet)".to_owned());
        return (ForgeKind::Gitlab, expanded);
    }
    let is_directory = expanded.starts_with("file:");
    let forge = named.flatten().unwrap_or(if is_directory { ForgeKind::Spool } else { ForgeKind::Gitlab });
    match forge {
        ForgeKind::Spool if is_directory => (forge, spool_url(&expanded, state_dir)),
        ForgeKind::Spool => {
            table.wrong("url", &format!("expected file:///DIRECTORY, found {expanded:?}"));
            (forge, expanded)
        }
        ForgeKind::Gitlab => (forge, gitlab_url(table, expanded)),
    }
}

/// `file:///absolute`; another path lies below the state directory.
fn spool_url(url: &str, state_dir: &Path) -> String {
    let path = url.strip_prefix("file://").or_else(|| url.strip_prefix("file:")).unwrap_or_default();
    format!("file://{}", state_dir.join(path.trim_start_matches("./")).display())
}

/// Protocol §0.1.
fn gitlab_url(table: &Table<'_>, url: String) -> String {
    let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or_default();
    if host.trim_matches('/').is_empty() {
        table.wrong("url", &format!("expected https://HOST, http://HOST or file:///DIRECTORY, found {url:?}"));
    }
    let bare = url.trim_end_matches('/');
    match bare.strip_suffix("/ci") {
        Some(stripped) => {
            table.warn("url", "the ending /ci is of an old time and is left out");
            stripped.to_owned()
        }
        None => bare.to_owned(),
    }
}

fn token(table: &Table<'_>, forge: ForgeKind, around: &Surroundings<'_>, disabled: &mut Option<String>) -> Secret {
    let token = expanded(table, "token", around);
    match (token.trim(), forge) {
        ("", ForgeKind::Spool) => Secret::new(SPOOL_TOKEN),
        ("", ForgeKind::Gitlab) => {
            disabled.get_or_insert_with(|| "it has no token".to_owned());
            Secret::default()
        }
        (token, _) => Secret::new(token),
    }
}

/// A string with the environment's variables in their place; a name that is not set is a warning.
fn expanded(table: &Table<'_>, key: &str, around: &Surroundings<'_>) -> String {
    let (value, missing) = values::expand(&table.string(key).unwrap_or_default(), around.env);
    for name in missing {
        table.warn(key, &format!("the environment has no ${name}; nothing stands in its place"));
    }
    value
}

fn executor(table: &Table<'_>, disabled: &mut Option<String>) -> String {
    let executor = table.string("executor").filter(|s| !s.is_empty()).unwrap_or_else(|| "shell".to_owned());
    if executor != "shell" && executor != "custom" {
        let why = format!("the executor {executor:?} is not supported, only \"shell\" and \"custom\" are");
        disabled.get_or_insert(why);
    }
    executor
}

/// `[runners.custom]`, which other executors have no use for.
fn driver(table: &Table<'_>, executor: &str, disabled: &mut Option<String>) -> Option<Custom> {
    if executor != "custom" {
        return None;
    }
    if table.string("user").is_some_and(|u| !u.is_empty()) {
        let why = "its executor is \"custom\", so its driver decides whom scripts run as, and `user` has no effect";
        disabled.get_or_insert_with(|| why.to_owned());
    }
    match custom::read(table) {
        Ok(custom) => Some(custom),
        Err(why) => {
            disabled.get_or_insert(why);
            None
        }
    }
}

fn shell(table: &Table<'_>, disabled: &mut Option<String>) -> Shell {
    let word = table.string("shell").unwrap_or_default();
    let known = [Shell::Bash, Shell::Sh, Shell::Dash].into_iter().find(|s| s.as_str() == word);
    if known.is_none() && !word.is_empty() {
        disabled.get_or_insert_with(|| format!("the shell {word:?} is not supported, only bash, sh and dash are"));
    }
    known.unwrap_or_default()
}

/// Its own word before that of `--user`.
fn user(table: &Table<'_>, around: &Surroundings<'_>, disabled: &mut Option<String>) -> String {
    let named = table.string("user").filter(|s| !s.is_empty());
    let is_driven = table.string("executor").as_deref() == Some("custom");
    let name = named.or_else(|| around.user.clone()).filter(|_| !is_driven).unwrap_or_default();
    if let Some(why) = (!name.is_empty()).then(|| (around.unfit)(&name)).flatten() {
        disabled.get_or_insert(why);
    }
    name
}

/// As people write it: `"027"`, or TOML's `0o027`.
fn umask(table: &Table<'_>) -> Option<u32> {
    let mode = table.octal("umask")?;
    if mode > 0o777 {
        table.wrong("umask", "expected three octal digits such as \"027\"");
    }
    Some(mode)
}

/// `[runners.artifact]`
fn uploads(table: &Table<'_>) -> Uploads {
    let mut uploads = Uploads::default();
    if let Some(table) = table.table("artifact") {
        let set = |key: &str, to: &mut Duration| {
            if let Some(d) = table.duration(key).filter(|d| !d.is_zero()) {
                *to = d;
            }
        };
        set("upload_timeout", &mut uploads.timeout);
        set("response_header_timeout", &mut uploads.answer_within);
        table.leftovers(&[]);
    }
    uploads
}

fn limits(table: &Table<'_>) -> Limits {
    let positive = |key: &str| {
        let n = table.number(key)?;
        if n < 1 {
            table.wrong(key, &format!("expected 1 or more, found {n}"));
        }
        u64::try_from(n).ok()
    };
    let within = |key: &str, least: i32, most: i32| {
        let n = table.number(key)?;
        let fits = i32::try_from(n).ok().filter(|n| (least..=most).contains(n));
        if fits.is_none() {
            table.wrong(key, &format!("expected {least} to {most}, found {n}"));
        }
        fits
    };
    Limits {
        memory: table.size("memory"),
        processes: positive("processes"),
        cpu_time: table.duration("cpu_time").map(|d| d.as_secs().max(1)),
        open_files: positive("open_files"),
        nice: within("nice", -20, 19),
        oom_score_adj: within("oom_score_adj", -1000, 1000),
        cgroup: table.flag("cgroup"),
    }
}

fn sources(table: &Table<'_>) -> Sources {
    let clone_url = table.string("clone_url").unwrap_or_default();
    if !clone_url.is_empty() && !clone_url.contains("://") {
        table.warn("clone_url", "this is no URL such as https://HOST, so it has no effect");
    }
    let own_place = table.table("custom_build_dir");
    let custom_build_dir = own_place.as_ref().and_then(|t| t.flag("enabled")).unwrap_or(false);
    if let Some(own_place) = own_place {
        own_place.leftovers(&[]);
    }
    Sources {
        pre_get_sources_script: table.string("pre_get_sources_script").unwrap_or_default(),
        post_get_sources_script: table.string("post_get_sources_script").unwrap_or_default(),
        clone_url,
        clean_git_config: table.flag("clean_git_config"),
        safe_directory_checkout: table.flag("safe_directory_checkout").unwrap_or(false),
        custom_build_dir,
        prepare_timeout: table.duration("prepare_timeout").unwrap_or_default(),
        get_sources_timeout: table.duration("get_sources_timeout").unwrap_or_default(),
    }
}

fn show_logs(table: &Table<'_>, limit: i64) -> ShowLogs {
    match table.raw("show_logs") {
        None => ShowLogs::No,
        Some(v) if v.as_bool() == Some(false) => ShowLogs::No,
        Some(v) if v.as_bool() == Some(true) && limit == 1 => ShowLogs::Plain,
        Some(v) if v.as_bool() == Some(true) => ShowLogs::Named,
        Some(v) if v.as_str() == Some("bare") => ShowLogs::Bare,
        Some(_) => {
            table.wrong("show_logs", "expected true, false or \"bare\"");
            ShowLogs::No
        }
    }
}

fn at_least(table: &Table<'_>, key: &str, least: i64, default: i64) -> i64 {
    let value = table.number(key).unwrap_or(default);
    if value < least {
        table.wrong(key, &format!("expected {least} or more, found {value}"));
    }
    value
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::read::parse;
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "TOKEN" => Some("glrt-abcdefghijkl".to_owned()),
            "HOST" => Some("git.example".to_owned()),
            _ => None,
        }
    }

    fn surroundings() -> Surroundings<'static> {
        let unfit = &|name: &str| (name == "ghost").then(|| "this host has no user \"ghost\"".to_owned());
        Surroundings { env: &env, root: true, directory: "/work".into(), user: None, unfit }
    }

    fn entries(text: &str) -> (Vec<Entry>, Vec<String>) {
        let around = surroundings();
        let config = parse(Path::new("/etc/c.toml"), text, &around).unwrap_or_else(|e| panic!("{e}"));
        (config.entries, config.warnings)
    }

    fn one(rest: &str) -> (Entry, Vec<String>) {
        let (mut entries, warnings) = entries(&format!("[[runners]]\n{rest}"));
        (entries.remove(0), warnings)
    }

    fn check_disabled(rest: &str, want: &str) {
        let (entry, warnings) = one(rest);
        assert_eq!(entry.disabled.as_deref(), Some(want));
        assert_eq!(warnings, [format!("/etc/c.toml:1: runners: the entry \"runner-1\" takes no jobs: {want}")]);
    }

    #[test]
    fn an_entry_has_the_defaults_of_the_reference() {
        let (entry, warnings) = one("url = 'https://g/'\ntoken = 't'");
        assert_eq!(warnings, [""; 0]);
        let want = Entry {
            name: "runner-1".into(),
            forge: ForgeKind::Gitlab,
            url: "https://g".into(),
            id: 0,
            token: Secret::new("t"),
            executor: "shell".into(),
            shell: Shell::Bash,
            builds_dir: "/var/lib/runner/builds".into(),
            cache_dir: "/var/lib/runner/cache".into(),
            cache: Default::default(),
            limit: 0,
            request_concurrency: 1,
            output_limit: 4096 * 1024,
            environment: vec![],
            pre_build_script: String::new(),
            post_build_script: String::new(),
            sources: Sources::default(),
            feature_flags: Default::default(),
            uploads: Default::default(),
            cancel_timeout: Duration::from_secs(600),
            keep_processes: false,
            exit_when_empty: false,
            debug_trace_disabled: false,
            user: String::new(),
            umask: None,
            limits: Limits::default(),
            custom: None,
            inherit_environment: None,
            tls_ca_file: None,
            system_id: String::new(),
            show_logs: ShowLogs::No,
            jobs: None,
            disabled: None,
        };
        assert_eq!(entry, want);
    }

    #[test]
    fn sources_are_got_as_the_entry_says() {
        let rest = "url='https://g'\ntoken='t'\nclone_url='http://in/'\nclean_git_config=true\nprepare_timeout='2m'\n\
                    [runners.custom_build_dir]\nEnabled=true\nother=1";
        let (entry, warnings) = one(rest);
        assert_eq!(warnings, ["/etc/c.toml:9: runners.custom_build_dir.other: unknown key, ignored"]);
        let want = Sources {
            clone_url: "http://in/".into(),
            clean_git_config: Some(true),
            custom_build_dir: true,
            prepare_timeout: Duration::from_secs(120),
            ..Sources::default()
        };
        assert_eq!(entry.sources, want);
        let (_, warnings) = one("url='https://g'\ntoken='t'\nclone_url='g.example'");
        let want = "/etc/c.toml:4: runners.clone_url: this is no URL such as https://HOST, so it has no effect";
        assert_eq!(warnings, [want]);
    }

    #[test]
    fn urls_are_made_plain() {
        for (url, want, forge) in [
            ("https://$HOST/", "https://git.example", ForgeKind::Gitlab),
            ("http://h/sub//", "http://h/sub", ForgeKind::Gitlab),
            ("file:///srv/x", "file:///srv/x", ForgeKind::Spool),
            ("file://spool", "file:///var/lib/runner/spool", ForgeKind::Spool),
            ("file:spool", "file:///var/lib/runner/spool", ForgeKind::Spool),
        ] {
            let (entry, warnings) = one(&format!("url = '{url}'\ntoken = 't'"));
            assert_eq!((entry.url.as_str(), entry.forge, warnings), (want, forge, vec![]));
        }
        let (entry, warnings) = one("url = 'https://h/ci/'\ntoken = '${TOKEN}'");
        assert_eq!((entry.url.as_str(), entry.token.reveal()), ("https://h", "glrt-abcdefghijkl"));
        assert_eq!(warnings, ["/etc/c.toml:2: runners.url: the ending /ci is of an old time and is left out"]);
    }

    #[test]
    fn a_url_that_is_none_is_an_error() {
        for (url, found) in [("h.example", "h.example"), ("ssh://h", "ssh://h"), ("", ""), ("https://$NO", "https://")]
        {
            let around = surroundings();
            let e = parse(Path::new("c"), &format!("[[runners]]\nurl = '{url}'"), &around).unwrap_err();
            let want =
                format!("c:2: runners.url: expected https://HOST, http://HOST or file:///DIRECTORY, found {found:?}");
            assert_eq!(e.lines, [want]);
        }
    }

    #[test]
    fn what_cannot_run_disables_its_entry_alone() {
        let g = "url = 'https://g'";
        check_disabled(g, "it has no token");
        check_disabled(
            &format!("{g}\ntoken='t'\nexecutor='docker'"),
            "the executor \"docker\" is not supported, only \"shell\" and \"custom\" are",
        );
        check_disabled(
            &format!("{g}\ntoken='t'\nshell='pwsh'"),
            "the shell \"pwsh\" is not supported, only bash, sh and dash are",
        );
        check_disabled("url='https://github.com/o/r'\ntoken='t'", "GitHub is not supported (yet)");
        let twice = format!("[[runners]]\nname='a'\n{g}\ntoken='t'\n[[runners]]\n{g}\ntoken='t'\n");
        let (entries, warnings) = entries(&twice);
        assert_eq!((entries[0].disabled.as_deref(), entries.len()), (None, 2));
        assert_eq!(
            warnings,
            [
                "/etc/c.toml:5: runners: the entry \"runner-2\" takes no jobs: the entry \"a\" has the same url and token"
            ]
        );
    }

    #[test]
    fn paths_do_not_depend_on_where_a_job_runs() {
        let (entry, _) =
            one("url='file:s'\nbuilds_dir='b'\ntls-ca-file='ca.pem'\njobs='jobs'\nlimit=1\nshow_logs=true");
        assert_eq!(entry.builds_dir, Path::new("/work/b"));
        assert_eq!(entry.tls_ca_file, Some(PathBuf::from("/etc/ca.pem")));
        assert_eq!((entry.jobs, entry.show_logs), (Some(PathBuf::from("/etc/jobs")), ShowLogs::Plain));
    }

    #[test]
    fn an_entry_says_whom_its_jobs_run_as_and_what_they_may_take() {
        let (entry, warnings) = one("url='file:s'\nuser='ci'\numask='027'\nmemory='512MB'\nprocesses=64\n\
             cpu_time='10m'\nopen_files=1024\nnice=10\noom_score_adj=500\ncgroup=true");
        assert_eq!((entry.user.as_str(), entry.umask, warnings), ("ci", Some(0o027), vec![]));
        let limits = Limits {
            memory: Some(512 << 20),
            processes: Some(64),
            cpu_time: Some(600),
            open_files: Some(1024),
            nice: Some(10),
            oom_score_adj: Some(500),
            cgroup: Some(true),
        };
        assert_eq!(entry.limits, limits);
        check_disabled("url='file:s'\nuser='ghost'", "this host has no user \"ghost\"");
        assert_eq!(one("url='file:s'\numask=0o077").0.umask, Some(0o077));
        let around = Surroundings { user: Some("ci".to_owned()), ..surroundings() };
        let config = parse(Path::new("c"), "[[runners]]\nurl='file:a'\n[[runners]]\nurl='file:b'\nuser='me'", &around);
        let users: Vec<String> = config.unwrap().entries.into_iter().map(|e| e.user).collect();
        assert_eq!(users, ["ci", "me"], "the entry's own word goes before --user");
    }

    #[test]
    fn a_limit_that_is_none_is_an_error() {
        for (line, want) in [
            ("processes=0", "processes: expected 1 or more, found 0"),
            ("nice=20", "nice: expected -20 to 19, found 20"),
            ("oom_score_adj=-2000", "oom_score_adj: expected -1000 to 1000, found -2000"),
            ("umask='9'", "umask: expected octal digits such as \"027\", found \"9\""),
            ("umask=0o1777", "umask: expected three octal digits such as \"027\""),
            ("memory='lots'", "memory: expected a number of bytes or a size such as \"64MB\", found \"lots\""),
        ] {
            let e = parse(Path::new("c"), &format!("[[runners]]\nurl='file:s'\n{line}"), &surroundings()).unwrap_err();
            assert_eq!(e.lines, [format!("c:3: runners.{want}")]);
        }
    }
}
