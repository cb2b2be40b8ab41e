//! Job inputs (build §1.1, protocol §1.5.11): `${{ job.inputs.NAME }}` in a job's scripts, image, services,
//! artifacts and caches is replaced by what the person who started the job gave. Pure; a job without inputs
//! is left as it is, whatever its texts hold.

mod expression;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::gitlab::wire::{Image, Payload};

use expression::evaluate;

/// What was given, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Inputs(BTreeMap<String, Input>);

#[derive(Clone, Debug)]
struct Input {
    content: Value,
    /// It must not reach a text, where everybody reads it.
    sensitive: bool,
}

/// Fill in every text of the job. The error says which text, and what is wrong with it.
pub(super) fn interpolate(payload: &mut Payload) -> Result<(), String> {
    if payload.inputs.is_empty() {
        return Ok(());
    }
    let inputs = Inputs::read(&payload.inputs)?;
    let fill = |what: &str, text: &mut String| fill(&inputs, what, text);
    for step in payload.steps.iter_mut().filter(|s| matches!(s.name.as_str(), "script" | "after_script")) {
        let name = step.name.clone();
        step.script.iter_mut().try_for_each(|line| fill(&name, line))?;
    }
    image(&mut payload.image, "image", &fill)?;
    for service in &mut payload.services {
        image(service, "services", &fill)?;
    }
    for artifact in &mut payload.artifacts {
        let texts = [&mut artifact.name, &mut artifact.when, &mut artifact.expire_in];
        let mut texts = texts.into_iter().chain(&mut artifact.paths).chain(&mut artifact.exclude);
        texts.try_for_each(|text| fill("artifacts", text))?;
    }
    for cache in &mut payload.cache {
        let texts = [&mut cache.key, &mut cache.policy, &mut cache.when];
        let mut texts = texts.into_iter().chain(&mut cache.paths).chain(&mut cache.fallback_keys);
        texts.try_for_each(|text| fill("cache", text))?;
    }
    Ok(())
}

fn image(image: &mut Image, what: &str, fill: &impl Fn(&str, &mut String) -> Result<(), String>) -> Result<(), String> {
    let texts = [&mut image.name].into_iter().chain(&mut image.command).chain(&mut image.entrypoint);
    texts.chain(&mut image.pull_policy).try_for_each(|text| fill(what, text))?;
    image.executor_opts.values_mut().try_for_each(|options| values(options, what, fill))
}

/// Every text inside a value.
fn values(
    value: &mut Value,
    what: &str,
    fill: &impl Fn(&str, &mut String) -> Result<(), String>,
) -> Result<(), String> {
    match value {
        Value::String(text) => fill(what, text),
        Value::Array(list) => list.iter_mut().try_for_each(|v| values(v, what, fill)),
        Value::Object(map) => map.values_mut().try_for_each(|v| values(v, what, fill)),
        _ => Ok(()),
    }
}

