//! The levels of stop, for every thread to see.
