//! The scripts that download the artifacts of earlier jobs and upload this one's (build §6.1, §6.6). Makes
//! text; starts nothing.

use crate::gitlab::wire::{Artifact, Dependency};
use crate::model::Secret;

use super::call::{Call, Program};
use super::compose::Body;
use super::context::{Context, On};
use super::durations::show;

/// `None`: nothing to download. The first that cannot be downloaded ends the stage.
pub(super) fn download_script(ctx: &Context<'_>) -> Result<Option<Body>, String> {
    let wanted: Vec<&Dependency> =
        ctx.payload.dependencies.iter().filter(|d| !d.artifacts_file.filename.is_empty()).collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    let mut body = ctx.body();
    let program = Program::of(&ctx.settings.executor);
    program.guard(&mut body, "Artifacts downloading", |body| {
        for dependency in wanted {
            body.notice(&format!("Downloading artifacts for {} ({})...", dependency.name, dependency.id));
            let mut call = Call::new(&program, "artifacts-downloader");
            identity(&mut call, ctx, dependency.id, &dependency.token);
            call.write(body);
            body.raw("\n");
        }
    });
    Ok(Some(body))
}

/// `None`: nothing to upload. The first that cannot be uploaded ends the stage.
pub(super) fn upload_script(ctx: &Context<'_>, on: On) -> Result<Option<Body>, String> {
    let named = |a: &Artifact| a.untracked || !a.paths.is_empty();
    let wanted: Vec<&Artifact> = ctx.payload.artifacts.iter().filter(|a| named(a) && on.is_wanted(&a.when)).collect();
    // A spool takes none, which its log says.
    if wanted.is_empty() || !ctx.settings.url.starts_with("http") {
        return Ok(None);
    }
    let mut body = ctx.body();
    let program = Program::of(&ctx.settings.executor);
    program.guard(&mut body, "Uploading artifacts", |body| {
        for artifact in wanted {
            body.notice("Uploading artifacts...");
            let mut call = Call::new(&program, "artifacts-uploader");
            identity(&mut call, ctx, ctx.payload.id, &ctx.payload.token);
            describe(&mut call, ctx, artifact);
            call.write(body);
            body.raw("\n");
        }
    });
    Ok(Some(body))
}

/// Whose artifacts, where. A job may have variables of these names; the call's own count.
fn identity(call: &mut Call<'_>, ctx: &Context<'_>, id: i64, token: &Secret) {
    call.option("--url", &ctx.settings.url).secret("--token", "CI_JOB_TOKEN", token.clone());
    call.option("--id", id.to_string());
}

fn describe(call: &mut Call<'_>, ctx: &Context<'_>, artifact: &Artifact) {
    let uploads = &ctx.settings.uploads;
    call.option("--timeout", show(uploads.timeout));
    call.option("--response-header-timeout", show(uploads.answer_within));
    for path in &artifact.paths {
        call.option("--path", path);
    }
    for path in &artifact.exclude {
        call.option("--exclude", path);
    }
    if artifact.untracked {
        call.flag("--untracked");
    }
    for (option, value) in [
        ("--name", &artifact.name),
        ("--expire-in", &artifact.expire_in),
        ("--artifact-format", &artifact.artifact_format),
        ("--artifact-type", &artifact.artifact_type),
    ] {
        if !value.is_empty() {
            call.option(option, value);
        }
    }
}
