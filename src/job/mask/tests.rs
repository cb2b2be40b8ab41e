//! The masker against one that looks at the whole stream at once, on random phrases, texts and cuts.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::*;

fn format(urls: bool, prefixes: &[&str]) -> Format {
    let token_prefixes = prefixes.iter().map(|p| (*p).to_owned()).collect();
    Format { url_parameters: urls, token_prefixes, ..Format::default() }
}

fn secrets(values: &[&str]) -> Vec<Secret> {
    values.iter().map(|v| Secret::new(*v)).collect()
}

fn masked(masks: &Masks, pieces: &[&[u8]]) -> String {
    let (mut mask, mut room, mut got) = (Mask::default(), Room::default(), Vec::new());
    for piece in pieces {
        got.extend_from_slice(mask.pass(masks, piece, &mut room));
    }
    got.extend_from_slice(mask.end(masks, &mut room));
    String::from_utf8(got).unwrap()
}

/// Checks the text whole and cut at every single place.
fn check(masks: &Masks, text: &str, want: &str) {
    let bytes = text.as_bytes();
    for cut in 0..=bytes.len() {
        assert_eq!(masked(masks, &[&bytes[..cut], &bytes[cut..]]), want, "{text:?} cut at {cut}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(masked(masks, &single), want, "{text:?} byte by byte");
}

#[test]
fn values_are_masked_longest_first_wherever_the_stream_is_cut() {
    let check = |values: &[&str], text: &str, want: &str| {
        check(&Masks::new(&format(false, &[]), &secrets(values)), text, want);
    };
    check(&["secret"], "a secret b", "a [MASKED] b");
    check(&["secret"], "secretsecret", "[MASKED][MASKED]");
    check(&["secret"], "xsecrety secre Secret", "x[MASKED]y secre Secret");
    check(&["  secret\n", "", "  "], "a secret", "a [MASKED]");
    check(&["aab"], "aaab", "a[MASKED]");
    check(&["aa"], "aaaaa", "[MASKED][MASKED]a");
    check(&["abcd", "bc"], "abcd abc bcd", "[MASKED] a[MASKED] [MASKED]d");
    check(&["abX", "LONGER"], "abLONGERY", "ab[MASKED]Y");
    check(&["ab", "LONGER"], "aLONGERb", "a[MASKED]b");
    check(&["abc", "cdef", "fgh"], "abcdefgh", "ab[MASKED]gh");
    check(&["abc", "cdef", "ab"], "abcdef", "[MASKED][MASKED]");
    check(&["abcde", "cdefg"], "abcdefg", "[MASKED]fg");
    check(&["one\ntwo"], "one\ntwo one\r\ntwo", "[MASKED] one\r\ntwo");
    check(&["MASKED"], "MASKED", "[MASKED]");
    check(&["é", "éa"], "éaé", "[MASKED][MASKED]");
    check(&["0123456789abcdefXYZ"], "0123456789abcdefXY 0123456789abcdefXYZ", "0123456789abcdefXY [MASKED]");
}

#[test]
fn values_of_credential_parameters_are_masked() {
    let check = |text: &str, want: &str| check(&Masks::new(&format(true, &[]), &[]), text, want);
    check("https://x/?private_token=abc&x=1", "https://x/?private_token=[MASKED]&x=1");
    check("?RSS_Token=a=b\nc", "?RSS_Token=[MASKED]\nc");
    check("&x-amz-security-token=&authenticity_token= ", "&x-amz-security-token=[MASKED]&authenticity_token=[MASKED] ");
    check("?a?X-Amz-Signature=1?X-Amz-Credential=2\"'\t", "?a?X-Amz-Signature=[MASKED]?X-Amz-Credential=[MASKED]\t");
    check("private_token=a ?private_tokens=a ?xprivate_token=a", "private_token=a ?private_tokens=a ?xprivate_token=a");
    check("&&private_token=", "&&private_token=[MASKED]");
}

#[test]
fn what_follows_the_prefix_of_a_token_is_masked() {
    let check = |prefixes: &[&str], text: &str, want: &str| {
        check(&Masks::new(&format(false, prefixes), &[]), text, want);
    };
    check(&["glpat-"], "glpat-abc.D_e=1- x", "glpat-[MASKED] x");
    check(&["glpat-"], "glpat-aglpat-b", "glpat-[MASKED]");
    check(&["glpat-"], "glpat- glpat-/ glpat-", "glpat- glpat-/ glpat-");
    check(&["glpat-", "gl"], "glpat-a gl", "gl[MASKED] gl");
    check(&["tok", "tok:"], "tok:a tok: tok.", "tok:[MASKED] tok: tok[MASKED]");
    check(&["b", "ab:"], "ab:c", "ab:[MASKED]");
    check(&["_gitlab_session=", "gloas-"], "_gitlab_session=gloas-a", "_gitlab_session=[MASKED]");
}

#[test]
fn the_steps_see_what_the_steps_before_let_through() {
    let masks = Masks::new(&format(true, &["glpat-"]), &secrets(&["hunter2"]));
    check(&masks, "?private_token=hunter2x&glpat-1hunter2", "?private_token=[MASKED]&glpat-[MASKED][MASKED]");
}

#[test]
fn output_waits_only_while_it_may_become_a_secret() {
    let masks = Masks::new(&format(true, &["glpat-"]), &secrets(&["secret", "0123456789abcdefXYZ", "ret"]));
    let check = |text: &str, want: &str| {
        let (mut mask, mut room) = (Mask::default(), Room::default());
        assert_eq!(String::from_utf8_lossy(mask.pass(&masks, text.as_bytes(), &mut room)), want);
    };
    check("plain\n", "plain\n");
    check("a sec", "a ");
    check("a sect", "a sect");
    check("a secret", "a [MASKED]");
    check("glpat-", "glpat-");
    check("?private_tok", "?private_tok");
    check("x 0123456789abcdef", "x ");
    check("x 0123456789abcdefXr", "x 0123456789abcdefX");
    check("x 0123456789abcdefs.", "x 0123456789abcdefs.");
}

#[test]
fn a_value_added_later_is_found_in_what_is_held_back() {
    let mut masks = Masks::new(&format(false, &[]), &secrets(&["abcdefghijklmnopqrstuvwxyz", "xyz"]));
    let (mut mask, mut room, mut got) = (Mask::default(), Room::default(), Vec::new());
    got.extend_from_slice(mask.pass(&masks, b"abc abcdefghijklmnopqrs", &mut room));
    assert_eq!(got, b"abc ");
    masks.add(&Secret::new(" rs! "), [&mut mask].into_iter());
    masks.add(&Secret::new("fgh"), [&mut mask].into_iter());
    got.extend_from_slice(mask.pass(&masks, b"! xyz", &mut room));
    got.extend_from_slice(mask.end(&masks, &mut room));
    assert_eq!(String::from_utf8(got).unwrap(), "abc abcde[MASKED]ijklmnopq[MASKED] [MASKED]");
}

#[test]
fn random_streams_are_masked_as_by_one_look_at_the_whole() {
    let seed = RandomState::new().build_hasher().finish();
    let rounds = if cfg!(debug_assertions) { 2_000 } else { 300_000 };
    for round in 0..rounds {
        let mut dice = Dice(seed.wrapping_add(round) | 1);
        let alphabet: &[&str] = match dice.roll(5) {
            0 => &["a"],
            1 => &["a", "b"],
            2 => &["a", "b", "c", "é"],
            3 => &["g", "l", "-", " ", "glpat-", ":", "tok"],
            _ => &["?", "&", "=", "rss_token", "RSS", "_Token=", " ", "a", "\n"],
        };
        let longest = [2, 6, 40, 700][dice.roll(4)];
        let values: Vec<String> = (0..dice.roll(6)).map(|_| dice.text(alphabet, longest)).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let prefixes: &[&str] = [&[][..], &["glpat-", "gl"], &["tok", "tok:", "l-"]][dice.roll(3)];
        // Text that is made of the values, parts of them and noise.
        let mut text = String::new();
        for _ in 0..dice.roll(40) {
            let value = if values.is_empty() { "" } else { values[dice.roll(values.len())] };
            let start = if dice.roll(3) > 0 { 0 } else { value.floor_char_boundary(dice.roll(value.len() + 1)) };
            let end =
                if dice.roll(3) > 0 { value.len() } else { value.floor_char_boundary(dice.roll(value.len() + 1)) };
            text.push_str(value.get(start..end).unwrap_or(""));
            let noise = dice.roll(8);
            text.push_str(&dice.text(alphabet, noise + 1));
        }
        let mut pieces = Vec::new();
        let mut rest = text.as_bytes();
        let most = [1, 3, 50, 5000][dice.roll(4)].max(text.len() / 300);
        while !rest.is_empty() {
            let piece;
            (piece, rest) = rest.split_at(rest.len().min(dice.roll(most + 1)));
            pieces.push(piece);
        }
        let masks = Masks::new(&format(true, prefixes), &secrets(&values));
        let want = whole_tokens(prefixes, &whole_urls(&whole_phrases(&values, &text)));
        assert_eq!(masked(&masks, &pieces), want, "seed {seed}, round {round}: {values:?} {prefixes:?} {pieces:?}");
    }
}

#[test]
fn a_long_value_makes_no_write_slow() {
    let value = "ab".repeat(500_000);
    let masks = Masks::new(&format(true, &[]), &secrets(&[&value, "aba"]));
    let (mut mask, mut room, mut shown) = (Mask::default(), Room::default(), 0);
    let text = format!("{}c", &value[..value.len() - 1]).repeat(2);
    for piece in text.as_bytes().chunks(10) {
        shown += mask.pass(&masks, piece, &mut room).len();
    }
    // `aba`, `b`, `aba`, `b`, … and the `c`.
    assert!((text.len() * 9 / 4).abs_diff(shown) < 20, "{shown}");
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mix = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mix ^ (mix >> 31)) % sides.max(1) as u64) as usize
    }

    fn text(&mut self, alphabet: &[&str], longest: usize) -> String {
        (0..self.roll(longest + 1)).map(|_| alphabet[self.roll(alphabet.len())]).collect()
    }
}

