//! What every request to the fake GitLab must have, whatever it asks for, and what a final update must
//! say of the stored log. Finds fault; answers nothing.

use serde_json::{Value, json};

use super::{Options, World};
use crate::support::http::Request;

/// What real GitLab only records, and a person wonders about later.
pub(super) fn result_errors(stored: &[u8], payload: &Value, body: &Value, options: &Options) -> Vec<String> {
    let mut wrong = Vec::new();
    let output = &body["output"];
    let left_out = output.get("checksum").is_none() && output.get("bytesize").is_none();
    if !(left_out && options.checksum_optional) {
        let want = format!("crc32:{:08x}", crc32(stored));
        if output["checksum"] != want.as_str() {
            wrong.push(format!("checksum is {}, {} bytes are stored with {want}", output["checksum"], stored.len()));
        }
        let size = if stored.is_empty() { Value::Null } else { json!(stored.len()) };
        if output["bytesize"] != size {
            wrong.push(format!("bytesize is {}, {} bytes are stored", output["bytesize"], stored.len()));
        }
    }
    let reason = body.get("failure_reason").and_then(Value::as_str);
    match (body["state"].as_str(), reason) {
        (Some("success"), None) => {}
        (Some("success"), Some(reason)) => wrong.push(format!("a success with the failure reason {reason}")),
        (_, None) => wrong.push("a failure without a reason".to_owned()),
        (_, Some(reason)) => {
            let known = payload["features"]["failure_reasons"].as_array().cloned().unwrap_or_default();
            let always = ["script_failure", "runner_system_failure", "job_execution_timeout"];
            if !known.iter().any(|k| k == reason) && !always.contains(&reason) && reason != "unknown_failure" {
                wrong.push(format!("the failure reason {reason} is none that the job offered"));
            }
        }
    }
    if body.get("exit_code").is_some_and(|c| c == 0) {
        wrong.push("exit_code 0 is sent".to_owned());
    }
    wrong
}

pub(super) fn check_json(world: &mut World, request: &Request) {
    if request.header("Content-Type").is_none_or(|t| !t.starts_with("application/json")) {
        world.violation(request, format!("Content-Type is {:?}", request.header("Content-Type")));
    }
    if !request.json().is_object() {
        world.violation(request, "the body is no JSON object");
    }
    if request.header("User-Agent").is_none_or(str::is_empty) {
        world.violation(request, "no User-Agent");
    }
}

pub(super) fn check_info(world: &mut World, request: &Request, body: &Value) {
    let info = &body["info"];
    for key in ["name", "version", "platform", "architecture", "executor", "shell"] {
        if info[key].as_str().is_none_or(str::is_empty) {
            world.violation(request, format!("info.{key} is {}", info[key]));
        }
    }
    for feature in world.options.required_features.clone() {
        if info["features"][feature] != true {
            world.violation(request, format!("info.features.{feature} is {}", info["features"][feature]));
        }
    }
    let switched: Vec<&String> = info["features"].as_object().into_iter().flatten().map(|(k, _)| k).collect();
    if switched.len() != FEATURES {
        world.violation(request, format!("info.features has {} of {FEATURES} keys", switched.len()));
    }
}

/// Keys of `info.features` (protocol §7.1): always all of them.
const FEATURES: usize = 31;

pub(super) fn is_system_id(id: &str) -> bool {
    let Some(rest) = id.strip_prefix("s_").or_else(|| id.strip_prefix("r_")) else { return false };
    rest.len() == 12 && rest.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// IEEE, bit by bit: slow, and not the runner's own.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let mut table = [0_u32; 256];
    for (n, slot) in (0_u32..).zip(table.iter_mut()) {
        *slot = (0..8).fold(n, |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 });
    }
    !bytes.iter().fold(!0_u32, |c, b| table[((c ^ u32::from(*b)) & 0xff) as usize] ^ (c >> 8))
}
