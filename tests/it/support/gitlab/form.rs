//! The form in which artifacts come (protocol §1.8): one part, with nothing around it.

use std::collections::BTreeMap;

use crate::support::http::Request;

/// What a job has uploaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Artifact {
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) expire_in: String,
    pub(crate) filename: String,
    pub(crate) data: Vec<u8>,
    /// Whether its length was told before.
    pub(crate) has_length: bool,
}

/// The error is a violation.
pub(super) fn artifact(request: &Request) -> Result<Artifact, String> {
    let mut query: BTreeMap<&str, &str> =
        request.query.split('&').filter(|p| !p.is_empty()).filter_map(|p| p.split_once('=')).collect();
    let mut take = |name: &str| query.remove(name).unwrap_or_default().to_owned();
    let mut artifact = Artifact {
        kind: take("artifact_type"),
        format: take("artifact_format"),
        expire_in: take("expire_in"),
        has_length: request.header("Content-Length").is_some(),
        ..Artifact::default()
    };
    if !query.is_empty() {
        return Err(format!("the query has {query:?} too"));
    }
    let kind = request.header("Content-Type").unwrap_or_default();
    let boundary = kind.strip_prefix("multipart/form-data; boundary=").ok_or(format!("Content-Type is {kind:?}"))?;
    let begin = format!("--{boundary}\r\n");
    let end = format!("\r\n--{boundary}--\r\n");
    let inside = request.body.strip_prefix(begin.as_bytes()).and_then(|b| b.strip_suffix(end.as_bytes()));
    let part = inside.ok_or("the form is not one whole part")?;
    let at = part.windows(4).position(|w| w == b"\r\n\r\n").ok_or("the part has no head")?;
    let head = String::from_utf8_lossy(&part[..at]).into_owned();
    let mut lines = head.lines();
    let named = lines.next().and_then(|l| l.strip_prefix("Content-Disposition: form-data; name=\"file\"; filename=\""));
    artifact.filename =
        named.and_then(|l| l.strip_suffix('"')).ok_or(format!("the part's head is {head:?}"))?.to_owned();
    if lines.collect::<Vec<_>>() != ["Content-Type: application/octet-stream"] {
        return Err(format!("the part's head is {head:?}"));
    }
    artifact.data = part[at + 4..].to_vec();
    Ok(artifact)
}
