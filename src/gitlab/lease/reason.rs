//! How a job's end is told to GitLab: state, reason, exit code (protocol §4.3, 4.4).

use crate::gitlab::wire::request::State;
use crate::model::{Outcome, Verdict, Why};

/// Reasons that every server knows.
const ALWAYS: [&str; 3] = ["script_failure", "runner_system_failure", "job_execution_timeout"];

pub(super) fn state(outcome: &Outcome) -> State {
    match outcome.verdict {
        Verdict::Success => State::Success,
        Verdict::Failed | Verdict::Canceled => State::Failed,
    }
}

/// The reason as this server is told it. That is so for jobs that ended before they began, too, where the
/// reference sends a word that the server does not know: the server stores the same.
pub(super) fn told(outcome: &Outcome, known: &[String]) -> &'static str {
    mapped(unmapped(outcome), known)
}

/// The reason in GitLab's words, before any server is asked whether it knows them; empty for a success.
fn unmapped(outcome: &Outcome) -> &'static str {
    if outcome.verdict == Verdict::Success {
        return "";
    }
    match outcome.why {
        None | Some(Why::Script) => "script_failure",
        Some(Why::System | Why::Orphaned | Why::Crashed | Why::HostRestarted) => "runner_system_failure",
        Some(Why::Configuration) => "runner_configuration_error",
        Some(Why::TimedOut) => "job_execution_timeout",
        Some(Why::Canceled | Why::Aborted) => "job_canceled",
        Some(Why::Terminated | Why::Interrupted | Why::HostShutdown) => "runner_interrupted",
    }
}

/// The reason that this server knows and that is nearest.
fn mapped(reason: &'static str, known: &[String]) -> &'static str {
    let is_known = |r: &str| r.is_empty() || ALWAYS.contains(&r) || known.iter().any(|k| k == r);
    let mut reason = reason;
    while !is_known(reason) {
        reason = match reason {
            "runner_configuration_error" => "script_failure",
            "image_pull_failure" | "runner_external_dependency_failure" => "runner_system_failure",
            _ => return "unknown_failure",
        };
    }
    reason
}

/// 0 is left out on the wire.
pub(super) fn exit_code(outcome: &Outcome) -> i64 {
    if outcome.verdict == Verdict::Success { 0 } else { outcome.exit_code.map_or(0, i64::from) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_its_reason_and_servers_hear_one_that_they_know() {
        let recent = ["runner_configuration_error", "runner_interrupted"].map(str::to_owned);
        for (why, raw, on_recent, on_old) in [
            (Why::Script, "script_failure", "script_failure", "script_failure"),
            (Why::System, "runner_system_failure", "runner_system_failure", "runner_system_failure"),
            (Why::Configuration, "runner_configuration_error", "runner_configuration_error", "script_failure"),
            (Why::TimedOut, "job_execution_timeout", "job_execution_timeout", "job_execution_timeout"),
            (Why::Canceled, "job_canceled", "unknown_failure", "unknown_failure"),
            (Why::Aborted, "job_canceled", "unknown_failure", "unknown_failure"),
            (Why::Terminated, "runner_interrupted", "runner_interrupted", "unknown_failure"),
            (Why::HostShutdown, "runner_interrupted", "runner_interrupted", "unknown_failure"),
            (Why::Orphaned, "runner_system_failure", "runner_system_failure", "runner_system_failure"),
            (Why::Crashed, "runner_system_failure", "runner_system_failure", "runner_system_failure"),
        ] {
            let outcome = Outcome::failed(why, "");
            assert_eq!(unmapped(&outcome), raw, "{why:?}");
            assert_eq!(mapped(raw, &recent), on_recent, "{why:?}");
            assert_eq!(mapped(raw, &[]), on_old, "{why:?}");
            assert_eq!(state(&outcome), State::Failed);
        }
        assert_eq!(unmapped(&Outcome::success()), "");
        assert_eq!(mapped("", &[]), "");
        assert_eq!(mapped("image_pull_failure", &[]), "runner_system_failure");
    }

    #[test]
    fn the_exit_code_is_the_failing_commands() {
        let with = |code| exit_code(&Outcome { exit_code: code, ..Outcome::failed(Why::Script, "") });
        assert_eq!([with(None), with(Some(0)), with(Some(37)), with(Some(-1))], [0, 0, 37, -1]);
        assert_eq!(exit_code(&Outcome { exit_code: Some(1), ..Outcome::success() }), 0);
    }
}
