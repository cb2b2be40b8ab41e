//! A job's life as the manager sees it, top to bottom.
