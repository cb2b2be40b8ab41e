//! Moments in headers. Reads no clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::date;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

/// `Tue, 05 Jan 2021 11:00:00 GMT`.
pub fn http_date(text: &str) -> Option<SystemTime> {
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

/// The same the other way round, without parts of a second.
pub fn show_http_date(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (day, second) = (since / 86_400, since % 86_400);
    let (year, month, of_month) = date(day);
    let weekday = DAYS[usize::try_from(day % 7).unwrap_or(0)];
    let month = MONTHS[usize::try_from(month - 1).unwrap_or(0)];
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{weekday}, {of_month:02} {month} {year:04} {h:02}:{m:02}:{s:02} GMT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_they_are_written() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (1_609_844_400, "Tue, 05 Jan 2021 11:00:00 GMT"),
            (951_868_799, "Tue, 29 Feb 2000 23:59:59 GMT"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!((show_http_date(at).as_str(), http_date(text)), (text, Some(at)));
        }
    }
}
