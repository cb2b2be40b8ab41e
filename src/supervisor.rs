//! The manager's one event loop: signals, timers, the configuration, who polls next.
