//! From the text of `config.toml` to a [`Config`]: the file's own keys, where state lives, and what to
//! say about keys that have no effect. The entries' keys are in `entry`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use log::LevelFilter;
use toml::de::DeTable;

use super::table::{Report, Table};
use super::{Config, ConfigError, LogFormat, Surroundings, entry, system_id, values};
use crate::model::ForgeKind;

/// Keys of gitlab-runner that we do not act on.
const KNOWN: [&str; 6] = ["user", "sentry_dsn", "listen_address", "labels", "machine", "experimental"];

const CONCURRENT: i64 = 1;
const CHECK_INTERVAL: Duration = Duration::from_secs(3);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Enough for a few outcomes and logs; a smaller disk can say so.
const MIN_FREE_DISK: u64 = 16 << 20;
/// More workers than anybody means; each is a thread.
const CONCURRENT_MAX: i64 = 1000;

pub(super) fn load(path: &Path, around: &Surroundings<'_>) -> Result<Config, ConfigError> {
    let text = fs::read_to_string(path).map_err(|e| ConfigError { lines: vec![unreadable(path, &e)] })?;
    let mut config = parse(path, &text, around)?;
    // Only GitLab asks for it, so a spool leaves nothing beside its configuration.
    let id = if config.entries.iter().any(|e| e.forge == ForgeKind::Gitlab) {
        let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (id, warning) = system_id::of_host(dir, &config.state_dir)
            .map_err(|e| ConfigError { lines: vec![format!("{}: system id: {e}", path.display())] })?;
        config.warnings.extend(warning);
        id
    } else {
        system_id::unkept()
    };
    config.entries.iter_mut().for_each(|entry| entry.system_id.clone_from(&id));
    let open = fs::metadata(path).map_or(0, |m| m.permissions().mode()) & 0o077 != 0;
    if open && config.entries.iter().any(super::Entry::holds_a_token) {
        config
            .warnings
            .push(format!("{}: others may read this file, and it holds a token; `chmod 600` it", path.display()));
    }
    Ok(config)
}

fn unreadable(path: &Path, e: &io::Error) -> String {
    let path = path.display();
    match e.kind() {
        io::ErrorKind::NotFound => format!("{path}: there is no such file; name yours with `--config FILE`"),
        io::ErrorKind::PermissionDenied => format!("{path}: this user may not read it"),
        _ => format!("{path}: {e}"),
    }
}

pub(super) fn parse(path: &Path, text: &str, around: &Surroundings<'_>) -> Result<Config, ConfigError> {
    let report = Report::new(path.display().to_string(), text);
    let root = match DeTable::parse(text) {
        Ok(root) => root,
        Err(e) => {
            report.error(e.span().map_or(0, |s| s.start), &format!("this is not TOML: {}", e.message()));
            return Err(ConfigError { lines: report.errors() });
        }
    };
    let top = Table::new(&report, "", 0, root.get_ref());
    let config = read(path, &top, &report, around);
    let errors = report.errors();
    if errors.is_empty() {
        Ok(Config { warnings: report.warnings(), ..config })
    } else {
        Err(ConfigError { lines: errors })
    }
}

fn read(path: &Path, top: &Table<'_>, report: &Report<'_>, around: &Surroundings<'_>) -> Config {
    let concurrent = top.number("concurrent").unwrap_or(CONCURRENT);
    if !(1..=CONCURRENT_MAX).contains(&concurrent) {
        top.wrong("concurrent", &format!("expected 1 to {CONCURRENT_MAX}, found {concurrent}"));
    }
    let positive = |key: &str, default| top.duration(key).filter(|d| !d.is_zero()).unwrap_or(default);
    let state_dir = state_dir(top, around);
    let log_level = top.word("log_level", "debug, info, warning or error", log_level);
    let log_format = top.word("log_format", "runner, text or json", LogFormat::from_name);
    let config = Config {
        path: path.to_owned(),
        concurrent: usize::try_from(concurrent).unwrap_or(1),
        check_interval: positive("check_interval", CHECK_INTERVAL),
        shutdown_timeout: positive("shutdown_timeout", SHUTDOWN_TIMEOUT),
        log_level: log_level.unwrap_or(LevelFilter::Info),
        log_format: log_format.unwrap_or(LogFormat::Runner),
        adoption_timeout: top.duration("adoption_timeout"),
        allow_network_state: top.flag("allow_network_state").unwrap_or(false),
        min_free_disk: top.size("min_free_disk").unwrap_or(MIN_FREE_DISK),
        entries: entry::read_all(top, report, &state_dir, path, around),
        user: around.user.clone(),
        state_dir,
        warnings: Vec::new(),
    };
    if config.entries.is_empty() {
        report.warn_of_file("there is no [[runners]] entry, so there is nothing to do");
    }
    // `register` writes these into every file; at their defaults they ask for nothing.
    let silent = top.raw("connection_max_age").is_some_and(|v| v.as_str() == Some("15m0s"));
    if top.has("connection_max_age") && !silent {
        top.warn("connection_max_age", "has no effect here (yet)");
    }
    let session = top.raw("session_server").and_then(|v| v.as_table());
    if session.is_some_and(|t| t.keys().any(|k| k.get_ref().eq_ignore_ascii_case("listen_address"))) {
        top.warn("session_server", "has no effect here (yet)");
    }
    top.leftovers(&KNOWN);
    config
}

