//! The HTTP client: the only place that names `ureq`.

use crate::clock::Timing;

/// The process's HTTP: what its clients share.
#[derive(Clone, Debug)]
pub struct Web {
    timing: Timing,
}

impl Web {
    pub fn new(timing: &Timing) -> Web {
        Web { timing: *timing }
    }

    pub fn timing(&self) -> &Timing {
        &self.timing
    }
}
