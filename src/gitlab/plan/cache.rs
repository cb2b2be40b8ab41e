//! The scripts that restore caches and save them (build §7): keys, policies, fallback keys, names of
//! archives here and in the store. Makes text; starts nothing.

use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use ring::digest::{SHA256, digest};

use crate::cloud::{Link, Verb, Wish, hex};
use crate::gitlab::wire::{Cache, DEFAULT_TIMEOUT};
use crate::model::Secret;

use super::call::{Call, Program};
use super::compose::Body;
use super::context::{Context, On};
use super::flags::Flag;

/// Whatever the archive's format.
const FILE: &str = "cache.zip";
/// Minutes for one request.
const REQUEST_TIMEOUT: u64 = 10;

/// `None`: nothing to restore. A cache that cannot be restored fails no job.
pub(super) fn restore_script(ctx: &Context<'_>) -> Result<Option<Body>, String> {
    let caches: Vec<&Cache> = ctx.payload.cache.iter().filter(|c| has_files(c)).collect();
    if caches.is_empty() {
        return Ok(None);
    }
    let mut body = ctx.body();
    let program = Program::of(&ctx.settings.executor);
    for cache in caches {
        let keys = Keys::of(ctx, cache);
        keys.warnings(&mut body);
        let Some(first) = keys.all.first() else {
            body.notice("Skipping cache extraction due to empty cache key");
            continue;
        };
        if !Policy::of(ctx, cache, &first.human)?.pulls() {
            body.notice(&format!("Not downloading cache {} due to policy", first.human));
            continue;
        }
        program.guard(&mut body, "Extracting cache", |body| restore(ctx, &program, body, cache, &keys.all));
    }
    Ok(Some(body))
}

/// `None`: nothing to save. A cache that cannot be saved fails no job.
pub(super) fn archive_script(ctx: &Context<'_>, on: On) -> Result<Option<Body>, String> {
    let wanted = |c: &&Cache| has_files(c) && on.is_wanted(&c.when);
    let caches: Vec<&Cache> = ctx.payload.cache.iter().filter(wanted).collect();
    if caches.is_empty() {
        return Ok(None);
    }
    let mut body = ctx.body();
    let program = Program::of(&ctx.settings.executor);
    for cache in caches {
        let (key, warning) = Key::of(ctx, &raw_key(ctx, cache));
        warning.iter().for_each(|text| body.warning(text));
        let Some(key) = key else {
            body.notice("Skipping cache archiving due to empty cache key");
            continue;
        };
        if !Policy::of(ctx, cache, &key.human)?.pushes() {
            body.notice(&format!("Not uploading cache {} due to policy", key.human));
            continue;
        }
        program.guard(&mut body, "Creating cache", |body| archive(ctx, &program, body, cache, &key));
    }
    Ok(Some(body))
}

fn has_files(cache: &Cache) -> bool {
    cache.untracked || !cache.paths.is_empty()
}

// ---- Keys ------------------------------------------------------------------------------------

/// A cache's name, for people and for paths.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    human: String,
    spot: Spot,
    /// Where it would be if FF_HASH_CACHE_KEYS were the other way round: caches of before are found.
    twin: Option<Spot>,
}

/// Where a cache lies, here or in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Spot {
    Plain(String),
    Hashed(String),
}

impl Spot {
    fn file(&self, ctx: &Context<'_>) -> PathBuf {
        let (Spot::Plain(name) | Spot::Hashed(name)) = self;
        ctx.paths.cache.join(name).join(FILE)
    }

    /// Its name in the store (build §7.6).
    fn object(&self, ctx: &Context<'_>) -> String {
        let cache = &ctx.settings.cache;
        let mut parts = vec![clean(&cache.path)];
        if !cache.shared {
            parts.push(format!("runner/{}", ctx.settings.short_token));
        }
        parts.push(format!("project/{}", ctx.payload.job_info.project_id));
        parts.push(match self {
            Spot::Plain(name) => name.clone(),
            // Spread over many prefixes.
            Spot::Hashed(name) => format!("{}/{name}", &name[..2]),
        });
        parts.retain(|p| !p.is_empty());
        parts.join("/")
    }
}

impl Key {
    /// The second value is a warning.
    fn of(ctx: &Context<'_>, raw: &str) -> (Option<Key>, Option<String>) {
        let plain = sanitise(raw);
        let hashed = Spot::Hashed(hex(digest(&SHA256, raw.as_bytes()).as_ref()));
        if ctx.flags.on(Flag::FF_HASH_CACHE_KEYS) {
            let key = Key { human: raw.to_owned(), spot: hashed, twin: plain.map(Spot::Plain) };
            return (Some(key).filter(|_| !raw.is_empty()), None);
        }
        let Some(plain) = plain else {
            return (None, Some(format!("cache key {raw:?} could not be sanitized")));
        };
        let warning = (plain != raw).then(|| format!("cache key {raw:?} sanitized to {plain:?}"));
        (Some(Key { human: plain.clone(), spot: Spot::Plain(plain), twin: Some(hashed) }), warning)
    }
}

