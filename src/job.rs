//! A job's life as the job process sees it, top to bottom.
