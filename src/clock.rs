//! Time: the boot clock that survives restarts and suspends, and every duration that the runner waits,
//! as data. Wall-clock time appears in text only.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment on CLOCK_BOOTTIME, in milliseconds since boot: runs on in suspend, never jumps, and is
/// the same for every process of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootTime(u64);

impl BootTime {
    pub fn now() -> BootTime {
        let t = clock_gettime(ClockId::Boottime);
        BootTime(t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000)
    }

    pub fn after(self, d: Duration) -> BootTime {
        BootTime(self.0.saturating_add(u64::try_from(d.as_millis()).unwrap_or(u64::MAX)))
    }

    /// What is left until then; zero when it has passed.
    pub fn left(self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(BootTime::now().0))
    }

    pub fn has_passed(self) -> bool {
        self.left().is_zero()
    }

    pub fn millis(self) -> u64 {
        self.0
    }
}

/// This boot's id, from the kernel; empty where /proc is not mounted.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|s| s.trim().to_owned()).unwrap_or_default()
}

/// A moment as text, for people: `2026-01-02T03:04:05.678Z`.
pub fn utc(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let second = since.as_secs();
    let (year, month, day) = date(second / 86_400);
    let (h, m, s) = (second / 3600 % 24, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{:03}Z", since.subsec_millis())
}

/// Year, month and day of a day since 1970. Years are counted from March, so that the leap day is the
/// last of its year and months have lengths that a line of slope 153/5 gives.
pub fn date(day: u64) -> (u64, u64, u64) {
    // Days since 1 March 0000, and the 400 years that repeat.
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// Every wait of the runner that is no setting of a user. Debug builds take other values from
/// `RUNNER_TIMING` (`name=milliseconds,…`), so that tests need not wait; release builds do not read it.
macro_rules! timing {
    ($($(#[doc = $doc:literal])* $name:ident = $ms:expr;)*) => {
        #[derive(Clone, Copy, Debug)]
        pub struct Timing { $($(#[doc = $doc])* pub $name: Duration,)* }

        impl Default for Timing {
            fn default() -> Timing { Timing { $($name: Duration::from_millis($ms),)* } }
        }

        impl Timing {
            #[cfg(debug_assertions)]
            fn set(&mut self, name: &str, value: Duration) {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => panic!("RUNNER_TIMING: no wait is called {name}"),
                }
            }
        }
    };
}

timing! {
    /// A job that has run for so long is made safe against power loss.
    sync_after = 1_000;
    /// A finished job that cannot be reported for so long goes to a deliverer (design §4.6).
    deliver_after = 60_000;
    /// Reports before the final state hold it back for so long at most (design §4.6).
    hold_back = 120_000;
    /// A refusal without a word on the final state is believed after three tries in so long (kill point 33).
    forbidden_within = 60_000;
    /// After that a job's report is given up.
    give_up_after = 24 * 3_600_000;
    /// How long a GitLab job may run with no manager (design §2, `orphan_until`).
    orphan_gitlab = 50 * 60_000;
    /// A long poll that waits at the server for so long has no job on its way (design §3).
    parked_after = 2_000;
    /// The server-side wait that a long poll allows for, beyond which the request is given up.
    poll_deadline = 10 * 60_000;
    /// Every other request is given up after this.
    request_deadline = 60_000;
    connect_timeout = 30_000;
    resolve_timeout = 30_000;
    /// First log upload after the first output.
    first_output = 600;
    /// Log uploads while the server names no interval (protocol §2.1).
    update_interval = 3_000;
    /// The cap on the interval that a server names (protocol §2.1).
    update_interval_max = 15 * 60_000;
    /// A touch when nothing was sent for so long (protocol §2.1).
    force_send = 30_000;
    /// Cap of every back-off.
    backoff_max = 60_000;
    /// First step of a back-off.
    backoff_min = 1_000;
    /// First step of the HTTP-level retries (protocol §3.1).
    http_backoff_min = 100;
    /// How long scripts have between TERM and KILL at a hard stop.
    hard_term = 5_000;
    /// How long what a job left running has between TERM and KILL.
    sweep_term = 2_000;
    /// What is still in the pipes of a stage that was ended is waited for so long.
    drain_ended = 1_000;
    /// The sweep of a job's processes (design §5.7).
    sweep_limit = 30_000;
    /// A stop by the operating system: outcome written within it (kill point 28).
    host_shutdown = 3_000;
    /// The job process answers on its channel within this, else it is killed.
    channel_timeout = 30_000;
    /// A frame is written to the channel within this.
    channel_write = 1_000;
    /// A second manager waits so long for the state directory (kill point 17).
    state_lock = 5_000;
    /// The kill timer's lead before the end of a cancel or a shutdown (design §4.4).
    kill_lead = 15_000;
    /// The least that a cancel gives, the kill lead included (design §4.4).
    cancel_least = 60_000;
    /// Answers in flight are awaited so long before a hand-over, polls that may have a job excepted.
    hand_over = 10_000;
    /// The check of the new binary's configuration may take so long at a hand-over.
    hand_over_check = 10_000;
    /// An entry that the server refused three times rests so long (protocol §3.6).
    unhealthy_rest = 3_600_000;
    /// How often a changed configuration file is looked for (protocol §6.5).
    config_check = 3_000;
    /// The longest single wait on a deadline, so that a suspend is noticed.
    deadline_check = 30_000;
    /// A spool claim that was not touched for so long goes back to pending.
    spool_stale = 60_000;
    /// How often a running spool job's cancel file is looked for.
    spool_look = 500;
    /// The rest before a stage's second try; doubled before each further one (build §1.4).
    stage_retry = 5_000;
    stage_retry_max = 300_000;
    /// The same without FF_USE_EXPONENTIAL_BACKOFF_STAGE_RETRY.
    stage_retry_short = 1_000;
    stage_retry_short_max = 5_000;
    /// Between two tries to prepare a custom executor (build §1.3).
    prepare_retry = 3_000;
    /// How long KILL may take before a stage is given up.
    kill_wait = 10_000;
}

impl Timing {
    pub fn load() -> Timing {
        #[cfg_attr(not(debug_assertions), expect(unused_mut, reason = "only debug builds change it"))]
        let mut timing = Timing::default();
        #[cfg(debug_assertions)]
        #[expect(clippy::disallowed_methods, reason = "the test hook of debug builds")]
        if let Ok(text) = std::env::var("RUNNER_TIMING") {
            for (name, ms) in text.split(',').filter_map(|p| p.split_once('=')) {
                let ms = ms.parse().expect("RUNNER_TIMING holds name=milliseconds pairs");
                timing.set(name, Duration::from_millis(ms));
            }
        }
        timing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_in_utc() {
        for (ms, want) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(SystemTime::UNIX_EPOCH + Duration::from_millis(ms)), want);
        }
    }

    #[test]
    fn the_boot_clock_counts_down() {
        let soon = BootTime::now().after(Duration::from_secs(5));
        assert!(soon.left() <= Duration::from_secs(5) && soon.left() > Duration::from_secs(3));
        assert!(BootTime(0).has_passed());
    }
}
