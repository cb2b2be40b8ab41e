//! Which files go into an archive (build §6.2): patterns below the project directory, untracked files,
//! less what is excluded. Symbolic links are entries of their own and never followed, but for those that a
//! pattern spells out. Reads directories only; what it has to say is returned, not printed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::process;

use super::glob::{Ahead, Pattern, Reach};
use super::say::{Level, Line};

/// What a job names.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub paths: Vec<String>,
    pub exclude: Vec<String>,
    /// What git does not know, ignored files too.
    pub untracked: bool,
}

/// What was found, relative to the project directory, sorted, each once; and what is to be said of it.
#[derive(Debug, Default)]
pub struct Selection {
    pub files: Vec<PathBuf>,
    pub said: Vec<Line>,
}

/// `root` is the project directory, absolute.
pub fn select(root: &Path, wanted: &Wanted) -> Selection {
    let mut search = Search { root, excludes: Vec::new(), selection: Selection::default() };
    search.read_excludes(&wanted.exclude);
    for path in &wanted.paths {
        search.path(path);
    }
    if wanted.untracked {
        search.untracked();
    }
    for exclude in &search.excludes {
        if exclude.dropped > 0 {
            let text = format!("{}: excluded {} files", exclude.text, exclude.dropped);
            search.selection.said.push(Line::new(Level::Info, text));
        }
    }
    let mut selection = search.selection;
    selection.files.sort_unstable();
    selection.files.dedup();
    selection.files.shrink_to_fit();
    selection
}

/// `path` as it is below `root`, clean; empty for `root` itself. `None`: outside.
pub fn below(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for part in root.join(path).components() {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean.strip_prefix(root).map(Path::to_owned).ok()
}

struct Search<'a> {
    root: &'a Path,
    excludes: Vec<Exclude>,
    selection: Selection,
}

struct Exclude {
    text: String,
    /// `None`: it leads outside, and is said so of every file that is asked about.
    pattern: Option<Pattern>,
    dropped: u64,
}

/// A directory that is to be looked into.
struct Visit {
    /// Relative to the root.
    at: PathBuf,
    reach: Reach,
    /// How many of the names down to here are matches: what is below is found by each of them.
    times: u64,
}