/// A cache's keys in the order in which they are tried.
struct Keys {
    all: Vec<Key>,
    warnings: Vec<String>,
}

impl Keys {
    /// Without a first key there are none at all.
    fn of(ctx: &Context<'_>, cache: &Cache) -> Keys {
        let mut keys = Keys { all: Vec::new(), warnings: Vec::new() };
        keys.add(ctx, &raw_key(ctx, cache));
        if keys.all.is_empty() {
            return keys;
        }
        for fallback in &cache.fallback_keys {
            keys.add(ctx, &ctx.vars.expand(fallback));
        }
        if let Some(last) = ctx.vars.get("CACHE_FALLBACK_KEY").filter(|k| !k.is_empty()) {
            // Whoever may not write to protected branches must not read their caches.
            if last.trim_end_matches(['.', ' ']).ends_with("-protected") {
                keys.warnings.push(format!("CACHE_FALLBACK_KEY {last:?} not allowed to end in \"-protected\""));
            } else {
                keys.add(ctx, &ctx.vars.expand(&last));
            }
        }
        keys
    }

    fn add(&mut self, ctx: &Context<'_>, raw: &str) {
        let (key, warning) = Key::of(ctx, raw);
        self.all.extend(key);
        self.warnings.extend(warning);
    }

    fn warnings(&self, body: &mut Body) {
        self.warnings.iter().for_each(|text| body.warning(text));
    }
}

/// As the job gives it, its variables in place.
fn raw_key(ctx: &Context<'_>, cache: &Cache) -> String {
    if !cache.key.is_empty() {
        return ctx.vars.expand(&cache.key);
    }
    let joined = format!("{}/{}", ctx.payload.job_info.name, ctx.payload.git_info.reference);
    clean(&joined)
}

/// A key as a path that stays where it is put; `None` when nothing is left of it.
fn sanitise(raw: &str) -> Option<String> {
    let mut plain = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find(['%', '\\']) {
        plain.push_str(&rest[..at]);
        let tail = &rest[at..];
        let (sign, len) = match tail.get(..3).map(str::to_ascii_lowercase).as_deref() {
            _ if tail.starts_with('\\') => ('/', 1),
            Some("%2f") => ('/', 3),
            Some("%2e") => ('.', 3),
            _ => ('%', 1),
        };
        plain.push(sign);
        rest = &tail[len..];
    }
    plain.push_str(rest);
    let mut path = clean(&plain);
    loop {
        path.truncate(path.trim_end().len());
        match path.strip_suffix('/') {
            Some(shorter) => path.truncate(shorter.len()),
            None => break,
        }
    }
    (!path.is_empty()).then_some(path)
}

/// Without `.`, `..` and empty parts; `..` climbs no higher than the start.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

// ---- Policies --------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Pull,
    Push,
    Both,
}

impl Policy {
    fn of(ctx: &Context<'_>, cache: &Cache, key: &str) -> Result<Policy, String> {
        match ctx.vars.expand(&cache.policy).as_str() {
            "" | "pull-push" => Ok(Policy::Both),
            "pull" => Ok(Policy::Pull),
            "push" => Ok(Policy::Push),
            other => Err(format!("unknown cache policy {other} for {key}")),
        }
    }

    fn pulls(self) -> bool {
        self != Policy::Push
    }

    fn pushes(self) -> bool {
        self != Policy::Pull
    }
}

// ---- Scripts ---------------------------------------------------------------------------------

/// The first key whose archive can be unpacked.
fn restore(ctx: &Context<'_>, program: &Program, body: &mut Body, cache: &Cache, keys: &[Key]) {
    let Some((key, others)) = keys.split_first() else { return };
    body.notice(&format!("Checking cache for {}...", key.human));
    let mut call = Call::new(program, "cache-extractor");
    call.option("--file", text(&key.spot.file(ctx))).option("--timeout", minutes(ctx));
    if let Some(link) = link(ctx, Verb::Get, &key.spot, &key.human, body) {
        call.secret("--url", "RUNNER_CACHE_URL", link.url);
        let twin = key.twin.as_ref();
        if let Some(other) = twin.and_then(|twin| link_quietly(ctx, Verb::Get, twin, &key.human)) {
            call.secret("--alternate-url", "RUNNER_CACHE_ALTERNATE_URL", other.url);
        }
    }
    body.raw("if ");
    call.write(body);
    body.raw("; then\n");
    body.notice("Successfully extracted cache");
    body.raw("else\n");
    body.warning("Failed to extract cache");
    if ctx.flags.on(Flag::FF_CLEAN_UP_FAILED_CACHE_EXTRACT) {
        clean_up(ctx, body, cache);
    }
    restore(ctx, program, body, cache, others);
    body.raw("fi\n");
}