/// One pass: what an input puts in is not looked at again.
fn fill(inputs: &Inputs, what: &str, text: &mut String) -> Result<(), String> {
    if !text.contains("${{") {
        return Ok(());
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find("${{") {
        out.push_str(&rest[..at]);
        let (value, after) = evaluate(&rest[at + 3..], inputs).map_err(|e| format!("{what}: {e}"))?;
        out.push_str(&value);
        rest = after;
    }
    out.push_str(rest);
    *text = out;
    Ok(())
}

impl Inputs {
    fn read(list: &[Value]) -> Result<Inputs, String> {
        let mut inputs = BTreeMap::new();
        for input in list {
            let key = input["key"].as_str().filter(|k| !k.is_empty()).ok_or("an input has no key")?;
            let value = &input["value"];
            let content = &value["content"];
            let fits = match value["type"].as_str() {
                Some("string") => content.is_string(),
                Some("number") => content.is_number(),
                Some("boolean") => content.is_boolean(),
                Some("array") => content.is_array(),
                Some("struct") => content.is_object(),
                other => return Err(format!("the input {key:?} has the unknown type {:?}", other.unwrap_or_default())),
            };
            if !fits {
                return Err(format!("the content of the input {key:?} is not of its type"));
            }
            let sensitive = value["sensitive"].as_bool().unwrap_or(false);
            inputs.insert(key.to_owned(), Input { content: content.clone(), sensitive });
        }
        Ok(Inputs(inputs))
    }

    fn get(&self, name: &str) -> Result<&Value, String> {
        match self.0.get(name) {
            Some(Input { sensitive: true, .. }) => {
                Err(format!("the input {name:?} is sensitive and cannot be put into a text"))
            }
            Some(input) => Ok(&input.content),
            None => Err(format!("there is no input {name:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn input(key: &str, kind: &str, content: Value) -> Value {
        json!({"key": key, "value": {"type": kind, "content": content, "sensitive": key == "secret"}})
    }

    fn payload(more: Value) -> Payload {
        let mut job = json!({"id": 1, "token": "t", "steps": []});
        for (key, value) in more.as_object().unwrap() {
            job[key] = value.clone();
        }
        Payload::read(&serde_json::value::to_raw_value(&job).unwrap()).unwrap()
    }

    fn inputs() -> Value {
        json!([
            input("name", "string", json!("World")),
            input("n", "number", json!(3)),
            input("list", "array", json!(["a", "b ${{ job.inputs.name }}"])),
            input("box", "struct", json!({"x": {"y": "deep"}, "odd key": "odd"})),
            input("on", "boolean", json!(true)),
            input("secret", "string", json!("hush")),
        ])
    }

    fn check(text: &str, want: Result<&str, &str>) {
        let steps = json!([{"name": "script", "script": [text]}]);
        let mut job = payload(json!({"inputs": inputs(), "steps": steps}));
        let got = interpolate(&mut job).map(|()| job.steps[0].script[0].clone());
        assert_eq!(got.as_deref().map_err(String::as_str), want, "{text}");
    }

    #[test]
    fn expressions_are_replaced_by_what_was_given() {
        check("echo ${{ job.inputs.name }}!", Ok("echo World!"));
        check("${{job.inputs.name}}${{ job.inputs.name }}", Ok("WorldWorld"));
        check("${{ job.inputs.list[1] }}", Ok("b ${{ job.inputs.name }}"));
        check("${{ job.inputs.box.x.y }} ${{ job.inputs.box[\"odd key\"] }}", Ok("deep odd"));
        check("${{ str(job.inputs.n) }} ${{ str( job.inputs.on ) }}", Ok("3 true"));
        check("${{ str(job.inputs.list[0]) }} ${{ \"}}\" }}", Ok("a }}"));
        check("${HOME} $$ {{ x }} }}", Ok("${HOME} $$ {{ x }} }}"));
    }

    #[test]
    fn what_cannot_be_replaced_says_why() {
        for (text, why) in [
            ("${{ job.inputs.none }}", "script: there is no input \"none\""),
            ("${{ job.inputs.n }}", "script: a number is no text: write str(job.inputs.n)"),
            ("${{ job.inputs.list }}", "script: an array is no text: write str(job.inputs.list)"),
            ("${{ job.inputs.secret }}", "script: the input \"secret\" is sensitive and cannot be put into a text"),
            ("${{ job.inputs.list[2] }}", "script: job.inputs.list[2]: there is no item 2"),
            ("${{ job.inputs.box.z }}", "script: job.inputs.box.z: there is no member \"z\""),
            ("${{ job.inputs.name.x }}", "script: job.inputs.name.x: a string has no members"),
            ("${{ env.X }}", "script: \"env.X\" is unknown: only job.inputs.NAME and str(…) are known"),
            ("${{ job.inputs.name", "script: a ${{ has no }}"),
            ("${{ job.inputs.name job }}", "script: \"job\" is one word too many"),
            ("${{ }}", "script: ${{ }} holds nothing"),
            ("${{ num(job.inputs.n) }}", "script: \"num(…)\" is unknown: only job.inputs.NAME and str(…) are known"),
        ] {
            check(text, Err(why));
        }
    }

    #[test]
    fn every_field_that_may_hold_inputs_is_filled_in_and_no_other() {
        let x = "${{ job.inputs.name }}";
        let mut job = payload(json!({
            "inputs": inputs(),
            "steps": [{"name": "script", "script": [x]}, {"name": "after_script", "script": [x]}, {"name": "release", "script": [x]}],
            "image": {"name": x, "alias": x, "entrypoint": [x], "executor_opts": {"docker": {"user": x}}},
            "services": [{"name": x, "command": [x], "pull_policy": [x]}],
            "artifacts": [{"name": x, "paths": [x], "exclude": [x], "when": x, "expire_in": x, "artifact_type": x}],
            "cache": [{"key": x, "policy": x, "paths": [x], "when": x, "fallback_keys": [x]}],
            "variables": [{"key": "A", "value": x}],
        }));
        interpolate(&mut job).unwrap();
        let left = format!("{job:?}").matches("job.inputs.name").count();
        // In the release step, the alias, the type, the variable and twice in the inputs' own content.
        assert_eq!(left, 5, "{job:?}");

        let mut untouched = payload(json!({"inputs": [], "steps": [{"name": "script", "script": ["${{ x"]}]}));
        interpolate(&mut untouched).unwrap();
        assert_eq!(untouched.steps[0].script[0], "${{ x");
    }

    #[test]
    fn inputs_that_are_none_are_told() {
        for (bad, why) in [
            (json!({"key": "", "value": {}}), "an input has no key"),
            (
                json!({"key": "a", "value": {"type": "date", "content": 1}}),
                "the input \"a\" has the unknown type \"date\"",
            ),
            (json!({"key": "a", "value": {"type": "string"}}), "the content of the input \"a\" is not of its type"),
        ] {
            assert_eq!(interpolate(&mut payload(json!({"inputs": [bad]}))).unwrap_err(), why);
        }
    }
}
