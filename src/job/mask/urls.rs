//! Values of credential parameters in URLs: `?private_token=…`. Holds nothing back: a name is shown
//! whatever it turns out to be. Never looks at a name that no `?` or `&` precedes.

use memchr::memchr2;

use super::MASKED;

const NAMES: [&[u8]; 6] = [
    b"private_token",
    b"authenticity_token",
    b"rss_token",
    b"x-amz-signature",
    b"x-amz-credential",
    b"x-amz-security-token",
];
const LONGEST: usize = 20;

#[derive(Default)]
pub(super) struct Place {
    state: State,
    /// The name so far, in lower case.
    name: [u8; LONGEST],
}

#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Text,
    /// So many bytes of a name.
    Name(usize),
    Value,
}

impl Place {
    pub(super) fn pass<'a>(&mut self, bytes: &'a [u8], out: &'a mut Vec<u8>) -> &'a [u8] {
        out.clear();
        // Everything before `shown` is in `out` or hidden; while nothing was hidden, nothing is copied.
        let (mut shown, mut at, mut hidden) = (0, 0, false);
        while at < bytes.len() {
            match self.state {
                State::Text => match memchr2(b'?', b'&', &bytes[at..]) {
                    None => break,
                    Some(n) => {
                        at += n + 1;
                        self.state = State::Name(0);
                    }
                },
                State::Name(length) => {
                    let byte = bytes[at];
                    at += 1;
                    self.state = self.after(byte, length);
                    if self.state == State::Value {
                        out.extend_from_slice(&bytes[shown..at]);
                        out.extend_from_slice(MASKED);
                        (shown, hidden) = (at, true);
                    }
                }
                State::Value => {
                    let end = bytes[at..].iter().position(|&b| ends_value(b));
                    at = end.map_or(bytes.len(), |n| at + n);
                    (shown, hidden) = (at, true);
                    if end.is_some() {
                        self.state = State::Text;
                    }
                }
            }
        }
        if !hidden {
            return bytes;
        }
        out.extend_from_slice(&bytes[shown..]);
        out
    }

    /// The state after one more byte behind a name of `length` bytes.
    fn after(&mut self, byte: u8, length: usize) -> State {
        match byte {
            b'?' | b'&' => State::Name(0),
            b'=' if NAMES.contains(&&self.name[..length]) => State::Value,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'-' if length < LONGEST => {
                self.name[length] = byte.to_ascii_lowercase();
                State::Name(length + 1)
            }
            _ => State::Text,
        }
    }
}

fn ends_value(byte: u8) -> bool {
    byte <= b' ' || matches!(byte, b'?' | b'&' | 0x7f)
}
