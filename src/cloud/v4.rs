//! The V4 signature in a URL's query, which AWS invented and Google took over: what is signed, in which
//! order. Knows neither hosts nor keys.

use std::time::Duration;

use ring::digest::{SHA256, digest};

use super::{Verb, Wish, encode, hex, stamp};

/// Neither service takes a longer one.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// The words in which the two services differ.
pub(super) struct Dialect {
    /// `AWS4-HMAC-SHA256`
    pub(super) algorithm: &'static str,
    /// `Amz` or `Goog`, in the names of parameters.
    pub(super) prefix: &'static str,
    /// `REGION/s3/aws4_request`
    pub(super) scope: String,
    pub(super) credential: String,
    pub(super) session_token: String,
}

/// The signed URL. `path` is percent-encoded, `headers` are all that the request will have besides the
/// host, their names in lower case; `seal` makes the signature of the text, in hex.
pub(super) fn presign<E>(
    dialect: &Dialect,
    wish: &Wish<'_>,
    (scheme, host, path): (&str, &str, &str),
    headers: &[(String, String)],
    seal: impl FnOnce(&str, &str) -> Result<String, E>,
) -> Result<String, E> {
    let Dialect { algorithm, prefix, scope, credential, session_token } = dialect;
    let time = stamp(wish.now);
    let day = &time[..8];
    let mut named: Vec<(&str, &str)> = headers.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    named.push(("host", host));
    named.sort_unstable();
    let signed = named.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let mut query = vec![
        (format!("X-{prefix}-Algorithm"), (*algorithm).to_owned()),
        (format!("X-{prefix}-Credential"), format!("{credential}/{day}/{scope}")),
        (format!("X-{prefix}-Date"), time.clone()),
        (format!("X-{prefix}-Expires"), wish.valid.min(LONGEST).as_secs().max(1).to_string()),
        (format!("X-{prefix}-SignedHeaders"), signed.clone()),
    ];
    if !session_token.is_empty() {
        query.push((format!("X-{prefix}-Security-Token"), session_token.clone()));
    }
    query.sort_unstable();
    let query: Vec<String> = query.iter().map(|(k, v)| format!("{k}={}", encode(v, b""))).collect();
    let query = query.join("&");
    let lines: String = named.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let request = format!("{}\n{path}\n{query}\n{lines}\n{signed}\nUNSIGNED-PAYLOAD", wish.verb.as_str());
    let hash = hex(digest(&SHA256, request.as_bytes()).as_ref());
    let signature = seal(day, &format!("{algorithm}\n{time}\n{day}/{scope}\n{hash}"))?;
    Ok(format!("{scheme}://{host}{path}?{query}&X-{prefix}-Signature={signature}"))
}

/// What a writer binds itself to, and a reader does not.
pub(super) fn only_put(verb: Verb, headers: Vec<(String, String)>) -> Vec<(String, String)> {
    if verb == Verb::Put { headers } else { Vec::new() }
}
