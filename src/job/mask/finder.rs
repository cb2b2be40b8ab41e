//! Finds where any of a set of words begins. Looks at two bytes, and from them knows how far it may
//! jump before a word can be complete; so text without words costs a fraction of a look a byte, however
//! many words there are. Never says where a word ends: that is its caller's business.

/// What [`pair`] stays below.
pub(super) const PAIRS: usize = 1 << 13;
/// In an entry of the table: a word begins with this pair.
const HEAD: u8 = 0x80;

pub(super) struct Finder {
    /// Sorted; none is the beginning of another.
    words: Vec<Vec<u8>>,
    /// The length of the shortest word: no jump is longer.
    window: usize,
    jumps: Box<[u8; PAIRS]>,
    first: Box<[bool; 256]>,
}

impl Finder {
    /// `None` when there are no words. Empty words are none.
    pub(super) fn new(words: impl Iterator<Item = Vec<u8>>) -> Option<Finder> {
        let mut words: Vec<Vec<u8>> = words.filter(|w| !w.is_empty()).collect();
        words.sort();
        // What begins as a shorter word does is found with it.
        words.dedup_by(|word, shorter| word.starts_with(shorter));
        let window = words.iter().map(Vec::len).min()?.min(usize::from(HEAD));
        let mut first = Box::new([false; 256]);
        let mut jumps = Box::new([window.saturating_sub(1) as u8; PAIRS]);
        for word in &words {
            first[usize::from(word[0])] = true;
            for (at, two) in word[..window].windows(2).enumerate() {
                let jump = &mut jumps[pair(two[0], two[1])];
                *jump = (*jump).min((window - 2 - at) as u8);
            }
        }
        for word in words.iter().filter(|w| w.len() > 1) {
            jumps[pair(word[0], word[1])] |= HEAD;
        }
        Some(Finder { words, window, jumps, first })
    }

    /// The first place where a word begins that is complete in `text`.
    pub(super) fn find(&self, text: &[u8]) -> Option<usize> {
        if self.window == 1 {
            return (0..text.len()).find(|&at| self.begins(&text[at..]));
        }
        let mut end = self.window - 1;
        while end < text.len() {
            let jump = self.jumps[pair(text[end - 1], text[end])] & !HEAD;
            if jump > 0 {
                end += usize::from(jump);
                continue;
            }
            let start = end + 1 - self.window;
            if self.jumps[pair(text[start], text[start + 1])] & HEAD != 0 && self.begins(&text[start..]) {
                return Some(start);
            }
            end += 1;
        }
        None
    }

    /// The first place in the last bytes of `text` where a word may begin that is not complete yet.
    pub(super) fn open_end(&self, text: &[u8], longest: usize) -> usize {
        let from = text.len().saturating_sub(longest - 1);
        (from..text.len()).find(|&at| self.is_open(&text[at..])).unwrap_or(text.len())
    }

    /// Whether a word begins at the start of `text`.
    fn begins(&self, text: &[u8]) -> bool {
        // As no word begins another, the one that sorts last before the text is the only candidate.
        self.first[usize::from(text[0])]
            && self.words[..self.words.partition_point(|w| w.as_slice() <= text)]
                .last()
                .is_some_and(|w| text.starts_with(w))
    }

    fn is_open(&self, end: &[u8]) -> bool {
        match *end {
            [a] => self.first[usize::from(a)],
            [a, b, ..] if self.jumps[pair(a, b)] & HEAD != 0 => {
                let at = self.words.partition_point(|w| w.as_slice() < end);
                self.words.get(at).is_some_and(|w| w.starts_with(end))
            }
            _ => false,
        }
    }
}

/// A small number for two bytes; different pairs of ASCII rarely share one.
pub(super) fn pair(a: u8, b: u8) -> usize {
    usize::from(a) << 5 ^ usize::from(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str], text: &str, want: Option<usize>) {
        let finder = Finder::new(words.iter().map(|w| w.as_bytes().to_vec())).unwrap();
        assert_eq!(finder.find(text.as_bytes()), want, "{words:?} in {text:?}");
    }

    #[test]
    fn the_first_word_is_found_wherever_it_stands() {
        check(&["abc"], "abc", Some(0));
        check(&["abc"], "ab", None);
        check(&["abc", "b"], "xxabc", Some(2));
        check(&["abcdefgh", "cd"], "abcdefg", Some(2));
        check(&["abcdefgh", "cdx", "zzz"], "abcdefgabcdefghi", Some(7));
        check(&["a", "ab"], "cab", Some(1));
        for at in 0..40 {
            check(&["0123456789", "56789xyz"], &format!("{}56789xyz{}", "-".repeat(at), "x"), Some(at));
        }
        assert!(Finder::new([vec![]].into_iter()).is_none());
    }
}
