//! The scripts that download the artifacts of earlier jobs and upload this one's. Makes text; starts
//! nothing.

use super::compose::Body;
use super::context::{Context, On};

/// `None`: nothing to download.
pub(super) fn download_script(ctx: &Context<'_>) -> Result<Option<Body>, String> {
    let _ = ctx;
    Ok(None)
}

/// `None`: nothing to upload.
pub(super) fn upload_script(ctx: &Context<'_>, on: On) -> Result<Option<Body>, String> {
    let _ = (ctx, on);
    Ok(None)
}
