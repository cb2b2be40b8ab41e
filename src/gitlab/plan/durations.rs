//! Durations as Go writes and reads them (`1h30m`, `1.5s`): users set them in variables, the log shows
//! them. Pure text.

use std::time::Duration;

/// What a duration variable says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    Forward(Duration),
    /// A negative one: users mean something else by it.
    Backward,
}

/// `None` when the text is no duration: a bare number is none, `0` is.
pub(super) fn parse(text: &str) -> Option<Span> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(Span::Forward(Duration::ZERO));
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (amount, after) = rest.split_at(number);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        nanos = nanos.checked_add(amount_of(amount, nanos_of(unit)?)?)?;
        if nanos > i64::MAX as u128 {
            return None;
        }
        rest = after;
    }
    if negative && nanos > 0 {
        return Some(Span::Backward);
    }
    Some(Span::Forward(Duration::from_nanos(nanos as u64)))
}

/// `1h0m0s`, `4s`, `1.5s`, `200ms`.
pub(super) fn show(d: Duration) -> String {
    let nanos = d.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < 1_000_000_000 {
        let (unit, name) = match nanos {
            0..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "µs"),
            _ => (1_000_000, "ms"),
        };
        return decimal(nanos, unit) + name;
    }
    let (hours, minutes) = (d.as_secs() / 3600, d.as_secs() / 60 % 60);
    let seconds = decimal(nanos % 60_000_000_000, 1_000_000_000) + "s";
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, m) => format!("{m}m{seconds}"),
        (h, m) => format!("{h}h{m}m{seconds}"),
    }
}

fn nanos_of(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `1.5` of a unit; digits beyond the nanosecond are dropped.
fn amount_of(text: &str, unit: u128) -> Option<u128> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if (whole.is_empty() && part.is_empty()) || part.contains('.') {
        return None;
    }
    let digits = |s: &str| if s.is_empty() { Some(0) } else { s.parse::<u128>().ok() };
    let part = &part[..part.len().min(18)];
    let scale = 10_u128.pow(part.len() as u32);
    digits(whole)?.checked_mul(unit)?.checked_add(digits(part)? * unit / scale)
}

/// `nanos` in a unit, without trailing zeros.
fn decimal(nanos: u128, unit: u128) -> String {
    let (whole, part) = (nanos / unit, nanos % unit);
    if part == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    format!("{whole}.{part:0width$}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let forward = |ms: u64| Some(Span::Forward(Duration::from_millis(ms)));
        for (text, want) in [
            ("2s", forward(2_000)),
            ("1h30m", forward(5_400_000)),
            ("1.5h", forward(5_400_000)),
            (".5s", forward(500)),
            ("1.s", forward(1_000)),
            ("+3m", forward(180_000)),
            ("0", forward(0)),
            ("-0", forward(0)),
            ("100us", Some(Span::Forward(Duration::from_micros(100)))),
            ("-2s", Some(Span::Backward)),
            ("30", None),
            ("", None),
            ("s", None),
            (".s", None),
            ("1..5s", None),
            ("2 s", None),
            ("2x", None),
            ("9999999999999h", None),
        ] {
            assert_eq!(parse(text), want, "{text:?}");
        }
    }

    #[test]
    fn durations_are_shown_as_go_shows_them() {
        for (ms, want) in [
            (0, "0s"),
            (4_000, "4s"),
            (300_000, "5m0s"),
            (3_600_000, "1h0m0s"),
            (7_325_500, "2h2m5.5s"),
            (200, "200ms"),
            (1_050, "1.05s"),
        ] {
            assert_eq!(show(Duration::from_millis(ms)), want);
        }
        assert_eq!(show(Duration::from_nanos(1_500)), "1.5µs");
    }
}
