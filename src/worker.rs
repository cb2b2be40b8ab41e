//! A worker thread: takes work from the rendezvous channel, polls, and becomes the job's lease thread.
