//! Threads: named, with small stacks. Whoever starts one joins it.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Enough for JSON 128 deep in debug builds.
const STACK: usize = 256 * 1024;

/// The name shows in `top -H`; the kernel keeps 15 bytes of it.
pub fn named<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work)
}
