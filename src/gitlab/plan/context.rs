//! What the makers of a stage's script are given: the job as it stands, and how scripts are written for
//! its shell. Decides nothing.

use crate::gitlab::wire::Payload;
use crate::model::Settings;

use super::compose::{Body, Composer};
use super::flags::Flags;
use super::paths::Paths;
use super::variables::Variables;
use super::wishes::Wishes;

#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) payload: &'a Payload,
    pub(super) settings: &'a Settings,
    /// The server's name for the request that brought the job.
    pub(super) request_id: &'a str,
    pub(super) flags: &'a Flags,
    pub(super) paths: &'a Paths,
    pub(super) vars: &'a Variables,
    pub(super) wishes: &'a Wishes,
    pub(super) composer: Composer,
}

impl Context<'_> {
    /// A script that has the job's variables and stands in the project directory.
    pub(super) fn body(&self) -> Body {
        let mut body = self.composer.body();
        body.begin(self.vars, self.paths);
        body
    }
}

/// How a job stood when its script was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Success,
    Failure,
}

impl On {
    /// Whether the `when` of an artifact or a cache means this.
    pub(super) fn is_wanted(self, when: &str) -> bool {
        match self {
            On::Success => matches!(when, "" | "on_success" | "always"),
            On::Failure => matches!(when, "on_failure" | "always"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_depends_on_how_the_job_stood() {
        for (when, success, failure) in [
            ("", true, false),
            ("on_success", true, false),
            ("on_failure", false, true),
            ("always", true, true),
            ("never", false, false),
        ] {
            assert_eq!((On::Success.is_wanted(when), On::Failure.is_wanted(when)), (success, failure), "{when:?}");
        }
    }
}
