//! A job's life as the job process sees it, top to bottom.

pub mod frame;
pub mod log;
pub mod mask;

use std::path::Path;

/// Run the job of this directory; the exit code.
pub fn main(dir: &Path) -> u8 {
    let _ = dir;
    1
}
