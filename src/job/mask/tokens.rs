//! Tokens of known kinds: the prefix is shown, what follows it is not. Holds nothing back.
//!
//! The rule: wherever a prefix ends and a byte of the token alphabet follows, the run of such bytes is
//! one `[MASKED]`; what comes after it is looked at anew.

use aho_corasick::{AhoCorasick, MatchKind};

use super::MASKED;

pub(super) struct Tokens {
    prefixes: Vec<Vec<u8>>,
    finder: Option<AhoCorasick>,
    longest: usize,
    /// Bytes that end a prefix: one look spares most comparisons.
    last: Box<[bool; 256]>,
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
        prefixes.sort();
        prefixes.dedup();
        let finder = (!prefixes.is_empty()).then(|| {
            let builder = &mut AhoCorasick::builder();
            builder
                .match_kind(MatchKind::LeftmostFirst)
                .build(&prefixes)
                .expect("a few prefixes make a small automaton")
        });
        let mut last = Box::new([false; 256]);
        for byte in prefixes.iter().filter_map(|p| p.last()) {
            last[usize::from(*byte)] = true;
        }
        let longest = prefixes.iter().map(Vec::len).max().unwrap_or(0);
        Tokens { prefixes, finder, longest, last }
    }

    /// The first place in `text` where a token begins; `recent` stands before it.
    fn find(&self, recent: &[u8], text: &[u8]) -> Option<usize> {
        let finder = self.finder.as_ref()?;
        let begins = |at: &usize| in_alphabet(text[*at]) && self.prefix_ends(recent, text, *at);
        if let Some(at) = (0..text.len().min(self.longest)).find(begins) {
            return Some(at);
        }
        let mut from = 0;
        while let Some(found) = finder.find(&text[from..]) {
            // No prefix begins before `start`, so every one that ends in this window was seen.
            let start = from + found.start();
            if let Some(at) = (start + 1..text.len().min(start + self.longest + 1)).find(begins) {
                return Some(at);
            }
            from = start + 1;
        }
        None
    }

    fn prefix_ends(&self, recent: &[u8], text: &[u8], at: usize) -> bool {
        let before = if at > 0 { Some(&text[at - 1]) } else { recent.last() };
        if !before.is_some_and(|b| self.last[usize::from(*b)]) {
            return false;
        }
        self.prefixes.iter().any(|p| match p.len().checked_sub(at) {
            None | Some(0) => text[..at].ends_with(p),
            Some(outside) => text[..at] == p[outside..] && recent.ends_with(&p[..outside]),
        })
    }
}

impl Place {
    pub(super) fn pass<'a>(&mut self, tokens: &Tokens, bytes: &'a [u8], out: &'a mut Vec<u8>) -> &'a [u8] {
        if tokens.finder.is_none() {
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
