//! Secret values, found across any cut of the stream.
//!
//! The rule is that of a search over the whole stream: the longest value first, each from left to
//! right, then the shorter ones in what is left between the masks; what was replaced is not looked at
//! again, and what stands on two sides of a mask does not join.
//!
//! So a stream goes through one search for each value, longest first, each holding back only what may
//! become its value. To spare the common byte that way, a finder of beginnings (the first bytes of
//! every value) lets through all text before the first of them; after it, and only until nothing is
//! held back any more, the searches run. Memory: nothing is kept but how much of its value each search
//! has seen. No stream, whatever it prints, can make it grow.

use std::cell::OnceCell;

use memchr::{memchr, memchr_iter};

use super::MASKED;
use super::finder::Finder;

/// Bytes of a value that the finder looks for.
const BEGINNING: usize = 16;
/// What the searches are given at once: at first, and at most.
const BLOCK: (usize, usize) = (32, 256);

pub(super) struct Phrases {
    /// Longest first, so their order is that of the searches.
    list: Vec<Phrase>,
    /// The first byte of each.
    firsts: Vec<u8>,
    /// Of beginnings.
    finder: Option<Finder>,
}

struct Phrase {
    text: Vec<u8>,
    /// By length of a matched part: the longest shorter part that it ends with. Made when needed.
    falls: OnceCell<Vec<u32>>,
}

/// How far one stream has come.
#[derive(Default)]
pub(super) struct Place {
    /// Text that no search has seen yet; empty while one holds something back.
    carry: Vec<u8>,
    /// By search: how many bytes of its value are matched and held back. Empty: all none.
    matched: Vec<u32>,
    work: Work,
}

/// Text on its way through the searches, with the places where a mask stands.
#[derive(Default)]
struct Work {
    text: Vec<u8>,
    marks: Vec<usize>,
    new_text: Vec<u8>,
    new_marks: Vec<usize>,
}

impl Phrases {
    pub(super) fn new<'a>(values: impl Iterator<Item = &'a str>) -> Phrases {
        let mut phrases = Phrases { list: Vec::new(), firsts: Vec::new(), finder: None };
        for value in values {
            phrases.insert(value);
        }
        phrases.find_all();
        phrases
    }

    pub(super) fn has(&self, value: &str) -> bool {
        let value = value.trim().as_bytes();
        value.is_empty() || self.list.iter().any(|p| p.text == value)
    }

    /// Every stream must have stepped back before.
    pub(super) fn add(&mut self, value: &str) {
        self.insert(value);
        self.find_all();
    }

    fn insert(&mut self, value: &str) {
        if self.has(value) {
            return;
        }
        let text = value.trim().as_bytes().to_vec();
        let order = |p: &Phrase| (p.text.len() > text.len()) || (p.text.len() == text.len() && p.text < text);
        let at = self.list.partition_point(order);
        self.firsts.insert(at, text[0]);
        self.list.insert(at, Phrase { text, falls: OnceCell::new() });
    }

    fn find_all(&mut self) {
        let beginning = |p: &Phrase| p.text[..p.text.len().min(BEGINNING)].to_vec();
        self.finder = Finder::new(self.list.iter().map(beginning));
    }

    /// How much of `text` comes before anything that is a beginning, or may become one behind its end;
    /// and whether it is one.
    fn clear(finder: &Finder, text: &[u8]) -> (usize, bool) {
        let found = finder.find(text).unwrap_or(text.len());
        let open = finder.open_end(text, BEGINNING);
        (found.min(open), found < text.len() && found <= open)
    }
}

impl Phrase {
    /// Whether a first look cannot rule it out.
    fn may_begin_in(&self, text: &[u8]) -> bool {
        memchr_iter(self.text[0], text).any(|at| {
            let sample = self.text.len().min(text.len() - at).min(4);
            text[at..at + sample] == self.text[..sample]
        })
    }

    fn fall(&self, matched: usize) -> usize {
        if matched < 2 {
            return 0;
        }
        let falls = self.falls.get_or_init(|| {
            let mut falls = vec![0_u32; self.text.len() + 1];
            for n in 1..self.text.len() {
                let mut fall = falls[n] as usize;
                while fall > 0 && self.text[fall] != self.text[n] {
                    fall = falls[fall] as usize;
                }
                falls[n + 1] = (fall + usize::from(self.text[fall] == self.text[n])) as u32;
            }
            falls
        });
        falls[matched] as usize
    }
}

