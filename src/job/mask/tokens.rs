//! Tokens of known kinds: the prefix is shown, what follows it is not. Holds nothing back.
//!
//! The rule: wherever a prefix ends and a byte of the token alphabet follows, the run of such bytes is
//! one `[MASKED]`; what comes after it is looked at anew.

use memchr::memchr2;

use super::MASKED;
use super::finder::{PAIRS, pair};

pub(super) struct Tokens {
    prefixes: Vec<Vec<u8>>,
    longest: usize,
    /// The last bytes of all prefixes: most often a hyphen and an equals sign.
    last: Vec<u8>,
    /// By [`pair`]: whether a prefix ends so. One look spares most comparisons.
    ends: Box<[bool; PAIRS]>,
}

#[derive(Default)]
pub(super) struct Place {
    /// The end of what was shown since the last token: a prefix may have begun there.
    recent: Vec<u8>,
    inside: bool,
}

impl Tokens {
    pub(super) fn new(prefixes: &[String]) -> Tokens {
        let mut prefixes: Vec<Vec<u8>> = prefixes.iter().map(|p| p.as_bytes().to_vec()).collect();
        prefixes.retain(|p| !p.is_empty());
        let mut last: Vec<u8> = prefixes.iter().filter_map(|p| p.last().copied()).collect();
        last.sort_unstable();
        last.dedup();
        let mut ends = Box::new([prefixes.iter().any(|p| p.len() == 1); PAIRS]);
        for prefix in &prefixes {
            if let [.., a, b] = **prefix {
                ends[pair(a, b)] = true;
            }
        }
        Tokens { longest: prefixes.iter().map(Vec::len).max().unwrap_or(0), prefixes, last, ends }
    }

    /// The first place in `text` where a token begins; `recent` stands before it.
    fn find(&self, recent: &[u8], text: &[u8]) -> Option<usize> {
        let mut at = 0;
        // A prefix may have ended just before the text.
        if recent.last().is_some_and(|b| self.last.contains(b)) && self.begins(recent, text, 0) {
            return Some(0);
        }
        loop {
            let found = match *self.last {
                [] => None,
                [a] => memchr2(a, a, &text[at..]),
                [a, b] => memchr2(a, b, &text[at..]),
                _ => text[at..].iter().position(|b| self.last.contains(b)),
            };
            at += found? + 1;
            if self.begins(recent, text, at) {
                return Some(at);
            }
        }
    }

    /// Whether a token begins at `at`, behind a byte that ends a prefix.
    fn begins(&self, recent: &[u8], text: &[u8], at: usize) -> bool {
        let may_end = at < 2 || self.ends[pair(text[at - 2], text[at - 1])];
        may_end && text.get(at).is_some_and(|b| in_alphabet(*b)) && self.prefix_ends(recent, text, at)
    }

    fn prefix_ends(&self, recent: &[u8], text: &[u8], at: usize) -> bool {
        self.prefixes.iter().any(|p| match p.len().checked_sub(at) {
            None | Some(0) => text[..at].ends_with(p),
            Some(outside) => text[..at] == p[outside..] && recent.ends_with(&p[..outside]),
        })
    }
}

impl Place {
    pub(super) fn pass<'a>(&mut self, tokens: &Tokens, bytes: &'a [u8], out: &'a mut Vec<u8>) -> &'a [u8] {
        if tokens.prefixes.is_empty() {
            return bytes;
        }
        let mut rest = self.skip(bytes);
        let Some(first) = tokens.find(&self.recent, rest) else {
            self.remember(tokens, rest);
            return rest;
        };
        out.clear();
        let mut next = Some(first);
        while let Some(at) = next {
            out.extend_from_slice(&rest[..at]);
            out.extend_from_slice(MASKED);
            self.inside = true;
            self.recent.clear();
            rest = self.skip(&rest[at..]);
            next = tokens.find(&self.recent, rest);
        }
        self.remember(tokens, rest);
        out.extend_from_slice(rest);
        out
    }

    /// What follows the token that we are in, if we are in one.
    fn skip<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if !self.inside {
            return bytes;
        }
        let end = bytes.iter().position(|&b| !in_alphabet(b));
        self.inside = end.is_none();
        &bytes[end.unwrap_or(bytes.len())..]
    }

    fn remember(&mut self, tokens: &Tokens, text: &[u8]) {
        if text.len() < tokens.longest {
            let keep = self.recent.len().min(tokens.longest - text.len());
            self.recent.drain(..self.recent.len() - keep);
            self.recent.extend_from_slice(text);
        } else {
            self.recent.clear();
            self.recent.extend_from_slice(&text[text.len() - tokens.longest..]);
        }
    }
}

fn in_alphabet(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'=' | b'-')
}
