//! One job: its confirmation, its log, its final state.
