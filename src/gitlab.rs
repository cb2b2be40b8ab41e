//! GitLab: the wire, the coordinator and lease for the manager, the plan for the job process.

pub mod coordinator;
pub mod lease;
pub mod plan;
pub mod wire;
