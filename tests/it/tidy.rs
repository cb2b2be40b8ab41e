//! The house rules, as tests: who may import whom, who may name which crate, what every file begins
//! with and how long it may be. Reads the sources; starts nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below `dir`: its path from the root, and its text.
fn sources(dir: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut dirs = vec![root().join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// The text without comments and without the unit tests at its end.
fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    text.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The module of `src` that a file belongs to, as `gitlab::lease`.
fn module(path: &str) -> String {
    path.trim_start_matches("src/").trim_end_matches(".rs").replace('/', "::")
}

/// The modules of this crate that a file names, one or two segments deep: `use crate::a::b`,
/// `use crate::{a::b, c}`, and `crate::a::b` in the code.
fn named_modules(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for piece in text.split("crate::").skip(1) {
        match piece.strip_prefix('{') {
            None => names.push(path_at(piece)),
            Some(group) => {
                let mut depth = 0;
                let mut item = String::new();
                for c in group.chars() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => names.push(path_at(std::mem::take(&mut item).trim())),
                        _ => {}
                    }
                    if c != ',' || depth > 0 {
                        item.push(c);
                    }
                }
                names.push(path_at(item.trim()));
            }
        }
    }
    names.retain(|n| !n.is_empty());
    names
}

fn path_at(text: &str) -> String {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(text.len());
    text[..end].split("::").take(2).collect::<Vec<_>>().join("::")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    Edge,
    Manager,
    Names,
    Forge,
    Seam,
    JobProcess,
    Helper,
    Ground,
}

/// Design §7. A new module at the top is put here on purpose.
fn rank(module: &str) -> Option<Rank> {
    let top = module.split("::").next().unwrap_or_default();
    Some(match top {
        "main" | "lib" | "cli" => Rank::Edge,
        "supervisor" | "worker" | "dispatch" | "monitor" | "config" => Rank::Manager,
        "forges" => Rank::Names,
        "gitlab" | "spool" | "github" => Rank::Forge,
        "forge" | "model" | "jobdir" | "cloud" => Rank::Seam,
        "job" | "executor" => Rank::JobProcess,
        "transfer" => Rank::Helper,
        "process" | "http" | "retry" | "clock" | "shutdown" | "space" | "diag" => Rank::Ground,
        _ => return None,
    })
}

/// Whether code of one rank may name modules of another.
fn may(from: Rank, to: Rank) -> bool {
    use Rank::{Edge, Forge, Ground, Helper, JobProcess, Manager, Names, Seam};
    match from {
        Edge => true,
        Manager => matches!(to, Manager | Names | Seam | Ground),
        // The one place that names every forge.
        Names => matches!(to, Forge | Seam | Ground | Names),
        Forge => matches!(to, Forge | Seam | Ground | Names),
        Seam => matches!(to, Seam | Ground),
        JobProcess => matches!(to, JobProcess | Names | Seam | Ground),
        Helper => matches!(to, Helper | Seam | Ground),
        Ground => matches!(to, Ground),
    }
}

