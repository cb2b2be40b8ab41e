//! Values inside strings: durations as Go writes them, sizes with units, `$VAR` expansion. Pure.

use std::time::Duration;

/// `1h30m`, `1.5s`, `300ms`, `90`; `None` for anything else, negative ones too.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim().strip_prefix('+').unwrap_or(text.trim());
    if let Ok(seconds) = rest.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit() || c == '.').map_or(rest.len(), |n| digits + n);
        let seconds = match &rest[digits..unit] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = &rest[unit..];
    }
    Some(total)
}

/// `64MB`, `64MiB`, `64 M` (all 1024-based, as people mean them), `4096`.
pub(super) fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let power = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return None,
    };
    number.checked_mul(1024u64.checked_pow(power)?)
}

/// `$NAME` and `${NAME}` from the environment. The names that are not set are the second value; they
/// expand to nothing.
pub(super) fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> (String, Vec<String>) {
    let (mut out, mut missing) = (String::with_capacity(text.len()), Vec::new());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        rest = &rest[dollar + 1..];
        let (name, after) = if let Some(braced) = rest.strip_prefix('{') {
            braced.split_once('}').unwrap_or((braced, ""))
        } else {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            rest.split_at(end)
        };
        if name.is_empty() {
            out.push('$');
        } else {
            match env(name) {
                Some(value) => out.push_str(&value),
                None => missing.push(name.to_owned()),
            }
        }
        rest = after;
    }
    out.push_str(rest);
    (out, missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_go_s_or_seconds() {
        for (text, want) in [
            ("1h30m", Some(5_400_000)),
            ("15m0s", Some(900_000)),
            ("1.5s", Some(1_500)),
            ("300ms", Some(300)),
            ("90", Some(90_000)),
            ("0s", Some(0)),
            ("", None),
            ("1", Some(1_000)),
            ("1.5", None),
            ("-3s", None),
            ("3 s", None),
            ("3days", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(duration(text), want.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, want) in [
            ("64MB", Some(64 << 20)),
            ("1 GiB", Some(1 << 30)),
            ("4096", Some(4096)),
            ("4k", Some(4096)),
            ("64XB", None),
            ("", None),
            ("-1", None),
            ("99999999999T", None),
        ] {
            assert_eq!(size(text), want, "{text:?}");
        }
    }

    #[test]
    fn variables_expand_from_the_environment() {
        let env = |name: &str| (name == "A").then(|| "x".to_owned());
        for (text, want, missing) in [
            ("$A/${A}b", "x/xb", vec![]),
            ("$B-$A", "-x", vec!["B"]),
            ("a$", "a$", vec![]),
            ("${A", "x", vec![]),
            ("none", "none", vec![]),
        ] {
            let (got, gone) = expand(text, &env);
            assert_eq!((got.as_str(), gone), (want, missing.into_iter().map(str::to_owned).collect()), "{text:?}");
        }
    }
}
