//! The manager's one event loop: signals, timers, the configuration, who polls next.

use crate::config::Config;

/// Which signals the manager takes for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signals {
    /// All of design §9: it is a service.
    All,
    /// All but INT, which the caller has a use for: `runner exec` cancels its job with it.
    NotInterrupt,
}

/// Be the manager until it ends; the exit code (design §9).
pub fn run(config: Config, signals: Signals) -> u8 {
    let _ = (config, signals);
    log::error!("the manager is not built yet");
    1
}
