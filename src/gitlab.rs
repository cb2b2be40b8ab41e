//! GitLab: the wire, the coordinator and lease for the manager, the plan for the job process.
