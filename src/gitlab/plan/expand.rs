//! `$NAME` in variables (build §3.2): one pass, never into what it put in. No shell operators.

/// Replace the references in `text` by what `look` says; unknown is empty. `None` when the result is
/// longer than `limit` bytes: references multiply, and a job must not eat the host's memory.
pub(super) fn expand(text: &str, limit: usize, mut look: impl FnMut(&str, &mut String)) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match reference(rest) {
            Reference::None => out.push('$'),
            Reference::Swallow(len) => rest = &rest[len..],
            Reference::Name(name, len) => {
                match name {
                    "$" => out.push('$'),
                    name => look(name, &mut out),
                }
                rest = &rest[len..];
            }
        }
        if out.len() > limit {
            return None;
        }
    }
    out.push_str(rest);
    (out.len() <= limit).then_some(out)
}

enum Reference<'a> {
    /// The `$` stands for itself.
    None,
    /// `${}` and an unfinished `${`: so many bytes vanish with the `$`.
    Swallow(usize),
    Name(&'a str, usize),
}

/// What follows a `$`.
fn reference(rest: &str) -> Reference<'_> {
    let Some(first) = rest.bytes().next() else { return Reference::None };
    if first == b'{' {
        return match rest.find('}') {
            Some(1) => Reference::Swallow(2),
            Some(end) => Reference::Name(&rest[1..end], end + 1),
            None => Reference::Swallow(1),
        };
    }
    // A shell's own parameters are one sign long, digits too.
    if first.is_ascii_digit() || b"*#$@!?-".contains(&first) {
        return Reference::Name(&rest[..1], 1);
    }
    match rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count() {
        0 => Reference::None,
        len => Reference::Name(&rest[..len], len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_once() {
        let look = |name: &str, out: &mut String| match name {
            "A" => out.push_str("$B"),
            "B_1" => out.push_str("two"),
            _ => {}
        };
        for (text, want) in [
            ("none", "none"),
            ("$A-${B_1}", "$B-two"),
            ("$B_1x", ""),
            ("x$$y", "x$y"),
            ("${$}", "$"),
            ("$unknown.", "."),
            ("a$1b$12", "ab2"),
            ("$*$#$@$!$?$-", ""),
            ("${}z", "z"),
            ("${A", "A"),
            ("${A:-x}", ""),
            ("$ $. $", "$ $. $"),
            ("ü$Aü", "ü$Bü"),
            ("%A%", "%A%"),
        ] {
            assert_eq!(expand(text, 100, look).as_deref(), Some(want), "{text:?}");
        }
    }

    #[test]
    fn references_that_multiply_are_stopped() {
        let big = "x".repeat(1000);
        assert_eq!(expand(&"$A".repeat(1000), 10_000, |_, out| out.push_str(&big)), None);
    }
}
