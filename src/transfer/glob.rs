//! Path patterns as GitLab's keyword `artifacts:paths` knows them (build §6.2): `*`, `?`, `[class]`, `{a,b}`,
//! and `**` for any number of directories. A pattern is matched name by name, so that a walk knows early
//! which directories can hold a match. Works on bytes; touches no file.

/// Alternatives in braces multiply; a pattern that grows beyond this is refused.
const MAX_ALTERNATIVES: usize = 1024;

/// One pattern, its braces taken apart.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    alternatives: Vec<Vec<Part>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// A name without wildcards.
    Name(Vec<u8>),
    Wild(Vec<Sign>),
    /// `**`: any number of directories, also none.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Sign {
    Byte(u8),
    /// `?`: one character, not one byte of it.
    One,
    Star,
    /// Ranges of characters, and whether they are the ones left out.
    Class(Vec<(u32, u32)>, bool),
}

/// How far a pattern is matched by the names down to some directory: positions in its alternatives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach(Vec<(usize, usize)>);

/// What may follow a [`Reach`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// Only these names: no directory need be read.
    Names(Vec<Vec<u8>>),
    Anything,
}

impl Pattern {
    /// A relative, clean path with wildcards. The error says what is wrong with it.
    pub(super) fn parse(text: &[u8]) -> Result<Pattern, String> {
        // No path is longer.
        if text.len() > 4096 {
            return Err("it is longer than a path can be".to_owned());
        }
        let mut flat = Vec::new();
        braces(text, &mut flat)?;
        let alternatives = flat.iter().map(|one| parts(one)).collect::<Result<_, _>>()?;
        Ok(Pattern { alternatives })
    }

    /// Before the first name.
    pub(super) fn start(&self) -> Reach {
        let mut reach = Reach::default();
        (0..self.alternatives.len()).for_each(|a| self.add(&mut reach, a, 0));
        reach
    }

    /// After one more name.
    pub(super) fn step(&self, from: &Reach, name: &[u8]) -> Reach {
        let mut to = Reach::default();
        for &(a, at) in &from.0 {
            match self.alternatives[a].get(at) {
                Some(Part::Any) => self.add(&mut to, a, at),
                Some(Part::Name(want)) if want == name => self.add(&mut to, a, at + 1),
                Some(Part::Wild(signs)) if wild(signs, name) => self.add(&mut to, a, at + 1),
                _ => {}
            }
        }
        to
    }

    /// Whether the names so far are a match.
    pub(super) fn is_met(&self, reach: &Reach) -> bool {
        reach.0.iter().any(|&(a, at)| at == self.alternatives[a].len())
    }

    /// Which names can go on from here; no names at all when none can.
    pub(super) fn ahead(&self, reach: &Reach) -> Ahead {
        let mut names = Vec::new();
        for &(a, at) in &reach.0 {
            match self.alternatives[a].get(at) {
                Some(Part::Name(name)) => names.push(name.clone()),
                Some(_) => return Ahead::Anything,
                None => {}
            }
        }
        names.sort();
        names.dedup();
        Ahead::Names(names)
    }

    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let mut reach = self.start();
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            reach = self.step(&reach, name);
            if reach.0.is_empty() {
                return false;
            }
        }
        self.is_met(&reach)
    }

    /// `**` may stand for nothing.
    fn add(&self, reach: &mut Reach, a: usize, mut at: usize) {
        loop {
            if !reach.0.contains(&(a, at)) {
                reach.0.push((a, at));
            }
            match self.alternatives[a].get(at) {
                Some(Part::Any) => at += 1,
                _ => return,
            }
        }
    }
}

