//! Back-off as data.
