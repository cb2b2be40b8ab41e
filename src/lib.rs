//! One small runner for CI jobs, in the order in which it is best read:
//!
//! 1. [`model`] and [`forge`]: what a job is, and the seam between the ranks and the forges.
//! 2. [`jobdir`]: the directory that outlives manager and job process.
//! 3. [`dispatch`]: a job's life as the manager sees it; [`supervisor`] and [`worker`] around it.
//! 4. [`job`]: a job's life as its own process sees it.
//! 5. [`gitlab`] and [`spool`]: two forges behind the seam, named by [`forges`] alone.
//!
//! Imports point down only: manager → seam → ground, job process → seam → ground. The manager and
//! the job process never import each other; `tests/it/tidy.rs` asserts it.

#![allow(rustdoc::private_intra_doc_links, reason = "who reads this documentation reads the source beside it")]

// -- manager --
pub mod cli;
pub mod config;
pub mod dispatch;
pub mod monitor;
pub mod supervisor;
pub mod worker;
// -- seam --
pub mod cloud;
pub mod forge;
pub mod forges;
pub mod gitlab;
pub mod jobdir;
pub mod model;
pub mod spool;
// -- job process --
pub mod executor;
pub mod job;
// -- helpers --
pub mod transfer;
// -- ground --
pub mod clock;
pub mod diag;
pub mod http;
pub mod process;
pub mod retry;
pub mod shutdown;
pub mod space;
