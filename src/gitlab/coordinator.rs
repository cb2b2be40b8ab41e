//! One per entry: polls for jobs. Runs none.
