//! `runner run`: load the configuration, then be the manager until it ends.

use std::path::PathBuf;

use super::{CONFIG, check, say};
use crate::diag::logging;
use crate::supervisor;

pub(super) fn run(config: Option<PathBuf>, working_directory: Option<PathBuf>, user: Option<String>) -> u8 {
    if let Some(dir) = working_directory
        && let Err(e) = std::env::set_current_dir(&dir)
    {
        say(&format!("runner: --working-directory {}: {e}", dir.display()));
        return CONFIG;
    }
    let config = match check::load(config, user) {
        Ok(config) => config,
        Err(e) => {
            e.lines.iter().for_each(|line| log::error!("{line}"));
            return CONFIG;
        }
    };
    logging::apply(config.log_level, config.log_format);
    for warning in &config.warnings {
        log::warn!("{warning}");
    }
    supervisor::run(config, supervisor::Signals::All)
}