/// `a{b,c}d` is `abd` and `acd`.
fn braces(text: &[u8], out: &mut Vec<Vec<u8>>) -> Result<(), String> {
    let Some((open, commas, close)) = first_group(text)? else {
        if out.len() >= MAX_ALTERNATIVES {
            return Err(format!("more than {MAX_ALTERNATIVES} alternatives in braces"));
        }
        out.push(text.to_vec());
        return Ok(());
    };
    let mut from = open + 1;
    for end in commas.into_iter().chain([close]) {
        let one = [&text[..open], &text[from..end], &text[close + 1..]].concat();
        braces(&one, out)?;
        from = end + 1;
    }
    Ok(())
}

/// The first `{…}` that is no part of a class: where it opens, its own commas, where it closes.
fn first_group(text: &[u8]) -> Result<Option<(usize, Vec<usize>, usize)>, String> {
    let (mut open, mut depth, mut commas, mut class, mut i) = (None, 0, Vec::new(), false, 0);
    while i < text.len() {
        match text[i] {
            b'\\' => i += 1,
            b'[' if !class => class = true,
            b']' if class => class = false,
            _ if class => {}
            b'{' => {
                depth += 1;
                open.get_or_insert(i);
            }
            b',' if depth == 1 => commas.push(i),
            b'}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    return Ok(open.map(|o| (o, commas, i)));
                }
            }
            _ => {}
        }
        i += 1;
    }
    if depth > 0 { Err("a brace is not closed".to_owned()) } else { Ok(None) }
}

fn parts(text: &[u8]) -> Result<Vec<Part>, String> {
    let names = text.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".");
    names.map(|name| if name == b"**" { Ok(Part::Any) } else { part(name) }).collect()
}

fn part(name: &[u8]) -> Result<Part, String> {
    let mut signs = Vec::with_capacity(name.len());
    let mut i = 0;
    while i < name.len() {
        match name[i] {
            b'\\' => {
                i += 1;
                signs.push(Sign::Byte(*name.get(i).ok_or("a backslash stands at the end")?));
            }
            b'*' if signs.last() == Some(&Sign::Star) => {}
            b'*' => signs.push(Sign::Star),
            b'?' => signs.push(Sign::One),
            b'[' => {
                let (sign, len) = class(&name[i + 1..])?;
                signs.push(sign);
                i += len;
            }
            b => signs.push(Sign::Byte(b)),
        }
        i += 1;
    }
    let plain: Option<Vec<u8>> = signs.iter().map(|s| if let Sign::Byte(b) = s { Some(*b) } else { None }).collect();
    Ok(plain.map_or(Part::Wild(signs), Part::Name))
}

/// What follows a `[`, up to and with the `]`.
fn class(text: &[u8]) -> Result<(Sign, usize), String> {
    const OPEN: &str = "a class in [ ] is not closed";
    let mut ranges = Vec::new();
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut i = usize::from(negated);
    let one = |i: &mut usize| -> Result<u32, String> {
        if text.get(*i) == Some(&b'\\') {
            *i += 1;
        }
        let (c, len) = character(text.get(*i..).filter(|t| !t.is_empty()).ok_or(OPEN)?);
        *i += len;
        Ok(c)
    };
    loop {
        if text.get(i) == Some(&b']') && !ranges.is_empty() {
            return Ok((Sign::Class(ranges, negated), i + 1));
        }
        let low = one(&mut i)?;
        let high = if text.get(i) == Some(&b'-') && text.get(i + 1).is_some_and(|b| *b != b']') {
            i += 1;
            one(&mut i)?
        } else {
            low
        };
        ranges.push((low, high));
    }
}

