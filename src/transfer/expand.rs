//! Variables in the names and paths that a job gives (build §3.2): as a shell reads a double-quoted word,
//! from the environment. Commands are not run and numbers are not computed: such a text is refused.

use super::say;

/// The text with its references replaced; the error says what cannot be done.
pub fn expand(text: &str, look: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['$', '\\', '`']) {
        out.push_str(&rest[..at]);
        let sign = rest.as_bytes()[at];
        rest = &rest[at + 1..];
        match (sign, rest.chars().next()) {
            (b'`', _) => return Err("commands are not run here".to_owned()),
            (b'\\', Some('\n')) => rest = &rest[1..],
            (b'\\', Some(c @ ('$' | '`' | '"' | '\\'))) => {
                out.push(c);
                rest = &rest[1..];
            }
            (b'$', Some('(')) => return Err("commands are not run here".to_owned()),
            (b'$', Some('{')) => {
                let end = closing(rest).ok_or("a ${ is not closed")?;
                out.push_str(&braced(&rest[1..end], look)?);
                rest = &rest[end + 1..];
            }
            (b'$', Some(c)) if c.is_ascii_alphanumeric() || "_*#$@!?-".contains(c) => {
                let name = name(rest);
                let len = name.len().max(1);
                out.push_str(&look(&rest[..len]).unwrap_or_default());
                rest = &rest[len..];
            }
            _ => out.push(char::from(sign)),
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// A path with the job's variables in their places; as it is, and said, when that cannot be.
pub fn cleared(text: &str, look: &dyn Fn(&str) -> Option<String>) -> String {
    expand(text, look).unwrap_or_else(|why| {
        say::warn(format!("invalid path {text:?}: {why}"));
        text.to_owned()
    })
}

/// The letters of a name at the beginning; a digit is a whole name.
fn name(text: &str) -> &str {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return &text[..1];
    }
    &text[..text.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count()]
}

/// Where the `{` at the beginning is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut bytes = text.bytes().enumerate();
    while let Some((i, b)) = bytes.next() {
        match b {
            b'\\' => drop(bytes.next()),
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

/// What stands between `${` and `}`.
fn braced(text: &str, look: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let bad = || format!("${{{text}}} is not understood");
    if let Some(counted) = text.strip_prefix('#').filter(|t| !t.is_empty() && name(t) == *t) {
        return Ok(look(counted).unwrap_or_default().chars().count().to_string());
    }
    let key = name(text);
    if key.is_empty() {
        return Err(bad());
    }
    let value = look(key);
    let rest = &text[key.len()..];
    let (colon, rest) = rest.strip_prefix(':').map_or((false, rest), |r| (true, r));
    let value = value.filter(|v| !colon || !v.is_empty());
    let Some(sign) = rest.chars().next() else {
        return if colon { Err(bad()) } else { Ok(value.unwrap_or_default()) };
    };
    let word = &rest[sign.len_utf8()..];
    match sign {
        '-' | '=' => value.map_or_else(|| expand(word, look), Ok),
        '+' => {
            if value.is_some() {
                expand(word, look)
            } else {
                Ok(String::new())
            }
        }
        '?' => value.ok_or_else(|| format!("{key}: {}", if word.is_empty() { "not set" } else { word })),
        _ if colon => slice(&value.unwrap_or_default(), rest).ok_or_else(bad),
        '#' | '%' => Ok(trim(value.unwrap_or_default(), sign, word)),
        _ => Err(bad()),
    }
}

/// `FROM` or `FROM:LENGTH`, in characters; below zero they count from the end.
fn slice(value: &str, range: &str) -> Option<String> {
    let (from, length) = range.split_once(':').map_or((range, None), |(f, l)| (f, Some(l)));
    let chars: Vec<char> = value.chars().collect();
    let number = |text: &str| text.trim().parse::<i64>().ok();
    let place = |n: i64| (if n < 0 { chars.len() as i64 + n } else { n }).clamp(0, chars.len() as i64) as usize;
    let start = place(number(from)?);
    let end = match length.map(number) {
        None => chars.len(),
        Some(None) => return None,
        Some(Some(n)) if n < 0 => place(n),
        Some(Some(n)) => start.saturating_add(n as usize).min(chars.len()),
    };
    Some(chars[start..end.max(start)].iter().collect())
}

/// A beginning or an end without signs of its own.
fn trim(value: String, sign: char, word: &str) -> String {
    let word = word.strip_prefix(sign).unwrap_or(word);
    let cut = if sign == '#' { value.strip_prefix(word) } else { value.strip_suffix(word) };
    cut.map(str::to_owned).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(name: &str) -> Option<String> {
        match name {
            "A" => Some("alpha".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn references_are_read_as_a_shell_reads_them() {
        for (text, want) in [
            ("plain", "plain"),
            ("$A/${A}x/$Ax", "alpha/alphax/"),
            ("a\\$A\\*\\\\", "a$A\\*\\"),
            ("${B:-d$A}|${EMPTY:-d}|${EMPTY-d}|${A:-d}", "dalpha|d||alpha"),
            ("${A:+yes}|${B+yes}", "yes|"),
            ("${A:1:3}|${A:2}|${A: -2}|${A:0:-1}|${A:9}", "lph|pha|ha|alph|"),
            ("${#A}", "5"),
            ("${A%ha}|${A#al}|${A%x}", "alp|pha|alpha"),
            ("100$ $. $", "100$ $. $"),
            ("{a,b}/*", "{a,b}/*"),
            ("$1$$", ""),
        ] {
            assert_eq!(expand(text, &look).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_a_shell_would_run_is_refused() {
        for (text, want) in [
            ("$(id)", "commands are not run here"),
            ("`id`", "commands are not run here"),
            ("${A", "a ${ is not closed"),
            ("${B?}", "B: not set"),
            ("${A/x/y}", "${A/x/y} is not understood"),
            ("${}", "${} is not understood"),
        ] {
            assert_eq!(expand(text, &look).unwrap_err(), want, "{text}");
        }
    }
}
