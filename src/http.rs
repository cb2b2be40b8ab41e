//! The HTTP client: the only place that names `ureq`.