/// The first character and its length; a byte that is no UTF-8 stands for itself.
fn character(text: &[u8]) -> (u32, usize) {
    let len = match text[0] {
        0..0xc0 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    match text.get(..len).and_then(|t| std::str::from_utf8(t).ok()).and_then(|s| s.chars().next()) {
        Some(c) => (u32::from(c), len),
        None => (u32::from(text[0]), 1),
    }
}

/// In one pass: after a mismatch only the last star can take one character more.
fn wild(signs: &[Sign], name: &[u8]) -> bool {
    let (mut s, mut n, mut star) = (0, 0, None);
    while n < name.len() || s < signs.len() {
        let step = match signs.get(s) {
            Some(Sign::Star) => {
                star = Some((s, n));
                s += 1;
                continue;
            }
            Some(_) if n == name.len() => None,
            Some(Sign::Byte(b)) => (name[n] == *b).then_some(1),
            Some(Sign::One) => Some(character(&name[n..]).1),
            Some(Sign::Class(ranges, negated)) => {
                let (c, len) = character(&name[n..]);
                let inside = ranges.iter().any(|(low, high)| (*low..=*high).contains(&c));
                (inside != *negated).then_some(len)
            }
            None => None,
        };
        match (step, star) {
            (Some(len), _) => (s, n) = (s + 1, n + len),
            (None, Some((at, from))) if from < name.len() => {
                star = Some((at, from + 1));
                (s, n) = (at + 1, from + 1);
            }
            (None, _) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, yes: &[&str], no: &[&str]) {
        let p = Pattern::parse(pattern.as_bytes()).unwrap();
        for path in yes {
            assert!(p.matches(path.as_bytes()), "{pattern} {path}");
        }
        for path in no {
            assert!(!p.matches(path.as_bytes()), "{pattern} {path}");
        }
    }

    #[test]
    fn patterns_match_names_and_directories() {
        check("a/b.txt", &["a/b.txt"], &["a", "a/b.txt/c", "b.txt"]);
        check("*.txt", &["a.txt", ".txt", ".hidden.txt"], &["a/b.txt", "a.txt.gz"]);
        check("**/*.txt", &["a.txt", "a/b/c.txt"], &["a/b"]);
        check("out/**", &["out", "out/a", "out/a/b"], &["outer", "a/out"]);
        check("a/**/z", &["a/z", "a/b/z", "a/b/c/z"], &["a", "a/b", "z"]);
        check("**", &["a", "a/b", ".git/x"], &[]);
        check("a**z", &["az", "abcz"], &["a/z"]);
        check("a?c", &["abc", "aüc"], &["ac", "abbc"]);
        check("[a-c]x", &["ax", "cx"], &["dx", "-x"]);
        check("[^a-c]x", &["dx"], &["ax"]);
        check("[!é]", &["e"], &["é"]);
        check("[]a]", &["]", "a"], &["b"]);
        check("{a,b/c}/*.{o,so}", &["a/x.o", "b/c/x.so"], &["b/x.o", "a/x.a"]);
        check("x{,.gz}", &["x", "x.gz"], &["x."]);
        check("{a,{b,c}d}", &["a", "bd", "cd"], &["b"]);
        check("\\*\\{", &["*{"], &["a{"]);
        check("*a*b*c*", &["xaxbxcx", "abc", "aabbcc"], &["acb", "ab"]);
        check("ü/*", &["ü/ä"], &["u/a"]);
    }

    #[test]
    fn patterns_that_say_nothing_are_refused() {
        for (pattern, want) in [
            ("{a,b", "a brace is not closed"),
            ("[a", "a class in [ ] is not closed"),
            ("a\\", "a backslash stands at the end"),
        ] {
            assert_eq!(Pattern::parse(pattern.as_bytes()).unwrap_err(), want, "{pattern}");
        }
        assert!(Pattern::parse("{a,b}".repeat(20).as_bytes()).is_err());
    }

    #[test]
    fn a_walk_knows_where_it_need_not_look() {
        let p = Pattern::parse(b"out/{a,b}/*.o").unwrap();
        let start = p.start();
        assert_eq!(p.ahead(&start), Ahead::Names(vec![b"out".to_vec()]));
        let out = p.step(&start, b"out");
        assert_eq!(p.ahead(&out), Ahead::Names(vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(p.ahead(&p.step(&out, b"a")), Ahead::Anything);
        assert_eq!(p.ahead(&p.step(&out, b"c")), Ahead::Names(vec![]));
    }
}
