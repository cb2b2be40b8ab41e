//! A job's life as the job process sees it, top to bottom.

pub mod frame;
pub mod log;
pub mod mask;
