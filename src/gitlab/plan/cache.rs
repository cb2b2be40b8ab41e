//! The scripts that restore caches and save them. Makes text; starts nothing.

use super::compose::Body;
use super::context::{Context, On};

/// `None`: nothing to restore.
pub(super) fn restore_script(ctx: &Context<'_>) -> Result<Option<Body>, String> {
    let _ = ctx;
    Ok(None)
}

/// `None`: nothing to save.
pub(super) fn archive_script(ctx: &Context<'_>, on: On) -> Result<Option<Body>, String> {
    let _ = (ctx, on);
    Ok(None)
}
