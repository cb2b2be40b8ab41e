//! The plan of a GitLab job, for its job process.
