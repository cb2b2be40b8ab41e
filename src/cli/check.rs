//! `runner check-config`: what a file means, entry by entry. Also where the file is looked for.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::{CONFIG, out, say};
use crate::config::{self, Config, ConfigError, Entry};
use crate::diag::logging;

pub(super) fn check(path: Option<PathBuf>) -> u8 {
    match load(path, None) {
        Ok(config) => {
            for warning in &config.warnings {
                say(&format!("warning: {warning}"));
            }
            out(format_args!("{}", describe(&config)));
            0
        }
        Err(e) => {
            e.lines.iter().for_each(|line| say(line));
            CONFIG
        }
    }
}

/// The named file, else the first of the usual places that exists.
pub(super) fn load(path: Option<PathBuf>, user: Option<String>) -> Result<Config, ConfigError> {
    if let Some(path) = path {
        return config::load_as(&path, user);
    }
    let places = usual_places();
    if let Some(path) = places.iter().find(|p| p.exists()) {
        return config::load_as(path, user);
    }
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    let line = format!("there is no configuration at {}; name yours with `--config FILE`", places.join(" or "));
    Err(ConfigError { lines: vec![line] })
}

/// Ours first, then the one that gitlab-runner left. Every user may read the system's files; the ones
/// in a home are for those who run without privileges.
fn usual_places() -> Vec<PathBuf> {
    let mut places = vec![];
    if let Some(home) = config::environment("HOME").filter(|h| !h.is_empty() && h != "/root") {
        let dir = config::environment("XDG_CONFIG_HOME").filter(|d| Path::new(d).is_absolute());
        places.push(dir.map_or_else(|| Path::new(&home).join(".config"), PathBuf::from).join("runner/config.toml"));
        places.push(Path::new(&home).join(".gitlab-runner/config.toml"));
    }
    places.extend(["/etc/runner/config.toml", "/etc/gitlab-runner/config.toml"].map(PathBuf::from));
    places
}

fn describe(config: &Config) -> String {
    let mut text = String::new();
    let mut row = |key: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{key} = {value}");
    };
    row("# file", &config.path.display());
    row("concurrent", &config.concurrent);
    row("check_interval", &seconds(config.check_interval));
    row("shutdown_timeout", &seconds(config.shutdown_timeout));
    row("log_level", &quoted(logging::level_name(config.log_level)));
    row("log_format", &quoted(config.log_format.as_str()));
    row("state_dir", &quoted(&config.state_dir.to_string_lossy()));
    if let Some(d) = config.adoption_timeout {
        row("adoption_timeout", &seconds(d));
    }
    row("allow_network_state", &config.allow_network_state);
    row("min_free_disk", &config.min_free_disk);
    for entry in &config.entries {
        describe_entry(&mut text, entry);
    }
    text
}

fn describe_entry(text: &mut String, entry: &Entry) {
    let disabled = entry.disabled.as_ref().map_or(String::new(), |why| format!("  # takes no jobs: {why}"));
    let _ = writeln!(text, "\n[[runners]]{disabled}");
    let mut row = |key: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "  {key} = {value}");
    };
    row("name", &quoted(&entry.name));
    row("forge", &quoted(entry.forge.as_str()));
    row("url", &quoted(&entry.url));
    row("id", &entry.id);
    row("token", &quoted(&format!("{}…", entry.short_token())));
    row("system_id", &quoted(&entry.system_id));
    row("executor", &quoted(&entry.executor));
    row("shell", &quoted(entry.shell.as_str()));
    row("builds_dir", &quoted(&entry.builds_dir.to_string_lossy()));
    row("cache_dir", &quoted(&entry.cache_dir.to_string_lossy()));
    if let Some(store) = &entry.cache.store {
        row("cache.type", &quoted(store.as_str()));
        row("cache.path", &quoted(&entry.cache.path));
        row("cache.shared", &entry.cache.shared);
    }
    row("cache.MaxUploadedArchiveSize", &entry.cache.max_size);
    row("limit", &entry.limit);
    row("request_concurrency", &entry.request_concurrency);
    row("output_limit", &(entry.output_limit / 1024));
    row("environment", &list(&entry.environment));
    row("pre_build_script", &quoted(&entry.pre_build_script));
    row("post_build_script", &quoted(&entry.post_build_script));
    for (flag, on) in &entry.feature_flags {
        row(&format!("feature_flags.{flag}"), on);
    }
    row("cancel_timeout", &seconds(entry.cancel_timeout));
    row("keep_processes", &entry.keep_processes);
    row("exit_when_empty", &entry.exit_when_empty);
    row("debug_trace_disabled", &entry.debug_trace_disabled);
    if !entry.user.is_empty() {
        row("user", &quoted(&entry.user));
    }
    row("umask", &format!("\"{:03o}\"", entry.umask.unwrap_or(0o022)));
    if let Some(names) = &entry.inherit_environment {
        let names: Vec<String> = names.iter().map(|n| quoted(n)).collect();
        row("inherit_environment", &format!("[{}]", names.join(", ")));
    }
    if let Some(custom) = &entry.custom {
        let programs = [("config", &custom.config), ("prepare", &custom.prepare), ("cleanup", &custom.cleanup)];
        row("custom.run_exec", &quoted(&custom.run.exec));
        for (name, program) in programs {
            if let Some(program) = program {
                row(&format!("custom.{name}_exec"), &quoted(&program.exec));
                row(&format!("custom.{name}_exec_timeout"), &seconds(program.timeout));
            }
        }
        row("custom.graceful_kill_timeout", &seconds(custom.graceful_kill_timeout));
        row("custom.force_kill_timeout", &seconds(custom.force_kill_timeout));
    }
    let limits = &entry.limits;
    for (key, limit) in [
        ("memory", limits.memory),
        ("processes", limits.processes),
        ("cpu_time", limits.cpu_time),
        ("open_files", limits.open_files),
    ] {
        if let Some(limit) = limit {
            row(key, &limit);
        }
    }
    for (key, n) in [("nice", limits.nice), ("oom_score_adj", limits.oom_score_adj)] {
        if let Some(n) = n {
            row(key, &n);
        }
    }
    if let Some(own) = limits.cgroup {
        row("cgroup", &own);
    }
    if let Some(file) = &entry.tls_ca_file {
        row("tls-ca-file", &quoted(&file.to_string_lossy()));
    }
    if let Some(dir) = &entry.jobs {
        row("jobs", &quoted(&dir.to_string_lossy()));
    }
    row("show_logs", &(entry.show_logs != config::ShowLogs::No));
}

/// Names only: an environment may hold secrets.
fn list(environment: &[String]) -> String {
    let names: Vec<String> = environment
        .iter()
        .map(|pair| quoted(&pair.split_once('=').map_or(pair.clone(), |(name, _)| format!("{name}=…"))))
        .collect();
    format!("[{}]", names.join(", "))
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

fn seconds(d: std::time::Duration) -> String {
    if d.subsec_nanos() == 0 { d.as_secs().to_string() } else { format!("\"{}ms\"", d.as_millis()) }
}
