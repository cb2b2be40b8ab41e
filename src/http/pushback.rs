//! What a server says when it has too much to do: which answers may be asked again, and when. Data only:
//! whoever asked decides what a wait is (protocol §3.1).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Answer;

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

/// `Tue, 05 Jan 2021 11:00:00 GMT`.
fn http_date(text: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_whitespace().skip(1);
    let day: i64 = words.next()?.parse().ok().filter(|d| (1..=31).contains(d))?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|m| *m == name)? as i64 + 1;
    let year: i64 = words.next()?.parse().ok().filter(|y| (1970..=9999).contains(y))?;
    let time: Vec<u64> = words.next()?.split(':').map(|p| p.parse().ok()).collect::<Option<_>>()?;
    let [hour, minute, second] = time[..] else { return None };
    matches!(words.next()?, "GMT" | "UTC" | "+0000").then_some(())?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days since 1970 in the calendar that counts from March, so that the leap day is a year's last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = u64::try_from(days).ok()? * 86_400 + hour * 3600 + minute * 60 + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
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
