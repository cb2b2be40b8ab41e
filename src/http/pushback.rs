//! What a server says when it has too much to do: which answers may be asked again, and when. Data only:
//! whoever asked decides what a wait is (protocol §3.1).

use std::time::{Duration, SystemTime};

use super::Answer;
use super::date::http_date;

/// Whether the same request may succeed later.
pub fn is_retriable(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504 | 512..)
}

/// The wait that the server asks for, if it does. Dates are compared with the server's own clock where
/// it tells the time.
pub fn wait(answer: &Answer) -> Option<Duration> {
    let now = answer.header("Date").and_then(http_date).unwrap_or_else(SystemTime::now);
    asked(answer.header("RateLimit-ResetTime"), answer.header("Retry-After"), now)
}

fn asked(reset: Option<&str>, retry: Option<&str>, now: SystemTime) -> Option<Duration> {
    let until = |date: &str| http_date(date).and_then(|at| at.duration_since(now).ok());
    let seconds = |text: &str| text.parse().ok().map(Duration::from_secs);
    let wait = reset.and_then(until).or_else(|| retry.and_then(|text| seconds(text).or_else(|| until(text))));
    wait.filter(|w| !w.is_zero())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn only_what_may_pass_is_asked_again() {
        for (status, want) in [
            (200, false),
            (400, false),
            (401, false),
            (408, true),
            (409, false),
            (429, true),
            (500, true),
            (501, false),
            (503, true),
            (504, true),
            (505, false),
            (511, false),
            (512, true),
            (520, true),
        ] {
            assert_eq!(is_retriable(status), want, "{status}");
        }
    }

    #[test]
    fn a_servers_wait_is_understood_in_every_form() {
        let at = |s| UNIX_EPOCH + Duration::from_secs(s);
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(at(784_111_777)));
        assert_eq!(http_date("Thu, 29 Feb 2024 00:00:00 UTC"), Some(at(1_709_164_800)));
        let now = at(784_111_777);
        for (reset, retry, want) in [
            (None, Some("7"), Some(7)),
            (None, Some("0"), None),
            (None, Some("-3"), None),
            (None, Some("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60)),
            (None, Some("Sun, 06 Nov 1994 08:00:00 GMT"), None),
            (Some("Sun, 06 Nov 1994 08:49:42 GMT"), Some("7"), Some(5)),
            (Some("Sun, 06 Nov 1994 08:49:30 GMT"), Some("7"), Some(7)),
            (Some("soon"), None, None),
            (None, Some("Sun, 99 Nov 1994 08:50:37 GMT"), None),
            (None, None, None),
        ] {
            assert_eq!(asked(reset, retry, now), want.map(Duration::from_secs), "{reset:?} {retry:?}");
        }
    }
}