impl Place {
    pub(super) fn pass<'a>(
        &mut self,
        phrases: &Phrases,
        bytes: &'a [u8],
        joined: &'a mut Vec<u8>,
        out: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let Some(finder) = &phrases.finder else { return bytes };
        let mut text = bytes;
        if !self.carry.is_empty() {
            joined.clear();
            joined.append(&mut self.carry);
            joined.extend_from_slice(bytes);
            text = joined;
        }
        let mut at = 0;
        if self.matched.is_empty() {
            let (clear, found) = Phrases::clear(finder, text);
            if !found {
                self.carry.extend_from_slice(&text[clear..]);
                return &text[..clear];
            }
            at = clear;
        }
        out.clear();
        out.extend_from_slice(&text[..at]);
        self.matched.resize(phrases.list.len(), 0);
        // How much the searches were given since all were at rest.
        let mut given = 0;
        loop {
            let block = &text[at..text.len().min(at + given.clamp(BLOCK.0, BLOCK.1))];
            self.search(phrases, block, false, out);
            at += block.len();
            given += block.len();
            let held: usize = self.matched.iter().map(|m| *m as usize).sum();
            if held == 0 || (held <= at && held <= BLOCK.1 && held < given / 2) {
                // The finder is faster, even if it has to look at the last bytes again.
                at -= held;
                let (clear, found) = Phrases::clear(finder, &text[at..]);
                out.extend_from_slice(&text[at..at + clear]);
                at += clear;
                if !found {
                    self.matched.clear();
                    self.carry.extend_from_slice(&text[at..]);
                    return out;
                }
                self.matched.fill(0);
                given = 0;
            } else if at == text.len() {
                return out;
            }
        }
    }

    pub(super) fn end<'a>(&mut self, phrases: &Phrases, out: &'a mut Vec<u8>) -> &'a [u8] {
        out.clear();
        if self.carry.is_empty() && self.matched.is_empty() {
            return out;
        }
        let carry = std::mem::take(&mut self.carry);
        self.matched.resize(phrases.list.len(), 0);
        self.search(phrases, &carry, true, out);
        self.matched.clear();
        out
    }

    /// Give back to `carry` what the searches hold, so that they may change.
    pub(super) fn step_back(&mut self, phrases: &Phrases) {
        // A later search holds what an earlier one let go, so it holds the earlier bytes.
        for (phrase, matched) in phrases.list.iter().zip(&self.matched).rev() {
            self.carry.extend_from_slice(&phrase.text[..*matched as usize]);
        }
        self.matched.clear();
    }

    /// Send `block` through all searches. With `end` they let go of everything.
    fn search(&mut self, phrases: &Phrases, block: &[u8], end: bool, out: &mut Vec<u8>) {
        let work = &mut self.work;
        work.text.clear();
        work.marks.clear();
        work.text.extend_from_slice(block);
        let mut seen = [false; 256];
        for byte in block {
            seen[usize::from(*byte)] = true;
        }
        for (index, (first, matched)) in phrases.firsts.iter().zip(&mut self.matched).enumerate() {
            if *matched > 0 || seen[usize::from(*first)] && phrases.list[index].may_begin_in(&work.text) {
                work.search(&phrases.list[index], matched, end, &mut seen);
            }
        }
        let mut from = 0;
        for mark in &work.marks {
            out.extend_from_slice(&work.text[from..*mark]);
            out.extend_from_slice(MASKED);
            from = *mark;
        }
        out.extend_from_slice(&work.text[from..]);
    }
}

impl Work {
    /// One search over all of the text.
    fn search(&mut self, phrase: &Phrase, matched: &mut u32, end: bool, seen: &mut [bool; 256]) {
        self.new_text.clear();
        self.new_marks.clear();
        let mut held = *matched as usize;
        let mut let_go = |text: &mut Vec<u8>, bytes: &[u8]| {
            for byte in bytes {
                seen[usize::from(*byte)] = true;
            }
            text.extend_from_slice(bytes);
        };
        let mut from = 0;
        for mark in self.marks.iter().map(Some).chain([None]) {
            let to = mark.copied().unwrap_or(self.text.len());
            held = find_in(phrase, held, &self.text[from..to], &mut self.new_text, &mut self.new_marks, &mut let_go);
            if mark.is_some() || end {
                let_go(&mut self.new_text, &phrase.text[..held]);
                held = 0;
            }
            if mark.is_some() {
                self.new_marks.push(self.new_text.len());
            }
            from = to;
        }
        *matched = held as u32;
        std::mem::swap(&mut self.text, &mut self.new_text);
        std::mem::swap(&mut self.marks, &mut self.new_marks);
    }
}

/// Look for `phrase` in a piece of text between masks, of which `held` bytes came before; says how much
/// is held at its end.
fn find_in(
    phrase: &Phrase,
    mut held: usize,
    text: &[u8],
    out: &mut Vec<u8>,
    marks: &mut Vec<usize>,
    let_go: &mut impl FnMut(&mut Vec<u8>, &[u8]),
) -> usize {
    let value = phrase.text.as_slice();
    let mut at = 0;
    while at < text.len() {
        if held == 0 {
            let skipped = memchr(value[0], &text[at..]).unwrap_or(text.len() - at);
            out.extend_from_slice(&text[at..at + skipped]);
            at += skipped;
        }
        let same = value[held..].iter().zip(&text[at..]).take_while(|(a, b)| a == b).count();
        held += same;
        at += same;
        if held == value.len() {
            marks.push(out.len());
            held = 0;
        } else if at < text.len() {
            let fall = phrase.fall(held);
            let_go(out, &value[..held - fall]);
            held = fall;
        }
    }
    held
}
