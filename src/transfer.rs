//! Artifacts and caches: what the commands inside a stage do (build §6). The map:
//!
//! - [`select`]: which files a job means, by patterns (`glob`).
//! - [`archive`]: those files as zip, tar, gzip or raw, into any writer, by all processors (`ordered`).
//! - [`extract`]: an archive into a directory, and nothing outside of it.
//! - [`cache`]: a job's files from one job to the next, on this host and in a store.
//! - [`say`]: the lines in the job's log.
//!
//! Runs as the stage's user, in the project directory. Knows the coordinator by its two URLs only,
//! a store by URLs that were signed elsewhere.

pub mod archive;
pub mod artifacts;
pub mod cache;
pub mod expand;
pub mod extract;
mod glob;
mod ordered;
pub mod say;
pub mod select;
