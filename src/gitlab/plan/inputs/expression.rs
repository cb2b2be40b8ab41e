//! The expressions inside `${{ }}`: a path to an input or a part of it, a text in quotes, `str(…)` around
//! either. Reads and evaluates in one go; knows nothing of where the text stands.

use std::borrow::Cow;

use serde_json::Value;

use super::Inputs;

const KNOWN: &str = "only job.inputs.NAME and str(…) are known";

/// The text that the expression at the beginning of `rest` stands for, and what follows its `}}`.
pub(super) fn evaluate<'t>(rest: &'t str, inputs: &Inputs) -> Result<(String, &'t str), String> {
    let mut reader = Reader { rest, inputs };
    reader.blanks();
    if reader.rest.starts_with("}}") {
        return Err("${{ }} holds nothing".to_owned());
    }
    let (value, said) = reader.value()?;
    let text = match value.as_ref() {
        Value::String(text) => text.clone(),
        other => return Err(format!("{} is no text: write str({said})", kind(other))),
    };
    reader.blanks();
    match reader.rest.strip_prefix("}}") {
        Some(after) => Ok((text, after)),
        None if !reader.rest.contains("}}") => Err("a ${{ has no }}".to_owned()),
        None => {
            let word = reader.rest.split("}}").next().unwrap_or_default().trim_end();
            Err(format!("{word:?} is one word too many"))
        }
    }
}

struct Reader<'t, 'i> {
    rest: &'t str,
    inputs: &'i Inputs,
}

impl<'t, 'i> Reader<'t, 'i> {
    /// A value, and how it is written.
    fn value(&mut self) -> Result<(Cow<'i, Value>, &'t str), String> {
        let start = self.rest;
        if self.rest.starts_with('"') {
            let text = self.quoted()?;
            return Ok((Cow::Owned(Value::String(text)), self.since(start)));
        }
        let name = self.name();
        if self.rest.starts_with('(') {
            if name != "str" {
                return Err(format!("\"{name}(…)\" is unknown: {KNOWN}"));
            }
            self.rest = &self.rest[1..];
            self.blanks();
            let (value, _) = self.value()?;
            self.blanks();
            self.rest = self.rest.strip_prefix(')').ok_or("a ( has no )")?;
            return Ok((Cow::Owned(Value::String(in_words(&value))), self.since(start)));
        }
        self.input(name, start)
    }

    /// `job.inputs.NAME`, then members and items.
    fn input(&mut self, first: &str, start: &'t str) -> Result<(Cow<'i, Value>, &'t str), String> {
        let unknown = |reader: &Self| {
            let path = start[..start.len() - reader.rest.len()].trim_end();
            match path {
                "" if !start.contains("}}") => "a ${{ has no }}".to_owned(),
                path => format!("{path:?} is unknown: {KNOWN}"),
            }
        };
        let second = self.member();
        if first != "job" || second != Some("inputs") {
            return Err(unknown(self));
        }
        let Some(name) = self.member() else { return Err(unknown(self)) };
        let mut value = self.inputs.get(name)?;
        loop {
            let part = if self.rest.starts_with('.') {
                self.member().map(Part::Member)
            } else if self.rest.starts_with('[') {
                Some(self.item()?)
            } else {
                return Ok((Cow::Borrowed(value), self.since(start)));
            };
            let said = self.since(start);
            value = part.ok_or_else(|| format!("{said}: a name is missing")).and_then(|p| p.of(value, said))?;
        }
    }

    fn member(&mut self) -> Option<&'t str> {
        let after = self.rest.strip_prefix('.')?;
        self.rest = after;
        Some(self.name()).filter(|name| !name.is_empty())
    }

    fn item(&mut self) -> Result<Part<'t>, String> {
        self.rest = &self.rest[1..];
        self.blanks();
        let part = if self.rest.starts_with('"') {
            Part::Odd(self.quoted()?)
        } else {
            let digits = self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, after) = self.rest.split_at(digits);
            self.rest = after;
            Part::Item(number.parse().map_err(|_| "between [ and ] stands neither a number nor a text in quotes")?)
        };
        self.blanks();
        self.rest = self.rest.strip_prefix(']').ok_or("a [ has no ]")?;
        Ok(part)
    }

    /// A text in double quotes, as JSON has them.
    fn quoted(&mut self) -> Result<String, String> {
        let mut texts = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = texts.next().and_then(Result::ok).ok_or("a text has no second quote")?;
        self.rest = &self.rest[texts.byte_offset()..];
        Ok(text)
    }

    fn name(&mut self) -> &'t str {
        let known = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        let (name, after) = self.rest.split_at(self.rest.len() - self.rest.trim_start_matches(known).len());
        self.rest = after;
        name
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn since(&self, start: &'t str) -> &'t str {
        &start[..start.len() - self.rest.len()]
    }
}

enum Part<'t> {
    Member(&'t str),
    /// A member whose name is no name.
    Odd(String),
    Item(usize),
}

impl Part<'_> {
    fn of<'v>(&self, value: &'v Value, said: &str) -> Result<&'v Value, String> {
        let member = match self {
            Part::Item(n) => {
                let list = value.as_array().ok_or_else(|| format!("{said}: {} has no items", kind(value)))?;
                return list.get(*n).ok_or_else(|| format!("{said}: there is no item {n}"));
            }
            Part::Member(name) => name,
            Part::Odd(name) => name.as_str(),
        };
        let map = value.as_object().ok_or_else(|| format!("{said}: {} has no members", kind(value)))?;
        map.get(member).ok_or_else(|| format!("{said}: there is no member {member:?}"))
    }
}

/// A text as it is, anything else as JSON.
fn in_words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "a struct",
    }
}
