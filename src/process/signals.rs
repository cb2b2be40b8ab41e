//! Which signals reach this process: none while it becomes another image. Hears none.

use std::io;

use nix::sys::signal::SigSet;

/// Signals wait from now on, also across an exec: one that meets its default in an image that does not
/// listen yet would end it.
pub fn hold() -> io::Result<()> {
    SigSet::all().thread_block().map_err(io::Error::from)
}

/// The other side of [`hold`]: called once there is somebody to hear them. A child inherits the mask, so
/// none is started in between.
pub fn let_in() -> io::Result<()> {
    SigSet::all().thread_unblock().map_err(io::Error::from)
}