#[test]
fn imports_point_down_only() {
    let mut wrong = Vec::new();
    for (path, text) in sources("src") {
        let from = module(&path);
        let from_rank = rank(&from).unwrap_or_else(|| panic!("{path}: design §7 has no such module; give it a rank"));
        for name in named_modules(&code(&text)) {
            // The manager's settings type is what a forge is opened with.
            let settings = name.starts_with("config") && matches!(from_rank, Rank::Forge | Rank::Names);
            if let Some(to_rank) = rank(&name)
                && !may(from_rank, to_rank)
                && !settings
            {
                wrong.push(format!("{path} ({from_rank:?}) names {name} ({to_rank:?})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn forges_do_not_import_each_other() {
    let mut wrong = Vec::new();
    for (path, text) in sources("src") {
        let from = module(&path);
        let Some(forge) = from.split("::").next().filter(|t| rank(t) == Some(Rank::Forge)) else { continue };
        for name in named_modules(&code(&text)) {
            let other = name.split("::").next().unwrap_or_default();
            // The spool speaks GitLab's job format: its job types and its plan are the same.
            let shared = forge == "spool" && (name.starts_with("gitlab::wire") || name.starts_with("gitlab::plan"));
            if rank(other) == Some(Rank::Forge) && other != forge && !shared {
                wrong.push(format!("{path} names {name}"));
            }
        }
        // The manager's half and the job process's half of a forge know nothing of each other.
        let half = from.split("::").nth(1).unwrap_or_default();
        let strangers: &[&str] = match half {
            "lease" | "coordinator" => &["plan"],
            "plan" => &["lease", "coordinator"],
            _ => &[],
        };
        for stranger in strangers {
            if code(&text).contains(&format!("{forge}::{stranger}"))
                || code(&text).contains(&format!("super::{stranger}"))
            {
                wrong.push(format!("{path} names {forge}::{stranger}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_manager_and_the_job_process_do_not_import_each_other() {
    for (path, text) in sources("src") {
        let from = rank(&module(&path));
        for name in named_modules(&code(&text)) {
            let pair = (from, rank(&name));
            let crossing =
                [(Some(Rank::Manager), Some(Rank::JobProcess)), (Some(Rank::JobProcess), Some(Rank::Manager))];
            assert!(!crossing.contains(&pair), "{path} names {name}");
        }
    }
}

#[test]
fn each_crate_is_named_only_where_it_may_be() {
    // Design §8.10. `tests/` and unit tests may do as they like.
    let rules: [(&str, &[&str]); 7] = [
        ("ureq", &["src/http.rs", "src/http/"]),
        ("signal_hook", &["src/supervisor/signals.rs", "src/job.rs", "src/job/"]),
        (
            "rustix",
            &[
                "src/process.rs",
                "src/process/",
                "src/job.rs",
                "src/job/",
                "src/jobdir.rs",
                "src/jobdir/",
                "src/clock.rs",
                "src/space.rs",
                "src/transfer/",
            ],
        ),
        ("ctrlc", &["src/cli/exec.rs", "src/cli.rs"]),
        ("nix", &["src/job/start.rs", "src/process/signals.rs", "src/process/user.rs"]),
        ("lexopt", &["src/cli.rs", "src/cli/", "src/main.rs"]),
        ("env_logger", &["src/cli.rs", "src/cli/", "src/main.rs", "src/diag/"]),
    ];
    let mut wrong = Vec::new();
    for (path, text) in sources("src") {
        for (name, allowed) in rules {
            let here = allowed.iter().any(|a| path == *a || (a.ends_with('/') && path.starts_with(a)));
            let code = code(&text);
            let path = format!("{name}::");
            let begins = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let named = code.match_indices(&path).any(|(at, _)| begins(at)) || code.contains(&format!("use {name};"));
            if named && !here {
                wrong.push(format!("{path} names {name}: {}", allowed.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn wire_types_stay_in_their_forges_folder() {
    for (path, text) in sources("src") {
        for forge in ["gitlab", "spool", "github"] {
            let inside = path.starts_with(&format!("src/{forge}/")) || path == format!("src/{forge}.rs");
            let named = code(&text).contains(&format!("{forge}::wire"));
            // The spool's jobs are written in GitLab's format (design §6).
            let shared = forge == "gitlab" && path.starts_with("src/spool/");
            assert!(inside || !named || shared, "{path} names {forge}::wire");
        }
    }
}

#[test]
fn every_file_says_first_what_it_is_for() {
    for dir in ["src", "tests"] {
        for (path, text) in sources(dir) {
            let first = text.lines().next().unwrap_or_default();
            assert!(first.starts_with("//! ") && first.len() > 20, "{path} begins with {first:?}");
        }
    }
}

#[test]
fn no_file_is_longer_than_one_sitting() {
    // Wire types may be longer, and tests beside the code are not counted.
    const MOST: usize = 450;
    let mut lengths: BTreeMap<String, usize> = BTreeMap::new();
    for (path, text) in sources("src") {
        let lines = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default().lines().count();
        if !Path::new(&path).ends_with("wire.rs") && !path.ends_with("/tests.rs") {
            lengths.insert(path, lines);
        }
    }
    let long: Vec<String> =
        lengths.iter().filter(|(_, n)| **n > MOST).map(|(p, n)| format!("{p}: {n} lines")).collect();
    assert!(long.is_empty(), "over {MOST} lines:\n{}", long.join("\n"));
    for (path, text) in sources("tests").into_iter().filter(|(_, t)| t.lines().count() > MOST) {
        eprintln!("tidy: {path} has {} lines; tests may", text.lines().count());
    }
}

#[test]
fn nothing_polls_where_it_could_block() {
    for (path, text) in sources("src") {
        let allowed = path == "src/diag.rs";
        assert!(allowed || !code(&text).contains("thread::sleep"), "{path} sleeps");
    }
}

#[test]
fn the_crate_forbids_unsafe_code_and_the_top_level_holds_nothing_else() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("unsafe_code = \"forbid\""));
    let known = [
        "Cargo.toml",
        "Cargo.lock",
        "src",
        "tests",
        "packaging",
        "LICENSE",
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "target",
    ];
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.starts_with('.') || known.contains(&name.as_str()), "{name} does not belong at the top level");
    }
}

#[test]
fn readme_changelog_and_licence_are_there() {
    let text = |name: &str| fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(text("LICENSE").starts_with("MIT License"));
    assert!(text("CHANGELOG.md").contains("Unreleased"));
}

#[test]
fn imports_are_found_in_every_spelling() {
    let text = "use crate::a::b::C;\nuse crate::{d, e::{F, G}, h::i};\nfn x() { crate::j::k() }";
    assert_eq!(named_modules(text), ["a::b", "d", "e::", "h::i", "j::k"]);
}