/// The rule of `phrases`, on the whole text.
fn whole_phrases(values: &[&str], text: &str) -> String {
    let mut values: Vec<&str> = values.iter().map(|v| v.trim()).filter(|v| !v.is_empty()).collect();
    values.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
    let mut parts = vec![text];
    for value in values {
        // Between the parts stand the masks.
        parts = parts.into_iter().flat_map(|part| part.split(value)).collect();
    }
    parts.join("[MASKED]")
}

fn whole_urls(text: &str) -> String {
    let names = [
        "private_token",
        "authenticity_token",
        "rss_token",
        "x-amz-signature",
        "x-amz-credential",
        "x-amz-security-token",
    ];
    let mut out = String::new();
    for part in text.split_inclusive(['?', '&']) {
        // Every part but the first follows a `?` or `&`.
        let parameter = part.split_once('=').filter(|(name, _)| names.contains(&name.to_ascii_lowercase().as_str()));
        match parameter {
            Some((name, value)) if !out.is_empty() => {
                let end = value.find(|c: char| c <= ' ' || "?&\x7f".contains(c)).unwrap_or(value.len());
                out.push_str(&format!("{name}=[MASKED]{}", &value[end..]));
            }
            _ => out.push_str(part),
        }
    }
    out
}

fn whole_tokens(prefixes: &[&str], text: &str) -> String {
    let in_alphabet = |c: char| c.is_ascii_alphanumeric() || "._=-".contains(c);
    let (mut out, mut begin, mut at) = (String::new(), 0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if prefixes.iter().any(|p| text[begin..at].ends_with(p)) && rest.starts_with(in_alphabet) {
            at += rest.find(|c| !in_alphabet(c)).unwrap_or(rest.len());
            out.push_str("[MASKED]");
            begin = at;
        } else {
            let next = rest.chars().next().unwrap();
            out.push(next);
            at += next.len_utf8();
        }
    }
    out
}
