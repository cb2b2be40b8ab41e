//! Who runs what: the registry of running jobs.
