//! `cargo bench`: one table of ratios to floors measured in the same run.

fn main() {}
