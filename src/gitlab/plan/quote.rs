//! Quoting for the shells that read our scripts: any bytes but NUL come out of the shell as they went in.

use crate::model::Shell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quoting {
    /// bash's `$'…'`: one line whatever is quoted, so that the shell's line numbers stay small, and
    /// plain ASCII, so that no locale reads it in another way.
    Ansi,
    /// `'…'`, for shells that know no more.
    Posix,
}

impl Quoting {
    /// `posixly`: FF_POSIXLY_CORRECT_ESCAPES. dash and sh get the right form without the flag.
    pub(super) fn of(shell: Shell, posixly: bool) -> Quoting {
        if shell == Shell::Bash && !posixly { Quoting::Ansi } else { Quoting::Posix }
    }

    /// Append `bytes` as one word.
    pub(super) fn push(self, out: &mut Vec<u8>, bytes: &[u8]) {
        let bare = |b: &u8| b.is_ascii_alphanumeric() || b"_-,./@".contains(b);
        if !bytes.is_empty() && bytes.iter().all(bare) {
            out.extend_from_slice(bytes);
            return;
        }
        match self {
            Quoting::Ansi if bytes.is_empty() => out.extend_from_slice(b"''"),
            Quoting::Ansi => ansi(out, bytes),
            Quoting::Posix => posix(out, bytes),
        }
    }
}

fn ansi(out: &mut Vec<u8>, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.reserve(bytes.len() + 8);
    out.extend_from_slice(b"$'");
    for &b in bytes {
        let short = match b {
            b'\'' | b'\\' => b,
            0x07 => b'a',
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0b => b'v',
            0x0c => b'f',
            b'\r' => b'r',
            b' '..=b'~' => {
                out.push(b);
                continue;
            }
            _ => {
                out.extend_from_slice(&[b'\\', b'x', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
    }
    out.push(b'\'');
}

fn posix(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'\'');
    for (i, part) in bytes.split(|b| *b == b'\'').enumerate() {
        if i > 0 {
            out.extend_from_slice(br"'\''");
        }
        out.extend_from_slice(part);
    }
    out.push(b'\'');
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::Stdio;

    use super::*;

    /// What `printf %s` of a real shell makes of the quoted words, one after the other.
    #[expect(clippy::disallowed_methods, reason = "a test asks the real shells")]
    fn through(shell: &str, quoting: Quoting, words: &[Vec<u8>]) -> Option<Vec<u8>> {
        let mut script = b"export LC_ALL=C.UTF-8\n".to_vec();
        for word in words {
            script.extend_from_slice(b"printf '%s\\0' ");
            quoting.push(&mut script, word);
            script.push(b'\n');
        }
        let mut child = std::process::Command::new(shell)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| eprintln!("skipped: {shell}: {e}"))
            .ok()?;
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::scope(|s| {
            s.spawn(move || stdin.write_all(&script).unwrap());
            child.wait_with_output().unwrap()
        });
        Some(writer.stdout)
    }

    #[test]
    fn every_byte_string_survives_every_shell() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut words =
            vec![Vec::new(), b"plain/word-1.0_@,".to_vec(), b"'".to_vec(), b"\\".to_vec(), b"a'\\''b".to_vec()];
        words.push((1..=255).collect());
        for _ in 0..300 {
            let len = random() % 40;
            words.push((0..len).map(|_| (random() % 255 + 1) as u8).collect());
        }
        let want: Vec<u8> = words.iter().flat_map(|w| w.iter().copied().chain([0])).collect();
        for (shell, quoting) in
            [("bash", Quoting::Ansi), ("bash", Quoting::Posix), ("dash", Quoting::Posix), ("sh", Quoting::Posix)]
        {
            let Some(got) = through(shell, quoting, &words) else { continue };
            assert!(got == want, "{shell} {quoting:?}: {}", String::from_utf8_lossy(&got));
        }
    }

    #[test]
    fn bash_words_stay_on_one_line() {
        let mut out = Vec::new();
        Quoting::of(Shell::Bash, false).push(&mut out, "a'\\\n\x1bü".as_bytes());
        assert_eq!(out, br"$'a\'\\\n\x1b\xc3\xbc'");
        assert_eq!(Quoting::of(Shell::Bash, true), Quoting::Posix);
        assert_eq!(Quoting::of(Shell::Dash, false), Quoting::Posix);
    }
}
