//! Masking: secrets become `[MASKED]` before a byte is framed or stored (invariant 4).
//!
//! Three steps in this order: the job's secret values (`phrases`), the values of credential
//! parameters in URLs (`urls`), what follows the prefix of a known kind of token (`tokens`).
//! Each works on a stream in whatever pieces it comes, and gives what one look at the whole stream
//! would give. Never reads a file, never knows of lines or times.

use std::fmt;

use crate::forge::Format;
use crate::model::Secret;

mod finder;
mod phrases;
mod tokens;
mod urls;

/// What stands in the log instead of a secret.
const MASKED: &[u8] = b"[MASKED]";

/// What a job's log hides; one for all its sources.
pub struct Masks {
    phrases: phrases::Phrases,
    urls: bool,
    tokens: tokens::Tokens,
}

impl Masks {
    pub fn new(format: &Format, values: &[Secret]) -> Masks {
        Masks {
            phrases: phrases::Phrases::new(values.iter().map(Secret::reveal)),
            urls: format.url_parameters,
            tokens: tokens::Tokens::new(&format.token_prefixes),
        }
    }

    /// Hide one more value from now on. `masks` are all that were made for this set: bytes that they
    /// hold back are looked at again.
    pub fn add<'m>(&mut self, value: &Secret, masks: impl Iterator<Item = &'m mut Mask>) {
        if self.phrases.has(value.reveal()) {
            return;
        }
        for mask in masks {
            mask.phrases.step_back(&self.phrases);
        }
        self.phrases.add(value.reveal());
    }
}

impl fmt::Debug for Masks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Masks").finish_non_exhaustive()
    }
}

/// How far one source has come.
#[derive(Default)]
pub struct Mask {
    phrases: phrases::Place,
    urls: urls::Place,
    tokens: tokens::Place,
}

impl Mask {
    /// What may be shown of the stream with these bytes added; what may be the beginning of a secret
    /// is held back.
    pub fn pass<'a>(&mut self, masks: &Masks, bytes: &'a [u8], room: &'a mut Room) -> &'a [u8] {
        let shown = self.phrases.pass(&masks.phrases, bytes, &mut room.joined, &mut room.phrases);
        self.rest(masks, shown, &mut room.urls, &mut room.tokens)
    }

    /// The stream is over: what was held back is no secret.
    pub fn end<'a>(&mut self, masks: &Masks, room: &'a mut Room) -> &'a [u8] {
        let shown = self.phrases.end(&masks.phrases, &mut room.phrases);
        let shown = self.rest(masks, shown, &mut room.urls, &mut room.tokens);
        *self = Mask::default();
        shown
    }

    fn rest<'a>(&mut self, masks: &Masks, bytes: &'a [u8], urls: &'a mut Vec<u8>, tokens: &'a mut Vec<u8>) -> &'a [u8] {
        let shown = if masks.urls { self.urls.pass(bytes, urls) } else { bytes };
        self.tokens.pass(&masks.tokens, shown, tokens)
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mask").finish_non_exhaustive()
    }
}

/// Buffers for bytes that had to be changed; kept between calls, empty of meaning.
#[derive(Default)]
pub struct Room {
    joined: Vec<u8>,
    phrases: Vec<u8>,
    urls: Vec<u8>,
    tokens: Vec<u8>,
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
