//! How a stage becomes a process.