/// Design §9. A relative path lies below the default place, never below the working directory: a
/// daemon's is a surprise.
fn state_dir(top: &Table<'_>, around: &Surroundings<'_>) -> PathBuf {
    let set = |name: &str| (around.env)(name).filter(|v| !v.is_empty());
    let usual = || {
        // systemd names several directories with colons between.
        if let Some(dirs) = set("STATE_DIRECTORY") {
            return Some(PathBuf::from(dirs.split(':').next().unwrap_or_default()));
        }
        if around.root {
            return Some(PathBuf::from("/var/lib/runner"));
        }
        let home = || set("HOME").map(|home| Path::new(&home).join(".local/state"));
        set("XDG_STATE_HOME").map(PathBuf::from).filter(|p| p.is_absolute()).or_else(home).map(|p| p.join("runner"))
    };
    let named = top.string("state_dir").filter(|s| !s.is_empty()).map(|s| values::expand(&s, around.env).0);
    if let Some(absolute) = named.as_ref().map(PathBuf::from).filter(|p| p.is_absolute()) {
        return absolute;
    }
    match usual() {
        Some(base) => named.map_or(base.clone(), |below| base.join(below)),
        None => {
            top.wrong("state_dir", "neither HOME nor XDG_STATE_HOME is set, so name a directory here");
            PathBuf::new()
        }
    }
}

