//! Where caches of several hosts lie together: the settings of an object store, and signed URLs that
//! let a stage read or write one object for a while. Makes text; sends nothing and keeps nothing.
//!
//! **Invariant 9** hangs on this file: the keys stay with whoever signs, which is the job process; what
//! reaches a stage is good for one object and ends with the job.

mod azure;
mod gcs;
mod s3;
mod v4;

use std::time::{Duration, SystemTime};

use ring::hmac;
use serde::{Deserialize, Serialize};

use crate::clock::date;
use crate::model::Secret;

/// `[runners.cache]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheSettings {
    /// Before every object's name.
    pub path: String,
    /// The objects' names leave out the entry, so that several entries share them.
    pub shared: bool,
    /// Archives that are larger are not uploaded, in bytes; 0: all are.
    pub max_size: u64,
    /// `None`: caches stay on this host.
    pub store: Option<Store>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    S3(S3),
    Gcs(Gcs),
    Azure(Azure),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct S3 {
    /// Host, and port where it is not the usual one; empty: AWS.
    pub server: String,
    /// Plain HTTP.
    pub insecure: bool,
    pub bucket: String,
    pub region: String,
    pub access_key: String,
    pub secret_key: Secret,
    pub session_token: Secret,
    /// `None`: as the host can.
    pub path_style: Option<bool>,
    pub dual_stack: bool,
    pub accelerate: bool,
    pub encryption: Option<Encryption>,
}

/// How S3 shall encrypt what it stores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Encryption {
    /// `AES256`, `aws:kms` or `aws:kms:dsse`.
    pub algorithm: String,
    pub key_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gcs {
    pub bucket: String,
    /// `googleapis.com` unless set.
    pub universe: String,
    /// The service account's address.
    pub access_id: String,
    /// Its key, PEM.
    pub private_key: Secret,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Azure {
    pub account: String,
    /// Base64, as the portal shows it.
    pub key: Secret,
    pub container: String,
    pub domain: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    Head,
    Put,
}

/// What is to be allowed.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    pub verb: Verb,
    pub object: &'a str,
    /// What a `Put` says of itself: the cache's key, kept beside the object.
    pub cache_key: &'a str,
    /// Of a `Put`, in bytes; 0: any.
    pub max_size: u64,
    pub now: SystemTime,
    pub valid: Duration,
}

/// The request that is allowed: exactly this URL, with these headers.
#[derive(Clone, Debug)]
pub struct Link {
    pub url: Secret,
    pub headers: Vec<(String, String)>,
}

impl Store {
    /// The error says which setting cannot be used.
    pub fn sign(&self, wish: &Wish<'_>) -> Result<Link, String> {
        match self {
            Store::S3(s3) => Ok(s3.sign(wish)),
            Store::Gcs(gcs) => gcs.sign(wish),
            Store::Azure(azure) => azure.sign(wish),
        }
    }

    /// Whether the keys can sign at all, so that a wrong one is told when the file is read.
    pub fn check(&self) -> Result<(), String> {
        let now = SystemTime::UNIX_EPOCH;
        let wish = Wish { verb: Verb::Get, object: "x", cache_key: "", max_size: 0, now, valid: Duration::ZERO };
        self.sign(&wish).map(drop)
    }

    /// What must never be seen in a log.
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let all = match self {
            Store::S3(s3) => vec![&s3.secret_key, &s3.session_token],
            Store::Gcs(_) => vec![],
            Store::Azure(azure) => vec![&azure.key],
        };
        all.into_iter().filter(|s| !s.is_empty())
    }

    pub fn as_str(&self) -> &'static str {
        match self {
            Store::S3(_) => "s3",
            Store::Gcs(_) => "gcs",
            Store::Azure(_) => "azure",
        }
    }
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Head => "HEAD",
            Verb::Put => "PUT",
        }
    }
}

/// Percent-encoded, as all three services count it: letters, digits and `-._~` stay, and `also`.
fn encode(text: &str, also: &[u8]) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) || also.contains(&b) {
            out.push(char::from(b));
        } else {
            let _ = write!(out, "%{b:02X}");
        }
    }
    out
}

/// An object's name as the path of a URL.
fn encode_path(object: &str) -> String {
    encode(object, b"/")
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn hmac_sha256(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

/// `20260102T030405Z`, and its first eight digits for the day.
fn stamp(at: SystemTime) -> String {
    let (y, m, d, second) = civil(at);
    format!("{y:04}{m:02}{d:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// `2026-01-02T03:04:05Z`
fn iso(at: SystemTime) -> String {
    let (y, m, d, second) = civil(at);
    format!("{y:04}-{m:02}-{d:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Year, month, day, and the second of the day.
fn civil(at: SystemTime) -> (u64, u64, u64, u64) {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (y, m, d) = date(since / 86_400);
    (y, m, d, since % 86_400)
}

/// A header's value that no server misreads: what is not printable ASCII is percent-encoded.
fn header_value(text: &str) -> String {
    encode(text.trim(), b" !\"#$&'()*+,/:;<=>?@[\\]^`{|}")
}

#[cfg(test)]
mod tests;