/// Only what lies below the project directory.
fn clean_up(ctx: &Context<'_>, body: &mut Body, cache: &Cache) {
    for path in &cache.paths {
        let path = ctx.vars.expand(path);
        let inside = clean(&path);
        let climbs = Path::new(&path).components().any(|c| matches!(c, Component::ParentDir | Component::RootDir));
        if climbs || inside.is_empty() {
            continue;
        }
        body.line(&format!("Removing {path}"));
        body.remove(&[&ctx.paths.project.join(inside)]);
    }
}

fn archive(ctx: &Context<'_>, program: &Program, body: &mut Body, cache: &Cache, key: &Key) {
    body.notice(&format!("Creating cache {}...", key.human));
    let mut call = Call::new(program, "cache-archiver");
    call.option("--file", text(&key.spot.file(ctx)));
    if let Some(twin) = &key.twin {
        call.option("--alternate-file", text(&twin.file(ctx)));
    }
    call.option("--timeout", minutes(ctx));
    let max = ctx.settings.cache.max_size;
    if max > 0 {
        call.option("--max-uploaded-archive-size", max.to_string());
    }
    for path in &cache.paths {
        call.option("--path", path);
    }
    if cache.untracked {
        call.flag("--untracked");
    }
    if let Some(put) = link(ctx, Verb::Put, &key.spot, &key.human, body) {
        for (name, value) in &put.headers {
            call.option("--header", format!("{name}: {value}"));
        }
        call.secret("--url", "RUNNER_CACHE_URL", put.url);
        if let Some(head) = link_quietly(ctx, Verb::Head, &key.spot, &key.human) {
            call.secret("--check-url", "RUNNER_CACHE_CHECK_URL", head.url);
        }
    }
    if ctx.flags.on(Flag::FF_HASH_CACHE_KEYS) {
        let note = serde_json::json!({ "cachekey": key.human });
        call.env("CACHE_METADATA", Secret::new(note.to_string()));
    }
    body.raw("if ");
    call.write(body);
    body.raw("; then\n");
    body.notice("Created cache");
    body.raw("else\n");
    body.warning("Failed to create cache");
    body.raw("fi\n");
}

fn minutes(ctx: &Context<'_>) -> String {
    let asked = ctx.vars.get("CACHE_REQUEST_TIMEOUT").and_then(|t| t.parse().ok());
    asked.filter(|n: &u64| *n > 0).unwrap_or(REQUEST_TIMEOUT).to_string()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

// ---- The store -------------------------------------------------------------------------------

/// `None`: the cache stays on this host. Why it does against the settings stands in the log.
fn link(ctx: &Context<'_>, verb: Verb, spot: &Spot, human: &str, body: &mut Body) -> Option<Link> {
    let made = sign(ctx, verb, spot, human)?;
    let way = if verb == Verb::Put { "upload" } else { "download" };
    made.map_err(|why| body.warning(&format!("Unable to generate cache {way} environment: {why}"))).ok()
}

fn link_quietly(ctx: &Context<'_>, verb: Verb, spot: &Spot, human: &str) -> Option<Link> {
    sign(ctx, verb, spot, human)?.ok()
}

fn sign(ctx: &Context<'_>, verb: Verb, spot: &Spot, human: &str) -> Option<Result<Link, String>> {
    let cache = &ctx.settings.cache;
    let store = cache.store.as_ref()?;
    let seconds = u64::try_from(ctx.payload.runner_info.timeout).ok().filter(|t| *t > 0).unwrap_or(DEFAULT_TIMEOUT);
    Some(store.sign(&Wish {
        verb,
        object: &spot.object(ctx),
        cache_key: human,
        max_size: cache.max_size,
        now: SystemTime::now(),
        valid: Duration::from_secs(seconds),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a18_cache_keys_become_paths_that_stay_in_their_place() {
        for (raw, want) in [
            ("k-main", Some("k-main")),
            ("A", Some("A")),
            ("é", Some("é")),
            ("a/b/../c", Some("a/c")),
            ("a/../b", Some("b")),
            ("a\\..\\b", Some("b")),
            ("../x", Some("x")),
            ("/a//b/./c/", Some("a/b/c")),
            ("%2e%2e", None),
            ("%2E%2e%2Fx", Some("x")),
            ("a%2fb", Some("a/b")),
            ("%252e", Some("%252e")),
            ("%5C%é%", Some("%5C%é%")),
            ("/", None),
            ("", None),
            (".", None),
            (" ", None),
            ("...", Some("...")),
            ("x \t", Some("x")),
            ("foo/ /", Some("foo")),
            (" foo / bar ", Some(" foo / bar")),
            ("foo / \\o", Some("foo / /o")),
        ] {
            assert_eq!(sanitise(raw).as_deref(), want, "{raw:?}");
        }
    }
}