pub fn log_level(word: &str) -> Option<LevelFilter> {
    Some(match word.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => LevelFilter::Error,
        "warning" | "warn" => LevelFilter::Warn,
        "info" => LevelFilter::Info,
        "debug" => LevelFilter::Debug,
        "trace" => LevelFilter::Trace,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        let value = match name {
            "HOME" => "/h",
            "TOKEN" => "glrt-from-env",
            "HOST" => "git.example",
            _ => return None,
        };
        Some(value.to_owned())
    }

    fn around() -> Surroundings<'static> {
        Surroundings { env: &env, root: false, directory: "/work".into(), user: None, unfit: &|_| None }
    }

    fn ok(text: &str) -> Config {
        parse(Path::new("c.toml"), text, &around()).unwrap_or_else(|e| panic!("{e}"))
    }

    fn check_errors(text: &str, want: &[&str]) {
        let lines = parse(Path::new("c.toml"), text, &around()).expect_err(text).lines;
        assert_eq!(lines, want, "{text}");
    }

    fn check_warnings(text: &str, want: &[&str]) {
        assert_eq!(ok(text).warnings, want, "{text}");
    }

    const ENTRY: &str = "[[runners]]\nurl='https://g'\ntoken='t'\nexecutor='shell'\n";

    #[test]
    fn a_wrong_value_names_file_line_and_key() {
        check_errors(
            &format!("concurrent = 0\n{ENTRY}limit = \"x\"\n"),
            &[
                "c.toml:1: concurrent: expected 1 to 1000, found 0",
                "c.toml:6: runners.limit: expected a whole number, found \"x\"",
            ],
        );
        check_errors(
            &format!(
                "log_level = 'loud'\nlog_format = 3\nmin_free_disk = '1XB'\nshutdown_timeout = true\n{ENTRY}environment = [1]\nfeature_flags = 1\nexit_when_empty = 'yes'"
            ),
            &[
                "c.toml:1: log_level: expected debug, info, warning or error, found \"loud\"",
                "c.toml:2: log_format: expected runner, text or json, found 3",
                "c.toml:3: min_free_disk: expected a number of bytes or a size such as \"64MB\", found \"1XB\"",
                "c.toml:4: shutdown_timeout: expected a number of seconds or a duration such as \"1h30m\", found true",
                "c.toml:9: runners.environment: expected a list of strings, found a list",
                "c.toml:10: runners.feature_flags: expected a table of true and false, found 1",
                "c.toml:11: runners.exit_when_empty: expected true or false, found \"yes\"",
            ],
        );
        check_errors("concurrent = 1\nrunners = 1", &["c.toml:2: runners: expected [[tables]], found 1"]);
        check_errors("a = 1\nb = = 2", &["c.toml:2: this is not TOML: extra `=`, expected nothing"]);
        check_errors("Limit = 1\nlimit = 2", &["c.toml:2: limit: this key is there twice"]);
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let config = ok("");
        assert_eq!((config.concurrent, config.check_interval), (1, Duration::from_secs(3)));
        assert_eq!((config.shutdown_timeout, config.min_free_disk), (Duration::from_secs(30), 16 << 20));
        assert_eq!((config.log_level, config.log_format), (LevelFilter::Info, LogFormat::Runner));
        assert_eq!(config.state_dir, Path::new("/h/.local/state/runner"));
        assert_eq!(config.warnings, ["c.toml: there is no [[runners]] entry, so there is nothing to do"]);
        let config = ok("CONCURRENT = 4\nCheck_Interval = 0\nshutdown_timeout = '1m'\nlog_level='WARN'");
        assert_eq!((config.concurrent, config.check_interval), (4, Duration::from_secs(3)));
        assert_eq!((config.shutdown_timeout, config.log_level), (Duration::from_secs(60), LevelFilter::Warn));
    }

    #[test]
    fn state_lives_where_it_is_said_to() {
        for (line, env_name, root, want) in [
            ("state_dir = '/s'", "", false, "/s"),
            ("state_dir = '$HOME/s'", "", false, "/h/s"),
            ("state_dir = 'demo'", "", false, "/h/.local/state/runner/demo"),
            ("state_dir = 'demo'", "", true, "/var/lib/runner/demo"),
            ("", "STATE_DIRECTORY", true, "/d"),
            ("", "XDG_STATE_HOME", false, "/d:/e/runner"),
            ("", "", true, "/var/lib/runner"),
        ] {
            let env = |n: &str| if n == env_name { Some("/d:/e".to_owned()) } else { env(n) };
            let around = Surroundings { env: &env, root, directory: "/".into(), user: None, unfit: &|_| None };
            assert_eq!(parse(Path::new("c"), line, &around).unwrap().state_dir, Path::new(want), "{line} {env_name}");
        }
        let nowhere = Surroundings { env: &|_| None, root: false, directory: "/".into(), user: None, unfit: &|_| None };
        assert_eq!(
            parse(Path::new("c"), "", &nowhere).unwrap_err().lines,
            ["c:1: state_dir: neither HOME nor XDG_STATE_HOME is set, so name a directory here"]
        );
    }

    #[test]
    fn keys_without_effect_are_one_warning_each() {
        check_warnings(
            &format!(
                "sentry_dsn = ''\nconnection_max_age = '15m0s'\n[session_server]\nsession_timeout = 1800\n{ENTRY}bogus = 1\nstrict_check_interval = true\ntoken_obtained_at = 0001-01-01T00:00:00Z\n[runners.cache]\nMaxUploadedArchiveSize = 0\n[runners.docker]\nimage = 'x'"
            ),
            &[
                "c.toml:1: sentry_dsn: has no effect here (yet)",
                "c.toml:9: runners.bogus: unknown key, ignored",
                "c.toml:10: runners.strict_check_interval: has no effect here (yet)",
                "c.toml:14: runners.docker: has no effect here (yet)",
            ],
        );
    }

    #[test]
    fn a_missing_file_is_said_in_words() {
        let e = load(Path::new("/nowhere/c.toml"), &around()).unwrap_err();
        assert_eq!(e.to_string(), "/nowhere/c.toml: there is no such file; name yours with `--config FILE`");
    }

    #[test]
    fn a_token_in_an_open_file_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        fs::write(&path, ENTRY).unwrap();
        for (mode, warned) in [(0o644, true), (0o600, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let config = load(&path, &around()).unwrap();
            assert_eq!(config.warnings.iter().any(|w| w.contains("chmod 600")), warned);
            assert!(config.entries[0].system_id.len() == 14);
        }
    }
}
