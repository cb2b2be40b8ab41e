//! A plain directory as coordinator.
