//! The time limits that a job sets itself: `RUNNER_SCRIPT_TIMEOUT` and `RUNNER_AFTER_SCRIPT_TIMEOUT`
//! (build §1.5). Reads them and says what is wrong with them; measures nothing.

use std::time::Duration;

use super::durations::{Span, parse};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timeouts {
    /// All user steps together; `None`: as long as the job may run.
    pub(super) script: Option<Duration>,
    pub(super) after_script: Duration,
    /// Lines for the log, before the first user step.
    pub(super) warnings: Vec<String>,
}

/// after_script is never without a limit.
const AFTER_SCRIPT: Duration = Duration::from_secs(300);

impl Timeouts {
    /// `left` is what is left of the job's own time.
    pub(super) fn read(get: impl Fn(&str) -> Option<String>, left: Duration) -> Timeouts {
        let mut warnings = Vec::new();
        let mut one = |name: &str| {
            let raw = get(name)?;
            let text = raw.trim();
            if text.is_empty() {
                return None;
            }
            match parse(text) {
                None => warnings.push(format!("Ignoring malformed {name} timeout: {raw}")),
                Some(Span::Backward) => warnings.push(format!("Ignoring relative {name} timeout: {raw}")),
                Some(Span::Forward(d)) if d.is_zero() => {}
                Some(Span::Forward(d)) if d > left => {
                    warnings.push(format!("{name} timeout: {raw} is longer than job timeout. Setting to job timeout"))
                }
                Some(Span::Forward(d)) => return Some(d),
            }
            None
        };
        let script = one("RUNNER_SCRIPT_TIMEOUT");
        let after_script = one("RUNNER_AFTER_SCRIPT_TIMEOUT").unwrap_or(AFTER_SCRIPT);
        Timeouts { script, after_script, warnings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_none_is_said_and_left_out() {
        let hour = Duration::from_secs(3600);
        for (raw, script, after, warning) in [
            ("2s", Some(2), 2, ""),
            (" 1m ", Some(60), 60, ""),
            ("", None, 300, ""),
            ("0", None, 300, ""),
            ("30", None, 300, "Ignoring malformed RUNNER_SCRIPT_TIMEOUT timeout: 30"),
            ("-2s", None, 300, "Ignoring relative RUNNER_SCRIPT_TIMEOUT timeout: -2s"),
            ("2h", None, 300, "RUNNER_SCRIPT_TIMEOUT timeout: 2h is longer than job timeout. Setting to job timeout"),
        ] {
            let got = Timeouts::read(|_| Some(raw.to_owned()), hour);
            assert_eq!(got.script, script.map(Duration::from_secs), "{raw:?}");
            assert_eq!(got.after_script, Duration::from_secs(after), "{raw:?}");
            assert_eq!(got.warnings.first().map_or("", String::as_str), warning);
        }
    }
}
