//! Processes and threads: start, wait, signal.