impl Search<'_> {
    fn say(&mut self, level: Level, text: String) {
        self.selection.said.push(Line::new(level, text));
    }

    fn read_excludes(&mut self, texts: &[String]) {
        for text in texts {
            let pattern = match below(self.root, Path::new(text)) {
                None => None,
                Some(clean) => match Pattern::parse(clean.as_os_str().as_bytes()) {
                    Ok(pattern) => Some(pattern),
                    Err(why) => {
                        self.say(Level::Warning, format!("{text}: this pattern excludes nothing: {why}"));
                        continue;
                    }
                },
            };
            self.excludes.push(Exclude { text: text.clone(), pattern, dropped: 0 });
        }
    }

    fn path(&mut self, text: &str) {
        if text.is_empty() {
            return self.say(Level::Warning, "No matching files. Path is empty.".to_owned());
        }
        let Some(clean) = below(self.root, Path::new(text)) else {
            let text = format!("processPath: artifact path is not a subpath of project directory: {text}");
            return self.say(Level::Warning, text);
        };
        let pattern = match Pattern::parse(clean.as_os_str().as_bytes()) {
            Ok(pattern) => pattern,
            Err(why) => return self.say(Level::Warning, format!("{text}: this pattern matches nothing: {why}")),
        };
        match self.walk(&pattern) {
            0 => {
                let hint = "Ensure that the artifact path is relative to the working directory";
                self.say(Level::Warning, format!("{text}: no matching files. {hint} ({})", self.root.display()));
            }
            n => self.say(Level::Info, format!("{text}: found {n} matching artifact files and directories")),
        }
    }

    /// All that the pattern matches and all below that. A file below two matches counts twice, as each
    /// match is said to be looked through.
    fn walk(&mut self, pattern: &Pattern) -> u64 {
        let start = pattern.start();
        // The empty pattern is the project directory itself, which is no entry but counts as one.
        let times = u64::from(pattern.is_met(&start));
        let mut found = times;
        let mut todo = vec![Visit { at: PathBuf::new(), reach: start, times }];
        while let Some(visit) = todo.pop() {
            match pattern.ahead(&visit.reach) {
                Ahead::Names(names) if visit.times == 0 => {
                    for name in names {
                        let path = self.root.join(&visit.at).join(OsStr::from_bytes(&name));
                        let Ok(meta) = path.symlink_metadata() else { continue };
                        // A link that the pattern spells out is followed, where more of the pattern is to come.
                        let is_dir = meta.is_dir() || meta.is_symlink() && path.is_dir();
                        let link = meta.is_symlink();
                        found += self.meet(pattern, &visit, OsString::from_vec(name), is_dir, link, &mut todo);
                    }
                }
                _ => found += self.read(pattern, &visit, &mut todo),
            }
        }
        found
    }

    fn read(&mut self, pattern: &Pattern, visit: &Visit, todo: &mut Vec<Visit>) -> u64 {
        let entries = match fs::read_dir(self.root.join(&visit.at)) {
            Ok(entries) => entries,
            // It went away, or a link leads to no directory.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return 0,
            Err(e) => {
                self.say(Level::Warning, format!("{}: {e}", visit.at.display()));
                return 0;
            }
        };
        let mut found = 0;
        for entry in entries {
            match entry.and_then(|e| Ok((e.file_name(), e.file_type()?))) {
                Ok((name, kind)) => found += self.meet(pattern, visit, name, kind.is_dir(), false, todo),
                Err(e) => self.say(Level::Warning, format!("{}: {e}", visit.at.display())),
            }
        }
        found
    }

    /// One name of a directory: how often it is found. `linked`: it is a link that is followed, but what
    /// it leads to belongs to the archive only where the pattern goes on.
    fn meet(
        &mut self,
        pattern: &Pattern,
        visit: &Visit,
        name: OsString,
        is_dir: bool,
        linked: bool,
        todo: &mut Vec<Visit>,
    ) -> u64 {
        let reach = pattern.step(&visit.reach, name.as_bytes());
        let met = pattern.is_met(&reach);
        let times = visit.times + u64::from(met);
        let goes_on = pattern.ahead(&reach) != Ahead::Names(Vec::new());
        if times == 0 && !(is_dir && goes_on) {
            return 0;
        }
        let at = visit.at.join(name);
        let found = if times > 0 { self.add(&at, times) } else { 0 };
        if is_dir && (goes_on || times > 0) && !(linked && met) {
            todo.push(Visit { at, reach, times });
        }
        found
    }

    /// How often the entry was added: not at all when it is excluded.
    fn add(&mut self, at: &Path, times: u64) -> u64 {
        for i in 0..self.excludes.len() {
            match &self.excludes[i].pattern {
                Some(pattern) if pattern.matches(at.as_os_str().as_bytes()) => {
                    self.excludes[i].dropped += times;
                    return 0;
                }
                Some(_) => {}
                None => {
                    let text = &self.excludes[i].text;
                    let text = format!("isExcluded: artifact path is not a subpath of project directory: {text}");
                    self.say(Level::Warning, text);
                    break;
                }
            }
        }
        if !at.as_os_str().is_empty() {
            self.selection.files.push(at.to_owned());
        }
        times
    }

    fn untracked(&mut self) {
        let asked = process::command("git").args(["ls-files", "-o", "-z"]).current_dir(self.root).output();
        let listed = match asked {
            Ok(out) if out.status.success() => out.stdout,
            Ok(out) => {
                let why = String::from_utf8_lossy(&out.stderr).trim().replace('\n', " ");
                return self.say(Level::Warning, format!("untracked: {why}"));
            }
            Err(e) => return self.say(Level::Warning, format!("untracked: git: {e}")),
        };
        let mut found = 0;
        for name in listed.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            // A repository inside is one name with a slash at its end, and an entry of its own.
            let name = name.strip_suffix(b"/").unwrap_or(name);
            found += self.add(Path::new(OsStr::from_bytes(name)), 1);
        }
        match found {
            0 => self.say(Level::Warning, "untracked: no files".to_owned()),
            n => self.say(Level::Info, format!("untracked: found {n} files")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            if name.ends_with('/') {
                fs::create_dir_all(path).unwrap();
            } else {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, name).unwrap();
            }
        }
        dir
    }

    fn check(root: &Path, paths: &[&str], exclude: &[&str], files: &str, said: &str) {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        let got = select(root, &Wanted { paths: own(paths), exclude: own(exclude), untracked: false });
        let names: Vec<_> = got.files.iter().map(|f| f.to_string_lossy().into_owned()).collect();
        assert_eq!(names.join(" "), files, "{paths:?} {exclude:?}");
        let lines: Vec<_> = got.said.iter().map(|l| l.text.replace(root.to_str().unwrap(), "ROOT")).collect();
        assert_eq!(lines.join("\n"), said, "{paths:?} {exclude:?}");
    }

    #[test]
    fn paths_select_files_and_all_below_directories() {
        let dir = tree(&["out/a.txt", "out/d/b.log", "out/.h", "x"]);
        let root = dir.path();
        symlink("a.txt", root.join("out/l")).unwrap();
        symlink("out", root.join("linked")).unwrap();
        let all = "out out/.h out/a.txt out/d out/d/b.log out/l";
        check(
            root,
            &["out/**/*.txt"],
            &[],
            "out/a.txt",
            "out/**/*.txt: found 1 matching artifact files and directories",
        );
        check(root, &["out/"], &[], all, "out/: found 6 matching artifact files and directories");
        let inside = format!("../{}/out/d", root.file_name().unwrap().to_str().unwrap());
        check(
            root,
            &[&inside],
            &[],
            "out/d out/d/b.log",
            &format!("{inside}: found 2 matching artifact files and directories"),
        );
        let absolute = format!("{}/out/d", root.display());
        check(
            root,
            &[&absolute],
            &[],
            "out/d out/d/b.log",
            "ROOT/out/d: found 2 matching artifact files and directories",
        );
        // out twice by itself, d and its file once more each by their own match.
        check(root, &["out/**"], &[], all, "out/**: found 12 matching artifact files and directories");
        check(root, &["linked"], &[], "linked", "linked: found 1 matching artifact files and directories");
        check(
            root,
            &["linked/*.txt"],
            &[],
            "linked/a.txt",
            "linked/*.txt: found 1 matching artifact files and directories",
        );
        check(root, &["*/*.txt"], &[], "out/a.txt", "*/*.txt: found 1 matching artifact files and directories");
        check(root, &["x", "x"], &[], "x", &["x: found 1 matching artifact files and directories"; 2].join("\n"));
        check(root, &["."], &[], &format!("linked {all} x"), ".: found 9 matching artifact files and directories");
    }

    #[test]
    fn what_matches_nothing_is_said_and_no_error() {
        let dir = tree(&["x"]);
        for (path, want) in [
            ("", "No matching files. Path is empty."),
            ("../y", "processPath: artifact path is not a subpath of project directory: ../y"),
            ("/etc/passwd", "processPath: artifact path is not a subpath of project directory: /etc/passwd"),
            (
                "none/",
                "none/: no matching files. Ensure that the artifact path is relative to the working directory (ROOT)",
            ),
            ("[", "[: this pattern matches nothing: a class in [ ] is not closed"),
        ] {
            check(dir.path(), &[path], &[], "", want);
        }
    }

    #[test]
    fn excluding_a_directory_leaves_its_content() {
        let dir = tree(&["d/a", "d/b.o", "e"]);
        let found = |n| format!("d: found {n} matching artifact files and directories");
        check(dir.path(), &["d"], &["d"], "d/a d/b.o", &format!("{}\nd: excluded 1 files", found(2)));
        check(dir.path(), &["d"], &["d/*.o"], "d d/a", &format!("{}\nd/*.o: excluded 1 files", found(2)));
        check(
            dir.path(),
            &["d", "e"],
            &["d/**"],
            "e",
            "d: no matching files. Ensure that the artifact path is relative to the working directory (ROOT)\n\
             e: found 1 matching artifact files and directories\nd/**: excluded 3 files",
        );
        let outside = "isExcluded: artifact path is not a subpath of project directory: ../q";
        check(
            dir.path(),
            &["e"],
            &["../q", "e"],
            "e",
            &format!("{outside}\ne: found 1 matching artifact files and directories"),
        );
    }
}
