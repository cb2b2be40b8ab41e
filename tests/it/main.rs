//! One integration binary: the real runner against fake coordinators on loopback.
