//! What the server's answers mean: status and `Job-Status`, as closed enums (protocol §1.6.2, 1.6.3, 1.7).

use crate::http::{Answer, Method, for_people, pushback};

/// What an answer to `PUT jobs/:id` says, the first that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Done,
    /// Taken note of, not completed yet.
    Accepted,
    /// The server's log is not ours: all of it again.
    TraceInvalid,
    /// The job is not ours any more; with its state, where the server says it.
    Abort(Known),
    Failed,
}

/// What an answer to `PATCH jobs/:id/trace` says, the first that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// Stored. What was sent counts, not the `Range` of the answer.
    Stored,
    /// Go on at this byte.
    Mismatch(u64),
    NotFound,
    Abort,
    Failed,
}

/// Whether an abort named the job's state, or only refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    State,
    Nothing,
}

/// What an answer says for itself, whichever request it is to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words<'a> {
    pub status: u16,
    pub job_status: Option<&'a str>,
    pub range: Option<&'a str>,
    /// Somebody else speaks in the server's place: what it says of the job does not count.
    pub is_html: bool,
}

impl<'a> Words<'a> {
    pub fn of(answer: &'a Answer) -> Words<'a> {
        Words {
            status: answer.status,
            job_status: answer.header("Job-Status"),
            range: answer.header("Range"),
            is_html: answer.header("Job-Status").is_none() && (answer.is_html() || is_page(&answer.body)),
        }
    }

    /// Whether the same request may succeed later.
    pub fn may_pass(self) -> bool {
        self.is_html || pushback::is_retriable(self.status)
    }

    pub fn put(self) -> Put {
        let known = if self.job_status.is_some() { Known::State } else { Known::Nothing };
        match self.status {
            _ if self.is_html => Put::Failed,
            _ if self.is_over() => Put::Abort(known),
            403 | 404 => Put::Abort(known),
            200 => Put::Done,
            202 => Put::Accepted,
            412 => Put::TraceInvalid,
            _ => Put::Failed,
        }
    }

    /// Note that 200 is no success here.
    pub fn patch(self) -> Patch {
        match self.status {
            _ if self.is_html => Patch::Failed,
            _ if self.is_over() => Patch::Abort,
            403 => Patch::Abort,
            202 => Patch::Stored,
            404 => Patch::NotFound,
            416 => Patch::Mismatch(stored(self.range)),
            _ => Patch::Failed,
        }
    }

    /// The job was canceled, or failed, at the server: nothing of it is wanted any more.
    fn is_over(self) -> bool {
        matches!(self.job_status, Some("canceled" | "failed"))
    }

    /// The job is to end gracefully. It comes with any status.
    pub fn is_canceling(self) -> bool {
        self.job_status == Some("canceling")
    }
}

/// Whether this begins as a page does, whatever it is declared as: GitLab answers in JSON, or with the bare
/// status.
fn is_page(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"<")
}

/// No log is longer: five bytes of position, as the note of it has room for.
const LONGEST_LOG: u64 = 1 << 40;

/// The size of the server's log by its `Range`: `0-<size>`, whose end is a length, no index. A size that no
/// log has says as little as none.
fn stored(range: Option<&str>) -> u64 {
    let size = range.and_then(|r| r.rsplit_once('-')).and_then(|(_, end)| end.trim().parse().ok());
    size.filter(|size| *size < LONGEST_LOG).unwrap_or(0)
}

/// An answer in one line for people: `PUT https://host/path: 403 (403 Forbidden - why)`.
pub fn in_words(method: Method, url: &str, answer: &Answer) -> String {
    let line = format!("{method} {}: {}", for_people(url), answer.status);
    let known = answer.header("Job-Status").map(|s| format!(", the job is {s}")).unwrap_or_default();
    match message(&answer.body).filter(|m| *m != answer.status.to_string()) {
        Some(text) => format!("{line} ({text}){known}"),
        None => format!("{line}{known}"),
    }
}

/// The text in an error's body (protocol §0.5); `None` where it has another shape.
pub fn message(body: &[u8]) -> Option<String> {
    use serde_json::Value;
    let body: Value = serde_json::from_slice(body).ok()?;
    match body.get("message").or_else(|| body.get("error"))? {
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) => {
            let said = fields.iter().filter_map(|(field, texts)| {
                let texts: Vec<&str> = match texts {
                    Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
                    Value::String(one) => vec![one],
                    _ => return None,
                };
                Some(format!("{field}: {}", texts.join("; ")))
            });
            Some(said.collect::<Vec<_>>().join(", "))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_is_classified_by_the_first_rule_that_fits() {
        use Known::{Nothing, State};
        for (status, job_status, want) in [
            (200, Some("running"), Put::Done),
            (200, Some("success"), Put::Done),
            (200, Some("canceling"), Put::Done),
            (200, Some("failed"), Put::Abort(State)),
            (202, Some("canceled"), Put::Abort(State)),
            (403, None, Put::Abort(Nothing)),
            (403, Some("success"), Put::Abort(State)),
            (404, None, Put::Abort(Nothing)),
            (202, None, Put::Accepted),
            (412, None, Put::TraceInvalid),
            (400, None, Put::Failed),
            (401, None, Put::Failed),
            (409, None, Put::Failed),
            (429, None, Put::Failed),
            (500, None, Put::Failed),
        ] {
            assert_eq!(Words { status, job_status, ..Words::default() }.put(), want, "{status} {job_status:?}");
        }
    }

    #[test]
    fn a_log_chunk_is_stored_by_202_alone() {
        for (status, job_status, range, want) in [
            (202, Some("running"), Some("0-9"), Patch::Stored),
            (202, Some("canceling"), None, Patch::Stored),
            (202, Some("canceled"), None, Patch::Abort),
            (403, None, None, Patch::Abort),
            (404, None, None, Patch::NotFound),
            (416, None, Some("0-1234"), Patch::Mismatch(1234)),
            (416, None, Some("0-0"), Patch::Mismatch(0)),
            (416, None, None, Patch::Mismatch(0)),
            (416, None, Some("rubbish"), Patch::Mismatch(0)),
            (200, None, None, Patch::Failed),
            (409, None, None, Patch::Failed),
            (500, None, None, Patch::Failed),
        ] {
            assert_eq!(
                Words { status, job_status, range, is_html: false }.patch(),
                want,
                "{status} {job_status:?} {range:?}"
            );
        }
    }

    #[test]
    fn a_page_in_the_servers_place_decides_nothing() {
        for status in [200, 202, 403, 404, 412, 416, 502] {
            let words = Words { status, is_html: true, ..Words::default() };
            assert!(words.put() == Put::Failed && words.patch() == Patch::Failed && words.may_pass(), "{status}");
        }
    }

    #[test]
    fn the_servers_words_are_found_in_an_error() {
        for (body, want) in [
            (r#"{"message":"403 Forbidden"}"#, Some("403 Forbidden")),
            (
                r#"{"message":{"name":["is short","is odd"],"tags":["none"]}}"#,
                Some("name: is short; is odd, tags: none"),
            ),
            (r#"{"error":"token is missing"}"#, Some("token is missing")),
            (r#"{"message":7}"#, None),
            ("<html>", None),
        ] {
            assert_eq!(message(body.as_bytes()).as_deref(), want, "{body}");
        }
    }
}
